/* rule.h - the rules of the option `faulty`. */
#ifndef FAULTY_RULE_H
#define FAULTY_RULE_H

#include <stdbool.h>
#include <tessera/group.h>

enum { RULES = 32, RULE_TEXT = 160 };
enum { DELAY = 1, DROP, KILL, EXIT, STOP, FAIL, MISMATCH };
enum { BEFORE = 1, INSIDE, AFTER }; /* moments of a call */

struct rule {
	int32_t rank, kind; /* -1, 0: any */
	int64_t call; /* from 1; 0: the opening of a group; -1: any */
	int64_t every; /* 0: not given */
	double chance; /* 1: always */
	char where[64]; /* contained in the call's `where` */
	int32_t at, action;
	int64_t delay; /* ns */
	int32_t code; /* exit code */
	char part; /* part of a mismatch: 'c'ount, 'o'p, 'k'ind or 'd'type */
	char text[RULE_TEXT]; /* original text */
};

struct rules {
	struct rule rule[RULES];
	int32_t n;
	uint64_t seed;
};

/* Reads the rules. TESS_EINVAL: the message has the rule and the accepted words. */
tess_status rules_read(const struct tess_host *host, const char *text, const char *seed,
                       struct rules *out);

/* Returns whether the i-th rule applies at `at` in this call; c NULL: opening of a group. */
bool rule_applies(const struct rules *rules, int32_t i, int32_t rank, int64_t call,
                  const struct tess_coll *c, int32_t at);

#endif

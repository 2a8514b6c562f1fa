/* rule.h - what goes wrong when: the option `faulty`, read. */
#ifndef FAULTY_RULE_H
#define FAULTY_RULE_H

#include <stdbool.h>
#include <tessera/group.h>

enum { RULES = 32, RULE_TEXT = 160 };
enum { DELAY = 1, DROP, KILL, EXIT, STOP, FAIL, MISMATCH };
enum { BEFORE = 1, INSIDE, AFTER }; /* of the call's life */

struct rule {
	int32_t rank, kind; /* -1, 0: any */
	int64_t call; /* from 1; 0: when the group is opened; -1: any */
	int64_t every; /* 0: not given */
	double chance; /* 1: always */
	char where[64]; /* is in the call's `where` */
	int32_t at, action;
	int64_t delay; /* ns */
	int32_t code; /* of exit */
	char part; /* of mismatch: 'c'ount, 'o'p, 'k'ind or 'd'type */
	char text[RULE_TEXT]; /* as it was given */
};

struct rules {
	struct rule rule[RULES];
	int32_t n;
	uint64_t seed;
};

/* TESS_EINVAL and a sentence that names the rule and what may stand there. */
tess_status rules_read(const struct tess_host *host, const char *text, const char *seed,
                       struct rules *out);

/* Whether the i-th rule has its effect at `at` in this call; c NULL: while the group is opened. */
bool rule_applies(const struct rules *rules, int32_t i, int32_t rank, int64_t call,
                  const struct tess_coll *c, int32_t at);

#endif

/*
 * ledger.h - the inside of the hub: its groups, and the calls that some of their ranks have made. They are
 * compared here. All functions are called with the hub's lock held.
 */
#ifndef TESS_COMM_LEDGER_H
#define TESS_COMM_LEDGER_H

#include "hub.h"
#include "pairs.h"

#include <pthread.h>

enum { HUB_BUCKETS = 256, HUB_TEXT = 640, HUB_STATE = HUB_TEXT + 64 };

struct hub_group {
	struct hub_group *next;
	struct tess_roster *roster;
	int32_t left; /* members that have closed it */
	int32_t mentions; /* seats whose last call is in it */
	struct {
		uint64_t reached; /* its last collective */
		bool left;
	} member[];
};

struct hub_call { /* a call that some of its ranks have made */
	struct hub_call *next;
	struct hub_group *group;
	int32_t arrived;
	struct {
		int32_t rank;
		struct tess_note *note;
	} by[];
};

struct hub_seat {
	pid_t pid;
	int64_t heard; /* when, of a rank of another host; else 0 */
	bool here, left;
	struct tess_note *last; /* its last call that is known; NULL: none yet */
	struct hub_group *in; /* the group of that call */
};

struct tess_hub {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct tess_failure first;
	struct tess_listener *listeners;
	struct tess_pairs keys;
	struct hub_group *groups; /* the last one is that of all ranks */
	struct hub_call *calls[HUB_BUCKETS];
	int32_t ncalls, sweep_at;
	bool blind; /* a rank ran too far ahead: some calls were not kept */
	int32_t nranks, entered, left;
	struct hub_seat seat[];
};

/* Posts the first failure; a later one is nothing. In hub.c. */
void tess_hub_blame(struct tess_hub *h, int32_t rank, tess_status why, const char *fmt, ...)
	TESS_PRINTF(4, 5);

/* The roster is copied. NULL: no memory. */
struct hub_group *tess_ledger_group(struct tess_hub *h, const struct tess_roster *r);
/* NULL: there is none, or none any more. */
struct hub_group *tess_ledger_group_of(const struct tess_hub *h, uint32_t id);
/* The rank makes no call in the group any more. */
void tess_ledger_group_left(struct tess_hub *h, struct hub_group *g, int32_t rank);
void tess_ledger_free(struct tess_hub *h); /* all groups and calls */

/* The rank makes this call in `g`: remembered as its last one, and compared with those of the others. */
void tess_ledger_note(struct tess_hub *h, struct hub_group *g, int32_t rank,
                      const struct tess_note *n);
/* After somebody has left the job. */
void tess_ledger_left(struct tess_hub *h);

/*
 * Of the calls that a rank waits for, the first one that lacks somebody; else the first that is known,
 * or NULL.
 */
const struct hub_call *tess_ledger_awaited(struct tess_hub *h, const struct tess_key *key,
                                           int32_t n);
/* Whether the call lacks this rank, which is expected. */
bool tess_ledger_lacks(const struct hub_call *c, int32_t rank);
/* Whether the last call of `rank` lacks the other one. */
bool tess_ledger_waits(struct tess_hub *h, int32_t rank, int32_t other);
/* Whom the last call of `rank` lacks; -1: nobody, as far as is known. */
int32_t tess_ledger_awaits(struct tess_hub *h, int32_t rank);
/*
 * "the last call that it told of is ...", or that it has left, of a rank that is missed in `g` (NULL: in the
 * job); "": it has not come at all.
 * What is returned is `text` or lives as long.
 */
const char *tess_ledger_whereabouts(const struct tess_hub *h, int32_t rank,
                                    const struct hub_group *g, char *text, size_t room);

#endif

/*
 * ledger.h - the inside of the hub: its groups, and the calls that some of their ranks have made. They are
 * compared here. All functions are called with the hub's lock held.
 */
#ifndef TESS_COMM_LEDGER_H
#define TESS_COMM_LEDGER_H

#include "coordinator.h"
#include "kv_store.h"

#include <pthread.h>

enum { MATCHER_BUCKETS = 256, MATCHER_TEXT = 640, MATCHER_STATE = MATCHER_TEXT + 64 };

struct group_state {
	struct group_state *next;
	struct tess_members *members;
	int32_t left; /* members that have closed it */
	int32_t references; /* seats whose last call is in it */
	struct {
		uint64_t reached; /* its last collective */
		bool left;
	} member[];
};

struct call_state { /* a call that some of its ranks have made */
	struct call_state *next;
	struct group_state *group;
	int32_t arrived;
	struct {
		int32_t rank;
		struct tess_call_desc *note;
	} by[];
};

struct rank_state {
	pid_t pid;
	int64_t heard; /* when, of a rank of another host; else 0 */
	bool joined, left;
	struct tess_call_desc *last; /* its last call that is known; NULL: none yet */
	struct group_state *last_group; /* the group of that call */
};

struct tess_coordinator {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct tess_failure first;
	struct tess_failure_handler *handlers;
	struct tess_kv_store keys;
	struct group_state *groups; /* the last one is that of all ranks */
	struct call_state *calls[MATCHER_BUCKETS];
	int32_t ncalls, sweep_at;
	bool incomplete; /* a rank ran too far ahead: some calls were not kept */
	int32_t nranks, joined, left;
	struct rank_state rank[];
};

/* Posts the first failure; a later one is nothing. In hub.c. */
void tess_coordinator_post_failure(struct tess_coordinator *h, int32_t rank, tess_status why,
                                   const char *fmt, ...) TESS_PRINTF(4, 5);

/* The roster is copied. NULL: no memory. */
struct group_state *tess_matcher_add_group(struct tess_coordinator *h,
                                           const struct tess_members *r);
/* NULL: there is none, or none any more. */
struct group_state *tess_matcher_find_group(const struct tess_coordinator *h, uint32_t id);
/* The rank makes no call in the group any more. */
void tess_matcher_leave_group(struct tess_coordinator *h, struct group_state *g, int32_t rank);
void tess_matcher_free(struct tess_coordinator *h); /* all groups and calls */

/* The rank makes this call in `g`: remembered as its last one, and compared with those of the others. */
void tess_matcher_add_call(struct tess_coordinator *h, struct group_state *g, int32_t rank,
                           const struct tess_call_desc *n);
/* After somebody has left the job. */
void tess_matcher_check_left(struct tess_coordinator *h);

/*
 * Of the calls that a rank waits for, the first one that lacks somebody; else the first that is known,
 * or NULL.
 */
const struct call_state *tess_matcher_find_awaited(struct tess_coordinator *h,
                                                   const struct tess_call_key *key, int32_t n);
/* Whether the call lacks this rank, which is expected. */
bool tess_matcher_call_lacks(const struct call_state *c, int32_t rank);
/* Whether the last call of `rank` lacks the other one. */
bool tess_matcher_waits_for(struct tess_coordinator *h, int32_t rank, int32_t other);
/* Whom the last call of `rank` lacks; -1: nobody, as far as is known. */
int32_t tess_matcher_awaited_rank(struct tess_coordinator *h, int32_t rank);
/*
 * "the last call that it told of is ...", or that it has left, of a rank that is missed in `g` (NULL: in the
 * job); "": it has not come at all.
 * What is returned is `text` or lives as long.
 */
const char *tess_matcher_describe_rank(const struct tess_coordinator *h, int32_t rank,
                                       const struct group_state *g, char *text, size_t room);

#endif

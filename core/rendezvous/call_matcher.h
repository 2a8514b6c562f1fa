/*
 * call_matcher.h - compares the calls of a job's ranks, group by group, and finds those that can
 * never complete. The result is data; diagnosis.h makes the message.
 */
#ifndef TESS_RENDEZVOUS_CALL_MATCHER_H
#define TESS_RENDEZVOUS_CALL_MATCHER_H

#include "core/rendezvous/job_state.h"

/* The reason why a call can never complete. Valid until the job state is freed. */
struct tess_conflict {
	const struct call_state *call;
	int32_t first; /* index in call->by: a rank that waits in the call */
	int32_t second; /* index of a rank whose call differs; -1: `absent` has left instead */
	int32_t absent; /* the world rank that has left the job, or the group */
};

/* Adds a group; copies the members. NULL: no memory. */
struct group_state *tess_matcher_add_group(struct tess_job_state *s, const struct tess_members *m);
/* Returns a group; NULL: unknown, or all its members have left it. */
struct group_state *tess_matcher_find_group(const struct tess_job_state *s, uint32_t id);
/* Frees all groups and calls. */
void tess_matcher_free(struct tess_job_state *s);

/*
 * Adds the call `d` of `rank` in `g`: keeps it as the rank's last call, and compares it with those
 * of other members. Like the next two functions, returns true if *out is a conflict.
 */
bool tess_matcher_add_call(struct tess_job_state *s, struct group_state *g, int32_t rank,
                           const struct tess_call_desc *d, struct tess_conflict *out);
/* Ends the calls of `rank` in `g`. The last member to leave drops the group and its keys. */
bool tess_matcher_leave_group(struct tess_job_state *s, struct group_state *g, int32_t rank,
                              struct tess_conflict *out);
/* Checks the calls after a rank has left the job. */
bool tess_matcher_check_left(struct tess_job_state *s, struct tess_conflict *out);

/* Returns the first of these calls that lacks a rank; else the first known one, or NULL. */
const struct call_state *tess_matcher_find_awaited(const struct tess_job_state *s,
                                                   const struct tess_call_key *key, int32_t n);
/* Returns whether `rank` is expected in the call and has not joined it. */
bool tess_matcher_call_lacks(const struct call_state *c, int32_t rank);
/* Returns whether the last call of `rank` lacks `other`. */
bool tess_matcher_waits_for(const struct tess_job_state *s, int32_t rank, int32_t other);
/* Returns the first rank that the last call of `rank` lacks; -1: none known. */
int32_t tess_matcher_awaited_rank(const struct tess_job_state *s, int32_t rank);

#endif

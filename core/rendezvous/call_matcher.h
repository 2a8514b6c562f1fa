/*
 * call_matcher.h - compares the calls that the ranks of a job make, group by group, and finds those
 * that can never complete. The result is data; diagnosis.h has the sentences.
 */
#ifndef TESS_RENDEZVOUS_CALL_MATCHER_H
#define TESS_RENDEZVOUS_CALL_MATCHER_H

#include "core/rendezvous/job_state.h"

/* Why a call can never complete. Valid until the job state is freed: a conflict ends the job. */
struct tess_conflict {
	const struct call_state *call;
	int32_t first; /* index in call->by: a rank that waits in the call */
	int32_t second; /* index of a rank whose call differs; -1: `absent` has left instead */
	int32_t absent; /* the world rank that has left the job, or the group */
};

/* The members are copied. NULL: no memory. */
struct group_state *tess_matcher_add_group(struct tess_job_state *s, const struct tess_members *m);
/* NULL: no such group, or all its members have left it. */
struct group_state *tess_matcher_find_group(const struct tess_job_state *s, uint32_t id);
/* Frees all groups and calls. */
void tess_matcher_free(struct tess_job_state *s);

/*
 * These three return true where *out is a conflict. `rank` makes the call `d` in `g`: kept as its
 * last call, and compared with those of the other members.
 */
bool tess_matcher_add_call(struct tess_job_state *s, struct group_state *g, int32_t rank,
                           const struct tess_call_desc *d, struct tess_conflict *out);
/* `rank` makes no further call in `g`. The last member's leave drops the group and its keys. */
bool tess_matcher_leave_group(struct tess_job_state *s, struct group_state *g, int32_t rank,
                              struct tess_conflict *out);
/* A rank has left the job. */
bool tess_matcher_check_left(struct tess_job_state *s, struct tess_conflict *out);

/* The first of these calls that lacks a rank; else the first that is known, or NULL. */
const struct call_state *tess_matcher_find_awaited(const struct tess_job_state *s,
                                                   const struct tess_call_key *key, int32_t n);
/* Whether `rank` is expected in the call and has not joined it. */
bool tess_matcher_call_lacks(const struct call_state *c, int32_t rank);
/* Whether the last call of `rank` lacks `other`. */
bool tess_matcher_waits_for(const struct tess_job_state *s, int32_t rank, int32_t other);
/* The first rank that the last call of `rank` lacks; -1: none, as far as is known. */
int32_t tess_matcher_awaited_rank(const struct tess_job_state *s, int32_t rank);

#endif

/* diagnosis.h - finds the rank that keeps a job's calls from completing, and makes a message. */
#ifndef TESS_RENDEZVOUS_DIAGNOSIS_H
#define TESS_RENDEZVOUS_DIAGNOSIS_H

#include "core/rendezvous/call_matcher.h"
#include "core/rendezvous/failure.h"

enum { CALL_TEXT = 640, STAY_TEXT = 480, LAST_CALL_TEXT = CALL_TEXT + STAY_TEXT + 96 };

/* Describes different calls of two ranks, or a wait for a rank that has left. */
void tess_diagnose_conflict(const struct tess_job_state *s, const struct tess_conflict *c,
                            struct tess_failure *out);

/*
 * Describes why the deadline of `rank` has passed in the `n` calls `key`; n 0: before all ranks had
 * joined, or after it had left. False: the call is the opening of a group that all its members have
 * reached, so the backend has the reason.
 */
bool tess_diagnose_deadline(const struct tess_job_state *s, int32_t rank,
                            const struct tess_call_key *key, int32_t n, struct tess_failure *out);

/* Describes an overdue call of a plugin, and the ranks that are in the same one. */
void tess_diagnose_stay(const struct tess_job_state *s, int32_t rank, struct tess_failure *out);

/*
 * Formats "its last reported call is ...", or that the rank has left the job, or the group `g` (may
 * be NULL), and a slow call of a plugin in which it is; "" before it has joined.
 */
void tess_describe_last_call(const struct tess_job_state *s, int32_t rank,
                             const struct group_state *g, char *text, size_t size);

#endif

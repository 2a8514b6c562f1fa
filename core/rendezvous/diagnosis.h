/* diagnosis.h - why a job's calls do not complete: the rank that is the cause, and a sentence. */
#ifndef TESS_RENDEZVOUS_DIAGNOSIS_H
#define TESS_RENDEZVOUS_DIAGNOSIS_H

#include "core/rendezvous/call_matcher.h"
#include "core/rendezvous/failure.h"

enum { CALL_TEXT = 640, LAST_CALL_TEXT = CALL_TEXT + 64 };

/* Two ranks make calls that differ, or one waits for a rank that has left. */
void tess_diagnose_conflict(const struct tess_job_state *s, const struct tess_conflict *c,
                            struct tess_failure *out);

/*
 * The deadline of `rank` has passed in the `n` calls `key`; n 0: before all ranks had joined, or
 * after it had left. False: the call is the opening of a group that all its members have reached;
 * the backend knows more.
 */
bool tess_diagnose_deadline(const struct tess_job_state *s, int32_t rank,
                            const struct tess_call_key *key, int32_t n, struct tess_failure *out);

/*
 * "its last reported call is ...", or that the rank has left the job, or the group `g` (may be
 * NULL); "" before it has joined.
 */
void tess_describe_last_call(const struct tess_job_state *s, int32_t rank,
                             const struct group_state *g, char *text, size_t size);

#endif

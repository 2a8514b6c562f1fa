/*
 * coordinator.h - the shared state of a job: keys, calls, the first failure.
 *
 * Ranks that are threads share a coordinator; ranks that are processes each have a connection to
 * the server of the rendezvous, which calls it for them. Every function may be called from any
 * thread and returns at once, except the two that take a deadline.
 */
#ifndef TESS_RENDEZVOUS_COORDINATOR_H
#define TESS_RENDEZVOUS_COORDINATOR_H

#include "core/rendezvous/failure.h"
#include "core/rendezvous/job_state.h"

struct tess_coordinator;

/* TESS_EINVAL: not 1 to TESS_RANKS_MAX ranks; TESS_ENOMEM. */
tess_status tess_coordinator_open(int32_t nranks, struct tess_coordinator **out);
void tess_coordinator_close(struct tess_coordinator *c); /* NULL: nothing */

/* Borrows the handler, and calls it at once if the job has failed already. */
void tess_coordinator_add_handler(struct tess_coordinator *c, struct tess_failure_handler *handler);
void tess_coordinator_remove_handler(struct tess_coordinator *c,
                                     struct tess_failure_handler *handler);
/* Calls on_record of all handlers; they must not call the coordinator. */
void tess_coordinator_request_records(struct tess_coordinator *c);

/* Adds a rank to the job; pid 0: a thread of this process. TESS_EINVAL: twice, or no such rank. */
tess_status tess_coordinator_join(struct tess_coordinator *c, int32_t rank, pid_t pid);
int32_t tess_coordinator_joined(struct tess_coordinator *c); /* number of ranks */

/*
 * Records that data has arrived from a rank on another host. Such a rank sends a heartbeat every
 * TESS_HEARTBEAT_MS, since the end of its process cannot be detected.
 */
void tess_coordinator_heartbeat(struct tess_coordinator *c, int32_t rank);

/* Ends the calls of a rank; a failure if another rank waits for one of its calls. */
void tess_coordinator_leave(struct tess_coordinator *c, int32_t rank);
int32_t tess_coordinator_left(struct tess_coordinator *c); /* number of ranks */
bool tess_coordinator_has_left(struct tess_coordinator *c, int32_t rank);
/* Blocks until all ranks have left, or returns the job's failure. TESS_ETIMEOUT: no message. */
tess_status tess_coordinator_wait_left(struct tess_coordinator *c, int64_t deadline);

/* Set and get a key, which is set once. Getting blocks until then, a failure, or the deadline. */
tess_status tess_coordinator_set(struct tess_coordinator *c, const char *key, const void *val,
                                 uint64_t len);
tess_status tess_coordinator_get(struct tess_coordinator *c, const char *key, int64_t deadline,
                                 void *val, uint64_t *len);
/* Returns the value or NULL; borrowed until all members have closed the key's group. */
const void *tess_coordinator_find(struct tess_coordinator *c, const char *key, uint64_t *len);

/*
 * Adds a group of which `rank` is a member. Every member calls this; copies `m`. When all members
 * have left, the keys of the group are dropped.
 */
void tess_coordinator_add_group(struct tess_coordinator *c, int32_t rank,
                                const struct tess_members *m);
void tess_coordinator_leave_group(struct tess_coordinator *c, int32_t rank, uint32_t id);
/* Returns the number of ranks in the group; 0: no such group, or `rank` is not a member. */
int32_t tess_coordinator_group_size(struct tess_coordinator *c, int32_t rank, uint32_t id);

/* Adds a call of `rank` in a group that it is a member of; compares it with other ranks' calls. */
void tess_coordinator_add_call(struct tess_coordinator *c, int32_t rank,
                               const struct tess_call_desc *d);

/*
 * Handles a passed deadline of `rank` in the `n` calls `key`, which it has reported; n 0: before
 * all ranks had joined, or after it had left. Fails the job with a message that names the
 * straggler, unless the call is the opening of a group that all its members have reached.
 */
void tess_coordinator_deadline_passed(struct tess_coordinator *c, int32_t rank,
                                      const struct tess_call_key *key, int32_t n);

/*
 * Records that a rank is in a slow call of a plugin, for `stayed` ns, as `text` describes; "": not
 * any more. overdue: it should have returned, so the job fails with a message that has the ranks in
 * the same call.
 */
void tess_coordinator_set_stay(struct tess_coordinator *c, int32_t rank, const char *text,
                               int64_t stayed, bool overdue);
/* Returns whether the rank is in a call of a plugin that is overdue: it may never return. */
bool tess_coordinator_is_stuck(struct tess_coordinator *c, int32_t rank);

/*
 * Describes the last call of a rank: "its last reported call is all_reduce ..., call 41, at ...";
 * "" before it has joined. Returns the number of its last reported collective over all ranks, or 0.
 */
uint64_t tess_coordinator_last_call(struct tess_coordinator *c, int32_t rank, char *text,
                                    size_t size);

/* Fails the job with a message that names `rank` (-1: none). Later failures are ignored. */
void tess_coordinator_fail(struct tess_coordinator *c, int32_t rank, tess_status why,
                           const char *sentence);
/* Returns the first failure. TESS_OK: none so far, *out is unchanged. */
tess_status tess_coordinator_failure(struct tess_coordinator *c, struct tess_failure *out);

#endif

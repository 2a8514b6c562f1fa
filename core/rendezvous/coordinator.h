/*
 * hub.h - what the ranks of a job tell each other, in one place: keys, notes of calls, the first
 * failure.
 *
 * Ranks that are threads share a hub; ranks that are processes each have a connection to the server
 * of the rendezvous, which speaks for them to its hub. So both kinds are judged by the same lines
 * of code. Every call may come from any thread and returns at once, but for the two that take a
 * deadline.
 */
#ifndef TESS_COMM_HUB_H
#define TESS_COMM_HUB_H

#include "call_desc.h"
#include "members.h"

#include <sys/types.h>

struct tess_coordinator;

enum { TESS_RANKS_MAX = 1024, TESS_SENTENCE = 1536 };

struct tess_failure {
	tess_status why;
	int32_t rank; /* whom it names; -1: nobody */
	char sentence[TESS_SENTENCE];
};

/*
 * Is told of the first failure, once, from whichever thread brings it. The hub's lock is held: the
 * listener may not call the hub.
 */
struct tess_failure_handler {
	struct tess_failure_handler *next; /* the hub's */
	void (*on_failure)(void *arg, const struct tess_failure *f);
	/* Is asked to write its record; over a socket also where `knock` (a descriptor, or -1) is readable. */
	void (*on_record)(void *arg);
	int sigusr1_fd;
	void *arg;
};

tess_status tess_coordinator_open(int32_t nranks, struct tess_coordinator **out);
void tess_coordinator_close(struct tess_coordinator *h); /* NULL: nothing */

/* The listener is the caller's and is told at once if there is a failure already. */
void tess_coordinator_add_handler(struct tess_coordinator *h, struct tess_failure_handler *l);
void tess_coordinator_remove_handler(struct tess_coordinator *h, struct tess_failure_handler *l);
/* Asks all listeners for their records. As with a failure, they may not call the hub. */
void tess_coordinator_request_records(struct tess_coordinator *h);

/*
 * The rank is here; pid 0: a thread of this process. TESS_EINVAL: it is here already, or no such
 * rank.
 */
tess_status tess_coordinator_join(struct tess_coordinator *h, int32_t rank, pid_t pid);
int32_t tess_coordinator_joined(struct tess_coordinator *h); /* how many ranks have come so far */

/*
 * Something has come from this rank, of another host, where nobody sees what becomes of its process: it will
 * say so every TESS_ALIVE_MS.
 */
void tess_coordinator_heartbeat(struct tess_coordinator *h, int32_t rank);

/* The rank makes no call any more. A failure if somebody waits for one of its calls. */
void tess_coordinator_leave(struct tess_coordinator *h, int32_t rank);
int32_t tess_coordinator_left(struct tess_coordinator *h);
/*
 * Blocks until all have left, or something has failed: its status; TESS_ETIMEOUT without a
 * sentence.
 */
tess_status tess_coordinator_wait_left(struct tess_coordinator *h, int64_t deadline);

/* Keys are set once. `get` blocks until the key is there, something has failed, or the deadline. */
tess_status tess_coordinator_set(struct tess_coordinator *h, const char *key, const void *val,
                                 uint64_t len);
tess_status tess_coordinator_get(struct tess_coordinator *h, const char *key, int64_t deadline,
                                 void *val, uint64_t *len);
/* The value, or NULL; borrowed until its group is over. */
const void *tess_coordinator_find(struct tess_coordinator *h, const char *key, uint64_t *len);

/*
 * `rank` is a member of this group of its own and makes calls in it from now on, until it leaves it. Every
 * member says so; the roster is copied. When all have left it, its keys are dropped.
 */
void tess_coordinator_add_group(struct tess_coordinator *h, int32_t rank,
                                const struct tess_members *r);
void tess_coordinator_leave_group(struct tess_coordinator *h, int32_t rank, uint32_t id);
/* How many ranks it has; 0: there is none, or `rank` is no member. */
int32_t tess_coordinator_group_size(struct tess_coordinator *h, int32_t rank, uint32_t id);

/* `rank` makes this call, in a group of its own: compared with what others said of the same key. */
void tess_coordinator_add_call(struct tess_coordinator *h, int32_t rank,
                               const struct tess_call_desc *n);

/*
 * The deadline of `rank` has passed, in the `n` calls `key` (their notes were given before); n 0: before
 * all ranks had come, or when it had left. A failure that says who is behind, and where; of an opening that all have
 * come to nothing.
 */
void tess_coordinator_deadline_passed(struct tess_coordinator *h, int32_t rank,
                                      const struct tess_call_key *key, int32_t n);

/*
 * "the last call that it told of is all_reduce ..., call 41, at ..."; "" before it has come.
 * Returns the number of the last collective of all ranks that it has told of, or 0.
 */
uint64_t tess_coordinator_last_call(struct tess_coordinator *h, int32_t rank, char *text,
                                    size_t room);

/* Posts a failure that names `rank` (-1: nobody). Only the first one counts. */
void tess_coordinator_fail(struct tess_coordinator *h, int32_t rank, tess_status why,
                           const char *sentence);
/* TESS_OK: none so far, *out untouched. */
tess_status tess_coordinator_failure(struct tess_coordinator *h, struct tess_failure *out);

#endif

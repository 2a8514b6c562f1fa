/* context.h - what the ranks of a group, threads of one process, share. */
#ifndef LOOPBACK_CONTEXT_H
#define LOOPBACK_CONTEXT_H

#include "move.h"

enum { SENTENCE = 1024 };

extern const struct tess_host *loopback_host;

struct context {
	struct context *next; /* in the list of open contexts, under its lock, with id and users */
	uint64_t id;
	int32_t users; /* ranks that have it open */
	pthread_mutex_t lock; /* of all that follows */
	int32_t nranks;
	int32_t *world; /* the world rank of each rank, for messages */
	int32_t spin;
	bool failed; /* no further piece is moved */
	atomic_bool stop; /* the same, read by ranks that spin */
	tess_status why;
	char sentence[SENTENCE];
	int32_t moving; /* pieces that are being moved now */
	pthread_cond_t moves_done; /* moving is 0 */
	struct pending_call *open, *spare;
};

/* The context of a new group: rank 0 makes it, the other ranks find it through the store. */
tess_status context_open(const struct tess_join *how, struct context **out);
/* The last rank frees it. */
void context_leave(struct context *ctx);

/* The functions below want the lock to be held. */
/* The first failure is kept. */
void TESS_PRINTF(3, 4) context_fail(struct context *ctx, tess_status why, const char *fmt, ...);
tess_status context_report_failure(const struct context *ctx);
/* Until no rank touches a buffer. Moves are short, and none begins after a failure. */
void context_await_moves(struct context *ctx);

#endif

/* context.h - the shared state of a group, whose ranks are threads of one process. */
#ifndef LOOPBACK_CONTEXT_H
#define LOOPBACK_CONTEXT_H

#include "move.h"

enum { SENTENCE = 1024 };

extern const struct tess_host *loopback_host;

struct context {
	struct context *next; /* list of open contexts, whose lock guards next, id and users */
	uint64_t id;
	int32_t users; /* number of ranks that have it open */
	pthread_mutex_t lock; /* guards the fields below */
	int32_t nranks;
	int32_t *world; /* the world rank of each rank, for messages */
	int32_t spin;
	bool failed; /* no further piece is moved */
	atomic_bool stop; /* equal to failed, for spinning ranks */
	tess_status why;
	char sentence[SENTENCE];
	int32_t moving; /* number of pieces that are being moved */
	pthread_cond_t moves_done; /* moving is 0 */
	struct pending_call *open, *spare;
};

/* Opens the context of a group: rank 0 makes it, the other ranks find it through the store. */
tess_status context_open(const struct tess_group_entry *how, struct context **out);
/* Leaves the context; the last rank frees it. */
void context_leave(struct context *ctx);

/* The functions below require the lock. */
/* Fails the group; the first failure is kept. */
void TESS_PRINTF(3, 4) context_fail(struct context *ctx, tess_status why, const char *fmt, ...);
tess_status context_report_failure(const struct context *ctx);
/* Waits until no rank accesses a buffer. Moves are short, and none begins after a failure. */
void context_await_moves(struct context *ctx);

#endif

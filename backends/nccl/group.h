/*
 * group.h - one rank of a group over NCCL.
 *
 * open.c opens and closes it (meeting.c: what ranks exchange before), memory.c allocates memory
 * that is registered with NCCL, issue.c makes NCCL's calls, and work.c follows them to their end.
 * All use group.c: the lock, failures, aborts.
 */
#ifndef NCCL_GROUP_H
#define NCCL_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <tessera/coll.h>
#include <tessera/util/clock.h>

#include "library.h"

enum work_state {
	WORK_COLLECTED, /* messages, which start together */
	WORK_STARTING, /* issued to NCCL, which has not queued all of it on the stream */
	WORK_QUEUED, /* on the stream, before its event */
	WORK_DONE
};

struct work {
	struct work *next;
	enum work_state state;
	void *event;
	int64_t deadline; /* earliest deadline of its calls */
	void *stream; /* stream of the first call: NCCL makes the streams of all calls wait */
	bool captured; /* into a graph, where an event would not mark the work's end */
	uint32_t n, capacity;
	struct step { /* a call, and a copy of its input if it is in place */
		struct tess_coll c;
		unsigned long long copy;
	} step[];
};

struct registered { /* memory of alloc() */
	struct registered *next;
	void *memory, *handle;
	bool of_nccl; /* allocated by NCCL, not by the driver */
};

struct group {
	const struct tess_host *host;
	const struct nccl_calls *calls;
	int32_t rank, nranks;
	int32_t *world; /* world rank of each member, for messages */
	char *name;
	int device; /* CUDA device index */
	void *context;
	unsigned long long word; /* device memory: the operand of a barrier */
	atomic_bool aborted;

	pthread_mutex_t
		lock; /* protects all below, and calls of NCCL: abort() comes from another thread */
	void *comm; /* NULL after an abort */
	void **child; /* destination of NCCL's child of a split; NULL: no split */
	bool starting; /* NCCL has not finished the last start, and accepts no other one */
	tess_status failed; /* the result of every later call, and its message */
	char why[768];
	struct work *works, *spare; /* unreleased works, oldest first; works for reuse */
	bool ending; /* `ender` aborts the communicator */
	pthread_t ender;
	struct registered *registered;
};

/*
 * Locks and unlocks all use of NCCL and CUDA, with the device's context current in this thread.
 * Unlocking aborts the communicator if abort() came and could not wait.
 */
void group_lock(struct group *g);
void group_unlock(struct group *g);
/* Sets the group's failure from a result of NCCL or the driver; `what`: the call. */
tess_status group_fail_nccl(struct group *g, int result, const char *what);
tess_status group_fail_cuda(struct group *g, int result, const char *what);
/* Sets the group's failure with this message. */
tess_status TESS_PRINTF(3, 4) group_fail(struct group *g, tess_status why, const char *fmt, ...);
/* Returns TESS_OK, or the group's failure. */
tess_status group_check(const struct group *g);
/* Fails the group and aborts the communicator and all running calls. Locked. */
void group_abort_locked(struct group *g);
/*
 * Aborts the communicator without a failure; waits at most 2 s until NCCL has aborted it. Locked.
 */
void group_end_communicator(struct group *g);
void group_await_ender(struct group *g);
/* Returns TESS_OK, TESS_PENDING or the failure of NCCL's work in the background. Locked. */
tess_status group_poll(struct group *g);

tess_status group_open(const struct tess_group_entry *how, const struct tess_host *host,
                       void **self);
void group_abort(void *self);
void group_close(void *self);
tess_status group_alloc(void *self, uint64_t bytes, void **mine, void **peers);
void group_free(void *self, void *mine);
/* Frees the memory of group_alloc that group_free has not freed. Locked. */
void group_free_all_locked(struct group *g);

#endif

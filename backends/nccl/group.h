/*
 * group.h - one rank of a group over NCCL: open.c opens and closes it (meeting.c: what ranks tell
 * each other before), memory.c has memory that NCCL knows, issue.c makes NCCL's calls, work.c
 * follows them to their end. All use group.c: the lock, failures, an abort.
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
	WORK_STARTING, /* NCCL has it, and has not put all of it on the stream */
	WORK_QUEUED, /* on the stream, before its event */
	WORK_DONE
};

struct work {
	struct work *next;
	enum work_state state;
	void *event;
	int64_t deadline; /* the earliest of its calls */
	void *stream; /* of the first call: NCCL lets the streams of all calls wait */
	bool captured; /* into a graph, where an event would not be the work's end */
	uint32_t n, capacity;
	struct step { /* a call, and a copy of what it sends, if it is in place */
		struct tess_coll c;
		unsigned long long copy;
	} step[];
};

struct registered { /* memory of alloc() */
	struct registered *next;
	void *memory, *handle;
	bool of_nccl; /* NCCL allocated it, not the driver */
};

struct group {
	const struct tess_host *host;
	const struct nccl_calls *calls;
	int32_t rank, nranks;
	int32_t *world; /* world rank of each member, for messages */
	char *name;
	int device; /* CUDA's number of it */
	void *context;
	unsigned long long word; /* device memory: what a barrier adds */
	atomic_bool aborted;

	pthread_mutex_t
		lock; /* of the rest, and of calls of NCCL: abort() comes from another thread */
	void *comm; /* NULL: it was aborted */
	void **child; /* what NCCL splits from it is set here; NULL: it splits nothing */
	bool starting; /* NCCL has not finished the last start: it takes no other one */
	tess_status failed; /* the answer of every later call, and its sentence */
	char why[768];
	struct work *works, *spare; /* that are not released, the oldest first; for later calls */
	bool ending; /* `ender` aborts the communicator */
	pthread_t ender;
	struct registered *registered;
};

/*
 * Around all use of NCCL and CUDA: the device's context is this thread's meanwhile. Unlocking ends
 * the communicator if abort() came and could not wait.
 */
void group_lock(struct group *g);
void group_unlock(struct group *g);
/* Sets the failure of the group, from a result of NCCL or the driver; `what`: the call. */
tess_status group_fail_nccl(struct group *g, int result, const char *what);
tess_status group_fail_cuda(struct group *g, int result, const char *what);
/* A failure of the group with this sentence. */
tess_status TESS_PRINTF(3, 4) group_fail(struct group *g, tess_status why, const char *fmt, ...);
/* TESS_OK, or the group's failure. */
tess_status group_check(const struct group *g);
/* Ends the communicator, and soon all that runs in it. Locked. */
void group_abort_locked(struct group *g);
/* The same without a failure; and the wait, of 2 s at most, until NCCL has ended it. Locked. */
void group_end_communicator(struct group *g);
void group_await_ender(struct group *g);
/* TESS_OK, TESS_PENDING or the failure of what NCCL does in the background. Locked. */
tess_status group_poll(struct group *g);

tess_status group_open(const struct tess_group_entry *how, const struct tess_host *host,
                       void **self);
void group_abort(void *self);
void group_close(void *self);
tess_status group_alloc(void *self, uint64_t bytes, void **mine, void **peers);
void group_free(void *self, void *mine);
/* Frees what group_alloc gave and no group_free took back. Locked. */
void group_free_all_locked(struct group *g);

#endif

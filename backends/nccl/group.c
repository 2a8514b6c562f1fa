/* group.c - the lock of a group, its failure, and the abort of its communicator. */
#include "group.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { ENDER_S = 2, ABORT_S = 1 }; /* timeouts: end of an abort; lock */

/* ---- the lock, and an abort ------------------------------------------------------------------ */

void group_lock(struct group *g)
{
	pthread_mutex_lock(&g->lock);
	g->calls->context_push(g->context);
}

struct ender { /* the state of the thread, which may outlive the group */
	const struct nccl_calls *calls;
	void *comm, *context;
	void **child; /* child of an unfinished split; or NULL */
};

/*
 * Aborts the parent first: NCCL then ends its split, has set the child, and does not use it later.
 */
static void abort_comms(const struct ender *e)
{
	e->calls->comm_abort(e->comm);
	if (e->child && *e->child)
		e->calls->comm_abort(*e->child);
	free(e->child);
}

/* Aborts in the group's context: without a context NCCL would create one on device 0. */
static void *run_ender(void *arg)
{
	struct ender *e = arg;
	void *context;

	e->calls->context_push(e->context);
	abort_comms(e);
	e->calls->context_pop(&context);
	free(e);
	return NULL;
}

/*
 * Aborts the communicator in a thread. ncclCommAbort stops running calls, and returns when the last
 * call has left its stream and no graph has calls of the communicator. A call may be queued behind
 * one of another communicator that is aborted next, and the caller closes the graphs: both need
 * this function to return.
 */
void group_end_communicator(struct group *g)
{
	struct ender own = { g->calls, g->comm, g->context, g->child }, *e = malloc(sizeof *e);

	g->comm = NULL;
	g->child = NULL;
	if (e) {
		*e = own;
		g->ending = !pthread_create(&g->ender, NULL, run_ender, e);
	}
	if (g->ending)
		return;
	free(e);
	abort_comms(&own);
}

/* Waits for the abort, up to ENDER_S. If a graph was not closed, it leaks with its communicator. */
void group_await_ender(struct group *g)
{
	struct timespec until;

	if (!g->ending)
		return;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ENDER_S;
	if (pthread_timedjoin_np(g->ender, NULL, &until))
		pthread_detach(g->ender);
	g->ending = false;
}

void group_abort_locked(struct group *g)
{
	if (g->comm)
		group_end_communicator(g);
	if (g->failed)
		return;
	/* the caller may have another failure to report */
	snprintf(g->why, sizeof g->why, "group %s over nccl was aborted", g->name);
	g->failed = TESS_EABORTED;
}

void group_unlock(struct group *g)
{
	void *context;

	if (atomic_load(&g->aborted) && g->comm)
		group_abort_locked(g);
	g->calls->context_pop(&context);
	pthread_mutex_unlock(&g->lock);
}

void group_abort(void *self)
{
	struct group *g = self;
	struct timespec until;

	atomic_store(&g->aborted, true);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ABORT_S;
	/* if a thread is inside NCCL, it aborts when it leaves */
	if (!pthread_mutex_timedlock(&g->lock, &until)) {
		g->calls->context_push(g->context);
		group_unlock(g);
	}
}

/* ---- failures -------------------------------------------------------------------------------- */

tess_status group_fail(struct group *g, tess_status why, const char *fmt, ...)
{
	va_list ap;

	if (!g->failed) {
		va_start(ap, fmt);
		vsnprintf(g->why, sizeof g->why, fmt, ap);
		va_end(ap);
		g->failed = why;
	}
	return group_check(g);
}

tess_status group_check(const struct group *g)
{
	return g->failed ? g->host->fail(g->failed, "%s", g->why) : TESS_OK;
}

tess_status group_fail_nccl(struct group *g, int result, const char *what)
{
	const char *more = g->calls->get_last_error(g->comm);
	tess_status why = result == NCCL_REMOTE_ERROR || result == NCCL_TIMEOUT ? TESS_EPEER
	                  : result == NCCL_SYSTEM_ERROR                         ? TESS_EIO
	                                                                        : TESS_EDEVICE;

	return group_fail(g, why, "group %s over nccl: %s: %s (%d)%s%.400s", g->name, what,
	                  g->calls->get_error_string(result), result, more && *more ? ": " : "",
	                  more ? more : "");
}

tess_status group_fail_cuda(struct group *g, int result, const char *what)
{
	const char *text = "unknown error";

	g->calls->cuda_get_error(result, &text);
	return group_fail(g, TESS_EDEVICE, "group %s over nccl: %s on device %d: %s (%d)", g->name,
	                  what, g->device, text, result);
}

tess_status group_poll(struct group *g)
{
	int state = NCCL_SUCCESS, bad;

	if (!g->comm)
		return group_check(g);
	bad = g->calls->get_async_error(g->comm, &state);
	if (bad || (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS))
		return group_fail_nccl(g, bad ? bad : state, "ncclCommGetAsyncError");
	return g->starting && state == NCCL_IN_PROGRESS ? TESS_PENDING : TESS_OK;
}

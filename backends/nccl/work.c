#include "work.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "issue.h"

enum { SPIN_NS = 50000, PAUSE_NS = 20000 };

/* ---- starting -------------------------------------------------------------------------------- */

/* Queues the events of the works, after NCCL has queued all their calls on the streams. */
static tess_status queue_events(struct group *g)
{
	for (struct work *w = g->works; w; w = w->next) {
		int bad = 0;

		if (w->state != WORK_STARTING)
			continue;
		for (uint32_t i = 0; i < w->n && !bad; i++)
			if (w->step[i].copy)
				bad = g->calls->free_async(w->step[i].copy, w->step[i].c.stream);
		if (!bad && !w->captured)
			bad = g->calls->event_record(w->event, w->stream);
		if (bad)
			return group_fail_cuda(g, bad, "cuEventRecord");
		w->state = w->captured ? WORK_DONE : WORK_QUEUED;
	}
	g->starting = false;
	return TESS_OK;
}

tess_status work_finish_start(struct group *g)
{
	tess_status st = group_check(g);

	if (!st && g->starting)
		st = group_poll(g);
	return st || !g->starting ? st : queue_events(g);
}

/* Issues a work, and the messages collected before it, to NCCL as one group of calls. */
static tess_status start_group(struct group *g)
{
	tess_status st = TESS_OK;
	int ended;

	if (g->calls->group_start())
		return group_fail_nccl(g, NCCL_INVALID_USAGE, "ncclGroupStart");
	for (struct work *w = g->works; w && !st; w = w->next) {
		if (w->state != WORK_COLLECTED)
			continue;
		for (uint32_t i = 0; i < w->n && !st; i++)
			st = issue_step(g, &w->step[i]);
		w->state = WORK_STARTING;
	}
	ended = g->calls->group_end();
	if (!st && ended != NCCL_SUCCESS && ended != NCCL_IN_PROGRESS)
		st = group_fail_nccl(g, ended, "ncclGroupEnd");
	g->starting = true;
	return st || ended == NCCL_IN_PROGRESS ? st : queue_events(g);
}

static bool has_collected(const struct group *g)
{
	for (const struct work *w = g->works; w; w = w->next)
		if (w->state == WORK_COLLECTED)
			return true;
	return false;
}

/* Starts collected works when NCCL accepts them; TESS_PENDING: not yet. */
static tess_status start_collected(struct group *g)
{
	tess_status st = work_finish_start(g);

	return st || !has_collected(g) ? st : start_group(g);
}

static void pause_thread(int64_t begin)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };

	if (tess_now() - begin < SPIN_NS)
		sched_yield();
	else
		nanosleep(&pause, NULL);
}

/*
 * Waits until NCCL has queued `w` (NULL: all started works) on its stream, and accepts the next
 * start.
 */
static tess_status await_start(struct group *g, const struct work *w, int64_t deadline)
{
	int64_t begin = tess_now();
	tess_status st;

	while ((st = start_collected(g)) == TESS_PENDING ||
	       (!st && (w ? w->state < WORK_QUEUED : g->starting))) {
		if (tess_now() >= deadline)
			return g->host->fail(TESS_ETIMEOUT,
			                     "group %s over nccl: NCCL did not start a call until "
			                     "its deadline",
			                     g->name);
		group_unlock(g); /* for abort() */
		pause_thread(begin);
		group_lock(g);
	}
	return st;
}

/* ---- works ----------------------------------------------------------------------------------- */

static struct work *take_work(struct group *g, uint32_t n)
{
	struct work *w = g->spare && g->spare->capacity >= n ? g->spare : NULL;

	if (w) {
		g->spare = w->next;
	} else {
		w = calloc(1, sizeof *w + n * sizeof *w->step);
		if (w && g->calls->event_create(&w->event, CUDA_NO_TIMING)) {
			free(w);
			w = NULL;
		}
		if (w)
			w->capacity = n;
	}
	return w;
}

static void free_work(struct group *g, struct work *w)
{
	g->calls->event_destroy(w->event);
	free(w);
}

/* Returns whether the works of earlier messages must start first: a group of calls has no order. */
static bool needs_order(const struct work *w)
{
	if (w->captured)
		return true;
	for (uint32_t i = 0; i < w->n; i++)
		if (!tess_kind_is_p2p(w->step[i].c.kind))
			return true;
	return false;
}

static void append_work(struct group *g, struct work *w)
{
	struct work **at = &g->works;

	while (*at)
		at = &(*at)->next;
	w->next = NULL;
	*at = w;
}

static tess_status start_locked(struct group *g, const struct tess_coll *const *c, uint32_t n,
                                bool captured, struct work **out)
{
	struct work *w = take_work(g, n);
	bool collective;
	tess_status st = TESS_OK;

	if (!w)
		return g->host->fail(TESS_ENOMEM, "nccl: no memory for %u calls", (unsigned)n);
	w->n = n;
	w->state = WORK_COLLECTED;
	w->deadline = c[0]->deadline;
	w->stream = c[0]->stream;
	w->captured = captured;
	for (uint32_t i = 0; i < n; i++) {
		w->step[i] = (struct step){ .c = *c[i] };
		if (c[i]->deadline < w->deadline)
			w->deadline = c[i]->deadline;
	}
	collective = needs_order(w);
	if (collective)
		st = await_start(g, NULL, w->deadline);
	if (st) {
		w->next = g->spare;
		g->spare = w;
		return st;
	}
	append_work(g, w);
	*out = w;
	if (collective)
		st = start_group(g);
	/* else, on some ranks, a call in another communicator could overtake it on the stream */
	return st || !collective ? st : await_start(g, w, w->deadline);
}

tess_status work_start(void *self, const struct tess_coll *const *c, uint32_t n, void **out)
{
	struct group *g = self;
	struct work *w = NULL;
	tess_status st;

	group_lock(g);
	st = group_check(g);
	if (!st)
		st = start_locked(g, c, n, false, &w);
	group_unlock(g);
	if (!st)
		*out = w;
	return st;
}

static tess_status test_locked(struct group *g, struct work *w)
{
	tess_status st;
	int result;

	if (w->state == WORK_DONE)
		return TESS_OK;
	st = start_collected(g);
	if (st || w->state < WORK_QUEUED)
		return st ? st : TESS_PENDING;
	result = g->calls->event_query(w->event);
	if (result == CUDA_SUCCESS)
		w->state = WORK_DONE;
	else if (result != CUDA_NOT_READY)
		return group_fail_cuda(g, result, "cuEventQuery");
	if (w->state == WORK_DONE)
		return TESS_OK;
	st = group_poll(g); /* the only sign of a lost connection */
	return st ? st : TESS_PENDING;
}

tess_status work_test(void *self, void *work)
{
	struct group *g = self;
	tess_status st;

	group_lock(g);
	st = test_locked(g, work);
	group_unlock(g);
	return st;
}

tess_status work_wait(void *self, void *work, int64_t deadline)
{
	struct group *g = self;
	int64_t begin = tess_now();
	tess_status st;

	while ((st = work_test(g, work)) == TESS_PENDING) {
		if (tess_now() >= deadline)
			return g->host->fail(TESS_ETIMEOUT,
			                     "group %s over nccl: a call was not done by its "
			                     "deadline",
			                     g->name);
		pause_thread(begin);
	}
	return st;
}

tess_status work_join(void *self, void *work, void *stream)
{
	struct group *g = self;
	struct work *w = work;
	tess_status st = TESS_OK;
	int bad = 0;

	group_lock(g);
	if (w->state != WORK_DONE)
		st = await_start(g, w, w->deadline);
	if (!st && stream != w->stream)
		bad = g->calls->stream_wait(stream, w->event, 0);
	if (bad)
		st = group_fail_cuda(g, bad, "cuStreamWaitEvent");
	group_unlock(g);
	return st;
}

void work_release(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work, **at = &g->works;

	if (w->state != WORK_DONE && !atomic_load(&g->aborted))
		work_wait(g, w, w->deadline);
	group_lock(g);
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	if (w->capacity == 1) {
		w->next = g->spare;
		g->spare = w;
	} else {
		free_work(g, w);
	}
	group_unlock(g);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* Refuses to capture while works are not started: they would be captured, too. */
static tess_status check_collected(struct group *g)
{
	tess_status st = group_check(g);

	return !st && (has_collected(g) || g->starting)
	               ? g->host->fail(TESS_ENOTSUP,
	                               "group %s over nccl: pending messages cannot be in a "
	                               "graph",
	                               g->name)
	               : st;
}

tess_status work_capture(void *self, const struct tess_coll *c)
{
	struct group *g = self;
	struct work *w = NULL;
	tess_status st;

	group_lock(g);
	st = check_collected(g);
	if (!st)
		st = start_locked(g, &c, 1, true, &w);
	group_unlock(g);
	if (w)
		work_release(g, w);
	return st;
}

tess_status work_follow_graph(void *self, void *stream, int64_t deadline, void **out)
{
	struct group *g = self;
	struct work *w = NULL;
	tess_status st;
	int bad = 0;

	group_lock(g);
	st = group_check(g);
	if (!st && !(w = take_work(g, 1)))
		st = g->host->fail(TESS_ENOMEM, "nccl: no memory for a graph");
	if (!st) {
		w->n = 0;
		w->state = WORK_QUEUED;
		w->deadline = deadline;
		w->stream = stream;
		w->captured = false;
		append_work(g, w);
		bad = g->calls->event_record(w->event, stream);
	}
	if (bad)
		st = group_fail_cuda(g, bad, "cuEventRecord");
	group_unlock(g);
	if (!st)
		*out = w;
	return st;
}

void work_free_all(struct group *g)
{
	struct work *lists[] = { g->works, g->spare };

	for (int i = 0; i < 2; i++)
		for (struct work *w = lists[i], *next; w; w = next) {
			next = w->next;
			free_work(g, w);
		}
	g->works = g->spare = NULL;
}

#include "work.h"

#include <stdlib.h>
#include <string.h>

#include "call_info.h"
#include "direct.h"
#include "message.h"
#include "staged.h"
#include "wakeup.h"

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Returns the chunk of this round; before the first chunk, a number of nchunks or more. */
static uint64_t current_chunk(const struct work *w)
{
	return w->round - w->skip;
}

/*
 * Fills the first flag of a call: its fingerprint, the amount to move, and the buffers, unless the
 * data are in the slot.
 */
static void fill_first_flag(struct group *g, struct work *w, struct flag *flag)
{
	bool direct = direct_offer_buffers(g, w, &flag->src, &flag->dst);

	call_info_publish(g, &w->c);
	flag->fingerprint = w->c.fingerprint;
	flag->nchunks = w->nchunks;
	flag->modes = direct ? DIRECT : FILLED;
	if (direct && (!w->nchunks || !staged_sends_data(g, w)))
		flag->modes |= FILLED;
	if (w->c.kind == TESS_ALL_TO_ALL && w->c.send_counts)
		staged_publish_extents(g, w);
}

static void post_round(struct group *g, struct work *w)
{
	struct flag *flag = flag_of(g, g->rank, g->round);

	wakeup_publish_cpu(g);
	if (w->round == 0)
		fill_first_flag(g, w, flag);
	if (current_chunk(w) < w->nchunks && (w->round || flag->modes & FILLED))
		staged_fill_chunk(g, w, current_chunk(w));
	tess_stream_end();
	/*
	 * Release: a rank that reads the round also reads the flag, the slot, and data written into
	 * its memory.
	 */
	atomic_store_explicit(&flag->round, g->round, memory_order_release);
	w->posted = true;
	g->unnotified = true;
	g->seen = 0;
	g->events++;
}

/* Returns TESS_OK if all flags of this round are set; compares those of the first round. */
static tess_status check_flags(struct group *g, struct work *w)
{
	for (; g->seen < g->nranks; g->seen++) {
		const struct flag *flag = flag_of(g, g->seen, g->round);

		/* Acquire for the announced data; wakeup.c has the fence for sleepers. */
		if (atomic_load_explicit(&flag->round, memory_order_acquire) != g->round)
			return TESS_PENDING;
		g->events++;
		if (w->round)
			continue;
		if (flag->fingerprint != w->c.fingerprint)
			return call_info_mismatch(g, w, g->seen, call_info_await(g, g->seen));
		w->modes &= flag->modes;
		if (w->nchunks < flag->nchunks)
			w->nchunks = flag->nchunks;
	}
	return TESS_OK;
}

/* Chooses how data move, after all ranks have joined. */
static tess_status choose_mode(struct group *g, struct work *w)
{
	if (w->c.kind == TESS_ALL_TO_ALL && w->c.send_counts && staged_compare_extents(g, w))
		return g->failed;
	staged_copy_own(g, w);
	if (w->nchunks && w->modes & DIRECT) {
		w->rounds = 2;
		w->skip = 2;
		return direct_move_call(g, w);
	}
	w->skip = w->nchunks && !(w->modes & FILLED);
	w->rounds = w->skip + w->nchunks + w->shares;
	if (!w->rounds)
		w->rounds = 1;
	return TESS_OK;
}

static tess_status advance_call(struct group *g, struct work *w)
{
	tess_status st;

	do {
		if (!w->posted)
			post_round(g, w);
		st = check_flags(g, w);
		if (!st && !w->round)
			st = choose_mode(g, w);
		if (!st && w->nchunks && w->round >= w->skip)
			staged_drain_chunk(g, w, current_chunk(w));
		if (st)
			return st;
		w->posted = false;
		w->round++;
		g->round++;
	} while (w->round < w->rounds);
	w->done = true;
	return TESS_OK;
}

static void queue_work(struct queue *q, struct work *w)
{
	if (q->head)
		q->tail->next = w;
	else
		q->head = w;
	q->tail = w;
}

/* Advances everything outstanding by one step. TESS_OK, or the failure of the group. */
static tess_status shm_progress_all(struct group *g)
{
	while (g->calls.head) {
		tess_status st = advance_call(g, g->calls.head);

		if (st == TESS_PENDING)
			break;
		if (st)
			return st;
		g->calls.head = g->calls.head->next;
	}
	return g->messages ? message_progress_all(g) : TESS_OK;
}

/* ---- works ----------------------------------------------------------------------------------- */

static tess_status work_state(struct group *g, const struct work *w)
{
	if (w->done)
		return TESS_OK;
	if (!g->failed && !atomic_load_explicit(&g->aborted, memory_order_relaxed))
		return TESS_PENDING;
	return group_fail_call(g, TESS_EABORTED, "group %s over shm was aborted", g->name);
}

static struct work *take_spare_work(struct group *g)
{
	struct work *w = g->spare;

	if (w) {
		g->spare = w->next;
		return w;
	}
	w = malloc(sizeof *w);
	if (w) {
		w->all = g->works;
		g->works = w;
	}
	return w;
}

/* Prepares the call, and appends it to its queue. */
static void queue_call(struct group *g, struct work *w)
{
	bool sends = w->c.kind == TESS_SEND;

	if (sends || w->c.kind == TESS_RECV) {
		queue_work(sends ? &g->out[w->c.peer] : &g->in[w->c.peer], w);
		g->messages++;
		return;
	}
	staged_plan_call(g, w);
	queue_work(&g->calls, w);
}

tess_status shm_start_call(void *self, const struct tess_coll *c, void **out)
{
	struct group *g = self;
	struct work *w = g->failed ? NULL : take_spare_work(g);
	tess_status st;

	if (!w)
		return g->failed ? group_fail_call(g, g->failed, "group %s over shm has failed",
		                                   g->name)
		                 : g->host->fail(TESS_ENOMEM, "shm: out of memory");
	*w = (struct work){ .all = w->all,
		            .c = *c,
		            .width = c->kind == TESS_BARRIER ? 1 : tess_width(c->dtype),
		            .modes = DIRECT | FILLED };
	queue_call(g, w);
	st = shm_progress_all(g);
	wakeup_notify(g);
	if (!st)
		*out = w;
	return st;
}

tess_status shm_work_test(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	if (!w->done && !g->failed)
		shm_progress_all(g);
	wakeup_notify(g);
	return work_state(g, w);
}

static tess_status fail_late_call(struct group *g, const struct work *w)
{
	bool pair = w->c.kind == TESS_SEND || w->c.kind == TESS_RECV;
	int32_t missed = pair ? w->c.peer : g->seen < g->nranks ? g->seen : g->rank;

	return g->host->fail(TESS_ETIMEOUT, "%s: group %s over shm: rank %d missed the deadline",
	                     w->c.where ? w->c.where : "a collective", g->name,
	                     (int)g->world[missed]);
}

tess_status shm_work_wait(void *self, void *work, int64_t deadline)
{
	struct group *g = self;
	struct work *w = work;
	struct pause p = { .turn = 0 };
	tess_status st;

	while ((st = work_state(g, w)) == TESS_PENDING) {
		shm_progress_all(g);
		if (!w->done && !g->failed && !wakeup_pause_wait(g, &p, deadline, shm_progress_all))
			return fail_late_call(g, w);
	}
	wakeup_notify(g);
	return st;
}

void shm_work_release(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	if (!w->done)
		shm_work_wait(g, w, w->c.deadline);
	if (w->done) {
		w->next = g->spare;
		g->spare = w;
	} else if (!g->failed) {
		/* It may still be outstanding, and nobody waits for it. */
		group_fail_call(g, TESS_ETIMEOUT,
		                "group %s over shm: an unfinished call was released", g->name);
	}
}

void shm_work_clear(struct group *g)
{
	for (struct work *w = g->works, *next; w; w = next) {
		next = w->all;
		free(w);
	}
}

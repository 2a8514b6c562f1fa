/*
 * exact.c - the exact sum over ranks. The order of additions depends only on the units of the
 * trees, not on the placement or the transport of nodes.
 *
 * A sum consists of a call that moves nodes to the rank that adds them, the addition, and, if every
 * rank gets the full sum, a call that distributes it. A started sum is added and distributed when a
 * later sum starts, or when it is waited for. These places in the program are the same on all
 * ranks, as the order of calls requires.
 */
#include "core/sum/exact.h"

#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/call/queue.h"
#include "core/call/work.h"
#include "core/sum/exact_add.h"
#include "core/sum/exact_work.h"
#include "core/world/group.h"

#include <stdlib.h>
#include <string.h>

enum {
	ONE_STEP_BYTES = 64 << 10, /* maximum bytes for which one step is faster than two */
	ONE_STEP_SHARED_BYTES = 2 << 10, /* in shared regions, where two steps save a copy */
	STARTED_BYTES = 32 << 20 /* larger sums are computed at once, in pieces to save memory */
};

/* How nodes reach the rank that adds them. */
enum { BY_NOTHING, BY_GATHER, BY_EXCHANGE, BY_REGIONS, BY_BACKEND };

/* ---- left to the backend --------------------------------------------------------------------- */

/* Returns true if the backend adds in the tree's order: each of 2^k ranks holds one node. */
static bool backend_adds(const struct tess_group *g, const struct tess_sum *s)
{
	return g->backend->exact && !(g->size & (g->size - 1)) && s->ntree == 1 &&
	       s->n[0] >= g->size;
}

/* Leaves the sum to the backend; src: the sum of this rank's nodes. */
static tess_status leave_to_backend(struct tess_sum_work *w, const float *src)
{
	const struct tess_sum *s = &w->s;
	struct tess_coll c = {
		.size = sizeof c,
		.kind = s->share ? TESS_REDUCE_SCATTER : TESS_ALL_REDUCE,
		.dtype = TESS_F32,
		.op = TESS_SUM,
		.src = src,
		.dst = w->out,
		.count = s->share ? s->share[w->g->rank] : s->count,
		.send_counts = s->share,
		.where = s->where,
	};

	return tess_sum_work_call(w, &c);
}

/* TESSERA_REDUCE=fast: adds this rank's nodes in order, and leaves the rest to the backend. */
static tess_status sum_fast(struct tess_sum_work *w)
{
	uint64_t count = w->s.count;
	int64_t held = w->held[w->g->rank];
	tess_status st;

	if (held == 1)
		return leave_to_backend(w, w->nodes);
	st = tess_sum_work_reserve(w, count);
	if (st)
		return st;
	memset(w->scratch, 0, count * sizeof *w->scratch);
	for (int64_t i = 0; i < held; i++)
		for (uint64_t k = 0; k < count; k++)
			w->scratch[k] += w->nodes[(uint64_t)i * count + k];
	return leave_to_backend(w, w->scratch);
}

/* ---- a sum ----------------------------------------------------------------------------------- */

/* Sums nodes in device memory through host memory of the group. */
static tess_status sum_staged(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                              float *out)
{
	uint64_t in = (uint64_t)tess_sum_nodes(s, g->size, g->rank) * s->count * sizeof *nodes;
	uint64_t bytes = (s->share ? s->share[g->rank] : s->count) * sizeof *out;
	struct tess_sum host = *s;
	float *from, *to;
	tess_status st = TESS_OK;

	if (g->staging_bytes < in + bytes) {
		free(g->staging);
		g->staging_bytes = 0;
		g->staging = malloc(in + bytes);
		if (!g->staging)
			return tess_fail(TESS_ENOMEM, "%s: no host memory for a sum of %llu bytes",
			                 s->where ? s->where : "sum",
			                 (unsigned long long)(in + bytes));
		g->staging_bytes = in + bytes;
	}
	from = g->staging;
	to = from + in / sizeof *from;
	host.mem = TESS_HOST;
	if (in)
		st = tess_group_copy(g, s->where, s->stream, from, nodes, in);
	if (!st)
		st = tess_group_sum(g, &host, from, to);
	return !st && bytes ? tess_group_copy(g, s->where, s->stream, out, to, bytes) : st;
}

static int32_t choose_way(const struct tess_group *g, const struct tess_sum *s)
{
	if (g->size == 1)
		return BY_NOTHING;
	if (backend_adds(g, s) || g->world->fast)
		return BY_BACKEND;
	if (!s->share &&
	    s->count * sizeof(float) <= (g->regions ? ONE_STEP_SHARED_BYTES : ONE_STEP_BYTES))
		return BY_GATHER;
	return g->regions ? BY_REGIONS : BY_EXCHANGE;
}

/* Makes the first call of a sum. */
static tess_status bring_nodes(struct tess_sum_work *w)
{
	struct tess_group *g = w->g;

	w->way = choose_way(g, &w->s);
	if (w->way == BY_BACKEND && backend_adds(g, &w->s))
		return leave_to_backend(w, w->nodes);
	for (int32_t r = 0; r < g->size; r++) {
		w->held[r] = tess_sum_nodes(&w->s, g->size, r);
		w->slice[r] =
			w->s.share ? w->s.share[r] : tess_sum_compute_slice(w->s.count, g->size, r);
	}
	switch (w->way) {
	case BY_BACKEND:
		return sum_fast(w);
	case BY_GATHER:
		return tess_sum_gather_nodes(w);
	case BY_REGIONS:
		return tess_sum_gather_offsets(w);
	case BY_EXCHANGE:
		return w->started ? tess_sum_exchange_nodes(w) : TESS_OK;
	default:
		return tess_sum_work_reserve(w, tess_sum_scratch_size(w->s.count));
	}
}

/* Adds, when the nodes are here, and makes the second call. */
static tess_status add_nodes_here(struct tess_sum_work *w)
{
	w->added = true;
	switch (w->way) {
	case BY_BACKEND:
		return TESS_OK;
	case BY_GATHER:
		tess_sum_add_received(w, w->s.count, w->out);
		return TESS_OK;
	case BY_REGIONS:
		return tess_sum_add_in_place(w);
	case BY_EXCHANGE:
		return w->started ? tess_sum_add_exchanged(w) : tess_sum_exchange_and_add(w);
	default:
		w->part[0] = w->nodes;
		tess_sum_finish(&w->s, 1, w->part, w->scratch, w->out);
		return TESS_OK;
	}
}

static tess_status check_memory_kind(const struct tess_group *g, const struct tess_sum *s)
{
	if (s->mem <= TESS_HOST || (g->device && s->mem == g->device->mem))
		return TESS_OK;
	return tess_fail(TESS_ENOTSUP,
	                 "%s: nodes in memory of kind %d, of which the group has no device",
	                 s->where ? s->where : "sum", (int)s->mem);
}

tess_status tess_group_sum(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                           float *out)
{
	tess_status st = check_memory_kind(g, s);
	struct tess_sum_work *w = NULL;

	if (st || !s->count)
		return st; /* no rank has elements */
	if (s->mem > TESS_HOST)
		return sum_staged(g, s, nodes, out);
	st = tess_sum_work_take(g, s, nodes, out, &w);
	if (!st)
		st = bring_nodes(w);
	if (!st)
		st = add_nodes_here(w);
	return w ? tess_sum_work_drop(w, st) : st;
}

/* ---- started --------------------------------------------------------------------------------- */

static tess_status finish_first_call(struct tess_sum_work *w)
{
	if (w->failed || w->added)
		return w->failed;
	w->failed = tess_sum_work_end_call(w);
	if (!w->failed)
		w->failed = add_nodes_here(w);
	return w->failed;
}

/* Returns true if a sum, when started, would need memory for all nodes of this rank's slice. */
static bool is_too_large(const struct tess_group *g, const struct tess_sum *s)
{
	return !s->share && s->count * sizeof(float) > STARTED_BYTES &&
	       choose_way(g, s) == BY_EXCHANGE;
}

tess_status tess_sum_start(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                           float *out, struct tess_sum_work **work)
{
	tess_status st = check_memory_kind(g, s);
	struct tess_sum_work *w = NULL;

	for (struct tess_sum_work *before = g->sums; before && !st; before = before->next)
		st = finish_first_call(before);
	if (!st && (!s->count || s->mem > TESS_HOST || is_too_large(g, s))) {
		st = tess_group_sum(g, s, nodes, out);
		if (!st)
			*work = NULL;
		return st;
	}
	if (!st)
		st = tess_sum_work_take(g, s, nodes, out, &w);
	if (!st) {
		w->started = true;
		st = bring_nodes(w);
	}
	if (st)
		return w ? tess_sum_work_drop(w, st) : st;
	*work = w;
	return TESS_OK;
}

tess_status tess_sum_test(struct tess_sum_work *w)
{
	return w && w->call ? tess_work_test(w->call) : TESS_OK;
}

void tess_sum_abandon(struct tess_sum_work *w)
{
	if (w && w->call)
		tess_work_abandon(w->call);
	if (w)
		tess_sum_work_drop(w, TESS_OK);
}

tess_status tess_sum_wait(struct tess_sum_work *w)
{
	tess_status st = w ? finish_first_call(w) : TESS_OK;

	if (!st && w)
		st = tess_sum_work_end_call(w);
	return w ? tess_sum_work_drop(w, st) : st;
}

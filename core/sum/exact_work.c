/* exact_work.c - works of sums: their calls, and their memory, which later sums reuse. */
#include "core/sum/exact_work.h"

#include "core/base/status.h"
#include "core/world/group.h"

#include <stdlib.h>

static tess_status alloc_lists(struct tess_sum_work *w)
{
	const size_t n = (size_t)w->g->size;
	const size_t each = 6 * sizeof *w->recv_counts + sizeof *w->regions + 2 * sizeof(void *);

	w->lists = calloc(n, each);
	if (!w->lists)
		return tess_fail(TESS_ENOMEM, "no memory for the lists of a sum");
	w->regions = w->lists;
	w->held = (int64_t *)(w->regions + n);
	w->slice = (uint64_t *)(w->held + n);
	w->send_counts = w->slice + n;
	w->recv_counts = w->send_counts + n;
	w->shared[0] = w->recv_counts + n;
	w->shared[1] = w->shared[0] + n;
	w->part = (const float **)(void *)(w->shared[1] + n);
	w->to = (float **)(w->part + n);
	return TESS_OK;
}

tess_status tess_sum_work_take(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                               float *out, struct tess_sum_work **work)
{
	struct tess_sum_work *w = g->idle_sums, **last = &g->sums;

	if (w)
		g->idle_sums = w->next;
	else if (!(w = calloc(1, sizeof *w)))
		return tess_fail(TESS_ENOMEM, "no memory for a sum");
	while (*last)
		last = &(*last)->next;
	*last = w;
	w->next = NULL;
	w->g = g;
	w->s = *s;
	w->nodes = nodes;
	w->out = out;
	w->at = 0;
	w->started = w->added = false;
	w->failed = TESS_OK;
	w->call = NULL;
	*work = w;
	return w->lists ? TESS_OK : alloc_lists(w);
}

tess_status tess_sum_work_drop(struct tess_sum_work *w, tess_status st)
{
	struct tess_group *g = w->g;

	for (struct tess_sum_work **at = &g->sums; *at; at = &(*at)->next)
		if (*at == w) {
			*at = w->next;
			break;
		}
	w->next = g->idle_sums;
	g->idle_sums = w;
	return st;
}

void tess_group_free_sums(struct tess_group *g)
{
	while (g->sums)
		tess_sum_work_drop(g->sums, TESS_OK);
	for (struct tess_sum_work *w = g->idle_sums, *next; w; w = next) {
		next = w->next;
		free(w->scratch);
		free(w->lists);
		free(w);
	}
	g->idle_sums = NULL;
}

tess_status tess_sum_work_reserve(struct tess_sum_work *w, uint64_t floats)
{
	size_t bytes = floats * sizeof *w->scratch;

	if (w->scratch_bytes >= bytes)
		return TESS_OK;
	free(w->scratch);
	w->scratch_bytes = 0;
	w->scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
	if (!w->scratch)
		return tess_fail(TESS_ENOMEM, "%s: no memory for %zu bytes of other ranks' sums",
		                 w->s.where ? w->s.where : "sum", bytes);
	w->scratch_bytes = bytes;
	return TESS_OK;
}

tess_status tess_sum_work_call(struct tess_sum_work *w, const struct tess_coll *c)
{
	struct tess_coll marked = *c;

	marked.fingerprint = w->s.fingerprint;
	return w->started ? tess_group_start(w->g, &marked, &w->call)
	                  : tess_group_run(w->g, &marked);
}

tess_status tess_sum_work_end_call(struct tess_sum_work *w)
{
	struct tess_work *call = w->call;
	tess_status st = call ? tess_work_wait(call, 0) : TESS_OK;

	w->call = NULL;
	tess_work_release(call);
	return st;
}

uint64_t tess_sum_counts(const uint64_t *list, int32_t n)
{
	uint64_t sum = 0;

	for (int32_t r = 0; r < n; r++)
		sum += list[r];
	return sum;
}

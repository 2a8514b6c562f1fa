/* exact_region.c - exact sums of nodes in shared regions: each rank adds in place. */
#include "core/sum/exact_add.h"
#include "core/sum/exact_work.h"
#include "core/sum/shared_region.h"
#include "core/world/group.h"

static struct region_offset find_region_offset(const struct tess_group *g, const float *p,
                                               uint64_t count)
{
	const struct tess_shared_region *region =
		count ? tess_group_find_region(g, p, count * sizeof *p) : g->regions;
	struct region_offset at = { 0 };

	if (region) {
		at.region = region->id;
		at.at = count ? (const char *)p - region->mine : 0;
	}
	return at;
}

static float *map_region_offset(const struct tess_group *g, int32_t r,
                                const struct region_offset *at)
{
	return (float *)(void *)((char *)tess_group_region_of(g, at->region)->peer[r] + at->at);
}

/* Gathers the offsets of all ranks' nodes and results, which also shows that nodes are ready. */
tess_status tess_sum_gather_offsets(struct tess_sum_work *w)
{
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_ALL_GATHER,
		.dtype = TESS_I64,
		.src = &w->mine,
		.dst = w->regions,
		.count = sizeof w->mine / 8,
		.where = w->s.where,
	};

	w->mine.nodes =
		find_region_offset(w->g, w->nodes, (uint64_t)w->held[w->g->rank] * w->s.count);
	w->mine.out = find_region_offset(w->g, w->out, w->s.share ? 0 : w->s.count);
	return tess_sum_work_call(w, &c);
}

/*
 * Adds this rank's slice of nodes that all ranks address, in place, into `out` of every rank. After
 * the barrier all ranks have read the nodes.
 */
tess_status tess_sum_add_in_place(struct tess_sum_work *w)
{
	int32_t me = w->g->rank, n = w->g->size, nout = 0;
	const struct rank_regions *all = w->regions;
	struct tess_coll barrier = { .size = sizeof barrier,
		                     .kind = TESS_BARRIER,
		                     .where = w->s.where };
	struct tess_sum s = w->s;
	uint64_t begin = tess_sum_counts(w->slice, me);
	tess_status st;

	for (int32_t r = 0; r < n; r++)
		if (!all[r].nodes.region || !all[r].out.region)
			return tess_sum_exchange_and_add(w);
	s.count = w->slice[me];
	st = tess_sum_work_reserve(w, tess_sum_scratch_size(s.count));
	if (st)
		return st;
	for (int32_t i = 0; i < n; i++) {
		int32_t r = (me + i) % n;

		w->part[r] = map_region_offset(w->g, r, &all[r].nodes) + begin;
		if (!s.share)
			w->to[nout++] = map_region_offset(w->g, r, &all[r].out) + begin;
	}
	if (s.share)
		w->to[nout++] = w->out;
	tess_sum_finish_all(&s, n, w->s.count, w->part, w->scratch, w->to, nout);
	return tess_sum_work_call(w, &barrier);
}

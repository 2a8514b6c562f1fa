/*
 * exact.c - the exact sum over ranks. The order of additions depends on the units of the trees
 * only, not on which rank holds a node or how it was moved.
 *
 * A sum is a call that brings nodes to the rank that adds them, the addition, and, where every rank
 * gets the whole sum, a call that hands it out. A started sum adds and hands out while a later sum
 * is started, or when it is waited for: at places in the program that are the same on all ranks, as
 * the order of calls must be.
 */
#include "core/group/exact.h"

#include "core/base/status.h"
#include "core/group/call.h"
#include "core/group/carrier.h"
#include "core/group/exact_add.h"
#include "core/group/group.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>

enum {
	ONE_STEP_BYTES = 64 << 10, /* bytes of a sum up to which one step beats two */
	ONE_STEP_SHARED_BYTES = 2 << 10, /* the same in shared regions, which save a copy */
	/* bytes of a large sum moved at a time, in all and of each rank: they stay in cache */
	PIECE_BYTES = 1 << 20,
	BYTES_PER_RANK = 512 << 10,
	CACHELINE_FLOATS = 16, /* elements of it */
	STARTED_BYTES = 32 << 20 /* a larger sum is made in pieces, of little memory, at once */
};

struct region_offset {
	int64_t region, at; /* id, 0: in no region; bytes from the start of the rank's part */
};
struct rank_regions {
	struct region_offset nodes, out;
};

/* How the nodes reach the rank that adds them. */
enum { BY_NOTHING, BY_GATHER, BY_EXCHANGE, BY_REGIONS, BY_BACKEND };

struct tess_sum_work { /* of one group, which keeps it with its memory for later sums */
	struct tess_sum_work *next;
	struct tess_group *g;
	struct tess_sum s;
	const float *nodes;
	float *out, *scratch;
	size_t scratch_bytes;
	uint64_t at; /* first element of the current piece */
	int32_t way;
	bool started; /* its calls are waited for later */
	bool added;
	tess_status failed; /* of a call or an addition before the wait */
	struct tess_work *call; /* under way; NULL: none */
	float *received; /* nodes of all ranks, in the scratch */
	struct rank_regions mine;
	/* an entry for each rank, in `lists`: a thread's stack may be small */
	void *lists;
	int64_t *held; /* nodes */
	uint64_t *slice; /* elements that the rank finishes */
	uint64_t *send_counts, *recv_counts, *shared[2];
	struct rank_regions *regions;
	const float **part;
	float **to;
};

/* ---- works ----------------------------------------------------------------------------------- */

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

/* A work for the sum, the last of those under way in the group. */
static tess_status take_sum_work(struct tess_group *g, const struct tess_sum *s, const float *nodes,
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

/* Of a sum that failed too: its memory stays with the group, for late writes. */
static tess_status drop_sum_work(struct tess_sum_work *w, tess_status st)
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
		drop_sum_work(g->sums, TESS_OK);
	for (struct tess_sum_work *w = g->idle_sums, *next; w; w = next) {
		next = w->next;
		free(w->scratch);
		free(w->lists);
		free(w);
	}
	g->idle_sums = NULL;
}

static tess_status reserve_sum_scratch(struct tess_sum_work *w, uint64_t floats)
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

/* ---- moving nodes ---------------------------------------------------------------------------- */

static uint64_t sum_counts(const uint64_t *list, int32_t n)
{
	uint64_t sum = 0;

	for (int32_t r = 0; r < n; r++)
		sum += list[r];
	return sum;
}

static bool are_even(const uint64_t *list, int32_t n)
{
	for (int32_t r = 1; r < n; r++)
		if (list[r] != list[0])
			return false;
	return true;
}

static tess_status make_call(struct tess_sum_work *w, const struct tess_coll *c)
{
	return w->started ? tess_group_start(w->g, c, &w->call) : tess_group_run(w->g, c);
}

static tess_status end_call(struct tess_sum_work *w)
{
	struct tess_work *call = w->call;
	tess_status st = call ? tess_work_wait(call, 0) : TESS_OK;

	w->call = NULL;
	tess_work_release(call);
	return st;
}

static tess_status move_nodes(struct tess_sum_work *w, int32_t kind, const float *src,
                              bool send_list, bool recv_list)
{
	int32_t me = w->g->rank;
	struct tess_coll c = {
		.size = sizeof c,
		.kind = kind,
		.dtype = TESS_F32,
		.src = src,
		.dst = w->received,
		.count = kind == TESS_ALL_GATHER ? w->recv_counts[me] : w->send_counts[me],
		.send_counts = send_list ? w->send_counts : NULL,
		.recv_counts = recv_list ? w->recv_counts : NULL,
		.where = w->s.where,
	};

	return make_call(w, &c);
}

/* Sums `count` elements of every node; rank r's were received after those of lower ranks. */
static void add_received(struct tess_sum_work *w, uint64_t count, float *out)
{
	const float *from = w->received;
	struct tess_sum s = w->s;

	s.count = count;
	for (int32_t r = 0; r < w->g->size; r++) {
		w->part[r] = from;
		from += w->recv_counts[r];
	}
	tess_sum_finish(&s, w->g->size, w->part, w->scratch, out);
}

/* A small sum: every rank gets all nodes and adds them. */
static tess_status gather_nodes(struct tess_sum_work *w)
{
	uint64_t scratch = tess_sum_scratch_size(w->s.count);
	tess_status st;

	for (int32_t r = 0; r < w->g->size; r++)
		w->recv_counts[r] = (uint64_t)w->held[r] * w->s.count;
	st = reserve_sum_scratch(w, scratch + sum_counts(w->recv_counts, w->g->size));
	if (st)
		return st;
	w->received = w->scratch + scratch;
	return move_nodes(w, TESS_ALL_GATHER, w->nodes, false,
	                  !are_even(w->recv_counts, w->g->size));
}

/* Slices of all nodes, rank by rank, for all_to_all. A single node needs no packing. */
static const float *pack_slices(const struct tess_sum_work *w, float *to)
{
	int64_t held = w->held[w->g->rank];
	uint64_t at = w->at;
	float *begin = to;

	if (held == 1)
		return w->nodes + at;
	for (int32_t r = 0; r < w->g->size; r++) {
		for (int64_t i = 0; i < held; i++) {
			memcpy(to, w->nodes + (uint64_t)i * w->s.count + at,
			       w->slice[r] * sizeof *to);
			to += w->slice[r];
		}
		at += w->slice[r];
	}
	return begin;
}

/* Every rank gets its slice of all nodes. */
static tess_status exchange_nodes(struct tess_sum_work *w)
{
	int32_t me = w->g->rank, n = w->g->size;
	uint64_t scratch = tess_sum_scratch_size(w->slice[me]), received;
	bool lists = !are_even(w->slice, n);
	tess_status st;

	for (int32_t r = 0; r < n; r++) {
		w->send_counts[r] = (uint64_t)w->held[me] * w->slice[r];
		w->recv_counts[r] = (uint64_t)w->held[r] * w->slice[me];
		lists |= w->held[r] != w->held[0];
	}
	received = sum_counts(w->recv_counts, n);
	st = reserve_sum_scratch(w, scratch + received +
	                                    (w->held[me] > 1 ? sum_counts(w->send_counts, n) : 0));
	if (st)
		return st;
	w->received = w->scratch + scratch;
	return move_nodes(w, TESS_ALL_TO_ALL, pack_slices(w, w->received + received), lists, lists);
}

/* Elements that rank r finishes of a sum for all ranks: whole cache lines, each of one rank. */
static uint64_t compute_slice(uint64_t count, int32_t nranks, int32_t r)
{
	int64_t lines = tess_up((int64_t)count, CACHELINE_FLOATS);
	uint64_t lo = (uint64_t)tess_edge(lines, nranks, r) * CACHELINE_FLOATS,
		 hi = (uint64_t)tess_edge(lines, nranks, r + 1) * CACHELINE_FLOATS;

	return (hi < count ? hi : count) - (lo < count ? lo : count);
}

/* Sends the finished slices of a piece to all ranks. counts: [nranks], kept as long as the call. */
static struct tess_coll describe_slices(const struct tess_sum_work *w, uint64_t *counts)
{
	int32_t n = w->g->size;

	memcpy(counts, w->slice, (size_t)n * sizeof *counts);
	return (struct tess_coll){
		.size = sizeof(struct tess_coll),
		.kind = TESS_ALL_GATHER,
		.dtype = TESS_F32,
		.src = w->out + w->at,
		.dst = w->out + w->at,
		.count = w->slice[w->g->rank],
		.recv_counts = are_even(w->slice, n) ? NULL : counts,
		.where = w->s.where,
	};
}

/* This rank's slice, of the whole sum or of a piece. */
static float *find_own_slice(const struct tess_sum_work *w)
{
	return w->s.share ? w->out : w->out + w->at + sum_counts(w->slice, w->g->rank);
}

static tess_status add_exchanged(struct tess_sum_work *w)
{
	struct tess_coll c;

	add_received(w, w->slice[w->g->rank], find_own_slice(w));
	if (w->s.share)
		return TESS_OK;
	c = describe_slices(w, w->shared[0]);
	return make_call(w, &c);
}

/* Sends out each piece while the next one is received and added. */
static tess_status sum_in_pieces(struct tess_sum_work *w)
{
	int32_t n = w->g->size, me = w->g->rank, i = 0;
	uint64_t step = (n * BYTES_PER_RANK > PIECE_BYTES ? n * BYTES_PER_RANK : PIECE_BYTES) /
	                sizeof *w->out,
		 m;
	struct tess_work *before = NULL, *work = NULL;
	tess_status st = TESS_OK;
	struct tess_coll c;

	for (w->at = 0; w->at < w->s.count && !st; w->at += m, i ^= 1) {
		uint64_t left = w->s.count - w->at;

		m = left < 2 * step ? left : step;
		for (int32_t r = 0; r < n; r++)
			w->slice[r] = compute_slice(m, n, r);
		st = exchange_nodes(w);
		if (!st)
			add_received(w, w->slice[me], find_own_slice(w));
		if (!st && before)
			st = tess_work_wait(before, 0);
		tess_work_release(before);
		before = NULL;
		c = describe_slices(w, w->shared[i]);
		if (!st)
			st = tess_group_start(w->g, &c, &work);
		if (!st)
			before = work;
	}
	if (!st)
		st = tess_work_wait(before, 0);
	tess_work_release(before);
	return st;
}

/* The whole sum at once: of all ranks' nodes, or of shares of them. */
static tess_status exchange_and_add(struct tess_sum_work *w)
{
	tess_status st;

	w->started = false;
	if (!w->s.share)
		return sum_in_pieces(w);
	st = exchange_nodes(w);
	return st ? st : add_exchanged(w);
}

/* ---- in shared regions ----------------------------------------------------------------------- */

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

/* Where all ranks' nodes and results lie: that also says that the nodes are ready. */
static tess_status gather_offsets(struct tess_sum_work *w)
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
	return make_call(w, &c);
}

/*
 * With nodes in memory that all ranks address, each rank adds its slice in place, into `out` of
 * every rank. The barrier says that all ranks have read them.
 */
static tess_status add_in_place(struct tess_sum_work *w)
{
	int32_t me = w->g->rank, n = w->g->size, nout = 0;
	const struct rank_regions *all = w->regions;
	struct tess_coll barrier = { .size = sizeof barrier,
		                     .kind = TESS_BARRIER,
		                     .where = w->s.where };
	struct tess_sum s = w->s;
	uint64_t begin = sum_counts(w->slice, me);
	tess_status st;

	for (int32_t r = 0; r < n; r++)
		if (!all[r].nodes.region || !all[r].out.region)
			return exchange_and_add(w);
	s.count = w->slice[me];
	st = reserve_sum_scratch(w, tess_sum_scratch_size(s.count));
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
	tess_sum_finish_all(
		&s, n, w->s.count, w->part, w->scratch, w->to, nout,
		nout > 1 ? tess_store_policy_for(w->g->store_policy, w->s.count * sizeof **w->to)
			 : NULL);
	return make_call(w, &barrier);
}

/* ---- left to the backend --------------------------------------------------------------------- */

/* Whether the backend adds in the order of the tree: each of 2^k ranks holds one node. */
static bool backend_adds(const struct tess_group *g, const struct tess_sum *s)
{
	return g->backend->exact && !(g->size & (g->size - 1)) && s->ntree == 1 &&
	       s->n[0] >= g->size;
}

/* src: the sum of this rank's nodes. */
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

	return make_call(w, &c);
}

/* TESSERA_REDUCE=fast: adds this rank's nodes in order, and leaves the rest to the backend. */
static tess_status sum_fast(struct tess_sum_work *w)
{
	uint64_t count = w->s.count;
	int64_t held = w->held[w->g->rank];
	tess_status st;

	if (held == 1)
		return leave_to_backend(w, w->nodes);
	st = reserve_sum_scratch(w, count);
	if (st)
		return st;
	memset(w->scratch, 0, count * sizeof *w->scratch);
	for (int64_t i = 0; i < held; i++)
		for (uint64_t k = 0; k < count; k++)
			w->scratch[k] += w->nodes[(uint64_t)i * count + k];
	return leave_to_backend(w, w->scratch);
}

/* ---- a sum ----------------------------------------------------------------------------------- */

/* Nodes that lie in a device's memory: the sum is made in host memory of the group. */
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

/* The first call of a sum. */
static tess_status bring_nodes(struct tess_sum_work *w)
{
	struct tess_group *g = w->g;

	w->way = choose_way(g, &w->s);
	if (w->way == BY_BACKEND && backend_adds(g, &w->s))
		return leave_to_backend(w, w->nodes);
	for (int32_t r = 0; r < g->size; r++) {
		w->held[r] = tess_sum_nodes(&w->s, g->size, r);
		w->slice[r] = w->s.share ? w->s.share[r] : compute_slice(w->s.count, g->size, r);
	}
	switch (w->way) {
	case BY_BACKEND:
		return sum_fast(w);
	case BY_GATHER:
		return gather_nodes(w);
	case BY_REGIONS:
		return gather_offsets(w);
	case BY_EXCHANGE:
		return w->started ? exchange_nodes(w) : TESS_OK;
	default:
		return reserve_sum_scratch(w, tess_sum_scratch_size(w->s.count));
	}
}

/* The addition, when the nodes are here, and the second call. */
static tess_status add_nodes_here(struct tess_sum_work *w)
{
	w->added = true;
	switch (w->way) {
	case BY_BACKEND:
		return TESS_OK;
	case BY_GATHER:
		add_received(w, w->s.count, w->out);
		return TESS_OK;
	case BY_REGIONS:
		return add_in_place(w);
	case BY_EXCHANGE:
		return w->started ? add_exchanged(w) : exchange_and_add(w);
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
		return st; /* of no elements on all ranks */
	if (s->mem > TESS_HOST)
		return sum_staged(g, s, nodes, out);
	st = take_sum_work(g, s, nodes, out, &w);
	if (!st)
		st = bring_nodes(w);
	if (!st)
		st = add_nodes_here(w);
	return w ? drop_sum_work(w, st) : st;
}

/* ---- started --------------------------------------------------------------------------------- */

static tess_status finish_first_call(struct tess_sum_work *w)
{
	if (w->failed || w->added)
		return w->failed;
	w->failed = end_call(w);
	if (!w->failed)
		w->failed = add_nodes_here(w);
	return w->failed;
}

/* Started, it would need room for all nodes of this rank's slice. */
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
		st = take_sum_work(g, s, nodes, out, &w);
	if (!st) {
		w->started = true;
		st = bring_nodes(w);
	}
	if (st)
		return w ? drop_sum_work(w, st) : st;
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
		drop_sum_work(w, TESS_OK);
}

tess_status tess_sum_wait(struct tess_sum_work *w)
{
	tess_status st = w ? finish_first_call(w) : TESS_OK;

	if (!st && w)
		st = end_call(w);
	return w ? drop_sum_work(w, st) : st;
}

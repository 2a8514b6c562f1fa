/*
 * exact.c - the exact sum over ranks. The order of additions depends on the units of the trees
 * only, not on which rank holds a node or how it was moved.
 */
#include "core/group/exact.h"

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/group/carrier.h"
#include "core/group/group.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/float.h>
#include <tessera/split.h>
#include <tessera/stream.h>

enum {
	TREE_LEVELS = 64, /* halvings of any number of units, and of trees */
	STEP = 1024, /* elements added at a time: partial sums stay in cache */
	ONE_STEP_BYTES = 64 << 10, /* bytes of a sum up to which one step beats two */
	ONE_STEP_SHARED_BYTES = 2 << 10, /* the same in shared regions, which save a copy */
	/* bytes of a large sum moved at a time, in all and of each rank: they stay in cache */
	PIECE_BYTES = 1 << 20,
	BYTES_PER_RANK = 512 << 10,
	CACHELINE_FLOATS = 16 /* elements of it */
};

int64_t tess_sum_nodes(const struct tess_sum *s, int32_t nranks, int32_t rank)
{
	int64_t nodes = 0;

	for (int32_t t = 0; t < s->ntree; t++)
		nodes += tess_node_count(s->n[t], tess_edge(s->n[t], nranks, rank),
		                         tess_edge(s->n[t], nranks, rank + 1));
	return nodes;
}

/* ---- adding ---------------------------------------------------------------------------------- */

struct adder {
	const struct tess_sum *s;
	int32_t nranks;
	uint64_t stride; /* elements from one node to the next */
	const float *const *part;
	float *scratch; /* [TREE_LEVELS][step] */
	uint64_t step, at, n; /* adds elements [at, at + n) */
	int64_t next[TESS_RANKS_MAX]; /* of each rank: the first unused node */
};

/* Elementwise, on vectors that do not overlap: compilers vectorise these. */
static void add_vectors(float *restrict to, const float *restrict left, const float *restrict right,
                        uint64_t n)
{
	for (uint64_t k = 0; k < n; k++)
		to[k] = left[k] + right[k];
}

static void accumulate_vector(float *restrict to, const float *restrict right, uint64_t n)
{
	for (uint64_t k = 0; k < n; k++)
		to[k] += right[k];
}

static void copy_finished(float *restrict to, const float *restrict sum, uint64_t n)
{
	for (uint64_t k = 0; k < n; k++)
		to[k] = tess_one_nan(sum[k] + 0.0f); /* + 0.0f: no finished sum is -0 */
}

static const float *add_nodes(struct adder *a, const float *left, const float *right, int level)
{
	float *to = a->scratch + (uint64_t)level * a->step;

	if (left == to)
		accumulate_vector(to, right, a->n);
	else
		add_vectors(to, left, right, a->n);
	return to;
}

static const float *finish_node(struct adder *a, const float *sum, int level)
{
	float *to = a->scratch + (uint64_t)level * a->step;

	if (sum != to) {
		copy_finished(to, sum, a->n);
		return to;
	}
	for (uint64_t k = 0; k < a->n; k++)
		to[k] += 0.0f;
	return to;
}

/*
 * Node (depth, i) of a tree of n units; NULL: it is empty. A rank that holds the whole node gave it
 * as one vector. Uses the scratch from `level` on. Visits nodes in order of units, as in each
 * rank's part.
 */
static const float *sum_node(struct adder *a, int64_t n, int depth, int64_t i, int level)
{
	int64_t lo = tess_edge(n, (int64_t)1 << depth, i),
		hi = tess_edge(n, (int64_t)1 << depth, i + 1);
	/* the last rank whose units begin at lo or before */
	int64_t holder = lo < hi ? lo * a->nranks / n : 0;
	const float *left, *right;

	if (lo >= hi)
		return NULL;
	if (hi <= tess_edge(n, a->nranks, holder + 1))
		return a->part[holder] + (uint64_t)a->next[holder]++ * a->stride + a->at;
	left = sum_node(a, n, depth + 1, 2 * i, level);
	right = sum_node(a, n, depth + 1, 2 * i + 1, left ? level + 1 : level);
	return left && right ? add_nodes(a, left, right, level) : left ? left : right;
}

/* The same tree over the trees, whose leaves are finished sums. */
static const float *sum_trees(struct adder *a, int depth, int64_t i, int level)
{
	int64_t ntree = a->s->ntree;
	int64_t lo = tess_edge(ntree, (int64_t)1 << depth, i),
		hi = tess_edge(ntree, (int64_t)1 << depth, i + 1);
	const float *left, *right;

	if (lo >= hi)
		return NULL;
	if (hi - lo == 1) {
		const float *sum = a->s->n[lo] ? sum_node(a, a->s->n[lo], 0, 0, level) : NULL;

		return sum ? finish_node(a, sum, level) : NULL;
	}
	left = sum_trees(a, depth + 1, 2 * i, level);
	right = sum_trees(a, depth + 1, 2 * i + 1, left ? level + 1 : level);
	return left && right ? add_nodes(a, left, right, level) : left ? left : right;
}

static void add_finished(float *restrict to, const float *restrict left,
                         const float *restrict right, uint64_t n)
{
	for (uint64_t k = 0; k < n; k++)
		to[k] = tess_one_nan(left[k] + right[k] + 0.0f);
}

/* One tree over several ranks, as in most sums: its last addition and + 0.0f in one pass. */
static void finish_tree(struct adder *a, float *out)
{
	int64_t n = a->s->n[0];
	const float *left = sum_node(a, n, 1, 0, 0), *right = sum_node(a, n, 1, 1, left ? 1 : 0);

	if (left && right)
		add_finished(out, left, right, a->n);
	else
		copy_finished(out, left ? left : right, a->n);
}

static void finish_trees(struct adder *a, float *out)
{
	const float *sum = sum_trees(a, 0, 0, 0);

	if (sum)
		copy_finished(out, sum, a->n);
	else
		memset(out, 0, a->n * sizeof *out);
}

/* Elements [at, end) of the sums, to `nout` vectors one after another, while they are in cache. */
static void finish_range(struct adder *a, uint64_t at, uint64_t end, float *const *out,
                         int32_t nout, bool cached)
{
	for (a->at = at; a->at < end; a->at += STEP) {
		a->n = end - a->at < STEP ? end - a->at : STEP;
		memset(a->next, 0, (size_t)a->nranks * sizeof *a->next);
		if (a->s->ntree == 1 && a->s->n[0] && a->nranks > 1)
			finish_tree(a, out[0] + a->at);
		else
			finish_trees(a, out[0] + a->at);
		for (int32_t i = 1; i < nout; i++)
			if (cached)
				memcpy(out[i] + a->at, out[0] + a->at, a->n * sizeof **out);
			else
				tess_stream(out[i] + a->at, out[0] + a->at, a->n * sizeof **out);
	}
}

/* out[0] is this rank's; `policy` is for the others (NULL: streamed). */
static void finish_all(const struct tess_sum *s, int32_t nranks, uint64_t stride,
                       const float *const *part, float *scratch, float *const *out, int32_t nout,
                       struct tess_store_policy *policy)
{
	uint64_t sample = 0;
	uint32_t saved = tess_float_enter();
	bool cached;
	struct adder a;

	a.s = s;
	a.nranks = nranks;
	a.stride = stride;
	a.part = part;
	a.scratch = scratch;
	a.step = s->count < STEP ? s->count : STEP;
	if (policy)
		sample = tess_store_policy_sample(policy, s->count * sizeof **out, &cached) /
		         sizeof **out;
	if (sample) {
		int64_t begin = tess_now();

		finish_range(&a, 0, sample, out, nout, cached);
		tess_store_policy_record(policy, sample * sizeof **out, tess_now() - begin);
	}
	finish_range(&a, sample, s->count, out, nout, policy && policy->cached);
	tess_stream_end();
	tess_float_leave(saved);
}

void tess_sum_finish(const struct tess_sum *s, int32_t nranks, const float *const *part,
                     float *scratch, float *out)
{
	finish_all(s, nranks, s->count, part, scratch, &out, 1, NULL);
}

/* ---- moving nodes ---------------------------------------------------------------------------- */

struct exact_sum { /* on this rank */
	struct tess_group *g;
	const struct tess_sum *s;
	const float *nodes;
	float *out, *scratch;
	uint64_t at; /* first element of the current piece */
	/* an entry for each rank, in g->lists: a thread's stack may be small */
	int64_t *held; /* nodes */
	uint64_t *slice; /* elements that the rank finishes */
	uint64_t *send_counts, *recv_counts, *shared[2];
	struct rank_regions *regions;
	const float **part;
	float **to;
};

struct region_offset {
	int64_t region, at; /* id, 0: in no region; bytes from the start of the rank's part */
};
struct rank_regions {
	struct region_offset nodes, out;
};

static tess_status set_lists(struct exact_sum *w)
{
	const size_t n = (size_t)w->g->size;
	const size_t each = 6 * sizeof *w->recv_counts + sizeof *w->regions + 2 * sizeof(void *);

	if (!w->g->lists)
		w->g->lists = calloc(n, each);
	if (!w->g->lists)
		return tess_fail(TESS_ENOMEM, "no memory for the lists of a sum");
	w->regions = w->g->lists;
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

static tess_status reserve_sum_scratch(struct exact_sum *w, uint64_t floats)
{
	struct tess_group *g = w->g;
	size_t bytes = floats * sizeof *g->scratch;

	if (g->scratch_bytes < bytes) {
		free(g->scratch);
		g->scratch_bytes = 0;
		g->scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
		if (!g->scratch)
			return tess_fail(TESS_ENOMEM,
			                 "%s: no memory for %zu bytes of other ranks' sums",
			                 w->s->where ? w->s->where : "sum", bytes);
		g->scratch_bytes = bytes;
	}
	w->scratch = g->scratch;
	return TESS_OK;
}

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

static tess_status run_collective(struct exact_sum *w, int32_t kind, const float *src, float *dst,
                                  bool send_list, bool recv_list)
{
	int32_t me = w->g->rank;
	struct tess_coll c = {
		.size = sizeof c,
		.kind = kind,
		.dtype = TESS_F32,
		.src = src,
		.dst = dst,
		.count = kind == TESS_ALL_GATHER ? w->recv_counts[me] : w->send_counts[me],
		.send_counts = send_list ? w->send_counts : NULL,
		.recv_counts = recv_list ? w->recv_counts : NULL,
		.where = w->s->where,
	};

	return tess_group_run(w->g, &c);
}

/* Sums `count` elements of every node; in `from`, rank r's follow those of lower ranks. */
static void finish_received(struct exact_sum *w, const float *from, uint64_t count, float *scratch,
                            float *out)
{
	struct tess_sum s = *w->s;

	s.count = count;
	for (int32_t r = 0; r < w->g->size; r++) {
		w->part[r] = from;
		from += w->recv_counts[r];
	}
	tess_sum_finish(&s, w->g->size, w->part, scratch, out);
}

static uint64_t compute_scratch_size(uint64_t count)
{
	return TREE_LEVELS * (count < STEP ? count : STEP);
}

/* A small sum: every rank gets all nodes and adds them. */
static tess_status gather_and_add(struct exact_sum *w)
{
	uint64_t scratch = compute_scratch_size(w->s->count);
	tess_status st;

	for (int32_t r = 0; r < w->g->size; r++)
		w->recv_counts[r] = (uint64_t)w->held[r] * w->s->count;
	st = reserve_sum_scratch(w, scratch + sum_counts(w->recv_counts, w->g->size));
	if (!st)
		st = run_collective(w, TESS_ALL_GATHER, w->nodes, w->scratch + scratch, false,
		                    !are_even(w->recv_counts, w->g->size));
	if (!st)
		finish_received(w, w->scratch + scratch, w->s->count, w->scratch, w->out);
	return st;
}

/* Slices of all nodes, rank by rank, for all_to_all. A single node needs no packing. */
static const float *pack_slices(const struct exact_sum *w, float *to)
{
	int64_t held = w->held[w->g->rank];
	uint64_t at = w->at;
	float *begin = to;

	if (held == 1)
		return w->nodes + at;
	for (int32_t r = 0; r < w->g->size; r++) {
		for (int64_t i = 0; i < held; i++) {
			memcpy(to, w->nodes + (uint64_t)i * w->s->count + at,
			       w->slice[r] * sizeof *to);
			to += w->slice[r];
		}
		at += w->slice[r];
	}
	return begin;
}

/* Every rank gets its slice of all nodes and adds it, to `out`. With `share` that is all. */
static tess_status exchange_and_add(struct exact_sum *w, float *out)
{
	int32_t me = w->g->rank, n = w->g->size;
	uint64_t scratch = compute_scratch_size(w->slice[me]), received;
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
	if (!st)
		st = run_collective(w, TESS_ALL_TO_ALL,
		                    pack_slices(w, w->scratch + scratch + received),
		                    w->scratch + scratch, lists, lists);
	if (!st)
		finish_received(w, w->scratch + scratch, w->slice[me], w->scratch, out);
	return st;
}

/* Elements that rank r finishes of a sum for all ranks: whole cache lines, each of one rank. */
static uint64_t compute_slice(uint64_t count, int32_t nranks, int32_t r)
{
	int64_t lines = tess_up((int64_t)count, CACHELINE_FLOATS);
	uint64_t lo = (uint64_t)tess_edge(lines, nranks, r) * CACHELINE_FLOATS,
		 hi = (uint64_t)tess_edge(lines, nranks, r + 1) * CACHELINE_FLOATS;

	return (hi < count ? hi : count) - (lo < count ? lo : count);
}

/* Sends the finished slices of a piece to all ranks. counts: [nranks], kept as long as the work. */
static tess_status start_all_gather(const struct exact_sum *w, uint64_t *counts,
                                    struct tess_work **work)
{
	int32_t n = w->g->size;
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_ALL_GATHER,
		.dtype = TESS_F32,
		.src = w->out + w->at,
		.dst = w->out + w->at,
		.count = w->slice[w->g->rank],
		.recv_counts = are_even(w->slice, n) ? NULL : counts,
		.where = w->s->where,
	};

	memcpy(counts, w->slice, (size_t)n * sizeof *counts);
	return tess_group_start(w->g, &c, work);
}

/* Sends out each piece while the next one is received and added. */
static tess_status sum_in_pieces(struct exact_sum *w)
{
	int32_t n = w->g->size, me = w->g->rank, i = 0;
	uint64_t step = (n * BYTES_PER_RANK > PIECE_BYTES ? n * BYTES_PER_RANK : PIECE_BYTES) /
	                sizeof *w->out,
		 m;
	struct tess_work *before = NULL, *work = NULL;
	tess_status st = TESS_OK;

	for (w->at = 0; w->at < w->s->count && !st; w->at += m, i ^= 1) {
		uint64_t left = w->s->count - w->at;

		m = left < 2 * step ? left : step;
		for (int32_t r = 0; r < n; r++)
			w->slice[r] = compute_slice(m, n, r);
		st = exchange_and_add(w, w->out + w->at + sum_counts(w->slice, me));
		if (!st && before)
			st = tess_work_wait(before, 0);
		tess_work_release(before);
		before = NULL;
		if (!st)
			st = start_all_gather(w, w->shared[i], &work);
		if (!st)
			before = work;
	}
	if (!st)
		st = tess_work_wait(before, 0);
	tess_work_release(before);
	return st;
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

/*
 * With nodes in memory that all ranks address, each rank adds its slice in place, into `out` of
 * every rank. The all_gather of the offsets also says that the nodes are ready; the barrier, that
 * all ranks have read them. *done false: a rank's nodes or `out` lie elsewhere.
 */
static tess_status add_in_place(struct exact_sum *w, bool *done)
{
	int32_t me = w->g->rank, n = w->g->size, nout = 0;
	struct rank_regions mine, *all = w->regions;
	const float **part = w->part;
	float **out = w->to;
	struct tess_sum s = *w->s;
	uint64_t begin = sum_counts(w->slice, me);
	tess_status st;

	mine.nodes = find_region_offset(w->g, w->nodes, (uint64_t)w->held[me] * s.count);
	mine.out = find_region_offset(w->g, w->out, s.share ? 0 : s.count);
	*done = false;
	st = tess_all_gather(w->g, &mine, all, sizeof mine / 8, TESS_I64, s.where);
	for (int32_t r = 0; r < n && !st; r++)
		if (!all[r].nodes.region || !all[r].out.region)
			return TESS_OK;
	s.count = w->slice[me];
	if (!st)
		st = reserve_sum_scratch(w, compute_scratch_size(s.count));
	if (st)
		return st;
	for (int32_t i = 0; i < n; i++) {
		int32_t r = (me + i) % n;

		part[r] = map_region_offset(w->g, r, &all[r].nodes) + begin;
		if (!s.share)
			out[nout++] = map_region_offset(w->g, r, &all[r].out) + begin;
	}
	if (s.share)
		out[nout++] = w->out;
	finish_all(&s, n, w->s->count, part, w->scratch, out, nout,
	           nout > 1 ? tess_store_policy_for(w->g->store_policy, w->s->count * sizeof **out)
	                    : NULL);
	*done = true;
	return tess_barrier(w->g, s.where);
}

/* Whether the backend adds in the order of the tree: each of 2^k ranks holds one node. */
static bool backend_adds(const struct tess_group *g, const struct tess_sum *s)
{
	return g->backend->exact && !(g->size & (g->size - 1)) && s->ntree == 1 &&
	       s->n[0] >= g->size;
}

/* src: the sum of this rank's nodes. */
static tess_status leave_to_backend(struct tess_group *g, const struct tess_sum *s,
                                    const float *src, float *out)
{
	struct tess_coll c = {
		.size = sizeof c,
		.kind = s->share ? TESS_REDUCE_SCATTER : TESS_ALL_REDUCE,
		.dtype = TESS_F32,
		.op = TESS_SUM,
		.src = src,
		.dst = out,
		.count = s->share ? s->share[g->rank] : s->count,
		.send_counts = s->share,
		.where = s->where,
	};

	return tess_group_run(g, &c);
}

/* TESSERA_REDUCE=fast: adds this rank's nodes in order, and leaves the rest to the backend. */
static tess_status sum_fast(struct exact_sum *w)
{
	uint64_t count = w->s->count;
	int64_t held = tess_sum_nodes(w->s, w->g->size, w->g->rank);
	tess_status st;

	if (held == 1)
		return leave_to_backend(w->g, w->s, w->nodes, w->out);
	st = reserve_sum_scratch(w, count);
	if (st)
		return st;
	memset(w->scratch, 0, count * sizeof *w->scratch);
	for (int64_t i = 0; i < held; i++)
		for (uint64_t k = 0; k < count; k++)
			w->scratch[k] += w->nodes[(uint64_t)i * count + k];
	return leave_to_backend(w->g, w->s, w->scratch, w->out);
}

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

tess_status tess_group_sum(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                           float *out)
{
	struct exact_sum w = { .g = g, .s = s, .nodes = nodes, .out = out };
	bool done;
	tess_status st;

	if (!s->count)
		return TESS_OK; /* on all ranks */
	if (s->mem > TESS_HOST && (!g->device || s->mem != g->device->mem))
		return tess_fail(TESS_ENOTSUP,
		                 "%s: nodes in memory of kind %d, of which the group has no device",
		                 s->where ? s->where : "sum", (int)s->mem);
	if (s->mem > TESS_HOST)
		return sum_staged(g, s, nodes, out);
	if (g->size > 1 && backend_adds(g, s))
		return leave_to_backend(g, s, nodes, out);
	if (g->size > 1 && g->world->fast)
		return sum_fast(&w);
	st = set_lists(&w);
	if (st)
		return st;
	for (int32_t r = 0; r < g->size; r++)
		w.held[r] = tess_sum_nodes(s, g->size, r);
	if (g->size == 1) {
		w.recv_counts[0] = 0;
		st = reserve_sum_scratch(&w, compute_scratch_size(s->count));
		if (!st)
			finish_received(&w, nodes, s->count, w.scratch, out);
		return st;
	}
	if (!s->share &&
	    s->count * sizeof *out <= (g->regions ? ONE_STEP_SHARED_BYTES : ONE_STEP_BYTES))
		return gather_and_add(&w);
	for (int32_t r = 0; r < g->size; r++)
		w.slice[r] = s->share ? s->share[r] : compute_slice(s->count, g->size, r);
	if (g->regions && ((st = add_in_place(&w, &done)) || done))
		return st;
	return s->share ? exchange_and_add(&w, out) : sum_in_pieces(&w);
}

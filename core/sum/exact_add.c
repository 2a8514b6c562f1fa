/* exact_add.c - the additions of an exact sum, with all nodes readable. */
#include "core/sum/exact_add.h"

#include "core/rendezvous/job_state.h"

#include <string.h>
#include <tessera/split.h>
#include <tessera/util/float.h>
#include <tessera/util/stream.h>

enum {
	TREE_LEVELS = 64, /* maximum depth of halving units, and trees */
	STEP = 1024 /* elements added at a time: partial sums stay in cache */
};

int64_t tess_sum_nodes(const struct tess_sum *s, int32_t nranks, int32_t rank)
{
	int64_t nodes = 0;

	for (int32_t t = 0; t < s->ntree; t++)
		nodes += tess_node_count(s->n[t], tess_edge(s->n[t], nranks, rank),
		                         tess_edge(s->n[t], nranks, rank + 1));
	return nodes;
}

struct adder {
	const struct tess_sum *s;
	int32_t nranks;
	uint64_t stride; /* elements between nodes */
	const float *const *part;
	float *scratch; /* [TREE_LEVELS][step] */
	uint64_t step, at, n; /* adds elements [at, at + n) */
	int64_t next[TESS_RANKS_MAX]; /* by rank: the first unused node */
};

/* Adds vectors that do not overlap; compilers vectorize these loops. */
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
 * Returns node (depth, i) of a tree of n units; NULL: it is empty. A rank that holds the full node
 * gave it as one vector. Uses the scratch from `level` on. Visits nodes in order of units, as in
 * each rank's part.
 */
static const float *sum_node(struct adder *a, int64_t n, int depth, int64_t i, int level)
{
	int64_t lo = tess_edge(n, (int64_t)1 << depth, i),
		hi = tess_edge(n, (int64_t)1 << depth, i + 1);
	/* the last rank whose units begin at lo or earlier */
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

/* Returns a node of the tree over the trees, whose leaves are finished sums. */
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

/* Finishes one tree over several ranks, the usual case: last addition and + 0.0f in one pass. */
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

/* Adds up to STEP elements, and copies the sums to all vectors while they are in cache. */
static void finish_elements(struct adder *a, float *const *out, int32_t nout)
{
	a->n = a->s->count - a->at < STEP ? a->s->count - a->at : STEP;
	memset(a->next, 0, (size_t)a->nranks * sizeof *a->next);
	if (a->s->ntree == 1 && a->s->n[0] && a->nranks > 1)
		finish_tree(a, out[0] + a->at);
	else
		finish_trees(a, out[0] + a->at);
	for (int32_t i = 1; i < nout; i++)
		tess_stream(out[i] + a->at, out[0] + a->at, a->n * sizeof **out);
}

void tess_sum_finish_all(const struct tess_sum *s, int32_t nranks, uint64_t stride,
                         const float *const *part, float *scratch, float *const *out, int32_t nout)
{
	uint32_t saved = tess_float_enter();
	struct adder a;

	a.s = s;
	a.nranks = nranks;
	a.stride = stride;
	a.part = part;
	a.scratch = scratch;
	a.step = s->count < STEP ? s->count : STEP;
	for (a.at = 0; a.at < s->count; a.at += STEP)
		finish_elements(&a, out, nout);
	tess_stream_end();
	tess_float_leave(saved);
}

uint64_t tess_sum_scratch_size(uint64_t count)
{
	return TREE_LEVELS * (count < STEP ? count : STEP);
}

void tess_sum_finish(const struct tess_sum *s, int32_t nranks, const float *const *part,
                     float *scratch, float *out)
{
	tess_sum_finish_all(s, nranks, s->count, part, scratch, &out, 1);
}

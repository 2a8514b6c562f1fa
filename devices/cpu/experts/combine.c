/* combine.c - COMBINE, and the last step of EXPERTS: the sum of a row's weighted experts. */
#include "combine.h"

enum { CHUNK = 256 }; /* columns added at a time */
enum { LEVELS = 32 };
enum { SMALL = 1 << 14 }; /* elements of the smallest share: fewer are not worth a thread */

/* Counts the merges of each leaf with the previous ones; all end in one value. */
static void count_merges(int64_t units, int64_t n, struct leaf *leaf)
{
	int open[LEVELS], depth, count = 0;

	for (int64_t i = 0; i < n; i++) {
		depth = i + 1 < n ? tess_node_shared_depth(units, leaf[i].unit, leaf[i + 1].unit)
		                  : -1;
		for (leaf[i].merges = 0; count && open[count - 1] > depth; count--)
			leaf[i].merges++;
		open[count++] = depth;
	}
}

static void add_leaves(const struct leaf *leaf, int64_t n, int64_t columns, bool finish, float *out)
{
	float level[LEVELS][CHUNK];

	for (int64_t at = 0; at < columns; at += CHUNK) {
		int64_t len = columns - at < CHUNK ? columns - at : CHUNK;
		int top = 0;

		for (int64_t i = 0; i < n; i++) {
			const float *z = leaf[i].z + at;
			float w = leaf[i].weight, *to = level[top++];

			CPU_LANES
			for (int64_t k = 0; k < len; k++)
				to[k] = w * z[k];
			for (int m = 0; m < leaf[i].merges; m++) {
				float *left = level[--top - 1];

				CPU_LANES
				for (int64_t k = 0; k < len; k++)
					left[k] = left[k] + left[CHUNK + k];
			}
		}
		CPU_LANES
		for (int64_t k = 0; k < len && finish; k++)
			out[at + k] = level[0][k] + 0.0f;
		if (!finish)
			memcpy(out + at, level[0], sizeof(float) * (size_t)len);
	}
}

void combine_leaves(const struct tess_op *op, struct leaf *leaf, int64_t n, int64_t row)
{
	const struct tess_tree *tree = &op->tree[op->ntree - 1];
	const struct tess_view *y = &op->out[0];
	int64_t columns = y->shape[y->ndim - 1], at = tree->lo, of;
	float *out = (float *)y->data + row * y->stride[y->ndim - 2];
	struct tess_node node = { 0, tree->n, 0, 0 };

	for (bool more = true; more; n -= of, leaf += of, out += y->stride[0]) {
		if (y->ndim == 3 && !tess_node_next(tree->n, tree->lo, tree->hi, &at, &node))
			return;
		for (of = 0; of < n && leaf[of].unit < node.hi;)
			of++;
		count_merges(tree->n, of, leaf);
		if (of)
			add_leaves(leaf, of, columns, y->ndim == 2, out);
		else
			memset(out, 0, sizeof(float) * (size_t)columns);
		more = y->ndim == 3;
	}
}

static void combine_rows(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct combine *c = arg;
	const struct tess_view *z = &c->op->in[0], *w = &c->op->in[1];
	int64_t columns = c->op->out[0].shape[c->op->out[0].ndim - 1], n;
	struct leaf *leaf = cpu_get_thread_scratch(c->cpu, thread);

	for (int64_t t = lo; t < hi; t++) {
		const float *weight = get_row(w, t);

		n = 0;
		for (int64_t e = 0; e < w->shape[1]; e++) {
			if (weight[e] == 0.0f)
				continue;
			leaf[n] = (struct leaf){ get_row(z, t) + n * columns, c->op->tree[0].lo + e,
				                 weight[e], 0 };
			n++;
		}
		combine_leaves(c->op, leaf, n, t);
	}
}

#define run_combine CPU_NAME(run_combine)
tess_status run_combine(struct cpu *cpu, const struct tess_op *op)
{
	const struct tess_view *w = &op->in[1];
	int64_t columns = op->out[0].shape[op->out[0].ndim - 1], slots, n;
	struct combine c = { cpu, op };
	tess_status st = cpu_grow_thread_scratch(cpu, sizeof(struct leaf) * (size_t)w->shape[1]);

	slots = columns ? op->in[0].shape[1] / columns : w->shape[1];
	for (int64_t t = 0; t < w->shape[0] && !st; t++) {
		n = cpu_count_experts(w, t);
		if (n > slots)
			st = cpu_fail_slots(op, n, slots);
	}
	if (!st)
		pool_run(cpu->pool, combine_rows, &c, w->shape[0],
		         tess_up(SMALL, op->in[0].shape[1] + 1));
	return st;
}

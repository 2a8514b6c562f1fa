/* loss.c - the cross entropy of rows of logits: LOSS_MAX, LOSS_SUM, LOSS_PICK, LOSS, LOSS_D. */
#include "lanes.h"
#include "mathf.h"

enum { SMALL = 1 << 14 }; /* elements of the smallest share: fewer are not worth a thread */
enum { IGNORED = -100 }; /* the ignored label */

struct loss {
	const struct cpu *cpu;
	const struct tess_op *op;
};

/* Runs fn over the rows of logits. */
static tess_status run_over_logits(struct cpu *cpu, const struct tess_op *op, pool_fn *fn)
{
	struct loss arg = { cpu, op };

	pool_run(cpu->pool, fn, &arg, op->in[0].shape[0], tess_up(SMALL, op->in[0].shape[1] + 1));
	return TESS_OK;
}

static float get_scalar(const struct tess_view *v, int64_t t)
{
	return ((const float *)v->data)[t * v->stride[0]];
}

static int64_t read_label(const struct tess_view *labels, int64_t t)
{
	return ((const int32_t *)labels->data)[t];
}

static void find_row_maxima(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct tess_op *op = ((struct loss *)arg)->op;
	int64_t n = op->in[0].shape[1], whole = n / LANES * LANES;

	(void)thread;
	for (int64_t t = lo; t < hi; t++) {
		const float *z = get_row(&op->in[0], t);
		float top[LANES];

		for (int i = 0; i < LANES; i++)
			top[i] = -INFINITY;
		for (int64_t k = 0; k < whole; k += LANES)
			for (int i = 0; i < LANES; i++)
				top[i] = z[k + i] > top[i] ? z[k + i] : top[i];
		for (int64_t k = whole; k < n; k++)
			top[0] = z[k] > top[0] ? z[k] : top[0];
		for (int i = 1; i < LANES; i++)
			top[0] = top[i] > top[0] ? top[i] : top[0];
		*get_row(&op->out[0], t) = top[0] + 0.0f;
	}
}

#define run_loss_max CPU_NAME(run_loss_max)
tess_status run_loss_max(struct cpu *cpu, const struct tess_op *op)
{
	return run_over_logits(cpu, op, find_row_maxima);
}

/*
 * Adds the chains of up to LANES leaves at once, a leaf in each lane: exp of a block of elements of
 * each, transposed. Elements past the end of a leaf are -0, which changes no sum.
 */
static void add_exponentials(const float *z, float max, const struct sum_step *s, int n,
                             float *leaf)
{
	struct lanes r[LANES], sum = lanes_set_zero();
	float e[LANES][LANES], last[LANES];
	int32_t longest = 0, left;

	for (int j = 0; j < n; j++)
		longest = s[j].len > longest ? s[j].len : longest;
	for (int32_t k = 0; k < longest; k += LANES) {
		for (int j = 0; j < LANES; j++) {
			left = j < n ? s[j].len - k : 0;
			if (left >= LANES) {
				const float *x = z + s[j].at + k;

				for (int i = 0; i < LANES; i++)
					e[j][i] = mathf_exp(x[i] - max);
				continue;
			}
			left = left < 0 ? 0 : left;
			memset(last, 0, sizeof last);
			memcpy(last, z + s[j < n ? j : 0].at + (left ? k : 0),
			       sizeof *last * (size_t)left);
			for (int i = 0; i < LANES; i++)
				e[j][i] = i < left ? mathf_exp(last[i] - max) : -0.0f;
		}
		for (int j = 0; j < LANES; j++)
			r[j] = lanes_load(e[j]);
		lanes_transpose(r);
		for (int i = 0; i < LANES; i++)
			sum = lanes_add(sum, r[i]);
	}
	lanes_store(leaf, sum);
}

static void sum_exponentials(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct loss *l = arg;
	const struct tess_op *op = l->op;
	const struct tess_view *y = &op->out[0];
	const struct sum_step *end = l->cpu->sum->step + l->cpu->sum->count;
	float *level = cpu_get_thread_scratch(l->cpu, thread), *row, leaf[LANES];
	int32_t at, n;

	for (int64_t t = lo; t < hi; t++) {
		row = (float *)y->data + t * y->stride[y->ndim - 2];
		for (const struct sum_step *s = l->cpu->sum->step; s < end; s += n) {
			n = end - s < LANES ? (int32_t)(end - s) : LANES;
			add_exponentials(get_row(&op->in[0], t), get_scalar(&op->in[1], t), s, n,
			                 leaf);
			for (int32_t i = 0; i < n; i++) {
				at = s[i].level;
				level[at] = leaf[i];
				for (int m = 0; m < s[i].merge + s[i].trees; m++, at--)
					level[at - 1] = level[at - 1] + level[at];
				if (s[i].node >= 0)
					row[s[i].node * y->stride[0]] = level[at];
			}
		}
	}
}

#define run_loss_sum CPU_NAME(run_loss_sum)
tess_status run_loss_sum(struct cpu *cpu, const struct tess_op *op)
{
	tess_status st = cpu_plan_sum(cpu, op, is_partial(op, 2), INT32_MAX);

	if (!st)
		st = cpu_grow_thread_scratch(cpu, sizeof(float) * (size_t)cpu->sum->levels);
	return st ? st : run_over_logits(cpu, op, sum_exponentials);
}

/* Returns the node of a Partial whose units contain column `at`; -1: none. */
static int64_t find_column_node(const struct tess_op *op, int64_t at)
{
	struct tess_node node;
	int64_t unit, index = 0;

	for (int32_t i = 0; i < op->ntree; i++) {
		const struct tess_tree *t = &op->tree[i];
		const int64_t *bound = op->term[t->first].bound - t->lo;

		for (unit = t->lo; tess_node_next(t->n, t->lo, t->hi, &unit, &node); index++)
			if (at >= bound[node.lo] && at < bound[node.hi])
				return index;
	}
	return -1;
}

#define run_loss_pick CPU_NAME(run_loss_pick)
tess_status run_loss_pick(struct cpu *cpu, const struct tess_op *op)
{
	const struct tess_view *z = &op->in[0], *y = &op->out[0];
	bool partial = is_partial(op, 2);
	int64_t label, node;
	float *row;

	(void)cpu;
	for (int64_t t = 0; t < z->shape[0]; t++) {
		label = read_label(&op->in[1], t) - (int64_t)op->num[TESS_LOSS_FIRST];
		node = partial ? find_column_node(op, label) : 0;
		row = (float *)y->data + t * y->stride[y->ndim - 2];
		for (int64_t i = 0; i < (partial ? y->shape[0] : 1); i++)
			row[i * y->stride[0]] = i == node && label >= 0 && label < z->shape[1]
			                                ? get_row(z, t)[label] + 0.0f
			                                : 0.0f;
	}
	return TESS_OK;
}

#define run_loss CPU_NAME(run_loss)
tess_status run_loss(struct cpu *cpu, const struct tess_op *op)
{
	(void)cpu;
	for (int64_t t = 0; t < op->in[0].shape[0]; t++)
		*get_row(&op->out[0], t) = read_label(&op->in[3], t) == IGNORED
		                                   ? 0.0f
		                                   : (mathf_log(get_scalar(&op->in[1], t)) +
		                                      get_scalar(&op->in[0], t)) -
		                                             get_scalar(&op->in[2], t);
	return TESS_OK;
}

static void derive_logits(void *arg, int64_t lo, int64_t hi, int32_t thread)
{
	const struct tess_op *op = ((struct loss *)arg)->op;
	float count = *(const float *)op->in[4].data, max, sum;
	int64_t n = op->in[0].shape[1], label, at;

	(void)thread;
	for (int64_t t = lo; t < hi; t++) {
		const float *z = get_row(&op->in[0], t);
		float *d = get_row(&op->out[0], t), own = 0.0f;

		label = read_label(&op->in[3], t);
		if (label == IGNORED) {
			memset(d, 0, sizeof *d * (size_t)n);
			continue;
		}
		max = get_scalar(&op->in[1], t);
		sum = get_scalar(&op->in[2], t);
		at = label - (int64_t)op->num[TESS_LOSS_FIRST];
		at = at < n ? at : -1;
		if (at >= 0)
			own = z[at];
		CPU_LANES
		for (int64_t k = 0; k < n; k++)
			d[k] = mathf_exp(z[k] - max) / sum / count;
		if (at >= 0)
			d[at] = (mathf_exp(own - max) / sum - 1.0f) / count;
	}
}

#define run_loss_d CPU_NAME(run_loss_d)
tess_status run_loss_d(struct cpu *cpu, const struct tess_op *op)
{
	return run_over_logits(cpu, op, derive_logits);
}

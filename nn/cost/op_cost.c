/* op_cost.c - counts the bytes and FLOPs of an op. */
#include "nn/cost/op_cost.h"

#include "nn/op/kinds.h"
#include "nn/program/compressed.h"

#include <math.h>
#include <tessera/reduce.h>

static int64_t count_view_elements(const struct tess_view *v)
{
	int64_t n = v->ndim > 0;

	for (int32_t i = 0; i < v->ndim; i++)
		n *= v->shape[i];
	return n;
}

static uint64_t count_operand_bytes(const struct tess_view *v)
{
	return v->dtype >= TESS_Q8 ? tess_view_count_panels(v)
	                           : (uint64_t)count_view_elements(v) * tess_width(v->dtype);
}

/* Counts the look-ups in a table that has rows [first, first + n). */
static int64_t count_looked_up(const int32_t *id, int64_t rows, int64_t first, int64_t n)
{
	int64_t found = 0;

	for (int64_t i = 0; i < rows; i++)
		found += !id || (id[i] >= first && id[i] - first < n);
	return found;
}

/* What rows request of the experts of a rank: experts with at least one row, and their rows. */
struct requested {
	double experts, rows;
};

static struct requested count_routed(const struct tess_view *weights)
{
	const float *w = weights->data;
	struct requested n = { 0 };

	for (int64_t e = 0; e < weights->shape[1]; e++) {
		int64_t rows = 0;

		for (int64_t t = 0; t < weights->shape[0]; t++)
			rows += w[t * weights->stride[0] + e * weights->stride[1]] != 0;
		n.rows += (double)rows;
		n.experts += rows > 0;
	}
	return n;
}

/* Finds how many experts a row requests; of EXPERTS_DW, by the slots of its operand mid. */
static int64_t find_requested(const struct tess_op *op)
{
	const struct tess_view *gate_up = &op->out[0];

	if (op->kind != TESS_OP_EXPERTS_DW)
		return (int64_t)op->num[TESS_EXPERTS_TOP];
	return 2 * op->in[3].shape[1] / (3 * gate_up->shape[gate_up->ndim - 2]);
}

/*
 * Returns by how many standard deviations the largest of n normal values is above their mean: 0.56
 * of 2, 1.03 of 4, 1.42 of 8.
 */
static double expect_largest(double n)
{
	return n > 1 ? 0.564 * pow(log2(n), 0.85) : 0;
}

/* Expects the same of the rank with most rows, if rows request `top` of all experts at random. */
static struct requested expect_routed(const struct tess_op *op, const struct tess_op_known *known)
{
	double here = (double)op->in[1].shape[1], rows = (double)op->in[1].shape[0];
	double all = (double)known->experts > here ? (double)known->experts : here;
	double top = (double)find_requested(op), share, mean, deviation, most;

	if (here < 1)
		return (struct requested){ 0 };
	share = (top >= 1 && top < all ? top : all) / all;
	mean = rows * here * share;
	deviation = sqrt(mean * (1 - here / all) * (1 - share) * all / (all > 1 ? all - 1 : 1));
	most = mean + expect_largest(all / here) * deviation;
	most = most < rows * here ? most : rows * here;
	return (struct requested){ here * (1 - pow(1 - share, most / (here * share))), most };
}

/* ---- the column `cost` of the table of ops: FLOPs, and bytes that are not read ---- */

static void op_add_none_cost(const struct tess_op *op, const struct tess_op_known *known,
                             struct tess_op_cost *sum)
{
	(void)op, (void)known, (void)sum;
}

/* Counts products of in[0] and each weight. A LINEAR_DX has one g for each weight before these. */
static void op_add_product_cost(const struct tess_op *op, const struct tess_op_known *known,
                                struct tess_op_cost *sum)
{
	int32_t first = op->kind == TESS_OP_LINEAR_DX ? op->nin / 2 : 1;

	(void)known;
	for (int32_t i = first; i < op->nin; i++)
		sum->flops += 2 * (uint64_t)(op->in[0].shape[0] * count_view_elements(&op->in[i]));
}

/* A gradient of a weight multiplies each row of x by one of g. */
static void op_add_outer_product_cost(const struct tess_op *op, const struct tess_op_known *known,
                                      struct tess_op_cost *sum)
{
	(void)known;
	sum->flops += 2 * (uint64_t)(count_view_elements(&op->in[0]) * op->in[1].shape[1]);
}

/* Counts only the looked up rows of the table. */
static void op_add_embed_cost(const struct tess_op *op, const struct tess_op_known *known,
                              struct tess_op_cost *sum)
{
	const struct tess_view *table = &op->in[1];
	int64_t rows = count_looked_up(known->ids, op->in[0].shape[0],
	                               (int64_t)op->num[TESS_EMBED_FIRST], table->shape[0]);
	uint64_t row = (uint64_t)table->shape[1] * tess_width(table->dtype);

	sum->bytes -= row * (uint64_t)(table->shape[0] - rows);
	sum->weight_bytes -= row * (uint64_t)(table->shape[0] - rows);
}

/* Counts only the rows of positions of the table. */
static void op_add_rope_cost(const struct tess_op *op, const struct tess_op_known *known,
                             struct tess_op_cost *sum)
{
	const struct tess_view *table = &op->in[2];

	(void)known;
	sum->bytes += (uint64_t)((op->in[1].shape[0] - table->shape[0]) * table->shape[1]) *
	              tess_width(table->dtype);
}

static void op_add_select_cost(const struct tess_op *op, const struct tess_op_known *known,
                               struct tess_op_cost *sum)
{
	(void)known;
	sum->bytes += count_operand_bytes(&op->out[0]) - count_operand_bytes(&op->in[0]);
}

/* Finds what rows request, and adds the experts with rows as parts. */
static struct requested find_routed(const struct tess_op *op, const struct tess_op_known *known,
                                    struct tess_op_cost *sum)
{
	struct requested n = known->routed ? count_routed(&op->in[1]) : expect_routed(op, known);

	sum->parts += n.experts;
	sum->part_rows += n.rows;
	return n;
}

/* Returns the FLOPs of n rows with weights of so many elements. */
static uint64_t count_product(double n, double elements)
{
	return 2 * (uint64_t)llround(n * elements);
}

static void op_add_experts_cost(const struct tess_op *op, const struct tess_op_known *known,
                                struct tess_op_cost *sum)
{
	double experts = (double)op->in[1].shape[1];
	struct requested n = find_routed(op, known, sum);

	for (int32_t i = 2; i < op->nin && experts > 0; i++) {
		uint64_t unread = (uint64_t)((double)count_operand_bytes(&op->in[i]) *
		                             (1 - n.experts / experts));

		sum->bytes -= unread;
		sum->weight_bytes -= unread;
		sum->flops +=
			count_product(n.rows, (double)count_view_elements(&op->in[i]) / experts);
	}
}

/* Three products with matrices of an expert: a and b again, e, and dx. */
static void op_add_experts_d_cost(const struct tess_op *op, const struct tess_op_known *known,
                                  struct tess_op_cost *sum)
{
	double experts = (double)op->in[1].shape[1];
	struct requested n = find_routed(op, known, sum);

	if (experts > 0)
		sum->flops += count_product(n.rows, (double)(2 * count_view_elements(&op->in[2]) +
		                                             count_view_elements(&op->in[3])) /
		                                            experts);
}

static void op_add_experts_dw_cost(const struct tess_op *op, const struct tess_op_known *known,
                                   struct tess_op_cost *sum)
{
	struct requested n = find_routed(op, known, sum);
	int64_t elements = 0;

	for (int32_t i = 0; i < 2 && i < op->nout; i++) {
		const struct tess_view *w = &op->out[i];

		elements += w->shape[w->ndim - 1] * w->shape[w->ndim - 2];
	}
	sum->flops += op->in[1].shape[1] ? count_product(n.rows, (double)elements) : 0;
}

/* Adds the sequences as parts. */
static struct tess_attended count_sequence_parts(struct tess_attended n, int64_t rows,
                                                 struct tess_op_cost *sum)
{
	sum->parts += (double)n.sequences;
	sum->part_rows += n.sequences ? (double)rows : 0;
	return n;
}

static struct tess_attended count_attended(const struct tess_op *op,
                                           const struct tess_op_known *known,
                                           struct tess_op_cost *sum)
{
	int64_t window = (int64_t)op->num[TESS_ATTENTION_WINDOW], rows = op->in[3].shape[0];
	struct tess_attended n = { window, op->num[TESS_ATTENTION_CHUNKED] != 0, 0, 0, 0 };

	if (known->last && known->last->window == window && known->last->chunked == n.chunked)
		return count_sequence_parts(*known->last, rows, sum);
	for (int64_t i = 0; i < rows && known->position && known->slot; i++) {
		int64_t end = known->position[i] + 1, sees = window && end > window ? window : end;

		if (n.chunked)
			sees = known->position[i] % window + 1;
		n.seen += sees;
		n.stored += i && known->slot[i] == known->slot[i - 1] ? 1 : sees;
		n.sequences += !i || known->slot[i] != known->slot[i - 1];
	}
	if (known->last)
		*known->last = n;
	return count_sequence_parts(n, rows, sum);
}

/*
 * Counts a sequence's keys and values once, from the first position that one of its rows attends
 * to. The table of pages is not counted.
 */
static void op_add_attention_cost(const struct tess_op *op, const struct tess_op_known *known,
                                  struct tess_op_cost *sum)
{
	struct tess_attended n = count_attended(op, known, sum);
	int64_t head = (int64_t)op->num[TESS_ATTENTION_HEAD], rows = op->in[3].shape[0], bytes;
	int64_t value = (int64_t)op->num[TESS_ATTENTION_VALUE];
	int64_t cols = op->in[1].shape[1] + (op->in[2].ndim ? op->in[2].shape[1] : 0);

	sum->bytes -= count_operand_bytes(&op->in[5]);
	if (!n.seen)
		return;
	bytes = (n.stored + rows) * cols *
	        (int64_t)tess_width((int32_t)op->num[TESS_ATTENTION_DTYPE]);
	sum->bytes += (uint64_t)bytes;
	sum->flops += 2 * (uint64_t)(n.seen * (op->in[0].shape[1] / head) * (head + value));
	sum->kv_bytes += (uint64_t)bytes;
}

/* Each pair of a row and a key has five products: the score again, u, dq, dk and dv. */
static void op_add_attention_d_cost(const struct tess_op *op, const struct tess_op_known *known,
                                    struct tess_op_cost *sum)
{
	int64_t head = (int64_t)op->num[TESS_ATTENTION_HEAD];
	int64_t value = (int64_t)op->num[TESS_ATTENTION_VALUE];

	sum->flops += 2 * (uint64_t)(count_attended(op, known, sum).seen *
	                             (op->in[0].shape[1] / head) * (3 * head + 2 * value));
}

void tess_op_add_cost(const struct tess_op *op, const struct tess_op_known *known,
                      struct tess_op_cost *sum)
{
	static void (*const add_cost[])(const struct tess_op *, const struct tess_op_known *,
	                                struct tess_op_cost *) = {
#define OP(kind, name, outs, weight, cost, backward, lower) [TESS_OP_##kind] = op_add_##cost##_cost,
#include "nn/op/kinds.def"
	};
	int32_t weight = op_find_kind(op->kind)->weight;

	for (int32_t i = 0; i < op->nout; i++)
		sum->bytes += count_operand_bytes(&op->out[i]);
	for (int32_t i = 0; i < op->nin; i++) {
		uint64_t bytes = count_operand_bytes(&op->in[i]);

		sum->bytes += bytes;
		sum->weight_bytes += weight && i >= weight ? bytes : 0;
	}
	add_cost[op->kind](op, known, sum);
}

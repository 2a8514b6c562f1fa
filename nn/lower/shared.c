/*
 * shared.c - lowers gradients to which several heads contribute, or sequences whose tokens are on
 * several ranks.
 */
#include "nn/lower/build.h"

#include <tessera/reduce.h>

/* ---- heads ----------------------------------------------------------------------------------- */

/* Sets the trees over all heads of an axis; offsets count heads. */
static void set_head_trees(struct build *b, struct tess_op *op, const struct tess_dim *heads,
                           struct tess_cut cut)
{
	build_set_trees(b, op, heads, cut);
	for (int32_t i = 0; i < op->nterm && !b->status; i++) {
		const struct tess_tree *t = &op->tree[0];
		int64_t *bound = (int64_t *)op->term[i].bound;

		for (int64_t u = 0; u <= t->hi - t->lo; u++)
			bound[u] /= heads->unit_size;
	}
}

/* Sets the trees over the range of heads that share each head of the out. */
static void set_group_trees(struct build *b, struct tess_op *op, int64_t group)
{
	struct tess_dim *run = TESS_NEW(&b->l->arena, struct tess_dim, 1);

	if (!run) {
		b->status = TESS_ENOMEM;
		return;
	}
	*run = (struct tess_dim){ .size = group, .nunits = group, .base = run, .group = 1 };
	build_set_trees(b, op, run, (struct tess_cut){ 1, 0 });
}

void build_add_head_sum(struct build *b, const struct tess_record *rec)
{
	const struct tess_tensor *from = rec->in[0];
	struct value *x = build_get_value(b, from), *y = build_get_value(b, rec->out[0]);
	const struct tess_dim *heads = from->dim[from->ndim - 1];
	double num[TESS_HEAD_SUM_NUMS] = { rec->num[TESS_HEAD_SUM_WIDTH],
		                           rec->num[TESS_HEAD_SUM_GROUP] };
	bool all = num[TESS_HEAD_SUM_GROUP] == 0;
	struct tess_step *s;

	if (!y->rows || !y->cols || (y->partial && !y->nodes))
		return;
	if (all)
		num[TESS_HEAD_SUM_GROUP] = (double)x->cols / num[TESS_HEAD_SUM_WIDTH];
	s = build_add_op(b, TESS_OP_HEAD_SUM, 1, 1);
	build_set_input(b, s, 0, x);
	build_set_output(b, s, 0, y);
	build_set_numbers(b, &s->op, TESS_HEAD_SUM_NUMS, num);
	if (all)
		set_head_trees(b, &s->op, heads, build_find_cut(b, from->place, from->ndim - 1));
	else
		set_group_trees(b, &s->op, (int64_t)num[TESS_HEAD_SUM_GROUP]);
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* Lowers the sum that finishes each sequence over the ranks with its tokens. */
void build_add_sequence_sum(struct build *b, const struct tess_record *rec)
{
	const struct tess_tensor *from = rec->in[0];
	const struct tess_training *t = b->p->training;
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, rec->along);
	struct value *x = build_get_value(b, from), *y = build_get_value(b, rec->out[0]);
	int64_t n = x->rows * x->cols, at = 0;
	struct value all, part, row, out = *y;
	struct tess_step *s;

	out.rows = 1;
	out.cols = out.row_stride = n;
	if (!tess_program_is_exact(b->p)) { /* the sum of all local sequences is one node */
		out.partial = false;
		build_add_sum(b, rec->along, b->p->tokens, x, &out, NULL);
		return;
	}
	all = build_add_temporary(b, 0, t->nsequences, n, x->dtype);
	for (int64_t i = 0; i < t->nsequences && !b->status; i++) {
		const struct tess_dim *sequence = b->p->tokens->parts[i];
		int64_t lo, hi;

		part = *x;
		part.offset += 4 * (uint64_t)(at * x->node_stride);
		row = build_slice_value(&all, i, 1, 0, n);
		build_add_sum(b, rec->along, sequence, &part, &row, NULL);
		tess_dim_get_rank_units(sequence, cut.nranks, cut.rank, &lo, &hi);
		at += tess_node_count(sequence->nunits, lo, hi);
	}
	s = build_add_op(b, TESS_OP_SEQUENCE_SUM, 1, 1);
	build_set_input(b, s, 0, &all);
	build_set_output(b, s, 0, &out);
	build_set_numbers(b, &s->op, TESS_TOKENS_NUMS,
	                  (double[]){ (double)t->all_sequences, (double)t->first });
}

/* ---- exchange -------------------------------------------------------------------------------- */

struct tess_run build_intersect_runs(struct tess_run a, struct tess_run b)
{
	int64_t lo = a.start > b.start ? a.start : b.start;
	int64_t hi = a.start + a.len < b.start + b.len ? a.start + a.len : b.start + b.len;

	return (struct tess_run){ lo, hi > lo ? hi - lo : 0 };
}

struct tess_run build_find_exchanged(const struct tess_dim *own, const struct tess_dim *hold,
                                     int32_t n, int32_t q, int32_t r)
{
	struct tess_run a, b;

	tess_dim_get_owned_runs(own, n, q, &a);
	tess_dim_get_local_runs(hold, n, r, &b);
	return build_intersect_runs(a, b);
}

/* Returns true if each rank holds after the exchange what it owned before. */
static bool shares_nothing(const struct tess_dim *own, const struct tess_dim *hold, int32_t n)
{
	for (int32_t r = 0; r < n; r++)
		if (tess_dim_get_owned_size(own, n, r) != tess_dim_get_local_size(hold, n, r))
			return false;
	return true;
}

/* Returns columns [at, at + len) of the full axis; local columns begin at `start`. */
static struct value slice_run(const struct value *v, struct tess_run run, int64_t start)
{
	return build_slice_value(v, 0, v->rows, run.start - start, run.len);
}

static int64_t get_local_start(const struct tess_dim *d, struct tess_cut cut)
{
	struct tess_run run;

	tess_dim_get_local_runs(d, cut.nranks, cut.rank, &run);
	return run.start;
}

void build_add_exchange(struct build *b, const struct tess_record *rec)
{
	const struct tess_dim *own = rec->in[0]->dim[1], *hold = rec->out[0]->dim[1];
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, rec->along);
	struct value *x = build_get_value(b, rec->in[0]), *y, part, out, in, block;
	uint64_t *count = TESS_NEW(&b->l->arena, uint64_t, 2 * cut.nranks);
	int64_t sent = 0, at = 0;
	struct tess_coll *c;

	if (!count) {
		b->status = TESS_ENOMEM;
		return;
	}
	if (shares_nothing(own, hold, cut.nranks)) {
		b->value[rec->out[0]->id] = *x;
		return;
	}
	y = build_get_value(b, rec->out[0]);
	for (int32_t q = 0; q < cut.nranks; q++)
		sent += build_find_exchanged(own, hold, cut.nranks, cut.rank, q).len;
	out = build_add_temporary(b, 0, 1, x->rows * sent, x->dtype);
	in = build_add_temporary(b, 0, 1, y->rows * y->cols, x->dtype);
	for (int32_t q = 0; q < cut.nranks; q++) {
		struct tess_run run = build_find_exchanged(own, hold, cut.nranks, cut.rank, q);

		part = slice_run(x, run, get_local_start(own, cut));
		block = build_make_block(&out, (uint64_t)at, x->rows, run.len);
		build_add_copy(b, &part, &block);
		count[q] = (uint64_t)(x->rows * run.len);
		at += x->rows * run.len;
	}
	c = build_add_collective(b, rec->along, TESS_ALL_TO_ALL, &out, &in);
	c->send_counts = count;
	c->recv_counts = count + cut.nranks;
	at = 0;
	for (int32_t q = 0; q < cut.nranks; q++) {
		struct tess_run run = build_find_exchanged(own, hold, cut.nranks, q, cut.rank);

		part = slice_run(y, run, get_local_start(hold, cut));
		block = build_make_block(&in, (uint64_t)at, y->rows, run.len);
		build_add_copy(b, &block, &part);
		count[cut.nranks + q] = (uint64_t)(y->rows * run.len);
		at += y->rows * run.len;
	}
}

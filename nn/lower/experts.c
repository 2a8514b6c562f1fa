/* experts.c - lowers route, experts and combine, and their backward. */
#include "nn/lower/build.h"

/* Adds the tree over `dim`, which is an axis of `operand`. */
static void add_tree(struct build *b, struct tess_op *op, const struct tess_dim *dim,
                     struct tess_cut cut, int32_t operand)
{
	int32_t n = op->nterm;

	build_set_trees(b, op, dim, cut);
	for (int32_t i = n; i < op->nterm && !b->status; i++)
		((struct tess_term *)op->term)[i].operand = operand;
}

/* Adds the tree over the experts of a rank, which are the columns of the weights, operand 1. */
static void add_expert_tree(struct build *b, struct tess_op *op, const struct tess_tensor *weights)
{
	add_tree(b, op, weights->dim[1], build_find_cut(b, weights->place, 1), 1);
}

/* Adds a step of the kind of `rec`, with its values and numbers. */
static struct tess_step *add_rows_op(struct build *b, const struct tess_record *rec, int32_t nin)
{
	struct tess_step *s = build_add_op(b, rec->kind, nin, 1);

	for (int32_t i = 0; i < rec->nin; i++)
		build_set_input(b, s, i, build_get_value(b, rec->in[i]));
	build_set_output(b, s, 0, build_get_value(b, rec->out[0]));
	if (rec->nnum)
		build_set_numbers(b, &s->op, rec->nnum, rec->num);
	return s;
}

void build_add_route(struct build *b, const struct tess_record *rec)
{
	struct tess_step *s;

	if (!build_get_value(b, rec->in[0])->rows)
		return;
	s = add_rows_op(b, rec, rec->nin + rec->nweight);
	if (rec->nweight)
		build_set_weight(b, s, 1, rec->weight[0]);
}

/* Sets the numbers of a step with room for `slots` results of experts per row. */
static void set_expert_numbers(struct build *b, struct tess_op *op, const struct tess_record *rec,
                               int64_t slots)
{
	double num[TESS_EXPERTS_NUMS];

	num[TESS_EXPERTS_ACTIVATION] = rec->num[TESS_EXPERTS_ACTIVATION];
	/* a rank with fewer experts has fewer slots */
	num[TESS_EXPERTS_SLOTS] = rec->num[TESS_EXPERTS_SLOTS] > 0 ? (double)slots : 0;
	num[TESS_EXPERTS_MATH] = rec->num[TESS_EXPERTS_MATH];
	num[TESS_EXPERTS_TOP] = rec->num[TESS_EXPERTS_TOP];
	num[TESS_EXPERTS_LIMIT] = rec->num[TESS_EXPERTS_LIMIT];
	num[TESS_EXPERTS_ALPHA] = rec->num[TESS_EXPERTS_ALPHA];
	build_set_numbers(b, op, TESS_EXPERTS_NUMS, num);
}

void build_add_experts(struct build *b, const struct tess_record *rec)
{
	const struct tess_weight *up = rec->weight[0], *down = rec->weight[1];
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!x->rows)
		return;
	s = add_rows_op(b, rec, 2 + rec->nweight);
	for (int32_t i = 0; i < rec->nweight; i++) /* the last one: biases */
		build_set_weight(b, s, 2 + i, rec->weight[i]);
	if (b->status)
		return;
	set_expert_numbers(b, &s->op, rec, y->cols / s->in[3].shape[1]);
	add_tree(b, &s->op, up->dim[up->in_dim], (struct tess_cut){ 1, 0 }, 0);
	add_tree(b, &s->op, down->dim[down->in_dim], build_find_cut(b, down->place, down->in_dim),
	         3);
	add_expert_tree(b, &s->op, rec->in[1]);
}

void build_add_combine(struct build *b, const struct tess_record *rec)
{
	struct tess_step *s;

	if (!build_get_value(b, rec->in[0])->rows)
		return;
	s = add_rows_op(b, rec, 2);
	add_expert_tree(b, &s->op, rec->in[1]);
}

void build_add_combine_d(struct build *b, const struct tess_record *rec)
{
	struct tess_step *s;

	if (!build_get_value(b, rec->in[0])->rows)
		return;
	s = add_rows_op(b, rec, 3);
	add_tree(b, &s->op, rec->in[2]->dim[1], (struct tess_cut){ 1, 0 }, 2);
}

/* ---- gradients of experts -------------------------------------------------------------------- */

/* Returns the gradient of w as [experts, out, in], or nodes of that shape. */
static struct tess_view view_expert_gradient(const struct tess_weight *w, const struct value *v,
                                             int64_t experts)
{
	int32_t a = v->partial, row = a + 1 + w->in_out, col = a + 2 - w->in_out;
	bool bias = w->ndim == 2;
	struct tess_view y = { .dtype = v->dtype,
		               .ndim = 3 + a,
		               .shape = { v->nodes },
		               .stride = { v->node_stride } };

	y.shape[a] = experts;
	y.shape[row] = bias ? v->cols : v->rows / experts;
	y.shape[col] = bias ? 1 : v->cols;
	y.stride[a] = bias ? v->row_stride : y.shape[row] * v->row_stride;
	y.stride[row] = bias ? 1 : v->row_stride;
	y.stride[col] = 1;
	return y;
}

static void add_experts_dw(struct build *b, const struct tess_record *rec, const struct value *mid)
{
	struct tess_step *s = build_add_op(b, TESS_OP_EXPERTS_DW, 4, rec->nweight);

	for (int32_t i = 0; i < 3; i++)
		build_set_input(b, s, i, build_get_value(b, rec->in[i]));
	build_set_input(b, s, 3, mid);
	for (int32_t i = 0; i < rec->nweight && !b->status; i++) {
		const struct value *v = build_get_value(b, rec->out[1 + i]);

		s->out[i] = view_expert_gradient(rec->weight[i], v, s->in[1].shape[1]);
		build_add_pointer(b, &s->out[i].data, v);
	}
	build_set_token_sum(b, &s->op, rec->in[2], rec->out[1],
	                    TESS_EXPERTS_DW_NUMS - TESS_TOKENS_NUMS, &rec->num[TESS_EXPERTS_MATH]);
}

void build_add_experts_d(struct build *b, const struct tess_record *rec)
{
	const struct tess_weight *up = rec->weight[0], *down = rec->weight[1];
	struct value *x = build_get_value(b, rec->in[0]), *u = build_get_value(b, rec->out[0]), mid;
	int64_t slots = u->cols / x->cols;
	struct tess_step *s;

	if (!x->rows || b->status)
		return;
	s = build_add_op(b, TESS_OP_EXPERTS_D, 3 + rec->nweight, 2);
	build_set_input(b, s, 0, x);
	build_set_input(b, s, 1, build_get_value(b, rec->in[1]));
	build_set_input(b, s, 4, build_get_value(b, rec->in[2]));
	build_set_output(b, s, 0, u);
	build_set_weight(b, s, 2, up);
	build_set_weight(b, s, 3, down);
	if (rec->nweight > 2)
		build_set_weight(b, s, 5, rec->weight[2]);
	if (b->status)
		return;
	mid = build_add_temporary(b, 0, x->rows, slots * 3 * s->in[3].shape[2], TESS_F32);
	build_set_output(b, s, 1, &mid);
	set_expert_numbers(b, &s->op, rec, slots);
	add_tree(b, &s->op, up->dim[up->in_dim], (struct tess_cut){ 1, 0 }, 0);
	add_tree(b, &s->op, down->dim[down->out_dim], (struct tess_cut){ 1, 0 }, 4);
	add_tree(b, &s->op, up->dim[up->out_dim], build_find_cut(b, up->place, up->out_dim), 2);
	add_experts_dw(b, rec, &mid);
}

/* ---- routing --------------------------------------------------------------------------------- */

/* Lowers ROUTE_D and BALANCE_D, which work row by row. */
void build_add_route_d(struct build *b, const struct tess_record *rec)
{
	if (build_get_value(b, rec->in[0])->rows)
		add_rows_op(b, rec, rec->nin);
}

void build_add_balance(struct build *b, const struct tess_record *rec)
{
	struct value *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (y->partial && !y->nodes)
		return;
	s = add_rows_op(b, rec, rec->nin);
	build_set_token_sum(b, &s->op, rec->in[0], rec->out[0], 0, NULL);
}

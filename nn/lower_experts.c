/* lower_experts.c - the steps of mixtures of experts: route, experts, combine. */
#include "nn/build.h"

enum { TREES = 3 };

/* Tree `i` of `op`, which is over `operand`. */
static void add_tree(struct build *b, struct tess_op *op, int32_t i, const struct tess_dim *dim,
                     struct tess_cut cut, int32_t operand)
{
	struct tess_tree *tree = (struct tess_tree *)op->tree;
	struct tess_term *term = (struct tess_term *)op->term;
	struct tess_op one = { 0 };

	build_set_trees(b, &one, dim, cut);
	if (b->status)
		return;
	tree[i] = one.tree[0];
	tree[i].first = i;
	term[i] = one.term[0];
	term[i].operand = operand;
	op->ntree = op->nterm = i + 1;
}

static void alloc_trees(struct build *b, struct tess_op *op)
{
	op->tree = TESS_NEW(&b->l->arena, struct tess_tree, TREES);
	op->term = TESS_NEW(&b->l->arena, struct tess_term, TREES);
	if (!op->tree || !op->term)
		b->status = TESS_ENOMEM;
}

/* The tree over the experts of a rank, which are the columns of the weights, operand 1. */
static void add_expert_tree(struct build *b, struct tess_op *op, int32_t i,
                            const struct tess_tensor *weights)
{
	add_tree(b, op, i, weights->dim[1], build_find_cut(b, weights->place, 1), 1);
}

void build_add_route(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!x->rows)
		return;
	s = build_add_op(b, TESS_OP_ROUTE, 1 + rec->nweight, 1);
	build_set_input(b, s, 0, x);
	if (rec->nweight)
		build_set_weight(b, s, 1, rec->weight[0]);
	build_set_output(b, s, 0, y);
	build_set_numbers(b, &s->op, rec->nnum, rec->num);
}

void build_add_experts(struct build *b, const struct tess_record *rec)
{
	const struct tess_weight *up = rec->weight[0], *down = rec->weight[1];
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	double num[TESS_EXPERTS_NUMS];
	struct tess_step *s;

	if (!x->rows)
		return;
	s = build_add_op(b, TESS_OP_EXPERTS, 4, 1);
	build_set_input(b, s, 0, x);
	build_set_input(b, s, 1, build_get_value(b, rec->in[1]));
	build_set_output(b, s, 0, y);
	alloc_trees(b, &s->op);
	if (b->status)
		return;
	build_set_weight(b, s, 2, up);
	build_set_weight(b, s, 3, down);
	num[TESS_EXPERTS_ACTIVATION] = rec->num[TESS_EXPERTS_ACTIVATION];
	/* a rank that has fewer experts has fewer slots */
	num[TESS_EXPERTS_SLOTS] =
		rec->num[TESS_EXPERTS_SLOTS] > 0 ? (double)(y->cols / s->in[3].shape[1]) : 0;
	build_set_numbers(b, &s->op, TESS_EXPERTS_NUMS, num);
	add_tree(b, &s->op, 0, up->dim[up->in_dim], (struct tess_cut){ 1, 0 }, 0);
	add_tree(b, &s->op, 1, down->dim[down->in_dim],
	         build_find_cut(b, down->place, down->in_dim), 3);
	add_expert_tree(b, &s->op, 2, rec->in[1]);
}

void build_add_combine(struct build *b, const struct tess_record *rec)
{
	struct value *z = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!z->rows)
		return;
	s = build_add_op(b, TESS_OP_COMBINE, 2, 1);
	build_set_input(b, s, 0, z);
	build_set_input(b, s, 1, build_get_value(b, rec->in[1]));
	build_set_output(b, s, 0, y);
	alloc_trees(b, &s->op);
	if (!b->status)
		add_expert_tree(b, &s->op, 0, rec->in[1]);
}

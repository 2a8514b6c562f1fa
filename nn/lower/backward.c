/* backward.c - lowers the ops that compute gradients. */
#include "core/base/status.h"
#include "nn/lower/tiles.h"

#include <tessera/reduce.h>

/* ---- sums over tokens ------------------------------------------------------------------------ */

void build_set_token_sum(struct build *b, struct tess_op *op, const struct tess_tensor *over,
                         const struct tess_tensor *out, int32_t n, const double *num)
{
	const struct tess_program *p = b->p;
	int32_t along = tess_places_find(over->place, p->mesh.ndims, TESS_SHARD, 0);
	struct tess_cut cut = tess_program_get_cut(p, b->l->rank, along);
	struct tess_op *tokens = &b->tokens[1 + along];
	double all[TESS_TOKENS_NUMS + 8] = { 0 };

	if (out->sum == p->sequences) { /* this replica's part of the step */
		all[TESS_TOKENS_SEQUENCES] = (double)p->training->all_sequences;
		all[TESS_TOKENS_FIRST] = (double)p->training->first;
	} else if (out->sum != p->tokens) { /* else each sequence is a tree */
		all[TESS_TOKENS_SEQUENCES] = (double)p->training->nsequences;
	}
	for (int32_t i = 0; i < n; i++)
		all[TESS_TOKENS_NUMS + i] = num[i];
	build_set_numbers(b, op, TESS_TOKENS_NUMS + n, all);
	if (op->ntree) {
		build_set_trees(b, op, p->tokens, cut);
		return;
	}
	/* there may be many sequences: ops share the trees of complete ones, and of parts */
	if (!tokens->ntree)
		build_set_trees(b, tokens, p->tokens, cut);
	op->ntree = tokens->ntree;
	op->tree = tokens->tree;
	op->nterm = tokens->nterm;
	op->term = tokens->term;
}

/* Adds a sum over the tokens of rec's last operand, from operands `in` to y. */
static struct tess_step *add_token_sum(struct build *b, const struct tess_record *rec,
                                       const struct value *in, const struct value *y)
{
	struct tess_step *s = build_add_op(b, rec->kind, rec->nin, 1);

	for (int32_t i = 0; i < rec->nin; i++)
		build_set_input(b, s, i, &in[i]);
	build_set_output(b, s, 0, y);
	return s;
}

/* Returns true if a rank has no tokens, and its Partial no nodes. */
static bool is_empty_sum(struct build *b, const struct tess_record *rec)
{
	const struct value *y = build_get_value(b, rec->out[0]);

	return y->partial && !y->nodes;
}

/* Adds dW by rows, which are columns of g, or of x for a weight [in, out]. */
static void add_linear_dw_rows(struct build *b, const struct tess_record *rec,
                               const struct value *in, const struct value *y, int64_t row)
{
	bool in_out = rec->num[TESS_REC_LINEAR_DW_IN_OUT] != 0;
	struct value part[2] = { in[0], in[1] };
	struct tess_step *s;
	struct tess_view *v;
	int32_t a;

	part[!in_out] = build_slice_value(&in[!in_out], 0, in[!in_out].rows, row, y->rows);
	s = add_token_sum(b, rec, part, y);
	build_set_token_sum(b, &s->op, rec->in[1], rec->out[0],
	                    TESS_LINEAR_DW_NUMS - TESS_TOKENS_NUMS,
	                    &rec->num[TESS_LINEAR_DW_DTYPE]);
	if (b->status || !in_out)
		return;
	v = &s->out[0]; /* [out, in] */
	a = v->ndim - 2;
	v->shape[a] = part[1].cols;
	v->shape[a + 1] = part[0].cols;
	v->stride[a + 1] = v->stride[a];
	v->stride[a] = 1;
}

void build_add_linear_dw(struct build *b, const struct tess_record *rec)
{
	struct tess_tensor *dw = rec->out[0];
	struct value in[2] = { *build_get_value(b, rec->in[0]), *build_get_value(b, rec->in[1]) };
	bool in_out = rec->num[TESS_REC_LINEAR_DW_IN_OUT] != 0;
	int32_t along = tess_places_find(dw->place, b->p->mesh.ndims, TESS_SHARD, !in_out);
	struct value run;
	int64_t row;

	if (is_empty_sum(b, rec))
		return;
	if (along >= 0 && rec->in[0]->place[along].kind == TESS_REPLICATE)
		in[0] = build_slice_local_cols(b, &in[0], dw->dim[!in_out],
		                               tess_program_get_cut(b->p, b->l->rank, along));
	if (!build_get_gradient_run(b, &run, &row)) {
		add_linear_dw_rows(b, rec, in, build_get_value(b, dw), 0);
		return;
	}
	do {
		add_linear_dw_rows(b, rec, in, &run, row);
		build_add_gradient_run(b);
	} while (build_get_gradient_run(b, &run, &row));
}

static void add_embed_dw_rows(struct build *b, const struct tess_record *rec, const struct value *y,
                              int64_t row)
{
	const struct tess_tensor *dw = rec->out[0];
	struct value in[2] = { *build_get_value(b, rec->in[0]), *build_get_value(b, rec->in[1]) };
	struct tess_step *s = add_token_sum(b, rec, in, y);
	double first;

	tess_dim_list_local_runs(dw->dim[0], build_find_cut(b, dw->place, 0), b->runs);
	first = (double)(b->runs[0].start + row) + rec->num[TESS_EMBED_FIRST];
	build_set_token_sum(b, &s->op, rec->in[1], dw, TESS_EMBED_NUMS, &first);
	if (!b->status)
		s->in[0].ndim = 1;
}

void build_add_embed_dw(struct build *b, const struct tess_record *rec)
{
	struct value run;
	int64_t row;

	if (is_empty_sum(b, rec))
		return;
	if (!build_get_gradient_run(b, &run, &row)) {
		add_embed_dw_rows(b, rec, build_get_value(b, rec->out[0]), 0);
		return;
	}
	do {
		add_embed_dw_rows(b, rec, &run, row);
		build_add_gradient_run(b);
	} while (build_get_gradient_run(b, &run, &row));
}

void build_add_bias_dw(struct build *b, const struct tess_record *rec)
{
	struct tess_step *s;

	if (is_empty_sum(b, rec))
		return;
	s = add_token_sum(b, rec, build_get_value(b, rec->in[0]), build_get_value(b, rec->out[0]));
	build_set_token_sum(b, &s->op, rec->in[0], rec->out[0], 0, NULL);
}

/* ---- linear ---------------------------------------------------------------------------------- */

/* Sets gradient i of n and the weight of it, or the piece that a tile has. */
static void set_dx_operands(struct build *b, struct tess_step *s, const struct tess_record *rec,
                            int32_t i, int32_t n, const struct build_tile *tile)
{
	const struct build_piece *piece = tile ? &tile->piece[i] : NULL;
	int32_t k = piece ? piece->weight : i;
	const struct tess_weight *w = rec->weight[k];
	struct value g = *build_get_value(b, rec->in[k]);
	struct tess_view v = build_describe_weight(b, w);
	struct tess_run columns = build_find_dx_columns(b, w, rec->out[0]);
	int64_t at = columns.start * v.stride[1];

	v.shape[1] = columns.len;
	if (tile && tile->sum) {
		g = build_slice_value(&g, 0, g.rows, piece->row, piece->rows);
		v.shape[0] = piece->rows;
		at += piece->row * v.stride[0];
	} else if (tile) {
		v.shape[1] = piece->rows;
		at = piece->row * v.stride[1];
	}
	build_set_input(b, s, i, &g);
	build_set_weight_piece(b, s, n + i, w, piece, &v, at);
}

/* Adds dx, or the tile y of it: some columns, or a node. */
static void add_dx_op(struct build *b, const struct tess_record *rec, const struct build_tile *tile,
                      const struct value *y)
{
	int32_t n = tile ? tile->npieces : rec->nweight;
	struct tess_step *s;

	if (!y->rows || (y->partial && !y->nodes))
		return;
	s = build_add_op(b, TESS_OP_LINEAR_DX, 2 * n, 1);
	for (int32_t i = 0; i < n && !b->status; i++)
		set_dx_operands(b, s, rec, i, n, tile);
	build_set_output(b, s, 0, y);
	if (rec->nnum)
		build_set_numbers(b, &s->op, rec->nnum, rec->num);
	if (b->status)
		return;
	if (tile && tile->sum)
		build_set_tile_tree(b, &s->op, tile, y);
	else
		build_add_dx_trees(b, &s->op, rec);
}

void build_add_linear_dx(struct build *b, const struct tess_record *rec)
{
	const struct build_tiling *tiling = build_get_tiling(b);
	struct value *y = build_get_value(b, rec->out[0]);

	if (!tiling) {
		add_dx_op(b, rec, NULL, y);
		return;
	}
	while (b->tile < tiling->ntiles && !b->status)
		build_add_tile(b, rec, y, add_dx_op);
}

/* ---- norm, glu ------------------------------------------------------------------------------- */

void build_set_norm_trees(struct build *b, struct tess_op *op, const struct tess_dim *row,
                          const double *norm)
{
	struct tess_dim *head = TESS_NEW(&b->l->arena, struct tess_dim, 1);
	int64_t each = (int64_t)norm[TESS_NORM_RUN];

	if (!head) {
		b->status = TESS_ENOMEM;
		return;
	}
	*head = (struct tess_dim){ .size = each, .nunits = 1, .base = head, .group = 1 };
	build_set_trees(b, op, each ? head : row, (struct tess_cut){ 1, 0 });
}

void build_add_row_dot(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]);
	struct tess_step *s;

	if (!x->rows)
		return;
	s = build_add_op(b, TESS_OP_ROW_DOT, 2, 1);
	build_set_input(b, s, 0, x);
	build_set_input(b, s, 1, build_get_value(b, rec->in[1]));
	build_set_output(b, s, 0, build_get_value(b, rec->out[0]));
	build_set_trees(b, &s->op, rec->in[0]->dim[1], (struct tess_cut){ 1, 0 });
}

void build_add_norm_d(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	struct tess_step *s;

	if (!x->rows)
		return;
	s = build_add_op(b, TESS_OP_NORM_D, 3, 1);
	build_set_input(b, s, 0, x);
	if (rec->nweight)
		build_set_weight(b, s, 1, rec->weight[0]);
	build_set_input(b, s, 2, build_get_value(b, rec->in[1]));
	build_set_output(b, s, 0, y);
	build_allow_in_place(b, build_get_value(b, rec->in[1]), y);
	build_allow_in_place(b, x, y);
	build_set_numbers(b, &s->op, rec->nnum, rec->num);
	build_set_norm_trees(b, &s->op, rec->in[0]->dim[1], rec->num);
}

void build_add_norm_dw(struct build *b, const struct tess_record *rec)
{
	struct value in[2] = { *build_get_value(b, rec->in[0]), *build_get_value(b, rec->in[1]) };
	const double *norm = rec->num + TESS_TOKENS_NUMS;
	struct tess_step *s;

	if (is_empty_sum(b, rec))
		return;
	s = add_token_sum(b, rec, in, build_get_value(b, rec->out[0]));
	build_set_norm_trees(b, &s->op, rec->in[0]->dim[1], norm);
	build_set_token_sum(b, &s->op, rec->in[1], rec->out[0], TESS_NORM_NUMS, norm);
}

void build_add_glu_d(struct build *b, const struct tess_record *rec)
{
	struct value *g = build_get_value(b, rec->in[rec->nin - 1]);
	struct tess_step *s;

	if (!g->rows || !g->cols)
		return;
	s = build_add_op(b, TESS_OP_GLU_D, 3, 2);
	build_set_input(b, s, 2, g);
	for (int32_t i = 0; i < rec->nout; i++) {
		build_set_input(b, s, i, build_get_value(b, rec->in[i]));
		build_set_output(b, s, i, build_get_value(b, rec->out[i]));
		build_allow_in_place(b, build_get_value(b, rec->in[i]),
		                     build_get_value(b, rec->out[i]));
		build_allow_in_place(b, g, build_get_value(b, rec->out[i]));
	}
	build_set_numbers(b, &s->op, rec->nnum, rec->num);
}

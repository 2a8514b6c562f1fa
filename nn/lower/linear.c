/* linear.c - lowers records that read a matrix or a table: linear, embed, bias. */
#include "core/base/status.h"
#include "nn/lower/tiles.h"

#include <tessera/reduce.h>

struct value build_slice_local_cols(struct build *b, const struct value *x,
                                    const struct tess_dim *dim, struct tess_cut cut)
{
	int64_t pieces = tess_dim_count_pieces(dim), at = 0;
	struct tess_run *run = TESS_NEW(&b->l->arena, struct tess_run, pieces);
	struct value all, from, to;
	int64_t n;

	if (!run) {
		b->status = TESS_ENOMEM;
		return *x;
	}
	n = tess_dim_list_local_runs(dim, cut, run);
	if (pieces == 1)
		return build_slice_value(x, 0, x->rows, run[0].start, n);
	all = build_add_temporary(b, 0, x->rows, n, x->dtype);
	for (int64_t i = 0; i < pieces; i++) {
		from = build_slice_value(x, 0, x->rows, run[i].start, run[i].len);
		to = build_slice_value(&all, 0, x->rows, at, run[i].len);
		build_add_copy(b, &from, &to);
		at += run[i].len;
	}
	return all;
}

/* Returns the mesh dimension that cuts a weight's input; -1: none. */
static int32_t find_input_cut(const struct build *b, const struct tess_weight *w)
{
	return tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, w->in_dim);
}

/*
 * Adds one op for the weights of `rec` whose input mesh dimension `along` cuts (-1: no dimension
 * does): they have the same trees.
 */
static void lower_linear_group(struct build *b, const struct tess_record *rec, int32_t along)
{
	const struct tess_tensor *x = rec->in[0];
	struct value part = *build_get_value(b, x);
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, along);
	int32_t n = 0, k = 0;
	struct tess_step *s;

	for (int32_t i = 0; i < rec->nweight; i++)
		n += find_input_cut(b, rec->weight[i]) == along;
	if (!n || !part.rows)
		return;
	if (along >= 0 && x->place[along].kind == TESS_REPLICATE)
		part = build_slice_local_cols(b, &part, x->dim[1], cut);
	s = build_add_op(b, TESS_OP_LINEAR, 1 + n, n);
	build_set_input(b, s, 0, &part);
	if (rec->nnum)
		build_set_numbers(b, &s->op, rec->nnum, rec->num);
	for (int32_t i = 0; i < rec->nweight && !b->status; i++) {
		const struct tess_weight *w = rec->weight[i];

		if (find_input_cut(b, w) != along)
			continue;
		build_set_weight(b, s, 1 + k, w);
		build_set_output(b, s, k++, build_get_value(b, rec->out[i]));
		if (k == 1)
			build_set_trees(b, &s->op, w->dim[w->in_dim], cut);
	}
}

/* Adds the op of a tile: columns y of an out, or a node of the sum over rows of the weight. */
static void add_linear_tile(struct build *b, const struct tess_record *rec,
                            const struct build_tile *tile, const struct value *y)
{
	const struct build_piece *piece = tile->piece;
	const struct tess_weight *w = rec->weight[piece->weight];
	const struct tess_tensor *x = rec->in[0];
	int32_t along = find_input_cut(b, w), axis = w->in_out;
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, along);
	struct tess_view part = build_describe_weight(b, w);
	struct value in = *build_get_value(b, x);
	struct tess_step *s;

	if (!in.rows)
		return;
	if (along >= 0 && x->place[along].kind == TESS_REPLICATE)
		in = build_slice_local_cols(b, &in, x->dim[1], cut);
	if (tile->sum)
		in = build_slice_value(&in, 0, in.rows, piece->row, piece->rows);
	s = build_add_op(b, TESS_OP_LINEAR, 2, 1);
	build_set_input(b, s, 0, &in);
	if (rec->nnum)
		build_set_numbers(b, &s->op, rec->nnum, rec->num);
	part.shape[axis] = piece->rows;
	build_set_weight_piece(b, s, 1, w, piece, &part, piece->row * part.stride[axis]);
	build_set_output(b, s, 0, y);
	if (tile->sum)
		build_set_tile_tree(b, &s->op, tile, y);
	else
		build_set_trees(b, &s->op, w->dim[w->in_dim], cut);
}

/* Adds the tiles of each weight by itself. */
static void lower_linear_tiles(struct build *b, const struct tess_record *rec,
                               const struct build_tiling *tiling)
{
	while (b->tile < tiling->ntiles && !b->status) {
		int32_t weight = tiling->tile[b->tile].piece->weight;

		build_add_tile(b, rec, build_get_value(b, rec->out[weight]), add_linear_tile);
	}
}

void build_add_linear(struct build *b, const struct tess_record *rec)
{
	const struct build_tiling *tiling = build_get_tiling(b);

	if (tiling) {
		lower_linear_tiles(b, rec, tiling);
		return;
	}
	for (int32_t i = -1; i < b->p->mesh.ndims; i++)
		lower_linear_group(b, rec, i);
}

/* Limits the bounds of the units of an op to the rows of a piece. */
static void move_bounds(struct build *b, struct tess_op *op, const struct build_piece *piece)
{
	int64_t n = op->tree->hi - op->tree->lo + 1, *bound = TESS_NEW(&b->l->arena, int64_t, n);

	if (!bound) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int64_t u = 0; u < n; u++) {
		int64_t at = op->term->bound[u] - piece->row;

		bound[u] = at < 0 ? 0 : at > piece->rows ? piece->rows : at;
	}
	((struct tess_term *)op->term)->bound = bound;
}

/* Looks up ids in a piece of the table, or in this rank's part; y of other ids is 0. */
static void add_embed_rows(struct build *b, const struct tess_record *rec,
                           const struct build_piece *piece, const struct value *y)
{
	const struct tess_weight *w = rec->weight[0];
	int32_t along = tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, 0);
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, along);
	struct value *ids = build_get_value(b, rec->in[0]);
	struct tess_view part = build_describe_weight(b, w);
	int64_t row = piece ? piece->row : 0;
	struct tess_step *s;
	double first;

	if (!ids->rows || b->status)
		return;
	tess_dim_list_local_runs(w->dim[0], cut, b->runs);
	first = (double)(b->runs[0].start + row) + rec->num[TESS_EMBED_FIRST];
	s = build_add_op(b, TESS_OP_EMBED, 2, 1);
	build_set_input(b, s, 0, ids);
	if (b->status)
		return;
	s->in[0].ndim = 1;
	part.shape[0] = piece ? piece->rows : part.shape[0];
	build_set_weight_piece(b, s, 1, w, piece, &part, row * part.stride[0]);
	build_set_output(b, s, 0, y);
	build_set_numbers(b, &s->op, TESS_EMBED_NUMS, &first);
	if (along >= 0)
		build_set_trees(b, &s->op, w->dim[0], cut);
	if (along >= 0 && piece && !b->status)
		move_bounds(b, &s->op, piece);
}

/* Adds what tiles of rows look up: each id is in one of them. */
static void lower_embed_tiles(struct build *b, const struct tess_record *rec,
                              const struct build_tiling *tiling)
{
	struct value *y = build_get_value(b, rec->out[0]), part;

	for (; b->tile < tiling->ntiles && !b->status; b->tile++) {
		const struct build_tile *tile = build_enter_tile(b);

		if (!b->tile) {
			add_embed_rows(b, rec, tile->piece, y);
			continue;
		}
		part = build_add_temporary(b, y->nodes, y->rows, y->cols, y->dtype);
		part.partial = y->partial;
		add_embed_rows(b, rec, tile->piece, &part);
		build_add_to_value(b, &part, y);
	}
}

void build_add_embed(struct build *b, const struct tess_record *rec)
{
	const struct build_tiling *tiling = build_get_tiling(b);

	if (rec->weight[0]->dim[0]->nparts)
		b->status = tess_fail(TESS_ENOTSUP,
		                      "%s: a vocabulary of several parts is not supported",
		                      rec->module);
	else if (tiling)
		lower_embed_tiles(b, rec, tiling);
	else
		add_embed_rows(b, rec, NULL, build_get_value(b, rec->out[0]));
}

void build_add_bias(struct build *b, const struct tess_record *rec)
{
	struct value *y = build_get_value(b, rec->in[0]), *out = build_get_value(b, rec->out[0]);
	const struct tess_weight *w = rec->weight[0];
	struct tess_cut cut = build_find_cut(b, rec->in[0]->place, 1);
	bool slice =
		cut.nranks > 1 && tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, 0) < 0;
	struct tess_view part = build_describe_weight(b, w);
	int64_t pieces = slice ? tess_dim_count_pieces(w->dim[0]) : 1, at = 0;

	b->runs[0] = (struct tess_run){ 0, part.shape[0] };
	if (slice)
		tess_dim_list_local_runs(w->dim[0], cut, b->runs);
	for (int64_t i = 0; i < pieces && y->rows; i++) {
		struct value from = build_slice_value(y, 0, y->rows, at, b->runs[i].len), to;
		struct tess_step *s = build_add_op(b, TESS_OP_BIAS, 2, 1);

		to = build_slice_value(out, 0, y->rows, at, b->runs[i].len);
		part.shape[0] = b->runs[i].len;
		build_set_input(b, s, 0, &from);
		build_set_weight_part(b, s, 1, w, &part, b->runs[i].start);
		build_set_output(b, s, 0, &to);
		build_allow_in_place(b, &from, &to); /* a single piece */
		at += b->runs[i].len;
	}
}

/* tiles.c - cuts records into tiles: ranges of outputs, or nodes of sums. */
#include "nn/lower/tiles.h"
#include "nn/program/storage.h"

#include <tessera/reduce.h>

/* Outputs of a tile are a multiple of this, as devices compute blocks of outputs. */
enum { TILE_OUTPUTS = 16 };

struct tile_plan { /* of a record */
	struct build *b;
	const struct tess_record *rec;
	struct build_tiling *out;
	uint64_t most; /* bytes of the pieces of a tile */
	const struct tess_op *sum;
	int32_t weight; /* the only one that the sum reads; -1: those that its terms name */
};

/* Returns the elements of a row of a weight as stored: of a tied head, of its table. */
static int64_t count_row_elements(const struct build *b, const struct tess_weight *w)
{
	const struct tess_weight *home = tess_weight_get_home(w);

	return tess_weight_get_local_size(b->p, home, b->l->rank, 1);
}

static int64_t count_stored_rows(const struct build *b, const struct tess_weight *w)
{
	return tess_weight_get_local_size(b->p, w, b->l->rank, 0);
}

/* Returns the bytes to gather for `rows` rows of a weight. */
static uint64_t count_gathered_bytes(const struct build *b, const struct tess_weight *w,
                                     int64_t rows)
{
	return build_is_gathered(b, w)
	               ? tess_width(w->dtype) * (uint64_t)(rows * count_row_elements(b, w))
	               : 0;
}

static struct build_tile *add_tile(struct tile_plan *t, int32_t npieces)
{
	struct tess_arena *arena = &t->b->l->arena;
	struct build_piece *piece = TESS_NEW(arena, struct build_piece, npieces);
	struct build_tile *list =
		tess_arena_grow(arena, t->out->tile, (size_t)t->out->ntiles, sizeof *list);

	if (!piece || !list) {
		t->b->status = TESS_ENOMEM;
		return NULL;
	}
	t->out->tile = list;
	list += t->out->ntiles++;
	*list = (struct build_tile){ .piece = piece };
	return list;
}

static void add_piece(struct tile_plan *t, struct build_tile *tile, int32_t weight, int64_t row,
                      int64_t rows)
{
	const struct tess_weight *w = t->rec->weight[weight];
	int64_t each = count_row_elements(t->b, w);
	int64_t before = each ? build_find_tied_part(t->b, w) / each : 0;

	tile->piece[tile->npieces++] = (struct build_piece){ .weight = weight,
		                                             .row = row,
		                                             .rows = rows,
		                                             .first = (before + row) * each,
		                                             .n = rows * each };
}

/* ---- ranges of outputs ----------------------------------------------------------------------- */

/*
 * Adds tiles of outputs [0, n), which n weights from `first` on have as rows, from start[] on.
 */
static void plan_outputs(struct tile_plan *t, int32_t first, int32_t nweights, int64_t n,
                         const int64_t *start)
{
	uint64_t each = 0;
	int64_t step = n;

	for (int32_t i = first; i < first + nweights; i++)
		each += count_gathered_bytes(t->b, t->rec->weight[i], 1);
	if (each && (uint64_t)n > t->most / each)
		step = (int64_t)(t->most / each);
	if (step > TILE_OUTPUTS && step < n)
		step -= step % TILE_OUTPUTS;
	step += !step;
	for (int64_t at = 0; at < n || !at; at += step) {
		int64_t some = step < n - at ? step : n - at;
		struct build_tile *tile = add_tile(t, nweights);

		if (!tile)
			return;
		tile->lo = at;
		tile->hi = at + some;
		for (int32_t i = 0; i < nweights; i++)
			add_piece(t, tile, first + i, (start ? start[i] : 0) + at, some);
	}
}

/* ---- nodes of sums --------------------------------------------------------------------------- */

struct tess_node build_get_half(int64_t n, const struct tess_node *node, int32_t side)
{
	int64_t at = 2 * node->at, mid = tess_edge(n, (int64_t)2 << node->depth, at + 1);

	return (struct tess_node){ .lo = side ? mid : node->lo,
		                   .hi = side ? node->hi : mid,
		                   .depth = node->depth + 1,
		                   .at = at + side };
}

static int32_t find_term_weight(const struct tile_plan *t, const struct tess_term *term)
{
	return t->weight < 0 ? term->operand : t->weight;
}

/* Returns the rows that a term adds to the units of a node. */
static struct tess_run find_term_rows(const struct tess_tree *tree, const struct tess_term *term,
                                      const struct tess_node *node)
{
	int64_t lo = term->bound[node->lo - tree->lo], hi = term->bound[node->hi - tree->lo];

	return (struct tess_run){ lo, hi - lo };
}

static void add_node_tile(struct tile_plan *t, int32_t tree, const struct tess_node *node)
{
	const struct tess_tree *of = &t->sum->tree[tree];
	struct build_tile *tile = add_tile(t, of->terms);

	if (!tile)
		return;
	tile->sum = t->sum;
	tile->tree = tree;
	tile->lo = node->lo;
	tile->hi = node->hi;
	for (int32_t i = of->first; i < of->first + of->terms; i++) {
		struct tess_run run = find_term_rows(of, &t->sum->term[i], node);

		if (!run.len && (tile->npieces || i < of->first + of->terms - 1))
			continue;
		if (!run.len) { /* an op has an operand: a row that no unit adds */
			run.start -= run.start > 0;
			run.len = 1;
		}
		add_piece(t, tile, find_term_weight(t, &t->sum->term[i]), run.start, run.len);
		tile->piece[tile->npieces - 1].term = i;
	}
}

/* Adds the tiles of a node: itself, or those of its halves that have rows. */
static void plan_node(struct tile_plan *t, int32_t tree, const struct tess_node *node)
{
	const struct tess_tree *of = &t->sum->tree[tree];
	uint64_t bytes = 0;

	for (int32_t i = of->first; i < of->first + of->terms; i++)
		bytes += count_gathered_bytes(t->b,
		                              t->rec->weight[find_term_weight(t, &t->sum->term[i])],
		                              find_term_rows(of, &t->sum->term[i], node).len);
	if (bytes <= t->most || node->hi - node->lo == 1) {
		add_node_tile(t, tree, node);
		return;
	}
	for (int32_t side = 0; side < 2; side++) {
		struct tess_node half = build_get_half(of->n, node, side);
		int64_t rows = 0;

		for (int32_t i = of->first; i < of->first + of->terms && half.hi > half.lo; i++)
			rows += find_term_rows(of, &t->sum->term[i], &half).len;
		if (rows)
			plan_node(t, tree, &half);
	}
}

/* Adds the tiles of all nodes of a sum that this rank adds. */
static void plan_tile_sum(struct tile_plan *t, const struct tess_op *sum, int32_t weight)
{
	t->sum = sum;
	t->weight = weight;
	for (int32_t i = 0; i < sum->ntree && !t->b->status; i++) {
		const struct tess_tree *tree = &sum->tree[i];
		struct tess_node node;
		int64_t at = tree->lo;

		while (tess_node_next(tree->n, tree->lo, tree->hi, &at, &node) && !t->b->status)
			plan_node(t, i, &node);
	}
}

/* ---- records --------------------------------------------------------------------------------- */

static struct tess_op *alloc_sum(struct build *b)
{
	struct tess_op *sum = TESS_NEW(&b->l->arena, struct tess_op, 1);

	if (!sum)
		b->status = TESS_ENOMEM;
	return sum;
}

/* Rows of a weight [out, in] are outputs, those of one [in, out] inputs, which are added. */
static void plan_linear(struct tile_plan *t)
{
	for (int32_t i = 0; i < t->rec->nweight && !t->b->status; i++) {
		const struct tess_weight *w = t->rec->weight[i];
		struct tess_op *sum;

		if (!w->in_out) {
			plan_outputs(t, i, 1, count_stored_rows(t->b, w), NULL);
			continue;
		}
		sum = alloc_sum(t->b);
		if (sum)
			build_set_trees(t->b, sum, w->dim[w->in_dim],
			                build_find_cut(t->b, w->place, w->in_dim));
		if (!t->b->status)
			plan_tile_sum(t, sum, i);
	}
}

static void plan_linear_dx(struct tile_plan *t)
{
	const struct tess_record *rec = t->rec;
	int64_t *start = TESS_NEW(&t->b->l->arena, int64_t, rec->nweight);
	struct tess_op *sum = alloc_sum(t->b);

	if (!start || !sum) {
		t->b->status = TESS_ENOMEM;
		return;
	}
	if (!rec->weight[0]->in_out) {
		build_add_dx_trees(t->b, sum, rec);
		if (!t->b->status)
			plan_tile_sum(t, sum, -1);
		return;
	}
	for (int32_t i = 0; i < rec->nweight; i++)
		start[i] = build_find_dx_columns(t->b, rec->weight[i], rec->out[0]).start;
	if (!t->b->status)
		plan_outputs(t, 0, rec->nweight, build_get_local_size(t->b, rec->out[0], 1), start);
}

/* Returns whether a record can have tiles: it reads matrices, whose rows all have one role. */
static bool can_have_tiles(const struct tess_record *rec)
{
	if (rec->kind != TESS_OP_LINEAR && rec->kind != TESS_OP_LINEAR_DX &&
	    rec->kind != TESS_OP_EMBED)
		return false;
	for (int32_t i = 0; i < rec->nweight; i++) {
		const struct tess_weight *w = rec->weight[i];

		if (w->ndim != 2 || w->in_out != rec->weight[0]->in_out ||
		    (w->in_out && tess_dim_count_pieces(w->dim[w->in_dim]) > 1))
			return false;
	}
	return true;
}

static void plan_record(struct build *b, const struct tess_record *rec, struct build_tiling *out)
{
	struct tile_plan t = { .b = b, .rec = rec, .out = out, .most = build_get_most_gathered(b) };
	uint64_t bytes = 0;

	if (!can_have_tiles(rec))
		return;
	for (int32_t i = 0; i < rec->nweight; i++)
		bytes += count_gathered_bytes(b, rec->weight[i],
		                              count_stored_rows(b, rec->weight[i]));
	if (bytes <= t.most)
		return;
	if (rec->kind == TESS_OP_LINEAR)
		plan_linear(&t);
	else if (rec->kind == TESS_OP_LINEAR_DX)
		plan_linear_dx(&t);
	else
		plan_outputs(&t, 0, 1, count_stored_rows(b, rec->weight[0]), NULL);
}

void build_plan_tiles(struct build *b)
{
	const struct tess_program *p = b->p;
	struct build_tiling *list = TESS_NEW(&b->l->arena, struct build_tiling, p->nrecords);

	b->tiling = list;
	if (!list)
		b->status = TESS_ENOMEM;
	for (int32_t i = 0; i < p->nrecords && p->tile && !b->status; i++)
		if (build_has_record(b, p->record[i]))
			plan_record(b, p->record[i], &list[i]);
}

const struct build_tiling *build_get_tiling(const struct build *b)
{
	const struct build_tiling *of = b->tiling ? &b->tiling[b->record] : NULL;

	return of && of->ntiles ? of : NULL;
}

const struct build_tile *build_enter_tile(struct build *b)
{
	if (b->tile)
		build_gather_weights(b);
	return &build_get_tiling(b)->tile[b->tile];
}

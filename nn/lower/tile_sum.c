/* tile_sum.c - adds tiles to a value: columns, or nodes of a sum, in the order of one op. */
#include "nn/lower/tiles.h"

struct tile_sum {
	struct build *b;
	const struct tess_record *rec;
	const struct build_tiling *tiling;
	const struct tess_op *of;
	build_tile_fn *add;
};

/* Returns the first unit of a node that is at `unit`, or the nearest one. */
static int64_t clamp_unit(const struct build_tile *tile, int64_t unit)
{
	return unit < tile->lo ? tile->lo : unit > tile->hi ? tile->hi : unit;
}

void build_set_tile_tree(struct build *b, struct tess_op *op, const struct build_tile *tile,
                         const struct value *y)
{
	const struct tess_tree *of = &tile->sum->tree[tile->tree];
	struct tess_tree *tree = TESS_NEW(&b->l->arena, struct tess_tree, 1);
	struct tess_term *term = TESS_NEW(&b->l->arena, struct tess_term, tile->npieces);

	if (!tree || !term) {
		b->status = TESS_ENOMEM;
		return;
	}
	/* a finished sum is over all units: those of other tiles have no elements here */
	*tree = (struct tess_tree){ .n = of->n,
		                    .lo = y->partial ? tile->lo : 0,
		                    .hi = y->partial ? tile->hi : of->n,
		                    .terms = tile->npieces };
	for (int32_t i = 0; i < tile->npieces; i++) {
		const int64_t *from = tile->sum->term[tile->piece[i].term].bound;
		int64_t *bound = TESS_NEW(&b->l->arena, int64_t, tree->hi - tree->lo + 1);

		if (!bound) {
			b->status = TESS_ENOMEM;
			return;
		}
		for (int64_t u = tree->lo; u <= tree->hi; u++)
			bound[u - tree->lo] =
				from[clamp_unit(tile, u) - of->lo] - tile->piece[i].row;
		term[i] = (struct tess_term){ .operand = i, .bound = bound };
	}
	op->ntree = 1;
	op->tree = tree;
	op->nterm = tile->npieces;
	op->term = term;
}

/* Makes room for a part of the sum y: a node, or a finished sum. */
static struct value add_part(struct build *b, const struct value *y, bool partial)
{
	struct value v = build_add_temporary(b, partial, y->rows, y->cols, y->dtype);

	v.partial = partial;
	return v;
}

/* Returns the current tile if it is in a node of a tree; else NULL. */
static const struct build_tile *find_tile_in(const struct tile_sum *s, int32_t tree,
                                             const struct tess_node *node)
{
	const struct build_tile *t = &s->tiling->tile[s->b->tile];

	return s->b->tile < s->tiling->ntiles && t->sum == s->of && t->tree == tree &&
	                       t->lo >= node->lo && t->hi <= node->hi
	               ? t
	               : NULL;
}

/*
 * Adds a node of a tree. Its leftmost tile is computed in y, and the other tiles are added to that.
 * A finished tile is never -0, so neither are sums with it, which need no finishing.
 */
static void add_tree_node(struct tile_sum *s, int32_t tree, const struct tess_node *node,
                          const struct value *y)
{
	const struct build_tile *t = find_tile_in(s, tree, node);
	bool first = true;

	if (!t || s->b->status)
		return;
	if (t->lo == node->lo && t->hi == node->hi) {
		s->add(s->b, s->rec, build_enter_tile(s->b), y);
		s->b->tile++;
		return;
	}
	for (int32_t side = 0; side < 2; side++) {
		struct tess_node half = build_get_half(s->of->tree[tree].n, node, side);
		struct value part;

		if (!find_tile_in(s, tree, &half))
			continue;
		if (first) {
			add_tree_node(s, tree, &half, y);
			first = false;
			continue;
		}
		part = add_part(s->b, y, true);
		add_tree_node(s, tree, &half, &part);
		build_add_to_value(s->b, &part, y);
	}
}

/* Adds the finished sums of trees [node->lo, node->hi), in the order of the tree over them. */
static void add_finished_trees(struct tile_sum *s, const struct tess_node *node,
                               const struct value *y)
{
	struct tess_node half[2], root;
	struct value part;

	if (node->hi - node->lo == 1) {
		root = (struct tess_node){ .hi = s->of->tree[node->lo].n };
		add_tree_node(s, (int32_t)node->lo, &root, y);
		return;
	}
	for (int32_t side = 0; side < 2; side++)
		half[side] = build_get_half(s->of->ntree, node, side);
	if (half[0].lo == half[0].hi || half[1].lo == half[1].hi) {
		add_finished_trees(s, &half[half[0].lo == half[0].hi], y);
		return;
	}
	add_finished_trees(s, &half[0], y);
	part = add_part(s->b, y, false);
	add_finished_trees(s, &half[1], &part);
	build_add_to_value(s->b, &part, y);
}

/* Adds the nodes of this rank: each is a node of y; with inexact sums all are added to one. */
static void add_local_nodes(struct tile_sum *s, const struct value *y)
{
	bool exact = tess_program_is_exact(s->b->p);
	struct value to = *y, part;

	if (to.partial)
		to.nodes = 1;
	for (int32_t i = 0, count = 0; i < s->of->ntree; i++) {
		const struct tess_tree *tree = &s->of->tree[i];
		struct tess_node node;
		int64_t at = tree->lo;

		for (; tess_node_next(tree->n, tree->lo, tree->hi, &at, &node); count++) {
			if (exact || !count) {
				add_tree_node(s, i, &node, &to);
				to.offset += 4 * (uint64_t)(exact ? to.node_stride : 0);
				continue;
			}
			part = add_part(s->b, y, true);
			add_tree_node(s, i, &node, &part);
			build_add_to_value(s->b, &part, &to);
		}
	}
}

void build_add_tile(struct build *b, const struct tess_record *rec, const struct value *y,
                    build_tile_fn *add)
{
	const struct build_tiling *tiling = build_get_tiling(b);
	const struct build_tile *tile = &tiling->tile[b->tile];
	struct tile_sum s = { b, rec, tiling, tile->sum, add };
	struct value part;

	if (!tile->sum) {
		part = build_slice_value(y, 0, y->rows, tile->lo, tile->hi - tile->lo);
		add(b, rec, build_enter_tile(b), &part);
		b->tile++;
		return;
	}
	if (y->partial || !tess_program_is_exact(b->p))
		add_local_nodes(&s, y);
	else
		add_finished_trees(&s, &(struct tess_node){ .hi = s.of->ntree }, y);
}

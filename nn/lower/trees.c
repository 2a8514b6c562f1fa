/* trees.c - the order of the additions of a contraction over a dim, and a rank's share of it. */
#include "nn/lower/build.h"

/*
 * The distinct bases of pieces in order, found by a hash of their addresses: parts with a common
 * base are one tree, and a step of thousands of sequences has as many bases.
 */
struct tree_bases {
	const struct tess_dim **base;
	int32_t n;
	int32_t *slot; /* 1 + an index; 0: free */
	uint64_t mask;
};

/* Makes room for the bases of `pieces` pieces. False: out of memory. */
static bool make_bases(struct tess_arena *arena, int64_t pieces, struct tree_bases *out)
{
	*out = (struct tree_bases){ .mask = 1 };
	while (out->mask < 2 * (uint64_t)pieces)
		out->mask = 2 * out->mask + 1;
	out->base = TESS_NEW(arena, const struct tess_dim *, pieces);
	out->slot = TESS_NEW(arena, int32_t, out->mask + 1);
	return out->base && out->slot;
}

/* Returns the index of the base of a piece, which is added if it is new. */
static int32_t add_base(struct tree_bases *l, const struct tess_dim *piece)
{
	uint64_t at = ((uintptr_t)piece->base * UINT64_C(0x9e3779b97f4a7c15)) >> 32;

	for (at &= l->mask; l->slot[at]; at = (at + 1) & l->mask)
		if (l->base[l->slot[at] - 1] == piece->base)
			return l->slot[at] - 1;
	l->base[l->n] = piece->base;
	l->slot[at] = ++l->n;
	return l->n - 1;
}

int32_t tess_dim_list_trees(struct tess_arena *arena, const struct tess_dim *dim, const int64_t **n)
{
	static const int64_t one = 1;
	int64_t pieces = dim ? tess_dim_count_pieces(dim) : 0;
	int64_t *units = TESS_NEW(arena, int64_t, pieces);
	struct tree_bases bases;

	*n = dim ? units : &one;
	if (!dim || !units || !make_bases(arena, pieces, &bases))
		return dim ? 0 : 1;
	for (int64_t i = 0; i < pieces; i++)
		add_base(&bases, tess_dim_take_piece(dim, i));
	for (int32_t i = 0; i < bases.n; i++)
		units[i] = bases.base[i]->nunits;
	return bases.n;
}

struct held_piece { /* a piece of an operand's axis, and its part on the local axis */
	const struct tess_dim *piece;
	int32_t operand;
	int32_t next; /* 1 + the index of the next piece of its tree; 0: the last one */
	struct tess_run run;
	int64_t at, local; /* the start of the piece, and of its part on the local axis */
};

/* Lists the pieces of all n operands. Returns their number; -1: out of memory. */
static int64_t list_held_pieces(struct build *b, int32_t n, const struct build_operand *x,
                                struct held_piece **out)
{
	int64_t all = 0, k = 0;
	struct held_piece *held;
	struct tess_run *runs;

	for (int32_t i = 0; i < n; i++)
		all += tess_dim_count_pieces(x[i].dim);
	*out = held = TESS_NEW(&b->l->arena, struct held_piece, all);
	runs = TESS_NEW(&b->l->arena, struct tess_run, all);
	if (!held || !runs)
		return -1;
	for (int32_t i = 0; i < n; i++) {
		int64_t pieces = tess_dim_count_pieces(x[i].dim), at = 0, local = 0;

		tess_dim_list_local_runs(x[i].dim, x[i].held, runs);
		for (int64_t a = 0; a < pieces; a++, k++) {
			held[k] = (struct held_piece){ .piece = tess_dim_take_piece(x[i].dim, a),
				                       .operand = i,
				                       .run = runs[a],
				                       .at = at,
				                       .local = local };
			at += held[k].piece->size;
			local += runs[a].len;
		}
	}
	return all;
}

/* Lists the offsets on the local axis of an operand at which units [lo, hi] of a piece begin. */
static const int64_t *list_bounds(struct build *b, const struct held_piece *h, int64_t lo,
                                  int64_t hi)
{
	int64_t *bound = TESS_NEW(&b->l->arena, int64_t, hi - lo + 1);

	for (int64_t u = lo; u <= hi && bound; u++)
		bound[u - lo] = h->local +
		                tess_runs_get_local_index(
					&h->run, 1, h->at + tess_dim_get_unit_start(h->piece, u));
	if (!bound)
		b->status = TESS_ENOMEM;
	return bound;
}

/* Appends the term of a piece to its tree; tree->lo and hi are those of `cut`. */
static void add_term(struct build *b, struct tess_op *op, struct tess_term *term,
                     struct tess_tree *tree, const struct held_piece *h, struct tess_cut cut)
{
	tess_dim_get_rank_units(h->piece, cut.nranks, cut.rank, &tree->lo, &tree->hi);
	term[op->nterm++] = (struct tess_term){ .operand = h->operand,
		                                .bound = list_bounds(b, h, tree->lo, tree->hi) };
}

/* Links the pieces of each tree in order: first[t] is 1 + the index of the first one. */
static void link_pieces(struct held_piece *held, int64_t n, struct tree_bases *bases,
                        int32_t *first, int32_t *last)
{
	for (int32_t k = 0; k < n; k++) {
		int32_t t = add_base(bases, held[k].piece);

		*(last[t] ? &held[last[t] - 1].next : &first[t]) = k + 1;
		last[t] = k + 1;
	}
}

void build_add_trees(struct build *b, struct tess_op *op, int32_t n, const struct build_operand *x,
                     struct tess_cut cut)
{
	struct held_piece *held;
	int64_t pieces = list_held_pieces(b, n, x, &held), room = pieces > 0 ? pieces : 0;
	int32_t *first = TESS_NEW(&b->l->arena, int32_t, room);
	int32_t *last = TESS_NEW(&b->l->arena, int32_t, room);
	struct tess_term *term = TESS_NEW(&b->l->arena, struct tess_term, op->nterm + room);
	struct tess_tree *tree = TESS_NEW(&b->l->arena, struct tess_tree, op->ntree + room);
	struct tree_bases bases;

	if (!make_bases(&b->l->arena, room, &bases) || pieces < 0 || !first || !last || !term ||
	    !tree) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i < op->nterm; i++)
		term[i] = op->term[i];
	for (int32_t i = 0; i < op->ntree; i++)
		tree[i] = op->tree[i];
	link_pieces(held, pieces, &bases, first, last);
	for (int32_t t = 0; t < bases.n && !b->status; t++) {
		struct tess_tree *one = &tree[op->ntree++];

		*one = (struct tess_tree){ .n = bases.base[t]->nunits, .first = op->nterm };
		for (int32_t k = first[t]; k && !b->status; k = held[k - 1].next)
			add_term(b, op, term, one, &held[k - 1], cut);
		one->terms = op->nterm - one->first;
	}
	op->tree = tree;
	op->term = term;
}

void build_set_trees(struct build *b, struct tess_op *op, const struct tess_dim *dim,
                     struct tess_cut cut)
{
	build_add_trees(b, op, 1, &(struct build_operand){ dim, cut }, cut);
}

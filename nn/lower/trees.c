/* trees.c - the order of the additions of a contraction over a dim, and a rank's share of it. */
#include "nn/lower/build.h"

/* Adds the distinct bases of a dim's pieces to base[n]: parts with a common base are one tree. */
static int32_t add_bases(const struct tess_dim *dim, const struct tess_dim **base, int32_t n)
{
	for (int64_t i = 0; i < tess_dim_count_pieces(dim); i++) {
		int64_t at;
		const struct tess_dim *b = tess_dim_get_piece(dim, i, &at)->base;
		int32_t k = 0;

		while (k < n && base[k] != b)
			k++;
		if (k == n)
			base[n++] = b;
	}
	return n;
}

int32_t tess_dim_list_trees(struct tess_arena *arena, const struct tess_dim *dim, const int64_t **n)
{
	static const int64_t one = 1;
	int64_t pieces = dim ? tess_dim_count_pieces(dim) : 0;
	const struct tess_dim **base = TESS_NEW(arena, const struct tess_dim *, pieces);
	int64_t *units = TESS_NEW(arena, int64_t, pieces);
	int32_t count;

	*n = dim ? units : &one;
	if (!dim || !base || !units)
		return dim ? 0 : 1;
	count = add_bases(dim, base, 0);
	for (int32_t i = 0; i < count; i++)
		units[i] = base[i]->nunits;
	return count;
}

/* Lists the offsets on the local axis of an operand at which units [lo, hi] of a piece begin. */
static const int64_t *list_bounds(struct build *b, const struct build_operand *x, int64_t piece,
                                  const struct tess_run *runs, int64_t lo, int64_t hi)
{
	int64_t at, *bound = TESS_NEW(&b->l->arena, int64_t, hi - lo + 1);
	const struct tess_dim *d = tess_dim_get_piece(x->dim, piece, &at);

	for (int64_t u = lo; u <= hi && bound; u++)
		bound[u - lo] = tess_runs_get_local_index(runs, tess_dim_count_pieces(x->dim),
		                                          at + tess_dim_get_unit_start(d, u));
	if (!bound)
		b->status = TESS_ENOMEM;
	return bound;
}

/* Appends the terms of an operand to the tree over `base`; tree->lo and hi are those of `cut`. */
static void add_terms(struct build *b, struct tess_op *op, struct tess_term *term,
                      struct tess_tree *tree, const struct tess_dim *base, int32_t operand,
                      const struct build_operand *x, struct tess_cut cut)
{
	int64_t pieces = tess_dim_count_pieces(x->dim), at;
	struct tess_run *runs = TESS_NEW(&b->l->arena, struct tess_run, pieces);

	if (!runs) {
		b->status = TESS_ENOMEM;
		return;
	}
	tess_dim_list_local_runs(x->dim, x->held, runs);
	for (int64_t i = 0; i < pieces; i++) {
		const struct tess_dim *piece = tess_dim_get_piece(x->dim, i, &at);

		if (piece->base != base)
			continue;
		tess_dim_get_rank_units(piece, cut.nranks, cut.rank, &tree->lo, &tree->hi);
		term[op->nterm++] = (struct tess_term){
			.operand = operand, .bound = list_bounds(b, x, i, runs, tree->lo, tree->hi)
		};
	}
}

void build_add_trees(struct build *b, struct tess_op *op, int32_t n, const struct build_operand *x,
                     struct tess_cut cut)
{
	int64_t pieces = 0;
	const struct tess_dim **base;
	struct tess_term *term;
	struct tess_tree *tree;
	int32_t nbases = 0;

	for (int32_t i = 0; i < n; i++)
		pieces += tess_dim_count_pieces(x[i].dim);
	base = TESS_NEW(&b->l->arena, const struct tess_dim *, pieces);
	term = TESS_NEW(&b->l->arena, struct tess_term, op->nterm + pieces);
	tree = TESS_NEW(&b->l->arena, struct tess_tree, op->ntree + pieces);
	if (!base || !term || !tree) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i < op->nterm; i++)
		term[i] = op->term[i];
	for (int32_t i = 0; i < op->ntree; i++)
		tree[i] = op->tree[i];
	for (int32_t i = 0; i < n; i++)
		nbases = add_bases(x[i].dim, base, nbases);
	for (int32_t t = 0; t < nbases && !b->status; t++) {
		struct tess_tree *one = &tree[op->ntree++];

		*one = (struct tess_tree){ .n = base[t]->nunits, .first = op->nterm };
		for (int32_t i = 0; i < n && !b->status; i++)
			add_terms(b, op, term, one, base[t], i, &x[i], cut);
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

/* trees.c - the order in which a contraction over a dim is added, and a rank's share of it. */
#include "nn/build.h"

int64_t tess_dim_list_local_runs(const struct tess_dim *d, struct tess_cut cut,
                                 struct tess_run *runs)
{
	int64_t n = 0;

	tess_dim_get_local_runs(d, cut.nranks, cut.rank, runs);
	for (int64_t i = 0; i < tess_dim_count_pieces(d); i++)
		n += runs[i].len;
	return n;
}

/*
 * The distinct bases of a dim's pieces, in order, into base[tess_dim_count_pieces]: parts with a
 * common base are added in one tree.
 */
static int32_t list_bases(const struct tess_dim *dim, const struct tess_dim **base)
{
	int32_t n = 0;

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
	count = list_bases(dim, base);
	for (int32_t i = 0; i < count; i++)
		units[i] = base[i]->nunits;
	return count;
}

void build_set_trees(struct build *b, struct tess_op *op, const struct tess_dim *dim,
                     struct tess_cut cut)
{
	int64_t pieces = tess_dim_count_pieces(dim);
	const struct tess_dim **base = TESS_NEW(&b->l->arena, const struct tess_dim *, pieces);
	struct tess_run *runs = TESS_NEW(&b->l->arena, struct tess_run, pieces);
	struct tess_term *term = TESS_NEW(&b->l->arena, struct tess_term, pieces);
	struct tess_tree *tree = TESS_NEW(&b->l->arena, struct tess_tree, pieces);
	int32_t n, nterm = 0;

	if (!base || !runs || !term || !tree) {
		b->status = TESS_ENOMEM;
		return;
	}
	n = list_bases(dim, base);
	tess_dim_list_local_runs(dim, cut, runs);
	for (int32_t t = 0; t < n; t++) {
		tree[t].n = base[t]->nunits;
		tree[t].first = nterm;
		for (int64_t i = 0; i < pieces; i++) {
			int64_t at, *bound;
			const struct tess_dim *piece = tess_dim_get_piece(dim, i, &at);

			if (piece->base != base[t])
				continue;
			tess_dim_get_rank_units(piece, cut.nranks, cut.rank, &tree[t].lo,
			                        &tree[t].hi);
			bound = TESS_NEW(&b->l->arena, int64_t, tree[t].hi - tree[t].lo + 1);
			for (int64_t u = tree[t].lo; u <= tree[t].hi && bound; u++)
				bound[u - tree[t].lo] = tess_runs_get_local_index(
					runs, pieces, at + tess_dim_get_unit_start(piece, u));
			term[nterm++].bound = bound;
			b->status = bound ? b->status : TESS_ENOMEM;
		}
		tree[t].terms = nterm - tree[t].first;
	}
	op->ntree = n;
	op->tree = tree;
	op->nterm = nterm;
	op->term = term;
}

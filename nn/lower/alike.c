/* alike.c - finds ranks whose steps differ only in which elements they hold, not in how many. */
#include "nn/lower/build.h"

#include <tessera/reduce.h>

struct distinct_dims { /* the distinct dims of values and weights */
	const struct tess_dim **dim;
	int32_t n;
};

static void add_dim(struct distinct_dims *l, const struct tess_dim *dim)
{
	int32_t i = 0;

	while (i < l->n && l->dim[i] != dim)
		i++;
	if (i == l->n)
		l->dim[l->n++] = dim;
}

static tess_status list_dims(const struct tess_program *p, struct tess_arena *arena,
                             struct distinct_dims *l)
{
	int32_t most = 0;

	for (int32_t i = 0; i < p->nweights; i++)
		most += p->weight[i]->ndim;
	for (int32_t i = 0; i < p->nrecords; i++)
		for (int32_t k = 0; k < p->record[i]->nout; k++)
			most += p->record[i]->out[k]->ndim;
	l->dim = TESS_NEW(arena, const struct tess_dim *, most);
	if (!l->dim)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nweights; i++)
		for (int32_t a = 0; a < p->weight[i]->ndim; a++)
			add_dim(l, p->weight[i]->dim[a]);
	for (int32_t i = 0; i < p->nrecords; i++)
		for (int32_t k = 0; k < p->record[i]->nout; k++)
			for (int32_t a = 0; a < p->record[i]->out[k]->ndim; a++)
				add_dim(l, p->record[i]->out[k]->dim[a]);
	return TESS_OK;
}

/* Returns true if parts a and b of n of a dim have equal numbers of elements, units and nodes. */
static bool match_parts(const struct tess_dim *dim, int32_t n, int32_t a, int32_t b)
{
	for (int64_t i = 0; i < tess_dim_count_pieces(dim); i++) {
		int64_t lo[2], hi[2], units;
		const struct tess_dim *piece = tess_dim_take_piece(dim, i);

		units = tess_dim_count_units(piece);
		tess_dim_get_rank_units(piece, n, a, &lo[0], &hi[0]);
		tess_dim_get_rank_units(piece, n, b, &lo[1], &hi[1]);
		if (hi[0] - lo[0] != hi[1] - lo[1] ||
		    tess_node_count(units, lo[0], hi[0]) != tess_node_count(units, lo[1], hi[1]) ||
		    tess_dim_get_local_size(piece, n, a) != tess_dim_get_local_size(piece, n, b) ||
		    tess_dim_get_owned_size(piece, n, a) != tess_dim_get_owned_size(piece, n, b))
			return false;
	}
	return true;
}

struct exchange_size { /* the exchange of one coordinate */
	int64_t kept; /* elements */
	int32_t to, from; /* number of coordinates it exchanges with, itself included */
};

static struct exchange_size measure_exchange(const struct tess_record *rec, int32_t n, int32_t at)
{
	const struct tess_dim *own = rec->in[0]->dim[1], *hold = rec->out[0]->dim[1];
	struct exchange_size s = { .kept = build_find_exchanged(own, hold, n, at, at).len };

	for (int32_t q = 0; q < n; q++) {
		s.to += build_find_exchanged(own, hold, n, at, q).len > 0;
		s.from += build_find_exchanged(own, hold, n, q, at).len > 0;
	}
	return s;
}

/* Returns whether a coordinate is the root of a hook's collective, which does more than others. */
static bool is_root(const struct tess_record *rec, int32_t at)
{
	int32_t kind = (int32_t)rec->num[TESS_REC_COLLECTIVE_KIND];

	return tess_kind_rooted(kind) && at == (int32_t)rec->num[TESS_REC_COLLECTIVE_RANK];
}

/* Returns true if coordinates a and b of n exchange with equal numbers of others, and as much. */
static bool match_exchanges(const struct tess_program *p, int32_t along, int32_t a, int32_t b)
{
	int32_t n = p->mesh.dim[along].size;

	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		struct exchange_size one, other;

		if (rec->kind == TESS_REC_COLLECTIVE && rec->along == along &&
		    is_root(rec, a) != is_root(rec, b))
			return false;
		if (rec->kind != TESS_REC_EXCHANGE || rec->along != along)
			continue;
		one = measure_exchange(rec, n, a);
		other = measure_exchange(rec, n, b);
		if (one.kept != other.kept || one.to != other.to || one.from != other.from)
			return false;
	}
	return true;
}

/* Returns the first coordinate along mesh dimension `along` that stands for `at`. */
static int32_t find_first_coordinate(const struct tess_program *p, const struct distinct_dims *l,
                                     const int32_t *first, int32_t along, int32_t at, bool most)
{
	int32_t n = p->mesh.dim[along].size;
	/* rank 0 holds single terms, and the logits may be on one rank only */
	int32_t root = p->logits_root < 0
	                       ? 0
	                       : tess_mesh_shape_coordinate(&p->mesh, along, p->logits_root);

	if (along == p->pipeline_along)
		return at;
	for (int32_t c = !most; c < at && at != root; c++) {
		int32_t i = 0;

		if (first[c] != c || (c == root && !most))
			continue;
		while (i < l->n && match_parts(l->dim[i], n, c, at))
			i++;
		if (i == l->n && match_exchanges(p, along, c, at))
			return c;
	}
	return at;
}

tess_status tess_program_find_alike(const struct tess_program *p, bool most, int32_t *first)
{
	struct tess_arena arena = { 0 };
	struct distinct_dims dims = { 0 };
	tess_status st = list_dims(p, &arena, &dims);

	for (int32_t r = 0; r < p->mesh.nranks; r++)
		first[r] = 0;
	for (int32_t d = 0; d < p->mesh.ndims && !st; d++) {
		int32_t n = p->mesh.dim[d].size;
		int32_t *coordinate = TESS_NEW(&arena, int32_t, n);

		if (!coordinate)
			st = TESS_ENOMEM;
		for (int32_t c = 0; c < n && !st; c++)
			coordinate[c] = find_first_coordinate(p, &dims, coordinate, d, c, most);
		for (int32_t r = 0; r < p->mesh.nranks && !st; r++)
			first[r] += coordinate[tess_mesh_shape_coordinate(&p->mesh, d, r)] *
			            p->mesh.dim[d].stride;
	}
	tess_arena_free(&arena);
	return st;
}

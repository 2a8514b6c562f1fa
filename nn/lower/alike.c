/* alike.c - finds ranks whose steps differ only in which elements they hold, not in how many. */
#include "nn/lower/build.h"
#include "nn/program/storage.h"

#include <tessera/reduce.h>

struct exchange_size { /* the exchange of one coordinate */
	int64_t kept; /* elements */
	int32_t to, from; /* number of coordinates it exchanges with, itself included */
};

struct distinct { /* what ranks may differ in, without repetition */
	const struct tess_dim **dim; /* of values and weights */
	struct distinct_call {
		const struct tess_record *record; /* a collective of a hook, or an exchange */
		struct exchange_size *size; /* of an exchange, by coordinate */
	} * call;
	int32_t ndims, ncalls;
};

static void add_dim(struct distinct *l, const struct tess_dim *dim)
{
	int32_t i = 0;

	while (i < l->ndims && l->dim[i] != dim)
		i++;
	if (i == l->ndims)
		l->dim[l->ndims++] = dim;
}

static tess_status list_dims(const struct tess_program *p, struct tess_arena *arena,
                             struct distinct *l)
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

/* Returns whether two records exchange the same elements. */
static bool match_records(const struct tess_record *x, const struct tess_record *y)
{
	return x->kind == TESS_REC_EXCHANGE && y->kind == x->kind && x->along == y->along &&
	       x->in[0]->dim[1] == y->in[0]->dim[1] && x->out[0]->dim[1] == y->out[0]->dim[1];
}

/* Measures the exchange of each of n coordinates. */
static struct exchange_size *measure_exchange(struct tess_arena *arena,
                                              const struct tess_record *rec, int32_t n)
{
	struct exchange_size *size = TESS_NEW(arena, struct exchange_size, n);
	struct tess_run *own = TESS_NEW(arena, struct tess_run, n);
	struct tess_run *hold = TESS_NEW(arena, struct tess_run, n);

	if (!size || !own || !hold)
		return NULL;
	for (int32_t q = 0; q < n; q++) {
		tess_dim_get_owned_runs(rec->in[0]->dim[1], n, q, &own[q]);
		tess_dim_get_local_runs(rec->out[0]->dim[1], n, q, &hold[q]);
		size[q].kept = build_intersect_runs(own[q], hold[q]).len;
	}
	for (int32_t q = 0; q < n; q++)
		for (int32_t r = 0; r < n; r++) {
			bool moves = build_intersect_runs(own[q], hold[r]).len > 0;

			size[q].to += moves;
			size[r].from += moves;
		}
	return size;
}

static tess_status note_call(const struct tess_program *p, struct tess_arena *arena,
                             struct distinct *l, const struct tess_record *rec)
{
	int32_t i = 0;

	while (i < l->ncalls && !match_records(l->call[i].record, rec))
		i++;
	if (i < l->ncalls)
		return TESS_OK;
	l->call[l->ncalls++].record = rec;
	if (rec->kind != TESS_REC_EXCHANGE)
		return TESS_OK;
	l->call[i].size = measure_exchange(arena, rec, p->mesh.dim[rec->along].size);
	return l->call[i].size ? TESS_OK : TESS_ENOMEM;
}

static tess_status list_calls(const struct tess_program *p, struct tess_arena *arena,
                              struct distinct *l)
{
	int32_t most = 0;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nrecords; i++)
		most += p->record[i]->kind == TESS_REC_COLLECTIVE ||
		        p->record[i]->kind == TESS_REC_EXCHANGE;
	l->call = TESS_NEW(arena, struct distinct_call, most);
	if (!l->call)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < p->nrecords && !st; i++)
		if (p->record[i]->kind == TESS_REC_COLLECTIVE ||
		    p->record[i]->kind == TESS_REC_EXCHANGE)
			st = note_call(p, arena, l, p->record[i]);
	return st;
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

/* Returns whether a coordinate is the root of a hook's collective, which does more than others. */
static bool is_root(const struct tess_record *rec, int32_t at)
{
	int32_t kind = (int32_t)rec->num[TESS_REC_COLLECTIVE_KIND];

	return tess_kind_rooted(kind) && at == (int32_t)rec->num[TESS_REC_COLLECTIVE_RANK];
}

/* Returns true if coordinates a and b exchange with equal numbers of others, and as much. */
static bool match_exchanges(const struct distinct *l, int32_t along, int32_t a, int32_t b)
{
	for (int32_t i = 0; i < l->ncalls; i++) {
		const struct tess_record *rec = l->call[i].record;
		const struct exchange_size *size = l->call[i].size;

		if (rec->kind == TESS_REC_COLLECTIVE && rec->along == along &&
		    is_root(rec, a) != is_root(rec, b))
			return false;
		if (rec->kind != TESS_REC_EXCHANGE || rec->along != along)
			continue;
		if (size[a].kept != size[b].kept || size[a].to != size[b].to ||
		    size[a].from != size[b].from)
			return false;
	}
	return true;
}

/*
 * Returns whether ranks x and y keep shares of equal sizes of a weight. If it is in files, both or
 * none must own it: only owners read its gradient for a norm.
 */
static bool match_stored_share(const struct tess_program *p, const struct tess_weight *w, int32_t x,
                               int32_t y)
{
	if (tess_weight_get_kept(p, w, x, TESS_REST).len !=
	            tess_weight_get_kept(p, w, y, TESS_REST).len ||
	    tess_weight_get_kept(p, w, x, TESS_STATE).len !=
	            tess_weight_get_kept(p, w, y, TESS_STATE).len)
		return false;
	return !tess_weight_is_fetched(p, w, x) ||
	       !tess_weight_get_copy(p, w, x, TESS_STATE) ==
	               !tess_weight_get_copy(p, w, y, TESS_STATE);
}

/* Returns whether coordinates a and b along dp match in their shares of all weights. */
static bool match_stored_shares(const struct tess_program *p, int32_t a, int32_t b)
{
	int32_t stride = p->mesh.dim[p->data_along].stride;

	for (int32_t r = 0; r < p->mesh.nranks; r++) {
		if (tess_mesh_shape_coordinate(&p->mesh, p->data_along, r))
			continue;
		for (int32_t i = 0; i < p->nweights; i++)
			if (!match_stored_share(p, p->weight[i], r + a * stride, r + b * stride))
				return false;
	}
	return true;
}

/* Returns the first coordinate along mesh dimension `along` that stands for `at`. */
static int32_t find_first_coordinate(const struct tess_program *p, const struct distinct *l,
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
		while (i < l->ndims && match_parts(l->dim[i], n, c, at))
			i++;
		if (i == l->ndims && match_exchanges(l, along, c, at) &&
		    (most || along != p->data_along || match_stored_shares(p, c, at)))
			return c;
	}
	return at;
}

tess_status tess_program_find_alike(const struct tess_program *p, bool most, int32_t *first)
{
	struct tess_arena arena = { 0 };
	struct distinct list = { 0 };
	tess_status st = list_dims(p, &arena, &list);

	if (!st)
		st = list_calls(p, &arena, &list);
	for (int32_t r = 0; r < p->mesh.nranks; r++)
		first[r] = 0;
	for (int32_t d = 0; d < p->mesh.ndims && !st; d++) {
		int32_t n = p->mesh.dim[d].size;
		int32_t *coordinate = TESS_NEW(&arena, int32_t, n);

		if (!coordinate)
			st = TESS_ENOMEM;
		for (int32_t c = 0; c < n && !st; c++)
			coordinate[c] = find_first_coordinate(p, &list, coordinate, d, c, most);
		for (int32_t r = 0; r < p->mesh.nranks && !st; r++)
			first[r] += coordinate[tess_mesh_shape_coordinate(&p->mesh, d, r)] *
			            p->mesh.dim[d].stride;
	}
	tess_arena_free(&arena);
	return st;
}

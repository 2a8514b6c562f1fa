/* dtensor.c - distributed tensors of programs: tessera/dtensor.h. */
#include "core/dtensor/dtensor.h"

#include "core/base/sized.h"
#include "core/world/buffer.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

/* ---- parts of ranks -------------------------------------------------------------------------- */

struct tess_cut tess_dtensor_get_cut(const struct tess_dtensor *t, int32_t rank, int32_t along)
{
	return (struct tess_cut){ t->ranks->dim[along].size,
		                  tess_mesh_shape_coordinate(t->ranks, along, rank) };
}

/*
 * Makes the dim of what a rank holds of piece i of an axis by the cuts along the first n mesh
 * dimensions: each cuts what those before it leave. Returns where it starts in the axis.
 */
static int64_t nest_piece(const struct tess_dtensor *t, const struct tess_place *places,
                          int32_t rank, int32_t n, int32_t axis, int64_t i, struct tess_dim *out)
{
	int64_t start;
	const struct tess_dim *piece = tess_dim_get_piece(t->dim[axis], i, &start);

	*out = *piece;
	for (int32_t k = 0; k < n; k++)
		if (tess_place_is(places[k], TESS_SHARD, axis)) {
			start += tess_dim_nest(piece, tess_dtensor_get_cut(t, rank, k), out);
			piece = out;
		}
	return start;
}

const struct tess_dim *tess_dtensor_nest_axis(const struct tess_dtensor *t,
                                              const struct tess_place *places, int32_t rank,
                                              int32_t n, int32_t axis, struct tess_arena *arena)
{
	int64_t npieces = tess_dim_count_pieces(t->dim[axis]);
	const struct tess_dim **list;
	struct tess_dim *d;

	if (tess_places_find(places, n, TESS_SHARD, axis) < 0)
		return t->dim[axis];
	list = TESS_NEW(arena, const struct tess_dim *, npieces);
	d = TESS_NEW(arena, struct tess_dim, 1 + npieces);
	if (!list || !d)
		return NULL;
	*d = (struct tess_dim){ .name = "axis", .nparts = npieces, .parts = list };
	for (int64_t i = 0; i < npieces; i++) {
		nest_piece(t, places, rank, n, axis, i, &d[1 + i]);
		list[i] = &d[1 + i];
		d->size += list[i]->size;
	}
	return d;
}

void tess_dtensor_compute_shape(const struct tess_dtensor *t, const struct tess_place *places,
                                int32_t rank, int64_t *shape)
{
	for (int32_t a = 0; a < t->spec.ndim; a++) {
		struct tess_dim held;

		shape[a] = 0;
		for (int64_t i = 0; i < tess_dim_count_pieces(t->dim[a]); i++) {
			nest_piece(t, places, rank, t->ranks->ndims, a, i, &held);
			shape[a] += held.size;
		}
	}
}

int64_t tess_dtensor_count_elements(const struct tess_dtensor *t, const int64_t *shape)
{
	int64_t n = 1;

	for (int32_t a = 0; a < t->spec.ndim; a++)
		n *= shape[a];
	return n;
}

size_t tess_dtensor_count_bytes(const struct tess_dtensor *t, const int64_t *shape)
{
	return tess_width(t->spec.dtype) * (size_t)tess_dtensor_count_elements(t, shape);
}

void tess_dtensor_replicate(const struct tess_dtensor *t, struct tess_place *places)
{
	for (int32_t i = 0; i < t->ranks->ndims; i++)
		places[i] = tess_place_replicate();
}

/* Finds the world rank that an argument names; -1: this rank. Returns -1 if it does not exist. */
static int32_t find_rank(const struct tess_dtensor *t, int32_t rank)
{
	return rank == -1 ? t->rank : rank < 0 || rank >= t->ranks->nranks ? -1 : rank;
}

tess_status tess_dtensor_get_local_shape(const struct tess_dtensor *t, int32_t rank, int64_t *shape)
{
	tess_status st = TESS_REQUIRE(t, shape);

	if (!st && find_rank(t, rank) < 0)
		st = tess_fail(TESS_EINVAL, "%s: there is no rank %d; use 0 to %d, or -1 for this",
		               t->spec.name, (int)rank, (int)t->ranks->nranks - 1);
	if (!st)
		tess_dtensor_compute_shape(t, t->spec.places, find_rank(t, rank), shape);
	return st;
}

int64_t tess_dtensor_list_ranges(const struct tess_dtensor *t, int32_t rank, int32_t axis,
                                 int64_t (*range)[2], int64_t most)
{
	struct tess_dim held;
	int64_t n;

	if (TESS_REQUIRE(t))
		return 0;
	if (find_rank(t, rank) < 0 || axis < 0 || axis >= t->spec.ndim || most < 0 ||
	    (most && !range)) {
		tess_fail(TESS_EINVAL, "%s: there is no rank %d, axis %d or list of %lld ranges",
		          t->spec.name, (int)rank, (int)axis, (long long)most);
		return 0;
	}
	n = tess_dim_count_pieces(t->dim[axis]);
	for (int64_t i = 0; i < n && i < most; i++) {
		range[i][0] = nest_piece(t, t->spec.places, find_rank(t, rank), t->ranks->ndims,
		                         axis, i, &held);
		range[i][1] = range[i][0] + held.size;
	}
	return n;
}

const struct tess_dtensor_spec *tess_dtensor_get_spec(const struct tess_dtensor *t)
{
	return TESS_REQUIRE(t) ? NULL : &t->spec;
}

void *tess_dtensor_local(struct tess_dtensor *t)
{
	return TESS_REQUIRE(t) ? NULL : t->local.data;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

tess_status tess_dtensor_alloc(const struct tess_dtensor *t, struct dtensor_block *b)
{
	size_t bytes = tess_dtensor_count_bytes(t, b->shape);

	b->data = tess_world_buffer_new(bytes);
	return b->data ? TESS_OK
	               : tess_fail(TESS_ENOMEM, "%s: no memory for %zu bytes", t->spec.name, bytes);
}

void tess_dtensor_free_block(const struct tess_dtensor *t, struct dtensor_block *b)
{
	tess_world_buffer_free(tess_mesh_world(t->mesh), b->data);
	b->data = NULL;
}

void tess_dtensor_free(struct tess_dtensor *t)
{
	if (!t)
		return;
	tess_dtensor_free_block(t, &t->local);
	tess_mesh_hold(t->mesh, -1);
	tess_arena_free(&t->arena);
	free(t);
}

/* Hands out a tensor, or frees it after a failure. */
static tess_status finish_dtensor(struct tess_dtensor *t, tess_status st, struct tess_dtensor **out)
{
	if (st)
		tess_dtensor_free(t);
	else
		*out = t;
	return st;
}

tess_status tess_dtensor_from_local(struct tess_mesh *m, const struct tess_dtensor_spec *spec,
                                    const void *local, struct tess_dtensor **out)
{
	tess_status st = TESS_REQUIRE(m, spec, out);
	struct tess_dtensor *t = NULL;
	size_t bytes;

	if (!st)
		st = tess_dtensor_describe(m, spec, &t);
	if (!st)
		st = tess_dtensor_alloc(t, &t->local);
	if (!st) {
		bytes = tess_dtensor_count_bytes(t, t->local.shape);
		if (local)
			memcpy(t->local.data, local, bytes);
		else
			memset(t->local.data, 0, bytes);
	}
	return finish_dtensor(t, st, out);
}

/* Cuts this rank's part of full[], which is borrowed. */
static tess_status cut_full(struct tess_dtensor *t, const void *full)
{
	struct tess_place whole[TESS_MESH_DIMS];
	struct dtensor_block b = { .data = (char *)full };
	tess_status st;

	tess_dtensor_replicate(t, whole);
	memcpy(b.shape, t->spec.shape, (size_t)t->spec.ndim * sizeof *b.shape);
	st = tess_dtensor_move_block(t, whole, t->spec.places, full, &b);
	if (!st)
		t->local = b;
	return st;
}

tess_status tess_dtensor_distribute(struct tess_mesh *m, const struct tess_dtensor_spec *spec,
                                    int32_t root, const void *full, struct tess_dtensor **out)
{
	tess_status st = TESS_REQUIRE(m, spec, out);
	struct tess_dtensor *t = NULL;

	if (!st)
		st = tess_dtensor_describe(m, spec, &t);
	if (!st && (root < -1 || root >= t->ranks->nranks))
		st = tess_fail(TESS_EINVAL,
		               "%s: there is no root %d; use 0 to %d, or -1 if every rank has all "
		               "elements",
		               t->spec.name, (int)root, (int)t->ranks->nranks - 1);
	if (!st && (root == -1 || root == t->rank) && t->bytes && !full)
		st = tess_fail(TESS_EINVAL, "%s: full is NULL on rank %d", t->spec.name,
		               (int)t->rank);
	if (!st)
		st = root == -1 ? cut_full(t, full)
		                : tess_dtensor_scatter(t, t->spec.places, root, full, &t->local);
	return finish_dtensor(t, st, out);
}

/* ---- moves ----------------------------------------------------------------------------------- */

tess_status tess_dtensor_redistribute(const struct tess_dtensor *t, const struct tess_place *places,
                                      struct tess_dtensor **out)
{
	tess_status st = TESS_REQUIRE(t, places, out);
	struct tess_place to[TESS_MESH_DIMS];
	struct tess_dtensor *moved = NULL;
	struct dtensor_block b;

	if (!st)
		st = tess_dtensor_check_target(t, places, to);
	if (!st)
		st = tess_dtensor_describe_moved(t, to, &moved);
	if (!st) {
		b = t->local;
		st = tess_dtensor_move_block(t, t->spec.places, to, t->local.data, &b);
	}
	if (!st)
		moved->local = b;
	return finish_dtensor(moved, st, out);
}

tess_status tess_dtensor_full(const struct tess_dtensor *t, void *full)
{
	struct tess_place whole[TESS_MESH_DIMS];
	struct dtensor_block b;
	tess_status st = TESS_REQUIRE(t);

	if (!st && t->bytes)
		st = TESS_REQUIRE(full);
	if (st)
		return st;
	tess_dtensor_replicate(t, whole);
	b = t->local;
	st = tess_dtensor_move_block(t, t->spec.places, whole, t->local.data, &b);
	if (st)
		return st;
	if (t->bytes)
		memcpy(full, b.data, t->bytes);
	tess_dtensor_free_block(t, &b);
	return TESS_OK;
}

tess_status tess_dtensor_list_moves(const struct tess_dtensor *t, const struct tess_place *places,
                                    struct tess_dtensor_move *moves, int32_t most, int32_t *n)
{
	struct tess_place to[TESS_MESH_DIMS];
	tess_status st = TESS_REQUIRE(t, places, n);
	struct tess_dtensor_path path;
	struct tess_move next;
	int32_t count = 0;

	if (!st && (most < 0 || (most && !moves)))
		st = tess_fail(TESS_EINVAL, "%s: no list of %d moves", t->spec.name, (int)most);
	if (!st)
		st = tess_dtensor_check_target(t, places, to);
	if (st)
		return st;
	tess_dtensor_begin_path(t, t->spec.places, to, &path);
	while (!st && tess_dtensor_find_move(&path, &next)) {
		struct tess_dtensor_move move = { .dim = next.along,
			                          .from = path.at[next.along],
			                          .to = next.to };

		if (count < most) {
			st = tess_dtensor_measure_move(t, path.at, &move);
			moves[count] = move;
		}
		path.at[next.along] = next.to;
		count++;
	}
	if (!st)
		*n = count;
	return st;
}

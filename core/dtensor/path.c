/* path.c - finds the moves of a redistribution, one after the other. */
#include "core/dtensor/dtensor.h"

#include <string.h>

bool tess_dtensor_is_alone(const struct tess_dtensor *t, int32_t along, struct tess_place from)
{
	return t->ranks->dim[along].size == 1 && from.kind != TESS_PARTIAL;
}

/* Copies the placements of a path, without cuts along single ranks, which cut nothing. */
static void omit_single_ranks(const struct tess_dtensor_path *p, struct tess_place *at,
                              struct tess_place *to)
{
	memcpy(at, p->at, sizeof p->at);
	memcpy(to, p->to, sizeof p->to);
	for (int32_t i = 0; i < p->t->ranks->ndims; i++)
		if (tess_dtensor_is_alone(p->t, i, at[i]))
			at[i] = to[i] = tess_place_replicate();
}

/* Returns whether two mesh dimensions cut one axis. */
static bool is_nested(const struct tess_place *p, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		if (p[i].kind == TESS_SHARD && tess_places_find(p, i, TESS_SHARD, p[i].dim) >= 0)
			return true;
	return false;
}

/*
 * Returns the axis to which a cut may move while another cut of its axis changes: the longest that
 * neither placement cuts, if every rank would hold a unit of it. -1: there is none, or no axis is
 * cut along two mesh dimensions.
 */
static int32_t find_spare_axis(const struct tess_dtensor *t, const struct tess_place *at,
                               const struct tess_place *to)
{
	int32_t n = t->ranks->ndims, most = 1, spare = -1;

	if (!is_nested(at, n) && !is_nested(to, n))
		return -1;
	for (int32_t i = 0; i < n; i++)
		most = t->ranks->dim[i].size > most ? t->ranks->dim[i].size : most;
	for (int32_t a = 0; a < t->spec.ndim; a++)
		if (tess_places_find(at, n, TESS_SHARD, a) < 0 &&
		    tess_places_find(to, n, TESS_SHARD, a) < 0 &&
		    tess_dim_get_local_size(t->dim[a], most, most - 1) &&
		    (spare < 0 || t->spec.shape[a] > t->spec.shape[spare]))
			spare = a;
	return spare;
}

void tess_dtensor_begin_path(const struct tess_dtensor *t, const struct tess_place *from,
                             const struct tess_place *to, struct tess_dtensor_path *p)
{
	struct tess_place a[TESS_MESH_DIMS], b[TESS_MESH_DIMS];

	*p = (struct tess_dtensor_path){ .t = t };
	memcpy(p->at, from, sizeof *from * (size_t)t->ranks->ndims);
	memcpy(p->to, to, sizeof *to * (size_t)t->ranks->ndims);
	omit_single_ranks(p, a, b);
	p->spare = find_spare_axis(t, a, b);
}

bool tess_dtensor_find_move(const struct tess_dtensor_path *p, struct tess_move *out)
{
	struct tess_place at[TESS_MESH_DIMS], to[TESS_MESH_DIMS];
	int32_t n = p->t->ranks->ndims;

	omit_single_ranks(p, at, to);
	if (tess_move_find_next(at, to, n, p->spare, out))
		return true;
	for (int32_t i = 0; i < n; i++)
		if (!tess_place_equal(p->at[i], p->to[i])) {
			*out = (struct tess_move){ i, p->to[i] };
			return true;
		}
	return false;
}

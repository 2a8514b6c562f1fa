/*
 * redistribute.c - records the moves of values, each along one mesh dimension.
 *
 * A value has a place along each mesh dimension, and no dim is cut by two of them.
 */
#include "core/shard/move.h"
#include "nn/record/recorder.h"

#include <string.h>

static struct tess_tensor *find_redistributed(const struct tess_recorder *r,
                                              const struct tess_tensor *x,
                                              const struct tess_place *to)
{
	for (const struct tess_redistributed *m = x->redistributed; m; m = m->next)
		if (tess_places_equal(m->to->place, to, r->p->mesh.ndims))
			return m->to;
	return NULL;
}

/* Checks that a value can move along one mesh dimension while others place it, too. */
static bool check_move(struct tess_recorder *r, const struct tess_tensor *x, int32_t along,
                       struct tess_place to, const char *module)
{
	int32_t partial = tess_recorder_find_partial(r, x->place), cut;
	bool slices = x->place[along].kind == TESS_REPLICATE && to.kind == TESS_SHARD;
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];

	if (to.kind == TESS_PARTIAL &&
	    (x->place[along].kind != TESS_REPLICATE || x->dtype != TESS_F32)) /* ids are no sum */
		return tess_recorder_fail(r, TESS_EINVAL, "%s: %s of %s cannot become %s%s", module,
		                          tess_place_format(x->place[along], a), x->module,
		                          tess_place_format(to, b),
		                          tess_recorder_along(r, along)) != NULL;
	if (partial >= 0 && partial != along && !slices)
		return tess_recorder_fail(
			       r, TESS_EINVAL,
			       "%s: %s gives an unfinished sum along %s, which cannot become %s "
			       "along %s; let its style or a gather finish the sum first",
			       module, x->module, r->p->mesh.dim[partial].name,
			       tess_place_format(to, a), r->p->mesh.dim[along].name) != NULL;
	if (to.kind != TESS_SHARD)
		return true;
	cut = tess_places_find(x->place, r->p->mesh.ndims, TESS_SHARD, to.dim);
	if (cut >= 0)
		return tess_recorder_fail_cut_twice(r, x->dim[to.dim], x->module, cut, along,
		                                    module);
	return tess_recorder_check_cut(r, x->dim[to.dim], along, module);
}

struct tess_tensor *tess_tensor_move(struct tess_recorder *r, struct tess_tensor *x, int32_t along,
                                     struct tess_place to, const char *module)
{
	struct tess_redistributed *memo;
	struct tess_place *place;
	struct tess_record *rec;
	struct tess_tensor *y;

	if (r->status || !x || to.kind == TESS_ASIS)
		return r->status ? NULL : x;
	if (tess_place_check(to, x->ndim, module))
		return tess_recorder_keep_error(r, TESS_EINVAL);
	to = tess_place_normalize(to, x->ndim);
	if (tess_place_equal(to, x->place[along]))
		return x;
	place = check_move(r, x, along, to, module) ? tess_tensor_replace_place(r, x, along, to)
	                                            : NULL;
	if (!place)
		return NULL;
	y = find_redistributed(r, x, place);
	if (y)
		return y;
	y = tess_tensor_new(r, x->ndim, x->dim, place, module);
	memo = TESS_NEW(&r->p->arena, struct tess_redistributed, 1);
	rec = y && memo ? tess_record_append(r, TESS_REC_MOVE, module, 1, &x, 1, &y, 0, NULL)
	                : NULL;
	if (!rec)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	rec->along = along;
	y->dtype = x->dtype;
	y->sum = tess_recorder_find_partial(r, place) >= 0 ? x->sum : NULL;
	*memo = (struct tess_redistributed){ x->redistributed, y };
	x->redistributed = memo;
	return y;
}

struct tess_tensor *tess_tensor_redistribute(struct tess_recorder *r, struct tess_tensor *x,
                                             const struct tess_place *to, const char *module)
{
	struct tess_place want[TESS_MESH_DIMS];
	struct tess_move move;

	for (int32_t i = 0; i < r->p->mesh.ndims && x && !r->status; i++) {
		if (tess_place_check(to[i], x->ndim, module))
			return tess_recorder_keep_error(r, TESS_EINVAL);
		want[i] = to[i].kind == TESS_ASIS ? x->place[i]
		                                  : tess_place_normalize(to[i], x->ndim);
	}
	while (!r->status && x && tess_move_find_next(x->place, want, r->p->mesh.ndims, -1, &move))
		x = tess_tensor_move(r, x, move.along, move.to, module);
	return r->status ? NULL : x;
}

struct tess_tensor *tess_tensor_slice_operand(struct tess_recorder *r, struct tess_tensor *x,
                                              const struct tess_place *to, const char *module)
{
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];

	for (int32_t i = 0; i < r->p->mesh.ndims && x; i++)
		if (!r->status && x->place[i].kind != TESS_REPLICATE &&
		    !tess_place_equal(x->place[i], to[i]))
			return tess_recorder_fail(
				r, TESS_EINVAL, "%s: needs %s%s, but %s gives %s; %s", module,
				tess_place_format(to[i], a), tess_recorder_along(r, i), x->module,
				tess_place_format(x->place[i], b),
				tess_place_is(x->place[i], TESS_SHARD, 0)
					? "give it a style that leaves tokens whole, such as "
					  "colwise or rowwise"
					: tess_recorder_describe_gather(r, x));
	return tess_tensor_redistribute(r, x, to, module);
}

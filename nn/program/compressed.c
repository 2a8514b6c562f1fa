#include "nn/program/compressed.h"

#include "nn/op/panels.h"
#include "nn/program/storage.h"

#include <tessera/reduce.h>

/* Returns the linear record behind the logits of a route, through moves and biases; or NULL. */
static struct tess_record *find_router(const struct tess_program *p, int32_t route)
{
	const struct tess_tensor *x = p->record[route]->in[0];

	for (int32_t i = route - 1; i >= 0; i--) {
		struct tess_record *rec = p->record[i];

		for (int32_t k = 0; k < rec->nout; k++) {
			if (rec->out[k] != x)
				continue;
			if (rec->kind == TESS_OP_LINEAR || !rec->nin)
				return rec;
			x = rec->in[0];
			break;
		}
	}
	return NULL;
}

/* Marks the weights to compress; returns whether there is one. */
static bool mark_compressed(struct tess_program *p, int32_t dtype)
{
	bool found = false;

	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		bool linear = rec->kind == TESS_OP_LINEAR || rec->kind == TESS_OP_EXPERTS;

		for (int32_t k = 0; linear && k < rec->nweight; k++) {
			struct tess_weight *w = p->weight[rec->weight[k]->index];
			const struct tess_dim *in = w->in_dim < 0 ? NULL : w->dim[w->in_dim];

			if (in && !in->nparts && in->group == 1 && !w->mxfp4 &&
			    (dtype != TESS_BF12 || w->dtype == TESS_BF16))
				w->compressed = dtype;
			found = found || w->compressed == dtype;
		}
	}
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec =
			p->record[i]->kind == TESS_OP_ROUTE ? find_router(p, i) : NULL;

		for (int32_t k = 0; rec && k < rec->nweight; k++)
			p->weight[rec->weight[k]->index]->compressed = 0;
	}
	return found;
}

/* Fails if no weight was stored in MXFP4. */
static tess_status check_widened(const struct tess_program *p)
{
	for (int32_t i = 0; i < p->nweights; i++)
		if (p->weight[i]->mxfp4)
			return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "no weight is stored in MXFP4, which bf16 weights widen; use weights as "
	                 "in the files, or a checkpoint of tessera convert --dtype bf16");
}

tess_status tess_program_compress(struct tess_program *p, int32_t dtype)
{
	if (dtype == TESS_BF16)
		return check_widened(p);
	if (mark_compressed(p, dtype) || dtype != TESS_BF12)
		return TESS_OK;
	return tess_fail(
		TESS_EINVAL,
		"no linear weight is bf16, which 12-bit weights hold without loss; use "
		"weights as in the files, or a checkpoint of tessera convert --dtype bf16");
}

static tess_status fail_product(const struct tess_weight *w, int32_t dtype)
{
	bool compressed = w->compressed && w->compressed != TESS_BF12;
	const char *math = tess_dtype_name(dtype),
		   *own = tess_dtype_name(compressed ? w->compressed : w->dtype);

	if (w->mxfp4)
		return tess_fail(TESS_EINVAL,
		                 "%s is %s: --math %s multiplies weights in %s; use --math f32, or "
		                 "--weights bf16, which widens it",
		                 w->name, own, math, math);
	return tess_fail(TESS_EINVAL,
	                 "%s is %s: --math %s multiplies weights in %s; use --math f32, or a "
	                 "checkpoint of tessera convert --dtype %s, without --weights %s",
	                 w->name, own, math, math, math,
	                 tess_dtype_name(compressed ? w->compressed : TESS_Q8));
}

/* Checks that the weights of a record can be multiplied in `dtype`. */
static tess_status check_product_weights(const struct tess_program *p,
                                         const struct tess_record *rec, int32_t dtype)
{
	for (int32_t k = 0; k < rec->nweight; k++) {
		const struct tess_weight *w = p->weight[rec->weight[k]->index];

		if ((w->compressed && w->compressed != TESS_BF12) || w->dtype != dtype)
			return fail_product(w, dtype);
	}
	return TESS_OK;
}

void tess_program_set_router_math(struct tess_program *p)
{
	for (int32_t i = 0; i < p->nrecords; i++) {
		struct tess_record *rec =
			p->record[i]->kind == TESS_OP_ROUTE ? find_router(p, i) : NULL;

		if (rec && rec->kind == TESS_OP_LINEAR)
			rec->nnum = TESS_LINEAR_NUMS, rec->num[TESS_LINEAR_MATH] = TESS_F32;
	}
}

tess_status tess_program_set_math(struct tess_program *p, int32_t dtype)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nrecords && !st; i++) {
		struct tess_record *rec = p->record[i];

		bool linear = rec->kind == TESS_OP_LINEAR && !rec->nnum; /* not a router */

		if (!linear && rec->kind != TESS_OP_EXPERTS)
			continue;
		rec->nnum = linear ? TESS_LINEAR_NUMS : rec->nnum;
		rec->num[linear ? TESS_LINEAR_MATH : TESS_EXPERTS_MATH] = dtype;
		st = p->training ? TESS_OK : check_product_weights(p, rec, dtype);
	}
	return st;
}

/* Counts the bytes of a panel, over the units of inputs that the rank holds. */
static int64_t count_panel_bytes(int32_t dtype, const struct tess_dim *in, struct tess_cut cut)
{
	int64_t lo, hi, bytes = 0;

	if (dtype == TESS_BF12)
		return panel_count_bf12_bytes(tess_dim_get_local_size(in, cut.nranks, cut.rank));
	tess_dim_get_rank_units(in, cut.nranks, cut.rank, &lo, &hi);
	for (int64_t u = lo; u < hi; u++)
		bytes += panel_count_unit_bytes(dtype, tess_dim_get_unit_start(in, u + 1) -
		                                               tess_dim_get_unit_start(in, u));
	return bytes;
}

struct tess_view tess_weight_view_compressed(const struct tess_program *p,
                                             const struct tess_weight *w, int32_t rank)
{
	struct tess_cut cut = tess_program_find_cut(p, rank, w->place, w->in_dim);
	struct tess_view v = { .dtype = w->compressed, .ndim = w->ndim, .layout = TESS_PANELS };
	int32_t out = w->ndim - 2;

	v.shape[out] = tess_weight_get_local_size(p, w, rank, w->out_dim);
	v.shape[out + 1] = tess_weight_get_local_size(p, w, rank, w->in_dim);
	v.stride[out] = count_panel_bytes(w->compressed, w->dim[w->in_dim], cut);
	v.stride[out + 1] = PANEL_OUTS;
	if (out) {
		v.shape[0] = tess_weight_get_local_size(p, w, rank, 0);
		v.stride[0] = tess_up(v.shape[1], PANEL_OUTS) * v.stride[1];
	}
	return v;
}

uint64_t tess_view_count_panels(const struct tess_view *v)
{
	return (uint64_t)(v->ndim > 2 ? v->shape[0] * v->stride[0]
	                              : tess_up(v->shape[0], PANEL_OUTS) * v->stride[0]);
}

uint64_t tess_weight_count_bytes(const struct tess_program *p, const struct tess_weight *w,
                                 int32_t rank)
{
	uint64_t bytes = w->table ? 0 : tess_width(w->dtype);
	struct tess_view v;

	if (!tess_program_has_stage(p, rank, w->stage))
		return 0;
	if (w->compressed) {
		v = tess_weight_view_compressed(p, w, rank);
		return tess_view_count_panels(&v);
	}
	for (int32_t a = 0; a < w->ndim; a++)
		bytes *= (uint64_t)tess_weight_get_local_size(p, w, rank, a);
	return bytes;
}

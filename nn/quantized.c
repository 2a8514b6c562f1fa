#include "nn/quantized.h"

#include <tessera/reduce.h>

enum { GROUP = 32, Q8_PANEL = 16 }; /* inputs that share a scale; outs of a panel */

/* The linear record that makes the logits of a route, through moves and biases; NULL: none. */
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

void tess_program_quantize(struct tess_program *p)
{
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		bool linear = rec->kind == TESS_OP_LINEAR || rec->kind == TESS_OP_EXPERTS;

		for (int32_t k = 0; linear && k < rec->nweight; k++) {
			struct tess_weight *w = p->weight[rec->weight[k]->index];
			const struct tess_dim *in = w->dim[w->in_dim];

			w->quantized = !in->nparts && in->group == 1;
		}
	}
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec =
			p->record[i]->kind == TESS_OP_ROUTE ? find_router(p, i) : NULL;

		for (int32_t k = 0; rec && k < rec->nweight; k++)
			p->weight[rec->weight[k]->index]->quantized = false;
	}
}

/* Before a record's products are of `dtype`. */
static tess_status check_product_weights(const struct tess_program *p,
                                         const struct tess_record *rec, int32_t dtype)
{
	for (int32_t k = 0; k < rec->nweight; k++) {
		const struct tess_weight *w = p->weight[rec->weight[k]->index];

		if (w->quantized || w->dtype != dtype)
			return tess_fail(TESS_EINVAL,
			                 "%s is %s: --math %s multiplies weights in %s; use "
			                 "--math f32, or a checkpoint of tessera convert --dtype "
			                 "%s, without --weights q8",
			                 w->name,
			                 w->quantized ? "8-bit" : tess_dtype_name(w->dtype),
			                 tess_dtype_name(dtype), tess_dtype_name(dtype),
			                 tess_dtype_name(dtype));
	}
	return TESS_OK;
}

tess_status tess_program_set_math(struct tess_program *p, int32_t dtype)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nrecords; i++) {
		struct tess_record *rec = p->record[i];

		if (rec->kind == TESS_OP_LINEAR)
			rec->nnum = TESS_LINEAR_NUMS, rec->num[TESS_LINEAR_MATH] = dtype;
		else if (rec->kind == TESS_OP_EXPERTS)
			rec->num[TESS_EXPERTS_MATH] = dtype;
	}
	for (int32_t i = 0; i < p->nrecords; i++) {
		struct tess_record *rec =
			p->record[i]->kind == TESS_OP_ROUTE ? find_router(p, i) : NULL;

		if (rec && rec->kind == TESS_OP_LINEAR)
			rec->nnum = 0, rec->num[TESS_LINEAR_MATH] = 0;
	}
	for (int32_t i = 0; i < p->nrecords && !st; i++) {
		const struct tess_record *rec = p->record[i];

		if (rec->kind == TESS_OP_EXPERTS || (rec->kind == TESS_OP_LINEAR && rec->nnum))
			st = check_product_weights(p, rec, dtype);
	}
	return st;
}

int64_t tess_quantized_count_bytes(int64_t n)
{
	return Q8_PANEL * (n + 2 * tess_up(n, GROUP)); /* a scale has two bytes */
}

/* Bytes of a panel: of the units of the inputs that the rank holds. */
static int64_t count_panel_bytes(const struct tess_dim *in, struct tess_cut cut)
{
	int64_t lo, hi, bytes = 0;

	tess_dim_get_rank_units(in, cut.nranks, cut.rank, &lo, &hi);
	for (int64_t u = lo; u < hi; u++)
		bytes += tess_quantized_count_bytes(tess_dim_get_unit_start(in, u + 1) -
		                                    tess_dim_get_unit_start(in, u));
	return bytes;
}

static int64_t count_held(const struct tess_program *p, const struct tess_weight *w, int32_t rank,
                          int32_t axis)
{
	struct tess_cut cut = tess_program_find_cut(p, rank, w->place, axis);

	return tess_dim_get_local_size(w->dim[axis], cut.nranks, cut.rank);
}

struct tess_view tess_weight_view_quantized(const struct tess_program *p,
                                            const struct tess_weight *w, int32_t rank)
{
	struct tess_cut cut = tess_program_find_cut(p, rank, w->place, w->in_dim);
	struct tess_view v = { .dtype = TESS_Q8, .ndim = w->ndim, .layout = TESS_PANELS };
	int32_t out = w->ndim - 2;

	v.shape[out] = count_held(p, w, rank, w->out_dim);
	v.shape[out + 1] = count_held(p, w, rank, w->in_dim);
	v.stride[out] = count_panel_bytes(w->dim[w->in_dim], cut);
	v.stride[out + 1] = Q8_PANEL;
	if (out) {
		v.shape[0] = count_held(p, w, rank, 0);
		v.stride[0] = tess_up(v.shape[1], Q8_PANEL) * v.stride[1];
	}
	return v;
}

uint64_t tess_view_count_quantized_bytes(const struct tess_view *v)
{
	return (uint64_t)(v->ndim > 2 ? v->shape[0] * v->stride[0]
	                              : tess_up(v->shape[0], Q8_PANEL) * v->stride[0]);
}

uint64_t tess_weight_count_bytes(const struct tess_program *p, const struct tess_weight *w,
                                 int32_t rank)
{
	uint64_t bytes = w->table ? 0 : tess_width(w->dtype);
	struct tess_view v;

	if (w->quantized) {
		v = tess_weight_view_quantized(p, w, rank);
		return tess_view_count_quantized_bytes(&v);
	}
	for (int32_t a = 0; a < w->ndim; a++)
		bytes *= (uint64_t)count_held(p, w, rank, a);
	return bytes;
}

/* ops_rows.c - records row selection, norms, elementwise ops and splits. */
#include "core/base/status.h"
#include "nn/record/recorder.h"

#include <math.h>

/* ---- rows, norm ------------------------------------------------------------------------------ */

static struct tess_tensor *record_select_rows(struct tess_nn *nn, struct tess_tensor *x)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *in[2] = { x, r->p->rows }, *y;
	int32_t odd;

	if (!tess_recorder_check_rows(r, "select_rows", x))
		return NULL;
	odd = tess_recorder_find_place(r, x, TESS_PARTIAL, 0);
	odd = odd < 0 ? tess_recorder_find_place(r, x, TESS_SHARD, 1) : odd;
	if (odd >= 0)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "the selected rows: %s gives no whole rows%s; %s",
		                          x->module, tess_recorder_along(r, odd),
		                          tess_recorder_describe_gather(r, x));
	if (r->p->nselected == r->p->ntokens || x->dim[0] == in[1]->dim[0])
		return x;
	in[0] = tess_tensor_redistribute(r, x, r->whole, "select_rows");
	if (!in[0])
		return NULL;
	y = tess_tensor_new(r, 2, (const struct tess_dim *[]){ in[1]->dim[0], x->dim[1] },
	                    in[0]->place, x->module);
	return y && tess_record_append(r, TESS_OP_SELECT_ROWS, "select_rows", 2, in, 1, &y, 0, NULL)
	               ? y
	               : NULL;
}

static const struct tess_dim *make_one_unit_dim(struct tess_recorder *r, const char *name,
                                                int64_t n)
{
	struct tess_dim *d = tess_dim_new(r, name, n, 0);

	if (d)
		d->nunits = 1;
	return d;
}

static struct tess_tensor *record_norm(struct tess_nn *nn, const char *name, struct tess_tensor *x,
                                       int32_t kind, double eps)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	const int32_t type = kind & ~(TESS_HEADS | TESS_OFFSET | TESS_NO_BIAS | TESS_NO_WEIGHT);
	bool heads = kind & TESS_HEADS, layer = type == TESS_LAYER;
	bool weight = !(kind & TESS_NO_WEIGHT), bias = layer && weight && !(kind & TESS_NO_BIAS);
	const struct tess_weight *w[2] = { 0 };
	const struct tess_module *m;
	const struct tess_dim *over;
	struct tess_record *rec;
	struct tess_tensor *y;
	char text[TESS_PLACE_SIZE];
	int32_t odd;

	if (!tess_recorder_check_rows(r, "a norm", x))
		return NULL;
	if (!layer && type != TESS_RMS)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: no kind of norm is %d; use TESS_RMS or TESS_LAYER",
		                          tess_recorder_format_path(r, name), (int)kind);
	if (!(eps >= 0 && eps < INFINITY))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: a norm needs an eps, a number of 0 or more; not %g",
		                          tess_recorder_format_path(r, name), eps);
	over = heads ? make_one_unit_dim(r, "head", x->dim[1]->unit_size) : x->dim[1];
	m = over ? tess_module_open(r, tess_recorder_format_path(r, name), "norm") : NULL;
	x = m ? tess_module_prepare_input(r, m, x) : NULL;
	w[0] = x && weight ? tess_weight_add(r, m,
	                                     &(struct tess_weight_request){
						     "weight", 1, -1, -1, { over }, false })
	                   : NULL;
	if (w[0] && bias)
		w[1] = tess_weight_add(
			r, m, &(struct tess_weight_request){ "bias", 1, -1, -1, { over }, false });
	for (int32_t i = 0; i < 2; i++)
		tess_weight_check_whole(r, w[i], "every rank norms whole rows");
	if (r->status || !x)
		return NULL;
	odd = tess_recorder_find_place(r, x, TESS_PARTIAL, 0);
	if (odd < 0 && !heads)
		odd = tess_recorder_find_place(r, x, TESS_SHARD, 1);
	if (odd >= 0)
		return tess_recorder_fail(
			r, TESS_EINVAL, "%s: needs whole rows, but %s gives %s%s; %s",
			m->site.module, x->module, tess_place_format(x->place[odd], text),
			tess_recorder_along(r, odd), tess_recorder_describe_gather(r, x));
	y = tess_tensor_new(r, 2, x->dim, x->place, m->site.module);
	rec = y ? tess_record_append(r, TESS_OP_NORM, m->site.module, 1, &x, 1, &y, weight + bias,
	                             w)
	        : NULL;
	if (!rec)
		return NULL;
	rec->nnum = TESS_NORM_NUMS;
	rec->num[TESS_NORM_KIND] = layer ? TESS_LAYER : TESS_RMS;
	rec->num[TESS_NORM_EPS] = eps;
	rec->num[TESS_NORM_RUN] = heads ? (double)x->dim[1]->unit_size : 0;
	rec->num[TESS_NORM_OFFSET] = kind & TESS_OFFSET ? 1 : 0;
	return tess_module_prepare_output(r, m, y);
}

/* ---- elementwise ----------------------------------------------------------------------------- */

/* Returns whether x is a factor for each row. */
static bool is_factor(const struct tess_tensor *x)
{
	return x->dim[1]->size == 1;
}

/* Records an elementwise op. Along each mesh dimension a sharded operand decides. */
static struct tess_record *record_elementwise(struct tess_recorder *r, int32_t kind,
                                              const char *what, int32_t n, struct tess_tensor **in,
                                              struct tess_tensor **y)
{
	const char *module = tess_recorder_format_path(r, NULL), *from = NULL;
	struct tess_place *to = tess_recorder_alloc_places(r);

	for (int32_t i = 0; i < n && to; i++) {
		if (!tess_recorder_check_finished(r, what, in[i]))
			return NULL;
		if (in[i]->dim[0] != in[0]->dim[0] ||
		    (in[i]->dim[1] != in[0]->dim[1] && !(kind == TESS_OP_MUL && is_factor(in[i]))))
			return tess_recorder_fail(r, TESS_EINVAL,
			                          "%s: %s of %s and %s: their dimensions differ",
			                          module, what, in[0]->module, in[i]->module);
		from = i ? from : in[0]->module;
		for (int32_t d = 0; d < r->p->mesh.ndims; d++) {
			if (i && to[d].kind != TESS_REPLICATE)
				continue;
			if (in[i]->place[d].kind != TESS_REPLICATE)
				from = in[i]->module;
			to[d] = in[i]->place[d];
		}
	}
	for (int32_t i = 0; i < n && to; i++)
		in[i] = tess_tensor_slice_operand(r, in[i], to, module);
	*y = r->status ? NULL : tess_tensor_new(r, in[0]->ndim, in[0]->dim, in[0]->place, from);
	return *y ? tess_record_append(r, kind, module, n, in, 1, y, 0, NULL) : NULL;
}

static struct tess_tensor *record_glu(struct tess_nn *nn, struct tess_tensor *a,
                                      struct tess_tensor *b, int32_t act)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *in[2] = { a, b }, *y;
	struct tess_record *rec;

	if (act < 0 || act > TESS_TANH)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: no activation is %d; use TESS_SILU, or what "
		                          "activation() gives",
		                          tess_recorder_format_path(r, NULL), (int)act);
	rec = record_elementwise(r, TESS_OP_GLU, "a glu", b ? 2 : 1, in, &y);
	if (!rec)
		return NULL;
	rec->nnum = TESS_GLU_NUMS;
	rec->num[TESS_GLU_ACTIVATION] = act;
	return y;
}

static struct tess_tensor *record_add(struct tess_nn *nn, struct tess_tensor *a,
                                      struct tess_tensor *b)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *in[2] = { a, b }, *y;

	return record_elementwise(r, TESS_OP_ADD, "an addition", 2, in, &y) ? y : NULL;
}

static struct tess_tensor *record_scale(struct tess_nn *nn, struct tess_tensor *x, double factor)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_record *rec;
	struct tess_tensor *y;

	if (!isfinite(factor))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: a scale needs a finite factor, not %g",
		                          x ? x->module : "a scale", factor);
	rec = record_elementwise(r, TESS_OP_SCALE, "a scale", 1, &x, &y);
	if (!rec)
		return NULL;
	rec->nnum = TESS_SCALE_NUMS;
	rec->num[TESS_SCALE_FACTOR] = factor;
	return y;
}

static struct tess_tensor *record_sigmoid(struct tess_nn *nn, struct tess_tensor *x)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *y;

	return record_elementwise(r, TESS_OP_SIGMOID, "a sigmoid", 1, &x, &y) ? y : NULL;
}

static struct tess_tensor *record_multiply(struct tess_nn *nn, struct tess_tensor *a,
                                           struct tess_tensor *b)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *in[2] = { a, b }, *y;
	int32_t cut = -1;

	if (!tess_recorder_check_finished(r, "a product", a) ||
	    !tess_recorder_check_finished(r, "a product", b))
		return NULL;
	if (is_factor(b) && b->dim[1] != a->dim[1])
		cut = tess_recorder_find_place(r, a, TESS_SHARD, 1);
	if (cut >= 0)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: a product of rows with a factor needs whole rows, "
		                          "but %s cuts them%s; %s",
		                          tess_recorder_format_path(r, NULL), a->module,
		                          tess_recorder_along(r, cut),
		                          tess_recorder_describe_gather(r, a));
	return record_elementwise(r, TESS_OP_MUL, "a product", 2, in, &y) ? y : NULL;
}

static struct tess_tensor *record_dot(struct tess_nn *nn, struct tess_tensor *a,
                                      struct tess_tensor *b)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_tensor *in[2] = { a, b }, *y;
	const struct tess_dim *one = make_one_unit_dim(r, "factor", 1);
	const char *module = tess_recorder_format_path(r, NULL);

	if (!one || !tess_recorder_check_finished(r, "a product of rows", a) ||
	    !tess_recorder_check_finished(r, "a product of rows", b))
		return NULL;
	for (int32_t i = 0; i < r->p->mesh.ndims; i++)
		if (!tess_place_is(a->place[i], b->place[i].kind, b->place[i].dim) ||
		    tess_place_is(a->place[i], TESS_SHARD, 1))
			return tess_recorder_fail(r, TESS_EINVAL,
			                          "%s: a product of the rows of %s and %s needs "
			                          "whole rows, both at one place",
			                          module, a->module, b->module);
	if (a->dim[0] != b->dim[0] || a->dim[1] != b->dim[1])
		return tess_recorder_fail(
			r, TESS_EINVAL,
			"%s: a product of the rows of %s and %s: their dimensions "
			"differ",
			module, a->module, b->module);
	y = tess_tensor_new(r, 2, (const struct tess_dim *[]){ a->dim[0], one }, a->place, module);
	return y && tess_record_append(r, TESS_OP_ROW_DOT, module, 2, in, 1, &y, 0, NULL) ? y
	                                                                                  : NULL;
}

static struct tess_tensor *record_clamp(struct tess_nn *nn, struct tess_tensor *x, double low,
                                        double high)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	struct tess_record *rec;
	struct tess_tensor *y;

	if (!(low <= high))
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: a clamp to [%g, %g]; the first limit must not be "
		                          "above the second",
		                          tess_recorder_format_path(r, NULL), low, high);
	rec = record_elementwise(r, TESS_OP_CLAMP, "a clamp", 1, &x, &y);
	if (!rec)
		return NULL;
	rec->nnum = TESS_CLAMP_NUMS;
	rec->num[TESS_CLAMP_LOW] = low;
	rec->num[TESS_CLAMP_HIGH] = high;
	return y;
}

static void record_split(struct tess_nn *nn, struct tess_tensor *x, struct tess_tensor **part)
{
	struct tess_recorder *r = tess_recorder_get(nn);
	const struct tess_dim *d;

	if (!tess_recorder_check_rows(r, "split", x))
		return;
	d = x->dim[1];
	if (!d->nparts) {
		tess_recorder_fail(r, TESS_EINVAL,
		                   "%s: split of %s, which %s gives and which was not declared as "
		                   "fused",
		                   tess_recorder_format_path(r, NULL), d->name, x->module);
		return;
	}
	if (!tess_recorder_check_finished(r, "split", x))
		return;
	for (int64_t i = 0; i < d->nparts; i++)
		part[i] =
			tess_tensor_new(r, 2, (const struct tess_dim *[]){ x->dim[0], d->parts[i] },
		                        x->place, x->module);
	tess_record_append(r, TESS_REC_SPLIT, x->module, 1, &x, (int32_t)d->nparts, part, 0, NULL);
}

void tess_ops_install_rows(struct tess_nn *nn)
{
	nn->select_rows = record_select_rows;
	nn->norm = record_norm;
	nn->glu = record_glu;
	nn->add = record_add;
	nn->split = record_split;
	nn->scale = record_scale;
	nn->sigmoid = record_sigmoid;
	nn->multiply = record_multiply;
	nn->clamp = record_clamp;
	nn->dot = record_dot;
}

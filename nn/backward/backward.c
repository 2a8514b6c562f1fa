#include "nn/backward/backward.h"

#include "core/base/status.h"
#include "nn/backward/recompute.h"

/* ---- records that need no file of their own -------------------------------------------------- */

/* Applies the same dropout to the gradient. */
void tess_backward_record_dropout(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[4] = { tess_backward_take(b, rec->out[0]), rec->in[1], rec->in[2],
		                      rec->in[3] };
	struct tess_record *d = tess_record_append_dropout(b->r, in, rec->num[TESS_DROPOUT_RATE],
	                                                   rec->num[TESS_DROPOUT_SITE]);

	if (d)
		tess_backward_give(b, rec->in[0], d->out[0]);
}

void tess_backward_record_add(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *d = tess_backward_take(b, rec->out[0]);

	for (int32_t i = rec->nin - 1; i >= 0; i--)
		tess_backward_give(b, rec->in[i], d);
}

void tess_backward_record_scale(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *g = tess_backward_take(b, rec->out[0]);
	struct tess_tensor *d = g ? tess_backward_make_like(b, g, g->place, rec->module) : NULL;
	struct tess_record *scale =
		d ? tess_record_append(b->r, TESS_OP_SCALE, rec->module, 1, &g, 1, &d, 0, NULL)
		  : NULL;

	if (!scale)
		return;
	tess_record_copy_numbers(scale, rec);
	tess_backward_give(b, rec->in[0], d);
}

void tess_backward_record_glu(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[3] = { rec->in[0], rec->nin > 1 ? rec->in[1] : NULL }, *out[2];
	struct tess_record *d;

	in[rec->nin] = tess_backward_take(b, rec->out[0]);
	for (int32_t i = 0; i < rec->nin; i++)
		out[i] = tess_backward_make_like(b, rec->in[i], rec->in[i]->place, rec->module);
	d = tess_record_append(b->r, TESS_OP_GLU_D, rec->module, rec->nin + 1, in, rec->nin, out, 0,
	                       NULL);
	if (!d)
		return;
	tess_record_copy_numbers(d, rec);
	for (int32_t i = 0; i < rec->nin; i++)
		tess_backward_give(b, rec->in[i], out[i]);
}

void tess_backward_record_sigmoid(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[2] = { rec->out[0], tess_backward_take(b, rec->out[0]) }, *d;

	d = tess_backward_make_like(b, rec->in[0], rec->in[0]->place, rec->module);
	if (d && tess_record_append(b->r, TESS_OP_SIGMOID_D, rec->module, 2, in, 1, &d, 0, NULL))
		tess_backward_give(b, rec->in[0], d);
}

/* Returns x * y, or the sum of each row of it if `of` is a factor: the gradient of `of`. */
static struct tess_tensor *record_product(struct tess_backward *b, const struct tess_record *rec,
                                          struct tess_tensor *x, struct tess_tensor *y,
                                          struct tess_tensor *of)
{
	bool sums = of->dim[1] != x->dim[1];
	struct tess_tensor *in[2] = { x, y }, *d;

	d = tess_backward_make_like(b, of, of->place, rec->module);
	return d && tess_record_append(b->r, sums ? TESS_OP_ROW_DOT : TESS_OP_MUL, rec->module, 2,
	                               in, 1, &d, 0, NULL)
	               ? d
	               : NULL;
}

void tess_backward_record_mul(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *g = tess_backward_take(b, rec->out[0]), *d;

	for (int32_t i = 0; i < 2 && g; i++) {
		d = record_product(b, rec, g, rec->in[1 - i], rec->in[i]);
		if (d)
			tess_backward_give(b, rec->in[i], d);
	}
}

void tess_backward_record_row_dot(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *g = tess_backward_take(b, rec->out[0]), *d;

	for (int32_t i = 0; i < 2 && g; i++) {
		d = record_product(b, rec, rec->in[1 - i], g, rec->in[i]);
		if (d)
			tess_backward_give(b, rec->in[i], d);
	}
}

void tess_backward_record_clamp(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor *in[2] = { rec->in[0], tess_backward_take(b, rec->out[0]) }, *d;
	struct tess_record *clamp;

	d = tess_backward_make_like(b, rec->in[0], rec->in[0]->place, rec->module);
	clamp = d ? tess_record_append(b->r, TESS_OP_CLAMP_D, rec->module, 2, in, 1, &d, 0, NULL)
	          : NULL;
	if (!clamp)
		return;
	tess_record_copy_numbers(clamp, rec);
	tess_backward_give(b, rec->in[0], d);
}

void tess_backward_record_split(struct tess_backward *b, const struct tess_record *rec)
{
	struct tess_tensor **in = tess_backward_take_parts(b, rec), *d;

	d = in ? tess_backward_make_like(b, rec->in[0], rec->in[0]->place, rec->module) : NULL;
	if (d &&
	    tess_record_append(b->r, TESS_REC_JOIN, rec->module, rec->nout, in, 1, &d, 0, NULL))
		tess_backward_give(b, rec->in[0], d);
}

/* ---- a whole program ------------------------------------------------------------------------- */

static void reverse_record(struct tess_backward *b, const struct tess_record *rec)
{
	static void (*const backwards[])(struct tess_backward *, const struct tess_record *) = {
#define OP(kind, name, outs, weight, cost, backward, lower) \
	[TESS_OP_##kind] = tess_backward_record_##backward,
#define RECORD(kind, name, backward, lower) [TESS_REC_##kind] = tess_backward_record_##backward,
#include "nn/op/kinds.def"
	};

	if (tess_backward_reaches(b, rec))
		backwards[rec->kind](b, rec);
}

void tess_program_record_backward(struct tess_recorder *r)
{
	struct tess_program *p = r->p;
	int32_t nforward = p->nrecords;
	struct tess_backward b = { .r = r, .nforward = nforward };
	struct tess_recompute again;

	tess_recompute_begin(r, &again);
	b.given = TESS_NEW(&p->arena, struct tess_contribution *, p->ntensors);
	b.recorded = TESS_NEW(&p->arena, bool, p->nweights);
	b.heads = TESS_NEW(&p->arena, struct tess_head_gradient, p->nweights);
	if (!b.given || !b.recorded || !b.heads) {
		tess_recorder_keep_error(r, TESS_ENOMEM);
		return;
	}
	b.consumer = nforward;
	tess_backward_set_record(&b, nforward);
	tess_backward_record_loss(&b);
	for (b.consumer = nforward - 1; b.consumer >= 0 && !r->status; b.consumer--) {
		const struct tess_record *rec = tess_recompute_get(&again, b.consumer);

		tess_backward_set_record(&b, b.consumer);
		if (!r->status)
			reverse_record(&b, rec);
	}
	r->of = NULL;
	tess_recompute_end(&again);
}

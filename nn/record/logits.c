/* logits.c - places the logits of a step: gathered last, on one rank, or not at all. */
#include "nn/record/recorder.h"

#include <string.h>

/*
 * Finishes the logits. A cut by vocabulary is gathered last, or stays if no rank requests complete
 * rows; uncut rows are then rank 0's.
 */
static struct tess_tensor *gather_logits(struct tess_recorder *r, struct tess_tensor *x)
{
	static const char output[] = "the model's output";
	struct tess_place *to = TESS_NEW(&r->p->arena, struct tess_place, r->p->mesh.ndims);
	int32_t along;

	if (!to)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	if (r->status || !x)
		return NULL;
	memcpy(to, r->whole, sizeof *to * (size_t)r->p->mesh.ndims);
	along = tess_places_find(x->place, r->p->mesh.ndims, TESS_SHARD, 1);
	if (along < 0 || x->dim[1]->base != x->dim[1]) {
		if (r->p->logits_root == TESS_LOGITS_CUT && r->p->pipeline_along < 0)
			r->p->logits_root = 0; /* a pipeline's cut chooses the rank */
		return tess_tensor_redistribute(r, x, to, output);
	}
	to[along] = x->place[along];
	r->p->vocabulary_along = along;
	x = tess_tensor_redistribute(r, x, to, output);
	return x && r->p->logits_root != TESS_LOGITS_CUT
	               ? tess_tensor_move(r, x, along, tess_place_replicate(), output)
	               : x;
}

/*
 * Returns the logits for the loss: cut by vocabulary, if the last record gathers them for the
 * layout of the head. The gather is then unused.
 */
static struct tess_tensor *find_cut_logits(struct tess_recorder *r, struct tess_tensor *x)
{
	struct tess_program *p = r->p;
	const struct tess_record *last = p->nrecords ? p->record[p->nrecords - 1] : NULL;

	if (!last || last->kind != TESS_REC_MOVE || last->out[0] != x ||
	    !tess_place_is(last->in[0]->place[last->along], TESS_SHARD, 1) ||
	    x->dim[1]->base != x->dim[1])
		return x;
	p->nrecords--;
	for (struct tess_module_output *o = r->outputs; o; o = o->next)
		if (o->value == x)
			o->value = last->in[0];
	return last->in[0];
}

struct tess_tensor *tess_logits_place(struct tess_recorder *r, struct tess_tensor *x)
{
	struct tess_program *p = r->p;

	if (r->status || !p->training)
		return gather_logits(r, x);
	p->logits_root = TESS_LOGITS_CUT;
	x = gather_logits(r, find_cut_logits(r, x));
	p->logits_root = -1;
	return x;
}

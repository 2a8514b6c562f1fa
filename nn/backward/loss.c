/*
 * loss.c - records the loss of each token and the gradient of the logits. Logits that are cut by
 * vocabulary are not gathered: ranks exchange one number per token.
 */
#include "core/base/status.h"
#include "nn/backward/backward.h"

enum { MAX, SUM, PICK, ROWS };

/* Records a number per row of the logits in[0]: over this rank's columns, then over all. */
static struct tess_tensor *record_of_rows(struct tess_backward *b, int32_t kind, int32_t nin,
                                          struct tess_tensor *const *in)
{
	struct tess_program *p = b->r->p;
	int32_t along = p->vocabulary_along;
	struct tess_place *place = tess_recorder_alloc_places(b->r);
	struct tess_tensor *y;

	for (int32_t i = 0; i < p->mesh.ndims && place; i++)
		place[i] = tess_place_replicate();
	if (along >= 0 && place)
		place[along] =
			(struct tess_place){ .kind = TESS_PARTIAL,
			                     .op = kind == TESS_OP_LOSS_MAX ? TESS_MAX : TESS_SUM };
	y = place && !b->r->status ? tess_tensor_new(b->r, 1, &in[0]->dim[0], place, "the loss")
	                           : NULL;
	if (!y || !tess_record_append(b->r, kind, "the loss", nin, in, 1, &y, 0, NULL))
		return NULL;
	y->sum = along >= 0 && kind != TESS_OP_LOSS_MAX ? in[0]->dim[1] : NULL;
	return along < 0 ? y : tess_tensor_move(b->r, y, along, tess_place_replicate(), "the loss");
}

void tess_backward_record_loss(struct tess_backward *b)
{
	struct tess_program *p = b->r->p;
	struct tess_tensor *z = p->logits, *of[ROWS + 1] = { 0 }, *d;

	of[MAX] = record_of_rows(b, TESS_OP_LOSS_MAX, 1, (struct tess_tensor *[]){ z });
	of[SUM] = record_of_rows(b, TESS_OP_LOSS_SUM, 2, (struct tess_tensor *[]){ z, of[MAX] });
	of[PICK] =
		record_of_rows(b, TESS_OP_LOSS_PICK, 2, (struct tess_tensor *[]){ z, p->labels });
	of[ROWS] = p->labels;
	p->loss = of[PICK] ? tess_tensor_new(b->r, 1, &z->dim[0], b->r->whole, "the loss") : NULL;
	if (!p->loss ||
	    !tess_record_append(b->r, TESS_OP_LOSS, "the loss", ROWS + 1, of, 1, &p->loss, 0, NULL))
		return;
	d = tess_backward_make_like(b, z, z->place, "the loss");
	if (d &&
	    tess_record_append(b->r, TESS_OP_LOSS_D, "the loss", 5,
	                       (struct tess_tensor *[]){ z, of[MAX], of[SUM], p->labels, p->count },
	                       1, &d, 0, NULL))
		tess_backward_give(b, z, d);
}

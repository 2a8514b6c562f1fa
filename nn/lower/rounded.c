/* rounded.c - stores values of training as bf16 that all ops on them round, or write rounded. */
#include "core/registry/plugin_call.h"
#include "nn/lower/build.h"

struct count { /* of the references to a buffer */
	int32_t other; /* by other than ops that round it */
	int32_t written, read;
};

static struct tess_view *get_view(const struct build *b, const struct use *u)
{
	struct tess_step *s = b->l->step[u->step];

	return u->view < s->op.nin ? &s->in[u->view] : &s->out[u->view - s->op.nin];
}

static void count_references(const struct build *b, struct count *of)
{
	for (int32_t i = 0; i < b->l->npatches; i++)
		if (b->l->patch[i].space == TESS_SPACE_STEP)
			of[b->l->patch[i].buffer].other++;
	for (int32_t i = 0; i < b->nuses; i++) {
		const struct use *u = &b->use[i];
		const struct tess_op *op = &b->l->step[u->step]->op;

		if (b->buffer[u->buffer].space != TESS_SPACE_STEP ||
		    get_view(b, u)->dtype != TESS_F32 ||
		    TESS_PLUGIN_VALUE_QUICK(b->p->device, op->where, rounds, op, u->view) != 1)
			continue;
		of[u->buffer].other--;
		of[u->buffer].written += u->view >= op->nin;
		of[u->buffer].read += u->view < op->nin;
	}
}

static bool is_always_rounded(const struct count *of)
{
	return !of->other && of->written && of->read;
}

void build_round_values(struct build *b)
{
	struct count *of;

	if (!b->p->device || !b->p->device->rounds)
		return;
	of = TESS_NEW(&b->l->arena, struct count, b->nbuffers);
	if (!of) {
		b->status = TESS_ENOMEM;
		return;
	}
	count_references(b, of);
	for (int32_t i = 0; i < b->nbuffers; i++)
		if (is_always_rounded(&of[i]))
			b->buffer[i].life.bytes =
				(b->buffer[i].life.bytes / 2 + 63) & ~(uint64_t)63;
	for (int32_t i = 0; i < b->nuses; i++) {
		if (!is_always_rounded(&of[b->use[i].buffer]))
			continue;
		get_view(b, &b->use[i])->dtype = TESS_BF16;
		b->l->patch[b->use[i].patch].offset /= 2;
	}
}

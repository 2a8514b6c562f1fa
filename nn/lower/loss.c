/* loss.c - lowers the loss of each token, and the gradient of the logits. */
#include "nn/lower/build.h"

#include <tessera/reduce.h>

/* Returns true if an operand is a list of integers rather than one number per row. */
static bool is_list(const struct tess_tensor *t)
{
	return t->dtype == TESS_I32;
}

void build_add_loss(struct build *b, const struct tess_record *rec)
{
	const struct tess_dim *vocab = rec->in[0]->ndim > 1 ? rec->in[0]->dim[1] : NULL;
	struct tess_cut cut = build_find_cut(b, rec->in[0]->place, 1);
	struct tess_step *s = build_add_op(b, rec->kind, rec->nin, 1);
	double first = 0;

	for (int32_t i = 0; i < rec->nin && !b->status; i++) {
		build_set_input(b, s, i, build_get_value(b, rec->in[i]));
		if (is_list(rec->in[i]) || rec->in[i] == b->p->count)
			s->in[i].ndim = 1;
	}
	build_set_output(b, s, 0, build_get_value(b, rec->out[0]));
	if (rec->kind == TESS_OP_LOSS_PICK || rec->kind == TESS_OP_LOSS_D) {
		if (cut.nranks > 1) /* a single part */
			tess_dim_list_local_runs(vocab, cut, b->runs);
		first = cut.nranks > 1 ? (double)b->runs[0].start : 0;
		build_set_numbers(b, &s->op, TESS_LOSS_NUMS, &first);
	}
	if (rec->kind == TESS_OP_LOSS_D)
		build_allow_in_place(b, build_get_value(b, rec->in[0]),
		                     build_get_value(b, rec->out[0]));
	if (rec->kind == TESS_OP_LOSS_SUM ||
	    (rec->kind == TESS_OP_LOSS_PICK && build_get_value(b, rec->out[0])->partial))
		build_set_trees(b, &s->op, vocab, cut);
}

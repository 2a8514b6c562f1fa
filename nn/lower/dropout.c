#include "nn/lower/build.h"

void build_add_dropout(struct build *b, const struct tess_record *rec)
{
	struct value *x = build_get_value(b, rec->in[0]), *y = build_get_value(b, rec->out[0]);
	struct tess_cut cut = build_find_cut(b, rec->in[0]->place, 1);
	double num[TESS_DROPOUT_NUMS] = { rec->num[TESS_DROPOUT_RATE],
		                          rec->num[TESS_DROPOUT_SITE] };
	struct tess_run run;
	struct tess_step *s;

	if (!x->rows || !x->cols)
		return;
	if (cut.nranks > 1) {
		tess_dim_get_local_runs(rec->in[0]->dim[1], cut.nranks, cut.rank, &run);
		num[TESS_DROPOUT_FIRST] = (double)run.start;
	}
	s = build_add_op(b, TESS_OP_DROPOUT, 4, 1);
	for (int32_t i = 0; i < 4; i++)
		build_set_input(b, s, i, build_get_value(b, rec->in[i]));
	build_set_output(b, s, 0, y);
	build_allow_in_place(b, x, y);
	build_set_numbers(b, &s->op, TESS_DROPOUT_NUMS, num);
	if (!b->status)
		s->in[1].ndim = s->in[2].ndim = s->in[3].ndim = 1;
}

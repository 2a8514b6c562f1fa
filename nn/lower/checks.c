#include "nn/lower/build.h"

void build_add_checks(struct build *b, const struct tess_record *rec)
{
	/*
	 * a view of a checked value, logits that one rank gathers of checked parts, and a value
	 * that later records complete; rows that some ranks leave undefined
	 */
	bool same =
		rec->kind == TESS_REC_SPLIT || rec->kind == TESS_REC_STRAIGHT ||
		(rec->kind == TESS_OP_HEAD_LINEAR_DW && rec->num[TESS_REC_HEAD_COMPLETE] == 0) ||
		(rec->kind == TESS_REC_EXPERT_ROWS &&
	         rec->out[0]->place[rec->along].kind == TESS_REPLICATE) ||
		(rec->out[0] == b->p->logits && b->p->logits_root >= 0);

	for (int32_t i = 0; i < rec->nout && !same && !b->status; i++) {
		struct tess_step *s = build_add_step(b, TESS_STEP_CHECK);
		const struct value *v = build_get_value(b, rec->out[i]);

		s->check = TESS_NEW(&b->l->arena, struct tess_check, 1);
		if (!s->check) {
			b->status = TESS_ENOMEM;
			return;
		}
		*s->check = (struct tess_check){ .record = rec,
			                         .tensor = rec->out[i],
			                         .program = b->p,
			                         .rank = b->l->rank,
			                         .view = build_make_view(v) };
		build_add_pointer(b, &s->check->view.data, v);
	}
}

/* hooks.c - lowers the calls that hooks record. */
#include "nn/lower/build.h"

#include <string.h>

/* Sets the gradient of a rank whose value nothing reads. */
static tess_status clear_gradient(const struct tess_local *at)
{
	int64_t n = at->out->shape[0] * at->out->stride[0];

	memset(at->out->data, 0, sizeof(float) * (size_t)n);
	return TESS_OK;
}

/* Returns true if this rank's x is not read: y is replicated, and is that of rank 0. */
static bool is_unread(const struct build *b, const struct tess_record *rec)
{
	return rec->in[0]->place[rec->along].kind == TESS_SHARD &&
	       rec->in[1]->place[rec->along].kind == TESS_REPLICATE &&
	       tess_program_get_cut(b->p, b->l->rank, rec->along).rank != 0;
}

/* Sets the views and descriptions of n inputs and one output. */
static void set_operands(struct build *b, const struct tess_record *rec, struct tess_local *local)
{
	int32_t n = rec->nin;
	struct tess_view *view = TESS_NEW(&b->l->arena, struct tess_view, n + 1);
	struct tess_operand *about = TESS_NEW(&b->l->arena, struct tess_operand, n + 1);

	if (!view || !about) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i <= n; i++) {
		const struct tess_tensor *t = i < n ? rec->in[i] : rec->out[0];
		struct value *v = build_get_value(b, t);

		view[i] = build_make_view(v);
		about[i] = tess_tensor_describe(b->p, t, rec->along, b->l->rank);
		build_add_pointer(b, &view[i].data, v);
	}
	local->in = view;
	local->out = &view[n];
	local->in_about = about;
	local->out_about = &about[n];
}

void build_add_call(struct build *b, const struct tess_record *rec)
{
	struct value scratch =
		build_add_temporary(b, 0, 1, (int64_t)(rec->call->scratch + 3) / 4, TESS_F32);
	struct tess_step *s = build_add_step(b, TESS_STEP_CALL);
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, rec->along);

	s->backward = rec->nin > 1;
	s->call = !s->backward        ? rec->call->compute
	          : is_unread(b, rec) ? clear_gradient
	                              : rec->call->grad;
	s->style = rec->style;
	s->where = rec->module;
	s->local = (struct tess_local){
		.size = sizeof s->local, .rank = cut.rank, .nranks = cut.nranks, .state = rec->state
	};
	set_operands(b, rec, &s->local);
	build_add_pointer(b, &s->local.scratch, &scratch);
}

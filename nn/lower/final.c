/*
 * final.c - finds when a step of training no longer needs a weight: its gradient is final, and no
 * later record reads it. Weights that are in files or in memory of the host next to a device, or
 * whose state is, may be updated from then on.
 */
#include "nn/lower/build.h"

struct build_final {
	bool *wanted; /* by weight: it is announced, once */
	bool *awaited; /* by weight: it is, or need not be */
	int32_t *last; /* by weight: the last record that has it */
	int32_t *left; /* by weight: parts of its gradient that are not stored yet */
};

/* Chooses the weights that are awaited, and announced: no tables of tied heads. */
static void choose_weights(struct build *b, struct build_final *f)
{
	const struct tess_program *p = b->p;

	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i];

		f->awaited[i] = !tess_weight_is_trained(p, w);
		f->wanted[i] = !f->awaited[i] && !w->table &&
		               (tess_weight_has_stored_state(p, w, b->l->rank) ||
		                tess_weight_is_fetched(p, w, b->l->rank));
	}
	for (int32_t i = 0; i < p->nweights; i++)
		if (tess_weight_get_table(p->weight[i]))
			f->wanted[tess_weight_get_table(p->weight[i])->index] = false;
	for (int32_t i = 0; i < p->nrecords; i++)
		for (int32_t k = 0; k < p->record[i]->nweight; k++)
			f->last[p->record[i]->weight[k]->index] = i;
}

void build_plan_final(struct build *b)
{
	struct tess_arena *arena = &b->l->arena;
	struct build_final *f;

	/*
	 * weights of stages are updated after the last action; where some rank has values apart,
	 * all ranks announce their losses
	 */
	if (b->p->nstages > 1 || !tess_program_has_values_apart(b->p))
		return;
	f = TESS_NEW(arena, struct build_final, 1);
	if (f) {
		f->wanted = TESS_NEW(arena, bool, b->p->nweights);
		f->awaited = TESS_NEW(arena, bool, b->p->nweights);
		f->last = TESS_NEW(arena, int32_t, b->p->nweights);
		f->left = TESS_NEW(arena, int32_t, b->p->nweights);
	}
	if (!f || !f->wanted || !f->awaited || !f->last || !f->left) {
		b->status = TESS_ENOMEM;
		return;
	}
	choose_weights(b, f);
	b->final = f;
}

static void announce_weight(struct build *b, const struct tess_weight *w)
{
	struct build_final *f = b->final;

	if (!f->wanted[w->index] || f->left[w->index] || b->record < f->last[w->index])
		return;
	f->wanted[w->index] = false;
	build_add_step(b, TESS_STEP_FINAL)->final_weight = w;
}

void build_expect_gradient(struct build *b, const struct tess_weight *w)
{
	if (b->final)
		b->final->left[w->index]++;
}

void build_announce_gradient(struct build *b, const struct tess_weight *w)
{
	if (!b->final)
		return;
	b->final->left[w->index]--;
	announce_weight(b, w);
}

void build_announce_record(struct build *b, const struct tess_record *rec)
{
	if (!b->final || b->status)
		return;
	for (int32_t i = 0; i < rec->nout; i++)
		if (rec->out[i] == b->p->loss)
			build_add_step(b, TESS_STEP_FINAL)->final_weight = NULL;
	for (int32_t i = 0; i < rec->nweight; i++)
		announce_weight(b, rec->weight[i]);
}

void build_await_weight(struct build *b, const struct tess_weight *w)
{
	const struct tess_weight *home = tess_weight_get_home(w);

	if (!b->final || b->status || b->final->awaited[home->index])
		return;
	b->final->awaited[home->index] = true;
	build_add_step(b, TESS_STEP_AWAIT)->final_weight = home;
}

void build_await_record(struct build *b, const struct tess_record *rec)
{
	for (int32_t i = 0; i < rec->nweight; i++)
		build_await_weight(b, rec->weight[i]);
}

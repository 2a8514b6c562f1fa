/*
 * order.c - lets each stage add the gradients of its weights in the order of micro-batches.
 *
 * Sums of floats depend on their order, and one rank adds micro-batch after micro-batch. A backward
 * that comes too early gives the gradients of inputs alone; those of weights follow once those of
 * all earlier micro-batches have been added.
 */
#include "nn/schedule/schedule.h"

struct weight_order {
	struct tess_schedule_maker *m;
	int32_t *next; /* by stage: the micro-batch whose gradients of weights are to be added */
	int32_t *held; /* by stage and micro-batch: 1 + the cell of what is held back; 0: nothing */
};

static int32_t *find_held(const struct weight_order *o, int32_t stage, int32_t micro)
{
	return &o->held[(int64_t)stage * o->m->nmicro + micro];
}

/* Adds the gradients of weights that were held back and can be added now. */
static void release_weights(struct weight_order *o, int32_t rank, int32_t stage)
{
	for (; o->next[stage] < o->m->nmicro && *find_held(o, stage, o->next[stage]);
	     o->next[stage]++)
		tess_schedule_add(o->m, rank,
		                  (struct tess_pipeline_action){
					  TESS_PIPELINE_BACKWARD_WEIGHTS, stage, o->next[stage],
					  *find_held(o, stage, o->next[stage]) - 1 });
}

static void add_in_order(struct weight_order *o, int32_t rank, struct tess_pipeline_action a)
{
	bool adds = a.kind == TESS_PIPELINE_BACKWARD || a.kind == TESS_PIPELINE_BACKWARD_WEIGHTS;
	bool early = adds && a.micro != o->next[a.stage];

	if (early)
		*find_held(o, a.stage, a.micro) = 1 + a.cell;
	if (early && a.kind == TESS_PIPELINE_BACKWARD)
		a.kind = TESS_PIPELINE_BACKWARD_INPUTS;
	if (!early || a.kind == TESS_PIPELINE_BACKWARD_INPUTS)
		tess_schedule_add(o->m, rank, a);
	if (!adds || early)
		return;
	o->next[a.stage]++;
	release_weights(o, rank, a.stage);
}

tess_status tess_schedule_order_weights(struct tess_schedule_maker *m)
{
	struct tess_schedule_row *was = m->row;
	struct weight_order o = { .m = m,
		                  .next = TESS_NEW(m->arena, int32_t, m->nstages),
		                  .held = TESS_NEW(m->arena, int32_t,
		                                   (int64_t)m->nstages * m->nmicro) };

	m->row = TESS_NEW(m->arena, struct tess_schedule_row, m->nranks);
	if (!m->row || !o.next || !o.held)
		return TESS_ENOMEM;
	for (int32_t r = 0; r < m->nranks; r++)
		for (int32_t i = 0; i < was[r].n; i++)
			add_in_order(&o, r, was[r].action[i]);
	return m->failed ? TESS_ENOMEM : TESS_OK;
}

/* trainer_pipeline.c - micro-batches, of which stages of a pipeline compute several at a time. */
#include "nn/agree.h"
#include "nn/run.h"
#include "nn/trainer_state.h"

struct pipelined { /* micro-batches under way */
	struct tess_trainer *trainer;
	const struct tess_batch *micro;
	int32_t n;
	struct tess_pipeline_schedule schedule;
	struct tess_shaped_program *program[TESS_MICRO_BATCHES];
	int64_t before[TESS_MICRO_BATCHES]; /* sequences of the step before each, and in `odd` */
	int64_t odd[TESS_MICRO_BATCHES];
	struct tess_step *under_way;
};

static int32_t get_memory_slot(const struct pipelined *c, int32_t micro)
{
	return micro % c->schedule.nslots;
}

/* A program for each: those that are under way at a time need steps of their own. Collective. */
static tess_status prepare_programs(struct pipelined *c, bool accumulate, int64_t before)
{
	struct tess_trainer *t = c->trainer;
	int32_t nstages = tess_program_get_cut(t->programs.first->program, 0,
	                                       t->programs.first->program->pipeline_along)
	                          .nranks;
	struct tess_training training;
	int64_t at = 0;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < c->n && !st; i++) {
		const struct tess_batch *b = &c->micro[i];
		struct tess_shape shape = tess_trainer_make_shape(t, b, accumulate || i, &training);

		/* as many on all ranks, which look for programs together */
		shape.slot = i % nstages;
		st = tess_trainer_prepare(t, shape, c->schedule.nslots, &c->program[i]);
		c->before[i] = before + at;
		c->odd[i] = at;
		at += b->nsequences;
	}
	return st;
}

/* Steps of a segment; behind the last one those that wait for what was sent. */
static tess_status run_segment(struct pipelined *c, int32_t micro, int32_t segment)
{
	struct tess_trainer *t = c->trainer;
	const struct tess_shaped_program *k = c->program[micro];
	int32_t first, end;

	tess_pipeline_schedule_find_steps(k->program, k->lowered, segment, &first, &end);
	return tess_rank_program_run_part(k->lowered, first, end, &t->device, &t->groups,
	                                  &c->under_way);
}

/* The slot is free when what the micro-batch before it there has sent has arrived. */
static tess_status begin_micro_batch(struct pipelined *c, int32_t micro,
                                     const struct tess_batch_totals *totals)
{
	int32_t slot = get_memory_slot(c, micro), last = micro - c->schedule.nslots;
	tess_status st = last < 0 ? TESS_OK : run_segment(c, last, c->schedule.nsegments);

	if (st)
		return st;
	tess_trainer_bind(c->trainer, slot, c->program[micro]);
	return tess_trainer_write_inputs(c->trainer, slot, &c->micro[micro], c->before[micro],
	                                 totals);
}

static tess_status run_micro_batches(struct pipelined *c, struct tess_batch_totals *totals,
                                     struct tess_accumulator *loss, int32_t *odd)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < c->schedule.n && !st; i++) {
		int32_t micro = c->schedule.item[i].micro, segment = c->schedule.item[i].segment;

		if (!segment)
			st = begin_micro_batch(c, micro, totals);
		if (!st)
			st = run_segment(c, micro, segment);
		if (!st && segment + 1 == c->schedule.nsegments)
			st = tess_trainer_read_losses(c->trainer, c->program[micro],
			                              &c->micro[micro], totals, loss,
			                              odd + c->odd[micro]);
	}
	for (int32_t i = c->n - c->schedule.nslots; i < c->n && !st; i++)
		st = run_segment(c, i, c->schedule.nsegments);
	return st;
}

tess_status tess_trainer_run_pipeline(struct tess_trainer *t, const struct tess_batch *micro,
                                      int32_t n, bool accumulate, struct tess_batch_totals *totals,
                                      struct tess_accumulator *loss, int32_t *odd)
{
	const struct tess_program *p = t->programs.first->program;
	struct pipelined c = { .trainer = t, .micro = micro, .n = n };
	struct tess_arena arena = { 0 };
	tess_status st = tess_pipeline_schedule_make(p, tess_program_get_stage(p, t->rank), n,
	                                             &arena, &c.schedule);

	st = tess_group_agree_status(t->parts.group, st, "step");
	if (!st)
		st = prepare_programs(&c, accumulate, totals->before);
	if (!st)
		st = tess_group_post_stage_failure(t->parts.group, p,
		                                   run_micro_batches(&c, totals, loss, odd));
	tess_steps_abandon(c.under_way);
	tess_arena_free(&arena);
	return st;
}

/* trainer_pipeline.c - runs several micro-batches at a time on the stages of a pipeline. */
#include "nn/program/agree.h"
#include "nn/run/run.h"
#include "nn/run/segment.h"
#include "nn/train/trainer_state.h"

struct pipelined { /* outstanding micro-batches */
	struct tess_trainer *trainer;
	const struct tess_batch *micro;
	int32_t n;
	struct tess_pipeline_schedule schedule;
	struct tess_shaped_program *program[TESS_MICRO_BATCHES];
	int64_t before[TESS_MICRO_BATCHES + 1]; /* sequences of the micro-batches before each */
	struct tess_step *under_way;
};

/* Prepares a program per micro-batch: concurrent ones need steps of their own. Collective. */
static tess_status prepare_programs(struct pipelined *c, bool accumulate)
{
	struct tess_trainer *t = c->trainer;
	const struct tess_program *p = t->programs.first->program;
	int32_t nslots =
		tess_pipeline_schedule_count_slots(p, tess_program_get_stage(p, t->rank), c->n);
	struct tess_training training;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < c->n && !st; i++) {
		const struct tess_batch *b = &c->micro[i];
		struct tess_shape shape = tess_trainer_make_shape(t, b, accumulate || i, &training);

		/* equal on all ranks, which find programs together */
		shape.slot = i % tess_program_count_stages(p);
		st = tess_trainer_prepare(t, shape, nslots, &c->program[i]);
		c->before[i + 1] = c->before[i] + b->nsequences;
	}
	return st;
}

/* Runs a segment; number nsegments waits for sends. */
static tess_status run_segment(struct pipelined *c, int32_t micro, int32_t segment)
{
	struct tess_trainer *t = c->trainer;
	const struct tess_shaped_program *k = c->program[micro];
	int32_t first, end;

	tess_pipeline_schedule_find_steps(&c->schedule, k->lowered, segment, &first, &end);
	return tess_rank_program_run_part(k->lowered, first, end, &t->device, &t->groups,
	                                  &c->under_way);
}

/* Frees the slot by waiting for the sends of its last micro-batch, then writes inputs. */
static tess_status begin_micro_batch(struct pipelined *c, int32_t micro, int64_t before,
                                     const struct tess_batch_totals *totals)
{
	int32_t slot = micro % c->schedule.nslots, last = micro - c->schedule.nslots;
	tess_status st = last < 0 ? TESS_OK : run_segment(c, last, c->schedule.nsegments);

	if (st)
		return st;
	tess_trainer_bind(c->trainer, slot, c->program[micro]);
	return tess_trainer_write_inputs(c->trainer, slot, &c->micro[micro],
	                                 before + c->before[micro], totals);
}

static tess_status run_micro_batches(struct pipelined *c, struct tess_batch_totals *totals,
                                     struct tess_accumulator *loss, int32_t *nonfinite)
{
	int64_t before = totals->before;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < c->schedule.n && !st; i++) {
		int32_t micro = c->schedule.item[i].micro, segment = c->schedule.item[i].segment;

		if (!segment)
			st = begin_micro_batch(c, micro, before, totals);
		if (!st)
			st = run_segment(c, micro, segment);
		if (!st && segment + 1 == c->schedule.nsegments)
			st = tess_trainer_read_losses(c->trainer, c->program[micro],
			                              &c->micro[micro], totals, loss,
			                              nonfinite + c->before[micro]);
	}
	for (int32_t i = c->n - c->schedule.nslots; i < c->n && !st; i++)
		st = run_segment(c, i, c->schedule.nsegments);
	return st;
}

tess_status tess_trainer_run_pipeline(struct tess_trainer *t, const struct tess_batch *micro,
                                      int32_t n, bool accumulate, struct tess_batch_totals *totals,
                                      struct tess_accumulator *loss, int32_t *nonfinite)
{
	struct pipelined c = { .trainer = t, .micro = micro, .n = n };
	struct tess_arena arena = { 0 };
	const struct tess_program *p;
	tess_status st = prepare_programs(&c, accumulate);

	if (st)
		return st;
	p = c.program[0]->program;
	st = tess_pipeline_schedule_make(p, tess_program_get_stage(p, t->rank), n, &arena,
	                                 &c.schedule);
	st = tess_group_agree_status(t->parts.group, st, "step");
	if (!st)
		st = tess_group_post_stage_failure(t->parts.group, p,
		                                   run_micro_batches(&c, totals, loss, nonfinite));
	tess_steps_abandon(c.under_way);
	tess_arena_free(&arena);
	return st;
}

/* sample.c - measures a few layers of a strategy without stages. */
#include "api/plan/compose.h"
#include "api/plan/evaluation.h"

#include <string.h>

void tess_sample_combine(double a, const void *x, double b, const void *y, void *out, size_t n)
{
	const double *from = x, *with = y;
	double *to = out;

	for (size_t i = 0; i < n; i++)
		to[i] = a * from[i] + b * with[i];
}

/* Adds both halves of a step of training of a rank to the sample. */
static tess_status sample_halves(struct evaluation *e, const struct tess_program *p,
                                 const struct tess_rank_program *l, int32_t middle)
{
	const struct tess_machine *m = e->planner->machine;
	struct tess_step_time half[2] = { 0 };
	struct tess_step_trace *trace = e->halves->trace;
	tess_status st;

	trace = trace && !trace[1].n ? trace : NULL; /* of the first rank */
	st = tess_steps_trace(m, p, l, 0, middle, &e->known, &half[0], trace);
	if (!st)
		st = tess_steps_trace(m, p, l, middle, l->nsteps, &e->known, &half[1],
		                      trace ? trace + 1 : NULL);
	evaluation_keep_slowest(&e->halves->forward, &half[0]);
	evaluation_keep_slowest(&e->halves->backward, &half[1]);
	return st;
}

/* Returns the bytes of the weights that the optimizer leaves in shares. */
static double count_returned_payload(const struct tess_program *p)
{
	double shards = tess_program_count_shards(p);

	return shards > 1 ? (double)tess_explaining_count_returned(p) * shards / (shards - 1) : 0;
}

tess_status tess_planner_sample(struct tess_planner *p, const struct tess_planned_model *model,
                                const struct tess_strategy *s, int64_t batch,
                                struct tess_sample *out, struct tess_step_trace *trace)
{
	struct evaluation_halves halves = { .trace = trace, .add = sample_halves };
	struct tess_forecast f;
	struct evaluation e;
	tess_status st = evaluation_open(&e, p, model, s, batch, &f);

	e.halves = &halves;
	*out = (struct tess_sample){ 0 };
	if (!st)
		st = evaluation_set_training(&e);
	if (!st)
		st = evaluation_measure_program(&e);
	if (!st) {
		evaluation_measure_memory(&e, 0);
		out->forward = halves.forward.seconds;
		out->backward = halves.backward.seconds;
		out->products = halves.backward.term[TESS_TERM_PRODUCT] *
		                p->machine->time[TESS_TERM_PRODUCT];
		out->state = evaluation_count_state(&e);
		out->transfers = evaluation_time_files(&e, TESS_EXPLAINED_MICRO);
		out->update = evaluation_time_files(&e, TESS_EXPLAINED_UPDATE) +
		              evaluation_time_files(&e, TESS_EXPLAINED_REST);
		out->returned = count_returned_payload(e.x.program);
		memcpy(out->holds, f.holds, sizeof out->holds);
	}
	evaluation_close(&e);
	return st;
}

/* Sets what a stage has of a program of two stages, whose ranks are one after the other. */
static void copy_stage_sample(const struct evaluation *e, int32_t stage,
                              struct tess_stage_sample *out)
{
	const struct tess_machine *m = e->planner->machine;
	const struct tess_stage_time *t = &e->stage[stage];
	int32_t each = e->x.e.nranks / e->nstages;

	for (int32_t k = 0; k < TESS_STAGE_KINDS; k++)
		out->seconds[k] = t->of[k].seconds;
	for (int32_t r = stage * each; r < (stage + 1) * each; r++) {
		const struct tess_explained_rank *k = e->x.e.ranks[r];
		const double holds[TESS_HOLDS_STEP] = {
			[TESS_HOLDS_WEIGHTS] = (double)k->weights * m->holds[TESS_HOLDS_WEIGHTS],
			[TESS_HOLDS_GRADIENTS] =
				(double)k->gradients * m->holds[TESS_HOLDS_GRADIENTS],
			[TESS_HOLDS_STATE] = (double)(k->state + tess_explained_get_transfer(k)) *
			                     m->holds[TESS_HOLDS_STATE],
		};

		for (int32_t i = 0; i < TESS_HOLDS_STEP; i++)
			out->holds[i] = holds[i] > out->holds[i] ? holds[i] : out->holds[i];
	}
	out->slot = (t->slot * m->width / 4 - t->gathered) * m->holds[TESS_HOLDS_STEP] +
	            t->gathered * m->holds[TESS_HOLDS_GATHERED];
	out->arena = t->arena * m->width / 4 * m->holds[TESS_HOLDS_STEP] +
	             t->logits * m->holds[TESS_HOLDS_LOSS];
	out->sent = e->send * m->width / 4;
}

tess_status tess_planner_sample_stages(struct tess_planner *p,
                                       const struct tess_planned_model *model,
                                       const struct tess_strategy *s, int64_t batch,
                                       struct tess_stage_sample out[2])
{
	struct tess_forecast f;
	struct evaluation e;
	tess_status st = evaluation_open(&e, p, model, s, batch, &f);

	e.sampled = true;
	memset(out, 0, 2 * sizeof *out);
	if (!st)
		st = evaluation_set_training(&e);
	if (!st)
		st = tess_explaining_open_schedule(&e.x);
	if (!st)
		st = evaluation_measure_program(&e);
	for (int32_t i = 0; i < 2 && !st; i++)
		copy_stage_sample(&e, i, &out[i]);
	evaluation_close(&e);
	return st;
}

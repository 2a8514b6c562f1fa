/* evaluate_training.c - predicts a step of training. */
#include "api/plan/evaluation.h"
#include "core/base/status.h"

#include <math.h>
#include <stdlib.h>

/* Without stages all micro-batches run one after another; an update may begin in the last. */
static void add_plain_step(struct evaluation *e)
{
	bool early = evaluation_updates_early(e);

	for (int32_t kind = 0; kind < TESS_PIPELINE_KINDS; kind++)
		evaluation_add_time(e, &e->stage[0].of[kind], (double)(e->micro - early));
	if (early)
		evaluation_add_time(e, &e->last.time, 1);
}

/* Adds the gradients that each stage reduces in its last micro-batch. */
static void add_reduced_once(struct evaluation *e)
{
	double factor = e->planner->machine->time[TESS_TERM_DATA], most = 0;

	for (int32_t s = 0; s < e->nstages; s++)
		for (int32_t kind = 0; kind < TESS_PIPELINE_KINDS; kind++) {
			double once = e->stage[s].of[kind].once;

			most = once > most ? once : most;
		}
	evaluation_add_data_call(e, "gradients", factor > 0 ? most / factor : 0);
}

/* Sets the durations of actions by stage: a full backward is I and W. */
static tess_status simulate_stages(const struct evaluation *e, struct tess_timeline **out)
{
	struct tess_pipeline_times times = { 0 };
	double *by[TESS_PIPELINE_KINDS], *all;
	tess_status st;

	all = calloc((size_t)(TESS_PIPELINE_KINDS * e->nstages), sizeof *all);
	if (!all)
		return tess_fail(TESS_ENOMEM, "out of memory for the times of stages");
	for (int32_t k = 0; k < TESS_PIPELINE_KINDS; k++) {
		by[k] = all + k * e->nstages;
		for (int32_t s = 0; s < e->nstages; s++)
			by[k][s] = e->stage[s].of[k].seconds;
	}
	for (int32_t s = 0; s < e->nstages; s++)
		if (by[TESS_PIPELINE_BACKWARD][s] == 0)
			by[TESS_PIPELINE_BACKWARD][s] = by[TESS_PIPELINE_BACKWARD_INPUTS][s] +
			                                by[TESS_PIPELINE_BACKWARD_WEIGHTS][s];
	for (int32_t k = 0; k <= TESS_PIPELINE_BACKWARD_WEIGHTS; k++)
		times.stages[k] = by[k];
	times.kinds[TESS_PIPELINE_SEND_FORWARD] = times.kinds[TESS_PIPELINE_SEND_BACKWARD] =
		tess_machine_communicate(
			e->planner->machine, "send", 2,
			e->x.program->mesh.dim[e->x.program->pipeline_along].stride,
			e->send * e->planner->machine->width / 4) *
		e->planner->machine->time[TESS_TERM_PIPELINE];
	st = tess_pipeline_simulate(e->x.pipeline, &times, out);
	free(all);
	return st;
}

/* Returns the rank that computes longest. */
static int32_t find_busiest(const struct tess_timeline *t)
{
	int32_t most = 0;

	for (int32_t r = 1; r < t->pipeline->nranks; r++)
		if (t->work[r] > t->work[most])
			most = r;
	return most;
}

/* Adds the actions of the busiest rank, and the time that it waits. */
static tess_status add_staged_step(struct evaluation *e)
{
	struct tess_timeline *t = NULL;
	tess_status st = simulate_stages(e, &t);
	int32_t busiest;

	if (st)
		return st;
	busiest = find_busiest(t);
	for (int32_t i = 0; i < t->pipeline->nactions[busiest]; i++) {
		const struct tess_pipeline_action *a = &t->pipeline->actions[busiest][i];

		if (a->kind > TESS_PIPELINE_BACKWARD_WEIGHTS)
			continue;
		evaluation_add_time(e, &e->stage[a->stage].of[a->kind], 1);
		if (a->kind == TESS_PIPELINE_BACKWARD &&
		    e->stage[a->stage].of[a->kind].seconds == 0)
			for (int32_t k = TESS_PIPELINE_BACKWARD_INPUTS;
			     k <= TESS_PIPELINE_BACKWARD_WEIGHTS; k++)
				evaluation_add_time(e, &e->stage[a->stage].of[k], 1);
	}
	e->out->terms[TESS_TERM_BUBBLE] += t->length - t->work[busiest];
	tess_timeline_free(t);
	return TESS_OK;
}

/*
 * Adds the time that the end of a step waits for files, and takes off what the first micro-batch
 * does not read. seconds: of the optimizer after the backward.
 */
static void add_files(struct evaluation *e, double seconds)
{
	const struct tess_program *p = e->x.program;
	const struct tess_machine *m = e->planner->machine;
	double factor = m->time[TESS_TERM_DISK], first, *term = &e->out->terms[TESS_TERM_DISK];
	double buckets = ceil(evaluation_count_state(e) / (double)tess_offload_get_bucket(p));
	double update = evaluation_updates_early(e)
	                        ? e->last.disk
	                        : evaluation_time_files(e, TESS_EXPLAINED_UPDATE);
	double waited = tess_update_wait_time(seconds * m->time[TESS_TERM_OPTIMIZER], update,
	                                      buckets > 1 ? buckets : 1);

	if (factor <= 0)
		return;
	waited = (waited + evaluation_time_files(e, TESS_EXPLAINED_REST)) / factor;
	first = evaluation_time_files(e, TESS_EXPLAINED_FIRST) / factor;
	*term = (*term > first ? *term - first : 0) + waited;
}

/* Adds the optimizer, and the gather of weights that it leaves in shares. */
static void add_optimizer(struct evaluation *e)
{
	const struct tess_program *p = e->x.program;
	const struct tess_machine *m = e->planner->machine;
	double returned = (double)tess_explaining_count_returned(p);
	double n = evaluation_count_state(e), left = n - e->last.elements; /* elements */
	double seconds =
		tess_optimizer_time(m, n, e->planner->moments, 4, !m->exact && e->out->disk > 0);
	double *term = e->out->terms;
	double started = m->launch * p->ngradients / e->nstages; /* an op for each weight */

	seconds *= left > 0 ? left / n : 0;
	term[TESS_TERM_OPTIMIZER] += seconds;
	if (e->out->disk > 0)
		add_files(e, seconds);
	term[TESS_TERM_LATENCY] += started > seconds ? started - seconds : 0;
	if (returned > 0)
		evaluation_add_data_call(
			e, "all_gather",
			tess_machine_communicate(m, "all_gather", tess_program_count_shards(p),
		                                 p->mesh.dim[p->data_along].stride, returned));
}

tess_status evaluation_predict_training(struct evaluation *e)
{
	tess_status st = evaluation_set_training(e);

	if (!st)
		st = tess_explaining_open_schedule(&e->x);
	if (!st)
		st = evaluation_measure_program(e);
	if (st)
		return st;
	evaluation_measure_memory(e, 0);
	if (e->nstages > 1)
		st = add_staged_step(e);
	else
		add_plain_step(e);
	add_reduced_once(e);
	add_optimizer(e);
	e->out->sent = (double)tess_explaining_measure_plan(&e->x).sent;
	return st;
}

/* evaluate_generation.c - predicts the prompt and the tokens of generation. */
#include "api/plan/evaluation.h"

#include <tessera/split.h>

/* Returns the stage that takes longest. */
static const struct tess_step_time *find_slowest_stage(const struct evaluation *e)
{
	int32_t most = 0;

	for (int32_t s = 1; s < e->nstages; s++)
		if (e->stage[s].of[TESS_PIPELINE_FORWARD].seconds >
		    e->stage[most].of[TESS_PIPELINE_FORWARD].seconds)
			most = s;
	return &e->stage[most].of[TESS_PIPELINE_FORWARD];
}

/* Returns the seconds in which the ids of n sequences are chosen; 0: the machine has no rates. */
static double time_choices(const struct evaluation *e, int64_t n)
{
	const struct tess_machine *m = e->planner->machine;
	double bytes = (double)(n * e->x.program->logits->dim[1]->size) * sizeof(float);

	return tess_machine_has_op(m, "sample")
	               ? tess_machine_compute(m, "sample", "memory", (double)n, bytes)
	               : 0;
}

/*
 * Adds the terms of a step of generation `times` times, and sets its seconds. ahead: as many steps
 * are under way as there are stages, and the slowest stage sets their pace.
 */
static tess_status add_generated_step(struct evaluation *e, int64_t n, int64_t length, int64_t from,
                                      bool ahead, double times, double *seconds)
{
	double factor = e->planner->machine->time[TESS_TERM_MEMORY], choices;
	tess_status st = evaluation_set_rows(e, n, length, from);

	e->x.e.tokens = n * length;
	e->x.nselected = n;
	if (!st)
		st = evaluation_measure_program(e);
	*seconds = 0;
	for (int32_t s = 0; s < e->nstages && !st; s++) {
		const struct tess_step_time *t =
			ahead ? find_slowest_stage(e) : &e->stage[s].of[TESS_PIPELINE_FORWARD];

		evaluation_add_time(e, t, times);
		*seconds += t->seconds;
	}
	if (st)
		return st;
	choices = time_choices(e, n);
	e->out->terms[TESS_TERM_MEMORY] += times * choices;
	*seconds += choices * factor;
	return TESS_OK;
}

/* Returns the number of stages. */
static int64_t count_stages(const struct evaluation *e)
{
	int32_t pp = tess_mesh_shape_find(&e->x.mesh, "pp", 2);

	return pp < 0 ? 1 : e->x.mesh.dim[pp].size;
}

tess_status evaluation_predict_generation(struct evaluation *e)
{
	const struct tess_planner_options *o = &e->planner->options;
	int64_t here = tess_edge(o->batch, evaluation_count_replicas(e), 1);
	int64_t stages = count_stages(e), ahead = e->planner->machine->exact ? stages : 1, together;
	int64_t most = e->planner->machine->prompt_rows / (stages > 1 ? 2 * stages : 1), rows;
	double seconds, steps;
	tess_status st;

	/* a step has several short prompts, or a part of a long one; the runner's limit of rows */
	most = most > 1 ? most : 1;
	rows = o->prompt < most ? o->prompt : most;
	together = tess_up(here, ahead) < most / rows ? tess_up(here, ahead) : most / rows;
	steps = (double)(here * o->prompt) / (double)(together * rows);
	/* of steps under way, each adds one stage */
	steps = (steps + (double)(ahead - 1)) / (double)ahead;
	st = add_generated_step(e, together, rows, (o->prompt - rows) / 2, ahead > 1, steps,
	                        &seconds);
	e->out->prompt_seconds = seconds * steps;
	evaluation_close_program(e);
	/* the step of a prompt chooses its first id */
	if (!st)
		st = add_generated_step(e, tess_up(here, ahead), 1, o->prompt + o->tokens / 2,
		                        ahead > 1 && here > 1, (double)(o->tokens - 1), &seconds);
	e->out->token_seconds = seconds;
	if (st)
		return st;
	evaluation_measure_memory(e, (double)(here * tess_up(o->prompt + o->tokens, 64) * 64));
	e->out->sent = (double)tess_explaining_measure_plan(&e->x).sent;
	return TESS_OK;
}

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

/*
 * Adds the terms of a step of generation `times` times, and sets its seconds. ahead: as many steps
 * are under way as there are stages, and the slowest stage sets their pace.
 */
static tess_status add_generated_step(struct evaluation *e, int64_t n, int64_t length, int64_t from,
                                      bool ahead, double times, double *seconds)
{
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
	return st;
}

/* Returns the stages of generation, if several steps are under way; else 1. */
static int64_t count_ahead(const struct evaluation *e)
{
	int32_t pp = tess_mesh_shape_find(&e->x.mesh, "pp", 2);

	return pp < 0 || !e->planner->machine->exact ? 1 : e->x.mesh.dim[pp].size;
}

tess_status evaluation_predict_generation(struct evaluation *e)
{
	const struct tess_planner_options *o = &e->planner->options;
	int64_t here = tess_edge(o->batch, evaluation_count_replicas(e), 1), steps;
	int64_t ahead = count_ahead(e), rows = e->planner->machine->prompt_rows;
	double seconds;
	tess_status st;

	rows = o->prompt < rows ? o->prompt : rows;
	steps = tess_up(o->prompt, rows) * here;
	/* of steps under way, each adds one stage */
	st = add_generated_step(e, 1, rows, (o->prompt - rows) / 2, ahead > 1,
	                        (double)(steps + ahead - 1) / (double)ahead, &seconds);
	e->out->prompt_seconds = seconds * (double)(steps + ahead - 1) / (double)ahead;
	evaluation_close_program(e);
	if (!st)
		st = add_generated_step(e, tess_up(here, ahead), 1, o->prompt + o->tokens / 2,
		                        ahead > 1 && here > 1, (double)o->tokens, &seconds);
	e->out->token_seconds = seconds;
	if (st)
		return st;
	evaluation_measure_memory(e, (double)(here * tess_up(o->prompt + o->tokens, 64) * 64));
	e->out->sent = (double)tess_explaining_measure_plan(&e->x).sent;
	return TESS_OK;
}

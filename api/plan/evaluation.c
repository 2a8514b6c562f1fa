/* evaluation.c - opens the plan, the mesh and the step of a strategy that is predicted. */
#include "api/plan/evaluation.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <tessera/split.h>

static tess_status open_plan(struct evaluation *e)
{
	const struct tess_strategy *s = e->strategy;
	int32_t n = 0;

	while (s->overrides && s->overrides[n])
		n++;
	e->x.model = *e->model;
	e->x.model.device = e->planner->machine->exact ? NULL : &e->planner->device;
	return tess_plan_open(e->x.model.model, s->plan, s->overrides, n, &e->x.model.plan);
}

static tess_status set_strategy_mesh(struct evaluation *e)
{
	struct tess_mesh_shape given;
	tess_status st = tess_mesh_shape_parse(e->strategy->mesh, 0, &given);

	if (!st)
		tess_planner_choose_ranks(e->planner,
		                          e->planner->nranks ? e->planner->nranks : given.nranks);
	return st ? st : tess_explaining_set_mesh(&e->x, &given);
}

tess_status evaluation_open(struct evaluation *e, struct tess_planner *p,
                            const struct tess_planned_model *model, const struct tess_strategy *s,
                            int64_t batch, struct tess_forecast *out)
{
	tess_status st;

	*e = (struct evaluation){ .planner = p,
		                  .model = model,
		                  .batch = batch,
		                  .sequence = p->options.sequence,
		                  .strategy = s,
		                  .out = out };
	st = open_plan(e);
	e->x.borrowed = true;
	e->x.training = e->planner->options.train ? &e->training : NULL;
	e->opened = !st;
	*e->out = (struct tess_forecast){ .strategy = *e->strategy };
	if (!st)
		st = set_strategy_mesh(e);
	e->out->nranks = e->x.e.nranks;
	return st;
}

void evaluation_close_program(struct evaluation *e)
{
	tess_program_free(e->x.program);
	tess_arena_free(&e->x.arena);
	e->x.program = NULL;
}

void evaluation_close(struct evaluation *e)
{
	evaluation_close_program(e);
	tess_timeline_free(e->x.timeline);
	tess_pipeline_close(e->x.pipeline);
	if (e->opened)
		tess_plan_free(&e->x.model.plan);
	free(e->rows);
	free(e->stage);
}

int64_t evaluation_count_replicas(const struct evaluation *e)
{
	int32_t dp = tess_mesh_shape_find(&e->x.mesh, "dp", 2);

	return dp < 0 ? 1 : e->x.mesh.dim[dp].size;
}

void tess_planner_fill_rows(int32_t *at, int64_t n, int64_t length, int64_t from)
{
	for (int64_t i = 0; i < n * length; i++) {
		at[i] = (int32_t)(from + i % length);
		at[n * length + i] = (int32_t)(i / length);
	}
}

tess_status evaluation_set_rows(struct evaluation *e, int64_t n, int64_t length, int64_t from)
{
	int32_t *at;

	free(e->rows);
	e->rows = at = malloc((size_t)(n * length) * 2 * sizeof *at);
	if (!at)
		return tess_fail(TESS_ENOMEM, "out of memory for %lld rows",
		                 (long long)(n * length));
	tess_planner_fill_rows(at, n, length, from);
	e->known.position = at;
	e->known.slot = at + n * length;
	e->attended.window = -1;
	e->known.last = &e->attended;
	return TESS_OK;
}

tess_status evaluation_set_training(struct evaluation *e)
{
	const struct tess_planner_options *o = &e->planner->options;
	const struct tess_strategy *s = e->strategy;
	int64_t all = evaluation_count_replicas(e), here;
	tess_status st;

	e->micro = s->micro_batches ? s->micro_batches : 1;
	if (e->batch % e->micro)
		return tess_fail(TESS_EINVAL,
		                 "%lld sequences cannot be cut into %lld equal micro-batches",
		                 (long long)e->batch, (long long)e->micro);
	e->training = (struct tess_trainer_options){
		.size = sizeof e->training,
		.optimizer = o->optimizer,
		.recompute = s->recompute,
		.pipeline_schedule = s->pipeline_schedule,
		.bucket = s->bucket,
		.micro_batches = e->micro,
		.offload_optimizer = s->offload_optimizer,
		.offload_weights = s->offload_weights,
		.tile = s->tile,
		.math = o->math,
	};
	e->x.training = &e->training;
	e->x.moments = e->planner->moments;
	e->x.e.sequences = e->batch / e->micro;
	e->x.e.tokens = e->x.e.sequences * e->sequence;
	if (e->x.e.sequences < all)
		return tess_fail(TESS_EINVAL,
		                 "a micro-batch of %lld sequences cannot be cut for %lld ranks "
		                 "along dp",
		                 (long long)e->x.e.sequences, (long long)all);
	st = tess_explaining_check_offload(&e->x);
	if (st)
		return st;
	here = tess_edge(e->x.e.sequences, all, 1);
	return evaluation_set_rows(e, here, e->sequence, 0);
}

void evaluation_add_time(struct evaluation *e, const struct tess_step_time *t, double times)
{
	for (int32_t i = 0; i < TESS_TERMS; i++)
		e->out->terms[i] += times * t->term[i];
	for (int32_t i = 0; i < t->waited.n; i++)
		tess_waited_add(&e->waited, t->waited.of[i].call, t->waited.of[i].along,
		                times * t->waited.of[i].seconds);
}

void evaluation_add_data_call(struct evaluation *e, const char *call, double seconds)
{
	e->out->terms[TESS_TERM_DATA] += seconds;
	tess_waited_add(&e->waited, call, e->x.program->data_along, seconds);
}

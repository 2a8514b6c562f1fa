/* evaluate.c - predicts a strategy from the program that it would run, lowered for its ranks. */
#include "api/plan/evaluation.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <fenv.h>

/* Lists the calls that the terms TENSOR and DATA consist of, slowest first. */
static tess_status list_forecast_calls(const struct evaluation *e, struct tess_forecast *f)
{
	const struct tess_program *p = e->x.program;
	struct tess_arena *arena = &e->planner->arena;
	struct tess_forecast_call *call =
		TESS_NEW(arena, struct tess_forecast_call, e->waited.n + 1);

	if (!call)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < e->waited.n; i++) {
		int32_t along = e->waited.of[i].along, at = i;
		int32_t term = along == p->data_along ? TESS_TERM_DATA : TESS_TERM_TENSOR;
		double seconds = e->waited.of[i].seconds * e->planner->machine->time[term];
		const char *name = tess_arena_format(arena, "%s", p->mesh.dim[along].name);

		if (!name)
			return TESS_ENOMEM;
		for (; at && call[at - 1].seconds < seconds; at--)
			call[at] = call[at - 1];
		call[at] = (struct tess_forecast_call){ .call = e->waited.of[i].call,
			                                .along = name,
			                                .term = term,
			                                .seconds = seconds };
	}
	f->calls = call;
	f->ncalls = e->waited.n;
	return TESS_OK;
}

/* Names what takes most time; calls with their mesh dimension. NULL: out of memory. */
static const char *name_bound(struct tess_planner *p, const struct tess_forecast *f)
{
	static const char *const names[TESS_TERMS] = {
		"products",  "attention", "memory bandwidth", "starting ops", "collectives",
		"gradients", "sends",     "bubble",           "optimizer",    "the fixed cost",
		"disk",
	};
	int32_t most = 0, i = 0;

	for (int32_t k = 0; k < TESS_TERMS; k++)
		most = f->terms[k] > f->terms[most] ? k : most;
	while (i < f->ncalls && f->calls[i].term != most)
		i++;
	return i == f->ncalls ? names[most]
	                      : tess_arena_format(&p->arena, "%s along %s", f->calls[i].call,
	                                          f->calls[i].along);
}

/* Sets seconds, rate, calls and bound of a forecast from its terms. */
static tess_status conclude_forecast(const struct evaluation *e, struct tess_forecast *f)
{
	struct tess_planner *p = e->planner;
	const struct tess_planner_options *o = &p->options;
	tess_status st = list_forecast_calls(e, f);

	if (st)
		return st;
	f->terms[TESS_TERM_FIXED] = 1;
	f->seconds = 0;
	for (int32_t i = 0; i < TESS_TERMS; i++) {
		f->terms[i] *= i == TESS_TERM_BUBBLE ? 1 : p->machine->time[i];
		f->seconds += f->terms[i];
	}
	f->bound = name_bound(p, f);
	f->rate = (double)o->batch * (double)(o->train ? o->sequence : o->tokens) / f->seconds;
	f->limit = p->memory;
	f->error = p->machine->error;
	f->measured = p->machine->measured;
	f->assumed = "";
	if (p->options.math == TESS_BF16 && !tess_machine_has_bf16(p->machine))
		f->assumed = "products of bf16 are assumed to take the time of those in f32: the "
			     "machine file has no rates of them; measure the machine again by "
			     "`tessera bench machine`";
	return f->bound ? TESS_OK : TESS_ENOMEM;
}

static tess_status evaluate_on(struct tess_planner *p, const struct tess_planned_model *model,
                               const struct tess_strategy *s, struct tess_forecast *out)
{
	struct evaluation e;
	tess_status st = evaluation_open(&e, p, model, s, p->options.batch, out);

	if (!st)
		st = p->options.train ? evaluation_predict_training(&e)
		                      : evaluation_predict_generation(&e);
	if (!st)
		st = conclude_forecast(&e, out);
	evaluation_close(&e);
	return st;
}

tess_status tess_planner_evaluate(struct tess_planner *p, const struct tess_strategy *s,
                                  struct tess_forecast *out)
{
	return evaluate_on(p, &p->model, s, out);
}

tess_status tess_planner_extrapolate(struct tess_planner *p, const struct tess_strategy *s,
                                     double *seconds, double *memory)
{
	struct tess_forecast f[2];
	double n[2] = { (double)p->shallow[0].layers, (double)p->shallow[1].layers }, times;
	tess_status st = evaluate_on(p, n[1] > 0 ? &p->shallow[0].model : &p->model, s, &f[0]);

	if (!st && n[1] > 0)
		st = evaluate_on(p, &p->shallow[1].model, s, &f[1]);
	if (st)
		return st;
	times = n[1] > 0 ? ((double)p->layers - n[0]) / (n[1] - n[0]) : 0;
	*seconds = f[0].seconds;
	*memory = f[0].memory;
	if (times > 0) {
		*seconds += times * (f[1].seconds - f[0].seconds);
		*memory += times * (f[1].memory - f[0].memory);
	}
	return TESS_OK;
}

tess_status tess_planner_forecast(struct tess_planner *p, const struct tess_strategy *s,
                                  const struct tess_forecast **out)
{
	struct tess_forecast *f;
	const struct tess_strategy *kept;
	fenv_t callers;
	tess_status st = TESS_REQUIRE(p, s, out);

	if (st)
		return st;
	kept = tess_planner_keep_strategy(p, s);
	f = TESS_NEW(&p->arena, struct tess_forecast, 1);
	if (!kept || !f)
		return TESS_ENOMEM;
	if (!kept->mesh)
		return tess_fail(TESS_EINVAL, "%s: the strategy has no mesh", __func__);
	fegetenv(&callers);
	fesetenv(FE_DFL_ENV);
	st = tess_planner_evaluate(p, kept, f);
	fesetenv(&callers);
	if (!st)
		*out = f;
	return st;
}

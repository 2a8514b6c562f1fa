/* evaluate.c - predicts a strategy from the program that it would run, lowered for its ranks. */
#include "api/plan/evaluation.h"

/* Sets seconds, rate and bound of a forecast from its terms. */
static void conclude_forecast(const struct tess_planner *p, struct tess_forecast *f)
{
	static const char *const bound[TESS_TERMS] = {
		"products",  "attention", "memory bandwidth", "starting ops", "collectives",
		"gradients", "sends",     "bubble",           "optimizer",    "the fixed cost",
	};
	const struct tess_planner_options *o = &p->options;
	int32_t most = 0;

	f->terms[TESS_TERM_FIXED] = 1;
	f->seconds = 0;
	for (int32_t i = 0; i < TESS_TERMS; i++) {
		f->terms[i] *= i == TESS_TERM_BUBBLE ? 1 : p->machine->time[i];
		f->seconds += f->terms[i];
		most = f->terms[i] > f->terms[most] ? i : most;
	}
	f->bound = bound[most];
	f->rate = (double)o->batch * (double)(o->train ? o->sequence : o->tokens) / f->seconds;
}

static tess_status evaluate_on(struct tess_planner *p, const struct tess_planned_model *model,
                               const struct tess_strategy *s, struct tess_forecast *out)
{
	struct evaluation e = { .planner = p,
		                .model = model,
		                .batch = p->options.batch,
		                .sequence = p->options.sequence,
		                .strategy = s,
		                .out = out };
	tess_status st = evaluation_open(&e);

	if (!st)
		st = p->options.train ? evaluation_predict_training(&e)
		                      : evaluation_predict_generation(&e);
	if (!st)
		conclude_forecast(p, out);
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

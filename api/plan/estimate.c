/* estimate.c - estimates seconds and memory of a candidate from its composed layers. */
#include "api/plan/estimate.h"

/* Share of a backward that hides calls along dp; share of these that is seen all the same. */
#define HIDING 0.8
#define SEEN 0.05

static double sum_terms(const double *term)
{
	double sum = 0;

	for (int32_t i = 0; i < TESS_TERM_DATA; i++)
		sum += term[i];
	return sum;
}

/* Adds what n layers have and `base` times what is around them. */
static double add_around(const struct tess_planner *p, const struct candidate *k, double layer,
                         double base)
{
	return k->pp == 1 ? layer * (double)p->layers + base
	                  : layer * (double)p->layers / k->pp + base / 2;
}

int32_t tess_candidate_count_shards(const struct candidate *k)
{
	return k->shards ? k->shards : k->dp;
}

int32_t tess_candidate_count_cuts(const struct candidate *k)
{
	return k->tp * k->ep;
}

/* Returns the seconds of the calls along dp. */
static double time_data_calls(const struct tess_planner *p, const struct candidate *k,
                              const struct tess_sample *s)
{
	const struct tess_machine *m = p->machine;
	double sum = 0;

	for (int32_t i = 0; i < TESS_DATA_CALLS; i++) {
		bool among;
		const char *name = tess_planner_get_data_call(i, &among);
		int32_t n = among ? tess_candidate_count_shards(k) : k->dp;
		int32_t stride = tess_candidate_count_cuts(k);
		double start = tess_machine_communicate(m, name, n, stride, 0);

		sum += s->calls[i] * start +
		       tess_machine_communicate(m, name, n, stride, s->moved[i] * (n - 1) / n) -
		       start;
	}
	return sum * m->time[TESS_TERM_DATA];
}

/* Returns the seconds of the optimizer, and of weights that it leaves in shares. */
static double time_optimizer(const struct estimate *e)
{
	const struct tess_machine *m = e->planner->machine;
	const struct candidate *k = e->candidate;
	int32_t n = tess_candidate_count_shards(k);
	double returned = add_around(e->planner, k, e->data.layer.returned, e->data.base.returned);
	double state = add_around(e->planner, k, e->data.layer.state, e->data.base.state);

	return tess_optimizer_time(m, state, e->planner->moments, 4) *
	               m->time[TESS_TERM_OPTIMIZER] +
	       (returned > 0 ? m->time[TESS_TERM_DATA] *
	                               tess_machine_communicate(m, "all_gather", n,
	                                                        tess_candidate_count_cuts(k),
	                                                        returned * (n - 1) / n)
	                     : 0);
}

/* Returns the seconds by which calls along dp make a micro-batch longer. */
static double time_exposed_calls(const struct estimate *e)
{
	const struct tess_planner *p = e->planner;
	const struct candidate *k = e->candidate;
	double backward = add_around(p, k, sum_terms(e->compute.layer.backward),
	                             sum_terms(e->compute.base.backward));
	double calls = k->dp == 1 ? 0
	                          : add_around(p, k, time_data_calls(p, k, &e->data.layer),
	                                       time_data_calls(p, k, &e->data.base));
	double exposed = calls - HIDING * backward;

	return exposed > SEEN * calls ? exposed : SEEN * calls;
}

static double estimate_seconds(const struct estimate *e)
{
	const struct tess_planner *p = e->planner;
	const struct candidate *k = e->candidate;
	double computed = e->computed;

	if (k->pp == 1)
		computed =
			(double)k->micro * add_around(p, k,
		                                      sum_terms(e->compute.layer.forward) +
		                                              sum_terms(e->compute.layer.backward),
		                                      sum_terms(e->compute.base.forward) +
		                                              sum_terms(e->compute.base.backward));
	return computed + time_exposed_calls(e) * (p->machine->once ? 1 : (double)k->micro) +
	       time_optimizer(e) + p->machine->time[TESS_TERM_FIXED];
}

/* ---- memory ---------------------------------------------------------------------------------- */

static double estimate_plain_memory(const struct estimate *e)
{
	double layers = (double)e->planner->layers;
	double sum = e->candidate->dp == 1 ? 0 : e->data.base.holds[TESS_HOLDS_STEP];

	for (int32_t i = TESS_HOLDS_STEP; i <= TESS_HOLDS_LOSS; i++)
		sum += e->compute.layer.holds[i] * layers + e->compute.base.holds[i];
	for (int32_t i = 0; i < TESS_HOLDS_STEP; i++)
		sum += e->data.layer.holds[i] * layers + e->data.base.holds[i];
	return sum;
}

/* Returns the bytes of weights, gradients and state of a stage. */
static double measure_kept_stage(const struct estimate *e, int32_t stage)
{
	double sum = 0;

	for (int32_t i = 0; i < TESS_HOLDS_STEP; i++) {
		double base = e->compute.base.holds[i], share = 0;

		if (!stage)
			share += e->staged.end[0].holds[i];
		if (stage == e->schedule->pipeline->nstages - 1)
			share += e->staged.end[1].holds[i];
		sum += e->data.layer.holds[i] * e->schedule->layers[stage];
		if (base > 0)
			sum += e->data.base.holds[i] * share / base;
	}
	return sum;
}

/* Returns the bytes of a slot of a stage. */
static double measure_slot(const struct estimate *e, int32_t stage)
{
	const struct staged *s = &e->staged;
	double layers = e->schedule->layers[stage] * s->layer.slot;

	if (stage == e->schedule->pipeline->nstages - 1)
		return layers + s->end[1].slot;
	/* one in the middle also receives values, and sends gradients */
	return layers + s->end[0].slot + (stage ? 2 * s->layer.sent : 0);
}

/* Returns the bytes of the fullest rank. */
static double estimate_staged_memory(const struct estimate *e)
{
	const struct tess_pipeline *pipeline = e->schedule->pipeline;
	double most = 0;

	for (int32_t r = 0; r < pipeline->nranks; r++) {
		double sum = 0, arena = 0;

		for (int32_t s = 0; s < pipeline->nstages; s++) {
			double own = e->staged.end[s == pipeline->nstages - 1].arena;

			if (pipeline->rank_of[s] != r)
				continue;
			sum += measure_kept_stage(e, s) +
			       e->schedule->timeline->stage_live[s] * measure_slot(e, s);
			arena = own > arena ? own : arena;
		}
		most = sum + arena > most ? sum + arena : most;
	}
	return most + (e->candidate->dp == 1 ? 0 : e->data.base.holds[TESS_HOLDS_STEP]);
}

void tess_candidate_estimate(struct estimate *e)
{
	struct candidate *k = e->candidate;

	k->seconds = estimate_seconds(e);
	k->memory = (k->pp == 1 ? estimate_plain_memory(e) : estimate_staged_memory(e)) +
	            e->planner->machine->holds[TESS_HOLDS_FIXED];
}

/* estimate.c - estimates seconds and memory of a candidate from its composed layers. */
#include "api/plan/estimate.h"

/* Returns the layers of a rank of a pipeline. */
static double count_layers(const struct stage_schedule *of, int32_t rank)
{
	double sum = 0;

	for (int32_t s = 0; s < of->pipeline->nstages; s++)
		sum += of->pipeline->rank_of[s] == rank ? of->layers[s] : 0;
	return sum;
}

/*
 * Returns the most that a rank has of something, of which the last stage has all that is not in
 * layers.
 */
static double find_most(const struct estimate *e, double layer, double base)
{
	const struct stage_schedule *of = e->schedule;
	double most = 0;

	if (e->candidate->pp == 1)
		return layer * (double)e->planner->layers + base;
	for (int32_t r = 0; r < of->pp; r++) {
		double sum = layer * count_layers(of, r);

		sum += of->pipeline->rank_of[of->pipeline->nstages - 1] == r ? base : 0;
		most = sum > most ? sum : most;
	}
	return most;
}

int32_t tess_candidate_count_cuts(const struct candidate *k)
{
	return k->tp * k->ep;
}

/*
 * Returns the seconds of the last backward of a step in which the disk has no other transfers, and
 * serves an update that begins in it.
 */
static double find_idle_disk(const struct estimate *e)
{
	double busy = find_most(e, e->data.layer.transfers, e->data.base.transfers);
	double backward =
		e->compute.base.backward + (double)e->planner->layers * e->compute.layer.backward;

	return tess_update_may_be_early(e->planner->options.clip, 0, e->candidate->pp > 1) &&
	                       backward > busy
	               ? backward - busy
	               : 0;
}

/* Returns the seconds that the end of a step waits for files. seconds: of the optimizer. */
static double time_update_files(const struct estimate *e, double seconds)
{
	double disk = find_most(e, e->data.layer.update, e->data.base.update);
	double hidden = seconds + find_idle_disk(e);

	return disk > hidden ? disk - hidden : 0;
}

/* Returns the seconds of the optimizer, and of weights that it leaves in shares. */
static double time_optimizer(const struct estimate *e)
{
	const struct tess_machine *m = e->planner->machine;
	const struct candidate *k = e->candidate;
	int32_t n = tess_candidate_count_shards(k);
	double returned = find_most(e, e->data.layer.returned, e->data.base.returned);
	double state = find_most(e, e->data.layer.state, e->data.base.state);

	double seconds =
		tess_optimizer_time(m, state, e->planner->moments, 4, !m->exact && k->offload) *
		m->time[TESS_TERM_OPTIMIZER];

	return seconds + time_update_files(e, seconds) +
	       (returned > 0 ? m->time[TESS_TERM_DATA] *
	                               tess_machine_communicate(m, "all_gather", n,
	                                                        tess_candidate_count_cuts(k),
	                                                        returned * (n - 1) / n)
	                     : 0);
}

/* A sum is sent to each copy of a share. Returns their number for each of the sample. */
static double count_share_copies(const struct estimate *e)
{
	const struct candidate *k = e->candidate;

	return k->shards ? (double)k->dp / k->shards / REPLICAS : 1;
}

/* Returns the sum of a member for a model of n layers. */
#define SUM(composed, member, n) ((composed).base.member + (n) * (composed).layer.member)

/*
 * Returns the seconds of the backward of n layers with what sums along dp need: products in
 * smaller parts, which take longer with more rows, and copies, which do not. all: that of the trace
 * without calls.
 */
static double time_backward_work(const struct estimate *e, double all, double n)
{
	double parts = SUM(e->data, products, n) - SUM(e->plain, products, n);
	double copies = all - SUM(e->plain, backward, n) - parts;

	return SUM(e->compute, backward, n) +
	       parts * SUM(e->compute, products, n) / SUM(e->plain, products, n) +
	       copies * count_share_copies(e);
}

/* Returns the part of the backward that hides sums along dp: that with gradients of weights. */
static double find_hiding_part(const struct estimate *e)
{
	const double *seconds = e->staged.layer.seconds;
	double weights = seconds[TESS_PIPELINE_BACKWARD_WEIGHTS];

	return e->candidate->pp > 1 && weights > 0
	               ? weights / (weights + seconds[TESS_PIPELINE_BACKWARD_INPUTS])
	               : 1;
}

/* Returns how much dp makes a model of n layers longer. i: index of its traces. */
static double time_longer(const struct estimate *e, int i, double n)
{
	double sum = 0;

	for (int half = 0; half < 2; half++) {
		const struct tess_step_trace *trace = &e->data.trace[i][half];
		double all = tess_trace_sum_work(trace), longer;
		double computed = half ? SUM(e->compute, backward, n) : SUM(e->compute, forward, n);
		double work = half ? time_backward_work(e, all, n) : computed;
		double other = half ? computed * (1 - find_hiding_part(e)) : 0;
		const struct tess_trace_change change = {
			.work = (work - other) / all,
			.replicas = e->candidate->dp,
			.shards = tess_candidate_count_shards(e->candidate),
			.copies = count_share_copies(e),
		};

		longer = tess_trace_run(trace, e->planner->machine, &change) + other - computed;
		sum += longer > 0 ? longer : 0;
	}
	return sum;
}

/* Returns by how much the slowest rank takes longer. base: of each of the ends. */
static double find_slowest(const struct estimate *e, double layer, double base)
{
	const struct stage_schedule *of = e->schedule;
	double most = 0;

	if (e->candidate->pp == 1)
		return layer * (double)e->planner->layers + base;
	for (int32_t r = 0; r < of->pp; r++) {
		double sum = layer * count_layers(of, r);

		for (int32_t s = 0; s < of->pipeline->nstages; s++) {
			if (of->pipeline->rank_of[s] != r)
				continue;
			for (int32_t kind = 0; kind < TESS_STAGE_KINDS; kind++)
				sum += tess_staged_sum_seconds(&e->staged, of, kind, s);
			sum += !s || s == of->pipeline->nstages - 1 ? base : 0;
		}
		most = sum > most ? sum : most;
	}
	return most - e->simulated.work;
}

/* Returns the seconds by which dp makes a micro-batch longer. */
static double extrapolate_longer(const struct estimate *e)
{
	const struct tess_planner *p = e->planner;
	double n[2] = { (double)p->shallow[0].layers, (double)p->shallow[1].layers }, at[2], layer;

	if (e->candidate->dp == 1)
		return 0;
	if (n[1] <= 0)
		return time_longer(e, 0, (double)p->layers) / e->candidate->pp;
	for (int i = 0; i < 2; i++)
		at[i] = time_longer(e, i, n[i]);
	layer = (at[1] - at[0]) / (n[1] - n[0]);
	return find_slowest(e, layer, at[0] - n[0] * layer);
}

static double estimate_seconds(const struct estimate *e)
{
	const struct tess_planner *p = e->planner;
	const struct candidate *k = e->candidate;
	double work = e->simulated.work, computed = e->simulated.seconds, transfers;

	if (k->pp == 1) {
		work = SUM(e->compute, forward, (double)p->layers) +
		       SUM(e->compute, backward, (double)p->layers);
		computed = (double)k->micro * work;
	}
	/* stages that wait wait longer, too */
	computed += extrapolate_longer(e) * (p->machine->once ? 1 : computed / work);
	/* transfers hide behind ops, unless they take longer */
	transfers =
		(double)k->micro * find_most(e, e->data.layer.transfers, e->data.base.transfers);
	return (computed > transfers ? computed : transfers) + time_optimizer(e) +
	       p->machine->time[TESS_TERM_FIXED];
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Returns the bytes that calls along dp take of a step. */
static double measure_data_calls(const struct estimate *e)
{
	const double *plain = e->plain.base.holds, *of_layer = e->plain.layer.holds;
	double sum = find_most(e, e->data.layer.holds[TESS_HOLDS_STEP] - of_layer[TESS_HOLDS_STEP],
	                       e->data.base.holds[TESS_HOLDS_STEP] - plain[TESS_HOLDS_STEP]);

	return e->candidate->dp == 1 || sum < 0 ? 0 : sum * count_share_copies(e);
}

static double estimate_plain_memory(const struct estimate *e)
{
	double layers = (double)e->planner->layers;
	double sum = measure_data_calls(e);

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
	return most + measure_data_calls(e);
}

void tess_candidate_estimate(struct estimate *e)
{
	struct candidate *k = e->candidate;

	k->seconds = estimate_seconds(e);
	k->memory = (k->pp == 1 ? estimate_plain_memory(e) : estimate_staged_memory(e)) +
	            e->planner->machine->holds[TESS_HOLDS_FIXED];
}

/* estimate.c - estimates seconds and memory of a candidate from its composed layers. */
#include "api/plan/compose.h"

#include <tessera/split.h>

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

/* The layers of a stage, and whether it has what is around the layers. */
struct stage_size {
	double layers;
	bool last;
};

/* Distributes layers over n stages so that the largest takes least time. */
static struct stage_size find_largest_stage(const struct tess_planner *p,
                                            const struct composed *compute, int32_t n)
{
	double layer = sum_terms(compute->layer.forward) + sum_terms(compute->layer.backward);
	double base = sum_terms(compute->base.forward) + sum_terms(compute->base.backward);
	double all = (double)p->layers, last, other;

	if (n == 1)
		return (struct stage_size){ all, true };
	last = (double)(int64_t)((all * layer + base) / n / layer - base / layer);
	last = last < 0 ? 0 : last;
	other = (double)tess_up((int64_t)(all - last), n - 1);
	return other * layer > last * layer + base ? (struct stage_size){ other, false }
	                                           : (struct stage_size){ last, true };
}

static double add_around(double layer, double base, struct stage_size s)
{
	return layer * s.layers + (s.last ? base : 0);
}

/* Returns the time that stages wait, in steps of micro-batches of a rank. */
static double count_bubbles(const struct candidate *k)
{
	switch (k->schedule) {
	case 1:
		return (k->pp - 1) / 2.0;
	case 2:
		return (k->pp - 1) / 3.0;
	case 3:
		return 0;
	default:
		return k->pp - 1;
	}
}

int32_t tess_candidate_count_shards(const struct tess_planner *p, const struct candidate *k)
{
	return k->zero == ZERO_HOSTS ? p->machine->ranks_per_host / k->tp : k->dp;
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
		int32_t n = among ? tess_candidate_count_shards(p, k) : k->dp;
		double start = tess_machine_communicate(m, name, n, k->tp, 0);

		sum += s->calls[i] * start +
		       tess_machine_communicate(m, name, n, k->tp, s->moved[i] * (n - 1) / n) -
		       start;
	}
	return sum * m->time[TESS_TERM_DATA];
}

/* Returns the seconds of the optimizer, and of weights that it leaves in shares. */
static double time_optimizer(const struct tess_planner *p, const struct candidate *k,
                             const struct composed *data, struct stage_size s)
{
	const struct tess_machine *m = p->machine;
	int32_t n = tess_candidate_count_shards(p, k);
	double returned = add_around(data->layer.returned, data->base.returned, s);
	double state = add_around(data->layer.state, data->base.state, s);

	return tess_optimizer_time(m, state, p->moments, 4) * m->time[TESS_TERM_OPTIMIZER] +
	       (returned > 0 ? m->time[TESS_TERM_DATA] *
	                               tess_machine_communicate(m, "all_gather", n, k->tp,
	                                                        returned * (n - 1) / n)
	                     : 0);
}

double tess_candidate_estimate_seconds(const struct tess_planner *p, const struct candidate *k,
                                       const struct composed *compute, const struct composed *data)
{
	int32_t per_rank;
	double forward, backward, calls, hidden, seconds;
	struct stage_size s;

	tess_candidate_get_schedule(k->schedule, &per_rank);
	per_rank = k->pp > 1 ? per_rank : 1;
	s = find_largest_stage(p, compute, k->pp * per_rank);
	forward = per_rank * add_around(sum_terms(compute->layer.forward),
	                                sum_terms(compute->base.forward), s);
	backward = per_rank * add_around(sum_terms(compute->layer.backward),
	                                 sum_terms(compute->base.backward), s);
	calls = k->dp == 1 ? 0
	                   : per_rank * add_around(time_data_calls(p, k, &data->layer),
	                                           time_data_calls(p, k, &data->base), s);
	hidden = calls - HIDING * backward;
	hidden = hidden > SEEN * calls ? hidden : SEEN * calls;
	seconds = (double)k->micro * (forward + backward) +
	          hidden * (p->machine->once ? 1 : (double)k->micro);
	if (k->pp > 1)
		seconds += count_bubbles(k) * (forward + backward);
	return seconds + per_rank * time_optimizer(p, k, data, s) +
	       p->machine->time[TESS_TERM_FIXED];
}

/* Returns the bytes of a rank with the base, and of the first one, whichever has more. */
double tess_candidate_estimate_memory(const struct tess_planner *p, const struct candidate *k,
                                      const struct composed *compute, const struct composed *data)
{
	double layers = (double)tess_up(p->layers, k->pp), most = 0;
	double live = k->schedule == 1 ? k->pp + (k->pp - 1) / 2.0 : k->pp;

	live = live < (double)k->micro ? live : (double)k->micro;
	for (int end = 0; end < (k->pp > 1 ? 2 : 1); end++) { /* the last rank, then the first */
		const struct stage_size s = { layers, true };
		double kept = k->pp == 1 ? 1 : end ? live : 1, sum;

		sum = end || k->dp == 1 ? 0 : data->base.holds[TESS_HOLDS_STEP];
		for (int32_t i = TESS_HOLDS_STEP; i <= TESS_HOLDS_LOSS; i++)
			sum += kept * compute->layer.holds[i] * layers +
			       (end ? 0 : compute->base.holds[i]);
		for (int32_t i = 0; i < TESS_HOLDS_STEP; i++)
			sum += add_around(data->layer.holds[i],
			                  data->base.holds[i] / (k->pp > 1 ? 2 : 1), s);
		most = sum > most ? sum : most;
	}
	return most + p->machine->holds[TESS_HOLDS_FIXED];
}

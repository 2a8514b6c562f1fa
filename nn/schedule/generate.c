/*
 * generate.c - the built-in schedules: computations of each rank.
 *
 * GPipe: Huang et al. 2019. 1F1B: Narayanan et al. 2021a (PipeDream-Flush). Interleaved: Narayanan
 * et al. 2021b, section 2.2. Looped breadth-first: Lamy-Poirier 2023. In all of them a stage adds
 * the gradients of its weights in the order of micro-batches.
 */
#include "nn/schedule/schedule.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { STAGES_A_RANK_MAX = 64 };

struct generator {
	const char *name;
	int32_t nstages; /* stages of a rank; 0: as given after ":" */
	bool turns; /* stages go back on the ranks that they came by */
	void (*add)(struct tess_schedule_maker *m, int32_t rank);
};

static void add_computation(struct tess_schedule_maker *m, int32_t rank, int32_t kind,
                            int32_t stage, int32_t micro)
{
	tess_schedule_add(m, rank, (struct tess_pipeline_action){ kind, stage, micro, 0 });
}

/* Also gpipe, which has one stage a rank. */
static void add_breadth_first(struct tess_schedule_maker *m, int32_t r)
{
	for (int32_t s = r; s < m->nstages; s += m->nranks)
		for (int32_t i = 0; i < m->nmicro; i++)
			add_computation(m, r, TESS_PIPELINE_FORWARD, s, i);
	for (int32_t s = m->nstages - m->nranks + r; s >= 0; s -= m->nranks)
		for (int32_t i = 0; i < m->nmicro; i++)
			add_computation(m, r, TESS_PIPELINE_BACKWARD, s, i);
}

/* Adds computation k of a rank: micro-batches in rounds, each through all stages of the rank. */
static void add_of_round(struct tess_schedule_maker *m, int32_t r, int32_t kind, int32_t k)
{
	int32_t v = m->nstages / m->nranks, chunk = k / m->nranks % v;
	int32_t micro = k / m->nstages * m->nranks + k % m->nranks;

	if (kind == TESS_PIPELINE_BACKWARD)
		chunk = v - 1 - chunk;
	if (micro < m->nmicro)
		add_computation(m, r, kind, chunk * m->nranks + r, micro);
}

/*
 * Rounds have a micro-batch for each rank. The last one may be shorter: it is made whole, and the
 * computations that are too many are left out, which makes no rank wait that did not wait before.
 */
static void add_interleaved(struct tess_schedule_maker *m, int32_t r)
{
	int32_t p = m->nranks, n = (m->nmicro + p - 1) / p * m->nstages;
	int32_t warmup = m->nstages - p + 2 * (p - 1 - r);

	for (int32_t k = 0; k < n + warmup; k++) {
		if (k < n)
			add_of_round(m, r, TESS_PIPELINE_FORWARD, k);
		if (k >= warmup && k - warmup < n)
			add_of_round(m, r, TESS_PIPELINE_BACKWARD, k - warmup);
	}
}

static void add_one_forward_one_backward(struct tess_schedule_maker *m, int32_t r)
{
	int32_t warmup = m->nranks - 1 - r;

	for (int32_t k = 0; k < m->nmicro + warmup; k++) {
		if (k < m->nmicro)
			add_computation(m, r, TESS_PIPELINE_FORWARD, r, k);
		if (k >= warmup)
			add_computation(m, r, TESS_PIPELINE_BACKWARD, r, k - warmup);
	}
}

static const struct generator generators[] = {
	{ "gpipe", 1, false, add_breadth_first },
	{ "1f1b", 1, false, add_one_forward_one_backward },
	{ "interleaved", 0, false, add_interleaved },
	{ "looped-bfs", 0, false, add_breadth_first },
	{ "zb-h1", 1, false, tess_schedule_add_zb_h1 },
	{ "zb-v", 2, true, tess_schedule_add_zb_v },
};

/* Parses the stages of a rank after the name of a generator. */
static tess_status parse_stages(const char *name, const struct generator *g, int32_t *out)
{
	const char *given = name + strlen(g->name);
	char *end;
	long v = strtol(*given ? given + 1 : "", &end, 10);

	if (g->nstages && *given)
		return tess_fail(TESS_EINVAL,
		                 "pipeline schedule %s: %s has a fixed number of stages a rank; "
		                 "use %s",
		                 name, g->name, g->name);
	if (!g->nstages && (!*given || end == given + 1 || *end || v < 1 || v > STAGES_A_RANK_MAX))
		return tess_fail(
			TESS_EINVAL,
			"pipeline schedule %s: the number of stages a rank is needed, from "
			"1 to %d; use %s:2",
			name, STAGES_A_RANK_MAX, g->name);
	*out = g->nstages ? g->nstages : (int32_t)v;
	return TESS_OK;
}

static tess_status generate_rows(struct tess_schedule_maker *m, const struct generator *g)
{
	int32_t v = 0;
	tess_status st = parse_stages(m->name, g, &v);

	if (st)
		return st;
	/* of too many ranks, which are refused, the product might overflow */
	m->nstages = m->nranks <= INT32_MAX / v ? v * m->nranks : INT32_MAX;
	st = tess_schedule_check_size(m->name, m->nranks, m->nstages, m->nmicro);
	if (!st)
		st = tess_schedule_start(m);
	for (int32_t s = 0; s < m->nstages && !st; s++) {
		int32_t loop = s / m->nranks, at = s % m->nranks;

		m->rank_of[s] = g->turns && loop % 2 ? m->nranks - 1 - at : at;
	}
	for (int32_t r = 0; r < m->nranks && !st; r++)
		g->add(m, r);
	return m->failed ? TESS_ENOMEM : st;
}

tess_status tess_schedule_generate(struct tess_schedule_maker *m, bool *known)
{
	size_t len = strcspn(m->name, ":");

	*known = false;
	for (size_t i = 0; i < sizeof generators / sizeof *generators && !*known; i++) {
		*known = strlen(generators[i].name) == len &&
		         !strncmp(m->name, generators[i].name, len);
		if (*known)
			return generate_rows(m, &generators[i]);
	}
	return TESS_OK;
}

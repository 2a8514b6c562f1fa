/* candidates.c - lists the strategies of a search, and estimates each from few lowered layers. */
#include "api/plan/search.h"

#include <math.h>
#include <string.h>
#include <tessera/split.h>

/* Ranks along dp from which on large buckets are tried. */
enum { MANY_REPLICAS = 8 };
/* Sequences and micro-batches from which the least time of a cut follows; times of the fastest. */
enum { WORTH_LOCAL = 4, WORTH_MICRO = 1024, WORTH_TIMES = 2 };

/* Numbers of ranks along tp for which styles of modules are searched. */
enum { STYLED_MAX = 3 };

/* Inserts a candidate in the order of seconds, if it fits. */
static void keep_fast(struct search *s, const struct candidate *k)
{
	int32_t at = s->nkept < KEPT_MAX ? s->nkept++ : KEPT_MAX;

	if (at == KEPT_MAX && s->kept[--at].seconds <= k->seconds)
		return;
	for (; at && s->kept[at - 1].seconds > k->seconds; at--)
		s->kept[at] = s->kept[at - 1];
	s->kept[at] = *k;
}

/* Keeps the fastest candidate of each size of memory. */
static void keep_on_front(struct search *s, const struct candidate *k)
{
	double step = k->memory > 1 ? log2(k->memory) * FRONT_STEPS : 0;
	struct candidate *at = &s->front[step < FRONT_MAX ? (int32_t)step : FRONT_MAX - 1];

	if (at->seconds <= 0 || k->seconds < at->seconds)
		*at = *k;
}

/* Estimates generation; stages compute in turn, and share the memory. */
static tess_status estimate_generation(struct search *s, struct candidate *k)
{
	struct candidate plain = *k;
	const struct tess_strategy *strategy;
	tess_status st;

	plain.pp = 1;
	strategy = tess_candidate_make_strategy(s->planner, &plain);
	st = strategy ? tess_planner_extrapolate(s->planner, strategy, &k->seconds, &k->memory)
	              : TESS_ENOMEM;
	k->memory /= k->pp;
	return st;
}

static tess_status add_candidate(struct search *s, struct candidate k)
{
	tess_status st = s->planner->options.train ? tess_composer_estimate(s->composer, &k)
	                                           : estimate_generation(s, &k);

	if (st)
		return st == TESS_EINVAL ? TESS_OK : st;
	if (!s->nestimated++ || k.memory < s->least.memory)
		s->least = k;
	if (k.memory <= s->planner->memory * MEMORY_MARGIN)
		keep_fast(s, &k);
	keep_on_front(s, &k);
	return TESS_OK;
}

/* Adds the schedules of a candidate with stages. */
static tess_status add_schedules(struct search *s, struct candidate k)
{
	tess_status st = TESS_OK;
	int32_t per_rank;

	for (k.schedule = 0; k.schedule < (k.pp > 1 ? SCHEDULES : 1) && !st; k.schedule++) {
		tess_candidate_get_schedule(k.schedule, &per_rank);
		/* gradients of weights that come later keep what was recomputed */
		if (k.recompute && k.schedule > 1)
			continue;
		if (k.pp * per_rank > s->planner->layers ||
		    (per_rank > 1 && (k.pp == 1 || k.micro % k.pp)))
			continue;
		st = add_candidate(s, k);
	}
	return st;
}

/*
 * Adds sizes of micro-batches: powers of 2 that divide the sequences of a replica, and all. If
 * replicas have different numbers of sequences, only all.
 */
static tess_status add_micro_batches(struct search *s, struct candidate k)
{
	int64_t batch = s->planner->options.batch, all = tess_up(batch, k.dp);
	tess_status st = TESS_OK;

	for (k.local = 1; k.local < all && all % k.local == 0 && batch % k.dp == 0 && !st;
	     k.local *= 2) {
		k.micro = all / k.local;
		st = add_schedules(s, k);
	}
	k.local = all;
	k.micro = 1;
	return st ? st : add_schedules(s, k);
}

static tess_status add_recomputed(struct search *s, struct candidate k)
{
	tess_status st = TESS_OK;

	for (k.recompute = 0; k.recompute < RECOMPUTES && !st; k.recompute++)
		st = add_micro_batches(s, k);
	return st;
}

/* Adds numbers of ranks along dp that share weights: all, those of a host, and powers of 2. */
static tess_status add_shards(struct search *s, struct candidate k)
{
	int32_t host = s->planner->machine->ranks_per_host / tess_candidate_count_cuts(&k);
	tess_status st = add_recomputed(s, k);

	for (k.shards = 2; k.zero && k.shards < k.dp && !st; k.shards++)
		if (k.dp % k.shards == 0 && ((k.shards & (k.shards - 1)) == 0 || k.shards == host))
			st = add_recomputed(s, k);
	return st;
}

/* Adds ZeRO stages. */
static tess_status add_zero_stages(struct search *s, struct candidate k)
{
	tess_status st = TESS_OK;

	for (k.zero = 0; k.zero < (k.dp > 1 ? ZEROS : 1) && !st; k.zero++) {
		k.bucket = 0;
		if (k.zero && k.dp >= MANY_REPLICAS)
			st = tess_composer_choose_bucket(s->composer, &k);
		if (!st)
			st = add_shards(s, k);
	}
	return st;
}

/* Returns whether candidates have values in files, or in memory of the host: an option. */
static bool uses_files(const struct search *s, int32_t offload)
{
	const struct tess_planner_options *o = &s->planner->options;

	return offload == OFFLOAD_NONE ||
	       (offload == OFFLOAD_STATE ? o->offload_optimizer : o->offload_weights);
}

static tess_status add_memory_options(struct search *s, struct candidate k)
{
	tess_status st = TESS_OK;

	for (k.offload = 0; k.offload < OFFLOADS && !st; k.offload++)
		if (uses_files(s, k.offload))
			st = add_zero_stages(s, k);
	return st;
}

/* Returns whether a plan has rules of ep. */
static bool cuts_experts(const struct tess_preset *preset)
{
	const struct tess_rule *rule = preset->rules;

	while (rule && rule->pattern && strncmp(rule->pattern, "ep:", 3) != 0)
		rule++;
	return rule && rule->pattern;
}

/*
 * Returns whether a plan differs from the ones before it on a mesh. Experts along ep need rules of
 * ep; along one rank of tp, plans with them differ in nothing else.
 */
static bool is_new_plan(const struct tess_preset *preset, int32_t plan, const struct candidate *k)
{
	if (!strcmp(preset[plan].name, "hf") || (k->ep > 1 && !cuts_experts(&preset[plan])))
		return false;
	for (int32_t i = 0; i < plan && k->tp == 1; i++)
		if (cuts_experts(&preset[i]))
			return false;
	return true;
}

/* Adds the plans of the model; along one rank all are the same. */
static tess_status add_plans(struct search *s, struct candidate k)
{
	const struct tess_preset *preset = s->planner->model.model->presets;
	tess_status st = TESS_OK;

	k.plan = -1;
	k.micro = 1;
	if (k.tp == 1 && k.ep == 1)
		return s->planner->options.train ? add_memory_options(s, k) : add_candidate(s, k);
	for (k.plan = 0; preset[k.plan].name && !st; k.plan++)
		if (is_new_plan(preset, k.plan, &k))
			st = s->planner->options.train ? add_memory_options(s, k)
			                               : add_candidate(s, k);
	return st;
}

/*
 * Sets *worth: whether experts that are cut along ep, or layers that are cut over several hosts,
 * may be fast enough, from what their plan computes if nothing else takes time.
 */
static tess_status check_worth(struct search *s, struct candidate k, bool *worth)
{
	const struct tess_preset *preset = s->planner->model.model->presets;
	int64_t batch = s->planner->options.batch;
	tess_status st = TESS_OK;

	k.dp = k.pp = 1;
	k.local = WORTH_LOCAL;
	k.micro = WORTH_MICRO;
	*worth = (k.ep == 1 && tess_machine_is_within(s->planner->machine, k.tp, 1)) ||
	         s->explores || !s->nkept || !s->planner->options.train;
	for (k.plan = 0; preset[k.plan].name && !*worth && !st; k.plan++) {
		if (!strcmp(preset[k.plan].name, "hf") ||
		    (k.ep > 1 && !cuts_experts(&preset[k.plan])))
			continue;
		st = tess_composer_estimate(s->composer, &k);
		if (!st)
			*worth = k.seconds * (double)batch * tess_candidate_count_cuts(&k) /
			                 (WORTH_LOCAL * WORTH_MICRO) / s->nranks <
			         WORTH_TIMES * s->kept[0].seconds;
		st = st == TESS_EINVAL ? TESS_OK : st;
	}
	return st;
}

/* Adds the plans that were found last. */
static tess_status add_found_plans(struct search *s, struct candidate k)
{
	struct tess_planner *p = s->planner;
	tess_status st = TESS_OK;

	k.micro = 1;
	for (int32_t i = s->found; i < p->nfound && !st; i++) {
		k.plan = tess_planner_count_presets(p) + i;
		st = p->options.train ? add_memory_options(s, k) : add_candidate(s, k);
	}
	return st;
}

/* Adds the candidates of all meshes with the numbers of ranks along tp and ep of k. */
static tess_status estimate_meshes(struct search *s, struct candidate k,
                                   tess_status (*add)(struct search *, struct candidate))
{
	int32_t ranks = s->nranks / tess_candidate_count_cuts(&k);
	tess_status st = TESS_OK;

	for (k.pp = 1; k.pp <= ranks && k.pp <= s->planner->layers && !st; k.pp++) {
		k.dp = ranks / k.pp;
		if (ranks % k.pp == 0 && k.dp <= s->planner->options.batch)
			st = add(s, k);
	}
	return st;
}

/* Lists the numbers of ranks along tp of the best candidates. Returns how many there are. */
static int32_t list_best_tp(const struct search *s, int32_t *tp)
{
	int32_t n = 0;

	for (int32_t i = 0; i < s->nkept && n < STYLED_MAX; i++) {
		bool known = s->kept[i].tp == 1 || s->kept[i].ep > 1;

		for (int32_t k = 0; k < n; k++)
			known |= tp[k] == s->kept[i].tp;
		if (!known)
			tp[n++] = s->kept[i].tp;
	}
	return n;
}

tess_status tess_search_estimate_styles(struct search *s)
{
	int32_t tp[STYLED_MAX], n = list_best_tp(s, tp);
	tess_status st = TESS_OK;

	s->nkept = 0;
	memset(s->front, 0, sizeof s->front);
	for (int32_t i = 0; i < n && !st; i++) {
		const struct candidate k = { .tp = tp[i], .ep = 1 };

		s->found = s->planner->nfound;
		st = tess_planner_find_styles(s->planner, tp[i]);
		if (!st)
			st = estimate_meshes(s, k, add_found_plans);
	}
	return st;
}

tess_status tess_search_estimate(struct search *s)
{
	int64_t experts = s->planner->experts ? s->planner->experts : 1;
	struct candidate k = { 0 };
	tess_status st = TESS_OK;
	bool worth;

	for (k.ep = 1; k.ep <= experts && k.ep <= s->nranks && !st; k.ep++)
		for (k.tp = 1; k.tp <= s->nranks / k.ep && !st; k.tp++) {
			if (experts % k.ep || s->nranks % tess_candidate_count_cuts(&k))
				continue;
			st = check_worth(s, k, &worth);
			if (!st && worth)
				st = estimate_meshes(s, k, add_plans);
		}
	return st;
}

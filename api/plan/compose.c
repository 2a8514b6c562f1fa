/* compose.c - estimates strategies from few lowered layers. */
#include "api/plan/estimate.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

/* Large buckets of the weights of a stage from which on they are used. */
enum { MANY_BUCKETS = 4 };

struct composed_key {
	int32_t dp, shards, tp, ep, plan, zero, recompute, bucket;
	int64_t offload, local; /* 64 bits: no padding, which is compared */
};
struct entry {
	struct composed_key key;
	struct composed value;
};
enum { FIND_DATA, FIND_PLAIN, FIND_FEW, FIND_MORE, FINDS };
struct composer {
	struct tess_planner *planner;
	struct stager *stager;
	size_t last[FINDS]; /* entries that were found last */
	struct entry *entry;
	size_t n, room;
};

tess_status tess_composer_open(struct tess_planner *p, struct composer **out)
{
	*out = calloc(1, sizeof **out);
	if (!*out)
		return tess_fail(TESS_ENOMEM, "out of memory for a search");
	(*out)->planner = p;
	return tess_stager_open(p, &(*out)->stager);
}

static void free_traces(struct composed *value)
{
	for (int i = 0; i < 2; i++)
		for (int half = 0; half < 2; half++)
			tess_trace_free(&value->trace[i][half]);
}

void tess_composer_close(struct composer *c)
{
	if (!c)
		return;
	tess_stager_close(c->stager);
	for (size_t i = 0; i < c->n; i++)
		free_traces(&c->entry[i].value);
	free(c->entry);
	free(c);
}

/* ---- lowered layers -------------------------------------------------------------------------- */

/* Sets out to a * x + b * y, member by member. */
static void combine_samples(double a, const struct tess_sample *x, double b,
                            const struct tess_sample *y, struct tess_sample *out)
{
	tess_sample_combine(a, x, b, y, out, sizeof *out / sizeof(double));
}

/* Measures the candidate of a key without stages, at two depths or at the model's own. */
static tess_status measure_key(struct composer *c, const struct composed_key *key,
                               struct composed *out)
{
	struct tess_planner *p = c->planner;
	const struct candidate k = { .dp = key->dp,
		                     .shards = key->shards,
		                     .tp = key->tp,
		                     .ep = key->ep,
		                     .pp = 1,
		                     .plan = key->plan,
		                     .zero = key->zero,
		                     .offload = (int32_t)key->offload,
		                     .bucket = key->bucket,
		                     .micro = 2,
		                     .recompute = key->recompute };
	const struct tess_strategy *s = tess_candidate_make_strategy(p, &k);
	bool whole = !p->shallow[1].layers;
	struct tess_sample at[2];
	double n[2] = { (double)p->shallow[0].layers, (double)p->shallow[1].layers };
	tess_status st = TESS_OK;

	if (!s)
		return TESS_ENOMEM;
	for (int i = 0; i < (whole ? 1 : 2) && !st; i++)
		st = tess_planner_sample(p, whole ? &p->model : &p->shallow[i].model, s,
		                         2 * key->local * key->dp, &at[i],
		                         key->dp > 1 ? out->trace[i] : NULL);
	if (st)
		return st;
	if (whole) {
		combine_samples(1.0 / (double)p->layers, &at[0], 0, &at[0], &out->layer);
		combine_samples(0, &at[0], 0, &at[0], &out->base);
		return TESS_OK;
	}
	combine_samples(-1 / (n[1] - n[0]), &at[0], 1 / (n[1] - n[0]), &at[1], &out->layer);
	combine_samples(1, &at[0], -n[0], &out->layer, &out->base);
	return TESS_OK;
}

static bool match_entry(const struct composer *c, size_t i, const struct composed_key *key)
{
	return i < c->n && !memcmp(&c->entry[i].key, key, sizeof *key);
}

/* Finds an entry, or lowers its programs. what: FIND_...; the last entry found is tried first. */
static tess_status find_composed(struct composer *c, int what, struct composed_key key,
                                 struct composed *out)
{
	struct entry *more;
	size_t i = c->last[what];
	tess_status st;

	for (i = match_entry(c, i, &key) ? i : 0; i < c->n; i++)
		if (match_entry(c, i, &key)) {
			c->last[what] = i;
			*out = c->entry[i].value;
			return TESS_OK;
		}
	if (c->n == c->room) {
		more = realloc(c->entry, (2 * c->room + 64) * sizeof *more);
		if (!more)
			return tess_fail(TESS_ENOMEM, "out of memory for a search");
		c->entry = more;
		c->room = 2 * c->room + 64;
	}
	memset(out, 0, sizeof *out);
	st = measure_key(c, &key, out);
	out->refused = st == TESS_EINVAL;
	if (st)
		free_traces(out);
	if (st && !out->refused)
		return st;
	c->entry[c->n++] = (struct entry){ key, *out };
	return TESS_OK;
}

/* ---- an estimate ----------------------------------------------------------------------------- */

/* Composes the rows of a candidate, on the line through two numbers of sequences. */
static tess_status compose_rows(struct composer *c, const struct candidate *k, struct composed *out)
{
	struct composed_key key;
	struct composed few, more;
	double share = (double)(k->local - LOCAL_FEW) / (LOCAL_MORE - LOCAL_FEW);
	tess_status st;

	memset(&key, 0, sizeof key);
	key.dp = 1;
	key.tp = k->tp;
	key.ep = k->ep;
	key.plan = k->plan;
	key.recompute = k->recompute;
	key.offload = k->offload;
	key.local = LOCAL_FEW;
	st = find_composed(c, FIND_FEW, key, &few);
	if (st || few.refused || k->local == LOCAL_FEW) {
		*out = few;
		return st;
	}
	key.local = LOCAL_MORE;
	st = find_composed(c, FIND_MORE, key, &more);
	out->refused = more.refused;
	combine_samples(1 - share, &few.layer, share, &more.layer, &out->layer);
	combine_samples(1 - share, &few.base, share, &more.base, &out->base);
	return st;
}

/*
 * Sets what n shares leave of what a rank without dp has (plain), and what a rank has with those of
 * the sample: a part is divided by the number of shares.
 */
static double get_share(double plain, double sampled, double shards, double n)
{
	double cut = (plain - sampled) / (1 - 1 / shards);

	return plain - cut * (1 - 1 / n);
}

static void share_sample(const struct candidate *k, const struct tess_sample *plain,
                         struct tess_sample *s)
{
	double n = tess_candidate_count_shards(k);

	for (int32_t i = 0; i < TESS_HOLDS_STEP; i++)
		s->holds[i] = get_share(plain->holds[i], s->holds[i], REPLICAS, n);
	s->state = get_share(plain->state, s->state, REPLICAS, n);
	s->transfers = get_share(plain->transfers, s->transfers, REPLICAS, n);
	s->update = get_share(plain->update, s->update, REPLICAS, n);
}

/* Composes what a candidate does along dp, from a sample with few ranks along it. */
static tess_status compose_data(struct composer *c, struct estimate *e)
{
	const struct candidate *k = e->candidate;
	struct composed_key key;
	tess_status st;

	if (k->dp == 1) {
		e->data = e->compute;
		return TESS_OK;
	}
	memset(&key, 0, sizeof key);
	key.dp = k->shards ? REPLICAS * REPLICAS : REPLICAS;
	key.shards = k->shards ? REPLICAS : 0;
	key.tp = k->tp;
	key.ep = k->ep;
	key.plan = k->plan;
	key.zero = k->zero;
	key.recompute = k->zero == ZERO_3 ? k->recompute : RECOMPUTE_NONE;
	key.bucket = k->bucket;
	key.offload = k->offload;
	key.local = LOCAL_FEW;
	st = find_composed(c, FIND_DATA, key, &e->data);
	key.dp = 1;
	key.shards = key.zero = key.bucket = 0;
	if (!st)
		st = find_composed(c, FIND_PLAIN, key, &e->plain);
	if (!st && !e->data.refused) {
		share_sample(k, &e->compute.layer, &e->data.layer);
		share_sample(k, &e->compute.base, &e->data.base);
	}
	return st;
}

tess_status tess_composer_estimate(struct composer *c, struct candidate *k)
{
	struct estimate e = { .planner = c->planner, .candidate = k };
	tess_status st = compose_rows(c, k, &e.compute);

	if (!st && !e.compute.refused)
		st = compose_data(c, &e);
	if (!st && k->pp > 1)
		st = tess_stager_compose(c->stager, k, &e.staged);
	if (st)
		return st;
	if (e.compute.refused || e.data.refused || e.staged.refused)
		return TESS_EINVAL;
	if (k->pp > 1)
		st = tess_stager_find_schedule(c->stager, k, &e.staged, &e.schedule);
	if (!st && k->pp > 1)
		st = tess_stager_simulate(c->stager, k, &e.staged, e.schedule, &e.simulated);
	if (!st)
		tess_candidate_estimate(&e);
	return st;
}

tess_status tess_composer_choose_bucket(struct composer *c, struct candidate *k)
{
	struct candidate one = *k;
	struct composed compute;
	double weights;
	tess_status st;

	one.recompute = RECOMPUTE_NONE;
	one.offload = OFFLOAD_NONE;
	one.local = LOCAL_FEW;
	st = compose_rows(c, &one, &compute);
	if (st || compute.refused)
		return st;
	weights = compute.layer.holds[TESS_HOLDS_WEIGHTS] * (double)c->planner->layers +
	          compute.base.holds[TESS_HOLDS_WEIGHTS];
	k->bucket = weights / k->pp >= MANY_BUCKETS * (double)LARGE_BUCKET;
	return TESS_OK;
}

/*
 * gather.c - gathers weights of which each rank keeps a share between uses, and fetches those that
 * are in a file: before the records that read them; the memory is reused after the last of these.
 *
 * The weights of adjacent records, up to the bytes of a bucket, are gathered together as a run. The
 * gathers of the next run start before the records of this one, and overlap with them, if both are
 * in one segment. A share in a file is fetched one run earlier, to its place in the gathered
 * weight.
 */
#include "nn/lower/build.h"
#include "nn/program/storage.h"

#include <string.h>
#include <tessera/reduce.h>

struct run { /* adjacent records */
	int32_t first;
	bool alone; /* it follows no run of its segment */
	int32_t begin, n; /* range of its weights in the list */
};

struct build_gathers {
	struct run *run;
	int32_t nruns, next; /* next: the run whose first record is the next one */
	const struct tess_weight **weight; /* weights of all runs, in order of use */
	int32_t nweights;
	int32_t *last; /* by weight: the last run that reads it, + 1 */
	struct value *value; /* by weight: the gathered weight */
	struct tess_step **start; /* by weight: the outstanding gather or transfer; NULL: none */
	int32_t *last_fetched; /* by weight: the last run for which its share is fetched, + 1 */
	struct value *share; /* by weight: room for the next gathered weight, with the share */
	struct tess_step **fetch; /* by weight: the transfer of the share */
};

static const struct tess_weight *get_home(const struct tess_weight *w)
{
	return w->table ? w->table : w;
}

static bool is_fetched(const struct build *b, const struct tess_weight *w)
{
	return tess_weight_is_fetched(b->p, w, b->l->rank);
}

bool build_is_gathered(const struct build *b, const struct tess_weight *w)
{
	return w->rest_cut || is_fetched(b, get_home(w));
}

static int64_t count_local_elements(const struct build *b, const struct tess_weight *w)
{
	return tess_weight_count_local(b->p, w, b->l->rank);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Adds the weights of a record that the last run lacks, or all; returns their bytes. */
static uint64_t add_weights(struct build *b, const struct tess_record *rec, bool all, bool add)
{
	struct build_gathers *g = b->gathers;
	uint64_t bytes = 0;

	for (int32_t i = 0; i < rec->nweight; i++) {
		const struct tess_weight *w = get_home(rec->weight[i]);

		if (!build_is_gathered(b, w) || (!all && g->last[w->index] == g->nruns))
			continue;
		bytes += tess_width(w->dtype) * (uint64_t)count_local_elements(b, w);
		if (!add)
			continue;
		g->last[w->index] = g->nruns;
		g->weight[g->nweights++] = w;
		g->run[g->nruns - 1].n++;
	}
	return bytes;
}

static void plan_runs(struct build *b, int32_t nuses)
{
	const struct tess_program *p = b->p;
	struct build_gathers *g = b->gathers;
	uint64_t most = tess_program_get_bucket(p), bytes = 0;

	g->run = TESS_NEW(&b->l->arena, struct run, nuses);
	g->weight = TESS_NEW(&b->l->arena, const struct tess_weight *, nuses);
	if (!g->run || !g->weight) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i < p->nrecords; i++) {
		bool reads = p->record[i]->kind != TESS_REC_GRADIENT &&
		             build_has_record(b, p->record[i]);
		bool alone = !g->nruns || !build_is_one_segment(b, g->run[g->nruns - 1].first, i);
		uint64_t more = reads ? add_weights(b, p->record[i], alone, false) : 0;

		if (!more)
			continue;
		if (alone || bytes + more > most) {
			g->run[g->nruns++] =
				(struct run){ .first = i, .alone = alone, .begin = g->nweights };
			bytes = 0;
		}
		bytes += add_weights(b, p->record[i], false, true);
	}
}

void build_plan_gathers(struct build *b)
{
	const struct tess_program *p = b->p;
	struct tess_arena *arena = &b->l->arena;
	struct build_gathers *g = b->gathers = TESS_NEW(arena, struct build_gathers, 1);
	int32_t nuses = 1;

	if (g) {
		g->last = TESS_NEW(arena, int32_t, p->nweights);
		g->value = TESS_NEW(arena, struct value, p->nweights);
		g->start = TESS_NEW(arena, struct tess_step *, p->nweights);
		g->last_fetched = TESS_NEW(arena, int32_t, p->nweights);
		g->share = TESS_NEW(arena, struct value, p->nweights);
		g->fetch = TESS_NEW(arena, struct tess_step *, p->nweights);
	}
	if (!g || !g->last || !g->value || !g->start || !g->last_fetched || !g->share ||
	    !g->fetch) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i < p->nrecords; i++)
		nuses += p->record[i]->nweight;
	plan_runs(b, nuses);
	memset(g->last, 0, (size_t)p->nweights * sizeof *g->last);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static struct value add_room(struct build *b, const struct tess_weight *w)
{
	return build_add_temporary(b, 0, 1, count_local_elements(b, w), w->dtype);
}

static struct tess_step *fetch_weight(struct build *b, const struct tess_weight *w,
                                      const struct value *room)
{
	struct tess_run kept = tess_weight_get_kept(b->p, w, b->l->rank, TESS_REST);
	struct value at = build_slice_value(room, 0, 1, kept.start, kept.len);

	return build_start_transfer(b, w, TESS_WEIGHT, false, 0, kept.len, &at);
}

/* Returns the room for a gathered weight; its share is there, if that was in a file. */
static struct value take_room(struct build *b, const struct tess_weight *w)
{
	struct build_gathers *g = b->gathers;

	if (!is_fetched(b, w))
		return add_room(b, w);
	build_add_wait(b, g->fetch[w->index]);
	build_keep_value(b, &g->share[w->index]);
	return g->share[w->index];
}

static void start_gather(struct build *b, const struct tess_weight *w)
{
	const struct tess_program *p = b->p;
	struct build_gathers *g = b->gathers;
	int32_t nshards = tess_program_count_shards(p);
	struct tess_cut cut = tess_program_get_cut(p, b->l->rank, p->data_along);
	uint64_t *counts = TESS_NEW(&b->l->arena, uint64_t, nshards);
	struct value *v = &g->value[w->index];
	int64_t n = count_local_elements(b, w);
	struct tess_step *s;

	if (!counts) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t q = 0; q < nshards; q++)
		counts[q] = (uint64_t)tess_program_get_share(p, n, q).len;
	*v = take_room(b, w);
	s = g->start[w->index] = build_add_step(b, TESS_STEP_COLL);
	s->along = p->data_along;
	s->among_shards = true;
	s->started = true;
	s->coll = (struct tess_coll){ .size = sizeof s->coll,
		                      .kind = TESS_ALL_GATHER,
		                      .dtype = w->dtype,
		                      .mem = p->device ? p->device->mem : TESS_HOST,
		                      .src = b->weights ? b->weights[w->index].data : NULL,
		                      .count = counts[cut.rank % nshards],
		                      .recv_counts = counts,
		                      .where = w->name };
	if (is_fetched(b, w)) /* in place */
		build_add_pointer(b, (void **)(uintptr_t)&s->coll.src, v);
	build_add_pointer(b, &s->coll.dst, v);
}

/* Fetches the shares of a run, except for weights that the previous run gathers. */
static void fetch_shares(struct build *b, int32_t i)
{
	struct build_gathers *g = b->gathers;

	for (int32_t k = 0; k < g->run[i].n && !b->status; k++) {
		const struct tess_weight *w = g->weight[g->run[i].begin + k];

		if (!w->rest_cut || !is_fetched(b, w))
			continue;
		if (g->run[i].alone || g->last_fetched[w->index] != i) {
			g->share[w->index] = add_room(b, w);
			g->fetch[w->index] = fetch_weight(b, w, &g->share[w->index]);
		}
		g->last_fetched[w->index] = i + 1;
	}
}

static void start_weight(struct build *b, const struct tess_weight *w)
{
	struct build_gathers *g = b->gathers;

	if (w->rest_cut) {
		start_gather(b, w);
	} else {
		g->value[w->index] = add_room(b, w);
		g->start[w->index] = fetch_weight(b, w, &g->value[w->index]);
	}
}

/* Starts the gathers of a run, except for weights that the previous run has gathered. */
static void start_run(struct build *b, int32_t i)
{
	struct build_gathers *g = b->gathers;

	for (int32_t k = 0; k < g->run[i].n && !b->status; k++) {
		const struct tess_weight *w = g->weight[g->run[i].begin + k];

		if (g->run[i].alone || g->last[w->index] != i)
			start_weight(b, w);
		g->last[w->index] = i + 1;
	}
}

static void wait_for_run(struct build *b, int32_t i)
{
	struct build_gathers *g = b->gathers;

	for (int32_t k = 0; k < g->run[i].n && !b->status; k++) {
		int32_t w = g->weight[g->run[i].begin + k]->index;

		if (!g->start[w])
			continue;
		build_add_wait(b, g->start[w]);
		build_keep_value(b, &g->value[w]);
		g->start[w] = NULL;
	}
}

/* Returns whether there is a run i, in the segment of the run before it. */
static bool follows_run(const struct build_gathers *g, int32_t i)
{
	return i < g->nruns && !g->run[i].alone;
}

void build_gather_weights(struct build *b)
{
	struct build_gathers *g = b->gathers;
	int32_t i = g->next;

	if (i == g->nruns || g->run[i].first != b->record)
		return;
	if (g->run[i].alone) {
		fetch_shares(b, i);
		start_run(b, i);
		if (follows_run(g, i + 1))
			fetch_shares(b, i + 1);
	}
	wait_for_run(b, i);
	g->next++;
	if (!follows_run(g, i + 1))
		return;
	if (follows_run(g, i + 2))
		fetch_shares(b, i + 2);
	start_run(b, i + 1);
}

/* Finds the offset of the part of a tied table that the head reads. */
static int64_t find_tied_part(struct build *b, const struct tess_weight *w)
{
	int64_t at = 0, stride = 1;

	for (int32_t a = w->ndim - 1; a >= 0 && w->table; a--) {
		int32_t along = tess_places_find(w->place, b->p->mesh.ndims, TESS_SHARD, a);
		struct tess_cut cut = build_find_cut(b, w->table->place, a);

		if (along >= 0 && w->table->place[along].kind == TESS_REPLICATE) {
			tess_dim_list_local_runs(w->dim[a], build_find_cut(b, w->place, a),
			                         b->runs);
			at += b->runs[0].start * stride;
		}
		stride *= tess_dim_get_local_size(w->dim[a], cut.nranks, cut.rank);
	}
	return at;
}

void build_add_gathered_pointer(struct build *b, void **at, const struct tess_weight *w,
                                int64_t element)
{
	struct value v = b->gathers->value[get_home(w)->index];

	v.offset += tess_width(w->dtype) * (uint64_t)(find_tied_part(b, w) + element);
	build_add_pointer(b, at, &v);
}

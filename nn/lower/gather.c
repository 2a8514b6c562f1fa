/*
 * gather.c - gathers weights of which each rank keeps a share between uses: before the records that
 * read them; the memory is reused after the last of these.
 *
 * The weights of adjacent records, up to the bytes of a bucket, are gathered together as a run. The
 * gathers of the next run start before the records of this one, and overlap with them, if both are
 * in one segment.
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
	struct tess_step **start; /* by weight: the outstanding gather; NULL: none */
};

static const struct tess_weight *get_home(const struct tess_weight *w)
{
	return w->table ? w->table : w;
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

		if (!w->rest_cut || (!all && g->last[w->index] == g->nruns))
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
	}
	if (!g || !g->last || !g->value || !g->start) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t i = 0; i < p->nrecords; i++)
		nuses += p->record[i]->nweight;
	plan_runs(b, nuses);
	memset(g->last, 0, (size_t)p->nweights * sizeof *g->last);
}

/* ---- steps ----------------------------------------------------------------------------------- */

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
	*v = build_add_temporary(b, 0, 1, n, w->dtype);
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
	build_add_pointer(b, &s->coll.dst, v);
}

/* Starts the gathers of a run, except for weights that the previous run has gathered. */
static void start_run(struct build *b, int32_t i)
{
	struct build_gathers *g = b->gathers;

	for (int32_t k = 0; k < g->run[i].n && !b->status; k++) {
		const struct tess_weight *w = g->weight[g->run[i].begin + k];

		if (g->run[i].alone || g->last[w->index] != i)
			start_gather(b, w);
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

void build_gather_weights(struct build *b)
{
	struct build_gathers *g = b->gathers;

	if (g->next == g->nruns || g->run[g->next].first != b->record)
		return;
	if (g->run[g->next].alone)
		start_run(b, g->next);
	wait_for_run(b, g->next++);
	if (g->next < g->nruns && !g->run[g->next].alone)
		start_run(b, g->next);
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

/* explain_measure.c - measures what each rank of a plan holds and sends, from its steps. */
#include "api/explaining.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "nn/cost/step_time.h"
#include "nn/generate/cut_logits.h"
#include "nn/lower/lower.h"
#include "nn/program/compressed.h"
#include "nn/program/storage.h"
#include "nn/weights/decide.h"
#include "nn/weights/device.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <tessera/split.h>

/* ---- memory ---------------------------------------------------------------------------------- */

uint64_t tess_explaining_measure_shard(const struct tess_program *p, const struct tess_weight *w,
                                       int32_t rank, int64_t *shape)
{
	for (int32_t a = 0; a < w->ndim && shape; a++) {
		struct tess_cut cut = tess_program_find_cut(p, rank, w->place, a);

		shape[a] = tess_dim_get_local_size(w->dim[a], cut.nranks, cut.rank);
		if (!tess_program_has_stage(p, rank, w->stage))
			shape[a] = 0;
	}
	return tess_weight_count_bytes(p, w, rank);
}

/* Measures the weights between steps, and what training keeps in addition, without files. */
static void measure_parameters(const struct explanation *x, const struct tess_program *p,
                               const struct tess_offload_layout *files,
                               struct tess_explained_rank *out)
{
	int32_t rank = files->rank;

	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i];

		if (w->compressed)
			out->weights += tess_weight_count_bytes(p, w, rank);
		else if (!w->table && !files->weight[i].fetched)
			out->weights += tess_width(w->dtype) *
			                (uint64_t)tess_weight_get_kept(p, w, rank, TESS_REST).len;
	}
	for (int32_t i = 0; i < p->ngradients; i++) {
		const struct tess_weight *w = p->gradient[i].weight;

		if (!files->weight[w->index].has_state)
			out->state += tess_weight_count_state_bytes(p, w, rank, x->moments);
	}
}

static tess_status measure_rank(struct explanation *x, const struct tess_program *p,
                                const struct tess_rank_program *l, struct explained_pages *pages)
{
	struct tess_explained_rank *out = &pages->rank;
	struct tess_page_class *page_class =
		TESS_NEW(&x->arena, struct tess_page_class, l->nclasses + 1);
	struct tess_offload_layout files;

	if (!page_class || tess_offload_lay_out(p, l->rank, x->moments, &x->arena, &files))
		return TESS_ENOMEM;
	memcpy(page_class, l->page_class, (size_t)l->nclasses * sizeof *page_class);
	pages->page_class = page_class;
	measure_parameters(x, p, &files, out);
	for (int32_t i = 0; i < l->nclasses; i++)
		out->cache += l->page_class[i].bytes / 64;
	out->step = l->bytes * (uint64_t)tess_program_count_ahead(p);
	for (int32_t s = 0; s < l->nstages && x->timeline; s++)
		out->step += l->slot_bytes[s] * (uint64_t)x->timeline->stage_live[s];
	out->gradients = l->gradient_bytes;
	tess_explaining_measure_files(x, l, &files, pages);
	out->total = out->weights + out->gradients + out->state + out->step +
	             tess_explained_get_transfer(out);
	return TESS_OK;
}

/* ---- traffic --------------------------------------------------------------------------------- */

/* Raises the maximum over ranks for each record; steps are in the order of records. */
static void measure_sent(struct explanation *x, const struct tess_program *p,
                         const struct tess_rank_program *l)
{
	int32_t ndims = p->mesh.ndims;
	struct explained_sent sum[TESS_MESH_DIMS] = { 0 };

	for (int32_t i = 0; i < l->nsteps; i++) {
		const struct tess_step *s = l->step[i];
		struct explained_sent *sent, *so_far;
		struct tess_cut cut;

		if (i && l->step[i - 1]->record != s->record)
			memset(sum, 0, sizeof sum);
		if (s->kind != TESS_STEP_SUM && s->kind != TESS_STEP_COLL)
			continue;
		cut = tess_step_find_cut(p, l->rank, s);
		so_far = &sum[s->along];
		so_far->bytes += tess_step_count_sent(s, cut);
		so_far->expected += (uint64_t)tess_step_count_expected(s, cut);
		sent = &x->sent[s->record * ndims + s->along];
		sent->bytes = so_far->bytes > sent->bytes ? so_far->bytes : sent->bytes;
		sent->expected =
			so_far->expected > sent->expected ? so_far->expected : sent->expected;
		sent->kind = s->kind == TESS_STEP_SUM
		                     ? (s->sum.share ? TESS_REDUCE_SCATTER : TESS_ALL_REDUCE)
		             : s->coll.kind == TESS_RECV ? TESS_SEND
		                                         : s->coll.kind;
	}
}

/* Marks the records whose ops are in the step of another record. */
static void mark_fused(struct explanation *x, const struct tess_rank_program *l)
{
	for (int32_t i = 0; i < l->nsteps; i++)
		for (const struct tess_step *s = l->step[i]->fused; s; s = s->fused)
			if (s->record != l->step[i]->record)
				x->fused[s->record] = 1 + l->step[i]->record;
}

uint64_t tess_explaining_count_returned(const struct tess_program *p)
{
	uint64_t n = 0, others = (uint64_t)tess_program_count_shards(p) - 1;

	for (int32_t i = 0; i < p->ngradients; i++) {
		const struct tess_weight *w = p->gradient[i].weight;
		int64_t share = tess_weight_get_kept(p, w, 0, TESS_STATE).len;

		if (w->state_cut && !w->rest_cut)
			n += others * (uint64_t)share * tess_width(w->dtype);
	}
	return n;
}

/* Returns the maximum number of elements of a weight that a rank keeps. */
static uint64_t find_most_kept(const struct tess_program *p, const struct tess_weight *w,
                               int32_t storage)
{
	int64_t most = 0;

	for (int32_t r = 0; r < p->mesh.nranks; r++) {
		int64_t n = tess_weight_get_kept(p, w, r, storage).len;

		most = n > most ? n : most;
	}
	return (uint64_t)most;
}

uint64_t tess_explaining_count_tied(const struct tess_program *p)
{
	uint64_t n = 0;

	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i];

		if (w->copies)
			n += sizeof(float) * find_most_kept(p, w, TESS_STATE) +
			     tess_width(w->dtype) * find_most_kept(p, w, TESS_REST);
	}
	return n;
}

/* ---- how a rank stores weights --------------------------------------------------------------- */

tess_status tess_explanation_list_weights(const struct tess_explanation *e, int32_t rank,
                                          struct tess_weight_storage *out)
{
	const struct explanation *x = (const struct explanation *)e;
	struct tess_parts parts = { 0 };
	struct tess_weight_decision *list;
	const struct tess_device *device = e ? x->model.device : NULL;
	tess_status st = TESS_REQUIRE(e, out);

	if (!st && (rank < 0 || rank >= e->nranks))
		st = tess_fail(TESS_EINVAL, "%s: there is no rank %d", __func__, (int)rank);
	if (!st)
		st = device ? TESS_OK : tess_device_inspect(&device);
	if (!st)
		st = tess_device_check_weights(device, x->model.weights);
	if (!st)
		st = tess_parts_open(&parts, x->program, &x->model.source,
		                     tess_explaining_get_program_rank(x, rank));
	if (!st)
		st = tess_weights_decide(&parts, device, &list);
	tess_parts_close(&parts);
	if (st)
		return st;
	tess_weight_decisions_describe(list, e->nparameters, out);
	free(list);
	return TESS_OK;
}

/* ---- programs -------------------------------------------------------------------------------- */

int32_t tess_explaining_get_program_rank(const struct explanation *x, int32_t rank)
{
	return x->training ? rank : tess_mesh_shape_project(&x->mesh, rank, &x->program->mesh);
}

/* Returns the mesh dimension whose ranks have different programs; -1: none. */
static int32_t find_replica_dim(const struct explanation *x)
{
	return x->training ? tess_mesh_shape_find(&x->mesh, "dp", 2) : -1;
}

int32_t tess_explaining_count_replicas(const struct explanation *x)
{
	int32_t dp = find_replica_dim(x);

	return dp < 0 ? 1 : x->mesh.dim[dp].size;
}

tess_status tess_explaining_record(const struct explanation *x, int32_t dp,
                                   struct tess_program **out)
{
	int64_t n = x->e.sequences, replicas = tess_explaining_count_replicas(x);
	int64_t first = tess_edge(n, replicas, dp), end = tess_edge(n, replicas, dp + 1);
	struct tess_training t = { .nsequences = end - first, .all_sequences = n, .first = first };
	struct tess_planned_model model = x->model;
	struct tess_arena arena = { 0 };
	int64_t *lengths;
	tess_status st;

	if (!x->training)
		return tess_planned_model_record(&x->model, &x->mesh, x->e.tokens, x->nselected,
		                                 out);
	lengths = TESS_NEW(&arena, int64_t, end - first);
	for (int64_t i = 0; i < end - first && lengths; i++)
		lengths[i] = x->e.tokens / n;
	t.lengths = lengths;
	t.bucket = x->training->bucket;
	t.shards = x->shards;
	t.recompute = x->training->recompute;
	t.several = x->training->micro_batches > 1;
	t.balance = x->training->balance;
	t.accumulate = t.several;
	t.state_location = tess_location_parse(x->training->offload_optimizer);
	model.rest_location = tess_location_parse(x->training->offload_weights);
	model.tile = x->training->tile;
	model.math = x->training->math;
	st = lengths ? tess_planned_model_record_training(&model, &x->mesh, &t, x->pipeline, out)
	             : TESS_ENOMEM;
	tess_arena_free(&arena);
	return st;
}

/* Returns whether replicas a and b have equal numbers of sequences and of nodes in sums. */
static bool match_replicas(const struct explanation *x, int32_t a, int32_t b)
{
	int64_t n = x->e.sequences, all = tess_explaining_count_replicas(x);
	int64_t lo[2] = { tess_edge(n, all, a), tess_edge(n, all, b) };
	int64_t hi[2] = { tess_edge(n, all, a + 1), tess_edge(n, all, b + 1) };

	return hi[0] - lo[0] == hi[1] - lo[1] &&
	       tess_node_count(n, lo[0], hi[0]) == tess_node_count(n, lo[1], hi[1]);
}

/* Lists, for each replica, the first one that stands for it; replica 0 does more than others. */
static int32_t *list_first_replicas(struct explanation *x)
{
	int32_t n = tess_explaining_count_replicas(x), *first = TESS_NEW(&x->arena, int32_t, n);

	for (int32_t at = 1; at < n && first; at++) {
		int32_t i = !x->most;

		while (i < at && (first[i] != i || !match_replicas(x, i, at)))
			i++;
		first[at] = i;
	}
	return first;
}

/* Notes the weight that exceeds the tile the most. */
static void keep_widest(struct explanation *x, const struct tess_rank_program *l)
{
	if (l->widest_bytes <= x->e.widest_bytes)
		return;
	x->e.widest = x->program->weight[l->widest->index]->name;
	x->e.widest_bytes = l->widest_bytes;
}

/* Measures the ranks of a replica, by rank of the program; of equal ranks only the first. */
static tess_status measure_replica(struct explanation *x, int32_t dp, const int32_t *first,
                                   struct explained_pages *rank)
{
	int32_t along = find_replica_dim(x);
	struct tess_program *p = x->program;
	tess_status st = dp ? tess_explaining_record(x, dp, &p) : TESS_OK;

	for (int32_t r = 0; r < x->program->mesh.nranks && !st; r++) {
		struct tess_rank_program *lowered;

		if (first[r] != r ||
		    (along >= 0 && tess_mesh_shape_coordinate(&x->mesh, along, r) != dp))
			continue;
		st = tess_program_lower(p, r, NULL, &lowered);
		if (st)
			break;
		st = measure_rank(x, p, lowered, &rank[r]);
		measure_sent(x, p, lowered);
		keep_widest(x, lowered);
		if (p->device && p->device->fuses)
			mark_fused(x, lowered);
		if (x->visit)
			st = x->visit(x->visitor, p, lowered);
		tess_rank_program_free(lowered);
	}
	if (p != x->program)
		tess_program_free(p);
	return st;
}

/*
 * Splits groups of alike replicas by what their ranks keep. replica[i]: the first replica of the
 * group of replica i, before and after. first: for each rank, the lowest one that keeps as much.
 */
static tess_status part_replicas(struct explanation *x, int32_t along, const int32_t *first,
                                 int32_t *replica)
{
	int32_t n = x->mesh.dim[along].size, stride = x->mesh.dim[along].stride;
	int32_t *alike = TESS_NEW(&x->arena, int32_t, n);

	if (!alike)
		return TESS_ENOMEM;
	memcpy(alike, replica, (size_t)n * sizeof *alike);
	for (int32_t at = 0; at < n; at++) {
		int32_t i = 0;

		while (first[i * stride] != first[at * stride] || alike[i] != alike[at])
			i++;
		replica[at] = i;
	}
	return TESS_OK;
}

/* Sets first[r], for each rank r of the program, to the lowest rank that stands for it. */
static tess_status find_alike(struct explanation *x, int32_t *replica, int32_t *first)
{
	int32_t along = find_replica_dim(x);
	tess_status st = tess_program_find_alike(x->program, x->most, first);

	if (!st && along >= 0)
		st = part_replicas(x, along, first, replica);
	for (int32_t r = 0; r < x->program->mesh.nranks && !st && along >= 0; r++) {
		int32_t at = tess_mesh_shape_coordinate(&x->mesh, along, r);
		int32_t was = tess_mesh_shape_coordinate(&x->mesh, along, first[r]);

		first[r] += (replica[at] - was) * x->mesh.dim[along].stride;
	}
	return st;
}

tess_status tess_explaining_measure_ranks(struct explanation *x)
{
	int32_t n = x->e.nranks, nprogram = x->program->mesh.nranks,
		replicas = tess_explaining_count_replicas(x);
	struct explained_pages *rank = TESS_NEW(&x->arena, struct explained_pages, nprogram);
	struct tess_explained_rank **list = TESS_NEW(&x->arena, struct tess_explained_rank *, n);
	int32_t *first = TESS_NEW(&x->arena, int32_t, nprogram), *replica = list_first_replicas(x);
	tess_status st;

	x->sent = TESS_NEW(&x->arena, struct explained_sent,
	                   x->program->nrecords * x->program->mesh.ndims);
	x->fused = TESS_NEW(&x->arena, int32_t, x->program->nrecords);
	if (!rank || !list || !first || !replica || !x->sent || !x->fused)
		return TESS_ENOMEM;
	st = find_alike(x, replica, first);
	for (int32_t dp = 0; dp < replicas && !st; dp++)
		if (replica[dp] == dp)
			st = measure_replica(x, dp, first, rank);
	for (int32_t r = 0; r < n; r++)
		list[r] = &rank[first[tess_explaining_get_program_rank(x, r)]].rank;
	x->e.ranks = (const struct tess_explained_rank *const *)list;
	return st;
}

/* ---- totals ---------------------------------------------------------------------------------- */

struct tess_explained_plan tess_explaining_measure_plan(const struct explanation *x)
{
	const struct tess_program *p = x->program;
	struct tess_explained_plan t = { 0 };

	for (int32_t i = 0; i < p->nrecords * p->mesh.ndims; i++)
		t.sent += x->sent[i].bytes;
	if (x->training)
		t.sent += tess_explaining_count_returned(p) + tess_explaining_count_tied(p);
	if (p->vocabulary_along >= 0 && !x->training)
		t.sent += tess_cut_logits_count_greedy_bytes(
			tess_program_get_cut(p, 0, p->vocabulary_along).nranks);
	for (int32_t r = 0; r < x->e.nranks; r++) {
		const struct tess_explained_rank *k = x->e.ranks[r];

		t.weights = k->weights > t.weights ? k->weights : t.weights;
		t.step = k->step > t.step ? k->step : t.step;
		t.total = k->total > t.total ? k->total : t.total;
	}
	return t;
}

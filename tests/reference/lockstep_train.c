/* lockstep_train.c - steps of training in lockstep: programs of replicas, and their gradients. */
#include "core/base/status.h"
#include "lockstep_rank.h"
#include "nn/compile/hash.h"
#include "nn/program/plan.h"
#include "scalar.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct tess_training get_replica(const struct lockstep_step *step, int32_t nreplicas,
                                        int32_t replica, int64_t *row)
{
	struct tess_training t = { .all_sequences = step->nsequences,
		                   .balance = step->balance,
		                   .dropout = step->dropout };

	t.first = tess_edge(step->nsequences, nreplicas, replica);
	t.nsequences = tess_edge(step->nsequences, nreplicas, replica + 1) - t.first;
	t.lengths = step->lengths + t.first;
	*row = 0;
	for (int64_t i = 0; i < t.first; i++)
		*row += step->lengths[i];
	return t;
}

/* Cuts all weights at rest, but not their gradients, which are then as those of other jobs. */
static void cut_weights(struct tess_program *p)
{
	for (int32_t i = 0; i < p->nweights; i++)
		p->weight[i]->rest_cut = true;
}

static tess_status record_replica(const struct lockstep_step *step, const char *const *recompute,
                                  struct tess_record_options *rec, int32_t nreplicas,
                                  int32_t replica, struct tess_program **out)
{
	int64_t row;
	struct tess_training t = get_replica(step, nreplicas, replica, &row);
	tess_status st;

	rec->training = &t;
	rec->ntokens = 0;
	for (int64_t i = 0; i < t.nsequences; i++)
		rec->ntokens += t.lengths[i];
	rec->nselected = rec->ntokens;
	t.accumulate = t.several = step->times > 1;
	t.recompute = recompute;
	rec->tile = step->tile;
	st = tess_program_compile(rec, out);
	if (!st && step->tile && nreplicas > 1)
		cut_weights(*out);
	return st;
}

/* Records one program for each replica; their records are equal. */
static tess_status record_replicas(const struct lockstep_step *step, const char *const *recompute,
                                   struct tess_program **p, int32_t *nreplicas)
{
	const struct lockstep *how = step->how;
	struct tess_plan plan;
	struct tess_record_options rec = { .model = how->model,
		                           .plan = &plan,
		                           .source = how->source,
		                           .mesh = tess_mesh_shape_make("tp", how->nranks),
		                           .logits_root = -1 };
	tess_status st = tess_plan_open(how->model, how->plan, NULL, 0, &plan);
	int32_t dp;

	if (st)
		return st;
	if (how->mesh)
		st = tess_mesh_shape_parse(how->mesh, 0, &rec.mesh);
	dp = tess_mesh_shape_find(&rec.mesh, "dp", 2);
	*nreplicas = dp < 0 || rec.mesh.dim[dp].size > step->nsequences ? 1 : rec.mesh.dim[dp].size;
	for (int32_t i = 0; i < *nreplicas && !st; i++)
		st = record_replica(step, recompute, &rec, *nreplicas, i, &p[i]);
	for (int32_t i = 0; i < *nreplicas && !st; i++)
		st = tess_program_hash(p[i]);
	tess_plan_free(&plan);
	for (int32_t i = 1; i < *nreplicas && !st; i++)
		if (p[i]->nrecords != p[0]->nrecords ||
		    p[i]->hash[p[i]->nrecords - 1] != p[0]->hash[p[0]->nrecords - 1])
			st = tess_fail(TESS_EBUG, "replicas 0 and %d have other records", (int)i);
	return st;
}

/*
 * Writes the inputs of the rows from `row` on: ids, positions, slots, labels, and the count of all
 * labels.
 */
static void write_training_inputs(const struct lockstep_step *step, const struct tess_program *p,
                                  int64_t row, int32_t *in)
{
	const struct tess_training *t = p->training;
	int64_t n = p->ntokens, all = 0, at = 0;
	float count = 0;

	for (int64_t i = 0; i < step->nsequences; i++)
		all += step->lengths[i];
	for (int64_t i = 0; i < all; i++)
		count += step->labels[i] != -100;
	for (int64_t i = 0; i < t->nsequences; i++)
		for (int64_t k = 0; k < t->lengths[i]; k++, at++) {
			in[n + at] = (int32_t)k;
			in[2 * n + at] = (int32_t)i;
		}
	memcpy(in, step->how->ids + row, 4 * (size_t)n);
	memcpy(in + 3 * n, step->labels + row, 4 * (size_t)n);
	memcpy(in + 4 * n, &count, sizeof count);
	memcpy(in + 4 * n + 1, (int32_t[]){ 2026, -11, (int32_t)t->first, 0 }, 16);
}

/* Makes a slot for each stage of the rank; NaN shows premature reads. */
static void **make_slots(const struct tess_rank_program *low)
{
	void **slot = calloc((size_t)low->nstages, sizeof *slot);

	for (int32_t s = 0; s < low->nstages; s++) {
		slot[s] = malloc(low->slot_bytes[s] + 64);
		memset(slot[s], 0xff, low->slot_bytes[s] + 64);
	}
	return slot;
}

static tess_status open_training_rank(const struct lockstep_step *step,
                                      const struct tess_program *p, int32_t r, int64_t row,
                                      struct lockstep_rank *me)
{
	struct tess_device rows = scalar_device;
	const struct tess_opened_device device = { .table = &scalar_device };
	tess_status st;
	int64_t longest = 1;

	rows.layout = TESS_ROWS;
	st = tess_rank_weights_load(p, step->how->source, r,
	                            &(struct tess_opened_device){ .table = &rows }, NULL,
	                            &me->held);
	if (st)
		return st;
	me->held.device = device;
	st = tess_program_lower(p, r, me->held.view, &me->low);
	if (st)
		return st;
	for (int32_t i = 0; i < me->low->nsteps; i++) /* a device would not reproduce its bits */
		ck_assert(!me->low->step[i]->only_next);
	for (int64_t i = 0; i < p->training->nsequences; i++)
		longest = p->training->lengths[i] > longest ? p->training->lengths[i] : longest;
	me->mem = (struct tess_memory){ .step = malloc(me->low->bytes + 64),
		                        .slot = make_slots(me->low),
		                        .inputs = calloc(4 * (size_t)p->ntokens + 5, 4),
		                        .gradients = calloc(1, me->low->gradient_bytes + 64) };
	memset(me->mem.step, 0xff, me->low->bytes + 64); /* NaN shows premature reads */
	if (step->times < 2)
		memset(me->mem.gradients, 0xff, me->low->gradient_bytes + 64);
	st = lockstep_make_rope_tables(p, longest, &me->mem);
	write_training_inputs(step, p, row, me->mem.inputs);
	tess_rank_program_bind(me->low, &me->mem);
	return st;
}

/* ---- what a step of training has made -------------------------------------------------------- */

/* Lists the index in the full axis of w of each element that rank r has along it. */
static int64_t *list_elements(const struct tess_program *p, int32_t r, const struct tess_weight *w,
                              int32_t axis, int64_t *n)
{
	const struct tess_dim *d = w->dim[axis];
	int64_t pieces = tess_dim_count_pieces(d), *out = malloc(8 * (size_t)d->size + 8);
	struct tess_run *run = calloc((size_t)pieces, sizeof *run);

	tess_dim_list_local_runs(d, tess_program_find_cut(p, r, w->place, axis), run);
	*n = 0;
	for (int64_t i = 0; i < pieces; i++)
		for (int64_t k = 0; k < run[i].len; k++)
			out[(*n)++] = run[i].start + k;
	free(run);
	return out;
}

/*
 * Merges a rank's part of the gradient of w into the full one; elements already there must be
 * equal.
 */
static tess_status merge_gradient(const struct tess_program *p, int32_t r,
                                  const struct tess_weight *w, const float *part, float *whole,
                                  char *seen)
{
	int64_t *at[3] = { 0 }, n[3] = { 1, 1, 1 }, size[3] = { 1, 1, 1 }, k = 0;
	int32_t odd = 3 - w->ndim;
	tess_status st = TESS_OK;

	for (int32_t a = 0; a < w->ndim; a++) {
		at[odd + a] = list_elements(p, r, w, a, &n[odd + a]);
		size[odd + a] = w->dim[a]->size;
	}
	for (int64_t i = 0; i < n[0] * n[1] * n[2] && !st; i++) {
		int64_t x = i / n[2] / n[1], y = i / n[2] % n[1], z = i % n[2];

		k = ((at[0] ? at[0][x] : x) * size[1] + (at[1] ? at[1][y] : y)) * size[2] +
		    at[2][z];
		if (seen[k] && memcmp(&whole[k], &part[i], 4))
			st = tess_fail(TESS_EBUG, "%s: rank %d has %g, and another %g, at %lld",
			               w->name, (int)r, (double)part[i], (double)whole[k],
			               (long long)k);
		whole[k] = part[i];
		seen[k] = 1;
	}
	for (int32_t a = 0; a < 3; a++)
		free(at[a]);
	return st;
}

static tess_status collect_gradient(const struct tess_program *p, const struct lockstep_rank *rank,
                                    int32_t i, struct lockstep_gradients *out)
{
	const struct tess_weight *w = p->weight[i], *table = tess_weight_get_table(w);
	int64_t count = tess_weight_count_elements(w);
	char *seen;
	bool trained = false;
	tess_status st = TESS_OK;

	for (int32_t r = 0; r < p->mesh.nranks; r++)
		trained = trained || rank[r].low->gradient[i].data;
	if (!trained)
		return TESS_OK;
	out->data[i] = calloc((size_t)count, 4);
	seen = calloc((size_t)count, 1);
	for (int32_t r = 0; r < p->mesh.nranks && !st; r++)
		if (tess_program_has_stage(p, r, w->stage))
			st = merge_gradient(p, r, table ? table : w, rank[r].low->gradient[i].data,
			                    out->data[i], seen);
	for (int64_t k = 0; k < count && !st; k++)
		if (!seen[k])
			st = tess_fail(TESS_EBUG, "%s: no rank has element %lld", w->name,
			               (long long)k);
	free(seen);
	return st;
}

/* Adds the gradients of tied heads that are apart to those of their tables. */
static void add_tied_gradients(struct lockstep_gradients *g)
{
	for (int32_t i = 0; i < g->program->nweights; i++) {
		const struct tess_weight *w = g->program->weight[i],
					 *table = tess_weight_get_table(w);

		for (int64_t k = 0; table && g->data[i] && k < tess_weight_count_elements(w); k++)
			g->data[table->index][k] += g->data[i][k];
		if (table) {
			free(g->data[i]);
			g->data[i] = NULL;
		}
	}
}

/* Returns the replica of rank r of the mesh. */
static int32_t find_replica(const struct tess_mesh_shape *mesh, int32_t r)
{
	int32_t dp = tess_mesh_shape_find(mesh, "dp", 2);

	return dp < 0 ? 0 : tess_mesh_shape_coordinate(mesh, dp, r);
}

static tess_status collect_loss(const struct lockstep_step *step, struct tess_program *const *p,
                                int32_t nreplicas, const struct lockstep_rank *rank,
                                struct lockstep_gradients *out)
{
	char *seen = calloc((size_t)step->how->nids + 1, 1);
	tess_status st = TESS_OK;
	int32_t nbalances = 0;

	out->nloss = step->how->nids;
	out->loss = calloc((size_t)step->how->nids + 1, 4);
	for (int32_t r = 0; r < p[0]->mesh.nranks && !st; r++) {
		int32_t replica = find_replica(&p[0]->mesh, r);
		const float *loss = rank[r].low->loss, *sums = rank[r].low->balance;
		double balance = sums ? tess_program_compute_balance(p[replica], sums) : 0;
		int64_t row;

		get_replica(step, nreplicas, replica, &row);
		if ((loss && seen[row] &&
		     memcmp(out->loss + row, loss, 4 * (size_t)p[replica]->ntokens)) ||
		    (sums && nbalances++ && memcmp(&out->balance, &balance, sizeof balance)))
			st = tess_fail(TESS_EBUG, "the losses of ranks differ, as on rank %d",
			               (int)r);
		out->balance = sums ? balance : out->balance;
		if (!loss)
			continue;
		memcpy(out->loss + row, loss, 4 * (size_t)p[replica]->ntokens);
		seen[row] = 1;
	}
	free(seen);
	return st;
}

tess_status lockstep_train(const struct lockstep_step *step, struct lockstep_gradients *out)
{
	return lockstep_train_again(step, NULL, out);
}

tess_status lockstep_train_again(const struct lockstep_step *step, const char *const *recompute,
                                 struct lockstep_gradients *out)
{
	struct lockstep_rank rank[LOCKSTEP_RANKS_MAX] = { 0 };
	struct tess_program *p[LOCKSTEP_RANKS_MAX] = { 0 };
	int32_t nreplicas = 0, n = 0;
	tess_status st = record_replicas(step, recompute, p, &nreplicas);

	*out = (struct lockstep_gradients){ 0 };
	for (; !st && n < p[0]->mesh.nranks; n++) {
		int32_t replica = find_replica(&p[0]->mesh, n);
		int64_t row;

		get_replica(step, nreplicas, replica, &row);
		st = open_training_rank(step, p[replica], n, row, &rank[n]);
	}
	if (!st && nreplicas == 1)
		st = lockstep_check_alike(p[0], rank);
	for (int32_t i = 0; !st && i < (step->times ? step->times : 1); i++) {
		for (int32_t r = 0; r < n; r++)
			rank[r].at = 0;
		st = lockstep_run_ranks(&p[0]->mesh, rank);
	}
	if (!st) {
		out->data = calloc((size_t)p[0]->nweights, sizeof *out->data);
		st = collect_loss(step, p, nreplicas, rank, out);
	}
	for (int32_t i = 0; !st && i < p[0]->nweights; i++)
		st = collect_gradient(p[0], rank, i, out);
	for (int32_t r = 0; r < n; r++)
		lockstep_close_rank(&rank[r]);
	for (int32_t i = 1; i < nreplicas; i++)
		tess_program_free(p[i]);
	out->program = p[0];
	if (st)
		lockstep_free_gradients(out);
	else
		add_tied_gradients(out);
	return st;
}

void lockstep_free_gradients(struct lockstep_gradients *g)
{
	for (int32_t i = 0; g->data && i < g->program->nweights; i++)
		free(g->data[i]);
	free(g->data);
	free(g->loss);
	tess_program_free(g->program);
	*g = (struct lockstep_gradients){ 0 };
}

void lockstep_compare_gradients(const char *what, const struct lockstep_gradients *want,
                                const struct lockstep_gradients *have)
{
	ck_assert_msg(want->program->nweights == have->program->nweights &&
	                      want->nloss == have->nloss,
	              "%s: %d weights, not %d", what, (int)have->program->nweights,
	              (int)want->program->nweights);
	ck_assert_msg(!memcmp(want->loss, have->loss, 4 * (size_t)want->nloss) &&
	                      !memcmp(&want->balance, &have->balance, sizeof want->balance),
	              "%s: another loss", what);
	for (int32_t i = 0; i < want->program->nweights; i++) {
		const struct tess_weight *w = want->program->weight[i];
		const float *a = want->data[i], *b = have->data[i];

		ck_assert_msg(!a == !b, "%s: %s: one has no gradient", what, w->name);
		for (int64_t k = 0; a && k < tess_weight_count_elements(w); k++)
			if (memcmp(&a[k], &b[k], 4))
				ck_abort_msg("%s: %s: element %lld is %.9g, not %.9g", what,
				             w->name, (long long)k, (double)b[k], (double)a[k]);
	}
}

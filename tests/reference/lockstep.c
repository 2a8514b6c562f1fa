#include "lockstep_rank.h"
#include "core/base/status.h"
#include "nn/lower/lower.h"
#include "nn/program/plan.h"
#include "nn/program/rope.h"
#include "nn/run/row_exchange.h"
#include "nn/weights/weights.h"
#include "scalar.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

/* Makes pages for all positions of one slot, class by class. */
static void make_pages(const struct tess_rank_program *low, struct tess_memory *mem)
{
	mem->pages = calloc((size_t)(low->nclasses * mem->blocks) + 1, sizeof *mem->pages);
	for (int32_t i = 0; i < low->nclasses * (int32_t)mem->blocks; i++)
		mem->pages[i] = (int64_t)(uintptr_t)calloc(
			1, low->page_class[i / (int32_t)mem->blocks].bytes);
}

tess_status lockstep_make_rope_tables(const struct tess_program *p, int64_t n,
                                      struct tess_memory *mem)
{
	int64_t each = 0;
	float *rope;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nropes; i++)
		each += p->rope[i].each;
	mem->rope_positions = n;
	mem->rope = rope = calloc((size_t)(n * each) + 1, sizeof *rope);
	for (int32_t i = 0; i < p->nropes && !st; i++) {
		st = tess_rope_fill_table(&p->rope[i].rope, p->rope[i].each, n, rope);
		rope += n * p->rope[i].each;
	}
	return st;
}

static void write_lockstep_inputs(const struct lockstep *how, int32_t *in)
{
	int64_t n = how->nids;

	memcpy(in, how->ids, 4 * (size_t)n);
	for (int64_t i = 0; i < n; i++) {
		in[n + i] = (int32_t)i;
		in[3 * n + i] = (int32_t)(how->all_rows ? i : n - 1);
	}
}

static tess_status open_rank(const struct lockstep *how, const struct tess_program *p, int32_t r,
                             struct lockstep_rank *me)
{
	int64_t n = how->nids;
	struct tess_memory *mem = &me->mem;
	const struct tess_opened_device device = { .table = &scalar_device };
	tess_status st = tess_rank_weights_load(p, how->source, r, &device, NULL, &me->held);

	if (!st)
		st = tess_program_lower(p, r, me->held.view, &me->low);
	if (st)
		return st;
	ck_assert(!tess_rank_program_fuse(me->low, &scalar_device));
	*mem = (struct tess_memory){ .step = calloc(1, me->low->bytes + 64),
		                     .inputs = calloc(4 * (size_t)n, 4),
		                     .slots = 1,
		                     .blocks = tess_up(n, 64) };
	st = lockstep_make_rope_tables(p, n, mem);
	make_pages(me->low, mem);
	write_lockstep_inputs(how, mem->inputs);
	tess_rank_program_bind(me->low, mem);
	return st;
}

void lockstep_close_rank(struct lockstep_rank *me)
{
	for (int64_t i = 0; me->mem.pages && i < me->low->nclasses * me->mem.blocks; i++)
		free((void *)(uintptr_t)me->mem.pages[i]);
	free(me->mem.pages);
	free(me->mem.gradients);
	free(me->mem.inputs);
	free(me->mem.rope);
	free(me->mem.step);
	for (int32_t s = 0; me->mem.slot && s < me->low->nstages; s++)
		free(me->mem.slot[s]);
	free((void *)me->mem.slot);
	tess_rank_program_free(me->low);
	tess_rank_weights_free(&me->held);
}

/* Returns the bytes from the first f32 of a view to the end of the last; 0: no elements. */
static size_t measure_view(const struct tess_view *v)
{
	int64_t last = 0;

	for (int32_t i = 0; i < v->ndim; i++) {
		if (!v->shape[i])
			return 0;
		last += (v->shape[i] - 1) * v->stride[i];
	}
	return (size_t)(last + 1) * sizeof(float);
}

static bool share_memory(const struct tess_view *a, const struct tess_view *b)
{
	const char *x = a->data, *y = b->data;

	return x < y + measure_view(b) && y < x + measure_view(a);
}

/* Sets rows of f32 to NaN. */
static void forget_rows(const struct tess_view *v)
{
	int64_t rows = v->ndim > 1 ? v->shape[v->ndim - 2] : 1;
	int64_t nodes = v->ndim > 2 ? v->shape[0] : 1, cols = v->shape[v->ndim - 1];

	for (int64_t i = 0; i < nodes * rows && v->stride[v->ndim - 1] == 1; i++)
		memset((float *)v->data + (v->ndim > 2 ? i / rows * v->stride[0] : 0) +
		               (v->ndim > 1 ? i % rows * v->stride[v->ndim - 2] : 0),
		       0xff, sizeof(float) * (size_t)cols);
}

/* Sets outputs that only `s` may read to NaN after it: other readers fail the comparison. */
static void forget_read_outs(const struct tess_step *before, const struct tess_step *s)
{
	const struct tess_op *op = &before->op;
	bool shared = false;

	if (!op->only_next)
		return;
	for (int32_t i = 0; i < op->nout; i++)
		for (int32_t k = 0; k < s->op.nout; k++)
			shared = shared || share_memory(&op->out[i], &s->op.out[k]);
	for (int32_t i = 0; i < op->nout && !shared; i++)
		forget_rows(&op->out[i]);
}

/* Runs the ops of a step. */
static void run_ops(const struct tess_step *s)
{
	scalar_run(&s->op);
	for (; s->fused; s = s->fused) {
		ck_assert_ptr_eq(s->op.next, &s->fused->op);
		scalar_run(s->op.next);
		forget_read_outs(s, s->fused);
	}
}

/* Runs to the next collective; NULL: the rank has finished. */
static const struct tess_step *run_to_collective(struct lockstep_rank *me)
{
	for (; me->at < me->low->nsteps; me->at++) {
		const struct tess_step *s = me->low->step[me->at];

		if (s->kind == TESS_STEP_OP)
			run_ops(s);
		else if (s->kind == TESS_STEP_CALL)
			ck_assert_int_eq(s->call(&s->local), TESS_OK);
		else if (s->kind == TESS_STEP_ROWS && s->packs)
			tess_row_exchange_pack(s->rows);
		else if (s->kind == TESS_STEP_ROWS)
			tess_row_exchange_unpack(s->rows);
		else if (s->kind == TESS_STEP_WAIT) /* as late as possible */
			return me->low->step[me->at++]->of;
		else if (!s->started)
			return me->low->step[me->at++];
	}
	return NULL;
}

static void all_gather_blocks(int32_t n, const struct tess_step *const *s)
{
	for (int32_t r = 0; r < n; r++) {
		char *dst = s[r]->coll.dst;

		for (int32_t q = 0; q < n; q++) {
			size_t bytes = tess_width(s[r]->coll.dtype) * s[r]->coll.recv_counts[q];

			memcpy(dst, s[q]->coll.src, bytes);
			dst += bytes;
		}
	}
}

static void copy_all_to_all(int32_t n, const struct tess_step *const *s)
{
	for (int32_t r = 0; r < n; r++) {
		size_t width = tess_width(s[r]->coll.dtype);
		char *dst = s[r]->coll.dst;

		for (int32_t q = 0; q < n; q++) {
			const char *src = s[q]->coll.src;

			ck_assert_uint_eq(s[q]->coll.send_counts[r], s[r]->coll.recv_counts[q]);
			for (int32_t k = 0; k < r; k++)
				src += width * s[q]->coll.send_counts[k];
			memcpy(dst, src, width * s[r]->coll.recv_counts[q]);
			dst += width * s[r]->coll.recv_counts[q];
		}
	}
}

static void sum_partials(int32_t n, const struct tess_step *const *s)
{
	const struct tess_sum *sum = &s[0]->sum;
	float *scratch = malloc(4 * 64 * sum->count + 4), *out = malloc(4 * sum->count + 4);
	const float *part[LOCKSTEP_RANKS_MAX];
	uint64_t at = 0;

	for (int32_t r = 0; r < n; r++)
		part[r] = s[r]->sum_in;
	tess_sum_finish(sum, n, part, scratch, out);
	for (int32_t r = 0; r < n; r++) {
		uint64_t count = sum->share ? sum->share[r] : sum->count;

		memcpy(s[r]->sum_out, out + at, 4 * count);
		at += sum->share ? count : 0;
	}
	free(scratch);
	free(out);
}

static void copy_to_all(int32_t n, const struct tess_step *const *s)
{
	const struct tess_coll *root = &s[s[0]->coll.root]->coll;

	for (int32_t r = 0; r < n; r++)
		memcpy(s[r]->coll.dst, root->src, tess_width(root->dtype) * root->count);
}

static void reduce_and_scatter(int32_t n, const struct tess_step *const *s)
{
	const void *part[LOCKSTEP_RANKS_MAX];

	for (int32_t r = 0, at = 0; r < n; at += (int32_t)s[0]->coll.send_counts[r++]) {
		const struct tess_coll *c = &s[r]->coll;

		for (int32_t q = 0; q < n; q++)
			part[q] = (const char *)s[q]->coll.src + tess_width(c->dtype) * (size_t)at;
		tess_reduce(c->dtype, c->op, part, n, c->count, c->dst);
	}
}

static void reduce_maxima(int32_t n, const struct tess_step *const *s)
{
	for (uint64_t i = 0; i < s[0]->coll.count; i++) {
		float most = -INFINITY;

		for (int32_t r = 0; r < n; r++)
			most = fmaxf(most, ((const float *)s[r]->coll.src)[i]);
		for (int32_t r = 0; r < n; r++)
			((float *)s[r]->coll.dst)[i] = most;
	}
}

/* Performs a collective of the n ranks of one group. */
static void perform_collective(int32_t n, const struct tess_step *const *s)
{
	if (s[0]->kind == TESS_STEP_SUM)
		sum_partials(n, s);
	else if (s[0]->coll.kind == TESS_ALL_GATHER)
		all_gather_blocks(n, s);
	else if (s[0]->coll.kind == TESS_ALL_REDUCE)
		reduce_maxima(n, s);
	else if (s[0]->coll.kind == TESS_BROADCAST)
		copy_to_all(n, s);
	else if (s[0]->coll.kind == TESS_REDUCE_SCATTER)
		reduce_and_scatter(n, s);
	else
		copy_all_to_all(n, s);
}

/* Returns the steps of the group whose first rank is r, if all its ranks are at one collective. */
static bool find_ready_group(const struct tess_mesh_shape *mesh, const struct tess_step *const *s,
                             int32_t r, const struct tess_step **group)
{
	const struct tess_mesh_dim *d = s[r] ? &mesh->dim[s[r]->along] : NULL;

	if (!d || r / d->stride % d->size ||
	    (s[r]->kind == TESS_STEP_COLL && tess_kind_is_p2p(s[r]->coll.kind)))
		return false;
	for (int32_t k = 0; k < d->size; k++) {
		group[k] = s[r + k * d->stride];
		if (!group[k] || group[k]->record != s[r]->record || group[k]->kind != s[r]->kind ||
		    group[k]->along != s[r]->along)
			return false;
	}
	return true;
}

/* Moves the message of rank r if it and its peer are at one; returns the peer, or -1. */
static int32_t move_message(const struct tess_mesh_shape *mesh, const struct tess_step *const *s,
                            int32_t r)
{
	const struct tess_mesh_dim *d;
	const struct tess_step *to;
	int32_t peer;

	if (!s[r] || s[r]->kind != TESS_STEP_COLL || s[r]->coll.kind != TESS_SEND)
		return -1;
	d = &mesh->dim[s[r]->along];
	peer = r + (s[r]->coll.peer - r / d->stride % d->size) * d->stride;
	to = s[peer];
	if (!to || to->kind != TESS_STEP_COLL || to->coll.kind != TESS_RECV ||
	    to->record != s[r]->record || to->coll.peer != r / d->stride % d->size ||
	    to->coll.count != s[r]->coll.count)
		return -1;
	memcpy(to->coll.dst, s[r]->coll.src, 4 * s[r]->coll.count);
	return peer;
}

/* Runs each collective when all ranks of its group are at it: replicas may differ in sequences. */
tess_status lockstep_run_ranks(const struct tess_mesh_shape *mesh, struct lockstep_rank *rank)
{
	const struct tess_step *s[LOCKSTEP_RANKS_MAX], *group[LOCKSTEP_RANKS_MAX];
	bool moved = true;

	for (int32_t r = 0; r < mesh->nranks; r++)
		s[r] = run_to_collective(&rank[r]);
	while (moved) {
		moved = false;
		for (int32_t r = 0; r < mesh->nranks; r++) {
			const struct tess_mesh_dim *d;
			int32_t peer = move_message(mesh, s, r);

			if (peer >= 0) {
				s[r] = run_to_collective(&rank[r]);
				s[peer] = run_to_collective(&rank[peer]);
				moved = true;
			}
			if (peer >= 0 || !find_ready_group(mesh, s, r, group))
				continue;
			d = &mesh->dim[s[r]->along];
			perform_collective(d->size, group);
			for (int32_t k = r; k < r + d->size * d->stride; k += d->stride)
				s[k] = run_to_collective(&rank[k]);
			moved = true;
		}
	}
	for (int32_t r = 0; r < mesh->nranks; r++)
		if (s[r])
			return tess_fail(TESS_EBUG,
			                 "rank %d stands at a collective of record %d that the "
			                 "others of its group do not reach",
			                 (int)r, (int)s[r]->record);
	return TESS_OK;
}

tess_status lockstep_record(const struct lockstep *how, struct tess_program **out)
{
	struct tess_plan plan;
	struct tess_record_options rec = { .model = how->model,
		                           .plan = &plan,
		                           .source = how->source,
		                           .mesh = tess_mesh_shape_make("tp", how->nranks),
		                           .ntokens = how->nids,
		                           .nselected = how->all_rows ? how->nids : 1,
		                           .logits_root = -1 };
	tess_status st = tess_plan_open(how->model, how->plan, NULL, 0, &plan);

	if (st)
		return st;
	if (how->mesh)
		st = tess_mesh_shape_parse(how->mesh, 0, &rec.mesh);
	if (!st)
		st = tess_program_compile(&rec, out);
	tess_plan_free(&plan);
	return st;
}

/* Returns the bytes that a step moves along its mesh dimension, besides its own block. */
static uint64_t count_moved(const struct tess_program *p, int32_t rank, const struct tess_step *s)
{
	struct tess_cut cut = tess_program_get_cut(p, rank, s->along);
	uint64_t sum;

	if (s->kind == TESS_STEP_SUM)
		return s->sum.count * (uint64_t)tess_sum_nodes(&s->sum, cut.nranks, cut.rank);
	if (s->kind != TESS_STEP_COLL)
		return 0;
	sum = s->coll.count;
	for (int32_t q = 0; s->coll.send_counts && q < cut.nranks; q++)
		sum += q == cut.rank ? 0 : s->coll.send_counts[q];
	return sum;
}

/* Checks that ranks that tess_program_find_alike calls alike have equal steps. */
tess_status lockstep_check_alike(const struct tess_program *p, const struct lockstep_rank *rank)
{
	int32_t first[LOCKSTEP_RANKS_MAX];
	tess_status st = tess_program_find_alike(p, false, first);

	for (int32_t r = 0; r < p->mesh.nranks && !st; r++) {
		const struct tess_rank_program *a = rank[r].low, *b = rank[first[r]].low;
		bool same = a->bytes == b->bytes && a->nsteps == b->nsteps;

		for (int32_t i = 0; i < a->nclasses; i++)
			same = same && a->page_class[i].bytes == b->page_class[i].bytes;
		for (int32_t i = 0; i < a->nsteps && same; i++)
			same = a->step[i]->kind == b->step[i]->kind &&
			       a->step[i]->record == b->step[i]->record &&
			       count_moved(p, r, a->step[i]) ==
			               count_moved(p, first[r], b->step[i]);
		if (!same || first[r] > r)
			st = tess_fail(TESS_EBUG, "ranks %d and %d are not alike", (int)first[r],
			               (int)r);
	}
	return st;
}

tess_status lockstep_run(const struct lockstep *how, float **logits, int64_t *count)
{
	struct lockstep_rank rank[LOCKSTEP_RANKS_MAX] = { 0 };
	struct tess_program *p = NULL;
	tess_status st = lockstep_record(how, &p);

	for (int32_t r = 0; !st && r < p->mesh.nranks; r++)
		st = open_rank(how, p, r, &rank[r]);
	if (!st)
		st = lockstep_check_alike(p, rank);
	if (!st)
		st = lockstep_run_ranks(&p->mesh, rank);
	if (!st) {
		*count = (how->all_rows ? how->nids : 1) * p->logits->dim[1]->size;
		for (int32_t r = 1; r < p->mesh.nranks && !st; r++)
			if (memcmp(rank[r].low->logits, rank[0].low->logits, 4 * (size_t)*count))
				st = tess_fail(TESS_EBUG, "the logits of ranks 0 and %d differ",
				               (int)r);
		*logits = malloc(4 * (size_t)*count);
		memcpy(*logits, rank[0].low->logits, 4 * (size_t)*count);
	}
	for (int32_t r = 0; p && r < p->mesh.nranks; r++)
		lockstep_close_rank(&rank[r]);
	tess_program_free(p);
	return st;
}

void lockstep_ignore_drop(void *self, const void *data, uint64_t bytes)
{
	(void)self, (void)data, (void)bytes;
}

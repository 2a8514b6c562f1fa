/* measure.c - time and values of the stages of a program, and memory of its ranks. */
#include "api/plan/evaluation.h"
#include "core/base/status.h"
#include "nn/program/storage.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

/* ---- time of stages -------------------------------------------------------------------------- */

void evaluation_keep_slowest(struct tess_step_time *kept, const struct tess_step_time *t)
{
	double once = t->once > kept->once ? t->once : kept->once;

	if (t->seconds > kept->seconds)
		*kept = *t;
	kept->once = once;
}

/* Counts the bytes that the steps of a segment send to other stages. */
static double count_stage_bytes(const struct tess_program *p, const struct tess_rank_program *l,
                                const struct tess_segment *s)
{
	double bytes = 0;

	for (int32_t i = s->first; i < s->end; i++)
		if (l->step[i]->kind == TESS_STEP_COLL && l->step[i]->along == p->pipeline_along &&
		    l->step[i]->coll.kind == TESS_SEND)
			bytes += (double)(l->step[i]->coll.count *
			                  tess_width(l->step[i]->coll.dtype));
	return bytes;
}

/* Returns the first step of the backward. */
static int32_t find_backward_step(const struct tess_program *p, const struct tess_rank_program *l)
{
	int32_t i = 0;

	while (i < l->nsteps && p->record[l->step[i]->record]->kind != TESS_OP_LOSS_D)
		i++;
	return i;
}

/* Returns the bytes of the values that steps [first, end) gather from the ranks of a replica. */
static double count_gathered(const struct evaluation *e, const struct tess_program *p,
                             const struct tess_rank_program *l, int32_t first, int32_t end)
{
	double bytes = 0;

	for (int32_t i = first; i < end; i++) {
		const struct tess_step *s = l->step[i];
		struct tess_cut cut;

		if (s->kind != TESS_STEP_COLL || s->coll.kind != TESS_ALL_GATHER ||
		    s->along == p->data_along)
			continue;
		cut = tess_step_find_cut(p, l->rank, s);
		if (cut.nranks > 1)
			bytes += (double)tess_step_count_sent(s, cut) * cut.nranks /
			         (cut.nranks - 1);
	}
	return bytes * e->planner->machine->width / 4;
}

/* Returns the bytes of the logits that steps [first, end) have the loss of. */
static double count_logit_bytes(const struct tess_rank_program *l, int32_t first, int32_t end)
{
	for (int32_t i = first; i < end; i++) {
		const struct tess_op *op = &l->step[i]->op;

		if (l->step[i]->kind == TESS_STEP_OP && op->kind == TESS_OP_LOSS_D)
			return (double)op->in[0].shape[0] * (double)op->in[0].shape[1] *
			       sizeof(float);
	}
	return 0;
}

/* Measures values of steps [step[0], step[2]), of which the forward ends at step[1]. */
static void measure_values(struct evaluation *e, const struct tess_program *p,
                           const struct tess_rank_program *l, int32_t stage, const int32_t step[3])
{
	struct tess_stage_time *t = &e->stage[stage];
	double gathered = count_gathered(e, p, l, step[0], step[1]);
	double logits = count_logit_bytes(l, step[0], step[2]);

	t->gathered = gathered > t->gathered ? gathered : t->gathered;
	t->logits = logits > t->logits ? logits : t->logits;
}

bool evaluation_updates_early(const struct evaluation *e)
{
	const struct tess_trainer_options *o = e->x.training;

	return o && (o->offload_optimizer || o->offload_weights) &&
	       tess_explaining_updates_early(&e->x);
}

/* Returns the elements of optimizer state of a rank; *even: all ranks along dp have as many. */
static double count_rank_state(const struct tess_program *p, int32_t rank, bool *even)
{
	int32_t shards = tess_program_count_shards(p);
	double n = 0;

	for (int32_t i = 0; i < p->ngradients; i++) {
		const struct tess_weight *w = p->gradient[i].weight;

		n += (double)tess_weight_get_kept(p, w, rank, TESS_STATE).len;
		*even &= !w->state_cut || tess_weight_count_local(p, w, rank) % shards == 0;
	}
	return n;
}

/* Measures the last micro-batch of a step, in which the update begins. */
static tess_status measure_last(struct evaluation *e, const struct tess_program *p,
                                const struct tess_rank_program *l)
{
	struct tess_arena arena = { 0 };
	struct tess_offload_layout files;
	int32_t moments = e->planner->moments;
	bool even = true;
	double n = count_rank_state(p, l->rank, &even);
	struct tess_early_time early = { .files = &files };
	struct tess_step_time t = { 0 };
	tess_status st = tess_offload_lay_out(p, l->rank, moments, &arena, &files);

	if (n > 0)
		early.change = tess_optimizer_time(e->planner->machine, n, moments, 4, false) / n;
	if (!st)
		st = tess_steps_time_early(e->planner->machine, p, l, &e->known, &early, &t);
	tess_arena_free(&arena);
	evaluation_keep_slowest(&e->last.time, &t);
	e->last.disk = early.disk > e->last.disk ? early.disk : e->last.disk;
	e->last.elements = early.elements > e->last.elements ? early.elements : e->last.elements;
	return st;
}

/* Measures a program without stages, whose steps are one action, or halves of a sample. */
static tess_status measure_steps(struct evaluation *e, const struct tess_program *p,
                                 const struct tess_rank_program *l)
{
	struct tess_step_time all = { 0 };
	int32_t middle = find_backward_step(p, l);
	int32_t stage = tess_program_get_pipeline_rank(p, l->rank);
	tess_status st;

	measure_values(e, p, l, stage, (const int32_t[]){ 0, middle, l->nsteps });
	if (e->halves)
		return e->halves->add(e, p, l, middle);
	st = tess_steps_time(e->planner->machine, p, l, 0, l->nsteps, &e->known, &all);
	evaluation_keep_slowest(&e->stage[stage].of[TESS_PIPELINE_FORWARD], &all);
	return st || !evaluation_updates_early(e) ? st : measure_last(e, p, l);
}

/* Adds a rank's times to those of its stages, if it is slower than other ranks. */
static tess_status visit_rank(void *visitor, const struct tess_program *p,
                              const struct tess_rank_program *l)
{
	struct evaluation *e = visitor;
	const struct tess_machine *m = e->planner->machine;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < l->nsegments && !st; i++) {
		const struct tess_segment *s = &l->segment[i];
		struct tess_step_time t = { 0 };
		double bytes = count_stage_bytes(p, l, s);

		st = e->sampled ? tess_steps_trace(m, p, l, s->first, s->end, &e->known, &t, NULL)
		                : tess_steps_time(m, p, l, s->first, s->end, &e->known, &t);
		evaluation_keep_slowest(&e->stage[s->stage].of[s->kind], &t);
		measure_values(
			e, p, l, s->stage,
			(const int32_t[]){ s->first,
		                           s->kind == TESS_PIPELINE_FORWARD ? s->end : s->first,
		                           s->end });
		e->send = bytes > e->send ? bytes : e->send;
		e->stage[s->stage].slot = (double)l->slot_bytes[s->stage];
		e->stage[s->stage].arena = (double)l->bytes;
	}
	return l->nsegments || st ? st : measure_steps(e, p, l);
}

int64_t tess_planner_count_experts(const struct tess_program *p)
{
	for (int32_t i = 0; i < p->nrecords; i++)
		if (p->record[i]->kind == TESS_OP_EXPERTS)
			return p->record[i]->in[1]->dim[1]->size;
	return 0;
}

tess_status evaluation_measure_program(struct evaluation *e)
{
	tess_status st = tess_explaining_record(&e->x, 0, &e->x.program);

	if (st)
		return st;
	e->nstages = e->x.program->nstages > 1 ? e->x.program->nstages : 1;
	free(e->stage);
	e->stage = calloc((size_t)e->nstages, sizeof *e->stage);
	e->last = (struct evaluation_last){ 0 };
	if (!e->stage)
		return tess_fail(TESS_ENOMEM, "out of memory for the times of stages");
	e->known.experts = tess_planner_count_experts(e->x.program);
	e->x.visit = visit_rank;
	e->x.visitor = e;
	e->x.most = true;
	st = tess_explaining_measure_ranks(&e->x);
	return st ? st : evaluation_check_disk(e);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Adds the values of the stages of a rank to the bytes that it holds; they are in its step. */
static void split_step(const struct evaluation *e, int32_t rank, double *held)
{
	int32_t of = tess_explaining_get_program_rank(&e->x, rank);

	for (int32_t s = 0; s < e->nstages; s++) {
		const struct tess_timeline *t = e->x.timeline;

		if (e->nstages > 1 && !tess_program_has_stage(e->x.program, of, s))
			continue;
		held[TESS_HOLDS_GATHERED] += e->stage[s].gathered * (t ? t->stage_live[s] : 1);
		held[TESS_HOLDS_LOSS] += e->stage[s].logits;
	}
	if (held[TESS_HOLDS_GATHERED] > held[TESS_HOLDS_STEP])
		held[TESS_HOLDS_GATHERED] = held[TESS_HOLDS_STEP];
	held[TESS_HOLDS_STEP] -= held[TESS_HOLDS_GATHERED];
}

void evaluation_measure_memory(struct evaluation *e, double positions)
{
	const struct tess_machine *m = e->planner->machine;
	struct tess_forecast *f = e->out;

	f->memory = 0;
	for (int32_t r = 0; r < e->x.e.nranks; r++) {
		const struct tess_explained_rank *k = e->x.e.ranks[r];
		double sum = 0, held[TESS_HOLDS] = {
			[TESS_HOLDS_WEIGHTS] = (double)k->weights,
			[TESS_HOLDS_GRADIENTS] = (double)k->gradients,
			[TESS_HOLDS_STATE] = (double)(k->state + tess_explained_get_transfer(k)),
			[TESS_HOLDS_STEP] = (double)k->step * m->width / 4,
			[TESS_HOLDS_CACHE] = (double)k->cache * positions,
			[TESS_HOLDS_FIXED] = 1,
		};

		if (e->x.training)
			split_step(e, r, held);
		for (int32_t i = 0; i < TESS_HOLDS; i++)
			sum += held[i] *= m->holds[i];
		if (sum > f->memory) {
			f->memory = sum;
			memcpy(f->holds, held, sizeof held);
		}
	}
	evaluation_measure_files(e);
	f->fits =
		f->memory <= e->planner->memory && (f->disk <= f->disk_limit || f->disk_limit <= 0);
}

/* Returns whether a lower rank, with the same parts, stands for a rank. */
static bool has_lower_alike(const struct evaluation *e, int32_t rank)
{
	int32_t r = 0;

	while (e->x.e.ranks[r] != e->x.e.ranks[rank])
		r++;
	return r < rank;
}

double evaluation_count_state(const struct evaluation *e)
{
	const struct tess_program *p = e->x.program;
	int32_t along = p->data_along, last = along < 0 ? 1 : p->mesh.dim[along].size;
	bool even = true;
	double most = 0;

	for (int32_t r = 0; r < p->mesh.nranks; r++) {
		if ((along >= 0 && tess_mesh_shape_coordinate(&p->mesh, along, r)) ||
		    has_lower_alike(e, r))
			continue;
		for (int32_t at = 0; at < (even ? 1 : last); at++) {
			int32_t stride = along < 0 ? 0 : p->mesh.dim[along].stride;
			double n = count_rank_state(p, r + at * stride, &even);

			most = n > most ? n : most;
		}
	}
	return most;
}

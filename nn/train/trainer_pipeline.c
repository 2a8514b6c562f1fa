/* trainer_pipeline.c - runs the micro-batches of a step on stages, in the order of a schedule. */
#include "core/base/hash.h"
#include "core/base/status.h"
#include "nn/program/agree.h"
#include "nn/run/compute_spans.h"
#include "nn/run/run.h"
#include "nn/schedule/schedule.h"
#include "nn/train/trainer_state.h"

#include <stdio.h>
#include <string.h>
#include <tessera/util/clock.h>

struct stage_slots { /* the slots of a stage of this rank: each keeps a micro-batch's values */
	int32_t n; /* 0: another rank has the stage */
	uint64_t bytes, at; /* size of one; offset of the first one in the memory of the step */
	int32_t *micro; /* by slot: the micro-batch that has it, or had it last; -1: none */
	int32_t *free; /* free slots, in the order of release */
	int32_t nfree;
	int32_t *slot; /* by micro-batch: its slot */
	int32_t *left; /* by micro-batch: actions to come */
};

struct pipelined { /* a step */
	struct tess_trainer *trainer;
	const struct tess_batch *micro;
	int32_t n;
	struct tess_batch_totals *totals;
	const struct tess_pipeline *pipeline; /* the trainer's */
	const struct tess_timeline *timeline;
	struct tess_shaped_program **program; /* by micro-batch */
	int64_t *before; /* by micro-batch: sequences of those before it */
	int64_t *row; /* by micro-batch: tokens of this replica before it */
	double *balance; /* by micro-batch: its load balancing loss */
	struct stage_slots *stage;
	struct tess_memory memory; /* as bound for the current action */
	void **slot; /* by stage: the current micro-batch's; part of `memory` */
	struct tess_sends sends;
	struct tess_arena arena;
};

/* ---- the schedule ---------------------------------------------------------------------------- */

tess_status tess_trainer_refuse_schedule(const char *name)
{
	return tess_fail(TESS_EINVAL,
	                 "pipeline schedule %s: the mesh has no stages; use --mesh pp=N", name);
}

tess_status tess_trainer_open_schedule(struct tess_trainer *t)
{
	const struct tess_mesh_shape *mesh = &t->parts.mesh;
	int32_t pp = tess_mesh_shape_find(mesh, "pp", 2), n = pp < 0 ? 1 : mesh->dim[pp].size;

	if (n == 1)
		return t->own_schedule ? tess_trainer_refuse_schedule(t->schedule) : TESS_OK;
	/* enough micro-batches to have all kinds of actions; a file has its own number */
	return tess_pipeline_open(t->schedule, n, tess_schedule_is_file(t->schedule) ? 0 : 2 * n,
	                          &t->pipeline);
}

void tess_trainer_close_timeline(struct tess_trainer *t)
{
	tess_timeline_free(t->timeline);
	tess_pipeline_close(t->step_pipeline);
	t->timeline = NULL;
	t->step_pipeline = NULL;
}

/* Opens the schedule for the number of micro-batches of a step, unless it is that of the last. */
static tess_status open_for_step(struct pipelined *c, bool updates)
{
	struct tess_trainer *t = c->trainer;
	const struct tess_pipeline *first = t->pipeline;
	tess_status st = TESS_OK;

	if (!t->timeline || t->step_pipeline->nmicro != c->n) {
		tess_trainer_close_timeline(t);
		if (tess_schedule_is_file(t->schedule) && !updates && c->n != first->nmicro)
			st = tess_schedule_open_serial(first, c->n, &t->step_pipeline);
		else
			st = tess_pipeline_open(t->schedule, first->nranks, c->n,
			                        &t->step_pipeline);
		if (!st)
			st = tess_pipeline_simulate(t->step_pipeline, NULL, &t->timeline);
	}
	c->pipeline = t->step_pipeline;
	c->timeline = t->timeline;
	return st;
}

/* ---- programs and memory --------------------------------------------------------------------- */

static tess_status alloc_pipelined(struct pipelined *c)
{
	struct tess_arena *arena = &c->arena;
	int32_t nstages = c->pipeline->nstages;
	bool failed = false;

	c->program = TESS_NEW(arena, struct tess_shaped_program *, c->n);
	c->before = TESS_NEW(arena, int64_t, c->n + 1);
	c->row = TESS_NEW(arena, int64_t, c->n + 1);
	c->balance = TESS_NEW(arena, double, c->n);
	c->stage = TESS_NEW(arena, struct stage_slots, nstages);
	c->slot = TESS_NEW(arena, void *, nstages);
	for (int32_t s = 0; s < nstages && c->stage; s++) {
		struct stage_slots *k = &c->stage[s];
		int32_t n = c->timeline->stage_live[s];

		k->micro = TESS_NEW(arena, int32_t, n);
		k->free = TESS_NEW(arena, int32_t, n);
		k->slot = TESS_NEW(arena, int32_t, c->n);
		k->left = TESS_NEW(arena, int32_t, c->n);
		failed = failed || !k->micro || !k->free || !k->slot || !k->left;
		for (int32_t i = 0; i < n && !failed; i++)
			k->micro[k->free[k->nfree++] = i] = -1;
		for (int32_t i = 0; i < c->n && !failed; i++)
			k->slot[i] = -1;
	}
	return c->program && c->before && c->row && c->balance && c->stage && c->slot && !failed
	               ? TESS_OK
	               : TESS_ENOMEM;
}

/* Counts the actions of each stage and micro-batch of this rank. */
static void count_actions(struct pipelined *c)
{
	int32_t at = tess_program_get_pipeline_rank(c->program[0]->program, c->trainer->rank);

	for (int32_t i = 0; i < c->pipeline->nactions[at]; i++) {
		const struct tess_pipeline_action *a = &c->pipeline->actions[at][i];

		c->stage[a->stage].left[a->micro]++;
	}
}

/* Finds the program of each micro-batch. shapes: a hash of theirs, in order. Collective. */
static tess_status find_programs(struct pipelined *c, uint64_t *shapes)
{
	struct tess_trainer *t = c->trainer;
	struct tess_training training;
	tess_status st = TESS_OK;

	t->programs.kept = c->n + 1;
	for (int32_t i = 0; i < c->n && !st; i++) {
		struct tess_shape shape =
			tess_trainer_make_shape(t, &c->micro[i], i > 0, &training);

		st = tess_programs_find(&t->programs, shape, &c->program[i]);
		if (st)
			break;
		*shapes = tess_hash_word(*shapes, shape.key);
		c->program[i]->used = ++t->nruns;
		c->before[i + 1] = c->before[i] + c->micro[i].nsequences;
		c->row[i + 1] = c->row[i] + shape.ntokens;
	}
	return st;
}

/* Lays out the memory of the step: what segments share, then the slots of each stage. */
static struct tess_trainer_room lay_out_memory(struct pipelined *c)
{
	struct tess_trainer_room room = { .ntokens = c->row[c->n],
		                          .ninputs = 4 * c->row[c->n] + 5 * (int64_t)c->n };

	for (int32_t i = 0; i < c->n; i++) {
		const struct tess_rank_program *l = c->program[i]->lowered;

		room.bytes = l->bytes > room.bytes ? l->bytes : room.bytes;
		tess_trainer_include_lengths(&room, c->program[i]->shape.training);
		for (int32_t s = 0; s < c->pipeline->nstages; s++)
			if (l->slot_bytes[s] > c->stage[s].bytes)
				c->stage[s].bytes = l->slot_bytes[s];
	}
	for (int32_t s = 0; s < c->pipeline->nstages; s++) {
		struct stage_slots *k = &c->stage[s];
		bool mine = tess_program_has_stage(c->program[0]->program, c->trainer->rank, s);

		k->n = mine ? c->timeline->stage_live[s] : 0;
		k->at = room.bytes;
		room.bytes += k->bytes * (uint64_t)k->n;
		room.calls = (room.calls ^ k->at) * 0x9e3779b97f4a7c15;
	}
	room.calls ^= tess_rank_program_hash_calls(c->program[0]->lowered);
	return room;
}

static tess_status prepare_step(struct pipelined *c)
{
	struct tess_trainer *t = c->trainer;
	struct tess_trainer_room room;
	uint64_t shapes = (uint64_t)c->n;
	tess_status st = tess_group_agree_status(t->parts.group, alloc_pipelined(c), "step");

	if (!st)
		st = find_programs(c, &shapes);
	if (st)
		return st;
	count_actions(c);
	room = lay_out_memory(c);
	if (shapes != t->reserved)
		st = tess_trainer_reserve(t, c->program[0]->lowered, &room);
	t->reserved = st ? 0 : shapes;
	c->memory = t->memory.at;
	c->memory.slot = c->slot;
	for (int32_t i = 0; i < c->n && !st; i++) {
		if (!i || c->program[i] != c->program[i - 1])
			tess_rank_program_bind(c->program[i]->lowered, &t->memory.at);
		st = tess_trainer_write_inputs(t, 4 * c->row[i] + 5 * (int64_t)i, &c->micro[i],
		                               c->before[i], c->totals);
	}
	if (!st)
		tess_parameters_find_gradients(&t->parameters, c->program[0]->lowered);
	return st;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Takes a slot at the first action of a micro-batch, as in nn/schedule/slots.c. */
static tess_status take_slot(struct pipelined *c, int32_t stage, int32_t micro)
{
	struct stage_slots *k = &c->stage[stage];
	int32_t slot, last;

	if (!k->nfree)
		return tess_fail(TESS_EBUG, "stage %d has no free slot for micro-batch %d",
		                 (int)stage, (int)micro);
	slot = k->free[0];
	memmove(k->free, k->free + 1, sizeof *k->free * (size_t)--k->nfree);
	last = k->micro[slot];
	k->micro[slot] = micro;
	k->slot[micro] = slot;
	return last < 0 ? TESS_OK : tess_sends_wait(&c->sends, stage, last, &c->trainer->device);
}

/* Frees the slot after the last action; its sends may go on until it is taken. */
static void end_action(struct pipelined *c, const struct tess_pipeline_action *a)
{
	struct stage_slots *k = &c->stage[a->stage];

	if (--k->left[a->micro] == 0)
		k->free[k->nfree++] = k->slot[a->micro];
}

/* Sets the memory of a micro-batch in all stages of this rank. */
static void use_memory(struct pipelined *c, int32_t micro)
{
	for (int32_t s = 0; s < c->pipeline->nstages; s++) {
		const struct stage_slots *k = &c->stage[s];
		int32_t i = k->n && k->slot[micro] >= 0 ? k->slot[micro] : 0;

		c->slot[s] = (char *)c->trainer->memory.at.step + k->at + k->bytes * (uint64_t)i;
	}
	c->memory.inputs =
		(int32_t *)c->trainer->memory.at.inputs + 4 * c->row[micro] + 5 * (int64_t)micro;
}

/* ---- actions --------------------------------------------------------------------------------- */

/* Reports the action to a tracing backend, as "1F3". */
static void report_action(const struct pipelined *c, int32_t stage, int32_t micro, int32_t kind,
                          int64_t began)
{
	static const char *const kinds[] = {
		[TESS_PIPELINE_FORWARD] = "forward",
		[TESS_PIPELINE_BACKWARD] = "backward",
		[TESS_PIPELINE_BACKWARD_INPUTS] = "backward of inputs",
		[TESS_PIPELINE_BACKWARD_WEIGHTS] = "backward of weights",
	};
	char action[48];

	if (kind == TESS_PIPELINE_BACKWARD_INPUTS && !c->program[micro]->program->weights_apart)
		kind = TESS_PIPELINE_BACKWARD;
	snprintf(action, sizeof action, "%d%s%d", (int)stage, tess_schedule_name_kind(kind),
	         (int)micro);
	tess_compute_spans_note_action(&c->trainer->groups, action, kinds[kind], began);
}

static tess_status run_segment(struct pipelined *c, int32_t stage, int32_t micro, int32_t kind)
{
	struct tess_trainer *t = c->trainer;
	struct tess_rank_program *l = c->program[micro]->lowered;
	const struct tess_segment *segment = tess_rank_program_find_segment(l, stage, kind);
	int64_t began;
	tess_status st;

	if (!segment)
		return TESS_OK;
	use_memory(c, micro);
	tess_rank_program_bind_segment(l, segment, &c->memory);
	c->sends.stage = stage;
	c->sends.micro = micro;
	began = tess_now();
	st = tess_rank_program_run_segment(l, segment, &t->device, &t->groups, &c->sends);
	if (!tess_schedule_is_message(kind))
		report_action(c, stage, micro, kind, began);
	return st;
}

/* Copies the results that a backward of inputs has computed, before the slot is used again. */
static tess_status read_results(struct pipelined *c, int32_t stage, int32_t micro)
{
	const struct tess_program *p = c->program[micro]->program;
	struct tess_rank_program *l = c->program[micro]->lowered;

	if (stage != p->loss_stage && !(p->balance && stage == p->balance_stage))
		return TESS_OK;
	use_memory(c, micro);
	tess_rank_program_bind_segment(l, NULL, &c->memory);
	return tess_trainer_copy_losses(c->trainer, c->program[micro], c->row[micro], stage,
	                                &c->balance[micro]);
}

static tess_status store_stage_values(struct pipelined *c, int32_t stage, int32_t micro)
{
	struct tess_trainer *t = c->trainer;
	struct tess_shaped_program *k = c->program[micro];

	if (!t->pattern)
		return TESS_OK;
	use_memory(c, micro);
	tess_rank_program_bind_segment(k->lowered, NULL, &c->memory);
	return tess_value_store_read(&t->values, k->program, k->lowered, stage, &t->device);
}

/* Runs the parts of an action; a full backward is both of its parts. */
static tess_status perform_action(struct pipelined *c, const struct tess_pipeline_action *a)
{
	bool full = a->kind == TESS_PIPELINE_BACKWARD;
	bool inputs = full || a->kind == TESS_PIPELINE_BACKWARD_INPUTS;
	bool weights = full || a->kind == TESS_PIPELINE_BACKWARD_WEIGHTS;
	tess_status st = TESS_OK;

	if (c->stage[a->stage].slot[a->micro] < 0)
		st = take_slot(c, a->stage, a->micro);
	if (!st && inputs)
		st = run_segment(c, a->stage, a->micro, TESS_PIPELINE_BACKWARD_INPUTS);
	if (!st && inputs)
		st = read_results(c, a->stage, a->micro);
	if (!st && weights)
		st = run_segment(c, a->stage, a->micro, TESS_PIPELINE_BACKWARD_WEIGHTS);
	if (!st && weights)
		st = store_stage_values(c, a->stage, a->micro);
	if (!st && !inputs && !weights)
		st = run_segment(c, a->stage, a->micro, a->kind);
	if (!st)
		end_action(c, a);
	return st;
}

static tess_status run_actions(struct pipelined *c)
{
	const struct tess_pipeline *p = c->pipeline;
	int32_t at = tess_program_get_pipeline_rank(c->program[0]->program, c->trainer->rank);
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < p->nactions[at] && !st; i++)
		st = perform_action(c, &p->actions[at][i]);
	if (!st)
		st = tess_sends_wait(&c->sends, 0, -1, &c->trainer->device);
	if (!st)
		st = tess_device_sync(&c->trainer->device, "step");
	return st;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Counts the losses on the ranks that have them; the others get the counts from these. */
static tess_status share_losses(struct pipelined *c, struct tess_accumulator *loss,
                                int32_t *nonfinite)
{
	struct tess_trainer *t = c->trainer;
	const struct tess_program *p = c->program[0]->program;
	struct tess_group *along = t->parts.along[p->pipeline_along];
	int64_t fields[TESS_ACCUMULATOR_FIELDS];
	tess_status st;

	for (int32_t i = 0; i < c->n && tess_program_has_stage(p, t->rank, p->loss_stage); i++)
		tess_trainer_count_losses(t, &c->micro[i], c->row[i], loss,
		                          nonfinite + c->before[i]);
	memcpy(fields, loss, sizeof fields);
	st = tess_broadcast(along, fields, TESS_ACCUMULATOR_FIELDS, TESS_I64,
	                    p->stage_rank[p->loss_stage], "loss");
	memcpy(loss, fields, sizeof fields);
	if (!st)
		st = tess_broadcast(along, nonfinite, (uint64_t)c->before[c->n], TESS_I32,
		                    p->stage_rank[p->loss_stage], "loss");
	if (!st && p->balance)
		st = tess_broadcast(along, c->balance, (uint64_t)c->n, TESS_I64,
		                    p->stage_rank[p->balance_stage], "loss");
	for (int32_t i = 0; i < c->n; i++)
		c->totals->balance += c->balance[i];
	return st;
}

static tess_status add_value_steps(struct pipelined *c)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < c->n && !st; i++)
		st = tess_trainer_add_value_step(c->trainer, &c->micro[i]);
	return st;
}

tess_status tess_trainer_run_pipeline(struct tess_trainer *t, const struct tess_batch *micro,
                                      int32_t n, bool updates, struct tess_batch_totals *totals,
                                      struct tess_accumulator *loss, int32_t *nonfinite)
{
	struct pipelined c = { .trainer = t, .micro = micro, .n = n, .totals = totals };
	tess_status st =
		tess_group_agree_status(t->parts.group, open_for_step(&c, updates), "schedule");

	if (!st)
		st = prepare_step(&c);
	if (!st)
		st = tess_group_post_stage_failure(t->parts.group, c.program[0]->program,
		                                   run_actions(&c));
	tess_sends_abandon(&c.sends);
	if (!st)
		st = share_losses(&c, loss, nonfinite);
	if (!st)
		st = add_value_steps(&c);
	tess_arena_free(&c.arena);
	return st;
}

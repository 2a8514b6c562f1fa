/*
 * runner_step.c - a runner's steps, one at a time or, on the stages of a pipeline, one for each
 * stage.
 *
 * A stage computes its part of a step when the step begins. It starts its sends, and continues with
 * the next step, in other memory. What comes back from later stages, as logits for a rank of an
 * earlier one, is received when the step is finished. All ranks begin and finish steps in one
 * order. Stage s of p finishes a step before it begins the (p - s)th one after it, so that all
 * stages compute:
 *
 *	stage 0   begin 0   begin 1   finish 0, begin 2   finish 1, begin 3
 *	stage 1             begin 0   begin 1             begin 2
 *
 * Ranks that are apart in this way do not agree on the status of a step, which would make the first
 * stage wait for the last one; a rank that lacks memory fails the job.
 */
#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/registry/plugin_call.h"
#include "nn/generate/runner_state.h"
#include "nn/program/agree.h"

#include <string.h>
#include <tessera/util/clock.h>
#include <tessera/util/float.h>

enum { SEND_VALUES, SEND_MESSAGES }; /* the stage of an entry of `sends` */
enum { GRAPH_ROWS = 64 }; /* maximum; larger steps take longer than their queueing */

/* ---- checks and inputs ----------------------------------------------------------------------- */

static tess_status check_slot_rows(struct tess_runner *s, const struct tess_rows *rows, int64_t i)
{
	const struct tess_rows *r = &rows[i];
	int64_t length, limit;

	if (!tess_kv_cache_is_open(s->kv, r->slot))
		return tess_fail(TESS_EINVAL, "slot %d of a step is not open", (int)r->slot);
	if (!tess_kv_cache_mark_slot(s->kv, r->slot, s->nsteps))
		return tess_fail(TESS_EINVAL, "a step contains slot %d twice", (int)r->slot);
	if (r->n < 1)
		return tess_fail(TESS_EINVAL, "slot %d: a step needs at least one id",
		                 (int)r->slot);
	if (r->nselected < 0 || r->nselected > r->n)
		return tess_fail(TESS_EINVAL,
		                 "slot %d: logits of %lld of %lld rows; select 0 to all of them",
		                 (int)r->slot, (long long)r->nselected, (long long)r->n);
	length = tess_runner_get_length(s, r->slot);
	limit = tess_runner_positions(s);
	limit = limit && limit < INT32_MAX / 2 ? limit : INT32_MAX / 2;
	if (r->n > limit - length)
		return tess_fail(TESS_EINVAL,
		                 "%lld positions are too many; at most %lld are possible",
		                 (long long)(length + r->n), (long long)limit);
	return r->ids ? tess_ids_check(r->ids, r->n, length, tess_runner_vocabulary(s)) : TESS_OK;
}

/* Checks the rows of a step, and finds its shape and the end of its positions. */
static tess_status measure_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                                struct tess_shape *like, int64_t *end)
{
	tess_status st = n > 0 ? TESS_OK : tess_fail(TESS_EINVAL, "a step has no rows");

	*end = 0;
	s->nsteps++;
	for (int64_t i = 0; i < n && !st; i++) {
		int64_t mine;

		st = check_slot_rows(s, rows, i);
		if (st)
			break;
		mine = tess_runner_get_length(s, rows[i].slot) + rows[i].n;
		*end = mine > *end ? mine : *end;
		like->ntokens += rows[i].n;
		like->nselected += rows[i].nselected;
	}
	return st;
}

/* Writes ids, positions, slots and selected rows in the order of tess_memory.inputs. */
static tess_status write_step_inputs(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                                     const struct tess_shaped_program *k)
{
	int64_t tokens = k->shape.ntokens, at = 0;
	const struct tess_step_memory *m = &s->step[k->shape.memory];
	int32_t *inputs = m->inputs[s->chooser.turn], *id = inputs, *position = id + tokens,
		*slot = position + tokens, *selected = slot + tokens;

	for (int64_t i = 0; i < n; i++) {
		int64_t first = tess_runner_get_length(s, rows[i].slot);

		if (rows[i].ids)
			memcpy(id + at, rows[i].ids, sizeof *id * (size_t)rows[i].n);
		for (int64_t j = 0; j < rows[i].n; j++, at++) {
			position[at] = (int32_t)(first + j);
			slot[at] = rows[i].slot;
			if (j >= rows[i].n - rows[i].nselected)
				*selected++ = (int32_t)at;
		}
	}
	if (s->groups.profile) {
		s->groups.profile->inputs = (const char *)inputs;
		s->groups.profile->at = m->at.inputs;
		s->groups.profile->input_bytes =
			(int64_t)sizeof *inputs * (3 * tokens + k->shape.nselected);
		s->groups.profile->on_host = tess_device_is_host(&s->device);
	}
	return tess_device_copy(&s->device, "inputs", m->at.inputs, inputs,
	                        (uint64_t)(3 * tokens + k->shape.nselected) * sizeof *inputs);
}

/* ---- logits ---------------------------------------------------------------------------------- */

/* Returns the number of logits of a row on this rank. */
static int64_t count_logits(const struct tess_runner *s, int32_t root)
{
	struct tess_vocabulary_cut cut = tess_runner_get_vocabulary_cut(s);

	return root == TESS_LOGITS_CUT && cut.group
	               ? tess_dim_get_local_size(cut.vocabulary, tess_group_size(cut.group),
	                                         tess_group_rank(cut.group))
	               : tess_runner_vocabulary(s);
}

static tess_status read_logits(struct tess_runner *s, const struct tess_shaped_program *k,
                               const float **logits)
{
	int64_t n = k->shape.nselected * count_logits(s, k->shape.root);
	bool here = n && k->lowered->logits;
	tess_status st = TESS_OK;

	if (here)
		st = tess_device_copy(&s->device, "logits", s->logits, k->lowered->logits,
		                      (uint64_t)n * sizeof *s->logits);
	if (!st)
		st = tess_device_sync(&s->device, "step");
	if (st)
		return st;
	for (int64_t i = 0; here && i < n; i++)
		s->logits[i] = tess_one_nan(s->logits[i]);
	*logits = here ? s->logits : NULL;
	return TESS_OK;
}

/* ---- weights --------------------------------------------------------------------------------- */

/*
 * Packs weights for as long as steps have taken since: on average, steps take twice as long while
 * weights are unpacked. Does nothing before the first step.
 */
static tess_status pack_weights(struct tess_runner *s)
{
	int64_t began = tess_now();
	bool changed;
	tess_status st;

	if (!s->weights.loader || s->packing_ns <= 0)
		return TESS_OK;
	st = tess_rank_weights_pack(&s->weights, s->packing_ns, &changed);
	if (!st && changed)
		tess_programs_mark_stale(&s->programs);
	s->packing_ns -= tess_now() - began;
	return st;
}

tess_status tess_runner_pack_weights(struct tess_runner *s)
{
	s->packing_ns = INT64_MAX / 2;
	return pack_weights(s);
}

/* ---- parts of a step ------------------------------------------------------------------------- */

static bool is_stage_message(const struct tess_shaped_program *k, const struct tess_step *s,
                             int32_t kind)
{
	return s->kind == TESS_STEP_COLL && s->coll.kind == kind &&
	       s->along == k->program->pipeline_along;
}

/* Returns the first step of a rank that receives a value from a later stage, else l->nsteps. */
static int32_t find_return(const struct tess_shaped_program *k)
{
	const struct tess_rank_program *l = k->lowered;
	int32_t stage = tess_program_get_pipeline_rank(k->program, l->rank), i = 0;

	while (i < l->nsteps &&
	       !(is_stage_message(k, l->step[i], TESS_RECV) && l->step[i]->coll.peer > stage))
		i++;
	return i;
}

/* Runs steps, and starts their sends to other stages. */
static tess_status run_stage_part(struct tess_runner *s, const struct tess_shaped_program *k,
                                  int32_t first, int32_t end)
{
	const struct tess_rank_program *l = k->lowered;
	tess_status st = TESS_OK;

	s->sends.stage = SEND_VALUES;
	s->sends.micro = k->shape.memory;
	while (first < end && !st) {
		bool sends = is_stage_message(k, l->step[first], TESS_SEND);
		struct tess_segment part = { .kind = sends ? TESS_PIPELINE_SEND_FORWARD
			                                   : TESS_PIPELINE_FORWARD,
			                     .first = first,
			                     .end = first + 1 };

		while (part.end < end && is_stage_message(k, l->step[part.end], TESS_SEND) == sends)
			part.end++;
		st = tess_rank_program_run_segment(l, &part, &s->device, &s->groups, &s->sends);
		first = part.end;
	}
	return tess_group_post_stage_failure(s->parts.group, k->program, st);
}

/* Waits for the sends with a key. */
static tess_status wait_for_key(struct tess_runner *s, int32_t kind, int32_t key)
{
	return tess_group_post_stage_failure(s->parts.group, s->programs.first->program,
	                                     tess_sends_wait(&s->sends, kind, key, &s->device));
}

/* Runs a complete step if only one is under way, else its part before values come back. */
static tess_status run_program(struct tess_runner *s, struct tess_shaped_program *k)
{
	if (s->ahead > 1)
		return run_stage_part(s, k, 0, find_return(k));
	return tess_group_post_stage_failure(
		s->parts.group, k->program,
		tess_rank_program_run(k->lowered, &s->device, &s->groups,
	                              k->shape.ntokens <= GRAPH_ROWS ? &k->graphs : NULL));
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Makes room for a step, and binds its program. */
static tess_status find_step_program(struct tess_runner *s, const struct tess_shape *like,
                                     int64_t end, struct tess_shaped_program **out)
{
	struct tess_step_memory *m = &s->step[like->memory];
	struct tess_shaped_program *k;
	tess_status st = tess_programs_find(&s->programs, *like, &k);

	if (!st && !k->used) {
		st = tess_step_memory_reserve(m, k->lowered->bytes,
		                              tess_rank_program_hash_calls(k->lowered));
		st = tess_group_agree_unless_apart(s->parts.group, s->ahead > 1, st, "step");
		m->moved = true;
	}
	if (!st)
		st = tess_runner_reserve_buffers(s, like, end);
	if (st)
		return st;
	if (m->moved || !k->bound)
		tess_programs_bind(&s->programs, like->memory, &m->at);
	m->moved = false;
	*out = k;
	return TESS_OK;
}

tess_status tess_runner_queue_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                                   int32_t root, bool chosen, struct tess_shaped_program **out)
{
	struct tess_shape like = { .root = root, .memory = (int32_t)(s->nbegun % s->ahead) };
	struct tess_shaped_program *k = NULL;
	int64_t end, began;
	tess_status st = measure_step(s, rows, n, &like, &end);

	if (!st && (root < -1 || root >= tess_group_size(s->parts.group)) &&
	    (root != TESS_LOGITS_CUT || !tess_runner_keeps_logits(s)))
		st = tess_fail(TESS_EINVAL, "logits for rank %d of %d", (int)root,
		               (int)tess_group_size(s->parts.group));
	if (!st)
		st = wait_for_key(s, SEND_VALUES, like.memory);
	if (!st)
		st = pack_weights(s);
	if (!st)
		st = tess_runner_reserve_pages(s, rows, n);
	if (!st)
		st = find_step_program(s, &like, end, &k);
	if (!st)
		st = write_step_inputs(s, rows, n, k);
	if (!st && chosen)
		st = tess_chooser_feed(s);
	if (!st)
		st = tess_fetcher_begin_step(s->groups.fetcher);
	began = tess_now();
	if (!st)
		st = run_program(s, k);
	s->packing_ns += tess_now() - began;
	if (!st) {
		k->used = s->nsteps;
		*out = k;
	}
	return st;
}

void tess_runner_advance(struct tess_runner *s, const struct tess_rows *rows, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		tess_kv_cache_advance(s->kv, rows[i].slot, rows[i].n);
}

tess_status tess_runner_begin_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                                   int32_t root)
{
	struct tess_shaped_program *k;
	tess_status st = tess_runner_queue_step(s, rows, n, root, false, &k);

	if (!st)
		st = tess_runner_reserve_logits(s, rows, n);
	if (st) {
		tess_device_drain(&s->device);
		return st;
	}
	s->begun[s->nbegun++ % s->ahead] = k;
	tess_runner_advance(s, rows, n);
	return TESS_OK;
}

tess_status tess_runner_finish_step(struct tess_runner *s, const float **logits)
{
	const struct tess_shaped_program *k = s->begun[s->nfinished++ % s->ahead];
	tess_status st = TESS_OK;

	if (s->ahead > 1)
		st = run_stage_part(s, k, find_return(k), k->lowered->nsteps);
	if (!st)
		st = read_logits(s, k, logits);
	if (!st && s->parts.stores_values)
		st = tess_value_store_read(&s->values, k->program, k->lowered, TESS_STAGES_ALL,
		                           &s->device);
	if (!st && s->parts.stores_values)
		st = tess_value_store_add_step(&s->values, NULL, 1);
	if (st)
		tess_device_drain(&s->device);
	return st;
}

tess_status tess_runner_settle(struct tess_runner *s)
{
	tess_status st = wait_for_key(s, 0, -1);

	if (st)
		tess_sends_abandon(&s->sends);
	return st;
}

tess_status tess_runner_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                             int32_t root, const float **logits)
{
	tess_status st = tess_runner_begin_step(s, rows, n, root);

	if (!st)
		st = tess_runner_finish_step(s, logits);
	return st ? st : tess_runner_settle(s);
}

/* ---- messages -------------------------------------------------------------------------------- */

static struct tess_coll make_stage_message(int32_t kind, int32_t stage, int64_t n,
                                           const char *where)
{
	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = kind,
		                   .dtype = TESS_I32,
		                   .peer = stage,
		                   .count = (uint64_t)n,
		                   .where = where };
}

tess_status tess_runner_send(struct tess_runner *s, int32_t stage, const void *data, int64_t n,
                             const char *where, int64_t step)
{
	const struct tess_program *p = s->programs.first->program;
	struct tess_coll c = make_stage_message(TESS_SEND, stage, n, where);
	struct tess_work *work;
	tess_status st;

	c.src = data;
	st = tess_group_start(s->parts.along[p->pipeline_along], &c, &work);
	s->sends.stage = SEND_MESSAGES;
	s->sends.micro = (int32_t)(step & INT32_MAX);
	if (!st)
		st = tess_sends_add(&s->sends, work);
	return tess_group_post_stage_failure(s->parts.group, p, st);
}

tess_status tess_runner_receive(struct tess_runner *s, int32_t stage, void *data, int64_t n,
                                const char *where)
{
	const struct tess_program *p = s->programs.first->program;
	struct tess_coll c = make_stage_message(TESS_RECV, stage, n, where);
	int64_t began = tess_profile_begin(s->groups.profile);
	tess_status st;

	c.dst = data;
	st = tess_group_run(s->parts.along[p->pipeline_along], &c);
	tess_profile_add_call(s->groups.profile, NULL, began);
	return tess_group_post_stage_failure(s->parts.group, p, st);
}

tess_status tess_runner_wait_for_messages(struct tess_runner *s, int64_t step)
{
	return wait_for_key(s, SEND_MESSAGES, (int32_t)(step & INT32_MAX));
}

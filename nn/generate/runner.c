#include "nn/generate/runner.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/registry/plugin_call.h"
#include "core/world/cpus.h"
#include "core/world/group.h"
#include "nn/compile/compile.h"
#include "nn/generate/runner_state.h"
#include "nn/program/agree.h"
#include "nn/record/unexpected.h"
#include "nn/run/check.h"
#include "nn/run/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/util/clock.h>
#include <tessera/util/float.h>

enum { PROMPT_ROWS = 512 };
enum { GRAPH_ROWS = 64 }; /* maximum; larger steps take longer than their queueing */

/* ---- open ------------------------------------------------------------------------------------ */

static tess_status open_runner_device(struct tess_runner *s, int32_t index)
{
	tess_status st = tess_device_open(s->programs.options.device, index, s->parts.threads,
	                                  s->parts.group, &s->device);

	s->step.device = &s->device;
	s->step.at.stream = s->device.stream;
	return st;
}

/* Sets the groups of dimensions; `group` alone is that of tp. */
static void set_groups(struct tess_runner *s)
{
	struct tess_runner_parts *p = &s->parts;

	if (!p->all)
		p->all = p->group;
	if (!p->mesh.ndims) {
		p->mesh = tess_mesh_shape_make("tp", tess_group_size(p->group));
		p->along[0] = p->group;
	}
	s->rank = tess_group_rank(p->group);
	s->groups =
		(struct tess_run_groups){ .all = p->group, .stage = p->group, .along = p->along };
	s->step.shared = tess_step_memory_choose_group(&p->mesh, p->along);
}

/*
 * Returns this rank's share of free memory less an eighth, which is left for other uses; 0:
 * unknown.
 */
static uint64_t find_free_memory(const struct tess_runner *s)
{
	const struct tess_device *table = s->device.table;
	uint64_t free_bytes = 0;

	if (table->free_bytes &&
	    TESS_PLUGIN_CALL(table, "KV cache", free_bytes, s->device.self, &free_bytes))
		tess_log(TESS_WARN, "runner", "the KV cache has no limit: %s", tess_error());
	return free_bytes / 8 * 7 / (uint64_t)s->device.nranks;
}

static tess_status open_kv_cache(struct tess_runner *s)
{
	const struct tess_rank_program *l = s->programs.first->lowered;
	struct tess_kv_parts parts = { .device = s->device,
		                       .group = s->parts.group,
		                       .page_class = l->page_class,
		                       .nclasses = l->nclasses,
		                       .limit = s->parts.kv_memory,
		                       .in_stages = tess_runner_count_stages(s) > 1 };

	if (!parts.limit)
		parts.limit = find_free_memory(s);
	return tess_kv_cache_new(&parts, &s->kv);
}

static tess_status open_runner(struct tess_runner *s)
{
	const struct tess_runner_parts *parts = &s->parts;
	struct tess_shaped_program *k;
	const struct tess_device *device = NULL;
	const struct tess_shape one_row = { .ntokens = 1, .nselected = 1 };
	int32_t index = -1;
	tess_status st = tess_run_read_options(&s->check, &s->groups.graphs);

	s->pattern = parts->values ? strdup(parts->values) : NULL;
	if (!st && parts->values && !s->pattern)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	if (!st)
		st = tess_device_find(&device, &index);
	if (!st)
		st = tess_device_check_weights(device, parts->weights);
	if (!st) {
		s->programs.options = (struct tess_record_options){ .model = parts->model,
			                                            .plan = parts->plan,
			                                            .source = parts->source,
			                                            .mesh = parts->mesh,
			                                            .positions = parts->positions,
			                                            .kv_dtype = parts->kv_dtype,
			                                            .weights = parts->weights,
			                                            .math = parts->math,
			                                            .values = s->pattern,
			                                            .check = s->check,
			                                            .device = device };
		s->programs.group = parts->group;
		s->programs.all = parts->all;
		st = tess_programs_record_first(&s->programs, one_row);
	}
	/* stages have different steps, and cannot agree on graphs with calls */
	if (!st && s->programs.first->program->pipeline_along >= 0 &&
	    s->groups.graphs == TESS_GRAPHS_CALLS)
		s->groups.graphs = TESS_GRAPHS_OPS;
	if (!st)
		st = tess_unexpected_check(s->programs.first->program, parts->model, parts->source,
		                           tess_group_rank(parts->all) == 0);
	st = tess_group_agree_status(parts->all, st, "program");
	if (!st)
		st = tess_programs_compare(&s->programs);
	if (st)
		return st;
	st = tess_check_open_group(s->programs.first->program, parts->group, &s->groups.stage);
	if (!st)
		st = open_runner_device(s, index);
	if (!st)
		st = tess_runner_check_room(s);
	st = tess_group_agree_status(parts->all, st, "device");
	if (st)
		return st;
	st = tess_device_attach(&s->device, &parts->mesh, s->rank, parts->group, parts->along);
	if (!st)
		st = tess_rank_weights_load(s->programs.first->program, parts->source, s->rank,
		                            &s->device, &s->weights);
	st = tess_group_agree_status(parts->all, st, "weights");
	if (st)
		return st;
	s->programs.weights = s->weights.view;
	st = tess_programs_find(&s->programs, s->programs.first->shape, &k);
	if (!st)
		st = open_kv_cache(s);
	if (!st)
		st = tess_chooser_open(s);
	return parts->all == parts->group ? st : tess_group_agree_status(parts->all, st, "runner");
}

tess_status tess_runner_new(const struct tess_runner_parts *parts, struct tess_runner **out)
{
	struct tess_runner *s = calloc(1, sizeof *s);
	tess_status st;

	if (!s)
		return tess_fail(TESS_ENOMEM, "out of memory");
	s->parts = *parts;
	set_groups(s);
	st = open_runner(s);
	if (st)
		tess_runner_free(s);
	else
		*out = s;
	return st;
}

/* ---- steps ----------------------------------------------------------------------------------- */

tess_status tess_runner_open_slot(struct tess_runner *s, int32_t *slot)
{
	return tess_kv_cache_open_slot(s->kv, slot);
}

void tess_runner_close_slot(struct tess_runner *s, int32_t slot)
{
	if (tess_kv_cache_is_open(s->kv, slot))
		tess_kv_cache_close_slot(s->kv, slot);
}

int64_t tess_runner_get_length(const struct tess_runner *s, int32_t slot)
{
	return tess_kv_cache_is_open(s->kv, slot) ? tess_kv_cache_get_length(s->kv, slot) : 0;
}

bool tess_runner_rewind_slot(struct tess_runner *s, int32_t slot, int64_t length)
{
	return tess_kv_cache_rewind(s->kv, slot, length);
}

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
	int32_t *inputs = s->step.inputs[s->chooser.turn], *id = inputs, *position = id + tokens,
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
		s->groups.profile->at = s->step.at.inputs;
		s->groups.profile->input_bytes =
			(int64_t)sizeof *inputs * (3 * tokens + k->shape.nselected);
		s->groups.profile->on_host = tess_device_is_host(&s->device);
	}
	return tess_device_copy(&s->device, "inputs", s->step.at.inputs, inputs,
	                        (uint64_t)(3 * tokens + k->shape.nselected) * sizeof *inputs);
}

/* Returns the number of logits of a row on this rank. */
static int64_t count_logits(const struct tess_runner *s, int32_t root)
{
	struct tess_vocabulary_cut cut = tess_runner_get_vocabulary_cut(s);

	return root == TESS_LOGITS_CUT
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
	if (!st && changed) {
		st = tess_programs_lower_again(&s->programs);
		s->step.moved = true;
	}
	s->packing_ns -= tess_now() - began;
	return st;
}

tess_status tess_runner_pack_weights(struct tess_runner *s)
{
	s->packing_ns = INT64_MAX / 2;
	return pack_weights(s);
}

static tess_status run_program(struct tess_runner *s, struct tess_shaped_program *k)
{
	return tess_rank_program_run(k->lowered, &s->device, &s->groups,
	                             k->shape.ntokens <= GRAPH_ROWS ? &k->graphs : NULL);
}

tess_status tess_runner_queue_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                                   int32_t root, bool chosen, struct tess_shaped_program **out)
{
	struct tess_shape like = { .root = root };
	struct tess_shaped_program *k = NULL;
	int64_t end, began;
	tess_status st = measure_step(s, rows, n, &like, &end);

	if (!st && (root < -1 || root >= tess_group_size(s->parts.group)) &&
	    (root != TESS_LOGITS_CUT || !tess_runner_get_vocabulary_cut(s).group))
		st = tess_fail(TESS_EINVAL, "logits for rank %d of %d", (int)root,
		               (int)tess_group_size(s->parts.group));
	if (!st)
		st = pack_weights(s);
	if (!st)
		st = tess_runner_reserve_pages(s, rows, n);
	if (!st)
		st = tess_programs_find(&s->programs, like, &k);
	if (!st && !k->used) {
		st = tess_step_memory_reserve(&s->step, k->lowered->bytes,
		                              tess_rank_program_hash_calls(k->lowered));
		st = tess_group_agree_status(s->parts.group, st, "step");
		s->step.moved = true;
	}
	if (!st)
		st = tess_runner_reserve_buffers(s, &like, end);
	if (!st && s->step.moved) {
		tess_programs_bind(&s->programs, &s->step.at);
		s->step.moved = false;
	}
	if (!st)
		st = write_step_inputs(s, rows, n, k);
	if (!st && chosen)
		st = tess_chooser_feed(s);
	began = tess_now();
	if (!st)
		st = tess_group_post_stage_failure(s->parts.group, k->program, run_program(s, k));
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

tess_status tess_runner_step(struct tess_runner *s, const struct tess_rows *rows, int64_t n,
                             int32_t root, const float **logits)
{
	struct tess_shaped_program *k;
	tess_status st = tess_runner_queue_step(s, rows, n, root, false, &k);

	if (!st)
		st = tess_runner_reserve_logits(s, rows, n);
	if (!st)
		st = read_logits(s, k, logits);
	if (!st && s->parts.stores_values)
		st = tess_value_store_read(&s->values, k->program, k->lowered, TESS_STAGES_ALL,
		                           &s->device);
	if (!st && s->parts.stores_values)
		st = tess_value_store_add_step(&s->values, NULL, 1);
	if (st) {
		tess_device_drain(&s->device);
		return st;
	}
	tess_runner_advance(s, rows, n);
	return TESS_OK;
}

struct tess_group *tess_runner_group(const struct tess_runner *s)
{
	return s->parts.group;
}

int32_t tess_runner_count_stages(const struct tess_runner *s)
{
	return s->programs.first->program->nstages;
}

int64_t tess_runner_get_prompt_rows(const struct tess_runner *s)
{
	int64_t rows = s->device.table->prompt_rows, stages = tess_runner_count_stages(s);

	rows = rows > 0 ? rows : PROMPT_ROWS;
	return stages > 1 ? tess_up(rows, 2 * stages) : rows;
}

int64_t tess_runner_vocabulary(const struct tess_runner *s)
{
	return s->programs.first->program->logits->dim[1]->size;
}

struct tess_vocabulary_cut tess_runner_get_vocabulary_cut(const struct tess_runner *s)
{
	const struct tess_program *p = s->programs.first->program;
	int32_t along = p->vocabulary_along;

	return (struct tess_vocabulary_cut){ along < 0 ? NULL : s->parts.along[along],
		                             p->logits->dim[1], s->groups.profile };
}

int64_t tess_runner_positions(const struct tess_runner *s)
{
	return s->programs.first->program->max_positions;
}

struct tess_runner_memory tess_runner_get_memory(const struct tess_runner *s)
{
	return (struct tess_runner_memory){ s->weights.bytes, tess_kv_cache_get_usage(s->kv).bytes,
		                            s->step.bytes, s->weights.mapped };
}

const struct tess_weight_decision *tess_runner_get_weights(const struct tess_runner *s, int32_t *n)
{
	*n = s->weights.n;
	return s->weights.decision;
}

struct tess_runner_room tess_runner_get_room(const struct tess_runner *s)
{
	struct tess_kv_usage u = tess_kv_cache_get_usage(s->kv);

	return (struct tess_runner_room){ u.used, u.limit };
}

int64_t tess_runner_get_batch(const struct tess_runner *s)
{
	uint64_t limit = tess_kv_cache_get_usage(s->kv).limit;
	uint64_t row = (uint64_t)tess_runner_vocabulary(s) * sizeof *s->logits;
	uint64_t n = limit / 14 / row; /* the cache has 7/8 of the memory, logits 1/16 */

	if (s->parts.kv_memory || limit == INT64_MAX || n > TESS_CHOSEN_MAX)
		return TESS_CHOSEN_MAX;
	return n > 1 ? (int64_t)n : 1;
}

uint64_t tess_runner_count_room(const struct tess_runner *s, int64_t positions, int64_t chunk)
{
	return tess_kv_cache_count_bytes(s->kv, positions, chunk);
}

void tess_runner_set_profile(struct tess_runner *s, struct tess_profile *p)
{
	s->groups.profile = p;
}

struct tess_profile *tess_runner_get_profile(const struct tess_runner *s)
{
	return s->groups.profile;
}

int32_t tess_runner_count_threads(const struct tess_runner *s)
{
	return s->device.nthreads;
}

tess_status tess_runner_take_values(struct tess_runner *s, struct tess_taken_value **out)
{
	if (!s->pattern)
		return tess_fail(TESS_EINVAL,
		                 "the session keeps no values; open it with a pattern of modules "
		                 "in the option values");
	return tess_value_store_take(&s->values, s->programs.first->program, s->parts.group, 1,
	                             out);
}

const struct tess_program *tess_runner_get_program(const struct tess_runner *s)
{
	return s->programs.first->program;
}

void tess_runner_free(struct tess_runner *s)
{
	if (!s)
		return;
	tess_device_drain(&s->device);
	tess_programs_close_graphs(&s->programs);
	tess_chooser_close(s);
	if (s->step.is_registered)
		tess_step_memory_free(&s->step);
	tess_device_detach(&s->device, &s->parts.mesh, s->parts.group, s->parts.along);
	tess_device_drain(&s->device);
	tess_kv_cache_free(s->kv);
	tess_step_memory_free(&s->step);
	free(s->logits);
	tess_value_store_clear(&s->values);
	free(s->pattern);
	tess_rank_weights_free(&s->weights);
	tess_check_close_group(s->groups.stage, s->parts.group);
	tess_programs_free(&s->programs);
	tess_device_close(&s->device);
	free(s);
}

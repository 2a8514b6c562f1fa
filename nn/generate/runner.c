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

enum { PROGRAMS_KEPT = 32 }; /* for each step under way */

/* ---- open ------------------------------------------------------------------------------------ */

static tess_status open_runner_device(struct tess_runner *s, int32_t index)
{
	tess_status st = tess_device_open(s->programs.options.device, index, s->parts.threads,
	                                  s->parts.group, &s->device);

	for (int32_t i = 0; i < s->ahead; i++)
		s->step[i] = (struct tess_step_memory){
			.device = &s->device,
			.shared = tess_step_memory_choose_group(&s->parts.mesh, s->parts.along),
			.at.stream = s->device.stream,
		};
	return st;
}

/* Allocates what the runner knows of each step that is under way. */
static tess_status alloc_step_memory(struct tess_runner *s)
{
	int32_t n = tess_program_count_ahead(s->programs.first->program);

	s->step = calloc((size_t)n, sizeof *s->step);
	s->begun = calloc((size_t)n, sizeof *s->begun);
	if (!s->step || !s->begun)
		return tess_fail(TESS_ENOMEM, "out of memory");
	s->ahead = n;
	s->programs.apart = n > 1;
	s->programs.kept = n * PROGRAMS_KEPT;
	return TESS_OK;
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
		                       .apart = s->ahead > 1 };

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
	if (!st)
		st = alloc_step_memory(s);
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
		                            &s->device, NULL, &s->weights);
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

/* ---- free ------------------------------------------------------------------------------------ */

/* Frees the memory of steps. registered: only what a carrier has allocated. */
static void free_steps(struct tess_runner *s, bool registered)
{
	for (int32_t i = 0; i < s->ahead; i++) {
		if (registered && !s->step[i].is_registered)
			continue;
		if (i) /* the first one's */
			s->step[i].at.rope = NULL;
		tess_step_memory_free(&s->step[i]);
	}
}

void tess_runner_free(struct tess_runner *s)
{
	if (!s)
		return;
	tess_sends_abandon(&s->sends);
	tess_device_drain(&s->device);
	tess_programs_close_graphs(&s->programs);
	tess_chooser_close(s);
	free_steps(s, true);
	tess_device_detach(&s->device, &s->parts.mesh, s->parts.group, s->parts.along);
	tess_device_drain(&s->device);
	tess_kv_cache_free(s->kv);
	free_steps(s, false);
	free(s->step);
	free(s->begun);
	free(s->logits);
	tess_value_store_clear(&s->values);
	free(s->pattern);
	tess_rank_weights_free(&s->weights);
	tess_check_close_group(s->groups.stage, s->parts.group);
	tess_programs_free(&s->programs);
	tess_device_close(&s->device);
	free(s);
}

/* runner_info.c - the slots of a runner, and what is known of it: sizes, memory, stages. */
#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/world/group.h"
#include "nn/generate/runner_state.h"

/* a step of prompts reads all offloaded weights once */
enum { PROMPT_ROWS = 512, OFFLOADED_PROMPT_ROWS = 2048 };

/* ---- slots ----------------------------------------------------------------------------------- */

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

/* ---- getters --------------------------------------------------------------------------------- */

struct tess_group *tess_runner_group(const struct tess_runner *s)
{
	return s->parts.group;
}

int64_t tess_runner_get_next_step(const struct tess_runner *s)
{
	return s->nbegun;
}

int32_t tess_runner_count_ahead(const struct tess_runner *s)
{
	return s->ahead;
}

struct tess_runner_stages tess_runner_get_stages(const struct tess_runner *s)
{
	const struct tess_program *p = s->programs.first->program;
	int32_t along = p->pipeline_along;
	struct tess_runner_stages at = { .n = p->nstages,
		                         .stage = tess_program_get_pipeline_rank(p, s->rank),
		                         .logits = p->logits_stage,
		                         .first = true };

	for (int32_t i = 0; i < s->parts.mesh.ndims; i++)
		if (i != along && tess_group_rank(s->parts.along[i]))
			at.first = false;
	at.along = along < 0 ? NULL : s->parts.along[along];
	return at;
}

bool tess_runner_keeps_logits(const struct tess_runner *s)
{
	const struct tess_program *p = s->programs.first->program;

	return p->vocabulary_along >= 0 || p->pipeline_along >= 0;
}

tess_status tess_runner_broadcast_in_stage(const struct tess_runner *s, void *data, uint64_t n,
                                           const char *where)
{
	int32_t along = s->programs.first->program->pipeline_along;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < s->parts.mesh.ndims && !st; i++)
		if (i != along)
			st = tess_broadcast(s->parts.along[i], data, n, TESS_I32, 0, where);
	return st;
}

int64_t tess_runner_get_prompt_rows(const struct tess_runner *s)
{
	int64_t rows = s->device.table->prompt_rows, stages = s->programs.first->program->nstages;

	rows = rows > 0 ? rows : s->parts.offload_weights ? OFFLOADED_PROMPT_ROWS : PROMPT_ROWS;
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
	uint64_t bytes = 0;

	for (int32_t i = 0; i < s->ahead; i++)
		bytes += s->step[i].bytes;
	return (struct tess_runner_memory){
		s->weights.bytes, tess_kv_cache_get_usage(s->kv).bytes, bytes, s->weights.mapped,
		tess_fetched_count_bytes(s->programs.first->program, s->rank)
	};
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

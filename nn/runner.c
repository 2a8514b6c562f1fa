#include "nn/runner.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/group/cpus.h"
#include "core/group/group.h"
#include "core/group/shared_region.h"
#include "core/registry/registry.h"
#include "core/registry/returned.h"
#include "nn/agree.h"
#include "nn/lower.h"
#include "nn/record.h"
#include "nn/run.h"
#include "nn/unexpected.h"
#include "nn/weights.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/float.h>

const struct tess_option tess_runner_options[] = {
	{ "device", "cpu", "the device that computes: cpu" },
	{ "threads", "0", "compute threads per rank; 0: this rank's share of the CPUs it may use" },
	{ "check", "0",
	  "1: after each module, compares values that all ranks must hold alike, and looks for NaN "
	  "and Inf" },
	{ NULL, NULL, NULL },
};

struct shape { /* a program for one number of rows, on this rank */
	struct shape *next;
	int64_t ntokens;
	bool all;
	struct tess_program *program;
	struct tess_rank_program *lowered;
};

struct tess_runner {
	struct tess_runner_parts parts;
	int32_t rank, nranks;
	const struct tess_device *device;
	void *self;
	struct shape *shapes; /* the one recorded first is last; weights were loaded for it */
	struct tess_rank_weights weights;
	void *step;
	bool step_shared; /* allocated by the group, not by the device */
	uint64_t step_bytes, cache_bytes;
	void **keys, **values;
	int32_t ncache;
	float **rope_table; /* per rope of the programs, which are alike in that */
	int64_t capacity, next_position;
	bool check; /* TESSERA_CHECK */
};

/* ---- programs -------------------------------------------------------------------------------- */

static void free_shape(struct shape *s)
{
	tess_rank_program_free(s->lowered);
	tess_program_free(s->program);
	free(s);
}

static tess_status make_shape(struct tess_runner *s, int64_t ntokens, bool all, struct shape **out)
{
	struct tess_record_options options = { .model = s->parts.model,
		                               .plan = s->parts.plan,
		                               .source = s->parts.source,
		                               .nranks = s->nranks,
		                               .ntokens = ntokens,
		                               .all = all,
		                               .check = s->check };
	struct shape *shape = calloc(1, sizeof *shape);
	tess_status st = shape ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st) {
		shape->ntokens = ntokens;
		shape->all = all;
		st = tess_program_record(&options, &shape->program);
	}
	if (st)
		free(shape);
	else
		*out = shape;
	return st;
}

static void bind_shapes(struct tess_runner *s)
{
	struct tess_memory m = { s->step, s->rope_table, s->keys, s->values, s->capacity };

	for (struct shape *k = s->shapes; k; k = k->next)
		if (k->lowered && s->capacity)
			tess_rank_program_bind(k->lowered, &m);
}

static void free_step(struct tess_runner *s)
{
	if (s->step_shared)
		tess_group_free(s->parts.group, s->step);
	else if (s->step)
		s->device->free(s->self, s->step);
	s->step = NULL;
}

/* In memory that all ranks map, where there is such: collectives then need no extra copies. */
static tess_status alloc_step(struct tess_runner *s, uint64_t *bytes, void **out, bool *shared)
{
	tess_status st = TESS_ENOTSUP;

	*shared = s->device->mem == TESS_HOST && tess_group_has_shared_memory(s->parts.group);
	if (*shared)
		st = tess_group_alloc(s->parts.group, bytes, out);
	if (st != TESS_ENOTSUP && st != TESS_ENOMEM)
		return st;
	*shared = false;
	return TESS_PLUGIN_CALL(s->device, "step", alloc, s->self, *bytes, out);
}

/*
 * The step arena fits the largest program; growing it rebinds all of them. Ranks need different
 * sizes for the same program: shared memory, which is allocated collectively, grows if it is too
 * small for any rank.
 */
static tess_status reserve_step(struct tess_runner *s, uint64_t bytes)
{
	int64_t is_short = bytes > s->step_bytes;
	void *more;
	bool shared;
	tess_status st = TESS_OK;

	if (tess_group_has_shared_memory(s->parts.group))
		st = tess_all_reduce(s->parts.group, &is_short, &is_short, 1, TESS_I64, TESS_MAX,
		                     "step");
	if (st || !is_short)
		return st;
	if (bytes < s->step_bytes)
		bytes = s->step_bytes;
	st = alloc_step(s, &bytes, &more, &shared);
	if (st)
		return st;
	free_step(s);
	s->step = more;
	s->step_shared = shared;
	s->step_bytes = bytes;
	return TESS_OK;
}

static tess_status find_shape(struct tess_runner *s, int64_t ntokens, bool all, struct shape **out)
{
	struct shape *k = s->shapes;
	tess_status st = TESS_OK;

	while (k && (k->ntokens != ntokens || k->all != all))
		k = k->next;
	if (!k) {
		st = make_shape(s, ntokens, all, &k);
		if (st)
			return st;
		k->next = s->shapes;
		s->shapes = k;
	}
	if (!k->lowered) {
		st = tess_program_lower(k->program, s->nranks, s->rank, s->weights.view,
		                        &k->lowered);
		if (!st)
			st = tess_rank_program_check_device(k->lowered, s->device);
		if (!st)
			st = reserve_step(s, k->lowered->bytes);
		bind_shapes(s);
	}
	if (!st)
		*out = k;
	return st;
}

/* Ranks with different programs would wait for each other for ever: fails before anything runs. */
static tess_status compare_programs(struct tess_runner *s, const struct tess_program *p)
{
	int64_t mine[2] = { p->nrecords, p->nrecords ? (int64_t)p->hash[p->nrecords - 1] : 0 };
	int64_t *all = calloc((size_t)s->nranks, sizeof mine);
	uint64_t *hash = NULL;
	tess_status st;
	int32_t other = -1;

	if (!all)
		return tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_all_gather(s->parts.group, mine, all, 2, TESS_I64, "program:hash");
	for (int32_t r = 0; r < s->nranks && !st; r++)
		if (memcmp(all + 2 * r, all, sizeof mine) && other < 0)
			other = r;
	if (!st && other >= 0 && all[2 * other] != all[0]) {
		st = tess_fail(
			TESS_EMISMATCH,
			"rank %d recorded %lld records, rank 0 %lld: they run different plans, "
			"checkpoints or "
			"versions",
			(int)other, (long long)all[2 * other], (long long)all[0]);
	} else if (!st && other >= 0) {
		hash = calloc((size_t)s->nranks * (size_t)p->nrecords, sizeof *hash);
		st = hash ? tess_all_gather(s->parts.group, p->hash, hash, (uint64_t)p->nrecords,
		                            TESS_I64, "program:hashes")
		          : tess_fail(TESS_ENOMEM, "out of memory");
		for (int32_t i = 0; i < p->nrecords && !st; i++)
			if (hash[(int64_t)other * p->nrecords + i] != hash[i])
				st = tess_fail(
					TESS_EMISMATCH,
					"rank %d differs from rank 0 at record %d (%s of %s)",
					(int)other, (int)i,
					tess_record_kind_name(p->record[i]->kind),
					p->record[i]->module);
	}
	free(hash);
	free(all);
	return st;
}

/* ---- open ------------------------------------------------------------------------------------ */

static tess_status find_compute_device(const struct tess_device **device, int64_t *threads)
{
	tess_status st = tess_plugin_find_device(tess_option("device"), device);

	if (!st && !*threads)
		st = tess_option_get_int("threads", 0, 1024, threads);
	if (!st && (*device)->count() < 1)
		st = tess_fail(TESS_EDEVICE, "device %s: this machine has none", (*device)->name);
	return st;
}

static tess_status open_compute_device(struct tess_runner *s)
{
	int64_t threads = s->parts.threads;
	tess_status st = find_compute_device(&s->device, &threads);
	int32_t cpus = (int32_t)threads;

	if (!st && !threads)
		st = tess_world_count_cpus(s->parts.group->world, &cpus);
	if (!st)
		st = TESS_PLUGIN_CALL(s->device, NULL, open, 0, cpus, &s->self);
	return st;
}

static tess_status read_runner_options(bool *check)
{
	int64_t value = 0;
	tess_status st = tess_option_add("nn/runner.c", tess_runner_options);

	if (!st)
		st = tess_option_get_int("check", 0, 1, &value);
	*check = value;
	return st;
}

tess_status tess_runner_check_options(int32_t threads)
{
	const struct tess_device *device;
	int64_t n = threads;
	bool answer;
	tess_status st = read_runner_options(&answer);

	if (!st)
		st = find_compute_device(&device, &n);
	return st ? st : tess_weights_read_layout(&answer);
}

tess_status tess_runner_new(const struct tess_runner_parts *parts, struct tess_runner **out)
{
	struct tess_runner *s = calloc(1, sizeof *s);
	tess_status st;

	if (!s)
		return tess_fail(TESS_ENOMEM, "out of memory");
	s->parts = *parts;
	s->rank = tess_group_rank(parts->group);
	s->nranks = tess_group_size(parts->group);
	st = read_runner_options(&s->check);
	if (!st)
		st = make_shape(s, 1, false, &s->shapes);
	if (!st)
		st = tess_unexpected_check(s->shapes->program, parts->model, parts->source,
		                           s->rank == 0);
	st = tess_group_agree_status(parts->group, st, "program");
	if (!st)
		st = compare_programs(s, s->shapes->program);
	if (st) {
		tess_runner_free(s);
		return st;
	}
	st = open_compute_device(s);
	if (!st)
		st = tess_rank_weights_load(s->shapes->program, parts->source, s->nranks, s->rank,
		                            s->device, s->self, &s->weights);
	st = tess_group_agree_status(parts->group, st, "weights");
	if (st)
		tess_runner_free(s);
	else
		*out = s;
	return st;
}

static void free_kv_caches(struct tess_runner *s)
{
	for (int32_t i = 0; i < s->ncache; i++) {
		if (s->keys && s->keys[i])
			s->device->free(s->self, s->keys[i]);
		if (s->values && s->values[i])
			s->device->free(s->self, s->values[i]);
	}
	free(s->keys);
	free(s->values);
	for (int32_t i = 0; s->rope_table && s->rope_table[i]; i++)
		free(s->rope_table[i]);
	free(s->rope_table);
	s->keys = s->values = NULL;
	s->rope_table = NULL;
	s->ncache = 0;
	s->cache_bytes = 0;
	s->capacity = 0;
}

/* Ends with NULL. */
static tess_status make_rope_tables(struct tess_runner *s, const struct tess_program *p,
                                    int64_t capacity)
{
	tess_status st = TESS_OK;

	s->rope_table = calloc((size_t)p->nropes + 1, sizeof *s->rope_table);
	for (int32_t i = 0; i < p->nropes && s->rope_table && !st; i++) {
		s->rope_table[i] =
			calloc((size_t)(capacity * p->rope[i].each), sizeof **s->rope_table);
		if (!s->rope_table[i])
			return tess_fail(TESS_ENOMEM, "out of memory");
		st = tess_rope_fill_table(&p->rope[i].rope, p->rope[i].each, capacity,
		                          s->rope_table[i]);
	}
	return s->rope_table ? st : tess_fail(TESS_ENOMEM, "out of memory");
}

static tess_status alloc_kv_caches(struct tess_runner *s, const struct tess_rank_program *lowered,
                                   int64_t capacity)
{
	tess_status st = TESS_OK;

	s->ncache = lowered->ncache;
	s->keys = calloc((size_t)lowered->ncache + 1, sizeof *s->keys);
	s->values = calloc((size_t)lowered->ncache + 1, sizeof *s->values);
	if (!s->keys || !s->values)
		return tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t i = 0; i < lowered->ncache && !st; i++) {
		uint64_t bytes = 4 * (uint64_t)(lowered->cache[i].heads *
		                                lowered->cache[i].head_size * capacity);

		st = TESS_PLUGIN_CALL(s->device, "cache", alloc, s->self, bytes, &s->keys[i]);
		if (!st)
			st = TESS_PLUGIN_CALL(s->device, "cache", alloc, s->self, bytes,
			                      &s->values[i]);
		s->cache_bytes += 2 * bytes;
	}
	return st;
}

tess_status tess_runner_reserve(struct tess_runner *s, int64_t positions)
{
	int64_t capacity = tess_up(positions > 0 ? positions : 1, 64) * 64;
	struct shape *k;
	tess_status st = positions <= INT32_MAX / 2
	                         ? TESS_OK
	                         : tess_fail(TESS_EINVAL,
	                                     "%lld positions are too many; at most %d are possible",
	                                     (long long)positions, (int)(INT32_MAX / 2));

	s->next_position = 0;
	if (st || capacity <= s->capacity)
		return st;
	st = find_shape(s, 1, false, &k);
	if (st)
		return st;
	free_kv_caches(s);
	st = alloc_kv_caches(s, k->lowered, capacity);
	if (!st)
		st = make_rope_tables(s, k->program, capacity);
	if (st) {
		free_kv_caches(s);
		return st;
	}
	s->capacity = capacity;
	bind_shapes(s);
	return TESS_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

tess_status tess_ids_check(const int32_t *ids, int64_t n, int64_t first, int64_t vocab)
{
	for (int64_t i = 0; i < n; i++)
		if (ids[i] < 0 || ids[i] >= vocab)
			return tess_fail(
				TESS_EINVAL,
				"id %d at position %lld is outside the vocabulary; use 0 to %lld",
				(int)ids[i], (long long)(first + i), (long long)vocab - 1);
	return TESS_OK;
}

static tess_status check_ids(const struct tess_runner *s, const int32_t *ids, int64_t n)
{
	if (n < 1)
		return tess_fail(TESS_EINVAL, "a step needs at least one id");
	if (s->next_position + n > s->capacity)
		return tess_fail(TESS_EINVAL, "position %lld: the caches have room for %lld",
		                 (long long)(s->next_position + n - 1), (long long)s->capacity);
	return tess_ids_check(ids, n, s->next_position, tess_runner_vocabulary(s));
}

tess_status tess_runner_step(struct tess_runner *s, const int32_t *ids, int64_t n, bool all,
                             const float **logits)
{
	tess_status st = check_ids(s, ids, n);
	struct shape *k;

	if (!st)
		st = find_shape(s, n, all, &k);
	if (st)
		return st;
	memcpy(k->lowered->ids, ids, sizeof *ids * (size_t)n);
	for (int64_t i = 0; i < n; i++)
		((int32_t *)k->lowered->positions)[i] = (int32_t)(s->next_position + i);
	st = tess_rank_program_run(k->lowered, s->device, s->self, s->parts.group);
	if (st)
		return st;
	for (int64_t i = 0; all && i < n * tess_runner_vocabulary(s); i++)
		((float *)k->lowered->logits)[i] = tess_one_nan(((float *)k->lowered->logits)[i]);
	s->next_position += n;
	*logits = k->lowered->logits;
	return TESS_OK;
}

struct tess_group *tess_runner_group(const struct tess_runner *s)
{
	return s->parts.group;
}

int64_t tess_runner_vocabulary(const struct tess_runner *s)
{
	return s->shapes->program->logits->dim[1]->size;
}

struct tess_runner_memory tess_runner_get_memory(const struct tess_runner *s)
{
	return (struct tess_runner_memory){ s->weights.bytes, s->cache_bytes, s->step_bytes };
}

void tess_runner_free(struct tess_runner *s)
{
	if (!s)
		return;
	free_kv_caches(s);
	free_step(s);
	tess_rank_weights_free(&s->weights);
	while (s->shapes) {
		struct shape *k = s->shapes;

		s->shapes = k->next;
		free_shape(k);
	}
	if (s->self)
		s->device->close(s->self);
	free(s);
}

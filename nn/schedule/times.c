/* times.c - reads the durations of a schedule from JSON. */
#include "nn/schedule/schedule.h"

#include "core/base/json.h"
#include "core/base/sized.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

enum { TIMES_MAX = 1 << 26, LAST_COMPUTATION = TESS_PIPELINE_BACKWARD_WEIGHTS };

struct read_times { /* one allocation, with the durations by stage */
	struct tess_pipeline_times times; /* first: what the caller has */
	bool given[TESS_PIPELINE_KINDS];
	double stages[];
};

/* Returns the kind of a key; TESS_PIPELINE_KINDS: none. A receive has no duration. */
static int32_t find_timed_kind(const char *key)
{
	int32_t kind = 0;

	while (kind < TESS_PIPELINE_KINDS &&
	       (tess_schedule_is_receive(kind) || strcmp(key, tess_schedule_name_kind(kind)) != 0))
		kind++;
	return kind;
}

static tess_status read_duration(const char *path, const char *key, const json_t *value,
                                 double *out)
{
	double duration = json_is_number(value) ? json_number_value(value) : -1;

	if (!(duration >= 0 && duration < 1e30))
		return tess_fail(TESS_EINVAL, "%s: %s: a duration must be a number, 0 or more",
		                 path, key);
	*out = duration;
	return TESS_OK;
}

static tess_status read_stage_durations(const char *path, const char *key, const json_t *list,
                                        int32_t nstages, double *out)
{
	tess_status st = TESS_OK;

	if (json_array_size(list) != (size_t)nstages)
		return tess_fail(TESS_EINVAL,
		                 "%s: %s: has %zu durations, but the schedule has %d stages", path,
		                 key, json_array_size(list), (int)nstages);
	for (int32_t s = 0; s < nstages && !st; s++)
		st = read_duration(path, key, json_array_get(list, (size_t)s), &out[s]);
	return st;
}

static tess_status read_members(const struct tess_pipeline *p, const char *path, json_t *o,
                                struct read_times *t)
{
	tess_status st = TESS_OK;
	const char *key;
	json_t *value;

	if (!json_is_object(o))
		return tess_fail(TESS_EINVAL, "%s: must be an object such as {\"F\": 1, \"B\": 2}",
		                 path);
	json_object_foreach(o, key, value) {
		int32_t kind = find_timed_kind(key);
		double *stages = &t->stages[(int64_t)kind * p->nstages];

		if (kind == TESS_PIPELINE_KINDS)
			return tess_fail(TESS_EINVAL,
			                 "%s: %s: is no duration; use F, B, I, W, SEND_F, SEND_B",
			                 path, key);
		t->given[kind] = true;
		if (json_is_array(value)) {
			t->times.stages[kind] = stages;
			st = read_stage_durations(path, key, value, p->nstages, stages);
		} else {
			st = read_duration(path, key, value, &t->times.kinds[kind]);
		}
		if (st)
			return st;
	}
	return TESS_OK;
}

/* Checks that all computations of the schedule have a duration, or none; that is 1 then. */
static tess_status complete_computations(const struct tess_pipeline *p, const char *path,
                                         struct read_times *t)
{
	bool parts =
		t->given[TESS_PIPELINE_BACKWARD_INPUTS] && t->given[TESS_PIPELINE_BACKWARD_WEIGHTS];
	bool any = false;

	for (int32_t k = 0; k <= LAST_COMPUTATION; k++)
		any = any || t->given[k];
	for (int32_t k = 0; k <= LAST_COMPUTATION; k++) {
		if (t->given[k] || (k == TESS_PIPELINE_BACKWARD && (parts || !any)))
			continue;
		if (any && tess_schedule_has_kind(p, k))
			return tess_fail(TESS_EINVAL, "%s: lacks the duration of %s", path,
			                 tess_schedule_name_kind(k));
		t->times.kinds[k] = any ? 0 : 1;
	}
	return TESS_OK;
}

tess_status tess_pipeline_read_times(const struct tess_pipeline *p, const char *path,
                                     struct tess_pipeline_times **out)
{
	tess_status st = TESS_REQUIRE(p, path, out);
	struct read_times *t = NULL;
	json_t *o = NULL;

	if (!st)
		st = tess_json_load(path, TIMES_MAX, &o);
	if (st)
		return st;
	t = calloc(1, sizeof *t + sizeof(double) * TESS_PIPELINE_KINDS * (size_t)p->nstages);
	st = t ? read_members(p, path, o, t)
	       : tess_fail(TESS_ENOMEM, "out of memory for the durations of %s", path);
	json_decref(o);
	if (!st)
		st = complete_computations(p, path, t);
	if (st)
		free(t);
	else
		*out = &t->times;
	return st;
}

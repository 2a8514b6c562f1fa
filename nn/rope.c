#include "nn/rope.h"

#include "core/base/json.h"
#include "core/base/math.h"
#include "core/base/status.h"

#include <stdio.h>
#include <string.h>

static const double pi = 0x1.921fb54442d18p+1;

enum { WHERE = 4096 };

/* The object that holds the settings, or NULL. Appends its key to `where`, for sentences. */
static tess_status find_settings(const json_t *config, const json_t **out, char where[static WHERE])
{
	static const char *const keys[] = { "rope_scaling", "rope_parameters" };
	const size_t len = strlen(where);
	const char *key;
	json_t *value;

	for (int i = 0; i < 2; i++) {
		json_t *table = json_object_get(config, keys[i]);

		if (!table || json_is_null(table) ||
		    (json_is_object(table) && !json_object_size(table)))
			continue;
		snprintf(where + len, WHERE - len, ": %s", keys[i]);
		if (!json_is_object(table))
			return tess_fail(TESS_EINVAL, "%s: an object or null is needed", where);
		json_object_foreach(table, key, value) {
			if (json_is_object(value))
				return tess_fail(
					TESS_ENOTSUP,
					"%s: %.64s: settings per layer type are not supported; one "
					"for all layers is",
					where, key);
		}
		*out = table;
		return TESS_OK;
	}
	return TESS_OK;
}

/* Older configs write `type` for `rope_type`. */
static tess_status read_rope_type(const json_t *table, const char *where, int32_t *out)
{
	json_t *name = json_object_get(table, "rope_type");
	const char *text;

	if (!name)
		name = json_object_get(table, "type");
	if (!name || json_is_null(name)) {
		*out = TESS_ROPE_DEFAULT;
		return TESS_OK;
	}
	text = json_string_value(name);
	if (!text)
		return tess_fail(TESS_EINVAL, "%s: rope_type: text is needed", where);
	if (!strcmp(text, "default"))
		*out = TESS_ROPE_DEFAULT;
	else if (!strcmp(text, "llama3"))
		*out = TESS_ROPE_LLAMA3;
	else
		return tess_fail(TESS_ENOTSUP,
		                 "%s: rope_type \"%.64s\" is not supported; default and llama3 are",
		                 where, text);
	return TESS_OK;
}

static tess_status read_llama3(const char *path, const json_t *config, const json_t *table,
                               const char *where, struct tess_rope *r)
{
	const double max = 1e9;
	tess_status st;

	st = tess_json_get_number(where, table, "factor", 1, max, &r->factor);
	if (!st)
		st = tess_json_get_number(where, table, "low_freq_factor", 1e-9, max, &r->low);
	if (!st)
		st = tess_json_get_number(where, table, "high_freq_factor", 1e-9, max, &r->high);
	if (!st)
		st = tess_json_get_int(path, config, "original_max_position_embeddings", 1,
		                       INT32_MAX, &r->original);
	if (!st)
		st = tess_json_get_int(where, table, "original_max_position_embeddings", 1,
		                       INT32_MAX, &r->original);
	if (st)
		return st;
	if (r->factor == 0 || r->low == 0 || r->high == 0 || r->original == 0)
		return tess_fail(
			TESS_EINVAL,
			"%s: rope_type llama3 needs factor, low_freq_factor, high_freq_factor and "
			"original_max_position_embeddings",
			where);
	if (r->low >= r->high)
		return tess_fail(TESS_EINVAL,
		                 "%s: low_freq_factor %g is not below high_freq_factor %g", where,
		                 r->low, r->high);
	return TESS_OK;
}

tess_status tess_rope_read(const char *dir, const json_t *config, struct tess_rope *out)
{
	const double min_theta = 1, max_theta = 1e30;
	struct tess_rope r = { .type = TESS_ROPE_DEFAULT, .theta = 10000 };
	char path[WHERE], where[WHERE];
	const json_t *table = NULL;
	double part = 1;
	tess_status st;

	snprintf(path, sizeof path, "%.3900s/config.json", dir);
	memcpy(where, path, sizeof where);
	st = find_settings(config, &table, where);
	if (!st)
		st = read_rope_type(table, where, &r.type);
	if (!st)
		st = tess_json_get_number(path, config, "rope_theta", min_theta, max_theta,
		                          &r.theta);
	if (!st)
		st = tess_json_get_number(where, table, "rope_theta", min_theta, max_theta,
		                          &r.theta);
	if (!st)
		st = tess_json_get_number(path, config, "partial_rotary_factor", 0, 1, &part);
	if (!st)
		st = tess_json_get_number(where, table, "partial_rotary_factor", 0, 1, &part);
	if (!st && part != 1)
		st = tess_fail(
			TESS_ENOTSUP,
			"%s: partial_rotary_factor %g: only heads that are rotated as a whole (1) "
			"are "
			"supported",
			where, part);
	if (!st && r.type == TESS_ROPE_LLAMA3)
		st = read_llama3(path, config, table, where, &r);
	if (!st)
		*out = r;
	return st;
}

/* f_i, with the roundings of transformers' float32 tensors (modeling_rope_utils.py). */
static float compute_frequency(const struct tess_rope *r, int64_t i, int64_t each)
{
	float power = (float)tess_pow_f64((float)r->theta, (float)(2 * i) / (float)each),
	      f = 1 / power;
	float wave = 1 / f * (float)(2 * pi), smooth;

	if (r->type != TESS_ROPE_LLAMA3 || wave < (float)((double)r->original / r->high))
		return f;
	if (wave > (float)((double)r->original / r->low))
		return f / (float)r->factor;
	smooth = (1 / wave * (float)r->original - (float)r->low) / (float)(r->high - r->low);
	return (1 - smooth) * f / (float)r->factor + smooth * f;
}

tess_status tess_rope_fill_table(const struct tess_rope *r, int64_t each, int64_t positions,
                                 float *out)
{
	const int64_t half = each / 2;

	if (each < 2 || each % 2 || each > 1 << 20 || positions < 0 || positions > INT32_MAX)
		return tess_fail(
			TESS_EINVAL,
			"rope: heads of %lld elements and %lld positions; an even number of "
			"elements and "
			"at most %d positions are needed",
			(long long)each, (long long)positions, INT32_MAX);
	for (int64_t i = 0; i < half; i++) {
		double f = compute_frequency(r, i, each);

		for (int64_t at = 0; at < positions; at++) {
			out[at * each + i] = (float)tess_cos_f64((double)at * f);
			out[at * each + half + i] = (float)tess_sin_f64((double)at * f);
		}
	}
	return TESS_OK;
}

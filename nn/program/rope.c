#include "nn/program/rope.h"

#include "core/base/json.h"
#include "core/base/math.h"
#include "core/base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double pi = 0x1.921fb54442d18p+1;

enum { WHERE = 4096 };

/* Replaces a table of settings per kind of layer by those of `kind`; NULL: it may have none. */
static tess_status select_kind(const json_t **table, const char *kind, char where[static WHERE])
{
	size_t len = strlen(where);
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)*table, key, value) {
		if (!json_is_object(value))
			continue;
		if (!kind)
			return tess_fail(TESS_ENOTSUP,
			                 "%s: %.64s: settings per layer type are not supported by "
			                 "this model; one for all layers is",
			                 where, key);
		if (!json_is_object(json_object_get(*table, kind)))
			return tess_fail(TESS_EINVAL, "%s: no settings of %s layers are there",
			                 where, kind);
		*table = json_object_get(*table, kind);
		snprintf(where + len, WHERE - len, ".%s", kind);
		return TESS_OK;
	}
	return TESS_OK;
}

/* Finds the object with the settings, or NULL. Appends its key to `where`, for messages. */
static tess_status find_settings(const json_t *config, const char *kind, const json_t **out,
                                 char where[static WHERE])
{
	static const char *const keys[] = { "rope_scaling", "rope_parameters" };
	const size_t len = strlen(where);

	for (int i = 0; i < 2; i++) {
		json_t *table = json_object_get(config, keys[i]);

		if (!table || json_is_null(table) ||
		    (json_is_object(table) && !json_object_size(table)))
			continue;
		snprintf(where + len, WHERE - len, ": %s", keys[i]);
		if (!json_is_object(table))
			return tess_fail(TESS_EINVAL, "%s: an object or null is needed", where);
		*out = table;
		return select_kind(out, kind, where);
	}
	return TESS_OK;
}

/* Reads rope_type, or `type` in older configs. */
static tess_status read_rope_type(const json_t *table, const char *where, int32_t *out,
                                  bool *dynamic)
{
	static const struct {
		const char *name;
		int32_t type;
	} known[] = { { "default", TESS_ROPE_DEFAULT },   { "linear", TESS_ROPE_LINEAR },
		      { "llama3", TESS_ROPE_LLAMA3 },     { "yarn", TESS_ROPE_YARN },
		      { "longrope", TESS_ROPE_LONGROPE }, { "su", TESS_ROPE_LONGROPE } };
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
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(text, known[i].name)) {
			*out = known[i].type;
			/* the name in early Phi 3 checkpoints */
			if (*out == TESS_ROPE_YARN && json_object_get(table, "short_factor"))
				*out = TESS_ROPE_LONGROPE;
			return TESS_OK;
		}
	if (!strcmp(text, "dynamic")) { /* unscaled up to the trained context length */
		*out = TESS_ROPE_DEFAULT;
		*dynamic = true;
		return TESS_OK;
	}
	return tess_fail(TESS_ENOTSUP,
	                 "%s: rope_type \"%.64s\" is not supported; default, linear, dynamic, "
	                 "llama3, yarn and longrope are",
	                 where, text);
}

static const double number_min = 1e-9, number_max = 1e9;

/* Reads the trained context length as transformers 5: from config.json, or from the table. */
static tess_status read_original_length(const char *path, const json_t *config, const json_t *table,
                                        const char *where, int64_t *out)
{
	static const char key[] = "original_max_position_embeddings";
	tess_status st = tess_json_get_int(where, table, key, 1, INT32_MAX, out);

	return st ? st : tess_json_get_int(path, config, key, 1, INT32_MAX, out);
}

static tess_status read_llama3(const char *path, const json_t *config, const json_t *table,
                               const char *where, struct tess_rope *r)
{
	tess_status st;

	st = tess_json_get_number(where, table, "low_freq_factor", number_min, number_max, &r->low);
	if (!st)
		st = tess_json_get_number(where, table, "high_freq_factor", number_min, number_max,
		                          &r->high);
	if (!st)
		st = read_original_length(path, config, table, where, &r->original);
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

/* Computes the factor of attention for `factor` times the trained context length. */
static double compute_mscale(double factor, double mscale)
{
	return factor <= 1 ? 1 : 0.1 * mscale * tess_log_f64(factor) + 1;
}

static tess_status read_yarn_scale(const json_t *table, const char *where, struct tess_rope *r)
{
	double mscale = 0, all = 0, scale = 0;
	tess_status st;

	st = tess_json_get_number(where, table, "attention_factor", number_min, number_max, &scale);
	if (!st)
		st = tess_json_get_number(where, table, "mscale", 0, number_max, &mscale);
	if (!st)
		st = tess_json_get_number(where, table, "mscale_all_dim", 0, number_max, &all);
	r->scale = scale != 0 ? scale
	           : mscale != 0 && all != 0
	                   ? compute_mscale(r->factor, mscale) / compute_mscale(r->factor, all)
	                   : compute_mscale(r->factor, 1);
	return st;
}

static tess_status read_yarn(const char *path, const json_t *config, const json_t *table,
                             const char *where, struct tess_rope *r)
{
	bool truncate = true;
	tess_status st;

	r->low = 1;
	r->high = 32;
	st = tess_json_get_number(where, table, "beta_slow", number_min, number_max, &r->low);
	if (!st)
		st = tess_json_get_number(where, table, "beta_fast", number_min, number_max,
		                          &r->high);
	if (!st)
		st = tess_json_get_int(path, config, "max_position_embeddings", 1, INT32_MAX,
		                       &r->original);
	if (!st)
		st = read_original_length(path, config, table, where, &r->original);
	if (!st)
		st = tess_json_get_bool(where, table, "truncate", &truncate);
	if (!st)
		st = read_yarn_scale(table, where, r);
	r->fractions = !truncate;
	if (st)
		return st;
	if (r->factor == 0 || r->original == 0)
		return tess_fail(
			TESS_EINVAL,
			"%s: rope_type yarn needs factor, and original_max_position_embeddings or "
			"max_position_embeddings",
			where);
	if (r->low >= r->high || r->theta <= 1)
		return tess_fail(TESS_EINVAL,
		                 "%s: rope_type yarn needs a beta_slow (%g) below beta_fast (%g) "
		                 "and a rope_theta (%g) above 1",
		                 where, r->low, r->high, r->theta);
	return TESS_OK;
}

/* Reads a number per angle; long_factor is for sequences beyond the trained context length. */
static tess_status read_longrope(const char *path, const json_t *config, const json_t *table,
                                 const char *where, struct tess_rope *r)
{
	int64_t max = 0;
	size_t i;
	json_t *number;
	tess_status st =
		tess_json_get_int(path, config, "max_position_embeddings", 1, INT32_MAX, &max);

	r->original = max;
	if (!st)
		st = read_original_length(path, config, table, where, &r->original);
	if (!st)
		st = tess_json_get_number(where, table, "attention_factor", number_min, number_max,
		                          &r->scale);
	if (st)
		return st;
	r->factors = json_object_get(table, "short_factor");
	json_array_foreach(r->factors, i, number)
		if (json_number_value(number) < number_min)
			r->factors = NULL;
	if (!json_is_array(r->factors) || r->original < 2)
		return tess_fail(
			TESS_EINVAL,
			"%s: rope_type longrope needs short_factor, a list of numbers above "
			"0, and original_max_position_embeddings or "
			"max_position_embeddings",
			where);
	if (r->factor == 0 && max)
		r->factor = (double)max / (double)r->original;
	if (!json_object_get(table, "attention_factor") && r->factor > 1)
		r->scale = sqrt(1 + tess_log_f64(r->factor) / tess_log_f64((double)r->original));
	r->limit = r->original;
	return TESS_OK;
}

static tess_status read_scaling(const char *path, const json_t *config, const json_t *table,
                                const char *where, struct tess_rope *r)
{
	tess_status st = tess_json_get_number(where, table, "factor", 1, number_max, &r->factor);

	if (!st && r->type == TESS_ROPE_LLAMA3)
		return read_llama3(path, config, table, where, r);
	if (!st && r->type == TESS_ROPE_YARN)
		return read_yarn(path, config, table, where, r);
	if (!st && r->type == TESS_ROPE_LONGROPE)
		return read_longrope(path, config, table, where, r);
	if (!st && r->factor == 0)
		return tess_fail(TESS_EINVAL, "%s: rope_type linear needs factor", where);
	return st;
}

/* Reads a number by its name, or by its name in configs of GPT-NeoX; the table has the new ones. */
static tess_status read_either(const char *path, const json_t *config, const char *old,
                               const char *where, const json_t *table, const char *name, double min,
                               double max, double *out)
{
	tess_status st = tess_json_get_number(path, config, old, min, max, out);

	if (!st)
		st = tess_json_get_number(path, config, name, min, max, out);
	return st ? st : tess_json_get_number(where, table, name, min, max, out);
}

/*
 * Reads `alpha` of HunYuan, which raises theta once; "dynamic" then has no other meaning. As in
 * modeling_hunyuan_v1_dense.py of transformers: theta * alpha^(d / (d - 2)), heads of d elements.
 */
static tess_status read_alpha(const json_t *table, const char *where, double *alpha, bool *dynamic)
{
	tess_status st = tess_json_get_number(where, table, "alpha", number_min, number_max, alpha);

	if (!st && json_is_number(json_object_get(table, "alpha")))
		*dynamic = false;
	return st;
}

tess_status tess_rope_read(const char *dir, const json_t *config, const char *kind, double theta,
                           struct tess_rope *out)
{
	const double min_theta = 1, max_theta = 1e30;
	struct tess_rope r = { .type = TESS_ROPE_DEFAULT, .theta = 10000, .scale = 1, .part = 1 };
	char path[WHERE], where[WHERE];
	const json_t *table = NULL, *all;
	bool dynamic = false;
	tess_status st;

	snprintf(path, sizeof path, "%.3900s/config.json", dir);
	memcpy(where, path, sizeof where);
	st = find_settings(config, kind, &table, where);
	all = json_object_get(config, "rope_parameters");
	if (!st && theta > 0 && (!table || !json_object_get(all, kind))) {
		r.theta = theta;
		*out = r;
		return TESS_OK;
	}
	if (!st)
		st = read_rope_type(table, where, &r.type, &dynamic);
	if (!st && dynamic)
		st = read_alpha(table, where, &r.alpha, &dynamic);
	if (!st)
		st = read_either(path, config, "rotary_emb_base", where, table, "rope_theta",
		                 min_theta, max_theta, &r.theta);
	if (!st)
		st = read_either(path, config, "rotary_pct", where, table, "partial_rotary_factor",
		                 0, 1, &r.part);
	if (!st && r.type != TESS_ROPE_DEFAULT)
		st = read_scaling(path, config, table, where, &r);
	if (!st && dynamic)
		st = tess_json_get_int(path, config, "max_position_embeddings", 1, INT32_MAX,
		                       &r.limit);
	if (!st && dynamic && !r.limit)
		st = tess_fail(TESS_EINVAL, "%s: rope_type dynamic needs max_position_embeddings",
		               where);
	if (!st)
		*out = r;
	return st;
}

tess_status tess_rope_check(const char *dir, const struct tess_rope *r, int64_t each,
                            int64_t positions)
{
	if (r->limit && (!positions || positions > r->limit))
		return tess_fail(
			TESS_ENOTSUP,
			"%s/config.json: rope_type %s: beyond %lld positions the table "
			"depends on the length of the text so far, which is not supported; "
			"reserve no more for a text (--positions %lld)",
			dir, r->factors ? "longrope" : "dynamic", (long long)r->limit,
			(long long)r->limit);
	if (r->factors && (int64_t)json_array_size(r->factors) != each / 2)
		return tess_fail(TESS_EINVAL,
		                 "%s/config.json: short_factor has %zu numbers, and %lld angles "
		                 "are rotated",
		                 dir, json_array_size(r->factors), (long long)(each / 2));
	return TESS_OK;
}

static float scale_llama3(const struct tess_rope *r, float f)
{
	float wave = 1 / f * (float)(2 * pi), smooth;

	if (wave < (float)((double)r->original / r->high))
		return f;
	if (wave > (float)((double)r->original / r->low))
		return f / (float)r->factor;
	smooth = (1 / wave * (float)r->original - (float)r->low) / (float)(r->high - r->low);
	return (1 - smooth) * f / (float)r->factor + smooth * f;
}

/* Returns the real index whose angle turns this often in the trained context length. */
static double find_index_of_turns(const struct tess_rope *r, double turns, int64_t each)
{
	return (double)each * tess_log_f64((double)r->original / (turns * 2 * pi)) /
	       (2 * tess_log_f64(r->theta));
}

/* Scales 1 / `power`: fast angles stay, slow ones are divided by the factor, with a ramp. */
static float scale_yarn(const struct tess_rope *r, float power, int64_t i, int64_t each)
{
	double low = find_index_of_turns(r, r->high, each),
	       high = find_index_of_turns(r, r->low, each);
	float ramp, keep;

	low = fmax(r->fractions ? low : floor(low), 0);
	high = fmin(r->fractions ? high : ceil(high), (double)(each - 1));
	if (low == high)
		high += 0.001;
	ramp = ((float)i - (float)low) / (float)(high - low);
	keep = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
	return 1 / ((float)r->factor * power) * (1 - keep) + 1 / power * keep;
}

/* Computes f_i, with the roundings of transformers' float32 tensors (modeling_rope_utils.py). */
static float compute_frequency(const struct tess_rope *r, int64_t i, int64_t each)
{
	double raise = r->alpha == 0 || each == 2
	                       ? 1
	                       : tess_pow_f64(r->alpha, (double)each / (double)(each - 2));
	float theta = (float)(r->theta * raise);
	float power = (float)tess_pow_f64(theta, (float)(2 * i) / (float)each), f = 1 / power;

	if (r->still)
		return 0;
	switch (r->type) {
	case TESS_ROPE_LINEAR:
		return f / (float)r->factor;
	case TESS_ROPE_LLAMA3:
		return scale_llama3(r, f);
	case TESS_ROPE_YARN:
		return scale_yarn(r, power, i, each);
	case TESS_ROPE_LONGROPE:
		return 1 /
		       ((float)json_number_value(json_array_get(r->factors, (size_t)i)) * power);
	default:
		return f;
	}
}

/* Returns the factor of a position, as llama_4_scaling of transformers. */
static double compute_growth(const struct tess_rope *r, double position)
{
	return r->growth == 0
	               ? 1
	               : 1 + r->growth * tess_log_f64(1 + floor((position + r->start) / r->period));
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
			double scale = r->scale * compute_growth(r, (double)at);

			out[at * each + i] = (float)(scale * tess_cos_f64((double)at * f));
			out[at * each + half + i] = (float)(scale * tess_sin_f64((double)at * f));
		}
	}
	return TESS_OK;
}

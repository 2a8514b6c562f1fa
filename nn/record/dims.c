/* dims.c - values of config.json and dimensions, which a model reads before it records. */
#include "core/base/status.h"
#include "nn/record/recorder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ----------------------------------------------------------------------------- */

/* Finds a key, or NULL; LIST.3 is element 3 of a list, OBJECT.KEY a key of an object. */
static const json_t *find_config_entry(struct tess_recorder *r, const char *key)
{
	const json_t *config = r->settings;
	const char *dot = strchr(key, '.');
	const json_t *in = dot ? json_object_getn(config, key, (size_t)(dot - key)) : config;

	return json_is_array(in) ? json_array_get(in, strtoul(dot + 1, NULL, 10))
	                         : json_object_get(in, dot ? dot + 1 : key);
}

static const json_t *get_config_entry(struct tess_recorder *r, const char *key)
{
	const json_t *v = key ? find_config_entry(r, key) : NULL;

	if (!key)
		tess_recorder_fail(r, TESS_EINVAL, "%s: a setting of config.json without a key",
		                   tess_recorder_format_path(r, NULL));
	return json_is_null(v) ? NULL : v;
}

int32_t tess_op_has(struct tess_nn *nn, const char *key)
{
	return find_config_entry((struct tess_recorder *)nn, key) != NULL;
}

/* Reads an integer of 32 bits: products of two stay below 2^62. */
int64_t tess_op_integer(struct tess_nn *nn, const char *key, int64_t preset)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	const json_t *v = get_config_entry(r, key);
	int64_t n = v ? json_integer_value(v) : preset;

	if (!v && preset == TESS_REQUIRED) {
		tess_recorder_fail(r, TESS_EINVAL, "%s: config.json: \"%s\" is missing",
		                   r->options->source->name, key);
		return 0;
	}
	if (!v || (json_is_integer(v) && n >= INT32_MIN && n <= INT32_MAX))
		return n;
	if (json_is_boolean(v))
		return json_is_true(v);
	tess_recorder_fail(r, TESS_EINVAL,
	                   "%s: config.json: \"%s\" must be an integer of 32 bits or a boolean",
	                   r->options->source->name, key);
	return preset;
}

double tess_op_number(struct tess_nn *nn, const char *key, double preset)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	const json_t *v = get_config_entry(r, key);

	if (!v || json_is_number(v))
		return v ? json_number_value(v) : preset;
	tess_recorder_fail(r, TESS_EINVAL, "%s: config.json: \"%s\" must be a number",
	                   r->options->source->name, key);
	return preset;
}

const char *tess_op_string(struct tess_nn *nn, const char *key, const char *preset)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	const json_t *v = get_config_entry(r, key);

	if (!v || json_is_string(v))
		return v ? json_string_value(v) : preset;
	tess_recorder_fail(r, TESS_EINVAL, "%s: config.json: \"%s\" must be a string",
	                   r->options->source->name, key);
	return preset;
}

int32_t tess_op_activation(struct tess_nn *nn, const char *key, const char *preset)
{
	static const struct {
		const char *name;
		int32_t act;
	} known[] = {
		{ "silu", TESS_SILU },
		{ "swish", TESS_SILU },
		{ "gelu", TESS_GELU },
		{ "gelu_new", TESS_GELU_TANH },
		{ "gelu_pytorch_tanh", TESS_GELU_TANH },
		{ "relu", TESS_RELU },
		{ "tanh", TESS_TANH },
	};
	const char *name = tess_op_string(nn, key, preset ? preset : "");

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i].name, name))
			return known[i].act;
	tess_recorder_fail((struct tess_recorder *)nn, TESS_ENOTSUP,
	                   "%s: config.json: \"%s\": \"%s\" is not known; use silu, gelu, "
	                   "gelu_pytorch_tanh, relu or tanh",
	                   ((struct tess_recorder *)nn)->options->source->name, key, name);
	return 0;
}

int32_t tess_op_choice(struct tess_nn *nn, const char *const *names, const char *fmt, ...)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	char key[64], list[256] = "";
	const char *text;
	va_list args;

	va_start(args, fmt);
	vsnprintf(key, sizeof key, fmt, args);
	va_end(args);
	text = json_string_value(get_config_entry(r, key));
	for (int32_t i = 0; names[i]; i++) {
		size_t len = strlen(list);

		if (text && !strcmp(text, names[i]))
			return i;
		snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", names[i]);
	}
	tess_recorder_fail(r, TESS_ENOTSUP,
	                   "%s: config.json: %s: \"%.64s\" is not supported here; use %s",
	                   r->options->source->name, key, text ? text : "(no text)", list);
	return 0;
}

/* ---- dims ------------------------------------------------------------------------------------ */

struct tess_dim *tess_dim_new(struct tess_recorder *r, const char *name, int64_t n, int64_t each)
{
	struct tess_dim *d;

	if (r->status)
		return NULL;
	if (n <= 0 || n > INT32_MAX || each > INT32_MAX / n)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: config.json: %s: a size of %lld x %lld",
		                          r->options->source->name, name, (long long)n,
		                          (long long)(each > 0 ? each : 1));
	d = TESS_NEW(&r->p->arena, struct tess_dim, 1);
	if (!d)
		return tess_recorder_keep_error(r, TESS_ENOMEM);
	*d = (struct tess_dim){ .name = name, .size = n, .base = d, .group = 1 };
	return d;
}

/* Counts units: the largest power of two up to 128 with 256 elements each; at least min(32, n). */
static int64_t count_element_units(int64_t n)
{
	int64_t units = 128;

	while (units > 32 && n / units < 256)
		units /= 2;
	return units;
}

struct tess_dim *tess_op_dim(struct tess_nn *nn, const char *name, int64_t n, int64_t each)
{
	struct tess_dim *d = tess_dim_new((struct tess_recorder *)nn, name, n, each);
	int64_t max_units = each == TESS_HIDDEN ? 8 : count_element_units(n);

	if (!d)
		return NULL;
	d->nunits = each > 0 ? n : n < max_units ? n : max_units;
	if (each > 0) {
		d->unit_size = each;
		d->size = n * each;
	}
	return d;
}

struct tess_dim *tess_dim_new_heads(struct tess_recorder *r, const char *name,
                                    const struct tess_dim *of, int64_t n, int64_t each)
{
	struct tess_dim *d = tess_dim_new(r, name, n, each);

	if (!d)
		return NULL;
	if (of->nparts || of->nunits % n)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: config.json: %lld %s do not divide %lld %s",
		                          r->options->source->name, (long long)n, name,
		                          (long long)of->nunits, of->name);
	d->nunits = n;
	d->unit_size = each;
	d->size = n * each;
	d->base = of->base;
	d->group = of->group * (of->nunits / n);
	return d;
}

struct tess_dim *tess_op_grouped(struct tess_nn *nn, const char *name, struct tess_dim *of,
                                 int64_t n)
{
	return tess_op_heads(nn, name, of, n, of ? of->unit_size : 0);
}

struct tess_dim *tess_op_heads(struct tess_nn *nn, const char *name, struct tess_dim *of, int64_t n,
                               int64_t each)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;

	if (r->status)
		return NULL;
	if (!of || each <= 0)
		return tess_recorder_fail(
			r, TESS_EINVAL, "%s: config.json: %s: %s", r->options->source->name, name,
			of ? "heads without elements" : "heads of no other dimension");
	return tess_dim_new_heads(r, name, of, n, each);
}

struct tess_dim *tess_op_fused(struct tess_nn *nn, struct tess_dim *const *parts)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	const struct tess_dim **list;
	struct tess_dim *d;
	int64_t n = 0;

	while (!r->status && parts && parts[n])
		n++;
	if (!n)
		return tess_recorder_fail(r, TESS_EINVAL,
		                          "%s: a fused dimension without parts; they end with NULL",
		                          tess_recorder_format_path(r, NULL));
	list = TESS_NEW(&r->p->arena, const struct tess_dim *, n);
	d = tess_dim_new(r, parts[0]->name, parts[0]->size, 0);
	if (!d || !list)
		return NULL;
	d->size = 0;
	d->base = NULL;
	d->nparts = n;
	d->parts = list;
	for (int64_t i = 0; i < n; i++) {
		if (parts[i]->nparts)
			return tess_recorder_fail(r, TESS_ENOTSUP,
			                          "%s: a part of a fused dimension that is fused "
			                          "itself; list its parts instead",
			                          parts[i]->name);
		list[i] = parts[i];
		d->size += parts[i]->size;
		if (i)
			d->name = tess_arena_format(&r->p->arena, "%s+%s", d->name, parts[i]->name);
		if (!d->name)
			return tess_recorder_keep_error(r, TESS_ENOMEM);
	}
	return d;
}

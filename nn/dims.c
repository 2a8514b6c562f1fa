/* dims.c - what a model asks before it records: the numbers of config.json, and its dimensions. */
#include "record.h"

#include "core/base/status.h"

#include <string.h>

/* ---- config.json ------------------------------------------------------------------------------------ */

static const json_t *entry(struct tess_recorder *r, const char *key)
{
	const json_t *v = json_object_get(r->how->source->config, key);

	return json_is_null(v) ? NULL : v;
}

int64_t tess_op_integer(struct tess_nn *nn, const char *key, int64_t preset)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	const json_t *v = entry(r, key);

	if (!v || json_is_integer(v))
		return v ? json_integer_value(v) : preset;
	if (json_is_boolean(v))
		return json_is_true(v);
	tess_refuse(r, TESS_EINVAL, "%s: config.json: \"%s\" must be an integer",
	            r->how->source->name, key);
	return preset;
}

double tess_op_number(struct tess_nn *nn, const char *key, double preset)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	const json_t *v = entry(r, key);

	if (!v || json_is_number(v))
		return v ? json_number_value(v) : preset;
	tess_refuse(r, TESS_EINVAL, "%s: config.json: \"%s\" must be a number",
	            r->how->source->name, key);
	return preset;
}

const char *tess_op_string(struct tess_nn *nn, const char *key, const char *preset)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	const json_t *v = entry(r, key);

	if (!v || json_is_string(v))
		return v ? json_string_value(v) : preset;
	tess_refuse(r, TESS_EINVAL, "%s: config.json: \"%s\" must be a string",
	            r->how->source->name, key);
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
	};
	const char *name = tess_op_string(nn, key, preset);

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i].name, name))
			return known[i].act;
	tess_refuse((struct tess_recorder *)nn, TESS_ENOTSUP,
	            "%s: config.json: \"%s\": \"%s\" is not known; use silu, gelu, "
	            "gelu_pytorch_tanh or relu",
	            ((struct tess_recorder *)nn)->how->source->name, key, name);
	return 0;
}

/* ---- dims -------------------------------------------------------------------------------------------- */

struct tess_dim *tess_new_dim(struct tess_recorder *r, const char *name, int64_t n, int64_t each)
{
	struct tess_dim *d;

	if (r->status)
		return NULL;
	if (n <= 0 || n > INT32_MAX || each > INT32_MAX / n)
		return tess_refuse(r, TESS_EINVAL, "%s: config.json: %s: a size of %lld x %lld",
		                   r->how->source->name, name, (long long)n,
		                   (long long)(each > 0 ? each : 1));
	d = TESS_NEW(&r->p->arena, struct tess_dim, 1);
	if (!d)
		return tess_stick(r, TESS_ENOMEM);
	*d = (struct tess_dim){ .name = name, .size = n, .base = d, .group = 1 };
	return d;
}

struct tess_dim *tess_op_dim(struct tess_nn *nn, const char *name, int64_t n, int64_t each)
{
	struct tess_dim *d = tess_new_dim((struct tess_recorder *)nn, name, n, each);
	int64_t most = each == TESS_HIDDEN ? 8 : 32;

	if (!d)
		return NULL;
	d->count = each > 0 ? n : n < most ? n : most;
	if (each > 0) {
		d->each = each;
		d->size = n * each;
	}
	return d;
}

struct tess_dim *tess_op_grouped(struct tess_nn *nn, const char *name, struct tess_dim *of,
                                int64_t n)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	struct tess_dim *d = of ? tess_new_dim(r, name, n, of->each) : NULL;

	if (!d)
		return NULL;
	if (of->count % n)
		return tess_refuse(r, TESS_EINVAL, "%s: config.json: %lld %s do not divide %lld %s",
		                   r->how->source->name, (long long)n, name, (long long)of->count,
		                   of->name);
	d->count = n;
	d->each = of->each;
	d->size = n * of->each;
	d->base = of;
	d->group = of->count / n;
	return d;
}

struct tess_dim *tess_op_fused(struct tess_nn *nn, struct tess_dim *const *parts)
{
	struct tess_recorder *r = (struct tess_recorder *)nn;
	const struct tess_dim **list;
	struct tess_dim *d;
	int64_t n = 0;

	while (!r->status && parts[n])
		n++;
	if (!n)
		return NULL;
	list = TESS_NEW(&r->p->arena, const struct tess_dim *, n);
	d = tess_new_dim(r, parts[0]->name, parts[0]->size, 0);
	if (!d || !list)
		return NULL;
	d->size = 0;
	d->base = NULL;
	d->nparts = n;
	d->parts = list;
	for (int64_t i = 0; i < n; i++) {
		list[i] = parts[i];
		d->size += parts[i]->size;
		if (i)
			d->name = tess_arena_format(&r->p->arena, "%s+%s", d->name, parts[i]->name);
	}
	return d;
}

/*
 * wrapped_device.c - the table of a device around another one, "mine:cpu": ops that the wrapper
 * supports run there, everything else is the inner device's. supports(), run() and fuses() get no
 * pointer to the table that they belong to, so each wrapped device has functions of its own.
 */
#include "core/registry/file.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"

#include <string.h>

/* A function appended to struct tess_device that runs ops must choose the device as run() does. */
TESS_ASSERT(sizeof(struct tess_device) == TESS_UPTO(tess_device, host_free), "a new field");

static struct wrapped_device {
	const struct tess_device *outer; /* the table of the wrapper's file, for messages */
	const struct tess_device *inner;
	struct tess_device own; /* the table of its wrap() */
} wrapped[16];
static size_t nwrapped;

/* ---- ops ------------------------------------------------------------------------------------- */

/* Returns TESS_OK if the wrapper runs the op, TESS_ENOTSUP if the inner device does. */
static tess_status query_wrapper(const struct wrapped_device *w, const struct tess_op *op)
{
	tess_status st;

	tess_error_clear();
	st = TESS_PLUGIN_NOTED(TESS_STATE_FLOAT, w->outer, "supports", op->where,
	                       tess_plugin_get_what(), 0, w->own.supports(op));
	return st == TESS_OK || st == TESS_ENOTSUP
	               ? st
	               : tess_plugin_check_status(w->outer, w->outer->name, "supports", NULL, st);
}

static tess_status wrapped_supports(const struct wrapped_device *w, const struct tess_op *op)
{
	tess_status st = query_wrapper(w, op);

	return st == TESS_ENOTSUP ? TESS_PLUGIN_CALL_QUICK(w->inner, op->where, supports, op) : st;
}

/* A fused step has no op of the wrapper: wrapped_fuses() has checked it. */
static tess_status wrapped_run(const struct wrapped_device *w, void *self, const struct tess_op *op)
{
	tess_status st = op->next ? TESS_ENOTSUP : query_wrapper(w, op);

	if (st == TESS_ENOTSUP)
		return TESS_PLUGIN_CALL_FOR(w->inner, op->where, tess_plugin_get_what(), run, self,
		                            op);
	if (st)
		return st;
	st = TESS_PLUGIN_NOTED(TESS_STATE_FLOAT, w->outer, "run", op->where, tess_plugin_get_what(),
	                       0, w->own.run(self, op));
	return tess_plugin_check_returned(w->outer, w->outer->name, "run", NULL, st);
}

static int32_t wrapped_fuses(const struct wrapped_device *w, const struct tess_op *op)
{
	for (const struct tess_op *o = op; o; o = o->next)
		if (query_wrapper(w, o) != TESS_ENOTSUP)
			return 0;
	return TESS_PLUGIN_VALUE_QUICK(w->inner, op->where, fuses, op);
}

/* ---- tables ---------------------------------------------------------------------------------- */

#define FUNCTIONS_OF(i) \
	static tess_status wrapped_supports_##i(const struct tess_op *op) \
	{ \
		return wrapped_supports(&wrapped[i], op); \
	} \
	static tess_status wrapped_run_##i(void *self, const struct tess_op *op) \
	{ \
		return wrapped_run(&wrapped[i], self, op); \
	} \
	static int32_t wrapped_fuses_##i(const struct tess_op *op) \
	{ \
		return wrapped_fuses(&wrapped[i], op); \
	}
#define ROW_OF(i) { wrapped_supports_##i, wrapped_run_##i, wrapped_fuses_##i },
/* clang-format off */
#define FOR_EACH_WRAPPED(m) \
	m(0) m(1) m(2) m(3) m(4) m(5) m(6) m(7) m(8) m(9) m(10) m(11) m(12) m(13) m(14) m(15)
/* clang-format on */

FOR_EACH_WRAPPED(FUNCTIONS_OF)

static const struct {
	tess_status (*supports)(const struct tess_op *op);
	tess_status (*run)(void *self, const struct tess_op *op);
	int32_t (*fuses)(const struct tess_op *op);
} functions_of[] = { FOR_EACH_WRAPPED(ROW_OF) };
TESS_ASSERT(sizeof functions_of / sizeof *functions_of == sizeof wrapped / sizeof *wrapped,
            "functions");

tess_status tess_wrapped_device_check(const struct tess_device *own,
                                      const struct tess_device *inner)
{
	if (!own || own->size < TESS_UPTO(tess_device, fuses) || !own->supports || !own->run)
		return tess_fail(TESS_EABI,
		                 "wrap() gave no table with supports and run: a bug in the plugin");
	if (own->fuses)
		return tess_fail(TESS_EABI, "the table of wrap() has fuses: a wrapper runs single "
		                            "ops; leave it NULL");
	if (own->mem && own->mem != inner->mem)
		return tess_fail(TESS_ENOTSUP,
		                 "the wrapper computes on memory of kind %d, and %s has memory of "
		                 "kind %d (host: %d, CUDA: %d)",
		                 (int)own->mem, inner->name, (int)inner->mem, TESS_HOST, TESS_CUDA);
	if (own->layout && own->layout != inner->layout)
		return tess_fail(TESS_ENOTSUP,
		                 "weights are in the layout of %s; leave `layout` of the wrapper 0",
		                 inner->name);
	if (inner->exact && !own->exact)
		return tess_fail(TESS_ENOTSUP,
		                 "%s is exact, and the wrapper is not; if its ops have no sums, or "
		                 "add in the order of tessera/split.h, set `exact` of its table",
		                 inner->name);
	return TESS_OK;
}

/* Replaces the fields of *out, from the first function on, by those of `own` that are not 0. */
static void replace_fields(struct tess_device *out, const struct tess_device *own)
{
	void *field;

	for (size_t at = offsetof(struct tess_device, count); at < sizeof *own;
	     at += sizeof field) {
		memcpy(&field, (const char *)own + at, sizeof field);
		if (field)
			memcpy((char *)out + at, &field, sizeof field);
	}
}

tess_status tess_wrapped_device_complete(const struct tess_device *outer,
                                         const struct tess_device *own,
                                         const struct tess_device *inner, const char *name,
                                         struct tess_device *out)
{
	struct wrapped_device *w = &wrapped[nwrapped];

	if (nwrapped == sizeof wrapped / sizeof *wrapped)
		return tess_fail(TESS_ENOTSUP, "device %s: this process wraps %zu devices already",
		                 name, nwrapped);
	*w = (struct wrapped_device){ .outer = outer, .inner = inner };
	memcpy(&w->own, own, own->size < sizeof *own ? own->size : sizeof *own);
	*out = *inner;
	replace_fields(out, &w->own);
	out->name = name;
	out->summary = outer->summary;
	out->layout = inner->layout;
	out->exact = inner->exact;
	out->supports = functions_of[nwrapped].supports;
	out->run = functions_of[nwrapped].run;
	out->fuses = inner->fuses ? functions_of[nwrapped].fuses : NULL;
	out->wrap = NULL;
	out->rounds = NULL; /* the wrapper's ops have f32 rows */
	nwrapped++;
	return TESS_OK;
}

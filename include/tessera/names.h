/*
 * tessera/names.h - names of calls, element types, operations and placements, for messages and
 * options.
 *
 * Only inline functions. They never return NULL: an unknown number is "no call", "no dtype" or
 * "no op". Names are static.
 *
 * Example:
 *     static void print_call(const struct tess_coll *c)
 *     {
 *             printf("%s of %s", tess_kind_name(c->kind), tess_dtype_name(c->dtype));
 *     }
 */
#ifndef TESSERA_NAMES_H
#define TESSERA_NAMES_H

#include <stdio.h>
#include <tessera/group.h>
#include <tessera/style.h>

/* Returns names[i], or names[0] unless 0 < i < n. */
static inline const char *tess_name_of(const char *const *names, int32_t n, int32_t i)
{
	return names[i > 0 && i < n ? i : 0];
}

/* Returns the name of a kind of call: "all_reduce". */
static inline const char *tess_kind_name(int32_t kind)
{
	static const char *const names[] = {
		"no call",    "barrier", "broadcast",      "reduce",     "all_reduce", "gather",
		"all_gather", "scatter", "reduce_scatter", "all_to_all", "send",       "recv",
	};

	return tess_name_of(names, TESS_RECV + 1, kind);
}

/* Returns the name of an element type: "f32". */
static inline const char *tess_dtype_name(int32_t dtype)
{
	static const char *const names[] = {
		"no dtype", "f32", "f64", "bf16", "f16", "i64", "i32", "i8", "u8",
	};

	return dtype == TESS_Q8      ? "q8"
	       : dtype == TESS_BF12  ? "bf12"
	       : dtype == TESS_MXFP4 ? "mxfp4"
	                             : tess_name_of(names, TESS_U8 + 1, dtype);
}

/* Returns the name of an operation of reductions: "sum". */
static inline const char *tess_reduce_op_name(int32_t op)
{
	static const char *const names[] = {
		"no op", "sum", "prod", "min", "max", "band", "bor", "bxor",
	};

	return tess_name_of(names, TESS_BXOR + 1, op);
}

/* Bytes of the longest formatted placement, with its 0. */
enum { TESS_PLACE_SIZE = 24 };

/*
 * Formats a placement: "Replicate", "Shard(1)", "Stage(0)", "Partial", "Partial(max)", "as is".
 * Returns `text` or a static string.
 */
static inline const char *tess_place_format(struct tess_place p, char text[TESS_PLACE_SIZE])
{
	switch (p.kind) {
	case TESS_REPLICATE:
		return "Replicate";
	case TESS_PARTIAL:
		if (p.op <= TESS_SUM)
			return "Partial";
		snprintf(text, TESS_PLACE_SIZE, "Partial(%s)", tess_reduce_op_name(p.op));
		return text;
	case TESS_SHARD:
	case TESS_STAGE:
		snprintf(text, TESS_PLACE_SIZE, "%s(%d)", p.kind == TESS_SHARD ? "Shard" : "Stage",
		         (int)p.dim);
		return text;
	default:
		return "as is";
	}
}

#endif

/*
 * tessera/names.h - names of calls, element types, operations and placements, for messages and
 * options.
 *
 * Only inline functions. They never return NULL: an unknown number is "no call", "no dtype", "no
 * op".
 */
#ifndef TESSERA_NAMES_H
#define TESSERA_NAMES_H

#include <stdio.h>
#include <tessera/group.h>
#include <tessera/style.h>

static inline const char *tess_name_of(const char *const *names, int32_t n, int32_t i)
{
	return names[i > 0 && i < n ? i : 0];
}

static inline const char *tess_kind_name(int32_t kind) /* "all_reduce" */
{
	static const char *const names[] = {
		"no call",    "barrier", "broadcast",      "reduce",     "all_reduce", "gather",
		"all_gather", "scatter", "reduce_scatter", "all_to_all", "send",       "recv",
	};

	return tess_name_of(names, TESS_RECV + 1, kind);
}

static inline const char *tess_dtype_name(int32_t dtype) /* "f32" */
{
	static const char *const names[] = {
		"no dtype", "f32", "f64", "bf16", "f16", "i64", "i32", "i8", "u8",
	};

	return dtype == TESS_Q8     ? "q8"
	       : dtype == TESS_BF12 ? "bf12"
	                            : tess_name_of(names, TESS_U8 + 1, dtype);
}

static inline const char *tess_reduce_op_name(int32_t op) /* "sum" */
{
	static const char *const names[] = {
		"no op", "sum", "prod", "min", "max", "band", "bor", "bxor",
	};

	return tess_name_of(names, TESS_BXOR + 1, op);
}

/* "Replicate", "Shard(1)", "Stage(0)", "Partial", "as is"; may use `text`. */
enum { TESS_PLACE_SIZE = 24 };
static inline const char *tess_place_format(struct tess_place p, char text[TESS_PLACE_SIZE])
{
	switch (p.kind) {
	case TESS_REPLICATE:
		return "Replicate";
	case TESS_PARTIAL:
		return "Partial";
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

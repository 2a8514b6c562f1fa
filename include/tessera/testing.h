/*
 * tessera/testing.h - tests of sharded models, styles and backends in C, with Check (libcheck).
 *
 * Only inline functions and macros, on top of tessera.h. docs/testing.md has a complete test.
 *  - tess_assert_...: fail the test, in the thread of the test;
 *  - tess_check_...: return a status with a message, for functions of ranks, which return it: the
 *    test then fails with "rank R: MESSAGE".
 * Ranks are those of the option "backend" (TESSERA_BACKEND): threads over loopback, and forked
 * processes over shm and gloo.
 *
 * Example:
 *     TESS_RANKS_TEST(ranks_add_up, 4)
 *     {
 *             int32_t rank = tess_world_rank(world), sum, six = 6;
 *             tess_status st = tess_all_reduce(tess_world_group(world), &rank, &sum, 1, TESS_I32,
 *                                              TESS_SUM, "sum of ranks");
 *
 *             return st ? st : tess_check_same_bits(&sum, &six, 1, TESS_I32);
 *     }
 *     static void add_tests(TCase *tcase) { tcase_add_test(tcase, ranks_add_up); }
 */
#ifndef TESSERA_TESTING_H
#define TESSERA_TESTING_H

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tessera/coll.h>
#include <tessera/names.h>
#include <tessera/reduce.h>
#include <tessera/tessera.h>

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Runs fn(world, arg) on `n` ranks; fails the test with the message of the first failure. */
#define tess_assert_ranks(n, fn, arg) \
	ck_assert_msg(!tess_world_spawn((n), (fn), (arg)), "%d ranks over %s: %s", (int)(n), \
	              tess_option_get("backend"), tess_error())

/* Runs fn(world, arg, result) on `n` ranks, which fill results[n] in their order. */
#define tess_assert_results(n, fn, arg, results) \
	ck_assert_msg(!tess_world_spawn_results((n), (fn), (arg), (results), sizeof *(results)), \
	              "%d ranks over %s: %s", (int)(n), tess_option_get("backend"), tess_error())

/*
 * Begins a test of Check whose body runs on `n` ranks, with `world` and the loop index `_i`, and
 * returns a tess_status. n may use _i: tcase_add_loop_test(tcase, name, 1, 9).
 */
#define TESS_RANKS_TEST(name, n) \
	static tess_status name##_on_rank(struct tess_world *world, int _i); \
	static tess_status name##_call(struct tess_world *world, void *index) \
	{ \
		return name##_on_rank(world, *(const int *)index); \
	} \
	START_TEST(name) \
	{ \
		tess_assert_ranks((n), name##_call, &_i); \
	} \
	END_TEST \
	static tess_status name##_on_rank(struct tess_world *world CK_ATTRIBUTE_UNUSED, \
	                                  int _i CK_ATTRIBUTE_UNUSED)

/* ---- bits ------------------------------------------------------------------------------------ */

/* Returns the bits of element i. */
static inline uint64_t tess_test_bits(const void *data, uint64_t i, int32_t dtype)
{
	uint64_t width = tess_width(dtype), bits = 0;
	const unsigned char *from = (const unsigned char *)data + i * width;

	for (uint64_t k = 0; k < width; k++) /* little-endian, as every supported machine */
		bits |= (uint64_t)from[k] << 8 * k;
	return bits;
}

/* Returns a floating-point element as a double; integers: 0. */
static inline double tess_test_number(uint64_t bits, int32_t dtype)
{
	uint32_t low = (uint32_t)bits;
	double wide;
	float single;

	memcpy(&wide, &bits, sizeof wide);
	memcpy(&single, &low, sizeof single);
	return dtype == TESS_F64    ? wide
	       : dtype == TESS_F32  ? (double)single
	       : dtype == TESS_BF16 ? (double)tess_bf16_load((uint16_t)bits)
	       : dtype == TESS_F16  ? (double)tess_f16_load((uint16_t)bits)
	                            : 0;
}

/* Formats two elements and their distance: "0.25 and 0.25000003, 1 ulp". */
static inline void tess_test_format(char *text, size_t size, uint64_t a, uint64_t b, int32_t dtype)
{
	uint64_t sign = (uint64_t)1 << (8 * tess_width(dtype) - 1), x, y;
	int digits = dtype == TESS_F64 ? 17 : dtype == TESS_F32 ? 9 : dtype == TESS_F16 ? 5 : 4;

	if (dtype > TESS_F16) {
		x = a & sign ? a | ~(sign - 1) : a; /* sign-extended */
		y = b & sign ? b | ~(sign - 1) : b;
		if (dtype == TESS_U8)
			snprintf(text, size, "%" PRIu64 " and %" PRIu64, a, b);
		else
			snprintf(text, size, "%" PRId64 " and %" PRId64, (int64_t)x, (int64_t)y);
		return;
	}
	x = a & sign ? 2 * sign - 1 - a : a + sign; /* in the order of the numbers */
	y = b & sign ? 2 * sign - 1 - b : b + sign;
	x = x > y ? x - y : y - x;
	snprintf(text, size, "%.*g and %.*g, %" PRIu64 " ulp%s", digits, tess_test_number(a, dtype),
	         digits, tess_test_number(b, dtype), x, x == 1 ? "" : "s");
}

/*
 * Fails with TESS_EINVAL unless a[count] and b[count] have the same bits. dtype: TESS_F32 to
 * TESS_U8. The message has the first index that differs, both values and their distance in ulps,
 * and the number of elements that differ. -0 differs from 0, and equal NaNs do not differ.
 */
static inline tess_status tess_check_same_bits(const void *a, const void *b, uint64_t count,
                                               int32_t dtype)
{
	uint64_t first = count, n = 0;
	char both[96] = "";

	if (!a || !b || dtype < TESS_F32 || dtype > TESS_U8)
		return tess_fail(TESS_EINVAL, "tess_check_same_bits: %s, dtype %d",
		                 a && b ? "two buffers" : "a buffer is NULL", (int)dtype);
	for (uint64_t i = count; i-- > 0;)
		if (tess_test_bits(a, i, dtype) != tess_test_bits(b, i, dtype)) {
			first = i;
			n++;
		}
	if (!n)
		return TESS_OK;
	tess_test_format(both, sizeof both, tess_test_bits(a, first, dtype),
	                 tess_test_bits(b, first, dtype), dtype);
	return tess_fail(
		TESS_EINVAL,
		"element %" PRIu64 " of %" PRIu64 " %s differs: %s; %" PRIu64 " element%s in all",
		first, count, tess_dtype_name(dtype), both, n, n == 1 ? " differs" : "s differ");
}

/* Fails the test unless a[count] and b[count] have the same bits. */
#define tess_assert_same_bits(a, b, count, dtype) \
	ck_assert_msg(!tess_check_same_bits((a), (b), (count), (dtype)), "%s and %s: %s", #a, #b, \
	              tess_error())

/* ---- collectives ----------------------------------------------------------------------------- */

/* Any number of bytes. */
#define TESS_ANY_BYTES UINT64_MAX

/* Returns 1 if a module is `of`, or inside of it; "": every module is. */
static inline int tess_test_is_inside(const char *module, const char *of)
{
	size_t n = strlen(of);

	return !n || (!strncmp(module, of, n) && (!module[n] || module[n] == '.'));
}

/* Lists the collectives of a module: "all_reduce of 256 bytes at model.norm, ..."; or "none". */
static inline void tess_test_list_collectives(char *text, size_t size,
                                              const struct tess_explanation *e, const char *module)
{
	size_t at = (size_t)snprintf(text, size, "none");

	for (int32_t i = 0, n = 0; i < e->ncollectives; i++) {
		const struct tess_explained_collective *c = e->collectives[i];

		if (!tess_test_is_inside(c->module, module) || (n && at >= size))
			continue;
		at = n++ ? at : 0;
		at += (size_t)snprintf(text + at, size - at, "%s%s of %" PRIu64 " bytes at %s",
		                       at ? ", " : "", tess_kind_name(c->kind), c->bytes,
		                       c->module);
	}
}

/*
 * Fails with TESS_EINVAL unless a module, with the modules inside of it, makes `count` collectives
 * of a kind in a step of one token. module: "model.layers.0.mlp"; "": the model. kind:
 * TESS_ALL_REDUCE, ... bytes: sum of the bytes of their values over all ranks, or TESS_ANY_BYTES.
 * By the explanation of the session's plan (tess_session_explain): no call is made, and one rank
 * may check alone.
 */
static inline tess_status tess_check_collectives(const struct tess_session *session,
                                                 const char *module, int32_t kind, int64_t count,
                                                 uint64_t bytes)
{
	struct tess_explanation *e = NULL;
	uint64_t moved = 0;
	int64_t n = 0;
	char list[640];
	tess_status st = tess_session_explain(session, 1, &e);

	for (int32_t i = 0; !st && i < e->ncollectives; i++)
		if (e->collectives[i]->kind == kind &&
		    tess_test_is_inside(e->collectives[i]->module, module)) {
			moved += e->collectives[i]->bytes;
			n++;
		}
	if (!st && (n != count || (bytes != TESS_ANY_BYTES && moved != bytes))) {
		tess_test_list_collectives(list, sizeof list, e, module);
		st = tess_fail(TESS_EINVAL,
		               "%s: %" PRId64 " %s of %" PRIu64 " bytes, not %" PRId64
		               " of %" PRIu64 "; its collectives: %s",
		               *module ? module : "the model", n, tess_kind_name(kind), moved,
		               count, bytes == TESS_ANY_BYTES ? moved : bytes, list);
	}
	tess_explanation_free(e);
	return st;
}

/*
 * Fails the test unless tess_check_collectives succeeds. In a function of ranks, only where Check
 * forks for each test (the default); return tess_check_collectives instead.
 */
#define tess_assert_collectives(session, module, kind, count, bytes) \
	ck_assert_msg(!tess_check_collectives((session), (module), (kind), (count), (bytes)), \
	              "%s", tess_error())

/* ---- models ---------------------------------------------------------------------------------- */

/*
 * Computes the logits of the last of n ids in a new sequence, on every rank: logits[vocabulary].
 * Collective; the mesh of the session has no dp. TESS_EINVAL: the model has another vocabulary.
 */
static inline tess_status tess_test_logits(struct tess_session *session, const int32_t *ids,
                                           int64_t n, float *logits, int64_t vocabulary)
{
	struct tess_session_info info;
	struct tess_input in;
	const float *row = NULL;
	tess_status st;

	memset(&info, 0, sizeof info);
	memset(&in, 0, sizeof in);
	info.size = sizeof info;
	tess_session_get_info(session, &info);
	if (info.vocabulary != vocabulary)
		return tess_fail(TESS_EINVAL,
		                 "tess_test_logits: the model has %" PRId64
		                 " ids, and there is room for %" PRId64,
		                 (int64_t)info.vocabulary, vocabulary);
	st = tess_sequence_open(session, &in.sequence);
	in.ids = ids;
	in.n = n;
	in.nselected = 1;
	if (!st)
		st = tess_session_step(session, &in, 1, -1, &row);
	if (!st)
		memcpy(logits, row, (size_t)vocabulary * sizeof *logits);
	tess_sequence_close(in.sequence);
	return st;
}

#endif

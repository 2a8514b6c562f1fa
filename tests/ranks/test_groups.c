/*
 * Every collective of a group of threads: kinds, dtypes, operations, counts, places, several at
 * once.
 */
#include "../unit/suite.h"
#include "batches.h"
#include "data.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include <tessera/reduce.h>

static const int32_t sizes[] = { 1, 2, 3, 4, 5, 7, 8 };

static bool is_legal_case(const struct conform_case *c)
{
	if (!tess_kind_reduces(c->kind) && c->op != TESS_SUM)
		return false;
	if (c->op >= TESS_BAND && c->dtype <= TESS_F16)
		return false;
	if (c->uneven &&
	    (c->kind == TESS_BROADCAST || c->kind == TESS_REDUCE || c->kind == TESS_ALL_REDUCE))
		return false;
	return tess_kind_rooted(c->kind) || !c->root;
}

/* Kinds x dtypes x operations x counts x even x in place x roots (first, last). */
static tess_status run_all_cases(struct tess_world *w, void *arg)
{
	static const uint64_t counts[] = { 0, 1, 37 };
	struct tess_group *g = tess_world_group(w);
	int32_t last = tess_group_size(g) - 1;
	int32_t kinds[2] = { TESS_BROADCAST, TESS_ALL_TO_ALL };
	tess_status st;

	(void)arg;
	for (int32_t kind = kinds[0]; kind <= kinds[1]; kind++)
		for (int32_t i = 0; i < 8 * 7 * 3 * 8; i += THIN) {
			struct conform_case c = { .kind = kind,
				                  .dtype = 1 + i % 8,
				                  .op = 1 + i / 8 % 7,
				                  .count = counts[i / 56 % 3],
				                  .uneven = i / 168 & 1,
				                  .in_place = i / 336 & 1,
				                  .root = i / 672 & 1 ? last : 0 };

			if ((i / 672 & 1 && !last) || !is_legal_case(&c))
				continue;
			st = data_run(g, &c);
			if (st)
				return st;
		}
	return tess_barrier(g, "tests:end");
}

/* Enough to be moved in pieces. */
static tess_status run_large_cases(struct tess_world *w, void *arg)
{
	static const struct {
		int32_t kind;
		bool uneven, in_place;
	} cases[] = {
		{ TESS_BROADCAST, false, false },  { TESS_REDUCE, false, true },
		{ TESS_ALL_REDUCE, false, false }, { TESS_ALL_REDUCE, false, true },
		{ TESS_ALL_GATHER, true, true },   { TESS_REDUCE_SCATTER, true, true },
		{ TESS_ALL_TO_ALL, true, true },   { TESS_ALL_TO_ALL, true, false },
		{ TESS_GATHER, true, false },      { TESS_SCATTER, true, true },
	};
	tess_status st = TESS_OK;

	(void)arg;
	for (size_t i = 0; i < sizeof cases / sizeof *cases && !st; i++) {
		struct conform_case c = { .kind = cases[i].kind,
			                  .dtype = i % 2 ? TESS_F32 : TESS_BF16,
			                  .op = TESS_SUM,
			                  .count = 100000,
			                  .uneven = cases[i].uneven,
			                  .in_place = cases[i].in_place };

		st = data_run(tess_world_group(w), &c);
	}
	return st;
}

/* Twelve calls outstanding, messages among them, waited for from the last to the first. */
static tess_status run_outstanding_calls(struct tess_world *w, void *arg)
{
	enum { N = 12 };
	struct tess_group *g = tess_world_group(w);
	int32_t n = tess_group_size(g), me = tess_group_rank(g), to = (me + 1) % n,
		from = (me + n - 1) % n;
	struct data_pending pending[N];
	struct tess_work *out[2], *in[2];
	int64_t sent[2] = { me, me + 100 }, got[2] = { -1, -1 };
	tess_status st;

	(void)arg;
	for (int i = 0; i < 2 && n > 1; i++) {
		struct tess_coll c = { .size = sizeof c,
			               .kind = TESS_SEND,
			               .dtype = TESS_I64,
			               .peer = to,
			               .src = &sent[i],
			               .count = 1,
			               .where = "tests:send" };

		if ((st = tess_group_start(g, &c, &out[i])))
			return st;
		c = (struct tess_coll){ .size = sizeof c,
			                .kind = TESS_RECV,
			                .dtype = TESS_I64,
			                .peer = from,
			                .dst = &got[i],
			                .count = 1,
			                .where = "tests:recv" };
		if ((st = tess_group_start(g, &c, &in[i])))
			return st;
	}
	for (int i = 0; i < N; i++) {
		struct conform_case c = { .kind = TESS_BROADCAST + i % 8,
			                  .dtype = TESS_F32,
			                  .op = TESS_SUM,
			                  .count = (uint64_t)i * 10,
			                  .root = i % n,
			                  .in_place = i % 3 == 0 };

		if (!tess_kind_rooted(c.kind))
			c.root = 0;
		if ((st = data_start(g, &c, &pending[i])))
			return st;
	}
	for (int i = N - 1; i >= 0; i--)
		if ((st = data_finish(&pending[i])))
			return st;
	for (int i = 1; i >= 0 && n > 1; i--) {
		while ((st = tess_work_test(in[i])) == TESS_PENDING)
			;
		if (st || (st = tess_work_wait(out[i], 0)))
			return st;
		tess_work_release(in[i]);
		tess_work_release(out[i]);
		if (got[i] != from + 100 * i)
			return tess_fail(TESS_EBUG, "message %d from rank %d is %ld", i, from,
			                 (long)got[i]);
	}
	return TESS_OK;
}

/* 16-bit floats are added in f32 and rounded once: 256 + 1 + 1 + ... is more than 256 in bf16. */
static tess_status check_bf16_rounding(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	uint16_t x = tess_bf16_round(tess_group_rank(g) ? 1.0f : 256.0f), y = 0;
	tess_status st = tess_all_reduce(g, &x, &y, 1, TESS_BF16, TESS_SUM, "tests:bf16");

	(void)arg;
	if (!st && y != tess_bf16_round(256.0f + (float)(tess_group_size(g) - 1)))
		return tess_fail(TESS_EBUG, "bf16 sum of %d ranks is %g", tess_group_size(g),
		                 (double)tess_bf16_load(y));
	return st;
}

/* Floats are added by rank, as neighbours, whoever adds them and whichever came first. */
static tess_status check_order_of_sum(struct tess_world *w, void *arg)
{
	static const float values[] = { 1e8f, 1, -1e8f, 3, 1e-3f, 16777216, -7, 1e8f };
	struct tess_group *g = tess_world_group(w);
	int32_t n = tess_group_size(g), me = tess_group_rank(g);
	const void *part[8];
	float got = 0, want;
	tess_status st = TESS_OK;

	(void)arg;
	for (int32_t i = 0; i < n; i++)
		part[i] = &values[i];
	tess_reduce(TESS_F32, TESS_SUM, part, n, 1, &want);
	for (int i = 0; i < 2 && !st; i++, got = i ? values[me] : 0) {
		st = tess_all_reduce(g, i ? &got : &values[me], &got, 1, TESS_F32, TESS_SUM,
		                     "order");
		if (!st && memcmp(&got, &want, sizeof got))
			st = tess_fail(TESS_EBUG, "%d ranks: %.9g, not %.9g", n, (double)got,
			               (double)want);
	}
	return st;
}

/* In the group of all ranks, and in one of some. */
static tess_status run_batches_in_groups(struct tess_world *w, void *arg)
{
	struct tess_group *g;
	tess_status st = batches_run(tess_world_group(w));

	(void)arg;
	if (!st)
		st = tess_group_split(tess_world_group(w), tess_world_rank(w) % 2, 0, NULL, &g);
	return st ? st : batches_run(g);
}

static tess_status check_world_mesh(struct tess_world *w, void *arg)
{
	struct tess_mesh *m;
	tess_status st = tess_mesh_open(w, "tp", &m);

	(void)arg;
	if (st)
		return st;
	if (tess_mesh_group(m, "tp") != tess_world_group(w) || tess_mesh_group(m, "dp"))
		st = tess_fail(TESS_EBUG, "the mesh \"tp\" has other groups than it should");
	tess_mesh_close(m);
	return st;
}

static void spawn_all_sizes(tess_status (*fn)(struct tess_world *, void *))
{
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		ck_assert_msg(!tess_world_spawn(sizes[i], fn, NULL), "%d ranks: %s", sizes[i],
		              tess_error());
}

START_TEST(every_kind)
{
	spawn_all_sizes(run_all_cases);
}
END_TEST

START_TEST(large_ones)
{
	spawn_all_sizes(run_large_cases);
}
END_TEST

START_TEST(several_outstanding)
{
	spawn_all_sizes(run_outstanding_calls);
}
END_TEST

START_TEST(rounded_once)
{
	spawn_all_sizes(check_bf16_rounding);
}
END_TEST

START_TEST(added_by_rank)
{
	spawn_all_sizes(check_order_of_sum);
}
END_TEST

START_TEST(batches)
{
	spawn_all_sizes(run_batches_in_groups);
}
END_TEST

START_TEST(meshes)
{
	spawn_all_sizes(check_world_mesh);
}
END_TEST

START_TEST(made_of_messages)
{
	const char *dir = getenv("MINIMAL_DIR");

	ck_assert_ptr_nonnull(dir);
	ck_assert_int_eq(setenv("TESSERA_PLUGIN_PATH", dir, 1), 0);
	ck_assert_int_eq(setenv("TESSERA_BACKEND", "minimal", 1), 0);
	spawn_all_sizes(run_all_cases);
	spawn_all_sizes(run_outstanding_calls);
	spawn_all_sizes(check_bf16_rounding);
	spawn_all_sizes(check_order_of_sum);
	spawn_all_sizes(run_batches_in_groups);
}
END_TEST

static tess_status check_minimal(struct tess_world *w, void *arg)
{
	(void)arg;
	ck_assert_str_eq(tess_world_backend(w), "minimal");
	return tess_barrier(tess_world_group(w), "chosen");
}

/* auto asks nothing but what a backend's table says: one from elsewhere is chosen where it is first. */
START_TEST(auto_chooses_from_the_list)
{
	const char *dir = getenv("MINIMAL_DIR");

	ck_assert_ptr_nonnull(dir);
	ck_assert_int_eq(setenv("TESSERA_PLUGIN_PATH", dir, 1), 0);
	ck_assert_int_eq(setenv("TESSERA_BACKEND", "auto", 1), 0);
	ck_assert_int_eq(setenv("TESSERA_BACKENDS", "absent, mpi,minimal,loopback", 1), 0);
	ck_assert_int_eq(tess_world_spawn(3, check_minimal, NULL), TESS_OK);
	ck_assert_int_eq(setenv("TESSERA_BACKENDS", "absent,mpi", 1), 0);
	ck_assert_int_eq(tess_world_spawn(3, check_minimal, NULL), TESS_ENOENT);
	ck_assert_ptr_nonnull(strstr(tess_error(),
	                             "TESSERA_BACKENDS=absent,mpi has no backend that "
	                             "joins ranks that are threads"));
}
END_TEST

SUITE_MAIN("groups", every_kind, large_ones, several_outstanding, rounded_once, added_by_rank,
           batches, meshes, made_of_messages, auto_chooses_from_the_list)

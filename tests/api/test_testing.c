/*
 * test_testing.c - tessera/testing.h and tess_session_explain, of libtessera.so: ranks in tests,
 * equal bits, and collectives, over backends of threads and of processes.
 */
#include "tests/support/suite.h"

#include <math.h>
#include <signal.h>
#include <tessera/testing.h>

enum { RANKS_MAX = 4, VOCABULARY = 512 };

static const char *const backends[] = { "loopback", "shm", HAVE_GLOO ? "gloo" : "faulty:shm" };
static const char *dir;

static void select_backend(int32_t i)
{
	ck_assert(!tess_option_set("backend", backends[i]) && !tess_option_set("timeout", "60"));
	dir = getenv("DATA_DIR");
}

/* ---- bits ------------------------------------------------------------------------------------ */

#define EXPECT_BITS(dtype, says, a, b) \
	do { \
		ck_assert_int_eq( \
			tess_check_same_bits((a), (b), sizeof(a) / tess_width(dtype), dtype), \
			TESS_EINVAL); \
		ck_assert_str_eq(tess_error(), says); \
		tess_assert_same_bits((a), (a), sizeof(a) / tess_width(dtype), dtype); \
	} while (0)

START_TEST(names_the_first_different_bits)
{
	const float f[] = { 1, 0.25F, NAN, -0.0F }, g[] = { 1, 0.25000006F, NAN, 0.0F };
	const double d[] = { -1 }, e[] = { 1 };
	const uint16_t h[] = { 0x3c00 }, k[] = { 0x3bfe };
	const int8_t i[] = { -1, 0 }, j[] = { 127, 0 };
	const uint8_t u[] = { 255 }, v[] = { 0 };
	const int64_t l[] = { INT64_MIN }, m[] = { INT64_MAX };

	EXPECT_BITS(TESS_F32,
	            "element 1 of 4 f32 differs: 0.25 and 0.25000006, 2 ulps; 2 elements differ in "
	            "all",
	            f, g);
	EXPECT_BITS(TESS_F64,
	            "element 0 of 1 f64 differs: -1 and 1, 9214364837600034817 ulps; 1 element "
	            "differs in all",
	            d, e);
	EXPECT_BITS(TESS_F16,
	            "element 0 of 1 f16 differs: 1 and 0.99902, 2 ulps; 1 element differs in all",
	            h, k);
	EXPECT_BITS(TESS_BF16,
	            "element 0 of 1 bf16 differs: 0.007812 and 0.007751, 2 ulps; 1 element "
	            "differs in all",
	            h, k);
	EXPECT_BITS(TESS_I8, "element 0 of 2 i8 differs: -1 and 127; 1 element differs in all", i,
	            j);
	EXPECT_BITS(TESS_U8, "element 0 of 1 u8 differs: 255 and 0; 1 element differs in all", u,
	            v);
	EXPECT_BITS(TESS_I64,
	            "element 0 of 1 i64 differs: -9223372036854775808 and 9223372036854775807; 1 "
	            "element differs in all",
	            l, m);
	ck_assert_int_eq(tess_check_same_bits(NULL, f, 1, TESS_F32), TESS_EINVAL);
	ck_assert_int_eq(tess_check_same_bits(f, f, 1, TESS_U8 + 1), TESS_EINVAL);
}
END_TEST

/* ---- models ---------------------------------------------------------------------------------- */

struct model_case {
	const char *mesh, *plan;
};

static tess_status compute_case(struct tess_world *world, void *arg, void *result)
{
	const struct model_case *c = arg;
	const struct tess_session_options options = { .size = sizeof options,
		                                      .threads = 1,
		                                      .plan = c->plan };
	const int32_t ids[] = { 1, 403, 407, 261, 378 };
	struct tess_session *session = NULL;
	struct tess_mesh *mesh = NULL;
	tess_status st = tess_mesh_open(world, c->mesh, &mesh);

	if (!st)
		st = tess_session_open(mesh, dir, &options, &session);
	if (!st)
		st = tess_test_logits(session, ids, 5, result, VOCABULARY);
	if (!st && !tess_test_logits(session, ids, 5, result, VOCABULARY - 1))
		st = tess_fail(TESS_EBUG, "it has written a row of another length");
	tess_session_close(session);
	tess_mesh_close(mesh);
	return st;
}

/* Logits of 2 to 4 ranks have the bits of one rank, over threads and over processes. */
START_TEST(ranks_have_the_bits_of_one)
{
	static float one[1][VOCABULARY], all[RANKS_MAX][VOCABULARY];
	struct model_case one_rank = { "tp", "none" },
			  cases[] = { { "tp", "tp" }, { "tp", "tp+sp" }, { "pp=2,tp", "tp" } };

	select_backend(_i);
	tess_assert_results(1, compute_case, &one_rank, one);
	for (int32_t i = 0; i < 3; i++) {
		int32_t n = i + 2;

		tess_assert_results(n, compute_case, &cases[i], all);
		for (int32_t r = 0; r < n; r++)
			tess_assert_same_bits(all[r], one[0], VOCABULARY, TESS_F32);
	}
}
END_TEST

/* ---- collectives ----------------------------------------------------------------------------- */

#define REFUSES(says, ...) \
	do { \
		if (tess_check_collectives(__VA_ARGS__) != TESS_EINVAL || \
		    strcmp(tess_error(), says) != 0) \
			return tess_fail(TESS_EBUG, "line %d: %s", __LINE__, tess_error()); \
	} while (0)

static tess_status count_in_session(const struct tess_session *s)
{
	static const char mlp[] = "model.layers.1.mlp", layer[] = "model.layers.1";
	tess_status st = tess_check_collectives(s, mlp, TESS_ALL_REDUCE, 1, 256);

	if (!st)
		st = tess_check_collectives(s, layer, TESS_ALL_REDUCE, 2, 512);
	if (!st)
		st = tess_check_collectives(s, layer, TESS_ALL_REDUCE, 2, TESS_ANY_BYTES);
	if (!st) /* not a prefix of names: model.layers.1 of model.layers.10 */
		st = tess_check_collectives(s, "model.layers.1.ml", TESS_ALL_REDUCE, 0, 0);
	if (!st)
		st = tess_check_collectives(s, mlp, TESS_ALL_GATHER, 0, 0);
	if (!st) /* the table, and two of each of 5 layers */
		st = tess_check_collectives(s, "", TESS_ALL_REDUCE, 11, 11 * 256);
	if (st)
		return st;
	REFUSES("model.layers.1.mlp: 1 all_reduce of 256 bytes, not 2 of 256; its collectives: "
	        "all_reduce of 256 bytes at model.layers.1.mlp.down_proj",
	        s, mlp, TESS_ALL_REDUCE, 2, 256);
	REFUSES("model.layers.1.mlp: 1 all_reduce of 256 bytes, not 1 of 255; its collectives: "
	        "all_reduce of 256 bytes at model.layers.1.mlp.down_proj",
	        s, mlp, TESS_ALL_REDUCE, 1, 255);
	REFUSES("model.norm: 0 all_gather of 0 bytes, not 1 of 0; its collectives: none", s,
	        "model.norm", TESS_ALL_GATHER, 1, TESS_ANY_BYTES);
	return TESS_OK;
}

/* Compares an explanation of the session with one of the directory. */
static tess_status compare_explanations(const struct tess_session *s, const char *mesh, int32_t n)
{
	struct tess_explanation *open = NULL, *shut = NULL;
	tess_status st = tess_session_explain(s, 3, &open);

	if (!st)
		st = tess_explain(dir, mesh, n, 3, NULL, &shut);
	if (!st && (open->ncollectives != shut->ncollectives || open->nranks != n ||
	            open->nrecords != shut->nrecords || open->ndims != shut->ndims ||
	            memcmp(&open->total, &shut->total, sizeof open->total) != 0 ||
	            memcmp(&open->hf, &shut->hf, sizeof open->hf) != 0))
		st = tess_fail(TESS_EBUG, "%s: the explanations differ", mesh);
	for (int32_t i = 0; !st && i < open->ncollectives; i++)
		if (strcmp(open->collectives[i]->module, shut->collectives[i]->module) != 0 ||
		    open->collectives[i]->sent != shut->collectives[i]->sent)
			st = tess_fail(TESS_EBUG, "collective %d differs", (int)i);
	tess_explanation_free(open);
	tess_explanation_free(shut);
	return st;
}

TESS_RANKS_TEST(collectives_are_counted, 4)
{
	static const char *const meshes[] = { "tp=4", "dp=2,tp=2" };
	tess_status st = TESS_OK;

	for (int i = 0; i < 2 && !st; i++) {
		struct tess_session *session = NULL;
		struct tess_mesh *mesh = NULL;

		st = tess_mesh_open(world, meshes[i], &mesh);
		if (!st)
			st = tess_session_open(mesh, dir, NULL, &session);
		if (!st)
			st = count_in_session(session);
		if (!st)
			st = compare_explanations(session, meshes[i], 4);
		tess_session_close(session);
		tess_mesh_close(mesh);
	}
	return st;
}

/* Asserts in the ranks that an attention and an MLP sum once each. _i 0: a wrong number. */
TESS_RANKS_TEST(a_layer_sums_twice, 2)
{
	struct tess_session *session = NULL;
	struct tess_mesh *mesh = NULL;
	tess_status st = tess_mesh_open(world, "tp", &mesh);

	if (!st)
		st = tess_session_open(mesh, dir, NULL, &session);
	if (!st)
		tess_assert_collectives(session, "model.layers.0", TESS_ALL_REDUCE, _i ? 2 : 3,
		                        TESS_ANY_BYTES);
	tess_session_close(session);
	tess_mesh_close(mesh);
	return st;
}

/* ---- tests that fail ------------------------------------------------------------------------- */

TESS_RANKS_TEST(a_rank_fails, 3)
{
	return tess_world_rank(world) == 1 ? tess_fail(TESS_EINVAL, "index %d", _i) : TESS_OK;
}

TESS_RANKS_TEST(a_rank_crashes, 2)
{
	int32_t x = 1;
	tess_status st = tess_all_reduce(tess_world_group(world), &x, &x, 1, TESS_I32, TESS_SUM,
	                                 "model.embed_tokens");

	signal(SIGSEGV, SIG_DFL);
	if (tess_world_rank(world) == 1)
		raise(SIGSEGV);
	return st ? st : tess_barrier(tess_world_group(world), "later");
}

TESS_RANKS_TEST(an_assertion_fails, 2)
{
	if (tess_world_rank(world) == 1)
		ck_abort_msg("rank 1 asserts");
	return tess_barrier(tess_world_group(world), "later");
}

START_TEST(bits_differ)
{
	const float a[] = { 1 }, b[] = { 2 };

	tess_assert_same_bits(a, b, 1, TESS_F32);
}
END_TEST

static const struct failing_test {
	const TTest *const *test;
	const char *backend, *says;
} failing[] = {
	{ &a_rank_fails, "loopback", "3 ranks over loopback: rank 1: index 0" },
	{ &a_rank_fails, "shm", "3 ranks over shm: rank 1: index 0" },
	{ &a_rank_crashes, "shm",
	  "2 ranks over shm: rank 1 was killed by signal 11 (Segmentation fault); its last call "
	  "was all_reduce of 1 i32 (sum), call 1, at model.embed_tokens" },
	{ &an_assertion_fails, "loopback", "rank 1 asserts" },
	{ &an_assertion_fails, "shm", "rank 1 asserts" },
	{ &a_layer_sums_twice, "loopback",
	  "model.layers.0: 2 all_reduce of 512 bytes, not 3 of 512; its collectives: all_reduce of "
	  "256 bytes at model.layers.0.self_attn.o_proj, all_reduce of 256 bytes at "
	  "model.layers.0.mlp.down_proj" },
	{ &a_layer_sums_twice, "shm",
	  "model.layers.0: 2 all_reduce of 512 bytes, not 3 of 512; its collectives: all_reduce of "
	  "256 bytes at model.layers.0.self_attn.o_proj, all_reduce of 256 bytes at "
	  "model.layers.0.mlp.down_proj" },
	{ &bits_differ, "shm",
	  "a and b: element 0 of 1 f32 differs: 1 and 2, 8388608 ulps; 1 element differs in all" },
};
enum { FAILING = sizeof failing / sizeof *failing };

/* Runs a test that fails, in a suite of its own, and compares the message. */
START_TEST(failing_tests_have_messages)
{
	const struct failing_test *f = &failing[_i];
	SRunner *runner;
	TCase *tcase = suite_begin("failing", 30, &runner);
	TestResult **results;

	ck_assert(!tess_option_set("backend", f->backend) && !tess_option_set("timeout", "60"));
	tcase_add_test(tcase, *f->test);
	srunner_run_all(runner, CK_SILENT);
	ck_assert_int_eq(srunner_ntests_failed(runner), 1);
	results = srunner_failures(runner);
	ck_assert_str_eq(tr_msg(results[0]), f->says);
	free(results);
	srunner_free(runner);
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("testing", 120, &runner);

	select_backend(0);
	tcase_add_test(tcase, names_the_first_different_bits);
	tcase_add_loop_test(tcase, ranks_have_the_bits_of_one, 0, 3);
	tcase_add_test(tcase, collectives_are_counted);
	tcase_add_loop_test(tcase, a_layer_sums_twice, 1, 2);
	tcase_add_loop_test(tcase, failing_tests_have_messages, 0, FAILING);
	return suite_end(runner);
}

/* testing.c - tests of the style rowsplit, which is part of this file; see docs/testing.md. */
#include <stdlib.h>
#include <tessera/testing.h>

enum { RANKS = 3, VOCABULARY = 512 };

static tess_status cut_input(const struct tess_site *s, struct tess_io *io)
{
	(void)s;
	io->in[0] = (struct tess_place){ .kind = TESS_SHARD, .dim = -1 };
	io->out[0] = (struct tess_place){ .kind = TESS_REPLICATE };
	return TESS_OK;
}

static tess_status cut_param(const struct tess_site *s, const struct tess_param *p,
                             struct tess_param_place *place)
{
	(void)s;
	place->use.kind = TESS_REPLICATE;
	if (p->in_dim >= 0)
		place->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->in_dim };
	return TESS_OK;
}

static const struct tess_style rowsplit = {
	.size = sizeof rowsplit,
	.name = "rowsplit",
	.layout = cut_input,
	.partition_param = cut_param,
};

static const struct tess_plugin plugin = {
	.abi = TESS_ABI,
	.size = sizeof plugin,
	.name = "rowsplit",
	.version = "1.0",
	.license = "MIT",
	.styles = TESS_LIST(tess_style, &rowsplit),
};

/* Opens the checkpoint on all ranks, with rowsplit for one layer of each MLP. */
static tess_status open_model(struct tess_world *world, struct tess_mesh **mesh,
                              struct tess_session **session)
{
	const char *const rules[] = { "model.layers.*.mlp.down_proj=rowsplit", NULL };
	const struct tess_session_options options = { .size = sizeof options,
		                                      .threads = 1,
		                                      .overrides = rules };
	tess_status st = tess_mesh_open(world, "tp", mesh);

	return st ? st : tess_session_open(*mesh, "data", &options, session);
}

/* Computes the logits after four ids: result[VOCABULARY]. */
static tess_status step_model(struct tess_world *world, void *arg, void *result)
{
	const int32_t ids[] = { 1, 403, 407, 261 };
	struct tess_session *session = NULL;
	struct tess_mesh *mesh = NULL;
	tess_status st = open_model(world, &mesh, &session);

	(void)arg;
	if (!st)
		st = tess_test_logits(session, ids, 4, result, VOCABULARY);
	tess_session_close(session);
	tess_mesh_close(mesh);
	return st;
}

START_TEST(logits_are_those_of_one_rank)
{
	static float one[1][VOCABULARY], all[RANKS][VOCABULARY];

	tess_assert_results(1, step_model, NULL, one);
	tess_assert_results(RANKS, step_model, NULL, all);
	for (int r = 0; r < RANKS; r++)
		tess_assert_same_bits(all[r], one[0], VOCABULARY, TESS_F32);
}
END_TEST

/* An MLP sums once, over the 64 f32 of a token. */
TESS_RANKS_TEST(an_mlp_sums_once, 2)
{
	struct tess_session *session = NULL;
	struct tess_mesh *mesh = NULL;
	tess_status st = open_model(world, &mesh, &session);

	if (!st)
		st = tess_check_collectives(session, "model.layers.0.mlp", TESS_ALL_REDUCE, 1, 256);
	tess_session_close(session);
	tess_mesh_close(mesh);
	return st;
}

int main(void)
{
	Suite *suite = suite_create("style");
	TCase *tcase = tcase_create("style");
	SRunner *runner = srunner_create(suite);
	int failed;

	if (tess_registry_add(&plugin)) {
		fprintf(stderr, "%s\n", tess_error());
		return EXIT_FAILURE;
	}
	suite_add_tcase(suite, tcase);
	tcase_add_test(tcase, logits_are_those_of_one_rank);
	tcase_add_test(tcase, an_mlp_sums_once);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

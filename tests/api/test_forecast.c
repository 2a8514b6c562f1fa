/*
 * test_forecast.c - tess_explain_training's memory of each rank, against the allocations of a
 * trainer's ranks for a step of that shape.
 */
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <tessera/train.h>

enum { SEQUENCES = 4, LENGTH = 48 };

static const struct forecast_case {
	const char *dir, *mesh, *plan;
	int32_t optimizer;
	const char *const recompute[2], *const overrides[2];
	int64_t micro; /* micro-batches of a step */
	const char *schedule;
	bool weights, state; /* in files */
} cases[] = {
	{ "data", "tp=1", "none", TESS_ADAMW, { 0 }, { 0 }, 1, NULL, false, false },
	{ "data", "tp=3", "tp", TESS_ADAMW, { 0 }, { 0 }, 1, NULL, false, false },
	{ "data",
	  "tp=2",
	  "tp+sp",
	  TESS_SGD,
	  { "model.layers.*" },
	  { "lm_head=loss_parallel" },
	  1,
	  NULL,
	  false,
	  false },
	{ "data", "dp=2,tp=2", "tp", TESS_ADAMW, { 0 }, { 0 }, 1, NULL, false, false },
	{ "data", "dp=3", "none", TESS_ADAMW, { "**.mlp" }, { 0 }, 3, NULL, false, false },
	{ "tests/data/goldens/llama-bf16",
	  "dp=2,tp=2",
	  "tp",
	  TESS_ADAMW,
	  { 0 },
	  { 0 },
	  1,
	  NULL,
	  false,
	  false },
	{ "tests/data/goldens/gpt2",
	  "tp=2",
	  "tp",
	  TESS_ADAMW,
	  { 0 },
	  { 0 },
	  1,
	  NULL,
	  false,
	  false },
	/* the head of tied embeddings has a gradient and a copy of the table */
	{ "data",
	  "dp=2,pp=2",
	  "none",
	  TESS_ADAMW,
	  { 0 },
	  { "dp:**=zero1" },
	  1,
	  NULL,
	  false,
	  false },
	/* slots of all stages and micro-batches */
	{ "data",
	  "pp=2,tp=2",
	  "tp+sp",
	  TESS_ADAMW,
	  { 0 },
	  { 0 },
	  3,
	  "interleaved:2",
	  false,
	  false },
	{ "data", "pp=2", "none", TESS_ADAMW, { "**.mlp" }, { 0 }, 3, "zb-v", false, false },
	{ "data", "tp=1", "none", TESS_ADAMW, { 0 }, { 0 }, 3, NULL, true, true },
	{ "tests/data/goldens/llama-bf16",
	  "dp=3,tp=1",
	  "none",
	  TESS_ADAMW,
	  { 0 },
	  { "dp:**=zero3" },
	  1,
	  NULL,
	  true,
	  false },
	{ "data", "dp=2,pp=2", "none", TESS_SGD, { 0 }, { "dp:**=zero1" }, 1, NULL, true, true },
};

enum { CASES = sizeof cases / sizeof *cases, FIRST = TSAN ? 2 : 0 };

struct forecast_run {
	const struct forecast_case *how;
	const char *dir;
	struct tess_trainer_options options;
	const struct tess_explanation *e;
};

/* Trains two steps: the second needs no more memory. */
static tess_status train_two_steps(struct tess_trainer *t, int64_t micro)
{
	int64_t lengths[SEQUENCES];
	int32_t ids[SEQUENCES * LENGTH];
	const struct tess_batch batch = { SEQUENCES, lengths, ids, NULL },
				batches[] = { batch, batch, batch };
	tess_status st = TESS_OK;

	for (int i = 0; i < SEQUENCES * LENGTH; i++)
		ids[i] = (i * 31 + 7) % 90;
	for (int i = 0; i < SEQUENCES; i++)
		lengths[i] = LENGTH;
	for (int i = 0; i < 2 && !st; i++)
		st = tess_trainer_step(t, batches, micro, 1e-3, NULL);
	return st;
}

static tess_status compare_rank(struct tess_world *w, void *arg)
{
	const struct forecast_run *f = arg;
	const struct tess_explained_rank *said = f->e->ranks[tess_world_rank(w)];
	struct tess_trainer_info info = { .size = sizeof info };
	struct tess_trainer *t;
	struct tess_mesh *mesh;
	tess_status st = tess_mesh_open(w, f->how->mesh, &mesh);

	if (st)
		return st;
	st = tess_trainer_open(mesh, f->dir, &f->options, &t);
	if (!st) {
		st = train_two_steps(t, f->how->micro);
		tess_trainer_get_info(t, &info);
		tess_trainer_close(t);
	}
	tess_mesh_close(mesh);
	if (st)
		return st;
	HOLDS(said->weights == info.weight_bytes);
	HOLDS(said->gradients == info.gradient_bytes);
	HOLDS(said->state == info.state_bytes);
	/* parts of memory that ranks share are equal */
	HOLDS(said->step <= info.step_bytes && info.step_bytes <= f->e->total.step);
	HOLDS(said->total ==
	      said->weights + said->gradients + said->state + said->step + said->transfer);
	HOLDS(said->transfer == info.transfer_bytes);
	HOLDS(said->weights_disk == info.weight_disk_bytes);
	HOLDS(said->state_disk == info.state_disk_bytes);
	HOLDS((info.weight_disk_bytes > 0) == f->how->weights);
	return TESS_OK;
}

/*
 * Returns the stride of cases. With a sanitizer the second backend runs every third case, since
 * cases differ above backends. With TSan loopback runs every third case, and another backend one.
 */
static int get_case_stride(void)
{
	bool other = strcmp(getenv("TESSERA_BACKEND"), "loopback") != 0;

	return TSAN && other ? CASES : TSAN || (THIN > 1 && other) ? 3 : 1;
}

START_TEST(allocates_what_is_said)
{
	const struct forecast_case *c = &cases[FIRST + _i * get_case_stride()];
	struct forecast_run f = { .how = c,
		                  .options = { .size = sizeof f.options,
		                               .threads = 1,
		                               .plan = c->plan,
		                               .overrides = c->overrides,
		                               .optimizer = c->optimizer,
		                               .recompute = c->recompute[0] ? c->recompute : NULL,
		                               .pipeline_schedule = c->schedule,
		                               .micro_batches = c->micro,
		                               .offload_weights = c->weights ? "/tmp" : NULL,
		                               .offload_optimizer = c->state ? "/tmp" : NULL } };
	struct tess_explanation *e;
	char dir[512];

	snprintf(dir, sizeof dir, "%s/%s", SOURCE_ROOT, c->dir);
	f.dir = dir;
	ck_assert_msg(!tess_explain_training(dir, c->mesh, 0, SEQUENCES, LENGTH, &f.options, &e),
	              "%s", tess_error());
	f.e = e;
	spawn_ranks(e->nranks, compare_rank, &f);
	tess_explanation_free(e);
}
END_TEST

/* Checks that sent bytes add up over the dimensions, and that repeated calls count again. */
START_TEST(says_what_is_sent)
{
	static const char *const layers[] = { "model.layers.*", NULL };
	struct tess_trainer_options options = { .size = sizeof options, .plan = "tp+sp" };
	struct tess_explanation *e, *again;
	uint64_t sum = 0;

	ck_assert(!tess_explain_training(SOURCE_ROOT "/data", "dp=2,tp=2", 0, SEQUENCES, LENGTH,
	                                 &options, &e));
	options.recompute = layers;
	ck_assert(!tess_explain_training(SOURCE_ROOT "/data", "dp=2,tp=2", 0, SEQUENCES, LENGTH,
	                                 &options, &again));
	for (int d = 0; d < 2; d++) {
		const struct tess_explained_traffic *t = &e->traffic[d], *u = &again->traffic[d];

		sum += t->forward + t->backward + t->gradients;
		ck_assert(!t->repeated && !!u->repeated == d);
		ck_assert(t->gradients ? !d : d);
		ck_assert(u->forward == t->forward && u->gradients == t->gradients);
	}
	ck_assert_uint_eq(sum, e->total.sent);
	ck_assert(!e->kept.total && again->kept.total == e->total.total);
	ck_assert(again->kept.sent == e->total.sent && again->total.sent > e->total.sent);
	ck_assert_uint_lt(again->total.step, e->total.step);
	tess_explanation_free(e);
	tess_explanation_free(again);
}
END_TEST

static const struct {
	int64_t sequences, length;
	const char *recompute[2], *says;
} refusals[] = {
	{ 4, 513, { 0 }, "a sequence of 513 tokens; the checkpoint was made for 512 positions" },
	{ 0, 8, { 0 }, "a step of 0 rows" },
	{ 1, 8, { 0 }, "1 sequences cannot be cut for 2 ranks along dp" },
	{ 2, 8, { "layers.*.mpl" }, "recompute \"layers.*.mpl\": no module matches it" },
};

START_TEST(refuses)
{
	struct tess_trainer_options options = { .size = sizeof options,
		                                .plan = "none",
		                                .recompute = refusals[_i].recompute[0]
		                                                     ? refusals[_i].recompute
		                                                     : NULL };
	struct tess_explanation *e;

	ck_assert_int_eq(tess_explain_training(SOURCE_ROOT "/data", "dp=2", 0,
	                                       refusals[_i].sequences, refusals[_i].length,
	                                       &options, &e),
	                 TESS_EINVAL);
	expect_part(tess_error(), refusals[_i].says);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("forecast", 60, &r);

	tcase_add_loop_test(t, allocates_what_is_said, 0,
	                    (CASES - FIRST - 1) / get_case_stride() + 1);
	tcase_add_test(t, says_what_is_sent);
	tcase_add_loop_test(t, refuses, 0, sizeof refusals / sizeof *refusals);
	return suite_end(r);
}

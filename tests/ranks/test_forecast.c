/*
 * What tess_explain_training says of the memory of each rank, against what the ranks of a trainer
 * allocate for a step of that shape.
 */
#include "../unit/suite.h"
#include "spawn.h"

#include <stdio.h>
#include <tessera/train.h>

enum { SEQUENCES = 4, LENGTH = 48 };

static const struct forecast_case {
	const char *dir, *mesh, *plan;
	int32_t optimizer;
	const char *const recompute[2], *const overrides[2];
} cases[] = {
	{ "data", "tp=1", "none", TESS_ADAMW, { 0 }, { 0 } },
	{ "data", "tp=3", "tp", TESS_ADAMW, { 0 }, { 0 } },
	{ "data", "tp=2", "tp+sp", TESS_SGD, { "model.layers.*" }, { "lm_head=loss_parallel" } },
	{ "data", "dp=2,tp=2", "tp", TESS_ADAMW, { 0 }, { 0 } },
	{ "data", "dp=3", "none", TESS_ADAMW, { "**.mlp" }, { 0 } },
	{ "tests/data/goldens/llama-bf16", "dp=2,tp=2", "tp", TESS_ADAMW, { 0 }, { 0 } },
	{ "tests/data/goldens/gpt2", "tp=2", "tp", TESS_ADAMW, { 0 }, { 0 } },
};

struct forecast_run {
	const struct forecast_case *how;
	const char *dir;
	struct tess_trainer_options options;
	const struct tess_explanation *e;
};

/* Two steps: the second needs no more. */
static tess_status train_two_steps(struct tess_trainer *t)
{
	int64_t lengths[SEQUENCES];
	int32_t ids[SEQUENCES * LENGTH];
	struct tess_batch batch = { SEQUENCES, lengths, ids, NULL };
	tess_status st = TESS_OK;

	for (int i = 0; i < SEQUENCES * LENGTH; i++)
		ids[i] = (i * 31 + 7) % 90;
	for (int i = 0; i < SEQUENCES; i++)
		lengths[i] = LENGTH;
	for (int i = 0; i < 2 && !st; i++)
		st = tess_trainer_step(t, &batch, 1, 1e-3, NULL);
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
		st = train_two_steps(t);
		tess_trainer_get_info(t, &info);
		tess_trainer_close(t);
	}
	tess_mesh_close(mesh);
	if (st)
		return st;
	HOLDS(said->weights == info.weight_bytes);
	HOLDS(said->gradients == info.gradient_bytes);
	HOLDS(said->state == info.state_bytes);
	/* parts of memory that ranks share are alike */
	HOLDS(said->step <= info.step_bytes && info.step_bytes <= f->e->total.step);
	HOLDS(said->total == said->weights + said->gradients + said->state + said->step);
	return TESS_OK;
}

START_TEST(allocates_what_is_said)
{
	const struct forecast_case *c = &cases[_i];
	struct forecast_run f = { .how = c,
		                  .options = { .size = sizeof f.options,
		                               .threads = 1,
		                               .plan = c->plan,
		                               .overrides = c->overrides,
		                               .optimizer = c->optimizer,
		                               .recompute =
		                                       c->recompute[0] ? c->recompute : NULL } };
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

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("forecast", 60, &r);

	tcase_add_loop_test(t, allocates_what_is_said, 0, sizeof cases / sizeof *cases);
	return suite_end(r);
}

/*
 * test_forecast.c - tess_explain_training's memory and files of each rank, against those of a
 * trainer's ranks for a step of that shape; and what a step reads from files and writes to them.
 */
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/train.h>

#define FOLDER "/tmp"

enum { SEQUENCES = 4, LENGTH = 48 };

static const struct forecast_case {
	const char *dir, *mesh, *plan;
	int32_t optimizer;
	const char *recompute[2], *overrides[2];
	int64_t micro; /* micro-batches of a step */
	const char *schedule;
	const char *offload[2]; /* folders of state and of weights */
} cases[] = {
	{ "data", "tp=1", "none", TESS_ADAMW, { 0 }, { 0 }, 1, NULL, { 0 } },
	{ "data", "tp=3", "tp", TESS_ADAMW, { 0 }, { 0 }, 1, NULL, { 0 } },
	{ "data",
	  "tp=2",
	  "tp+sp",
	  TESS_SGD,
	  { "model.layers.*" },
	  { "lm_head=loss_parallel" },
	  1,
	  NULL,
	  { 0 } },
	{ "data", "dp=2,tp=2", "tp", TESS_ADAMW, { 0 }, { 0 }, 1, NULL, { 0 } },
	{ "data", "dp=3", "none", TESS_ADAMW, { "**.mlp" }, { 0 }, 3, NULL, { 0 } },
	{ "tests/data/goldens/llama-bf16",
	  "dp=2,tp=2",
	  "tp",
	  TESS_ADAMW,
	  { 0 },
	  { 0 },
	  1,
	  NULL,
	  { 0 } },
	{ "tests/data/goldens/gpt2", "tp=2", "tp", TESS_ADAMW, { 0 }, { 0 }, 1, NULL, { 0 } },
	/* the head of tied embeddings has a gradient and a copy of the table */
	{ "data", "dp=2,pp=2", "none", TESS_ADAMW, { 0 }, { "dp:**=zero1" }, 1, NULL, { 0 } },
	/* slots of all stages and micro-batches */
	{ "data", "pp=2,tp=2", "tp+sp", TESS_ADAMW, { 0 }, { 0 }, 3, "interleaved:2", { 0 } },
	{ "data", "pp=2", "none", TESS_ADAMW, { "**.mlp" }, { 0 }, 3, "zb-v", { 0 } },
	/* state in files, or weights and gradients, too */
	{ "data", "tp=2", "tp", TESS_ADAMW, { 0 }, { 0 }, 1, NULL, { FOLDER, NULL } },
	{ "data",
	  "dp=2",
	  "none",
	  TESS_ADAMW,
	  { 0 },
	  { "dp:**=zero3" },
	  2,
	  NULL,
	  { FOLDER, FOLDER } },
	{ "tests/data/goldens/llama-bf16",
	  "tp=2",
	  "tp",
	  TESS_ADAMW,
	  { 0 },
	  { 0 },
	  1,
	  NULL,
	  { FOLDER, FOLDER } },
	{ "data", "tp=1", "none", TESS_ADAMW, { 0 }, { 0 }, 3, NULL, { FOLDER, FOLDER } },
	{ "data",
	  "dp=2,pp=2",
	  "none",
	  TESS_SGD,
	  { 0 },
	  { "dp:**=zero1" },
	  1,
	  NULL,
	  { FOLDER, FOLDER } },
	{ "tests/data/goldens/llama-bf16",
	  "dp=3,tp=1",
	  "none",
	  TESS_ADAMW,
	  { 0 },
	  { "dp:**=zero3" },
	  1,
	  NULL,
	  { NULL, FOLDER } },
};

enum { CASES = sizeof cases / sizeof *cases, FIRST = TSAN ? 2 : 0 };

struct forecast_run {
	const struct forecast_case *how;
	const char *dir;
	struct tess_trainer_options options;
	const struct tess_explanation *e;
	/* the memory of a step is not compared: the first of several micro-batches may need more
	 * than the others, of which one is explained */
	bool any_step;
};

/* Trains two steps: the second needs no more memory. */
static tess_status train_two_steps(struct tess_trainer *t, int64_t micro,
                                   struct tess_training_result *result)
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
		st = tess_trainer_step(t, batches, micro, 1e-3, result);
	return st;
}

static uint64_t sum_kinds(const uint64_t bytes[TESS_DISK_KINDS])
{
	uint64_t sum = 0;

	for (int i = 0; i < TESS_DISK_KINDS; i++)
		sum += bytes[i];
	return sum;
}

/* Compares what a step has moved between memory and files with what was said. */
static tess_status compare_moved(const struct forecast_run *f,
                                 const struct tess_explained_rank *said,
                                 const struct tess_training_result *r)
{
	HOLDS(sum_kinds(said->disk_read) == r->offload_read);
	HOLDS(sum_kinds(said->disk_written) == r->offload_written);
	HOLDS(!f->how->offload[1] || (r->offload_read && r->offload_written));
	return TESS_OK;
}

static tess_status compare_rank(struct tess_world *w, void *arg)
{
	const struct forecast_run *f = arg;
	const struct tess_explained_rank *said = f->e->ranks[tess_world_rank(w)];
	struct tess_trainer_info info = { .size = sizeof info };
	struct tess_training_result result = { .size = sizeof result };
	struct tess_trainer *t;
	struct tess_mesh *mesh;
	tess_status st = tess_mesh_open(w, f->how->mesh, &mesh);

	if (st)
		return st;
	st = tess_trainer_open(mesh, f->dir, &f->options, &t);
	if (!st) {
		st = train_two_steps(t, f->how->micro, &result);
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
	HOLDS(f->any_step ||
	      (said->step <= info.step_bytes && info.step_bytes <= f->e->total.step));
	HOLDS(said->transfer == info.transfer_bytes);
	HOLDS(said->weights_disk == info.weight_disk_bytes);
	HOLDS(said->state_disk == info.state_disk_bytes);
	HOLDS(!f->how->offload[1] || (said->weights_disk && said->transfer));
	HOLDS(!f->how->offload[0] || f->how->optimizer == TESS_SGD || said->state_disk);
	HOLDS(said->total ==
	      said->weights + said->gradients + said->state + said->step + said->transfer);
	return compare_moved(f, said, &result);
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

/* Compares the ranks of a case with its explanation. */
static void compare_case(const struct forecast_case *c, double clip, bool any_step)
{
	struct forecast_run f = { .how = c,
		                  .any_step = any_step,
		                  .options = { .size = sizeof f.options,
		                               .threads = 1,
		                               .plan = c->plan,
		                               .overrides = c->overrides,
		                               .optimizer = c->optimizer,
		                               .recompute = c->recompute[0] ? c->recompute : NULL,
		                               .pipeline_schedule = c->schedule,
		                               .micro_batches = c->micro,
		                               .clip = clip,
		                               .offload_optimizer = c->offload[0],
		                               .offload_weights = c->offload[1] } };
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

START_TEST(allocates_what_is_said)
{
	compare_case(&cases[FIRST + _i * get_case_stride()], 0, false);
}
END_TEST

/* What is in files, with and without clipping, over kinds of weights and micro-batches. */
static const struct {
	const char *dir, *mesh, *rule;
} moved[] = {
	{ "data", "dp=2", "dp:**=zero1" },
	{ "data", "dp=3", "dp:**=zero3" },
	{ "data", "dp=2,tp=2", "dp:**=zero3" },
	{ "data", "tp=2", NULL },
	{ "tests/data/goldens/llama-bf16", "dp=2", "dp:**=zero1" },
	{ "tests/data/goldens/llama-bf16", "dp=2", "dp:**=zero3" },
	{ "tests/data/goldens/llama-bf16", "dp=2", NULL },
	{ "tests/data/goldens/mixtral", "dp=2", "dp:**=zero3" },
	{ "tests/data/goldens/gpt2", "ddp=2,dp=2", "dp:**=zero1" },
	{ "data", "pp=2", NULL },
};
enum { MOVED = sizeof moved / sizeof *moved, FILES = 3 };

START_TEST(moves_what_is_said)
{
	struct forecast_case c = { .dir = moved[_i].dir,
		                   .mesh = moved[_i].mesh,
		                   .plan = strstr(moved[_i].mesh, "tp") ? "tp" : "none",
		                   .optimizer = TESS_ADAMW };

	c.overrides[0] = moved[_i].rule;
	/* all of both for the first rows, and a part for the others */
	for (int i = _i < 4 ? 0 : _i % FILES; i < 2 * FILES; i += _i < 4 ? THIN : FILES) {
		int files = 1 + i % FILES; /* bits: state, weights */

		c.micro = 1 + (i + _i) % 2;
		c.offload[0] = files & 1 ? FOLDER : NULL;
		c.offload[1] = files & 2 ? FOLDER : NULL;
		compare_case(&c, i / FILES, true);
	}
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

/* Returns the bytes of the f32 parameters of a rank that are in files: from `least` bytes on. */
static uint64_t sum_large_parameters(const struct tess_explanation *e, uint64_t least)
{
	int64_t shape[8];
	uint64_t sum = 0;

	for (int32_t i = 0; i < e->nparameters; i++) {
		uint64_t bytes = tess_explanation_shard(e, i, 0, shape);

		sum += e->parameters[i]->tied || bytes < least ? 0 : bytes;
	}
	return sum;
}

/* Checks what a step copies between a device and memory of the host, by hand. */
START_TEST(says_what_is_copied)
{
	struct tess_trainer_options o = {
		.size = sizeof o, .plan = "none", .offload_optimizer = "host", .micro_batches = 3
	};
	const struct tess_explained_rank *r;
	struct tess_explanation *e;
	uint64_t n;

	ck_assert(!setenv("TESSERA_DEVICE", "discrete_exact", 1));
	ck_assert_msg(!tess_explain_training(SOURCE_ROOT "/data", "tp=1", 0, 2, LENGTH, &o, &e),
	              "%s", tess_error());
	r = e->ranks[0];
	n = sum_large_parameters(e, 256);
	ck_assert(n > 0 && !r->weights_host && r->state_host > 2 * n && !r->state_disk);
	ck_assert(r->host_written[TESS_DISK_GRADIENTS] == n);
	ck_assert(r->host_written[TESS_DISK_WEIGHTS] == n && r->host_read[TESS_DISK_WEIGHTS] == n);
	ck_assert(!r->host_read[TESS_DISK_STATE] && !r->host_written[TESS_DISK_STATE]);
	ck_assert(r->total == r->weights + r->gradients + r->state + r->step && r->transfer > 0);
	tess_explanation_free(e);
	o.offload_weights = "host";
	ck_assert_msg(!tess_explain_training(SOURCE_ROOT "/data", "tp=1", 0, 2, LENGTH, &o, &e),
	              "%s", tess_error());
	r = e->ranks[0];
	ck_assert(r->weights_host >= 2 * n && r->weights < n && r->gradients < n && !r->transfer);
	ck_assert_uint_ge(r->host_read[TESS_DISK_WEIGHTS], 3 * n);
	ck_assert_uint_ge(r->host_written[TESS_DISK_GRADIENTS], 3 * n);
	ck_assert_uint_ge(r->host_read[TESS_DISK_GRADIENTS], 2 * n);
	tess_explanation_free(e);
	o.offload_weights = "disk";
	ck_assert_int_eq(tess_explain_training(SOURCE_ROOT "/data", "tp=1", 0, 2, LENGTH, &o, &e),
	                 TESS_ENOTSUP);
	expect_part(tess_error(), "use --offload-weights host, or the device cpu");
}
END_TEST

/* Checks what a step of one rank reads and writes, by hand. The limit is the environment's. */
START_TEST(says_what_files_move)
{
	struct tess_trainer_options o = {
		.size = sizeof o, .plan = "none", .offload_optimizer = "disk", .micro_batches = 3
	};
	const struct tess_explained_rank *r;
	struct tess_explanation *e;
	uint64_t n, gradients;

	ck_assert_msg(!tess_explain_training(SOURCE_ROOT "/data", "tp=1", 0, 2, LENGTH, &o, &e),
	              "%s", tess_error());
	r = e->ranks[0];
	n = sum_large_parameters(e, 256);
	ck_assert(n > 0 && r->disk_read[TESS_DISK_STATE] == 2 * n);
	ck_assert(r->disk_written[TESS_DISK_STATE] == 2 * n && r->state_disk > 2 * n);
	ck_assert(!r->disk_read[TESS_DISK_WEIGHTS] && !r->disk_read[TESS_DISK_GRADIENTS]);
	ck_assert(!r->weights_disk && r->weights >= n);
	tess_explanation_free(e);
	o.offload_weights = "disk";
	ck_assert_msg(!tess_explain_training(SOURCE_ROOT "/data", "tp=1", 0, 2, LENGTH, &o, &e),
	              "%s", tess_error());
	r = e->ranks[0];
	ck_assert(r->disk_written[TESS_DISK_WEIGHTS] == n && r->weights < n);
	/* once by each micro-batch, whose forward and backward share it, and by the update */
	ck_assert_uint_eq(r->disk_read[TESS_DISK_WEIGHTS], (3 + 1) * n);
	/* written by each micro-batch; read by those after the first, and the update */
	ck_assert_uint_ge(r->disk_written[TESS_DISK_GRADIENTS], 3 * n);
	ck_assert_uint_ge(gradients = r->disk_read[TESS_DISK_GRADIENTS], (2 + 1) * n);
	ck_assert_uint_lt(gradients, (2 + 1 + 3) * n);
	ck_assert(!tess_explanation_fit(e, r->total, 0) && e->fit->used == r->total);
	tess_explanation_free(e);
	/* with clipping, by the norm, too */
	o.clip = 1;
	ck_assert(!tess_explain_training(SOURCE_ROOT "/data", "tp=1", 0, 2, LENGTH, &o, &e));
	ck_assert_uint_eq(e->ranks[0]->disk_read[TESS_DISK_GRADIENTS], gradients + n);
	tess_explanation_free(e);
}
END_TEST

START_TEST(short_disks)
{
	struct tess_trainer_options o = { .size = sizeof o,
		                          .plan = "none",
		                          .offload_optimizer = "/proc" };
	struct tess_explanation *e;

	ck_assert_int_eq(tess_explain_training(SOURCE_ROOT "/data", "dp=2", 0, 2, LENGTH, &o, &e),
	                 TESS_ENOMEM);
	expect_part(tess_error(), "/proc: 2 ranks need files of ");
	expect_part(tess_error(), " bytes together there, and 0 bytes are free");
	o.offload_optimizer = "/nowhere/at/all";
	ck_assert_int_eq(tess_explain_training(SOURCE_ROOT "/data", "dp=2", 0, 2, LENGTH, &o, &e),
	                 TESS_EIO);
	expect_part(tess_error(), "--offload-optimizer /nowhere/at/all: not a folder here");
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
	if (!strcmp(getenv("TESSERA_BACKEND"), "loopback"))
		tcase_add_loop_test(t, moves_what_is_said, 0, MOVED);
	tcase_add_test(t, says_what_is_sent);
	tcase_add_test(t, says_what_files_move);
	tcase_add_test(t, says_what_is_copied);
	tcase_add_test(t, short_disks);
	tcase_add_loop_test(t, refuses, 0, sizeof refusals / sizeof *refusals);
	return suite_end(r);
}

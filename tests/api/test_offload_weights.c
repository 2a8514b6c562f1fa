/*
 * test_offload_weights.c - training with weights and gradients in files: the bits of a run in
 * memory for any mesh, schedule and number of micro-batches, with state in memory or in a file.
 * OFFLOAD_DEVICE names a device with exact sums and memory of its own: on it, weights, state or
 * both are in memory of the host instead of files. The environment makes limits small.
 */
#include "tests/support/hashed_training.h"
#include "tests/support/suite.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>
#include <tessera/train.h>

enum { SEQUENCES = 4, IDS = 110, STEPS = 2, MICRO = 3 };

static const int64_t lengths[SEQUENCES] = { 33, 5, 40, 32 };

struct job { /* of all ranks */
	const char *model, *mesh, *plan, *schedule;
	const char *const *overrides, *const *recompute; /* end with NULL */
	uint64_t bucket;
	int nmicro;
	const char *device;
	const char *weights, *state; /* folders, or "host"; NULL: memory of the device */
	uint64_t hash; /* of gradients, weights, losses and norms */
	struct tess_trainer_info info; /* of rank 0 */
};

static tess_status train_few_steps(struct tess_trainer *t, const void *job, uint64_t *hash)
{
	const struct job *j = job;
	int32_t ids[MICRO][IDS];
	struct tess_training_result r = { .size = sizeof r };
	tess_status st = TESS_OK;

	for (int step = 0; step < STEPS && !st; step++) {
		struct tess_batch micro[MICRO];

		for (int k = 0; k < j->nmicro; k++) {
			for (int i = 0; i < IDS; i++)
				ids[k][i] = (i * 37 + i / 7 * 11 + (2 * step + k) * 29) % 90;
			micro[k] = (struct tess_batch){ SEQUENCES, lengths, ids[k], NULL };
		}
		st = tess_trainer_step(t, micro, j->nmicro, 1e-2, &r);
		hash_add_bytes(hash, &r.loss, sizeof r.loss);
		hash_add_bytes(hash, &r.norm, sizeof r.norm);
		if (!st)
			st = hash_trained_tensors(t, TESS_GRADIENT, TESS_GRADIENT, hash);
	}
	return st ? st : hash_trained_tensors(t, TESS_WEIGHT, TESS_WEIGHT, hash);
}

static tess_status run_offloaded_job(struct job *j)
{
	struct tess_trainer_options options = { .size = sizeof options,
		                                .threads = 1,
		                                .plan = j->plan,
		                                .overrides = j->overrides,
		                                .recompute = j->recompute,
		                                .pipeline_schedule = j->schedule,
		                                .bucket = j->bucket,
		                                .weight_decay = 0.1,
		                                .clip = j->nmicro > 1, /* else early */
		                                .offload_optimizer = j->state,
		                                .offload_weights = j->weights };
	struct hashed_training h = { .model = j->model,
		                     .mesh = j->mesh,
		                     .options = &options,
		                     .train = train_few_steps,
		                     .job = j };
	tess_status st;

	setenv("TESSERA_DEVICE", j->device ? j->device : "cpu", 1);
	st = hashed_training_run(&h);
	j->hash = h.hash;
	j->info = h.info;
	return st;
}

#define LIST(...) \
	(const char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}
#define TIED "../../../data"
#define TIED_BF16 "../stories260K-bf16"

static char folder[64];
static const char *device; /* OFFLOAD_DEVICE, or NULL */
static const char *const models[] = { "llama", "llama-bf16", TIED, TIED_BF16, "mixtral", "gpt2" };
enum { MODELS = sizeof models / sizeof *models };

static const struct layout {
	const char *mesh, *plan, *schedule;
	const char *const *overrides;
	bool recomputes;
	const char *model; /* the only one that can, or the only one that is tested; NULL: all */
} layouts[] = {
	{ "tp=1", NULL, NULL, NULL, false, NULL },
	{ "tp=1", NULL, NULL, NULL, true, NULL },
	{ "dp=2,tp=1", NULL, NULL, NULL, false, NULL },
	{ "dp=2,tp=1", NULL, NULL, LIST("dp:**=zero1"), false, NULL },
	{ "dp=2,tp=1", NULL, NULL, LIST("dp:**=zero3"), true, NULL },
	{ "tp=2", NULL, NULL, NULL, false, NULL },
	{ "tp=2", "tp+sp", NULL, NULL, false, NULL },
	{ "dp=2,tp=2", NULL, NULL, LIST("dp:**=zero3"), false, NULL },
	{ "pp=2", NULL, NULL, NULL, false, NULL },
	{ "pp=2,tp=2", NULL, "zb-h1", NULL, false, NULL },
	{ "dp=2,pp=2", NULL, NULL, LIST("dp:**=zero1"), false, NULL },
	{ "dp=2,pp=2", NULL, NULL, LIST("dp:**=zero3"), true, NULL },
	{ "dp=3,tp=1", NULL, NULL, LIST("dp:**=zero3"), false, "llama" },
	{ "dp=3,tp=1", NULL, NULL, LIST("dp:**=zero1"), false, "llama" },
	{ "ddp=2,dp=2,tp=1", NULL, NULL, LIST("dp:**=zero3"), false, "llama-bf16" },
	{ "ddp=2,dp=2,tp=1", NULL, NULL, LIST("dp:**=zero1"), false, "llama-bf16" },
	{ "pp=2", NULL, "zb-v", NULL, false, TIED },
	{ "pp=2", NULL, "interleaved:2", NULL, true, TIED },
	{ "ep=2,tp=2", "ep", NULL, NULL, false, "mixtral" },
	{ "dp=2,ep=2,tp=1", "ep", NULL, LIST("dp:**=zero3"), false, "mixtral" },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* Checks how much is in which memory, and in files. */
static void check_bytes_in(const struct job *j, const struct job *memory)
{
	const struct tess_trainer_info *a = &j->info;

	ck_assert((a->weight_disk_bytes > 0) == (j->weights && !device));
	ck_assert((a->state_disk_bytes > 0) == (j->state && !device));
	ck_assert((a->weight_host_bytes > 0) == (j->weights && device));
	ck_assert((a->state_host_bytes > 0) == (j->state && device));
	if (j->weights) {
		ck_assert_uint_lt(10 * a->weight_bytes, memory->info.weight_bytes);
		ck_assert_uint_lt(10 * a->gradient_bytes, memory->info.gradient_bytes);
	}
}

static void check_offloaded(const char *model, int i, int nmicro, const struct job *memory)
{
	const struct layout *l = &layouts[i];
	struct job j = { .model = model,
		         .mesh = l->mesh,
		         .plan = l->plan,
		         .schedule = l->schedule,
		         .overrides = l->overrides,
		         .recompute = l->recomputes
		                              ? LIST(strcmp(model, "gpt2") ? "model.layers.*"
		                                                           : "transformer.h.*")
		                              : NULL,
		         .bucket = i % 3 ? 9000 : 0,
		         .nmicro = nmicro,
		         .device = device,
		         .weights = folder,
		         .state = i % 4 > 1 ? folder : NULL };

	if (device) {
		j.weights = i % 3 ? "host" : NULL;
		j.state = i % 3 < 2 ? "host" : NULL;
	}

	ck_assert_msg(!run_offloaded_job(&j), "%s on %s: %s", model, l->mesh, tess_error());
	ck_assert_msg(j.hash == memory->hash, "%s on %s (%s, %s, %s), %d micro-batches: other bits",
	              model, l->mesh, l->plan ? l->plan : "auto",
	              l->schedule ? l->schedule : "1f1b",
	              l->overrides ? l->overrides[0] : "no rule", nmicro);
	check_bytes_in(&j, memory);
}

/* Every layout runs with each number of micro-batches for about half of the models. */
START_TEST(same_bits)
{
	int m = _i * THIN;
	const char *model = models[m];
	struct job memory[2];

	for (int k = 0; k < 2; k++) {
		memory[k] = (struct job){ .model = model, .mesh = "tp=1", .nmicro = k ? MICRO : 1 };
		ck_assert_msg(!run_offloaded_job(&memory[k]), "%s: %s", model, tess_error());
	}
	for (int i = TSAN; i < LAYOUTS; i++)
		if ((!layouts[i].model || !strcmp(layouts[i].model, model)) &&
		    (!device || (i + m) % 3 == 0)) /* the device waits on purpose */
			check_offloaded(model, i, (i + m) % 2 ? MICRO : 1, &memory[(i + m) % 2]);
}
END_TEST

/* Returns the number of copies that ran before queued ops, since the last call. */
static int take_early_copies(void)
{
	char path[512];

	snprintf(path, sizeof path, "%s/tess-device-%s.so", getenv("TESSERA_PLUGIN_PATH"), device);
	return atomic_exchange((atomic_int *)dlsym(dlopen(path, RTLD_NOW), "discrete_early_copies"),
	                       0);
}

/* Checks that gradients and weights are copied during the backward, without clipping. */
START_TEST(updates_in_the_backward)
{
	for (int nmicro = 1; nmicro <= MICRO; nmicro += MICRO - 1) {
		struct job j = { .model = models[_i],
			         .mesh = "tp=1",
			         .nmicro = nmicro,
			         .device = device,
			         .state = "host" };

		take_early_copies();
		ck_assert_msg(!run_offloaded_job(&j), "%s", tess_error());
		ck_assert_int_eq(take_early_copies() > 0, nmicro == 1);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("offload_weights", 120, &r);
	char command[128];
	int status;

	device = getenv("OFFLOAD_DEVICE");
	snprintf(folder, sizeof folder, "/tmp/tessera-offload-XXXXXX");
	ck_assert(mkdtemp(folder) != NULL);
	tcase_add_loop_test(t, same_bits, 0, (int)tess_up(MODELS, THIN));
	if (device)
		tcase_add_loop_test(t, updates_in_the_backward, 0, 2);
	status = suite_end(r);
	snprintf(command, sizeof command, "rm -r %s", folder);
	return system(command) ? 1 : status;
}

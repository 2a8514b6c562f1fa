/*
 * test_offload.c - training with optimizer state in files: the bits of a run in memory on any mesh,
 * saves, failures, refusals. OFFLOAD_DEVICE names a device with memory of its own, for state in
 * memory of the host. The environment makes limits small, so that the weights of small models are
 * in several buckets.
 */
#include "tests/nn/offload/disk_faults.h"
#include "tests/support/hashed_training.h"
#include "tests/support/suite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>
#include <tessera/train.h>

enum { SEQUENCES = 4, IDS = 110, STEPS = 3 };

static char folder[64];
static const int64_t lengths[SEQUENCES] = { 33, 5, 40, 32 };

struct job { /* of all ranks */
	const char *model, *mesh;
	const char *const *overrides; /* ends with NULL */
	int32_t optimizer;
	double momentum, clip;
	const char *device; /* NULL: cpu */
	const char *state, *weights; /* folders, or "host" */
	int first, end; /* steps */
	const char *resume, *save; /* folders; NULL: none */
	double lr; /* 0: 1e-2 */
	bool varies; /* steps have different shapes, and losses and weights are read between them */
	const char *refused; /* part of the message that refuses the second step; NULL: none */
	struct disk_faults faults; /* in the second step; at 0: none */
	uint64_t hash; /* of gradients, weights, masters, moments, losses and norms */
	struct tess_trainer_info info; /* of rank 0 */
};

/* Checks that no step and no save follows a failure, whose message is returned. */
static tess_status expect_unusable(struct tess_trainer *t, const struct tess_batch *micro,
                                   tess_status failed)
{
	char message[1024];

	snprintf(message, sizeof message, "%s", tess_error());
	ck_assert_int_eq(tess_trainer_step(t, micro, 2, 1e-2, NULL), TESS_EIO);
	expect_part(tess_error(), "resume from the last save");
	ck_assert_int_eq(tess_trainer_save(t, folder, 0, NULL), TESS_EIO);
	expect_part(tess_error(), "resume from the last save");
	return tess_fail(failed, "%s", message);
}

/* Reads a loss and a weight between two steps, whose update may not have ended. */
static tess_status read_between(struct tess_trainer *t, const struct tess_batch *micro, int step,
                                uint64_t *hash)
{
	struct tess_training_result r = { .size = sizeof r };
	float first[4] = { 0 };
	tess_status st = TESS_OK;

	if (step % 2 == 0)
		st = tess_trainer_compute_gradients(t, micro, 1, &r);
	else
		st = tess_trainer_gather(t, TESS_WEIGHT, 0, 0, 2, -1, first);
	hash_add_bytes(hash, &r.loss, sizeof r.loss);
	hash_add_bytes(hash, first, sizeof first);
	return st;
}

/* Trains two micro-batches a step, which depend on the step. */
static tess_status train_micro_steps(struct tess_trainer *t, const struct job *j, uint64_t *hash)
{
	int32_t ids[2][IDS];
	struct tess_training_result r = { .size = sizeof r };
	tess_status st = TESS_OK;

	for (int step = j->first; step < j->end && !st; step++) {
		struct tess_batch micro[2];
		/* one in steps that are refused: the update may begin in the last one */
		int nmicro = j->varies ? 1 + step / 2 % 2 : j->refused ? 1 : 2;
		int nsequences = j->varies ? SEQUENCES - step % 2 : SEQUENCES;

		for (int k = 0; k < 2; k++) {
			for (int i = 0; i < IDS; i++)
				ids[k][i] = (i * 37 + i / 7 * 11 + (2 * step + k) * 29) % 90;
			micro[k] = (struct tess_batch){ nsequences, lengths, ids[k], NULL };
		}
		if (step == 1 && j->faults.at) {
			float first;

			st = tess_trainer_gather(t, TESS_WEIGHT, 0, 0, 1, -1, &first);
			disk_faults_set(&j->faults); /* no update is under way */
		}
		if (!st)
			st = tess_trainer_step(t, micro, nmicro, j->lr > 0 ? j->lr : 1e-2, &r);
		if (step == 1 && j->faults.error && !j->weights && !st) /* it may end later */
			st = tess_trainer_step(t, micro, nmicro, 1e-2, &r);
		if (step == 1 && j->refused) {
			ck_assert_int_eq(st, TESS_EINVAL);
			expect_part(tess_error(), j->refused);
			return TESS_OK;
		}
		if (step == 1 && j->faults.error && !j->weights) /* some have changed */
			return expect_unusable(t, micro, st);
		hash_add_bytes(hash, &r.loss, sizeof r.loss);
		hash_add_bytes(hash, &r.norm, sizeof r.norm);
		if (st || !j->varies)
			continue;
		if (j->state && step && step % 2 == 0) /* the gather before it has waited */
			ck_assert_msg(r.offload_written, "the last update is not counted");
		st = read_between(t, micro, step, hash);
	}
	return st;
}

/* Resumes, trains and saves, and hashes gradients, weights, masters and moments. */
static tess_status train_offloaded(struct tess_trainer *t, const void *job, uint64_t *hash)
{
	const struct job *j = job;
	int32_t last = j->optimizer == TESS_ADAMW ? TESS_MOMENT2
	               : j->momentum > 0          ? TESS_MOMENT1
	                                          : TESS_MASTER;
	char *text = NULL;
	tess_status st = j->resume ? tess_trainer_load(t, j->resume, &text) : TESS_OK;

	if (!st)
		st = train_micro_steps(t, j, hash);
	if (!st && j->save)
		st = tess_trainer_save(t, j->save, 0, NULL);
	if (!st)
		st = hash_trained_tensors(t, TESS_WEIGHT, last, hash);
	free(text);
	return st;
}

static tess_status run_offload_job(struct job *j)
{
	struct tess_trainer_options options = { .size = sizeof options,
		                                .threads = 1,
		                                .overrides = j->overrides,
		                                .optimizer = j->optimizer,
		                                .momentum = j->momentum,
		                                .bucket = 9000,
		                                .weight_decay = 0.1,
		                                .clip = j->clip,
		                                .offload_optimizer = j->state,
		                                .offload_weights = j->weights };
	struct hashed_training h = { .model = j->model,
		                     .mesh = j->mesh,
		                     .options = &options,
		                     .train = train_offloaded,
		                     .job = j };
	tess_status st;

	setenv("TESSERA_DEVICE", j->device ? j->device : "cpu", 1);
	j->end = j->end ? j->end : STEPS;
	st = hashed_training_run(&h);
	j->hash = h.hash;
	j->info = h.info;
	return st;
}

/* ---- bits ------------------------------------------------------------------------------------ */

#define OVER(...) \
	(const char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}
#define TIED "../../../data"
#define TIED_BF16 "../stories260K-bf16"

/* f32 weights, bf16 weights with masters, tied embeddings, experts; and each optimizer. */
static const struct kind {
	const char *model;
	int32_t optimizer;
	double momentum, clip;
} kinds[] = {
	{ "llama", TESS_ADAMW, 0, 1 },      { "llama-bf16", TESS_ADAMW, 0, 0 },
	{ "llama", TESS_SGD, 0.9, 0 },      { TIED_BF16, TESS_ADAMW, 0, 1 },
	{ "llama-bf16", TESS_SGD, 0.9, 1 }, { "mixtral", TESS_ADAMW, 0, 0 },
	{ "llama", TESS_SGD, 0, 1 },        { TIED, TESS_ADAMW, 0, 0 },
};
enum { KINDS = sizeof kinds / sizeof *kinds, FEW = 2 };

static const struct layout {
	const char *mesh;
	const char *const *overrides;
	bool every; /* for each kind */
} layouts[] = {
	{ "tp=1", NULL, true },
	{ "dp=2,tp=1", OVER("dp:**=zero3"), true },
	{ "tp=2", NULL, false },
	{ "dp=3", NULL, false },
	{ "dp=2,tp=1", OVER("dp:**=zero1"), true },
	{ "dp=2,tp=2", OVER("dp:**=zero3"), false },
	{ "dp=2,pp=2", OVER("dp:**=zero1"), true },
	{ "pp=2,tp=2", NULL, false },
	{ "ddp=2,dp=2,tp=1", OVER("dp:**=zero3"), false },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static struct job make_kind_job(const struct kind *k)
{
	return (struct job){ .model = k->model,
		             .mesh = "tp=1",
		             .optimizer = k->optimizer,
		             .momentum = k->momentum,
		             .clip = k->clip };
}

START_TEST(same_bits)
{
	const struct kind *k = &kinds[_i * THIN];
	struct job memory = make_kind_job(k);

	ck_assert_msg(!run_offload_job(&memory), "%s: %s", k->model, tess_error());
	for (size_t i = TSAN; i < LAYOUTS; i++) {
		struct job j = make_kind_job(k);

		if (_i * THIN >= FEW && !layouts[i].every)
			continue;
		j.mesh = layouts[i].mesh;
		j.overrides = layouts[i].overrides;
		j.state = folder;
		ck_assert_msg(!run_offload_job(&j), "%s on %s: %s", k->model, j.mesh, tess_error());
		ck_assert_msg(j.hash == memory.hash, "%s on %s (%s): other bits than in memory",
		              k->model, j.mesh, j.overrides ? j.overrides[0] : "no rule");
		ck_assert(k->optimizer == TESS_SGD ||
		          20 * j.info.state_bytes < memory.info.state_bytes);
	}
}
END_TEST

/* ---- saves ----------------------------------------------------------------------------------- */

/* Checks that saves with and without files are equal, and are resumed by both on other meshes. */
START_TEST(saves)
{
	static const char *const meshes[] = { "tp=1", "dp=2,tp=1", "dp=2,pp=2", "tp=2" };
	static const struct kind kind = { "llama-bf16", TESS_ADAMW, 0, 1 };
	struct job memory = make_kind_job(&kind), one;
	char saved[2][96], step[128], command[256];

	memory.first = 1;
	for (int i = 0; i < 2; i++) {
		struct job j = make_kind_job(&kind);

		snprintf(saved[i], sizeof saved[i], "%s/saves-%d", folder, i);
		j.end = 1;
		j.save = saved[i];
		j.mesh = meshes[i];
		j.state = i ? folder : NULL;
		ck_assert_msg(!run_offload_job(&j), "%s", tess_error());
	}
	snprintf(command, sizeof command, "diff -r %s %s", saved[0], saved[1]);
	ck_assert_int_eq(system(command), 0);
	snprintf(step, sizeof step, "%s/step-1", saved[0]);
	memory.resume = step;
	ck_assert_msg(!run_offload_job(&memory), "%s", tess_error());
	for (int i = 0; i < (THIN > 1 ? 2 : 4); i++) {
		one = make_kind_job(&kind);
		snprintf(step, sizeof step, "%s/step-1", saved[i % 2]);
		one.first = 1;
		one.resume = step;
		one.mesh = meshes[i];
		one.state = i == 1 ? NULL : folder;
		ck_assert_msg(!run_offload_job(&one), "%s on %s", tess_error(), meshes[i]);
		ck_assert_msg(one.hash == memory.hash, "%s: other bits", meshes[i]);
	}
}
END_TEST

/* ---- updates in the backward ----------------------------------------------------------------- */

/* Checks that an update which ends in the next step is seen by whatever reads between them. */
START_TEST(reads_between_steps)
{
	for (size_t i = TSAN; i < 3; i++) {
		static const char *const meshes[] = { "tp=1", "dp=2,tp=1", "tp=2" };
		struct job memory = make_kind_job(&kinds[i == 1 ? 1 : 7]), j;

		memory.varies = true;
		memory.end = 6;
		ck_assert_msg(!run_offload_job(&memory), "%s", tess_error());
		j = memory;
		j.mesh = meshes[i];
		j.overrides = i == 1 ? OVER("dp:**=zero3") : NULL;
		j.state = folder;
		ck_assert_msg(!run_offload_job(&j), "%s: %s", meshes[i], tess_error());
		ck_assert_msg(j.hash == memory.hash, "%s: other bits", meshes[i]);
	}
}
END_TEST

/* Checks that a loss which is not finite changes no weight, although some are updated early. */
START_TEST(nonfinite_loss)
{
	static const char *const meshes[] = { "tp=1", "dp=2,tp=1" };
	struct job memory = make_kind_job(&kinds[1]);

	memory.end = 2;
	for (int i = 0; i < 4; i++) {
		const char *device = i < 2 ? NULL : getenv("OFFLOAD_DEVICE");
		struct job j;

		memory.mesh = meshes[i % 2]; /* the gradients, of NaN, depend on it */
		memory.device = device;
		memory.lr = 1e38;
		memory.refused = "no weight has changed";
		ck_assert_msg(!run_offload_job(&memory), "%s", tess_error());
		j = memory;
		j.state = device ? "host" : folder;
		ck_assert_msg(!run_offload_job(&j), "%s: %s", j.mesh, tess_error());
		ck_assert_msg(j.hash == memory.hash, "%s: other bits", j.mesh);
		j.lr = memory.lr = 1e30; /* the loss is finite, and gradients are not */
		j.refused = "some weights have changed";
		ck_assert_msg(!run_offload_job(&j), "%s: %s", j.mesh, tess_error());
		ck_assert_msg(!run_offload_job(&memory), "%s: %s", j.mesh, tess_error());
	}
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

static const struct failing_disk {
	const char *mesh;
	const char *const *overrides;
	bool weights; /* they are in files, too */
	struct disk_faults faults;
	const char *part; /* of the message */
} failing_disks[] = {
	{ "tp=1", NULL, false, { .at = 10, .calls = 1, .error = EIO }, "Input/output error" },
	{ "dp=2,tp=1",
	  OVER("dp:**=zero3"),
	  false,
	  { .at = 70, .calls = 1, .error = EIO },
	  "(bucket " },
	{ "tp=2", NULL, true, { .at = 130, .calls = 1, .error = ENOSPC }, "No space left" },
	{ "pp=2", NULL, true, { .at = 30, .calls = 9, .error = EIO }, "Input/output error" },
	{ "dp=2,tp=1", NULL, true, { .at = 5, .calls = 3 }, "the file ends before" },
};
enum { FAILING_DISKS = sizeof failing_disks / sizeof *failing_disks };

/*
 * Checks that a disk which fails in a step ends it on all ranks, that the trainer is not used after
 * that, and that a run which resumes on another mesh has the bits of one without a failure.
 */
START_TEST(failing_disk)
{
	const struct failing_disk *f = &failing_disks[_i], *other = &failing_disks[!_i];
	struct job memory = make_kind_job(&kinds[1]), j = make_kind_job(&kinds[1]);
	char saved[96], step[128];

	ck_assert(!setenv("TESSERA_DISK_IO", "threads", 1));
	snprintf(saved, sizeof saved, "%s/failing-%d", folder, _i);
	snprintf(step, sizeof step, "%s/step-1", saved);
	j.mesh = f->mesh;
	j.overrides = f->overrides;
	j.state = folder;
	j.weights = f->weights ? folder : NULL;
	j.end = 1;
	j.save = saved;
	ck_assert_msg(!run_offload_job(&j), "%s", tess_error());
	j.first = 1;
	j.end = 0;
	j.resume = memory.resume = step;
	j.save = NULL;
	j.faults = f->faults;
	ck_assert_int_eq(run_offload_job(&j), TESS_EIO);
	expect_part(tess_error(), f->part);
	disk_faults_set(&(struct disk_faults){ 0 });
	j.faults = (struct disk_faults){ 0 };
	j.mesh = other->mesh;
	j.overrides = other->overrides;
	memory.first = 1;
	ck_assert_msg(!run_offload_job(&j) && !run_offload_job(&memory), "%s", tess_error());
	ck_assert_msg(j.hash == memory.hash, "%s, then %s: other bits", f->mesh, j.mesh);
}
END_TEST

/* Checks that calls of the disk which move less than requested change no bit. */
START_TEST(short_counts)
{
	struct job memory = make_kind_job(&kinds[1]), j = make_kind_job(&kinds[1]);

	ck_assert(!setenv("TESSERA_DISK_IO", "threads", 1));
	j.mesh = "dp=2,tp=1";
	j.state = j.weights = folder;
	j.faults = (struct disk_faults){ .at = 4, .calls = 200, .moves = 4097 };
	ck_assert_msg(!run_offload_job(&memory) && !run_offload_job(&j), "%s", tess_error());
	ck_assert(j.hash == memory.hash);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(refusals)
{
	static const struct {
		const char *state, *weights, *rule, *part;
	} cases[] = {
		{ "/nowhere/at/all", NULL, "?a=ddp", "/nowhere/at/all" },
		{ "disk", NULL, "?a=ddp", "use --offload-optimizer DIR, a folder" },
		{ NULL, "disk", "?a=ddp", "use --offload-weights DIR, a folder" },
		{ NULL, NULL, "dp:**=zero1:state=disk", "no folder is given; use --offload-opt" },
		{ "host", NULL, "dp:**=ddp:state=disk", "no folder is given; use --offload-opt" },
		{ NULL, NULL, "dp:**=zero3:state=tape", "takes state=disk, state=host" },
		{ NULL, NULL, "dp:**=zero3:state=disk/", "takes state=disk, state=host" },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct job j = make_kind_job(&kinds[0]);

		j.mesh = "dp=2,tp=1";
		j.state = cases[i].state;
		j.weights = cases[i].weights;
		j.overrides = (const char *const[]){ cases[i].rule, NULL };
		ck_assert_msg(run_offload_job(&j), "%s", cases[i].rule);
		expect_part(tess_error(), cases[i].part);
	}
}
END_TEST

/* Checks that styles choose, module by module, what is in files. */
START_TEST(styles_choose)
{
	static const struct {
		const char *mesh, *rule[2];
	} cases[] = {
		{ "dp=1,tp=2", { "dp:**=ddp:state=host", "dp:layers.*.mlp.*=ddp:state=disk" } },
		{ "dp=2,tp=1", { "dp:**=zero3", "dp:layers.*.mlp.*=zero3:state=host" } },
		{ "dp=2,tp=1", { "dp:**=zero1", "dp:layers.*.mlp.*=zero1:state=host" } },
	};
	struct job memory = make_kind_job(&kinds[1]), all = make_kind_job(&kinds[1]);

	all.state = folder;
	ck_assert_msg(!run_offload_job(&memory) && !run_offload_job(&all), "%s", tess_error());
	ck_assert(!memory.info.state_disk_bytes && !memory.info.transfer_bytes);
	ck_assert(all.info.transfer_bytes && all.info.transfer_bytes < 140000);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct job j = make_kind_job(&kinds[1]);
		const char *const rules[] = { cases[i].rule[0], cases[i].rule[1], NULL };

		j.mesh = cases[i].mesh;
		j.state = folder;
		j.overrides = rules;
		ck_assert_msg(!run_offload_job(&j), "%s: %s", rules[0], tess_error());
		ck_assert_msg(j.hash == memory.hash, "%s: other bits", rules[0]);
		ck_assert_msg(j.info.state_disk_bytes &&
		                      j.info.state_disk_bytes < all.info.state_disk_bytes,
		              "%s: %llu bytes on disk, of %llu", rules[0],
		              (unsigned long long)j.info.state_disk_bytes,
		              (unsigned long long)all.info.state_disk_bytes);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("offload", 120, &r);
	char command[128];
	int status;

	/* in memory, where the machine has that: blocks of a disk are larger than these buckets */
	snprintf(folder, sizeof folder, "%s/tessera-offload-XXXXXX",
	         access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	ck_assert(mkdtemp(folder) != NULL);
	tcase_add_loop_test(t, same_bits, 0, (int)tess_up(KINDS, THIN));
	tcase_add_test(t, saves);
	tcase_add_test(t, reads_between_steps);
	tcase_add_test(t, nonfinite_loss);
	tcase_add_test(t, refusals);
	tcase_add_loop_test(t, failing_disk, 0, FAILING_DISKS);
	tcase_add_test(t, short_counts);
	if (!TSAN)
		tcase_add_test(t, styles_choose);
	status = suite_end(r);
	snprintf(command, sizeof command, "rm -r %s", folder);
	return system(command) ? 1 : status;
}

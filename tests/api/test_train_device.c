/*
 * test_train_device.c - training in memory that the host cannot read (discrete.c). Where sums are
 * exact, losses, norms, gradients and weights have the bits of the cpu device on any mesh. Where a
 * Partial is one node and calls add, they are as close as the order of sums allows. With
 * GPU_DEVICE: the goldens of training on a GPU, or on an emulated one.
 */
#include "tests/support/spawn.h"
#include "tests/support/training.h"

#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* 33 and 64 end after and at a unit of 32; ranks along tp have no token of the shortest. */
static const int64_t lengths[] = { 33, 2, 64, 9 };
static int32_t ids[108];
static const struct tess_batch batches[] = { { 4, lengths, ids, NULL }, { 4, lengths, ids, ids } };

#define OVER(...) \
	(const char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}

static const struct layout {
	const char *model, *mesh;
	int32_t nranks;
	const char *plan;
	const char *const *overrides;
	double balance, dropout;
	uint64_t bucket;
	const char *schedule;
} layouts[] = {
	{ "llama-odd", "dp=2,tp=2", 4, "tp+sp", OVER("dp:**=zero3"), 0, 0, 9000, NULL },
	{ "llama-odd", "tp", 3, "tp+sp", NULL, 0, 0, 0, NULL },
	{ "llama-odd", "dp=3,tp=1", 3, NULL, OVER("dp:**=zero1"), 0, 0, 9000, NULL },
	{ "llama-odd", "ddp=2,dp=2", 4, NULL, OVER("dp:**=zero1"), 0, 0, 9000, NULL },
	{ "gpt2", "dp=2,tp=2", 4, NULL, NULL, 0, 0.2, 9000, NULL },
	{ "qwen3", "tp", 2, "tp+sp", OVER("lm_head=loss_parallel"), 0, 0, 0, NULL },
	{ "deepseek_v3", "tp", 2, NULL, NULL, 0, 0, 0, NULL },
	{ "llama-bf16", "dp=2,tp=1", 2, NULL, OVER("dp:**=zero3"), 0, 0, 9000, NULL },
	{ "llama-odd", "dp=2,pp=2", 4, NULL, OVER("dp:**=zero3"), 0, 0, 9000, NULL },
	{ "deepseek_v3", "pp=3,tp=1", 3, NULL, NULL, 0, 0, 0, NULL },
	{ "gemma3_text", "pp=2,tp=1", 2, NULL, NULL, 0, 0, 0, "interleaved:2" },
	{ "gemma3_text", "pp=2,tp=2", 4, "tp+sp", NULL, 0, 0, 0, "zb-v" },
	{ "mixtral", "ep=2,tp=2", 4, "ep", NULL, 0.02, 0, 0, NULL },
	{ "mixtral", "tp", 2, NULL, NULL, 0.02, 0, 0, NULL },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static bool nccl; /* calls are queued on the streams of the device */

/* Makes a job with two micro-batches, which are added; steps 0: gradients. */
static struct training_job make_device_job(const struct layout *l, int32_t steps)
{
	return (struct training_job){ .options = { .balance = l->balance,
		                                   .dropout = steps ? l->dropout : -1,
		                                   .clip = 1,
		                                   .weight_decay = 0.1 },
		                      .micro = batches,
		                      .nmicro = 2,
		                      .steps = steps,
		                      .lr = 1e-2 };
}

static void run_on_device(struct training_job *j, const struct layout *l, const char *device)
{
	ck_assert(!setenv("TESSERA_DEVICE", device, 1));
	ck_assert(!setenv("DISCRETE_LATE", "1", 1));
	j->options.plan = l->plan;
	j->options.overrides = l->overrides;
	j->options.bucket = l->bucket;
	j->options.pipeline_schedule = l->schedule;
	training_run_on(j, l->mesh, l->nranks);
}

static void run_on_cpu(struct training_job *j)
{
	ck_assert(!setenv("TESSERA_DEVICE", "cpu", 1));
	training_run_on(j, "tp", 1);
}

static void expect_equal_runs(const struct training_job *have, const struct training_job *want,
                              const struct layout *l)
{
	ck_assert_uint_eq(have->nbytes, want->nbytes);
	ck_assert_msg(!memcmp(have->bytes, want->bytes, want->nbytes), "%s on %s", l->model,
	              l->mesh ? l->mesh : "one rank");
	ck_assert(!memcmp(have->loss, want->loss, sizeof want->loss) &&
	          !memcmp(have->norm, want->norm, sizeof want->norm));
}

START_TEST(bits_of_the_cpu)
{
	const struct layout *l = &layouts[_i * THIN];
	struct training_job want = make_device_job(l, 2), have = want;

	training_open_golden(l->model);
	run_on_cpu(&want);
	run_on_device(&have, l, "discrete_exact");
	expect_equal_runs(&have, &want, l);
	training_free_job(&want);
	training_free_job(&have);
	training_close_golden();
}
END_TEST

/* Checks that memory of gradients is not freed, for more of them, while it is being cleared. */
START_TEST(gradients_that_move)
{
	const struct layout l = { .model = "gpt2" };
	struct training_job have = make_device_job(&l, 1);

	training_open_golden(l.model);
	ck_assert(!setenv("DISCRETE_COPY_US", "10000", 1));
	ck_assert(!setenv("TESSERA_DEVICE", "discrete_exact", 1));
	training_run_on(&have, "tp", 1);
	training_free_job(&have);
	training_close_golden();
}
END_TEST

/* Expects that no gradient differs by more than `bound` of the largest, nor do loss and norm. */
static void expect_similar(const struct training_job *have, const struct training_job *want,
                           const char *mesh, double bound)
{
	double most = 0, differs = 0;

	ck_assert_uint_eq(have->nbytes, want->nbytes);
	for (uint64_t i = 0; i < want->nbytes / sizeof(float); i++) {
		double a = (double)((float *)(void *)want->bytes)[i];
		double b = (double)((float *)(void *)have->bytes)[i];

		most = fmax(most, fabs(a));
		differs = isnan(b) ? (double)INFINITY : fmax(differs, fabs(a - b));
	}
	ck_assert_msg(differs <= bound * most, "%s: %g of %g", mesh, differs, most);
	ck_assert_double_le(fabs(have->loss[0] - want->loss[0]), bound * want->loss[0]);
	ck_assert_double_le(fabs(have->norm[0] - want->norm[0]), bound * want->norm[0]);
}

/* Returns the number of calls that began on the device after ops that were queued later. */
static int count_overlapped_calls(void)
{
	char path[512];
	atomic_int *n;

	snprintf(path, sizeof path, "%s/tess-device-discrete_cuda.so",
	         getenv("TESSERA_PLUGIN_PATH"));
	n = dlsym(dlopen(path, RTLD_NOW), "discrete_overlapped");
	return atomic_load(n);
}

/* Checks that over NCCL only sums and gathers along dp, and sends, overlap with ops. */
START_TEST(sums_in_any_order)
{
	const struct layout *l = &layouts[_i * THIN];
	struct training_job want = make_device_job(l, 0), have = want;

	training_open_golden(l->model);
	run_on_cpu(&want);
	run_on_device(&have, l, nccl ? "discrete_cuda" : "discrete");
	expect_similar(&have, &want, l->mesh, 1e-5);
	if (nccl)
		ck_assert_msg((count_overlapped_calls() > 0) ==
		                      (strstr(l->mesh, "dp=") || strstr(l->mesh, "pp=")),
		              "%s: %d calls", l->mesh, count_overlapped_calls());
	training_free_job(&want);
	training_free_job(&have);
	training_close_golden();
}
END_TEST

static tess_status fail_on_rank(struct tess_world *w, void *arg)
{
	const struct tess_trainer_options options = { .size = sizeof options,
		                                      .overrides = OVER("dp:**=zero3"),
		                                      .bucket = 9000 };
	struct tess_mesh *mesh = NULL;
	struct tess_trainer *t = NULL;
	tess_status st = tess_mesh_open(w, "dp=2,tp=1", &mesh);

	(void)arg;
	if (!st)
		st = tess_trainer_open(mesh, training_folder, &options, &t);
	if (!st)
		st = tess_trainer_compute_gradients(t, batches, 2, NULL);
	tess_trainer_close(t);
	tess_mesh_close(mesh);
	return st;
}

/* Failures while both ranks have calls in flight, each waiting for the other. */
static const struct failure {
	const char *key, *value, *sentence;
} failures[] = { { "FAKE_NCCL_FAILS", "1 40 6", "remote process exited" },
	         { "FAKE_NCCL_FAILS", "1 40 7", "deadline" },
	         { "DISCRETE_FAILS", "model.layers.0.mlp.down_proj", "a kernel failed" } };
enum { FAILURES = sizeof failures / sizeof *failures };

START_TEST(failures_beside_ops)
{
	const struct failure *f = &failures[_i];

	training_open_golden("llama-odd");
	setenv("TESSERA_DEVICE", "discrete_cuda", 1);
	if (!strcmp(f->sentence, "deadline"))
		setenv("TESSERA_TIMEOUT", "2", 1);
	setenv(f->key, f->value, 1);
	ck_assert(tess_world_spawn(2, fail_on_rank, NULL));
	ck_assert_msg(strstr(tess_error(), f->sentence), "%s", tess_error());
	training_close_golden();
}
END_TEST

/* ---- a GPU, or an emulated one (GPU_DEVICE) -------------------------------------------------- */

enum { EXIT_SKIPPED = 77 };

/* An emulated GPU, which is slow, runs every fourth. */
static const struct gpu_family {
	const char *name;
	double balance;
} gpu_families[] = { { "gpt2", 0 },      { "llama", 0 },        { "mistral", 0 },
	             { "qwen2", 0 },     { "mixtral", 0.02 },   { "qwen3", 0 },
	             { "olmo2", 0 },     { "phi3", 0 },         { "deepseek_v3", 0 },
	             { "gemma2", 0 },    { "phi3-partial", 0 }, { "llama-odd", 0 },
	             { "gpt_oss", 0.02 } };
enum { GPU_FAMILIES = sizeof gpu_families / sizeof *gpu_families };

static bool is_emulated(void)
{
	return strstr(getenv("GPU_DEVICE"), "emulated");
}

/* Checks that gradients are within 3 times the error of torch's float32 against float64. */
START_TEST(gradients_of_a_gpu)
{
	const struct gpu_family *f = &gpu_families[_i * (is_emulated() ? 4 : 1)];
	struct tess_trainer_options options = { .size = sizeof options, .balance = f->balance };

	training_open_golden(f->name);
	training_read_batch();
	spawn_ranks(1, training_check_gradients, &options);
	training_close_golden();
}
END_TEST

START_TEST(steps_of_a_gpu)
{
	double norm_times = 3;

	training_open_golden("llama-odd");
	training_read_batch();
	spawn_ranks(1, training_check_adamw, &norm_times);
	training_close_golden();
}
END_TEST

/* Checks that operands of products are rounded to bf16 next to weights in bf16. */
START_TEST(bf16_of_a_gpu)
{
	struct training_job want = { .micro = &training_batch, .nmicro = 1 }, have = want;

	training_open_golden("llama"); /* it has a batch */
	training_read_batch();
	training_close_golden();
	training_open_golden("llama-bf16");
	run_on_cpu(&want);
	ck_assert(!setenv("TESSERA_DEVICE", getenv("GPU_DEVICE"), 1));
	training_run_on(&have, "tp", 1);
	expect_similar(&have, &want, "tp", 2e-2);
	training_free_job(&want);
	training_free_job(&have);
	training_close_golden();
}
END_TEST

/*
 * Checks that values that are stored as bf16, since all their readers round them, change no bit: a
 * wrapper has f32 rows.
 */
START_TEST(rounded_values)
{
	const struct layout l = { .model = "llama-bf16" };
	struct training_job want = make_device_job(&l, 2), have = want;
	char wrapped[64];

	snprintf(wrapped, sizeof wrapped, "mine:%s", getenv("GPU_DEVICE"));
	training_open_golden(l.model);
	ck_assert(!setenv("TESSERA_DEVICE", wrapped, 1));
	training_run_on(&want, "tp", 1);
	ck_assert(!setenv("TESSERA_DEVICE", getenv("GPU_DEVICE"), 1));
	training_run_on(&have, "tp", 1);
	expect_equal_runs(&have, &want, &l);
	training_free_job(&want);
	training_free_job(&have);
	training_close_golden();
}
END_TEST

/* Checks that several ranks on it have the gradients of one, with equal bits in every run. */
START_TEST(ranks_of_a_gpu)
{
	const struct tess_batch batch = { is_emulated() ? 2 : 4, lengths, ids, NULL };
	struct training_job one = make_device_job(&layouts[0], 0), several[2];

	training_open_golden(layouts[0].model);
	one.micro = &batch;
	one.nmicro = 1;
	several[0] = several[1] = one;
	training_run_on(&one, "tp", 1);
	for (int i = 0; i < 2; i++)
		run_on_device(&several[i], &layouts[0], getenv("GPU_DEVICE"));
	expect_similar(&several[0], &one, "dp=2,tp=2", 1e-5);
	ck_assert(!memcmp(several[0].bytes, several[1].bytes, one.nbytes));
	ck_assert(several[0].loss[0] == several[1].loss[0]);
	training_free_job(&one);
	training_free_job(&several[0]);
	training_free_job(&several[1]);
	training_close_golden();
}
END_TEST

/*
 * Checks that state, weights and gradients in memory of the host change no bit: kernels of the
 * optimizer round as those of the CPU.
 */
START_TEST(host_memory_of_a_gpu)
{
	static const char *const places[][2] = { { "host", NULL },
		                                 { "host", "host" },
		                                 { NULL, "host" } };
	const struct layout l = { .model = _i ? "llama-bf16" : "llama-odd" };
	struct training_job want = make_device_job(&l, 2), have;

	want.options.clip = !_i; /* 0: the update runs in the backward */
	training_open_golden(l.model);
	training_run_on(&want, "tp", 1);
	ck_assert(!setenv("TESSERA_OFFLOAD_MIN", "256", 1));
	ck_assert(!setenv("TESSERA_OFFLOAD_BUCKET", "1000", 1));
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		have = make_device_job(&l, 2);
		have.options.clip = want.options.clip;
		have.options.offload_optimizer = places[i][0];
		have.options.offload_weights = places[i][1];
		training_run_on(&have, "tp", 1);
		expect_equal_runs(&have, &want, &l);
		training_free_job(&have);
	}
	training_free_job(&want);
	training_close_golden();
}
END_TEST

/*
 * Returns whether training works, by another process: the driver does not survive a fork, and each
 * test is one.
 */
static bool can_train_on_gpu(void)
{
	const struct tess_trainer_options options = { .size = sizeof options };
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		status = tess_trainer_check(&options);
		if (status)
			fprintf(stderr, "skipped: %s\n", tess_error());
		_exit(status != 0);
	}
	return waitpid(pid, &status, 0) == pid && !status;
}

int main(void)
{
	const char *gpu_device = getenv("GPU_DEVICE");

	SRunner *r;
	TCase *t = suite_begin("train_device", 120, &r);

	for (int i = 0; i < 108; i++)
		ids[i] = (i * 37 + i / 7 * 11) % 90;
	nccl = getenv("TESSERA_CUDA_LIBS");
	if (gpu_device) {
		setenv("TESSERA_DEVICE", gpu_device, 1);
		if (!can_train_on_gpu())
			return EXIT_SKIPPED;
		tcase_add_loop_test(t, gradients_of_a_gpu, 0,
		                    is_emulated() ? (GPU_FAMILIES + 3) / 4 : GPU_FAMILIES);
		tcase_add_test(t, steps_of_a_gpu);
		tcase_add_test(t, bf16_of_a_gpu);
		if (is_emulated()) /* cuBLASLt may add in another order */
			tcase_add_test(t, rounded_values);
		tcase_add_test(t, ranks_of_a_gpu);
		tcase_add_loop_test(t, host_memory_of_a_gpu, 0, 2);
		return suite_end(r);
	}
	if (nccl) {
		tcase_add_loop_test(t, failures_beside_ops, 0, FAILURES);
	} else {
		tcase_add_loop_test(t, bits_of_the_cpu, 0, (LAYOUTS + THIN - 1) / THIN);
		tcase_add_test(t, gradients_that_move);
	}
	tcase_add_loop_test(t, sums_in_any_order, 0, (LAYOUTS + THIN - 1) / THIN);
	return suite_end(r);
}

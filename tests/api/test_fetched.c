/*
 * test_fetched.c - sessions that read large weights from the checkpoint before each use: the logits
 * of a session that has them in memory, on any mesh and for all families; files that change; what
 * is refused. The environment makes limits small, so that small models have several runs and tiles.
 */
#include "tests/support/hash.h"
#include "tests/support/scratch.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/session.h>

enum { PROMPT = 9, TOKENS = 3, SEQUENCES = 2 };

struct fetched_job { /* of all ranks */
	const char *dir, *mesh, *plan;
	int32_t offload;
	void (*harm)(void); /* called on rank 0 after the first step; NULL: none */
	/* set by rank 0 */
	uint64_t hash; /* of all logits */
	struct tess_session_info info;
	int32_t files; /* weights that are in files */
};

static int32_t find_largest_logit(const float *logits, int64_t n)
{
	int32_t best = 0;

	for (int32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

/* Runs a prompt, and continues it by the largest logit, in two sequences; all ranks get logits. */
static tess_status run_fetched_steps(struct tess_session *s, struct fetched_job *j, uint64_t *hash,
                                     bool first)
{
	int32_t ids[SEQUENCES][PROMPT];
	struct tess_input in[SEQUENCES];
	const float *logits;
	tess_status st = TESS_OK;

	for (int i = 0; i < SEQUENCES; i++) {
		in[i] = (struct tess_input){ NULL, ids[i], PROMPT - i, PROMPT - i };
		for (int k = 0; k < PROMPT; k++)
			ids[i][k] = (k * 37 + i * 11) % 50;
		if (!st)
			st = tess_sequence_open(s, &in[i].sequence);
	}
	for (int t = 0; t <= TOKENS && !st; t++) {
		int64_t rows = 0;

		st = tess_session_step(s, in, SEQUENCES, -1, &logits);
		for (int i = 0; i < SEQUENCES && !st; i++) {
			rows += in[i].nselected;
			ids[i][0] = find_largest_logit(logits + (rows - 1) * j->info.vocabulary,
			                               j->info.vocabulary);
			in[i].n = in[i].nselected = 1;
		}
		if (!st)
			hash_add_bytes(hash, logits,
			               (size_t)(rows * j->info.vocabulary) * sizeof *logits);
		if (first && j->harm && !t)
			j->harm();
	}
	for (int i = 0; i < SEQUENCES; i++)
		tess_sequence_close(in[i].sequence);
	return st;
}

static int32_t count_weights_in_files(const struct tess_session *s)
{
	int32_t n = tess_session_list_weights(s, NULL, 0), files = 0;
	struct tess_weight_storage *w = calloc((size_t)n, sizeof *w);

	tess_session_list_weights(s, w, n);
	for (int32_t i = 0; i < n; i++)
		files += !strcmp(w[i].kind, "file");
	free(w);
	return files;
}

static tess_status run_fetched(struct tess_world *w, void *arg)
{
	struct fetched_job *j = arg, mine = *j;
	struct tess_session_options options = {
		.size = sizeof options, .threads = 1, .plan = j->plan, .offload_weights = j->offload
	};
	struct tess_session *s = NULL;
	struct tess_mesh *mesh = NULL;
	bool first = tess_world_rank(w) == 0;
	uint64_t hash = HASH_BEGIN;
	tess_status st = tess_mesh_open(w, j->mesh, &mesh);

	if (!st)
		st = tess_session_open(mesh, j->dir, &options, &s);
	mine.info.size = sizeof mine.info;
	if (!st) {
		tess_session_get_info(s, &mine.info);
		mine.files = count_weights_in_files(s);
		st = run_fetched_steps(s, &mine, &hash, first);
	}
	tess_session_close(s);
	tess_mesh_close(mesh);
	mine.hash = hash;
	if (first)
		*j = mine;
	return st;
}

static const char *const families[] = {
	"cohere2",      "deepseek_v3", "gemma2",      "gemma3_text", "glm4_moe",
	"gpt2",         "gpt_neox",    "gpt_oss",     "llama",       "gpt_oss-mxfp4",
	"llama-bf16",   "llama-odd",   "llama4_text", "mistral",     "mixtral",
	"mixtral-bf16", "olmo2",       "olmoe",       "opt",         "phi3",
	"phi3-partial", "qwen2",       "qwen2_moe",   "qwen3",       "qwen3_moe",
};
enum { FAMILIES = sizeof families / sizeof *families };

static const struct {
	const char *mesh, *plan;
	int ranks;
} meshes[] = {
	{ "tp=2", NULL, 2 },    { "pp=2", NULL, 2 }, { "tp=2,pp=2", NULL, 4 },
	{ "tp=2", "tp+sp", 2 }, { "tp=2", "ep", 2 }, { "tp=2", "none", 2 },
};
enum { MESHES = sizeof meshes / sizeof *meshes };

START_TEST(logits_do_not_depend_on_offloading)
{
	char dir[512];
	struct fetched_job memory = { .dir = dir, .mesh = "tp" }, j;
	int ran = 0;
	tess_status st;

	snprintf(dir, sizeof dir, "%s/tests/data/goldens/%s", SOURCE_ROOT, families[_i]);
	spawn_ranks(1, run_fetched, &memory);
	ck_assert(memory.info.offloaded_bytes == 0 && memory.files == 0);
	j = (struct fetched_job){ .dir = dir, .mesh = "tp", .offload = 1 };
	spawn_ranks(1, run_fetched, &j);
	ck_assert_msg(j.hash == memory.hash, "%s: other logits", families[_i]);
	ck_assert(j.files > 0 && j.info.offloaded_bytes > 0);
	ck_assert_msg(j.info.weight_bytes + j.info.mapped_bytes < j.info.offloaded_bytes,
	              "%s: %llu + %llu bytes stay, %llu are read", families[_i],
	              (unsigned long long)j.info.weight_bytes,
	              (unsigned long long)j.info.mapped_bytes,
	              (unsigned long long)j.info.offloaded_bytes);
	for (int m = _i % THIN; m < MESHES; m += THIN) {
		j = (struct fetched_job){
			.dir = dir, .mesh = meshes[m].mesh, .plan = meshes[m].plan, .offload = 1
		};
		st = tess_world_spawn_threads(meshes[m].ranks, run_fetched, &j);
		/* not each family has each plan, or two layers */
		ck_assert_msg(st == TESS_EINVAL || st == TESS_ENOENT ||
		                      (!st && j.hash == memory.hash),
		              "%s, %s, %s: other logits: %s", families[_i], meshes[m].mesh,
		              meshes[m].plan ? meshes[m].plan : "auto", st ? tess_error() : "");
		ran += !st;
	}
	ck_assert_int_ge(ran, THIN == 1 ? 3 : 0);
}
END_TEST

/* ---- files that change ----------------------------------------------------------------------- */

static void copy_model_file(const char *name)
{
	char command[1024];

	snprintf(command, sizeof command, "cp '%s/data/%s' '%s/'", SOURCE_ROOT, name, scratch);
	ck_assert_int_eq(system(command), 0);
}

static void shorten_model_file(void)
{
	ck_assert_int_eq(truncate(scratch_format_path("model.safetensors"), 300000), 0);
}

static void touch_file(void)
{
	ck_assert_int_eq(utimensat(AT_FDCWD, scratch_format_path("model.safetensors"), NULL, 0), 0);
}

static void replace_file(void)
{
	copy_model_file("config.json");
	ck_assert_int_eq(unlink(scratch_format_path("model.safetensors")), 0);
}

START_TEST(changed_files_are_errors)
{
	static void (*const harm[])(void) = { shorten_model_file, touch_file };
	struct fetched_job j = { .dir = scratch, .mesh = "tp", .offload = 1, .harm = harm[_i] };

	copy_model_file("config.json");
	copy_model_file("model.safetensors");
	ck_assert_int_eq(tess_world_spawn_threads(1, run_fetched, &j), TESS_EIO);
	expect_part(tess_error(), "model.safetensors: has changed since it was opened");
	j.harm = replace_file; /* the open file stays as it is */
	copy_model_file("model.safetensors");
	spawn_ranks(1, run_fetched, &j);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static tess_status open_refused(struct tess_world *w, void *arg)
{
	struct tess_mesh *mesh = NULL;
	struct tess_session *s = NULL;
	tess_status st = tess_mesh_open(w, "tp", &mesh);

	if (!st)
		st = tess_session_open(mesh, SOURCE_ROOT "/data", arg, &s);
	tess_session_close(s);
	tess_mesh_close(mesh);
	return st;
}

START_TEST(compressed_weights_are_refused)
{
	static const int32_t weights[] = { TESS_Q8, TESS_BF12, TESS_MXFP4 };
	struct tess_session_options options = { .size = sizeof options,
		                                .offload_weights = 1,
		                                .weights = weights[_i] };

	ck_assert_int_eq(tess_world_spawn_threads(1, open_refused, &options), TESS_EINVAL);
	expect_part(tess_error(), "leave out --weights, or --offload-weights");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("fetched", 120, &r);

	scratch_make();
	tcase_add_loop_test(t, logits_do_not_depend_on_offloading, 0, FAMILIES);
	tcase_add_loop_test(t, changed_files_are_errors, 0, 2);
	tcase_add_loop_test(t, compressed_weights_are_refused, 0, 3);
	return suite_end(r);
}

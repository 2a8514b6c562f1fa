/*
 * test_rank_inputs.c - ranks whose files or options differ from the rest of their job: all ranks
 * return one message that names the rank, and the tensor, key or option.
 */
#include "hf/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"
#include "tests/support/spawn.h"

#include <stdbool.h>
#include <tessera/tessera.h>

enum { TEXT = 16384 };

#define DATA SOURCE_ROOT "/data"

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void run_in_scratch(const char *command)
{
	char text[TEXT];

	ck_assert_msg(!command_run(text, TEXT, "cd '%s' && (%s) 2>&1", scratch, command), "%s",
	              text);
}

/* Changes the byte at 1/nth of a tensor. */
static void change_weight(const char *folder, const char *tensor, uint64_t nth)
{
	char path[512];
	struct tess_safetensors *f;
	const struct tess_slice *s;
	FILE *out;
	long at;

	snprintf(path, sizeof path, "%s/%s/model.safetensors", scratch, folder);
	ck_assert_int_eq(tess_safetensors_open(path, true, &f), TESS_OK);
	s = tess_safetensors_find(f, tensor);
	ck_assert(s);
	at = (long)(tess_safetensors_data_start(f) + s->begin + s->bytes / nth);
	tess_safetensors_close(f);
	out = fopen(path, "r+b");
	ck_assert(out && !fseek(out, at, SEEK_SET) && fputc('7', out) == '7' && !fclose(out));
}

#define UP_PROJ "model.layers.1.mlp.up_proj.weight"

static void make_checkpoints(void)
{
	run_in_scratch(
		"for d in same weight unsampled config generation tokenizer; do mkdir $d; "
		"cp '" DATA "'/*.json '" DATA "/model.safetensors' $d; done; "
		"cp -r '" SOURCE_ROOT "/tests/data/stories260K-sharded' sharded; "
		"cp -r '" SOURCE_ROOT "/tests/data/stories260K-bf16' bf16; "
		"cp same/*.json bf16; "
		"sed -i 's/\"rms_norm_eps\": [^,]*/\"rms_norm_eps\": 0.25/' config/config.json; "
		"rm generation/generation_config.json; "
		"sed -i 's/the/teh/' tokenizer/tokenizer.json; "
		"echo '{\"plan\": \"tp\", \"micro_batches\": 1}' >one; "
		"echo '{\"plan\": \"tp\", \"micro_batches\": 2, \"predicted\": {}}' >two; "
		"echo '{\"micro_batches\": 2, \"plan\": \"tp\"}' >again");
	change_weight("weight", UP_PROJ, 2);
	change_weight("unsampled", UP_PROJ, 4);
}

/* ---- commands -------------------------------------------------------------------------------- */

struct case_of_rank { /* rank `rank` of n gets `odd` instead of `even` */
	const char *env, *args;
	int n, rank;
	const char *even, *odd;
	const char *says; /* after "rank R: "; NULL: accepted */
};

#define GENERATE "generate %s --prompt Once --max-tokens 2"
#define TRAIN "train %s --data '" DATA "/texts/stories.jsonl' --steps 1 --batch 2 --sequence 16"
#define TENSOR_DIFFERS "model.safetensors: tensor " UP_PROJ ": its bytes differ from those on rank "
#define OPTIONS "all ranks need the same options\n"

static const struct case_of_rank cases[] = {
	{ "", GENERATE, 2, 1, "same", "weight", "weight/" TENSOR_DIFFERS "0; copy the checkpoint" },
	{ "", GENERATE, 3, 0, "same", "weight", "weight/" TENSOR_DIFFERS "1; copy the checkpoint" },
	{ "", GENERATE " --mesh pp=2", 2, 1, "same", "weight", "weight/" TENSOR_DIFFERS "0; " },
	{ "", GENERATE " --mesh dp=2", 2, 1, "same", "weight", "weight/" TENSOR_DIFFERS "0; " },
	{ "TESSERA_LOAD=copy", GENERATE, 2, 1, "same", "weight", "weight/" TENSOR_DIFFERS "0; " },
	{ "", GENERATE " --check", 2, 1, "same", "unsampled", "unsampled/" TENSOR_DIFFERS "0; " },
	{ "", GENERATE, 2, 1, "same", "config",
	  "config/config.json: rms_norm_eps: is 0.25, but 1e-5 on rank 0; copy " },
	{ "", GENERATE, 2, 1, "same", "generation",
	  "generation/generation_config.json: bos_token_id: is absent, but not on rank 0; copy " },
	{ "", GENERATE, 2, 1, "same", "sharded",
	  "sharded/model-00001-of-00003.safetensors: tensor model.embed_tokens.weight: is absent "
	  "on rank 0; copy " },
	{ "", GENERATE, 2, 1, "same", "bf16",
	  "bf16/model.safetensors: tensor model.embed_tokens.weight: is BF16 [512, 64] at byte 0, "
	  "but F32 [512, 64] at byte 0 on rank 0; copy " },
	{ "", GENERATE " --mesh dp=2", 2, 1, "same", "tokenizer",
	  "tokenizer/tokenizer.json: its bytes differ from those on rank 0; copy " },
	{ "", GENERATE, 2, 1, "same", "tokenizer", NULL }, /* read by rank 0 only */
	{ "", TRAIN, 2, 1, "same", "weight", "weight/" TENSOR_DIFFERS "0; copy the checkpoint" },
	{ "", TRAIN " --check", 2, 1, "same", "unsampled", "unsampled/" TENSOR_DIFFERS "0; " },
	{ "", "convert %s out", 2, 1, "same", "weight", "weight/" TENSOR_DIFFERS "0; copy " },
	{ "", GENERATE, 2, 1, "same --seed 5", "same --seed 6",
	  "--seed is \"6\", but \"5\" on rank 0; " OPTIONS },
	{ "", GENERATE, 2, 1, "same", "same --stats",
	  "--stats is given, but not on rank 0; " OPTIONS },
	{ "", GENERATE, 3, 0, "same --top-k 3", "same",
	  "--top-k is not given, but --top-k 3 on rank 1; " OPTIONS },
	{ "", GENERATE, 2, 1, "same --prompt A", "same --prompt B",
	  "--prompt is \"B\", but \"A\" on rank 0; " OPTIONS },
	{ "", TRAIN, 2, 1, "same --lr 1e-3", "same --lr 2e-3",
	  "--lr is \"2e-3\", but \"1e-3\" on rank 0; " OPTIONS },
	{ "", TRAIN, 2, 1, "same --plan /dev/fd/3 3<one", "same --plan /dev/fd/3 3<two",
	  "micro_batches of the strategy is \"2\", but \"1\" on rank 0; " OPTIONS },
	{ "", TRAIN, 2, 1, "same --plan /dev/fd/3 3<two", "same --plan /dev/fd/3 3<again", NULL },
	{ "", "%s -n 2", 2, 1, "generate same", "perplexity same --text /dev/null",
	  "runs tessera perplexity, but rank 0 tessera generate\n" },
	{ "", TRAIN, 2, 1, "same --log /dev/null --device cpu", "same --threads 1", NULL },
#if HAVE_GLOO
	{ "TESSERA_BACKEND=gloo", GENERATE, 2, 1, "same", "weight",
	  "weight/" TENSOR_DIFFERS "0; " },
#endif
};

START_TEST(all_ranks_name_the_difference)
{
	const struct case_of_rank *c = &cases[_i];
	char text[TEXT], rank[32], even[1024], odd[1024], script[4096];
	int status;

	snprintf(even, sizeof even, c->args, c->even);
	snprintf(odd, sizeof odd, c->args, c->odd);
	snprintf(script, sizeof script, "[ $RANK = %d ] && exec '%s' %s; exec '%s' %s\n", c->rank,
	         TESSERA, odd, TESSERA, even);
	scratch_write_text("job", script);
	status = command_run(text, TEXT,
	                     "cd '%s' && TESSERA_TIMEOUT=60 %s '%s' launch -n %d -- sh ./job 2>&1",
	                     scratch, c->env, TESSERA, c->n);
	if (!c->says) {
		ck_assert_msg(!status, "%s", text);
		return;
	}
	ck_assert_msg(status == 1, "%d: %s", status, text);
	expect_part(text, c->says);
	snprintf(rank, sizeof rank, ": rank %d: ", c->rank);
	ck_assert_msg(count_occurrences(text, rank) >= c->n, "%s", text);
	ck_assert_msg(count_occurrences(text, c->says) >= c->n, "%s", text);
}
END_TEST

START_TEST(ranks_offload_the_same_weights)
{
	static const char differs[] =
		"rank 1: TESSERA_OFFLOAD_MIN is \"8\", but \"7\" on rank 0; " OPTIONS;
	static const char options[] = " --steps 1 --batch 2 --sequence 16 --offload-weights .";
	char text[TEXT];
	int status = command_run(
		text, TEXT,
		"cd '%s' && '%s' launch -n 2 -- sh -c 'TESSERA_OFFLOAD_MIN=$((7 + RANK)) exec "
		"\"%s\" train same --data \"" DATA "/texts/stories.jsonl\" %s' 2>&1",
		scratch, TESSERA, TESSERA, options);

	ck_assert_msg(status == 1, "%d: %s", status, text);
	ck_assert_int_ge(count_occurrences(text, differs), 2);
}
END_TEST

START_TEST(ranks_have_one_check)
{
	char text[TEXT];
	int status = command_run(text, TEXT,
	                         "cd '%s' && '%s' launch -n 2 -- sh -c 'TESSERA_CHECK=$RANK exec "
	                         "\"%s\" generate same --prompt Once --max-tokens 2' 2>&1",
	                         scratch, TESSERA, TESSERA);

	ck_assert_msg(status == 1, "%d: %s", status, text);
	ck_assert_int_ge(count_occurrences(text, "rank 1: TESSERA_CHECK is 1, but 0 on rank 0\n"),
	                 2);
}
END_TEST

/* ---- the C API, on ranks that are threads ---------------------------------------------------- */

static tess_status open_session_on(struct tess_mesh *mesh, const char *dir)
{
	struct tess_session *s = NULL;
	tess_status st = tess_session_open(mesh, dir, NULL, &s);

	tess_session_close(s);
	return st;
}

/* Opens the model on all ranks, and then `dir`, a save, on a rank. */
static tess_status load_save_on(struct tess_mesh *mesh, const char *dir)
{
	struct tess_trainer *t = NULL;
	char *state = NULL;
	tess_status st = tess_trainer_open(mesh, scratch_format_path("same"), NULL, &t);

	if (!st)
		st = tess_trainer_load(t, dir, &state);
	free(state);
	tess_trainer_close(t);
	return st;
}

struct job_of_threads {
	tess_status (*open)(struct tess_mesh *mesh, const char *dir);
	const char *dir[2];
	const char *says;
};

static tess_status run_thread(struct tess_world *w, void *arg)
{
	const struct job_of_threads *job = arg;
	struct tess_mesh *mesh;
	int64_t sum, one = 1;
	tess_status st;

	HOLDS(!tess_mesh_open(w, "tp", &mesh));
	st = job->open(mesh, job->dir[tess_world_rank(w)]);
	tess_mesh_close(mesh);
	if (!job->says)
		return st;
	HOLDS(st == TESS_EMISMATCH && strstr(tess_error(), job->says));
	/* the group stays usable */
	HOLDS(!tess_all_reduce(tess_world_group(w), &one, &sum, 1, TESS_I64, TESS_SUM, "after"));
	HOLDS(sum == 2);
	return TESS_OK;
}

static void expect_on_threads(tess_status (*open)(struct tess_mesh *, const char *),
                              const char *first, const char *second, const char *says)
{
	struct job_of_threads job = { open, { first, second }, says };

	spawn_ranks(2, run_thread, &job);
}

START_TEST(threads_compare_checkpoints)
{
	char same[512], weight[512];

	snprintf(same, sizeof same, "%s", scratch_format_path("same"));
	snprintf(weight, sizeof weight, "%s", scratch_format_path("weight"));
	expect_on_threads(open_session_on, same, same, NULL);
	expect_on_threads(open_session_on, same, weight, "/weight/" TENSOR_DIFFERS "0; ");
}
END_TEST

START_TEST(threads_compare_saves)
{
	char first[512], second[512];

	run_in_scratch("'" TESSERA "' train same --data '" DATA "/texts/stories.jsonl' "
	               "--steps 1 --batch 2 --sequence 16 --save saved && cp -r saved state && "
	               "sed -i 's/\"step\": 1/\"step\": 2/' state/step-1/training.json");
	snprintf(first, sizeof first, "%s/saved/step-1", scratch);
	expect_on_threads(load_save_on, first, first, NULL);
	snprintf(second, sizeof second, "%s/state/step-1", scratch);
	expect_on_threads(load_save_on, first, second,
	                  "/state/step-1/training.json: its bytes differ from those on rank 0; ");
}
END_TEST

int main(void)
{
	int failed;
	SRunner *r;
	TCase *t;

	scratch_make();
	make_checkpoints();
	t = suite_begin("rank inputs", 60, &r);
	tcase_add_loop_test(t, all_ranks_name_the_difference, 0,
	                    (int)(sizeof cases / sizeof *cases));
	tcase_add_test(t, ranks_have_one_check);
	tcase_add_test(t, ranks_offload_the_same_weights);
	tcase_add_test(t, threads_compare_checkpoints);
	tcase_add_test(t, threads_compare_saves);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

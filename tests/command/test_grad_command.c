/*
 * test_grad_command.c - tessera grad by its command line: one file for every mesh, with the names
 * of the checkpoint's files; and refusals, which write nothing.
 */
#include "core/base/status.h"
#include "hf/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"

#define GOLDEN SOURCE_ROOT "/tests/data/goldens/"

enum { TEXT = 8192 };

/* Runs it on two sequences of 8 ids in the scratch directory; returns the exit status. */
static int run_grad_command(char text[TEXT], const char *model, const char *args)
{
	return command_run(text, TEXT, "cd '%s' && '%s' grad '" GOLDEN "%s' %s 2>&1", scratch,
	                   TESSERA, model, args);
}

/* Writes a file of ids and labels, I64 [n, length of ids] and [n, length of labels]. */
static void write_batch(const char *name, int64_t n, int64_t nids, int64_t nlabels, int64_t odd)
{
	int64_t ids[64], labels[64];
	const int64_t shape[2][2] = { { n, nids }, { n, nlabels } };
	const struct tess_slice slices[2] = {
		{ .name = "ids", .dtype = TESS_I64, .ndim = 2, .shape = shape[0], .data = ids },
		{ .name = "labels",
		  .dtype = TESS_I64,
		  .ndim = 2,
		  .shape = shape[1],
		  .data = labels },
	};

	for (int64_t i = 0; i < 64; i++) {
		ids[i] = i * 29 % 83 + 1;
		labels[i] = i % 7 == 3 ? -100 : ids[i];
	}
	ids[1] = odd ? odd : ids[1];
	ck_assert_msg(!tess_safetensors_write(scratch_format_path(name), 2, slices), "%s",
	              tess_error());
}

static const struct {
	const char *model, *how[4];
} jobs[] = {
	{ "llama-odd",
	  { "-n 2 --backend loopback --threads 2", "-n 3 --backend shm --plan tp+sp",
	    "--mesh dp=2,tp=2 --backend shm --plan-override 'dp:**=zero3'",
	    /* files need no folder: gradients of one step are in memory */
	    "--backend loopback --plan '{\"plan\": \"tp\", \"mesh\": \"dp=2,tp=1\", "
	    "\"offload_optimizer\": \"disk\", \"offload_weights\": \"disk\", "
	    "\"recompute\": [\"model.layers.*\"]}'" } },
	{ "mixtral",
	  { "--mesh tp=1,ep=2 --plan ep --aux-loss 0.02",
	    "--mesh dp=2 --aux-loss 0.02 --backend loopback",
	    "-n 2 --backend loopback --aux-loss 0.02 "
	    "--plan-override 'lm_head=colwise_loss_parallel'",
	    "--mesh dp=2,ep=2,tp=1 --plan ep --aux-loss 0.02 --backend loopback" } },
};

/* Checks that its tensors are the loss and those of the checkpoint's files, all in f32. */
static void check_names(const char *model)
{
	struct tess_safetensors *have, *files;
	char path[512];

	snprintf(path, sizeof path, GOLDEN "%s/model.safetensors", model);
	ck_assert(!tess_safetensors_open(path, true, &files) &&
	          !tess_safetensors_open(scratch_format_path("one"), true, &have));
	ck_assert_uint_eq(tess_safetensors_count(have), tess_safetensors_count(files) + 1);
	for (size_t i = 0; i < tess_safetensors_count(files); i++) {
		const struct tess_slice *want = tess_safetensors_at(files, i);
		const struct tess_slice *s = tess_safetensors_find(have, want->name);

		ck_assert_msg(s && s->ndim == want->ndim && s->dtype == TESS_F32, "%s", want->name);
		ck_assert(!memcmp(s->shape, want->shape, (size_t)s->ndim * sizeof *s->shape));
	}
	ck_assert_int_eq(tess_safetensors_find(have, "loss")->dtype, TESS_F64);
	tess_safetensors_close(files);
	tess_safetensors_close(have);
}

START_TEST(one_file_for_every_mesh)
{
	const char *model = jobs[_i].model, *factor = _i ? "--aux-loss 0.02" : "";
	char text[TEXT], wanted[TEXT], args[512];

	write_batch("batch", 2, 32, 32, 0);
	snprintf(args, sizeof args, "--ids-file batch --out one %s", factor);
	ck_assert_msg(!run_grad_command(wanted, model, args), "%s", wanted);
	expect_part(wanted, "labels  53\n");
	check_names(model);
	for (size_t i = 0; i < 4; i++) {
		snprintf(args, sizeof args, "--ids-file batch --out other %s", jobs[_i].how[i]);
		ck_assert_msg(!run_grad_command(text, model, args), "%s: %s", args, text);
		ck_assert_msg(!strcmp(text, wanted), "%s: %s\nnot %s", args, text, wanted);
		ck_assert_msg(!command_run(text, TEXT, "cmp '%s' '%s'", scratch_format_path("one"),
		                           scratch_format_path("other")),
		              "%s: %s", args, text);
	}
	/* the digest goes to stderr, as it is no result */
	ck_assert(strstr(wanted, "digest  "));
	command_run(text, TEXT,
	            "cd '%s' && '%s' grad '" GOLDEN "%s' --ids-file batch %s 2>/dev/null", scratch,
	            TESSERA, model, factor);
	ck_assert(strstr(text, "labels  53\n") && !strstr(text, "digest"));
	/* sums of micro-batches differ, though not between meshes */
	write_batch("four", 4, 16, 16, 0);
	for (int i = 0; i < 3; i++) {
		snprintf(args, sizeof args, "--ids-file four %s --micro-batches %d%s", factor,
		         i ? 4 : 1, i > 1 ? " --mesh pp=2,tp=2 --backend loopback" : "");
		ck_assert_msg(!run_grad_command(text, model, args), "%s", text);
		ck_assert((strcmp(text, wanted) != 0) == (i < 2));
		snprintf(wanted, sizeof wanted, "%s", text);
	}
}
END_TEST

static const struct {
	const char *args;
	int status;
	const char *part;
} refusals[] = {
	{ "--ids-file short", 1, "ids are [2, 32], but labels [2, 31]; each id has a label" },
	{ "--ids-file odd", 1, "sequence 0: id 9999 at position 1 is outside the vocabulary" },
	{ "--ids-file far", 1,
	  "sequence 0: id 2147483647 at position 1 is outside the vocabulary" },
	{ "--ids-file one", 1, "has no tensor \"ids\"" },
	{ "--ids-file absent", 1, "absent" },
	{ "--ids-file batch --mesh dp=3 --backend loopback", 1,
	  "2 sequences cannot be cut for 3 ranks along dp" },
	{ "--ids-file batch --micro-batches 3", 1, "--micro-batches 3: batch has 2 sequences" },
	{ "--ids-file batch --out ./batch", 1,
	  "--out ./batch: is the input batch; inputs are not overwritten" },
	{ "--ids-file batch --aux-loss 1", 1, "the model has no experts" },
	{ "--ids-file batch --plan-override 'dp:**=zero9' --mesh dp=2", 1, "zero9" },
	{ "--ids-file batch --out no/file", 1, "no/file: cannot be written" },
	{ "--out other", 2, "give --ids-file FILE" },
};

START_TEST(refused)
{
	static const char one[] = "\x08\0\0\0\0\0\0\0{}      ";
	char text[TEXT];

	write_batch("batch", 2, 32, 32, 0);
	write_batch("short", 2, 32, 31, 0);
	write_batch("odd", 2, 32, 32, 9999);
	write_batch("far", 2, 32, 32, INT64_MAX);
	scratch_write("one", one, sizeof one - 1);
	ck_assert_msg(run_grad_command(text, "llama-odd", refusals[_i].args) == refusals[_i].status,
	              "%s", text);
	expect_part(text, refusals[_i].part);
	ck_assert_int_eq(count_occurrences(text, "\n"), 1);
	ck_assert(access(scratch_format_path("refused"), F_OK) != 0);
}
END_TEST

/* Sends a signal while the file is written; until complete, it has another name. */
START_TEST(interrupted)
{
	static const char *const signals[] = { "INT", "TERM", "HUP" };
	static const char *const before[] = { "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", "" };
	char text[TEXT];

	write_batch("batch", 2, 32, 32, 0);
	for (int i = 0; i < 12; i++) {
		command_run(
			text, TEXT,
			"cd '%s'; rm -rf stopped; mkdir stopped; %s setsid '%s' grad '%s' "
			"--ids-file batch --out stopped/g >out 2>&1 & pid=$!; "
			"until set -- stopped/*; [ -e \"$1\" ]; do kill -0 $pid || break; done; "
			"kill -%s $pid; wait $pid; ls stopped",
			scratch, before[i % 2], TESSERA, format_data_path(""), signals[i % 3]);
		ck_assert_msg(!*text || !strcmp(text, "g\n"), "%s", text);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t;
	int failed;

	scratch_make();
	t = suite_begin("grad_command", 60, &r);
	tcase_add_loop_test(t, one_file_for_every_mesh, 0, sizeof jobs / sizeof *jobs);
	tcase_add_test(t, interrupted);
	tcase_add_loop_test(t, refused, 0, sizeof refusals / sizeof *refusals);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

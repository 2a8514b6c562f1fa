/*
 * test_compare.c - tessera compare by its command line: equal runs, wrong styles that no check of
 * ranks finds, gradients, files of values, and refusals. Nothing of a run is left.
 */
#include "core/base/status.h"
#include "hf/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"

#include <jansson.h>

#define DATA SOURCE_ROOT "/data"

enum { TEXT = 32768 };

/* Runs the command with temporary files in the scratch directory; returns the exit status. */
static int run_compare(char text[TEXT], const char *args)
{
	return command_run(text, TEXT, "cd '%s' && mkdir -p t && TMPDIR=t '%s' compare %s 2>&1",
	                   scratch, TESSERA, args);
}

/* Asserts that the first lines of a report, above its table, contain `part`. */
static void expect_above_table(char text[TEXT], const char *part)
{
	char *table = strstr(text, "\n\n");

	if (table)
		*table = '\0';
	text[1000] = '\0'; /* messages of Check are short */
	expect_part(text, part);
}

static void expect_no_temporary_file(void)
{
	char text[256];

	ck_assert_int_eq(command_run(text, sizeof text, "ls -A '%s/t'", scratch), 0);
	ck_assert_str_eq(text, "");
}

/* ---- equal runs ------------------------------------------------------------------------------ */

static const char *const equal_runs[] = {
	DATA " -n 3 --plan tp+sp",
	DATA " -n 4 --mesh pp=2,tp=2 --against '-n 2 --mesh dp=2'",
	DATA " -n 2 --backend shm --kv bf16 --against '--kv bf16'",
	DATA " --prompt 'One day' -n 2 --values-of 'model.layers.*.mlp'",
	DATA
	" -n 4 --mesh dp=2,tp=2 --train --against \"--plan-override 'dp:**=zero3' --mesh dp=3\"",
	DATA " -n 2 --train --ids 5,6,7,8,9",
	DATA " --against TESSERA_REDUCE=fast --exact --values-of 'model.layers.*.input_layernorm'",
	DATA " -n 2 --device discrete_exact --against '--device cpu'",
	DATA " -n 4 --mesh pp=2,tp=2 --device discrete_exact --train --against '--device cpu'",
};

START_TEST(runs_of_other_plans_are_equal)
{
	char text[TEXT];

	ck_assert_msg(!run_compare(text, equal_runs[_i]), "%s: %s", equal_runs[_i], text);
	expect_above_table(text, "\nequal: all ");
	expect_part(text, "tolerance: none, bits are compared");
	expect_no_temporary_file();
}
END_TEST

START_TEST(a_batch_of_a_file_is_run)
{
	int64_t ids[8] = { 1, 403, 407, 261, 7, 11, 13, 17 };
	const int64_t shape[2] = { 2, 4 };
	const struct tess_slice slices[2] = {
		{ .name = "ids", .dtype = TESS_I64, .ndim = 2, .shape = shape, .data = ids },
		{ .name = "labels", .dtype = TESS_I64, .ndim = 2, .shape = shape, .data = ids },
	};
	char text[TEXT];

	ck_assert(!tess_safetensors_write(scratch_format_path("batch"), 2, slices));
	ck_assert_msg(!run_compare(text, DATA " -n 2 --train --ids-file batch"), "%s", text);
	expect_above_table(text, "\nequal: all ");
	expect_no_temporary_file();
	ck_assert_int_eq(run_compare(text, DATA " -n 2 --train --ids-file t"), 2);
}
END_TEST

/* ---- wrong styles ---------------------------------------------------------------------------- */

static const struct {
	const char *args, *found;
} wrong_styles[] = {
	{ "-n 2 --plan-override 'model.layers.2.mlp.up_proj=wrong:scales'",
	  "first difference: model.layers.2.mlp.up_proj, row 0, column 0: " },
	{ "-n 2 --plan-override 'model.layers.1.mlp.up_proj=wrong:rows'",
	  "first difference: model.layers.1.mlp.up_proj, row 0, column 0: " },
	{ "-n 3 --plan-override 'model.layers.0.mlp.gate_proj=wrong:rank_1'",
	  "first difference: model.layers.0.mlp.gate_proj, row 0, column 60 (on rank 1 of A): " },
	{ "-n 2 --train --plan-override 'model.layers.3.mlp.gate_proj=wrong:output_grad'",
	  "first difference: model.layers.3.mlp.gate_proj.weight.grad, row 0, column 0: " },
};

START_TEST(wrong_styles_are_named)
{
	char text[TEXT], args[512];

	snprintf(args, sizeof args, DATA " %s", wrong_styles[_i].args);
	ck_assert_msg(run_compare(text, args) == 1, "%s", text);
	expect_above_table(text, wrong_styles[_i].found);
	expect_no_temporary_file();
}
END_TEST

/* All ranks agree, so --check has nothing to report. */
START_TEST(check_does_not_find_a_style_that_is_wrong_on_all_ranks)
{
	char text[TEXT];

	ck_assert_msg(!command_run(text, TEXT,
	                           "'%s' generate " DATA " -n 2 --ids 1,2,3 --max-tokens 2 --check "
	                           "--plan-override 'model.layers.2.mlp.up_proj=wrong:scales' 2>&1",
	                           TESSERA),
	              "%s", text);
}
END_TEST

/* Both runs of a checkpoint with NaN are reported by --check, after their values were compared. */
START_TEST(runs_that_differ_are_checked)
{
	char text[TEXT];

	ck_assert_int_eq(
		command_run(text, TEXT,
	                    "cd '%s' && cp -r " DATA " nan && chmod -R u+w nan && "
	                    "printf '\\377\\377\\377\\377' | dd of=nan/model.safetensors bs=1 "
	                    "seek=$(($(stat -c %%s nan/model.safetensors) - 4)) conv=notrunc 2>&1",
	                    scratch),
		0);
	ck_assert_int_eq(run_compare(text, "nan -n 2 --against '--kv bf16'"), 1);
	expect_above_table(text, "is not finite");
	expect_part(text, "--check of A: fails, as reported on stderr");
	expect_part(text, "--check of B: fails, as reported on stderr");
	ck_assert_int_eq(run_compare(text, DATA " -n 2 --against '--kv bf16'"), 1);
	expect_above_table(text, "--check of A and B: all ranks agree");
	expect_no_temporary_file();
}
END_TEST

/* Each module behind the wrong one differs, and none before it. */
START_TEST(json_lists_all_modules)
{
	char text[TEXT];
	json_t *root, *value;
	const char *state = "equal";
	size_t i;
	int failed = run_compare(text, DATA " -n 2 --json --svg t.svg --plan-override "
	                                    "'model.layers.2.mlp.up_proj=wrong:scales'");

	ck_assert_int_eq(failed, 1);
	root = json_loads(text, 0, NULL);
	ck_assert_msg(root, "%s", text);
	ck_assert_str_eq(json_string_value(json_object_get(root, "first")),
	                 "model.layers.2.mlp.up_proj");
	ck_assert_int_eq(json_array_size(json_object_get(root, "values")), 64);
	ck_assert_int_eq(json_integer_value(json_object_get(root, "compared")), 64);
	json_array_foreach(json_object_get(root, "values"), i, value) {
		const char *name = json_string_value(json_object_get(value, "name"));

		if (!strcmp(name, "model.layers.2.mlp.up_proj")) {
			state = "different";
			ck_assert(json_is_null(json_object_get(value, "rank")));
			ck_assert_int_eq(json_integer_value(json_object_get(value, "ulps")),
			                 1 << 23);
		}
		if (strcmp(name, "model.layers.2.mlp.gate_proj") != 0) /* its sibling */
			ck_assert_msg(
				!strcmp(json_string_value(json_object_get(value, "state")), state),
				"%s", name);
	}
	json_decref(root);
	ck_assert_int_eq(
		command_run(
			text, TEXT,
			"grep -c '<circle class=\"different\"' '%s/t.svg'; tail -n 1 '%s/t.svg'",
			scratch, scratch),
		0);
	expect_part(text, "31\n</svg>");
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static void write_values(const char *name, const char *args)
{
	char text[TEXT];

	ck_assert_msg(!command_run(text, TEXT,
	                           "cd '%s' && '%s' generate " DATA
	                           " --max-tokens 2 --temperature 0 "
	                           "--ids 1,2,3,4 --values %s %s 2>&1",
	                           scratch, TESSERA, name, args),
	              "%s", text);
}

START_TEST(two_files_are_compared)
{
	char text[TEXT];

	write_values("one", "");
	write_values("two", "-n 2 --prefill-chunk 3");
	write_values("q8", "--weights q8 --values-of '*'");
	write_values("mlp", "-n 2 --values-of 'model.layers.*.mlp'");
	ck_assert_msg(!run_compare(text, "one two"), "%s", text);
	expect_above_table(text, "bits are compared");
	ck_assert_int_eq(run_compare(text, "one q8"), 1);
	expect_above_table(text, "first difference: model.layers.0.self_attn.q_proj");
	expect_part(text, "tolerance: 1e-05 of");
	ck_assert_int_eq(run_compare(text, "one q8 --exact"), 1);
	ck_assert_msg(!run_compare(text, "one q8 --tolerance 1"), "%s", text);
	ck_assert_msg(!run_compare(text, "one mlp"), "%s", text);
	MUST(strstr(text, "model.embed_tokens") && strstr(text, "only in A"));
	expect_above_table(text, "equal: all 5 values\nonly in A, not compared: 59 values");
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
	const char *args, *message;
} refusals[] = {
	{ "", "give a MODEL, a checkpoint directory, or two files of values" },
	{ "a b c", "give a MODEL, a checkpoint directory, or two files of values" },
	{ "no such", "no: " },
	{ "a b -n 2", "-n is an option of runs, and two files are compared" },
	{ "a b --train", "--train is an option of runs" },
	{ DATA " --exact --tolerance 0.1", "--exact and --tolerance: give one of them" },
	{ DATA " --ids 1 --prompt x", "--ids and --prompt: give one of them" },
	{ DATA " --ids 1,,2", "--ids 1,,2: use token ids" },
	{ DATA " --ids-file x", "--ids-file is a batch of --train" },
	{ DATA " --against '--no'", "--against: no such option: --no" },
	{ DATA " --against 'x'", "--against: x is no option" },
	{ DATA " --against '\"x'", "a quote is not closed" },
	{ DATA " -n 99", "run A failed, as reported above" },
	{ DATA " --against '-n 99'", "run B failed, as reported above" },
	{ DATA " --values-of no.such", "no module matches it" },
	{ DATA " --svg /no/such/file", "--svg /no/such/file: " },
};

START_TEST(trouble_has_status_2)
{
	char text[TEXT];

	ck_assert_msg(run_compare(text, refusals[_i].args) == 2, "%s: %s", refusals[_i].args, text);
	expect_above_table(text, refusals[_i].message);
	expect_no_temporary_file();
}
END_TEST

START_TEST(ranks_of_a_job_are_refused)
{
	char text[TEXT];

	ck_assert_int_eq(command_run(text, TEXT,
	                             "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 '%s' "
	                             "compare " DATA " 2>&1",
	                             TESSERA),
	                 2);
	expect_part(text, "not as a rank of a job");
}
END_TEST

START_TEST(a_signal_leaves_no_file)
{
	static const char *const signals[] = { "INT", "TERM" };
	char text[TEXT];
	int status = command_run(
		text, TEXT,
		"cd '%s' && mkdir -p t && { TMPDIR=t '%s' compare " DATA " -n 2 --plan-override "
		"'model.layers.2.mlp.up_proj=wrong:slow' 2>&1 & } && "
		"while ! ls t | grep -q compare; do sleep 0.01; done && kill -%s $! && wait $!",
		scratch, TESSERA, signals[_i]);

	/* a shell ignores SIGINT for its background jobs */
	ck_assert_msg(status == (_i ? 143 : 0) || status == 130, "status %d: %s", status, text);
	expect_no_temporary_file();
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("compare", 60, &r);
	int failed;

	setenv("TESSERA_BACKEND", "loopback", 1);
	scratch_make();
	tcase_add_loop_test(t, runs_of_other_plans_are_equal, 0,
	                    sizeof equal_runs / sizeof *equal_runs);
	tcase_add_test(t, a_batch_of_a_file_is_run);
	tcase_add_loop_test(t, wrong_styles_are_named, 0,
	                    sizeof wrong_styles / sizeof *wrong_styles);
	tcase_add_test(t, check_does_not_find_a_style_that_is_wrong_on_all_ranks);
	tcase_add_test(t, runs_that_differ_are_checked);
	tcase_add_test(t, json_lists_all_modules);
	tcase_add_test(t, two_files_are_compared);
	tcase_add_loop_test(t, trouble_has_status_2, 0, sizeof refusals / sizeof *refusals);
	tcase_add_test(t, ranks_of_a_job_are_refused);
	tcase_add_loop_test(t, a_signal_leaves_no_file, 0, 2);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

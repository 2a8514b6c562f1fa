/*
 * test_train_files.c - files of tessera train: protected files, one run per directory of saves, and
 * messages for faulty files and numbers.
 */
#include "hf/safetensors.h"
#include "tests/support/xml.h"
#include "train_command.h"

#include <math.h>
#include <sys/stat.h>

/* ---- where a run saves ----------------------------------------------------------------------- */

START_TEST(keeps_the_newest)
{
	train_to_step("--save kept --save-every 1", 4);
	ck_assert(!is_there("kept/step-1") && !is_there("kept/step-2"));
	ck_assert(is_there("kept/step-3") && is_there("kept/step-4"));
	/* another run's saves are not mixed with these */
	expect_failed("--steps 5 --save kept", 1,
	              "--save kept: already has kept/step-4, which this run does not resume");
	expect_failed(
		"--steps 5 --save kept --resume kept/step-3 " STEPPED, 1,
		"already has kept/step-4, which is newer than kept/step-3; use --resume kept, "
		"another directory, or remove kept/step-4");
	expect_failed("--steps 5 --save kept/step-4 --resume kept " STEPPED, 1,
	              "--save kept/step-4: is a save itself");
	/* nor are those of a newer or restarted run; a link is the linked directory */
	train_to_step("--save newer --save-every 4", 5);
	expect_failed("--steps 6 --save kept --resume newer " STEPPED, 1,
	              "--save kept: already has kept/step-4, which this run does not resume");
	expect_failed("--steps 6 --save kept --max-restarts 3 " STEPPED, 1,
	              "--save kept: already has kept/step-4, which this run does not resume");
	ck_assert(is_there("kept/step-3") && is_there("kept/step-4"));
	ck_assert_int_eq(symlink("newer", scratch_format_path("link")), 0);
	train_to_step("--save link --resume newer/step-5", 6);
	train_to_step("--save newer --resume link", 7);
	ck_assert(is_there("newer/step-6") && is_there("newer/step-7"));
	/* parts of a killed save are removed, even if all saves are kept */
	scratch_make_folder("newer/step-9.1-0.part");
	train_to_step("--save newer --resume newer --keep 0", 8);
	ck_assert(!is_there("newer/step-9.1-0.part") && is_there("newer/step-6"));
}
END_TEST

/* Checks that only saves and parts of this program are removed, and that no link is followed. */
START_TEST(removes_nothing_else)
{
	static const char *const others[] = { "mine/step-0", "mine/step-1.mine.part",
		                              "mine/step-01.1-0.part", "mine/step-1.1-0.partly",
		                              "mine/step-002" };
	char text[TEXT];

	train_to_step("--save mine --save-every 1 --keep 0", 2);
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		scratch_make_folder(others[i]);
	command_run(text, TEXT,
	            "cd '%s'; mkdir away; touch away/thesis; rm -r mine/step-1; ln -s ../away "
	            "mine/step-1; ln -s ../away mine/step-1.1-0.part",
	            scratch);
	train_to_step("--save mine --resume mine --keep 1", 3);
	ck_assert(is_there("away/thesis") && is_there("mine/step-1/thesis"));
	ck_assert(is_there("mine/step-1.1-0.part") && is_there("mine/step-3"));
	ck_assert(!is_there("mine/step-2"));
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		ck_assert_msg(is_there(others[i]), "%s", others[i]);
}
END_TEST

/* Checks that two concurrent runs cannot save in one directory; the first continues. */
START_TEST(one_run_saves)
{
	char text[TEXT];

	command_run(text, TEXT,
	            "cd '%s'; '%s' train '%s' --data '" STORIES "' " SIZES
	            " --steps 100000 --save one --log ones -n 2 --backend %s 2>err & "
	            "pid=$!; cd '%s'; while kill -0 $pid && [ ! -s ones ]; do sleep 0.02; done; "
	            "'%s' train '%s' --data '" STORIES "' " SIZES " --steps 2 --save one 2>&1; "
	            "echo status $?; kill -INT $pid; wait $pid; echo ended $?; ls one | wc -l",
	            scratch, TESSERA, format_data_path(""), _i ? "loopback" : "shm", scratch,
	            TESSERA, format_data_path(""));
	expect_part(text, "--save one: another run saves there; wait for its end");
	expect_part(text, "status 1\nended 130\n1\n");
	command_run(text, TEXT, "rm -r '%s' '%s'", scratch_format_path("one"),
	            scratch_format_path("ones"));
}
END_TEST

/* ---- what it must not write over ------------------------------------------------------------- */

/*
 * Checks that outputs that are inputs of the run are refused before a rank starts, and stay
 * unchanged.
 */
START_TEST(overwrites_no_input)
{
	static const struct {
		const char *args, *says;
	} refused[] = {
		{ "--data few.jsonl --log ./few.jsonl",
		  "--log ./few.jsonl: is the input few.jsonl" },
		{ "--data few.jsonl --eval-data also.jsonl --curve also.jsonl",
		  "--curve also.jsonl: is the input also.jsonl" },
		{ "--data few.jsonl --eval-data also.jsonl --log linked",
		  "--log linked: is the input also.jsonl" },
		{ "--data few.jsonl --log model/tokenizer.json",
		  "--log model/tokenizer.json: is in ./model/; files of MODEL are not " },
		{ "--data few.jsonl --curve model/new.svg",
		  "--curve model/new.svg: is in ./model" },
		{ "--data few.jsonl --log to_config", "--log to_config: is in ./model/" },
		{ "--data few.jsonl --log both --curve ./both",
		  "--log both and --curve ./both are one file; name two" },
	};
	static const char *const before[] = { "", "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0" };
	char text[TEXT], sums[TEXT];

	command_run(text, TEXT,
	            "cd '%s' && cp -r '%s' model && chmod -R u+w model && head -n 4 " STORIES
	            " >few.jsonl && cp few.jsonl also.jsonl && ln -s also.jsonl linked && "
	            "ln -s model/config.json to_config",
	            scratch, format_data_path(""));
	command_run(sums, TEXT, "cd '%s' && md5sum *.jsonl model/*.*", scratch);
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
		for (int k = 0; k < 2; k++) {
			ck_assert_msg(run_train_command(text, "./model/", before[k],
			                                refused[i].args) == 1,
			              "%s: %s", refused[i].args, text);
			expect_part(text, refused[i].says);
		}
	ck_assert(!is_there("both") && !is_there("model/new.svg"));
	command_run(text, TEXT, "cd '%s' && md5sum *.jsonl model/*.*", scratch);
	ck_assert_str_eq(text, sums);
	ck_assert_msg(!run_train_command(text, "model", "",
	                                 "--data few.jsonl --steps 1 --batch 1 --sequence 17 --log "
	                                 "/dev/null --curve /dev/null"),
	              "%s", text);
}
END_TEST

/* ---- the log that a run goes on with --------------------------------------------------------- */

#define RESUME "--resume logs --log steps.log --curve steps.svg " SIZES " --steps 3"

static void make_log(const char *lines, size_t size)
{
	if (!is_there("logs"))
		train_to_step("--save logs", 2);
	scratch_write("steps.log", lines, size);
}

/* Checks that a file that is no log of this run is refused and not truncated. */
START_TEST(log_of_another_kind)
{
	static const struct {
		const char *lines;
		int line;
	} logs[] = {
		{ "x{\"step\":1,\"loss\":1.5}\n{\"step\":2,\"loss\":1}\n", 1 },
		{ "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":1}\n{\"step\":1,\"loss\":1}\n",
		  3 },
		{ "{\"step\":1,\"loss\":1}\n{\"step\":1,\"loss\":1}\n", 2 },
		{ "{\"step\":1,\"loss\":1}\n{\"step\":2}\n", 2 },
		{ "{\"step\":1,\"loss\":1}\n{\"step\":\n", 2 },
		{ "{\"step\":\"1\",\"loss\":1}\n", 1 },
		{ "{\"step\":0,\"loss\":1}\n", 1 },
		{ "a thesis", 1 },
		{ "\n", 1 },
	};
	char text[TEXT], part[64];

	for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
		make_log(logs[i].lines, strlen(logs[i].lines));
		snprintf(part, sizeof part, "--log steps.log: line %d is not a line of this run's",
		         logs[i].line);
		expect_failed(RESUME, 1, part);
		command_run(text, TEXT, "cat '%s'", scratch_format_path("steps.log"));
		ck_assert_str_eq(text, logs[i].lines);
	}
}
END_TEST

/* Checks that a line that a killed run has cut is written again; a pipe has no such line. */
START_TEST(log_that_is_cut)
{
	static const char cut[] = "{\"step\":1,\"loss\":1.5}\n{\"ste";
	char text[TEXT];

	make_log(cut, sizeof cut - 1);
	ck_assert_msg(!train_model(text, format_data_path(""), "", RESUME), "%s", text);
	command_run(text, TEXT, "cut -b -10 '%s'", scratch_format_path("steps.log"));
	ck_assert_str_eq(text, "{\"step\":1,\n{\"step\":3,\n");
	command_run(text, TEXT, "rm '%s'", scratch_format_path("steps.log"));
	ck_assert(!mkfifo(scratch_format_path("steps.log"), 0600));
	ck_assert_msg(!train_model(text, format_data_path(""),
	                           "{ cat steps.log >piped & } && timeout 60",
	                           RESUME "; wait; cat piped"),
	              "%s", text);
	expect_part(text, "{\"step\":3,");
	ck_assert(!unlink(scratch_format_path("steps.log")));
}
END_TEST

/* Checks that losses that are adjacent doubles have a picture of the usual size. */
START_TEST(curve_of_huge_losses)
{
	static const char *const logs[] = {
		"{\"step\":1,\"loss\":1e16}\n{\"step\":2,\"loss\":10000000000000002}\n",
		"{\"step\":1,\"loss\":-1.7e308}\n{\"step\":2,\"loss\":1.7e308}\n",
		"{\"step\":1,\"loss\":1e99}\n{\"step\":2,\"loss\":1e99}\n",
	};
	char text[TEXT];

	for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
		make_log(logs[i], strlen(logs[i]));
		/* 256 blocks of 512 bytes or 1 KiB */
		ck_assert_msg(!train_model(text, format_data_path(""), "ulimit -f 256;",
		                           RESUME " --steps 2"),
		              "%s", text);
		command_run(text, TEXT, "cat '%s'", scratch_format_path("steps.svg"));
		ck_assert(is_well_formed(text) && !strstr(text, "nan") && !strstr(text, "inf"));
		ck_assert_int_le(count_occurrences(text, "class=\"grid\""), 20);
	}
}
END_TEST
#undef RESUME

/* ---- failures and warnings ------------------------------------------------------------------- */

/* Writes sequences of 40 ids; the last one has an id outside of any model's vocabulary. */
static void write_bad_ids(const char *name, int sequences)
{
	static uint16_t ids[64 * 40];

	for (int i = 0; i < sequences * 40; i++)
		ids[i] = (uint16_t)(i * i % 500);
	ids[sequences * 40 - 1] = 60000;
	scratch_write(name, ids, (size_t)sequences * 40 * sizeof *ids);
}

/* Checks that a failure of data or a file, with all ranks alive, does not lose the last steps. */
START_TEST(failure_of_a_file_saves)
{
	static const struct {
		const char *args, *says, *save;
	} failures[] = {
		{ "--data '" STORIES "' --eval-data bad.u16 --eval-every 2 --log lost",
		  "bad.u16: id 60000, number 319 of the file, is outside", "lost-save/step-2" },
		{ "--data few.u16 --seed 1", "few.u16: id 60000", "lost-save/step-" },
		{ "--data '" STORIES "' --log /dev/full", "--log /dev/full: No space left",
		  "lost-save/step-1" },
	};
	static const char *const ranks[] = { "", "-n 2 --backend loopback", "-n 2 --backend shm" };
	const char *save = failures[_i].save;
	char text[TEXT], args[512];

	write_bad_ids("bad.u16", 8);
	write_bad_ids("few.u16", 64);
	for (int i = 0; i < 3; i++) {
		snprintf(args, sizeof args,
		         "%s --batch 4 --sequence 40 --steps 16 --save lost-save %s",
		         failures[_i].args, ranks[i]);
		ck_assert_msg(run_train_command(text, format_data_path(""), "", args) == 1,
		              "%s: %s", args, text);
		expect_part(text, failures[_i].says);
		expect_part(text, "; the last save is lost-save/step-");
		ck_assert_msg(save[strlen(save) - 1] == '-' || is_there(save), "%s: %s", args,
		              text);
		command_run(text, TEXT, "cd '%s' && cat lost 2>/dev/null | wc -l; rm -rf lost*",
		            scratch);
		ck_assert_str_eq(text, _i ? "0\n" : "2\n");
	}
}
END_TEST

/* Copies a model of f32 with an embedding of NaN, which has no effect unless the id is read. */
static void make_odd_model(const char *model, const char *name, int64_t id)
{
	static char bytes[1 << 20];
	const float odd = NAN;
	char path[64];
	struct tess_safetensors *in;
	const struct tess_slice *s;
	uint64_t header;
	size_t size;
	FILE *f;

	command_run(bytes, TEXT, "cp -r '%s' '%s' && chmod -R u+w '%s'", model,
	            scratch_format_path(name), scratch_format_path(name));
	snprintf(path, sizeof path, "%s/model.safetensors", name);
	ck_assert(!tess_safetensors_open(scratch_format_path(path), true, &in));
	s = tess_safetensors_find(in, "model.embed_tokens.weight");
	ck_assert(s && s->dtype == TESS_F32);
	f = fopen(scratch_format_path(path), "rb");
	size = fread(bytes, 1, sizeof bytes, f);
	ck_assert(size < sizeof bytes && !fclose(f));
	memcpy(&header, bytes, sizeof header);
	memcpy(bytes + 8 + header + s->begin + (uint64_t)(id * s->shape[1]) * sizeof odd, &odd,
	       sizeof odd);
	tess_safetensors_close(in);
	scratch_write(path, bytes, size);
}

#define RUN \
	"--data ids.u16 --eval-data odd.u16 --eval-every 1 --batch 4 --sequence 17 --steps 2 " \
	"--log odd.log --curve odd.svg"

/* Checks that a non-finite evaluation is printed and logged as such. */
START_TEST(evaluation_is_not_finite)
{
	uint16_t ids[4 * 17];
	char text[TEXT];

	for (int i = 0; i < 4 * 17; i++)
		ids[i] = (uint16_t)(i * i % 53);
	scratch_write("ids.u16", ids, sizeof ids);
	ids[20] = 77;
	scratch_write("odd.u16", ids, sizeof ids);
	make_odd_model(SOURCE_ROOT "/tests/data/goldens/llama", "nan", 77);
	ck_assert_msg(!run_train_command(text, "nan", "", RUN " --save odd --save-every 1"), "%s",
	              text);
	ck_assert_int_eq(count_occurrences(text, "  eval nan  "), 2);
	expect_part(text, "tessera train: the loss of --eval-data is not finite after step 2");
	expect_part(text, "odd/step-2: 1 weights of 1 are infinite or NaN, the first in tensor "
	                  "model.embed_tokens.weight");
	command_run(text, TEXT, "cd '%s' && cat odd.log odd.svg", scratch);
	ck_assert_int_eq(count_occurrences(text, "\"eval_loss\":null"), 2);
	ck_assert(!strstr(text, "nan") && !strstr(text, "class=\"eval\""));
	/* nor is it 0 in the curve of a resumed run */
	ck_assert_msg(!run_train_command(text, "nan", "", RUN " --resume odd/step-1"), "%s", text);
	command_run(text, TEXT, "cd '%s' && cat odd.svg", scratch);
	ck_assert(!strstr(text, "class=\"eval\""));
#undef RUN
}
END_TEST

/* Returns the loss of the evaluation after a step that changes no weight. */
static double evaluate_separate(const char *args)
{
	char text[TEXT], all[512];
	const char *at;

	snprintf(
		all, sizeof all,
		"--steps 1 --lr 0 --sequence 40 --separate --eval-data one.jsonl --log eval.log %s",
		args);
	ck_assert_msg(!train_model(text, format_data_path(""), "", all), "%s: %s", args, text);
	command_run(text, TEXT, "cat '%s'", scratch_format_path("eval.log"));
	at = strstr(text, "\"eval_loss\":");
	ck_assert_msg(at, "%s: %s", args, text);
	return strtod(at + strlen("\"eval_loss\":"), NULL);
}

/*
 * Evaluates sequences of several lengths, fewer than a batch or than replicas, and remainders of a
 * batch.
 */
START_TEST(evaluates_every_sequence)
{
	static const char *const same[] = {
		"--batch 64 -n 2 --backend loopback --mesh dp=2 --plan-override 'dp:**=zero3'",
		"--batch 64 -n 2 --backend loopback --mesh tp=2",
		"--batch 64 -n 2 --backend loopback --mesh pp=2",
	};
	double each, few;
	char text[TEXT];

	command_run(text, TEXT, "head -n 1 " STORIES " >'%s'", scratch_format_path("one.jsonl"));
	each = evaluate_separate("--batch 1");
	few = evaluate_separate("--batch 64");
	ck_assert_double_eq_tol(few, each, 1e-6);
	ck_assert_double_eq_tol(evaluate_separate("--batch 4 --micro-batches 2"), each, 1e-6);
	for (size_t i = 0; i < sizeof same / sizeof *same; i++)
		ck_assert(evaluate_separate(same[i]) == few);
	ck_assert(evaluate_separate("--batch 64 --micro-batches 4") ==
	          evaluate_separate("--batch 64 --micro-batches 4 -n 4 --backend loopback --mesh "
	                            "dp=4"));
}
END_TEST

/* Checks that weights of 16 bits that have overflowed are saved and converted with a warning. */
START_TEST(infinite_weights_warn)
{
	static const char *const dtypes[] = { "f16", "bf16" };
	char text[TEXT], args[256];

	for (int i = 0; i < 2; i++) {
		command_run(text, TEXT, "'%s' convert '%s' '%s' --dtype %s 2>&1", TESSERA,
		            format_data_path(""), scratch_format_path(dtypes[i]), dtypes[i]);
		for (int huge = 0; huge < 2; huge++) {
			snprintf(args, sizeof args,
			         SIZES " --steps 1 --lr %s -n 2 --backend loopback --save inf%d%d",
			         huge ? "1e6" : "1e-4", i, huge);
			ck_assert_msg(!train_model(text, dtypes[i], "", args), "%s", text);
			ck_assert_msg(!strstr(text, "weights of") == !(huge && !i), "%s: %s",
			              dtypes[i], text);
		}
		if (!i) {
			expect_part(text, "inf01/step-1: ");
			expect_part(text, "are infinite or NaN, the first in tensor ");
		}
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("train_files", 120, &r);
	int failed;

	scratch_make();
	tcase_add_test(t, keeps_the_newest);
	tcase_add_test(t, removes_nothing_else);
	tcase_add_loop_test(t, one_run_saves, 0, 2);
	tcase_add_test(t, overwrites_no_input);
	tcase_add_test(t, log_of_another_kind);
	tcase_add_test(t, log_that_is_cut);
	tcase_add_test(t, curve_of_huge_losses);
	tcase_add_loop_test(t, failure_of_a_file_saves, 0, 3);
	tcase_add_test(t, evaluation_is_not_finite);
	tcase_add_test(t, evaluates_every_sequence);
	tcase_add_test(t, infinite_weights_warn);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

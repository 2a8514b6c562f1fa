/*
 * test_train_command.c - tessera train by its command line: equal losses and weights on any mesh,
 * even if killed and resumed on another one. A save is a checkpoint; a failed save or resumption
 * keeps the last one.
 */
#include "core/base/status.h"
#include "hf/checkpoint.h"
#include "tests/support/xml.h"
#include "train_command.h"

#include <jansson.h>

enum { STEPS = 8 };

/* Reads the printed digests as a string. */
static void read_digests(const char *text, char digests[160])
{
	const char *at = strstr(text, "losses  ");

	ck_assert_msg(at && strlen(at) >= 2 * 73, "%s", text);
	snprintf(digests, 160, "%.145s", at);
}

static void expect_digests(const char *model, const char *before, const char *args,
                           const char *want)
{
	char text[TEXT], have[160];

	ck_assert_msg(!train_model(text, model, before, args), "%s: %s", args, text);
	read_digests(text, have);
	ck_assert_msg(!strcmp(have, want), "%s:\n%s\ninstead of\n%s", args, have, want);
}

/* Makes the digests of STEPS steps on one rank. */
static void make_digests(const char *model, const char *args, char digests[160])
{
	char text[TEXT], all[512];

	snprintf(all, sizeof all, STEPPED " --steps %d --digest %s", STEPS, args);
	ck_assert_msg(!train_model(text, model, "", all), "%s", text);
	read_digests(text, digests);
}

static char wanted[160]; /* of the checkpoint in data/ */

static void make_wanted_digests(void)
{
	make_digests(format_data_path(""), "--threads 1", wanted);
}

/* ---- bits ------------------------------------------------------------------------------------ */

START_TEST(meshes_have_one_digest)
{
	static const char *const how[] = {
		"-n 2 --backend loopback --plan tp+sp",
		"-n 2 --backend shm --mesh dp=2 --plan-override 'dp:**=zero3' --threads 2",
		"-n 4 --backend loopback --mesh dp=2,tp=2 --plan-override 'dp:**=zero1'",
		"-n 4 --backend shm --mesh tp=2,dp=2 --plan tp+sp",
		"-n 3 --backend loopback --mesh pp=3,tp=1 --recompute '**.mlp'",
	};
	char args[512];

	for (size_t i = 0; i<sizeof how / sizeof *how; i += THIN> 1 ? 2 : 1) {
		snprintf(args, sizeof args, STEPPED " --steps %d --digest %s", STEPS, how[i]);
		expect_digests(format_data_path(""), "", args, wanted);
	}
}
END_TEST

/* Expects that explain prints the same of a strategy, tp.sp, as of options. */
static void expect_same_explanation(const char *options, const char *strategy)
{
	char text[TEXT];

	ck_assert_msg(
		!command_run(text, TEXT,
	                     "cd '%s' && T=\"'%s' explain '%s' --train --batch 8\" && "
	                     "eval $T --plan tp+sp %s >want && "
	                     "eval $T --plan tp.sp %s | sed s/tp.sp/tp+sp/ | diff want - 2>&1",
	                     scratch, TESSERA, format_data_path(""), options, strategy),
		"%s: %.2000s", strategy, text);
}

#define BY_STRATEGY STEPPED " --batch 4 --steps 8 --digest --backend loopback --plan tp.sp"

/* Trains, explains and generates by a written strategy; options precede it. */
START_TEST(strategy_of_a_file)
{
	static const char *const zero[] = { "dp:**=zero3", NULL }, *const again[] = { "**.mlp",
		                                                                      NULL };
	const struct tess_strategy s = { .size = sizeof s,
		                         .plan = "tp+sp",
		                         .mesh = "dp=2,pp=2,tp=1",
		                         .overrides = zero,
		                         .micro_batches = 2,
		                         .pipeline_schedule = "gpipe",
		                         .recompute = again,
		                         .predicted = "{\"seconds\": 1}" };
	char want[160], text[TEXT];

	ck_assert_msg(!tess_strategy_write(&s, scratch_format_path("tp.sp")), "%s", tess_error());
	make_digests(format_data_path(""), "--batch 4 --micro-batches 2", want);
	expect_digests(format_data_path(""), "", BY_STRATEGY, want);
	expect_digests(format_data_path(""), "", BY_STRATEGY " --mesh tp=2", want);
	expect_same_explanation("--mesh dp=2,pp=2,tp=1 --plan-override 'dp:**=zero3' "
	                        "--micro-batches 2 --pipeline-schedule gpipe --recompute '**.mlp'",
	                        "");
	expect_same_explanation("--mesh dp=2,pp=2,tp=1 --plan-override 'dp:**=zero1' "
	                        "--micro-batches 4 --pipeline-schedule zb-h1 --recompute lm_head",
	                        "--plan-override 'dp:**=zero1' --micro-batches 4 "
	                        "--pipeline-schedule zb-h1 --recompute lm_head");
	ck_assert_msg(!command_run(text, TEXT,
	                           "cd '%s' && '%s' generate '%s' --plan tp.sp --backend loopback "
	                           "--stats --ids 1,2 --max-tokens 2 2>&1",
	                           scratch, TESSERA, format_data_path("")),
	              "%s", text);
	expect_part(text, "rank 3 ");
}
END_TEST

/*
 * Kills a rank in each attempt, and the job restarts from its last save; then kills it finally, and
 * other ranks continue.
 */
START_TEST(killed_and_resumed)
{
	char text[TEXT], args[512];

	snprintf(args, sizeof args,
	         STEPPED " --steps %d --digest -n 2 --backend faulty:shm --save-every 2 --save "
	                 "again --max-restarts 9",
	         STEPS);
	expect_digests(format_data_path(""), "TESSERA_FAULTY=rank=1,call=300,do=kill", args,
	               wanted);
	snprintf(args, sizeof args,
	         STEPPED " --steps %d -n 2 --backend faulty:shm --mesh dp=2 --save-every 2 --save "
	                 "killed --log log",
	         STEPS);
	ck_assert_int_ne(train_model(text, format_data_path(""),
	                             "TESSERA_FAULTY=rank=1,call=250,do=kill", args),
	                 0);
	expect_part(text, "rank 1 was killed by signal 9");
	ck_assert(is_there("killed/step-2") && !is_there("killed/step-8"));
	snprintf(args, sizeof args,
	         STEPPED " --steps %d --digest -n 4 --backend loopback --mesh dp=2,pp=2 "
	                 "--plan-override 'dp:**=zero3' --save killed --resume killed --log log",
	         STEPS);
	expect_digests(format_data_path(""), "", args, wanted);
}
END_TEST

/*
 * Resumes weights of 16 bits from their f32 masters in a save, also from and to memory that the
 * host cannot read.
 */
START_TEST(resumed_from_masters)
{
	static const char *const devices[] = { "TESSERA_DEVICE=cpu",
		                               "TESSERA_DEVICE=discrete_exact" };
	char want[160], text[TEXT], args[512], half[1280];

	snprintf(half, sizeof half, "%s", scratch_format_path("half"));
	ck_assert(!command_run(text, TEXT, "'%s' convert '%s' '%s' --dtype bf16", TESSERA,
	                       format_data_path(""), half));
	make_digests(half, "", want);
	for (int i = 0; i < 2; i++) {
		snprintf(args, sizeof args,
		         STEPPED " --steps 5 -n 2 --backend loopback --mesh dp=2 --save out%d", i);
		ck_assert_msg(!train_model(text, half, devices[i], args), "%s", text);
		snprintf(args, sizeof args,
		         STEPPED " --steps %d --digest -n 2 --backend loopback --mesh pp=2,tp=1 "
		                 "--resume out%d",
		         STEPS, i);
		expect_digests(half, devices[!i], args, want);
	}
}
END_TEST

/* ---- what is saved --------------------------------------------------------------------------- */

/* Expects the tensors of the trained checkpoint, with other values. */
static void expect_same_tensors(const char *path, const char *model)
{
	struct tess_checkpoint *have, *want;
	bool changed = false;

	ck_assert_msg(!tess_checkpoint_open(path, TESS_CHECKPOINT_WHOLE, &have), "%s",
	              tess_error());
	ck_assert(!tess_checkpoint_open(model, TESS_CHECKPOINT_WHOLE, &want));
	ck_assert_uint_eq(tess_checkpoint_count(have), tess_checkpoint_count(want));
	for (size_t i = 0; i < tess_checkpoint_count(have); i++) {
		const struct tess_slice *a = tess_checkpoint_at(have, i);
		const struct tess_slice *b = tess_checkpoint_at(want, i);

		ck_assert_str_eq(a->name, b->name);
		ck_assert(a->dtype == b->dtype && a->bytes == b->bytes && a->ndim == b->ndim &&
		          !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape));
		changed = changed || memcmp(a->data, b->data, a->bytes) != 0;
	}
	ck_assert(changed);
	tess_checkpoint_close(have);
	tess_checkpoint_close(want);
}

/* Checks that a save has the model's files with new weights, and the state to resume a run. */
START_TEST(saves_a_checkpoint)
{
	char text[TEXT];

	train_to_step("-n 2 --backend loopback --save saved", 2);
	expect_same_tensors(scratch_format_path("saved/step-2"), format_data_path(""));
	command_run(text, TEXT, "cd '%s' && ls saved/*", scratch);
	ck_assert_str_eq(text, "README.md\nconfig.json\ngeneration_config.json\ngolden.json\n"
	                       "model.safetensors\noptimizer.safetensors\ntokenizer.json\n"
	                       "tokenizer_config.json\ntraining.json\n");
	ck_assert_msg(!command_run(text, TEXT,
	                           "'%s' generate '%s' --prompt Once --max-tokens 4 2>&1", TESSERA,
	                           scratch_format_path("saved/step-2")),
	              "%s", text);
}
END_TEST

/*
 * Trains experts in files of their own, an attention over a latent, fused and transposed weights.
 */
START_TEST(families)
{
	static const char *const names[] = { "mixtral-bf16", "deepseek_v3", "gpt2" };
	char text[TEXT], whole[160], parts[160], args[512], model[512], path[64];
	uint16_t ids[512];

	for (int i = 0; i < 512; i++)
		ids[i] = (uint16_t)((i * i + i / 7) % 53);
	scratch_write("ids.u16", ids, sizeof ids);
	for (int i = 0; i<3; i += THIN> 1 ? 3 : 1) {
		snprintf(model, sizeof model, "%s/tests/data/goldens/%s", SOURCE_ROOT, names[i]);
		snprintf(args, sizeof args,
		         "--data ids.u16 --batch 4 --sequence 16 --steps 2 --digest --lr 1e-3 -n 2 "
		         "--backend loopback --save %s --save-every 1",
		         names[i]);
		ck_assert_msg(!run_train_command(text, model, "", args), "%s: %s", names[i], text);
		read_digests(text, whole);
		snprintf(path, sizeof path, "%s/step-2", names[i]);
		expect_same_tensors(scratch_format_path(path), model);
		snprintf(args, sizeof args,
		         "--data ids.u16 --batch 4 --sequence 16 --steps 2 --digest --lr 1e-3 -n 2 "
		         "--backend loopback --mesh dp=2 --plan-override 'dp:**=zero3' --resume "
		         "%s/step-1",
		         names[i]);
		ck_assert_msg(!run_train_command(text, model, "", args), "%s: %s", names[i], text);
		read_digests(text, parts);
		ck_assert_msg(!strcmp(whole, parts), "%s: %s", names[i], text);
	}
}
END_TEST

/* Simulates a full disk by a size limit below the optimizer's state. */
START_TEST(full_disk_leaves_the_last_save)
{
	char text[TEXT], args[512];

	snprintf(args, sizeof args, STEPPED " --steps %d --digest --save full --save-every 4",
	         STEPS);
	ck_assert_int_eq(train_model(text, format_data_path(""), "ulimit -f 3000 &&", args), 1);
	expect_part(text, "full/step-4/optimizer.safetensors: 2090224 ");
	expect_part(text, "bytes cannot be written: File too large");
	ck_assert_int_eq(rmdir(scratch_format_path("full")), 0); /* left empty */
	snprintf(args, sizeof args,
	         STEPPED " --steps %d --save full --save-every 2 -n 2 --backend faulty:shm", STEPS);
	ck_assert_int_ne(train_model(text, format_data_path(""),
	                             "TESSERA_FAULTY=rank=1,call=300,do=kill", args),
	                 0);
	snprintf(args, sizeof args, STEPPED " --steps %d --digest --save full --resume full",
	         STEPS);
	ck_assert_int_ne(train_model(text, format_data_path(""), "ulimit -f 3000 &&", args), 0);
	expect_digests(format_data_path(""), "", args, wanted);
}
END_TEST

/* ---- how a run ends -------------------------------------------------------------------------- */

/* Checks that the current step is completed and saved; the signal may go to the process group. */
START_TEST(interrupted)
{
	const char *group = _i ? "-" : "";
	long status, saved, lines;
	char text[TEXT], *at;

	command_run(text, TEXT,
	            "cd '%s'; rm -rf stopped lines; setsid '%s' train '%s' --data '" STORIES
	            "' --batch 4 --sequence 40 --steps 100000 --save stopped --log lines -n 2 "
	            "--backend shm 2>err & pid=$!; while kill -0 $pid && [ ! -s lines ]; do "
	            "sleep 0.02; done; kill -INT %s$pid; wait $pid; echo status $?; ls stopped; "
	            "echo lines $(wc -l <lines); cat err",
	            scratch, TESSERA, format_data_path(""), group);
	at = strstr(text, "status ");
	ck_assert_msg(
		at && sscanf(at, "status %ld\nstep-%ld\nlines %ld", &status, &saved, &lines) == 3,
		"%s", text);
	ck_assert_msg(status == 130 && saved == lines, "%s", text);
	ck_assert_int_eq(
		count_occurrences(text,
	                          "tessera train: ends after this step, with a "
	                          "save; a second Ctrl-C or SIGTERM ends it now, without one\n"),
		1);
}
END_TEST

/* Checks one digest for products of bf16, and what a resumed run takes of its save. */
START_TEST(products_of_bf16)
{
	static const char *const how[] = { "-n 2 --backend shm --plan tp+sp",
		                           "--mesh dp=2,tp=2 --plan-override 'dp:**=zero3'",
		                           "--mesh pp=2 --micro-batches 2 --recompute "
		                           "'model.layers.*'",
		                           "-n 2 --backend loopback --tile 8KiB" };
	char text[TEXT], args[512], have[160];
	char bf16[160], f32[160];

	make_digests(format_data_path(""), "--math bf16", bf16);
	make_digests(format_data_path(""), "--math f32", f32);
	ck_assert_str_ne(bf16, f32);
	ck_assert_str_eq(f32, wanted);
	for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
		snprintf(args, sizeof args, STEPPED " --steps %d --digest --math bf16 %s", STEPS,
		         how[i]);
		expect_digests(format_data_path(""), "", args, bf16);
	}
	train_to_step("--save rounded --math bf16 --backend shm -n 2", STEPS / 2);
	snprintf(args, sizeof args, STEPPED " --steps %d --digest --resume rounded", STEPS);
	expect_digests(format_data_path(""), "", args, bf16);
	strcat(args, " -n 2 --backend shm");
	expect_digests(format_data_path(""), "", args, bf16);
	strcat(args, " --math f32");
	ck_assert_int_eq(train_model(text, format_data_path(""), "", args), 0);
	snprintf(args, sizeof args, "math was bf16 in rounded/step-%d, and is f32 from here on\n",
	         STEPS / 2);
	expect_part(text, args);
	ck_assert(!strstr(text, "AVX512_BF16"));
	read_digests(text, have);
	ck_assert_str_ne(have, bf16);
	snprintf(args, sizeof args, STEPPED " --steps %d --resume rounded", STEPS / 2);
	ck_assert_int_eq(train_model(text, format_data_path(""), "TESSERA_CPU=scalar", args), 0);
	expect_part(text, "no AVX512_BF16 instructions here, so steps have the same bits");
	ck_assert(!strstr(text, "math was"));
	expect_failed("--steps 1 --math f16", 2,
	              "--math f16: must be f32 or bf16; f16 has too small a range: gradients");
}
END_TEST

START_TEST(refusals)
{
	char text[TEXT], path[1400];

	train_to_step("--save good", 2);
	expect_failed("--resume none", 1, "none: nothing is saved there");
	expect_failed("--steps 9 --resume good --sequence 41", 1,
	              "good/step-2: was saved from other data");
	expect_failed("--steps 9 --resume good --optimizer sgd --sequence 40", 1,
	              "good/step-2: was saved with the optimizer adamw, and this is sgd");
	ck_assert(!command_run(text, TEXT, "'%s' convert '%s' '%s' --dtype bf16", TESSERA,
	                       format_data_path(""), scratch_format_path("other")));
	snprintf(path, sizeof path, "%s", scratch_format_path("other"));
	ck_assert_int_eq(train_model(text, path, "", "--steps 9 --resume good --sequence 40"), 1);
	expect_part(text, "good/step-2: was saved from another model than /");
	expect_failed("--batch 6 --micro-batches 4", 2, "cannot be cut into 4 micro-batches");
	expect_failed("--save-every 5", 2, "--save-every needs a directory");
	expect_failed("--save good/step-2/config.json", 1, "config.json: Not a directory");
	expect_failed("--data none.bin", 1, "none.bin: No such file");
	ck_assert_int_eq(train_model(text, format_data_path(""), "",
	                             STEPPED " --steps 3 --resume good --lr 1e-5 --schedule "
	                                     "constant --dropout 0.1"),
	                 0);
	expect_part(text, "tessera train: lr was 0.0002 in good/step-2, and is 1e-05 from here on");
	expect_part(text, "schedule was cosine in good/step-2, and is constant from here on");
	expect_part(text, "dropout was not given in good/step-2, and is 0.1 from here on");
	expect_part(text, "tessera train: nothing is saved without --save DIR\n");
	ck_assert(!strstr(text, "steps was"));
	ck_assert_int_eq(train_model(text, format_data_path(""), "",
	                             STEPPED " --steps 2 --resume good --curve none.svg"),
	                 0);
	expect_part(text, "good/step-2 already has 2 of 2 steps");
	ck_assert(!strstr(text, "nothing is saved") && !is_there("none.svg"));
	/* a non-finite loss: the weights do not replace good ones */
	expect_failed(STEPPED " --steps 9 --resume good --save good --lr 1e30 --warmup 0 --clip 0 "
	                      "--schedule constant --save-every 5",
	              1, "finite");
	command_run(text, TEXT, "ls '%s'", scratch_format_path("good"));
	ck_assert_str_eq(text, "step-2\n");
}
END_TEST

/* ---- log and curve --------------------------------------------------------------------------- */

struct logged {
	double loss, evaluation, communication; /* communication: its share of the step */
};

/* Reads the lines of a log, which has steps 1 to STEPS. */
static void read_log(const char *name, struct logged logged[STEPS])
{
	FILE *f = fopen(scratch_format_path(name), "r");
	char line[4096];

	ck_assert_ptr_nonnull(f);
	for (int i = 0; i < STEPS; i++) {
		json_t *o = fgets(line, sizeof line, f) ? json_loads(line, 0, NULL) : NULL;

		ck_assert_int_eq(json_integer_value(json_object_get(o, "step")), i + 1);
		logged[i].loss = json_number_value(json_object_get(o, "loss"));
		logged[i].evaluation = json_number_value(json_object_get(o, "eval_loss"));
		logged[i].communication = json_number_value(json_object_get(o, "communication")) /
		                          json_number_value(json_object_get(o, "seconds"));
		MUST(logged[i].loss > 0 && json_number_value(json_object_get(o, "norm")) > 0 &&
		     json_integer_value(json_object_get(o, "tokens")) == BATCH * SEQUENCE &&
		     json_integer_value(json_object_get(o, "labels")) == BATCH * (SEQUENCE - 1));
		ck_assert((logged[i].evaluation > 0) == ((i + 1) % 4 == 0));
		json_decref(o);
	}
	ck_assert_ptr_null(fgets(line, sizeof line, f));
	fclose(f);
}

/* Counts `what` in the element of the curve that begins with `begin`. */
static int count_in_element(const char *curve, const char *begin, char what)
{
	const char *at = strstr(curve, begin);
	int n = 0;

	ck_assert_ptr_nonnull(at);
	for (; *at != '>'; at++)
		n += *at == what;
	return n;
}

/* Checks that a run resumed before the last line of its log repeats these steps and lines. */
START_TEST(log_and_curve)
{
	static char curve[1 << 18];
	struct logged whole[STEPS], parts[STEPS];
	FILE *f;

	ck_assert_int_eq(command_run(curve, TEXT, "head -n %d " STORIES " >'%s/few.jsonl'",
	                             THIN > 1 ? 1 : 4, scratch),
	                 0);
	train_to_step("--log log --eval-data few.jsonl --eval-every 4 --save a --save-every 5 "
	              "--keep 0",
	              STEPS);
	read_log("log", whole);
	ck_assert(whole[STEPS - 1].evaluation < whole[3].evaluation); /* the loss decreases */
	train_to_step("--log log --eval-data few.jsonl --eval-every 4 --resume a/step-5 -n 2 "
	              "--backend loopback --curve curve.svg",
	              STEPS);
	read_log("log", parts);
	for (int i = 0; i < STEPS; i++) {
		ck_assert(parts[i].loss == whole[i].loss &&
		          parts[i].evaluation == whole[i].evaluation);
		ck_assert(parts[i].communication < 1 && (parts[i].communication > 0) == (i >= 5));
	}
	f = fopen(scratch_format_path("curve.svg"), "r");
	ck_assert_ptr_nonnull(f);
	curve[fread(curve, 1, sizeof curve - 1, f)] = 0;
	fclose(f);
	ck_assert(is_well_formed(curve) && !strstr(curve, "nan") && !strstr(curve, "inf"));
	ck_assert_int_eq(count_occurrences(curve, "<circle class=\"eval\""), STEPS / 4 + 1);
	/* from the first step on the left to the last on the right */
	ck_assert_int_eq(count_in_element(curve, "<path class=\"loss\" d=\"M64.0 ", 'L'),
	                 STEPS - 1);
	expect_part(curve, "L876.0 ");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("train_command", 120, &r);
	int failed;

	scratch_make();
	tcase_add_unchecked_fixture(t, make_wanted_digests, NULL);
	tcase_add_test(t, meshes_have_one_digest);
	tcase_add_test(t, strategy_of_a_file);
	tcase_add_test(t, killed_and_resumed);
	tcase_add_test(t, resumed_from_masters);
	tcase_add_test(t, saves_a_checkpoint);
	tcase_add_test(t, families);
	tcase_add_test(t, full_disk_leaves_the_last_save);
	tcase_add_loop_test(t, interrupted, 0, 2);
	tcase_add_test(t, products_of_bf16);
	tcase_add_test(t, refusals);
	tcase_add_test(t, log_and_curve);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

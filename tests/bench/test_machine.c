/*
 * test_machine.c - tessera bench machine by its command line: the file that it writes opens, and
 * has rates of each number of ranks. Machine files: what their points give, and each damaged file
 * is refused with the key. No time is asserted.
 */
#include "nn/cost/machine.h"
#include "tests/support/command.h"
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <tessera/tessera.h>

/* ---- the command ----------------------------------------------------------------------------- */

/* Counts the temporary directories of the command. */
static int count_left_directories(void)
{
	char out[64];

	command_run(out, sizeof out, "ls -d %s/tessera-machine-* 2>/dev/null | wc -l", scratch);
	return atoi(out);
}

static void expect_measured(struct tess_machine *m, int32_t ranks, bool training)
{
	static const char *const generation[] = { "linear", "attention", "experts", "norm",
		                                  "sample" };
	static const char *const steps[] = { "linear_dx", "linear_dw", "attention_d",
		                             "experts_d", "loss",      "adamw" };
	static const char *const bf16[] = { "linear:bf16",  "linear_dx:bf16", "linear_dw:bf16",
		                            "experts:bf16", "experts_d:bf16", "experts_dw:bf16",
		                            "product:bf16" };

	tess_machine_choose(m, ranks, training);
	for (int i = 0; i < 5 && !training; i++)
		ck_assert_msg(tess_machine_has_op(m, generation[i]), "no %s", generation[i]);
	for (int i = 0; i < 6 && training; i++)
		ck_assert_msg(tess_machine_has_op(m, steps[i]), "no %s", steps[i]);
	ck_assert(!tess_machine_has_op(m, training ? "sample" : "adamw"));
	ck_assert_int_eq(tess_machine_has_bf16(m), training);
	for (int i = 0; i < 7 && training; i++)
		ck_assert_msg(tess_machine_has_op(m, bf16[i]), "no %s", bf16[i]);
	ck_assert(!tess_machine_has_op(m, "attention:bf16"));
	ck_assert_double_gt(tess_machine_compute(m, "linear", "product", 4, 1e6), 0);
	ck_assert_double_gt(tess_machine_compute(m, "other", "memory", 4, 1e6), 0);
}

static const char *const backends[] = { "shm", "loopback" };

START_TEST(measures_this_host)
{
	const char *file = scratch_format_path("host.json");
	struct tess_machine *m;
	char out[4096];

	ck_assert_msg(!command_run(out, sizeof out,
	                           "TMPDIR=%s %s bench machine --quick -n 1,2 --seconds 1 "
	                           "--backend %s --out %s 2>&1",
	                           scratch, TESSERA, backends[_i], file),
	              "%s", out);
	expect_part(out, "gpt2 on 2 ranks, mesh dp=2");
	ck_assert_int_eq(count_left_directories(), 0);
	ck_assert_msg(!tess_machine_open(file, &m), "%s", tess_error());
	expect_part(m->about, backends[_i]);
	ck_assert(m->disk_read > 0 && m->disk_write > 0 && m->disk_size > 0);
	ck_assert_int_eq(m->ndevices, 2);
	for (int32_t n = 1; n <= 2; n++)
		for (int training = 0; training < 2; training++)
			expect_measured(m, n, training);
	ck_assert_double_gt(tess_machine_communicate(m, "sum", 2, 1, 1e6),
	                    tess_machine_communicate(m, "sum", 2, 1, 1e3));
	ck_assert_double_gt(tess_machine_communicate(m, "gather", 2, 1, 1e6), 0); /* "default" */
	tess_machine_close(m);
}
END_TEST

START_TEST(removes_its_files_after_an_interrupt)
{
	char out[4096];

	ck_assert_int_eq(
		command_run(out, sizeof out,
	                    "TMPDIR=%s timeout --preserve-status -s INT 2 %s bench machine "
	                    "--seconds 60 -n 1,2 --backend shm --out %s 2>&1",
	                    scratch, TESSERA, scratch_format_path("interrupted.json")),
		130);
	ck_assert_int_eq(count_left_directories(), 0);
	ck_assert_int_ne(access(scratch_format_path("interrupted.json"), F_OK), 0);
}
END_TEST

static const struct {
	const char *args, *words;
	int status;
} refused[] = {
	{ "", "give --out FILE", 2 },
	{ "--out x -n 2,1", "must increase", 2 },
	{ "--out x -n 0", "from 1 to 8", 2 },
	{ "--out x --kind sum", "no such option", 2 },
	{ "--out x model", "takes no arguments", 2 },
	{ "--out /nowhere/x --quick", "/nowhere/x", 1 },
	{ "--out x --quick --disk /nowhere", "/nowhere: rank 0 cannot make a file there", 1 },
};

START_TEST(refused_options)
{
	char out[4096];

	ck_assert_int_eq(
		command_run(out, sizeof out, "%s bench machine %s 2>&1", TESSERA, refused[_i].args),
		refused[_i].status);
	expect_part(out, refused[_i].words);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

#define RATES(rate) \
	"{\"product\": [[1, 100, " rate "], [16, 100, 8e9]], \"attention\": [[1, 0, 1e9]], " \
	"\"memory\": [[1, 10, 2e9]]}"
#define DEVICE(more, rate) \
	"\"device\": {\"memory\": 1e9, \"latency\": 1e-6" more ", \"rates\": " RATES(rate) "}"
#define LINKS(points) "\"links\": {\"within\": {\"default\": " points "}}"
#define GOOD_LINKS LINKS("[[2, 1e-6, 1e9], [8, 4e-6, 1e9]]")
#define FILE_OF(device, links) "{\"name\": \"m\", " device ", " links "}"
#define SHARED(ranks) \
	", \"shared\": [{\"ranks\": " ranks \
	", \"memory\": 5e8, \"latency\": 2e-6, \"rates\": " RATES("1e9") "}]"

static const char *write_machine(const char *text)
{
	const char *path = scratch_format_path("machine.json");
	FILE *f = fopen(path, "w");

	MUST(f && fputs(text, f) >= 0);
	MUST(!fclose(f));
	return path;
}

static void expect_close_rate(double got, double want)
{
	ck_assert_msg(fabs(got - want) <= 0.01 * want, "%g, expected %g", got, want);
}

START_TEST(points_give_times)
{
	struct tess_machine *m;

	ck_assert_msg(!tess_machine_open(
			      write_machine(FILE_OF(DEVICE(", \"ranks\": 1" SHARED("2"), "4e9"),
	                                            GOOD_LINKS)),
			      &m),
	              "%s", tess_error());
	expect_close_rate(tess_machine_compute(m, "linear", "product", 1, 100), 100 / 4e9);
	expect_close_rate(tess_machine_compute(m, "linear", "product", 16, 1600), 1600 / 8e9);
	expect_close_rate(tess_machine_compute(m, "norm", "memory", 1, 10), 10 / 2e9);
	ck_assert_double_eq(tess_machine_compute(m, "norm", "memory", 1, 0), 0);
	expect_close_rate(m->memory, 1e9);
	tess_machine_choose(m, 2, true); /* without rates of training: the same ones */
	expect_close_rate(tess_machine_compute(m, "linear", "product", 1, 100), 100 / 1e9);
	expect_close_rate(m->memory, 5e8);
	tess_machine_choose(m, 8, false); /* share what two have */
	expect_close_rate(tess_machine_compute(m, "linear", "product", 1, 100), 4 * 100 / 1e9);
	expect_close_rate(m->memory, 1.25e8);
	expect_close_rate(tess_machine_communicate(m, "sum", 2, 1, 1e6), 1e-6 + 1e-3);
	expect_close_rate(tess_machine_communicate(m, "sum", 4, 1, 1e3), 2.5e-6 + 1e-6);
	ck_assert_double_eq(tess_machine_communicate(m, "sum", 1, 1, 1e6), 0);
	tess_machine_close(m);
}
END_TEST

/* Products of bf16 have rates of their own, those of their class, or those in f32. */
START_TEST(rates_of_bf16)
{
	struct tess_machine *m;

	ck_assert_msg(
		!tess_machine_open(
			write_machine(FILE_OF(
				"\"device\": {\"memory\": 1e9, \"latency\": 0, "
				"\"rates\": " RATES("1e9") ", \"training_rates\": "
							   "{\"linear:bf16\": [[1, 100, 7e9]], "
							   "\"product:bf16\": [[1, 100, 5e9]], "
							   "\"linear\": [[1, 100, 3e9]], "
							   "\"product\": [[1, 100, 2e9]], "
							   "\"attention\": [[1, 0, 1e9]], "
							   "\"memory\": [[1, 10, 2e9]]}}",
				GOOD_LINKS)),
			&m),
		"%s", tess_error());
	ck_assert(!tess_machine_has_bf16(m)); /* in generation */
	expect_close_rate(tess_machine_compute(m, "linear:bf16", "product", 1, 100), 100 / 1e9);
	tess_machine_choose(m, 1, true);
	ck_assert(tess_machine_has_bf16(m));
	expect_close_rate(tess_machine_compute(m, "linear:bf16", "product", 1, 100), 100 / 7e9);
	expect_close_rate(tess_machine_compute(m, "experts:bf16", "product", 1, 100), 100 / 5e9);
	expect_close_rate(tess_machine_compute(m, "linear", "product", 1, 100), 100 / 3e9);
	expect_close_rate(tess_machine_compute(m, "experts", "product", 1, 100), 100 / 2e9);
	/* as if the file had none of its class */
	expect_close_rate(tess_machine_compute(m, "linear_dx:bf16", "attention", 1, 100),
	                  100 / 1e9);
	tess_machine_close(m);
}
END_TEST

static const struct {
	const char *text, *words;
} damaged[] = {
	{ "[]", "is an object" },
	{ "{", "machine.json" },
	{ FILE_OF("\"devices\": 1", GOOD_LINKS), "device" },
	{ FILE_OF(DEVICE("", "-1e9"), GOOD_LINKS), "product: a point is" },
	{ FILE_OF(DEVICE("", "0"), GOOD_LINKS), "product: a point is" },
	{ FILE_OF(DEVICE("", "1e999"), GOOD_LINKS), "machine.json" }, /* not finite */
	{ FILE_OF(DEVICE("", "\"fast\""), GOOD_LINKS), "product: a point is" },
	{ FILE_OF(DEVICE("", "1e9, 3"), GOOD_LINKS), "product: a point is" },
	{ FILE_OF(DEVICE(", \"width\": -2", "1e9"), GOOD_LINKS), "width" },
	{ FILE_OF(DEVICE(", \"exact\": 3", "1e9"), GOOD_LINKS), "exact" },
	{ FILE_OF(DEVICE(", \"ranks\": 0", "1e9"), GOOD_LINKS), "ranks" },
	{ FILE_OF(DEVICE(", \"ranks\": 2" SHARED("2"), "1e9"), GOOD_LINKS), "increasing order" },
	{ FILE_OF(DEVICE(SHARED("2"), "1e9"), GOOD_LINKS), "increasing order" },
	{ FILE_OF(DEVICE(", \"training_rates\": {\"product\": [[1, 1, 1]]}", "1e9"), GOOD_LINKS),
	  "training_rates: \"attention\" is missing" },
	{ FILE_OF("\"device\": {\"memory\": 1e9, \"latency\": 0, \"rates\": {}}", GOOD_LINKS),
	  "\"product\" is missing" },
	{ FILE_OF("\"device\": {\"latency\": 0, \"rates\": " RATES("1") "}", GOOD_LINKS),
	  "\"memory\" is missing" },
	{ FILE_OF("\"device\": {\"memory\": 1, \"latency\": -1, \"rates\": " RATES("1") "}",
	          GOOD_LINKS),
	  "latency" },
	{ FILE_OF("\"device\": {\"memory\": 1, \"rates\": " RATES("1") "}", GOOD_LINKS),
	  "\"latency\" is missing" },
	{ FILE_OF(DEVICE("", "1e9"), LINKS("[]")), "default: needs a list" },
	{ FILE_OF(DEVICE("", "1e9"), LINKS("[[2, -1, 1e9]]")), "default: a point is" },
	{ FILE_OF(DEVICE("", "1e9"), LINKS("[[2, 0, 0]]")), "default: a point is" },
	{ FILE_OF(DEVICE("", "1e9"), "\"links\": {\"within\": {\"sum\": [[2, 0, 1]]}}"),
	  "\"default\" is missing" },
	{ FILE_OF(DEVICE("", "1e9"), GOOD_LINKS ", \"corrections\": {\"time\": {\"speed\": 1}}"),
	  "no \"speed\"" },
	{ FILE_OF(DEVICE("", "1e9"), GOOD_LINKS ", \"corrections\": {\"time\": {\"memory\": -1}}"),
	  "memory" },
	{ FILE_OF(DEVICE("", "1e9"), GOOD_LINKS ", \"error\": -1"), "error" },
};

START_TEST(damaged_files)
{
	struct tess_machine *m = NULL;

	ck_assert_int_eq(tess_machine_open(write_machine(damaged[_i].text), &m), TESS_EINVAL);
	ck_assert_ptr_null(m);
	expect_part(tess_error(), "machine.json");
	expect_part(tess_error(), damaged[_i].words);
}
END_TEST

START_TEST(names)
{
	struct tess_machine *m = NULL;

	ck_assert_int_eq(tess_machine_open("h1000", &m), TESS_ENOENT);
	expect_part(tess_error(), "a100, h100, h200");
	ck_assert_int_eq(tess_machine_open("h100", &m), TESS_OK);
	tess_machine_choose(m, 64, true); /* each rank has a device of its own */
	ck_assert_double_eq(m->share, 1);
	tess_machine_close(m);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("bench machine", 120, &r);
	int failed;

	scratch_make();
	tcase_add_loop_test(t, measures_this_host, 0, 2);
	tcase_add_test(t, removes_its_files_after_an_interrupt);
	tcase_add_loop_test(t, refused_options, 0, (int)(sizeof refused / sizeof *refused));
	tcase_add_test(t, points_give_times);
	tcase_add_test(t, rates_of_bf16);
	tcase_add_loop_test(t, damaged_files, 0, (int)(sizeof damaged / sizeof *damaged));
	tcase_add_test(t, names);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

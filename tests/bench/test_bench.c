/*
 * test_bench.c - tessera bench comm by its command line: its numbers agree; wrong data and wrong
 * arguments are found.
 */
#include "tests/support/command.h"
#include "tests/support/suite.h"
#include "tests/support/xml.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs `tessera bench` with these arguments; returns its exit status. */
static int run_tessera_bench(char *out, size_t capacity, const char *args)
{
	return command_run(out, capacity, "%s bench %s", TESSERA, args);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static const struct {
	const char *args, *series[3];
	int ranks;
	double factor; /* busbw / algbw */
	json_int_t bytes[3]; /* bytes by row */
} bench_runs[] = {
	{ "comm -n 2 --backend shm -b 4 -e 64K -f 128",
	  { "exact", "fast" },
	  2,
	  1,
	  { 4, 512, 65536 } },
	{ "comm -n 3 --backend loopback -b 12 -e 12K -f 32",
	  { "exact", "fast" },
	  3,
	  4.0 / 3,
	  { 12, 384, 12288 } },
	{ "comm -n 2 --limit -b 1M -e 1M", { "exact", "fast", "copy_in" }, 2, 1, { 1 << 20 } },
	{ "comm -n 3 --own --kind all_gather --dtype bf16 -b 4 -e 3000 -f 300",
	  { "all_gather" },
	  3,
	  2.0 / 3,
	  { 1200 } },
	{ "comm -n 4 --backend loopback --kind reduce_scatter -b 64 -e 64",
	  { "exact", "fast" },
	  4,
	  0.75,
	  { 64 } },
	{ "comm -n 2 --kind reduce --op max --dtype i8 --root 1 --in-place -b 7 -e 7",
	  { "fast" },
	  2,
	  1,
	  { 7 } },
	{ "comm -n 3 --kind send_recv -b 4K -e 4K", { "send_recv" }, 3, 1, { 4096 } },
	{ "comm -n 2 --sum fast -b 16 -e 16", { "fast" }, 2, 1, { 16 } },
	{ "comm -n 2 --kind barrier", { "barrier" }, 2, 1, { 0 } },
	{ "comm --mesh dp=3,tp=2 --along dp --backend loopback -b 12 -e 12",
	  { "exact", "fast" },
	  3,
	  4.0 / 3,
	  { 12 } },
	{ "comm -n 4 --mesh dp=2,tp --backend shm -b 4K -e 4K",
	  { "exact", "fast" },
	  2,
	  1,
	  { 4096 } },
};

static double get_json_double(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	ck_assert_msg(json_is_number(v), "%s is not there", key);
	return json_number_value(v);
}

static void check_cell(const json_t *row, const char *series, double factor)
{
	const json_t *cell = json_object_get(row, series), *wrong = json_object_get(cell, "wrong");
	double us = get_json_double(cell, "us"), algbw = get_json_double(cell, "algbw");

	ck_assert_msg(us > 0 && get_json_double(cell, "least_us") <= us, "%s takes %g us", series,
	              us);
	ck_assert_double_ge(get_json_double(cell, "samples"), 5);
	ck_assert_double_eq_tol(algbw, get_json_double(row, "bytes") / us / 1e3,
	                        algbw * 1e-4 + 1e-9);
	ck_assert_double_eq_tol(get_json_double(cell, "busbw"), algbw * factor,
	                        algbw * 1e-4 + 1e-9);
	if (strncmp(series, "copy", 4) != 0)
		ck_assert_msg(json_is_integer(wrong) && !json_integer_value(wrong),
		              "%s: wrong elements", series);
	else
		ck_assert(json_is_null(wrong));
}

START_TEST(numbers_add_up)
{
	static char out[1 << 16];
	json_t *all, *rows;
	json_error_t err;
	size_t n = 0;

	ck_assert_int_eq(command_run(out, sizeof out, "%s bench %s --seconds 0.01 --json", TESSERA,
	                             bench_runs[_i].args),
	                 0);
	all = json_loads(out, JSON_REJECT_DUPLICATES, &err);
	ck_assert_msg(all != NULL, "%s: %s", err.text, out);
	ck_assert_int_eq(json_integer_value(json_object_get(all, "ranks")), bench_runs[_i].ranks);
	ck_assert_double_gt(get_json_double(all, "ready"), 0);
	ck_assert_double_lt(get_json_double(all, "ready"), 60);
	rows = json_object_get(all, "sizes");
	while (n < 3 && (bench_runs[_i].bytes[n] || !n)) {
		const json_t *row = json_array_get(rows, n);

		ck_assert_int_eq(json_integer_value(json_object_get(row, "bytes")),
		                 bench_runs[_i].bytes[n]);
		for (int s = 0; s < 3 && bench_runs[_i].series[s]; s++)
			check_cell(row, bench_runs[_i].series[s], bench_runs[_i].factor);
		n++;
	}
	ck_assert_uint_eq(json_array_size(rows), n);
	json_decref(all);
}
END_TEST

/* Uses a backend that drops the last element of a sum: one of 16 is wrong. */
START_TEST(wrong_elements_are_found)
{
	char out[4096];

	setenv("TESSERA_PLUGIN_PATH", WRONG_DIR, 1);
	ck_assert_int_eq(
		run_tessera_bench(
			out, sizeof out,
			"comm -n 1 --backend wrong_drops_element --sum fast -b 64 -e 64 2>&1"),
		1);
	expect_part(out, "      1\n");
	expect_part(out, "elements were wrong");
	ck_assert_int_eq(
		run_tessera_bench(out, sizeof out,
	                          "comm -n 1 --backend wrong_drops_element --sum fast -b 64 -e 64 "
	                          "--no-check"),
		0);
	expect_part(out, "      -\n");
}
END_TEST

/* ---- the chart ------------------------------------------------------------------------------- */

START_TEST(chart)
{
	static char text[1 << 16];
	FILE *f;

	ck_assert_int_eq(run_tessera_bench(text, sizeof text,
	                                   "comm -e 64K --seconds 0.01 --svg " BUILD_DIR
	                                   "/chart.svg"),
	                 0);
	f = fopen(BUILD_DIR "/chart.svg", "r");
	ck_assert_ptr_nonnull(f);
	text[fread(text, 1, sizeof text - 1, f)] = '\0';
	fclose(f);
	ck_assert(!is_well_formed("<svg><b></svg>") && !is_well_formed("<svg></svg>x"));
	ck_assert(is_well_formed(text));
	expect_part(text, "prefers-color-scheme: dark");
	/* two panels, two series, eight sizes */
	ck_assert_int_eq(count_occurrences(text, "<path class=\"line"), 4);
	ck_assert_int_eq(count_occurrences(text, "<title>"), 2 * 2 * 8);
	ck_assert_int_eq(count_occurrences(text, "nan") + count_occurrences(text, "inf"), 0);
}
END_TEST

/* Checks that the chart has the rows that were measured before the reader of the table ended. */
START_TEST(ends_with_its_reader)
{
	static char text[1 << 16];
	FILE *f;

	ck_assert_int_eq(run_tessera_bench(text, sizeof text,
	                                   "comm --sum fast -e 64K --seconds 0.1 --samples 100000 "
	                                   "--svg " BUILD_DIR "/ended.svg | head -1"),
	                 0);
	f = fopen(BUILD_DIR "/ended.svg", "r");
	ck_assert_ptr_nonnull(f);
	text[fread(text, 1, sizeof text - 1, f)] = '\0';
	fclose(f);
	ck_assert_ptr_nonnull(strstr(text, "</svg>"));
	ck_assert_int_lt(count_occurrences(text, "<title>"), 8);
}
END_TEST

/* Checks that ranks log the command's lines, but warnings of the registry only once. */
START_TEST(ranks_log_as_asked)
{
	static char out[1 << 16];
	const char *args = "comm -n 2 --backend shm -e 4 --seconds 0.01 --json 2>&1";

	setenv("TESSERA_LOG", "debug", 1);
	ck_assert_int_eq(run_tessera_bench(out, sizeof out, args), 0);
	ck_assert_ptr_nonnull(strstr(out, "[1/2] registry: debug: opened "));
	setenv("TESSERA_LOG", "warn", 1);
	setenv("TESSERA_PLUGIN_PATH", "relative", 1);
	ck_assert_int_eq(run_tessera_bench(out, sizeof out, args), 0);
	ck_assert_int_eq(count_occurrences(out, "only absolute paths are searched"), 1);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

static const struct {
	const char *args, *words;
	int status;
} bad_arguments[] = {
	{ "", "give what is measured", 2 },
	{ "com", "only comm, decode, ", 2 },
	{ "comm more", "only comm, decode, ", 2 },
	{ "comm -n 0", "from 1 to 1024", 2 },
	{ "comm -b 5X", "must be a size", 2 },
	{ "comm -b -4", "must be a size", 2 },
	{ "comm -e 8G", "at most 4G", 2 },
	{ "comm -b 1M -e 4K", "-b is more than -e", 2 },
	{ "comm -f 1", "from 2 to", 2 },
	{ "comm --kind all_reduc", "must be barrier, broadcast, ", 2 },
	{ "comm --kind recv", "all_to_all or send_recv", 2 },
	{ "comm --dtype f23", "i8 or u8", 2 },
	{ "comm --op add", "must be sum, prod, ", 2 },
	{ "comm --op band", "is for integers", 2 },
	{ "comm -n 2 --kind reduce --root 2", "ranks 0 to 1", 2 },
	{ "comm --sum exact --dtype bf16", "only for all_reduce", 2 },
	{ "comm --sum exact --in-place", "only for all_reduce", 2 },
	{ "comm --in-place --kind barrier", "no buffer that it overwrites", 2 },
	{ "comm --svg x --kind barrier", "no sizes", 2 },
	{ "comm --seconds 0", "must be a number from", 2 },
	{ "comm --samples 4", "from 5", 2 },
	{ "comm -n", "needs a value", 2 },
	{ "comm --along tp", "give the --mesh", 2 },
	{ "comm --mesh dp=2", "--along tp: the mesh \"dp=2\" has no such dimension", 1 },
	{ "comm -n 3 --mesh dp=2,tp=2", "does not fit a job of 3 ranks", 1 },
	{ "comm --limit --own", "without --own", 1 },
	{ "comm -n 1 --kind send_recv", "another rank", 1 },
	{ "comm -n 1 --svg /nowhere/x.svg", "/nowhere/x.svg", 1 },
};

START_TEST(refused)
{
	char out[8192];

	ck_assert_int_eq(
		command_run(out, sizeof out, "%s bench %s 2>&1", TESSERA, bad_arguments[_i].args),
		bad_arguments[_i].status);
	ck_assert_msg(strstr(out, bad_arguments[_i].words) != NULL, "%s: %s",
	              bad_arguments[_i].args, out);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("bench", 60, &r);

	tcase_add_loop_test(t, numbers_add_up, 0, (int)(sizeof bench_runs / sizeof *bench_runs));
	tcase_add_test(t, wrong_elements_are_found);
	tcase_add_test(t, chart);
	tcase_add_test(t, ends_with_its_reader);
	tcase_add_test(t, ranks_log_as_asked);
	tcase_add_loop_test(t, refused, 0, (int)(sizeof bad_arguments / sizeof *bad_arguments));
	return suite_end(r);
}

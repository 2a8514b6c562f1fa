/*
 * test_schedules.c - schedules of pipelines: built in for any number of ranks and micro-batches,
 * with the bubble and the memory of their formulas; torch's orders; its CSV in both forms; and the
 * refusal of each damaged schedule by row and cell.
 */
#include "tests/support/scratch.h"
#include "tests/support/suite.h"

#include <math.h>
#include <stdio.h>
#include <tessera/tessera.h>

enum { TEXT = 1 << 16 };

static const char *const built_in[] = { "gpipe",         "1f1b",          "interleaved:1",
	                                "interleaved:2", "interleaved:3", "looped-bfs:1",
	                                "looped-bfs:2",  "looped-bfs:4",  "zb-h1",
	                                "zb-v" };
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

/* Orders of torch 2.15, compute only; as files, they have a BOM, spaces and CRLF, too. */
static const struct {
	const char *ours, *text;
} torch[] = {
	{ "interleaved:2",
	  "0F0,0F1,2F0,2F1,,,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,,0B2,,0B3\n"
	  ",1F0,1F1,,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,,1B2,,1B3\n" },
	{ "interleaved:2",
	  "0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,,,,,0F6,4B0,0F7,4B1,4F4,4B2,4F5,4B3,4F6,0B0,4F7,"
	  "0B1,,0B2,,0B3,,4B4,,4B5,,4B6,,4B7,,0B4,,0B5,,0B6,,0B7\n"
	  ",1F0,1F1,1F2,1F3,5F0,5F1,5F2,5F3,,,,1F4,5B0,1F5,5B1,1F6,5B2,1F7,5B3,5F4,1B0,5F5,1B1,5F6,"
	  "1B2,5F7,1B3,,5B4,,5B5,,5B6,,5B7,,1B4,,1B5,,1B6,,1B7\n"
	  ",,2F0,2F1,2F2,2F3,6F0,6F1,,,6F2,6B0,6F3,6B1,2F4,6B2,2F5,6B3,2F6,2B0,2F7,2B1,6F4,2B2,6F5,"
	  "2B3,6F6,6B4,6F7,6B5,,6B6,,6B7,,2B4,,2B5,,2B6,,2B7\n"
	  ",,,3F0,3F1,3F2,3F3,,7F0,7B0,7F1,7B1,7F2,7B2,7F3,7B3,3F4,3B0,3F5,3B1,3F6,3B2,3F7,3B3,7F4,"
	  "7B4,7F5,7B5,7F6,7B6,7F7,7B7,,3B4,,3B5,,3B6,,3B7\n" },
	{ "zb-v",
	  "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0F4,0I1,0W1,3F3,3I3,"
	  "3W3,0F5,0I2,0W2,3F4,3I4,3W4,0I3,0W3,3F5,3I5,3W5,0I4,0W4,0I5,0W5\n"
	  ",1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1F4,1I2,"
	  "1W2,2F4,2I3,2W3,1F5,1I3,1W3,2F5,2I4,2W4,1I4,2I5,1I5,1W4,2W5,1W5\n" },
	{ "zb-v",
	  "0F0,0F1,0F2,0F3,0F4,0F5,0F6,7F0,7I0,7W0,7F1,7I1,7W1,7F2,7I2,7W2,7F3,7I3,7W3,0F7,0I0,0W0,"
	  "7F4,7I4,7W4,0I1,0W1,7F5,7I5,7W5,0I2,0W2,7F6,7I6,7W6,0I3,0W3,7F7,7I7,7W7,0I4,0W4,0I5,0W5,"
	  "0I6,0W6,0I7,0W7\n"
	  ",1F0,1F1,1F2,1F3,1F4,6F0,1F5,6F1,6I0,6W0,6F2,6I1,6W1,6F3,6I2,6W2,1F6,1I0,1W0,6F4,6I3,"
	  "6W3,"
	  "1F7,1I1,1W1,6F5,6I4,6W4,1I2,1W2,6F6,6I5,6W5,1I3,1W3,6F7,6I6,6W6,1I4,6I7,1I5,1W4,1I6,1W5,"
	  "1I7,1W6,6W7,1W7\n"
	  ",,2F0,2F1,2F2,5F0,2F3,5F1,2F4,5F2,5I0,5W0,5F3,5I1,5W1,2F5,2I0,2W0,5F4,5I2,5W2,2F6,2I1,"
	  "2W1,5F5,5I3,5W3,2F7,2I2,2W2,5F6,5I4,5W4,2I3,2W3,5F7,5I5,5W5,2I4,5I6,2I5,5I7,2I6,2W4,2I7,"
	  "2W5,5W6,5W7,2W6,2W7\n"
	  ",,,3F0,4F0,3F1,4F1,3F2,4F2,3F3,4F3,4I0,4W0,3F4,3I0,3W0,4F4,4I1,4W1,3F5,3I1,3W1,4F5,4I2,"
	  "4W2,3F6,3I2,3W2,4F6,4I3,4W3,3F7,3I3,3W3,4F7,4I4,4W4,3I4,4I5,3I5,4I6,3I6,4I7,3I7,3W4,4W5,"
	  "4W6,4W7,3W5,3W6,3W7\n" },
};

/* A schedule of two stages on two ranks, in the full form that torch writes, with messages. */
static const char full_form[] =
	"0UNSHARD,0F0, 0SEND_F0 ,0F1,0SEND_F1,,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
	"1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\r\n";

static struct tess_pipeline *open_schedule(const char *name, int32_t p, int32_t m)
{
	struct tess_pipeline *s = NULL;

	ck_assert_msg(!tess_pipeline_open(name, p, m, &s), "%s, %d ranks, %d: %s", name, (int)p,
	              (int)m, tess_error());
	return s;
}

static struct tess_pipeline *parse_rows(const char *text)
{
	struct tess_pipeline *s = NULL;

	ck_assert_msg(!tess_pipeline_parse("a.csv", text, strlen(text), 0, 0, &s), "%s",
	              tess_error());
	return s;
}

static struct tess_timeline *simulate_step(const struct tess_pipeline *s)
{
	struct tess_timeline *t = NULL;

	ck_assert_msg(!tess_pipeline_simulate(s, NULL, &t), "%s", tess_error());
	return t;
}

/* Writes the actions of a schedule as CSV; messages: the full form. */
static void write_csv(const struct tess_pipeline *s, bool messages, char *out)
{
	static const char *const kinds[] = { "F",      "B",      "I",      "W",
		                             "SEND_F", "RECV_F", "SEND_B", "RECV_B" };
	char *at = out;

	*at = 0;
	for (int32_t r = 0; r < s->nranks; r++) {
		const char *comma = "";

		for (int32_t i = 0; i < s->nactions[r]; i++) {
			const struct tess_pipeline_action *a = &s->actions[r][i];

			if (a->kind >= TESS_PIPELINE_SEND_FORWARD && !messages)
				continue;
			at += sprintf(at, "%s%d%s%d", comma, (int)a->stage, kinds[a->kind],
			              (int)a->micro);
			comma = ",";
			ck_assert(at - out < TEXT - 64);
		}
		at += sprintf(at, "\n");
	}
}

static void expect_equal(const struct tess_pipeline *a, const struct tess_pipeline *b)
{
	static char first[TEXT], second[TEXT];

	write_csv(a, true, first);
	write_csv(b, true, second);
	ck_assert_str_eq(first, second);
	ck_assert(a->nranks == b->nranks && a->nstages == b->nstages && a->nmicro == b->nmicro);
	ck_assert(!memcmp(a->rank_of, b->rank_of, sizeof(int32_t) * (size_t)a->nstages));
}

/* ---- the built-in schedules ------------------------------------------------------------------ */

START_TEST(runs_on_any_number_of_ranks)
{
	const char *name = built_in[_i];

	for (int32_t p = 1; p <= 8; p++)
		for (int32_t m = 1; m <= 40; m++) {
			struct tess_pipeline *s = open_schedule(name, p, m);
			struct tess_timeline *t = simulate_step(s);

			MUST(t->ordered && t->length >= t->longest && t->longest >= t->ideal);
			/* three units for each stage and micro-batch, forward and backward */
			MUST(t->ideal == 3.0 * m * s->nstages / p);
			for (int32_t r = 0; r < p; r++)
				MUST(t->work[r] == t->ideal && t->live[r] >= 1);
			tess_timeline_free(t);
			tess_pipeline_close(s);
		}
}
END_TEST

/* Returns the bubble of a formula, of the work; < 0: the formula does not hold. */
static double compute_bubble(const char *name, double p, double m)
{
	double v = strchr(name, ':') ? atof(strchr(name, ':') + 1) : 1;

	if (!strcmp(name, "zb-v"))
		return m >= 2 * p ? 0 : -1;
	if (!strcmp(name, "zb-h1"))
		return m >= p ? (p - 1) / (3 * m) : -1;
	if (!strncmp(name, "inter", 5))
		return fmod(m, p) == 0 ? (p - 1) / (v * m) : -1;
	if (v > 1)
		return m >= p ? (p - 1) / (v * m) : -1;
	return (p - 1) / m;
}

static int32_t compute_live(const char *name, int32_t p, int32_t rank, int32_t m)
{
	int32_t v = strchr(name, ':') ? atoi(strchr(name, ':') + 1) : 1;

	if (!strcmp(name, "gpipe") || !strncmp(name, "looped", 6))
		return m * v;
	if (!strcmp(name, "1f1b"))
		return p - rank < m ? p - rank : m;
	if (!strcmp(name, "zb-h1"))
		return p < m ? p : m;
	if (!strcmp(name, "zb-v"))
		return m >= 2 * p ? 2 * p : -1; /* of two stages, each half of one of 1F1B */
	/* rank 0: p (1 + (p - 1) / (p v)) of the values of all v stages */
	return m % p || rank || m < 2 * p ? -1 : v * p + p - 1;
}

START_TEST(has_the_bubble_and_the_memory_of_the_formula)
{
	const char *name = built_in[_i];
	int found = 0;

	for (int32_t p = 1; p <= 8; p++)
		for (int32_t m = 1; m <= 40; m++) {
			struct tess_pipeline *s = open_schedule(name, p, m);
			struct tess_timeline *t = simulate_step(s);
			double want = compute_bubble(name, p, m);
			double length = strcmp(name, "zb-v") ? t->length : t->longest;

			ck_assert_msg(want < 0 || fabs(length / t->ideal - 1 - want) < 1e-12,
			              "%s, %d ranks, %d: %g, not %g", name, (int)p, (int)m,
			              length / t->ideal - 1, want);
			for (int32_t r = 0; r < p; r++) {
				int32_t live = compute_live(name, p, r, m);

				/* in zb-v one more, whose values have been received too early */
				ck_assert_msg(
					live < 0 || live == t->live[r] ||
						(!strcmp(name, "interleaved:1") &&
				                 live >= t->live[r]) ||
						(!strcmp(name, "zb-v") && live + 1 == t->live[r]),
					"%s, %d ranks, %d: rank %d has %d, not %d", name, (int)p,
					(int)m, (int)r, (int)t->live[r], (int)live);
			}
			found += want >= 0;
			tess_timeline_free(t);
			tess_pipeline_close(s);
		}
	ck_assert_int_gt(found, 20);
}
END_TEST

START_TEST(has_the_order_of_torch)
{
	struct tess_pipeline *theirs = parse_rows(torch[_i].text);
	struct tess_pipeline *ours = open_schedule(torch[_i].ours, theirs->nranks, theirs->nmicro);

	expect_equal(ours, theirs);
	tess_pipeline_close(ours);
	tess_pipeline_close(theirs);
}
END_TEST

/* torch's backward goes from the last micro-batch to the first: its sums are apart, and later. */
START_TEST(looped_bfs_keeps_the_order_of_sums)
{
	struct tess_pipeline *theirs =
		parse_rows("0F0,0F1,0F2,2F0,2F1,2F2,,,2B2,2B1,2B0,0B2,0B1,0B0\n"
	                   ",1F0,1F1,1F2,3F0,3F1,3F2,3B2,3B1,3B0,1B2,1B1,1B0\n");
	struct tess_pipeline *ours = open_schedule("looped-bfs:2", 2, 3);
	struct tess_timeline *a = simulate_step(theirs), *b = simulate_step(ours);

	static char text[TEXT];

	ck_assert(a->ordered && b->ordered);
	ck_assert_double_eq(a->work[0], b->work[0]);
	write_csv(theirs, false, text);
	ck_assert_str_eq(text, "0F0,0F1,0F2,2F0,2F1,2F2,2I2,2I1,2B0,2W1,2W2,0I2,0I1,0B0,0W1,0W2\n"
	                       "1F0,1F1,1F2,3F0,3F1,3F2,3I2,3I1,3B0,3W1,3W2,1I2,1I1,1B0,1W1,1W2\n");
	tess_timeline_free(a);
	tess_timeline_free(b);
	tess_pipeline_close(theirs);
	tess_pipeline_close(ours);
}
END_TEST

START_TEST(takes_the_times_that_are_given)
{
	/* one micro-batch goes through three stages and back: the sum of all times */
	const double stages[] = { 1, 2, 0.5 };
	const struct tess_pipeline_times times = { .kinds = { 3, 0, 4, 5, 0.25, 0, 0.125 },
		                                   .stages = { [TESS_PIPELINE_FORWARD] = stages } };
	struct tess_pipeline *s = open_schedule("1f1b", 3, 1);
	struct tess_timeline *t = NULL;

	ck_assert(!tess_pipeline_simulate(s, &times, &t));
	ck_assert_double_eq(t->length, 3.5 + 3 * 9 + 2 * 0.25 + 2 * 0.125);
	ck_assert_double_eq(t->ideal, 11);
	tess_timeline_free(t);
	ck_assert(tess_pipeline_simulate(s, &(struct tess_pipeline_times){ .kinds = { -1 } }, &t));
	expect_part(tess_error(), "duration -1 of F; use 0 or more");
	ck_assert(tess_pipeline_simulate(
		s, &(struct tess_pipeline_times){ .stages = { NULL, (double[]){ 1, NAN, 1 } } },
		&t));
	expect_part(tess_error(), "duration nan of B of stage 1; use 0 or more");
	tess_pipeline_close(s);
}
END_TEST

/* Times of 2 micro-batches on 2 stages. */
static const struct {
	const char *schedule, *text, *says; /* says: after the name of the file; NULL: `length` */
	double length;
} files[] = {
	{ "1f1b", "{\"F\": 1, \"B\": 2}", NULL, 9 },
	{ "1f1b", "{}", NULL, 9 },
	{ "1f1b", "{\"SEND_F\": 0.5, \"SEND_B\": [9, 0.25]}", NULL, 9.75 },
	{ "1f1b", "{\"F\": [1, 3], \"B\": [2, 4], \"W\": 7}", NULL, 17 },
	{ "1f1b", "{\"F\": 1, \"I\": 2, \"W\": [0, 1]}", NULL, 11 },
	{ "zb-h1", "{\"F\": 2, \"I\": 2, \"W\": 2}", NULL, 14 },
	{ "1f1b", "{\"F\": 1, \"I\": 2}", ": lacks the duration of B", 0 },
	{ "1f1b", "{\"B\": 2}", ": lacks the duration of F", 0 },
	{ "zb-h1", "{\"F\": 1, \"B\": 2}", ": lacks the duration of I", 0 },
	{ "1f1b", "{\"F\": 1, \"B\": -2}", ": B: a duration must be a number, 0 or more", 0 },
	{ "1f1b", "{\"F\": \"1\", \"B\": 2}", ": F: a duration must be a number, 0 or more", 0 },
	{ "1f1b", "{\"F\": [1, null]}", ": F: a duration must be a number, 0 or more", 0 },
	{ "1f1b", "{\"F\": [1]}", ": F: has 1 durations, but the schedule has 2 stages", 0 },
	{ "1f1b", "{\"RECV_F\": 1}", ": RECV_F: is no duration; use F, B, I, W, SEND_F, SEND_B",
	  0 },
	{ "1f1b", "[1, 2]", ": must be an object such as {\"F\": 1, \"B\": 2}", 0 },
	{ "1f1b", "{", ":1:1: not valid JSON", 0 },
};

START_TEST(reads_times)
{
	struct tess_pipeline *s = open_schedule(files[_i].schedule, 2, 2);
	struct tess_pipeline_times *times = NULL;
	struct tess_timeline *t = NULL;
	const char *path = scratch_write_text("times.json", files[_i].text);
	tess_status st = tess_pipeline_read_times(s, path, &times);

	ck_assert_msg(!st == !files[_i].says, "%s: %s", files[_i].text, tess_error());
	if (st) {
		ck_assert(!times && !strncmp(tess_error(), path, strlen(path)));
		expect_part(tess_error() + strlen(path), files[_i].says);
	} else {
		ck_assert(!tess_pipeline_simulate(s, times, &t));
		ck_assert_msg(t->length == files[_i].length, "%s: %g", files[_i].text, t->length);
	}
	tess_timeline_free(t);
	free(times);
	tess_pipeline_close(s);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

START_TEST(reads_both_forms)
{
	static char full[TEXT];
	struct tess_pipeline *a = open_schedule("1f1b", 2, 2), *b = parse_rows(full_form);

	ck_assert_int_eq(b->nmicro, 2);
	ck_assert_int_eq(b->nstages, 2);
	ck_assert_int_eq(b->nactions[0], 8);
	ck_assert_int_eq(b->actions[1][0].kind, TESS_PIPELINE_RECEIVE_FORWARD);
	ck_assert_int_eq(b->actions[1][0].cell, 2);
	tess_pipeline_close(b);
	/* what has been written in full is read as the same */
	write_csv(a, true, full);
	b = parse_rows(full);
	expect_equal(a, b);
	tess_pipeline_close(a);
	tess_pipeline_close(b);
}
END_TEST

START_TEST(reads_what_editors_make_of_a_file)
{
	struct tess_pipeline *a = parse_rows("0F0,0B0\n1F0,1B0");
	struct tess_pipeline *b =
		parse_rows("\xef\xbb\xbf 0F0 ,,\t,\"0B0\",,\r\n,, 1F0,1B0 \r\n\r\n\n");

	expect_equal(a, b);
	tess_pipeline_close(b);
	/* two at once are computed one after the other */
	b = parse_rows("0F0,(0F1;1F0)OVERLAP_F_B,(1B0;0B0)OVERLAP_F_B,1F1,1B1,0B1\n");
	ck_assert_int_eq(b->nactions[0], 8);
	ck_assert(b->actions[0][1].micro == 1 && b->actions[0][2].stage == 1);
	tess_pipeline_close(a);
	tess_pipeline_close(b);
}
END_TEST

START_TEST(takes_its_numbers_from_the_file)
{
	char path[300];
	struct tess_pipeline *s = NULL;

	snprintf(path, sizeof path, "%s", scratch_write_text("s.csv", full_form));
	ck_assert_msg(!tess_pipeline_open(path, 2, 0, &s), "%s", tess_error());
	ck_assert_int_eq(s->nmicro, 2);
	tess_pipeline_close(s);
	ck_assert(tess_pipeline_open(path, 4, 0, &s) == TESS_EINVAL);
	expect_part(tess_error(), "s.csv: is for 2 ranks along pp, not 4; use --mesh pp=2");
	ck_assert(tess_pipeline_open(path, 2, 8, &s) == TESS_EINVAL);
	expect_part(tess_error(), "is for 2 micro-batches, not 8; use --micro-batches 2, or leave");
	ck_assert(tess_pipeline_open("/nonexistent.csv", 2, 0, &s) == TESS_ENOENT);
	ck_assert(tess_pipeline_open("1f1c", 2, 2, &s) == TESS_EINVAL);
	expect_part(tess_error(), "pipeline schedule 1f1c: must be gpipe, 1f1b, interleaved:V");
	ck_assert(tess_pipeline_open("interleaved", 2, 2, &s) == TESS_EINVAL);
	expect_part(tess_error(), "the number of stages a rank is needed, from 1 to 64; use inter");
	ck_assert(tess_pipeline_open("zb-v:2", 2, 2, &s) == TESS_EINVAL);
	expect_part(tess_error(), "zb-v has a fixed number of stages a rank; use zb-v");
	s = open_schedule("1f1b", 0, 0);
	ck_assert(s->nranks == 1 && s->nmicro == 1);
	tess_pipeline_close(s);
	ck_assert(tess_pipeline_open("1f1b", 2, -1, &s) == TESS_EINVAL);
	expect_part(tess_error(), "2 ranks and -1 micro-batches are given; use 0 or more");
}
END_TEST

/* ---- damage ---------------------------------------------------------------------------------- */

static const struct {
	const char *text, *says; /* after "a.csv: " */
} damaged[] = {
	/* text */
	{ "0F0,hello,0B0\n", "row 1, cell 2: \"hello\" is not an action; use a stage, F, B, I" },
	{ "0F0,0X0,0B0\n", "row 1, cell 2: \"0X0\" is not an action" },
	{ "0F0,F0,0B0\n", "row 1, cell 2: \"F0\" is not an action" },
	{ "0F,0B0\n", "row 1, cell 1: \"0F\" is not an action" },
	{ "0F0,0B0x\n", "row 1, cell 2: \"0B0x\" is not an action" },
	{ "0F0,-1B0\n", "row 1, cell 2: \"-1B0\" is not an action" },
	{ "0F0,0B999999999999\n", "row 1, cell 2: \"0B999999999999\" is not an action" },
	{ "0F0,(0B0;0F1)OVERLAP\n", "row 1, cell 2: \"(0B0;0F1)OVERLAP\" is not an action" },
	{ "0F0,(0B0,0F1)OVERLAP_F_B\n", "row 1, cell 2: \"(0B0\" is not an action" },
	{ "0F0;0B0\n", "row 1, cell 1: \"0F0;0B0\" is not an action" },
	{ "0F0,0B0\n\n1F0,1B0\n", "row 2 has no action; each row is a rank" },
	{ "", "row 1 has no action" },
	{ "\xef\xbb\xbf,,,\n", "row 1 has no action" },
	/* a missing action */
	{ "0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", "row 1 has no 0B1; each stage computes each micro" },
	{ "0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n", "row 1 has no 0F1" },
	{ "0F0,0I0\n", "row 1 has no 0W0" },
	{ "0F0,0W0\n", "row 1 has no 0I0" },
	{ "0F0,0B0\n2F0,2B0\n", "stage 1 is in no row; stages are numbered from 0 to 2" },
	{ "0F0,0F9,0B0,0B9\n", "row 1 has no 0F1" },
	/* an action twice */
	{ "0F0,0B0,0B0\n", "row 1, cell 3 (0B0) is also row 1, cell 2 (0B0); an action happens" },
	{ "0F0,0B0,0I0,0W0\n",
	  "row 1, cell 3 (0I0) is a part of row 1, cell 2 (0B0); use B, or I" },
	/* a stage twice */
	{ "0F0,0B0\n0F1,1F0,1F1,1B0,1B1,0B1\n",
	  "row 2, cell 1 (0F1): stage 0 is in row 1; a stage is on one rank" },
	/* a swapped pair */
	{ "0B0,0F0\n", "row 1, cell 1 (0B0) needs the later row 1, cell 2 (0F0)" },
	{ "0F0,0W0,0I0\n", "row 1, cell 2 (0W0) needs the later row 1, cell 3 (0I0)" },
	{ "1F0,0F0,1B0,0B0\n", "row 1, cell 1 (1F0) needs the later row 1, cell 2 (0F0)" },
	{ "0F0,1F0,0B0,1B0\n", "row 1, cell 3 (0B0) needs the later row 1, cell 4 (1B0)" },
	/* a circle of ranks, in computations: rank 1 wants 1 first, which rank 0 computes last */
	{ "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
	  "ranks wait for each other: row 1, cell 2 (0RECV_B" },
	{ "0F0,2F0,2B0,0B0,0F1,2F1,2B1,0B1\n1F1,1F0,1B0,1B1\n",
	  "ranks wait for each other: row 1, cell 2 (2RECV_F" },
	/* messages */
	{ "0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
	  "row 1 has no 0SEND_F0; each value for another rank is sent and received once" },
	{ "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", "row 2 has no 1RECV_F0" },
	{ "0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "row 1 has no 0RECV_B0" },
	{ "0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
	  "row 1, cell 1 (0SEND_F0) is sent before row 1, cell 2 (0F0); send it after" },
	{ "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n",
	  "row 2, cell 2 (1RECV_F0) is received after row 2, cell 1 (1F0); receive it before" },
	{ "0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
	  "row 1, cell 5 (0SEND_B0) goes to no other rank; leave it out" },
	{ "0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
	  "row 1, cell 3 (0SEND_F0) is also row 1, cell 2" },
	{ "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
	  "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
	  "row 2, cell 1 (1RECV_F1) is received before the message of row 1, cell 2 (0SEND_F0); "
	  "receive the messages of a rank in the order of their sends" },
	{ "0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
	  "ranks wait for each other: row 1, cell 2 (0RECV_B0), for row 2, cell 1 (1RECV_F0), for "
	  "row 1; move a send before a receive that waits for it" },
	{ "0F0,0B0,0SEND_F7\n", "row 1 has no 0F1" },
};

START_TEST(refuses_damage)
{
	const char *text = damaged[_i].text;
	struct tess_pipeline *s = NULL;
	char want[300];

	snprintf(want, sizeof want, "a.csv: %s", damaged[_i].says);
	ck_assert(tess_pipeline_parse("a.csv", text, strlen(text), 0, 0, &s) == TESS_EINVAL);
	ck_assert_ptr_null(s);
	ck_assert_msg(!strncmp(tess_error(), want, strlen(want)), "%s\nnot %s", tess_error(), want);
}
END_TEST

/* Each computation is left out, or swapped with the next one: refused, or still a schedule. */
START_TEST(survives_any_damage_of_an_order)
{
	struct tess_pipeline *s = open_schedule("zb-v", 3, 6);
	struct tess_pipeline_action *row[3], saved;
	int32_t n[3];
	struct tess_pipeline copy = *s;
	int refused = 0;

	copy.nactions = n;
	copy.actions = (const struct tess_pipeline_action *const *)row;
	for (int32_t r = 0; r < 3; r++) {
		n[r] = s->nactions[r];
		row[r] = malloc(sizeof saved * (size_t)n[r]);
		ck_assert_ptr_nonnull(row[r]);
		memcpy(row[r], s->actions[r], sizeof saved * (size_t)n[r]);
	}
	ck_assert(!tess_pipeline_check(&copy));
	for (int32_t r = 0; r < 3; r++)
		for (int32_t i = 0; i + 1 < n[r]; i++) {
			saved = row[r][i];
			row[r][i] = row[r][i + 1];
			ck_assert(tess_pipeline_check(&copy)); /* one twice, and one missing */
			row[r][i + 1] = saved;
			refused += tess_pipeline_check(&copy) != TESS_OK;
			row[r][i + 1] = row[r][i];
			row[r][i] = saved;
		}
	ck_assert_int_gt(refused, 60);
	ck_assert(!tess_pipeline_check(&copy));
	for (int32_t r = 0; r < 3; r++)
		free(row[r]);
	tess_pipeline_close(s);
}
END_TEST

/* Random bytes of a file are damaged: no crash, and a message or a schedule. */
START_TEST(survives_random_bytes)
{
	static const char bytes[] = "0123456789FBIWSENDRCV_,,\n\n ();\xef\x80";
	static char text[TEXT];
	uint64_t state = 7;
	int refused = 0;

	for (int k = 0; k < 3000; k++) {
		struct tess_pipeline *s = NULL;
		size_t len;

		snprintf(text, sizeof text, "%s", k % 2 ? full_form : torch[k / 2 % 4].text);
		len = strlen(text);
		for (int n = 0; n <= k % 3; n++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			text[(state >> 33) % len] = bytes[(state >> 20) % (sizeof bytes - 1)];
		}
		if (tess_pipeline_parse("a.csv", text, len, 0, 0, &s)) {
			ck_assert_msg(!strncmp(tess_error(), "a.csv: ", 7), "%s", tess_error());
			refused++;
		}
		tess_pipeline_close(s);
	}
	ck_assert_int_gt(refused, 1500);
}
END_TEST

/* ---- the forms of a timeline ----------------------------------------------------------------- */

START_TEST(prints_and_draws)
{
	struct tess_pipeline *s = open_schedule("1f1b", 2, 2);
	struct tess_timeline *t = simulate_step(s);
	char *text = NULL;

	ck_assert(!tess_timeline_format(t, TESS_TIMELINE_TEXT, &text));
	ck_assert_str_eq(text,
	                 "pipeline schedule 1f1b: 2 ranks along pp, 2 stages, 2 micro-batches\n"
	                 "a step takes 9, work 6: bubble 50.0% of the work\n"
	                 "unit of time: the shortest computation\n\n"
	                 "time       0              5\n"
	                 "rank 0    F0 F1  .  . B0  -  . B1  -\n"
	                 "rank 1     . F0 B0  - F1 B1  -  .  .\n\n"
	                 "rank   idle  live micro-batches (of each stage)\n"
	                 "   0  33.3%     2  (0: 2)\n"
	                 "   1  33.3%     1  (1: 1)\n");
	free(text);
	ck_assert(!tess_timeline_format(t, TESS_TIMELINE_SVG, &text));
	ck_assert_int_eq(count_occurrences(text, "<rect class=\"F\""), 4 + 1); /* and the legend */
	ck_assert_int_eq(count_occurrences(text, "<rect class=\"B\""), 4 + 1);
	ck_assert_int_eq(count_occurrences(text, "<rect class=\"bubble\""), 2 + 1);
	/* rank 0 keeps 2 of 2 micro-batches, in steps of 8 of the height of 16 */
	ck_assert_int_eq(count_occurrences(text, "peak 2 live</text>"), 1);
	ck_assert_int_eq(count_occurrences(text, "peak 1 live</text>"), 1);
	expect_part(text, "d=\"M88.0 111.0H88.0V103.0H150.2V95.0H461.3V103.0H648.0V111.0H648.0\"");
	free(text);
	ck_assert(tess_timeline_format(t, 7, &text) == TESS_EINVAL);
	tess_timeline_free(t);
	tess_pipeline_close(s);
}
END_TEST

int main(void)
{
	SRunner *runner;
	int failed;
	TCase *tcase = suite_begin("schedules", 120, &runner);

	tcase_add_loop_test(tcase, runs_on_any_number_of_ranks, 0, BUILT_IN);
	tcase_add_loop_test(tcase, has_the_bubble_and_the_memory_of_the_formula, 0, BUILT_IN);
	tcase_add_loop_test(tcase, has_the_order_of_torch, 0, sizeof torch / sizeof *torch);
	tcase_add_test(tcase, looped_bfs_keeps_the_order_of_sums);
	tcase_add_test(tcase, takes_the_times_that_are_given);
	tcase_add_loop_test(tcase, reads_times, 0, sizeof files / sizeof *files);
	tcase_add_test(tcase, reads_both_forms);
	tcase_add_test(tcase, reads_what_editors_make_of_a_file);
	tcase_add_test(tcase, takes_its_numbers_from_the_file);
	tcase_add_loop_test(tcase, refuses_damage, 0, sizeof damaged / sizeof *damaged);
	tcase_add_test(tcase, survives_any_damage_of_an_order);
	tcase_add_test(tcase, survives_random_bytes);
	tcase_add_test(tcase, prints_and_draws);
	scratch_make();
	failed = suite_end(runner);
	scratch_remove();
	return failed;
}

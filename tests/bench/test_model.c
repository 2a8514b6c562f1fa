/*
 * test_model.c - tessera bench decode, prefill, batch and load by their command line: the counts
 * are the model's, parts add up to the total, and wrong arguments are refused. No time is asserted.
 */
#include "tests/support/command.h"
#include "tests/support/suite.h"

#include <check.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The sizes of data/config.json, and the elements of all multiplied weights, a tied table once. */
enum { LAYERS = 5, HEADS = 8, KV = 4, HEAD = 8, HIDDEN = 64, NORMS = 2 * LAYERS + 1 };
enum { ROUNDS = 3, F32 = 4 };

static const struct {
	const char *args;
	int ranks, batch, context, tokens;
	bool prefill;
} cases[] = {
	{ "decode --context 5 --tokens 7 -n 1", 1, 1, 5, 7, false },
	{ "decode --context 0 --tokens 4 -n 2 --backend shm", 2, 1, 0, 4, false },
	{ "decode --context 70 --tokens 3 -n 2 --backend loopback", 2, 1, 70, 3, false },
	{ "batch --batch 4 --tokens 6 -n 2 --backend shm", 2, 4, 16, 6, false },
	{ "prefill --tokens 30 -n 1", 1, 1, 0, 30, true },
	{ "prefill --tokens 90 --context 10 -n 2 --backend shm --plan tp", 2, 1, 10, 90, true },
};
enum { CASES = sizeof cases / sizeof *cases };

static json_t *parse_object(const char *text)
{
	json_error_t err;
	json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &err);

	ck_assert_msg(o != NULL, "%s: %s", err.text, text);
	return o;
}

static double get_json_number(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	ck_assert_msg(json_is_number(v), "%s is not there", key);
	return json_number_value(v);
}

static json_int_t get_count(const json_t *o, const char *key)
{
	ck_assert_msg(json_is_integer(json_object_get(o, key)), "%s is no whole number", key);
	return json_integer_value(json_object_get(o, key));
}

static const json_t *find_op(const json_t *breakdown, const char *name)
{
	const json_t *op;
	size_t i;

	json_array_foreach(json_object_get(breakdown, "ops"), i, op)
		if (!strcmp(json_string_value(json_object_get(op, "op")), name))
			return op;
	ck_abort_msg("no op %s", name);
	return NULL;
}

/* Returns the bytes of all weights on all ranks, by explain. */
static json_int_t explain_weight_bytes(int ranks)
{
	static char out[1 << 17];
	const json_t *p, *rank;
	json_int_t sum = 0;
	size_t i, k;
	json_t *all;

	ck_assert_int_eq(command_run(out, sizeof out, "%s explain " DATA " -n %d --plan tp --json",
	                             TESSERA, ranks),
	                 0);
	all = parse_object(out);
	json_array_foreach(json_object_get(all, "parameters"), i, p)
		json_array_foreach(json_object_get(p, "ranks"), k, rank)
			sum += get_count(rank, "bytes");
	json_decref(all);
	return sum;
}

/*
 * Counts the positions of one text that the rows of a round see, and that its forwards read and
 * write.
 */
static void count_positions(int i, int64_t *seen, int64_t *moved)
{
	int64_t first = cases[i].context, n = cases[i].tokens;

	*seen = n * first + n * (n + 1) / 2;
	*moved = n + (cases[i].prefill ? first + n : *seen);
}

static void check_costs(int i, const json_t *o)
{
	int64_t batch = cases[i].batch, n = cases[i].tokens, rows = cases[i].prefill ? n : 1;
	int64_t forwards = cases[i].prefill ? 1 : n, seen, moved;
	json_int_t weights = explain_weight_bytes(cases[i].ranks);
	json_int_t norms = (json_int_t)cases[i].ranks * NORMS * HIDDEN * F32;
	json_int_t table = 512 * HIDDEN, linear = (weights - norms) / F32, products;

	count_positions(i, &seen, &moved);
	/* each weight once for any batch, and the rows of the table that are looked up */
	ck_assert_int_eq(get_count(o, "weight_bytes"), weights + batch * rows * HIDDEN * F32);
	ck_assert_int_eq(get_count(o, "kv_bytes"),
	                 batch * moved * LAYERS * 2 * KV * HEAD * F32 / forwards);
	/* a prompt gets the logits of its last row only */
	products = batch * rows * (linear - table) + batch * table;
	ck_assert_int_eq(get_count(o, "flops"),
	                 2 * products + 2 * batch * seen * LAYERS * HEADS * 2 * HEAD / forwards);
}

static void check_breakdown(int i, const json_t *o)
{
	const json_t *b = json_object_get(o, "breakdown"), *limits = json_object_get(o, "limits"),
		     *op;
	int64_t forwards = cases[i].prefill ? 1 : cases[i].tokens;
	double seconds = get_json_number(b, "seconds"), compute = get_json_number(b, "compute"),
	       sum = 0;
	size_t k;

	ck_assert(get_json_number(limits, "bytes_per_s") > 1e6 &&
	          get_json_number(limits, "flops_per_s") > 1e6);
	json_array_foreach(json_object_get(b, "ops"), k, op) {
		ck_assert_int_gt(get_count(op, "calls"), 0);
		ck_assert_int_gt(get_count(op, "bytes"), 0);
		sum += get_json_number(op, "seconds");
	}
	ck_assert_double_eq_tol(sum, compute, 1e-6);
	ck_assert_double_eq_tol(compute + get_json_number(b, "communication") +
	                                get_json_number(b, "wait") + get_json_number(b, "other"),
	                        seconds, 1e-6);
	ck_assert(get_json_number(b, "wait") >= 0 && get_json_number(b, "other") >= 0);
	ck_assert_int_eq(get_count(find_op(b, "linear"), "calls"), forwards * (4 * LAYERS + 1));
	ck_assert_int_eq(get_count(find_op(b, "attention"), "calls"), forwards * LAYERS);
	ck_assert_int_eq(get_count(find_op(b, "embed"), "calls"), forwards);
	if (cases[i].ranks > 1)
		ck_assert(get_json_number(b, "communication") > 0);
	/* the median is the time of one round */
	ck_assert_double_eq_tol(get_json_number(o, "median"),
	                        cases[i].batch * cases[i].tokens / seconds,
	                        1e-6 * get_json_number(o, "median"));
}

START_TEST(counts_are_those_of_the_model)
{
	static char out[1 << 16];
	bool breakdown = _i % 3 == 1; /* it measures its limits, the longest part */
	const json_t *rates;
	json_t *o;

	ck_assert_int_eq(command_run(out, sizeof out,
	                             "%s bench %s " DATA " --threads 1 --rounds %d --json %s",
	                             TESSERA, cases[_i].args, ROUNDS,
	                             breakdown ? "--breakdown" : ""),
	                 0);
	o = parse_object(out);
	rates = json_object_get(o, "tokens_per_s");
	ck_assert_uint_eq(json_array_size(rates), ROUNDS);
	for (size_t k = 0; k < ROUNDS; k++)
		ck_assert(json_number_value(json_array_get(rates, k)) > 0);
	ck_assert_int_eq(get_count(o, "ranks"), cases[_i].ranks);
	ck_assert_int_eq(get_count(o, "threads"), 1);
	ck_assert_int_eq(get_count(o, "batch"), cases[_i].batch);
	check_costs(_i, o);
	if (breakdown)
		check_breakdown(_i, o);
	json_decref(o);
}
END_TEST

START_TEST(batch_has_a_line_for_each_size)
{
	static char out[1 << 16];
	char *line = out, *next;
	int sizes = 0;

	ck_assert_int_eq(command_run(out, sizeof out,
	                             "%s bench batch " DATA
	                             " --batch 1,3 --tokens 4 --threads 1 --rounds 2 --json",
	                             TESSERA),
	                 0);
	for (; (next = strchr(line, '\n')); line = next + 1) {
		json_t *o;

		*next = '\0';
		o = parse_object(line);
		ck_assert_int_eq(get_count(o, "batch"), sizes++ ? 3 : 1);
		ck_assert_ptr_null(json_object_get(o, "breakdown"));
		json_decref(o);
	}
	ck_assert_int_eq(sizes, 2);
}
END_TEST

START_TEST(tables_are_for_people)
{
	static char out[1 << 16];

	ck_assert_int_eq(command_run(out, sizeof out,
	                             "%s bench decode " DATA
	                             " -n 2 --threads 1 --tokens 4 --rounds 2 --breakdown 2>&1",
	                             TESSERA),
	                 0);
	expect_part(out, "2 ranks x 1 thread over ");
	expect_part(out, "tokens/s");
	expect_part(out, "    linear                84 ");
	expect_part(out, "  communication ");
	ck_assert_int_eq(count_occurrences(out, "nan") + count_occurrences(out, "inf"), 0);
}
END_TEST

START_TEST(loads)
{
	static char out[1 << 16];
	const json_t *open, *first, *end, *rss;
	json_t *o;

	ck_assert_int_eq(command_run(out, sizeof out,
	                             "%s bench load " DATA
	                             " -n 2 --backend shm --threads 1 --rounds 2 --json",
	                             TESSERA),
	                 0);
	o = parse_object(out);
	open = json_object_get(o, "open_s");
	first = json_object_get(o, "first_token_s");
	end = json_object_get(o, "end_s");
	rss = json_object_get(o, "max_rss_bytes");
	ck_assert_uint_eq(json_array_size(open), 2);
	ck_assert_uint_eq(json_array_size(rss), 2);
	for (size_t i = 0; i < 2; i++) {
		double opened = json_number_value(json_array_get(open, i));

		ck_assert(opened > 0);
		ck_assert(json_number_value(json_array_get(first, i)) > opened);
		ck_assert(json_number_value(json_array_get(end, i)) > 0);
		ck_assert_int_gt(json_integer_value(json_array_get(rss, i)), 1 << 20);
	}
	json_decref(o);
	ck_assert_int_eq(command_run(out, sizeof out, "%s bench load " DATA " --rounds 1", TESSERA),
	                 0);
	expect_part(out, "first token");
}
END_TEST

/* Checks that a message of load's process is printed once, and that its status is the command's. */
START_TEST(load_fails_with_its_process)
{
	static char out[1 << 16];

	ck_assert_int_eq(
		command_run(out, sizeof out, "%s bench load " DATA " --kv-memory 1K 2>&1", TESSERA),
		1);
	ck_assert_msg(count_occurrences(out, "KV cache") == 1, "%s", out);
}
END_TEST

START_TEST(ends_by_an_interrupt)
{
	static char out[1 << 16];

	ck_assert_int_eq(command_run(out, sizeof out,
	                             "timeout --preserve-status -s INT 0.5 %s bench decode " DATA
	                             " -n 2 --backend shm --tokens 400 --rounds 1000 2>&1",
	                             TESSERA),
	                 130);
	ck_assert_ptr_null(strstr(out, "tessera bench:"));
}
END_TEST

static const struct {
	const char *args, *words;
	int status;
} bad_models[] = {
	{ "decode", "no MODEL is given", 2 },
	{ "decode " DATA " more", "give one MODEL", 2 },
	{ "decode " DATA " --tokens 0", "from 1 to", 2 },
	{ "decode " DATA " --batch 1,x", "whole number", 2 },
	{ "decode " DATA " --rounds 1001", "from 1 to 1000", 2 },
	{ "decode " DATA " --kind reduce", "no such option", 2 },
	{ "load " DATA " --batch 2", "load runs one text", 2 },
	{ "load " DATA " --breakdown", "use decode", 2 },
	{ "load " DATA " --context 0", "1 id or more", 2 },
	{ "decode " DATA " --context 500", "at most 512 positions", 1 },
	{ "decode " DATA " -n 2 --mesh dp=2", "replicas along dp run apart", 1 },
	{ "decode " DATA " -n 2 --plan nonsense", "nonsense", 1 },
	{ "prefill /nowhere", "/nowhere", 1 },
	{ "batch " DATA " --batch 9 --kv-memory 1M --context 400", "--kv-memory", 1 },
};

START_TEST(refused_models)
{
	static char out[1 << 16];

	ck_assert_int_eq(
		command_run(out, sizeof out, "%s bench %s 2>&1", TESSERA, bad_models[_i].args),
		bad_models[_i].status);
	ck_assert_msg(strstr(out, bad_models[_i].words) != NULL, "%s: %s", bad_models[_i].args,
	              out);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("bench models", 60, &r);

	tcase_add_loop_test(t, counts_are_those_of_the_model, 0, CASES);
	tcase_add_test(t, batch_has_a_line_for_each_size);
	tcase_add_test(t, tables_are_for_people);
	tcase_add_test(t, loads);
	tcase_add_test(t, load_fails_with_its_process);
	tcase_add_test(t, ends_by_an_interrupt);
	tcase_add_loop_test(t, refused_models, 0, (int)(sizeof bad_models / sizeof *bad_models));
	return suite_end(r);
}

/*
 * test_trace.c - the timeline of the backend trace, of commands: computation between the calls of
 * each rank, by module.
 */
#include "tests/command/train_command.h"

#include <ctype.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, SPANS_MAX = 1 << 16 };
static const double rounding = 0.002; /* us: times have three decimals */

struct span { /* us */
	double begin, end;
};

struct timeline { /* of one rank */
	struct span computed[SPANS_MAX], blocked[SPANS_MAX], all[2 * SPANS_MAX];
	struct span action[16]; /* of a schedule along pp */
	int ncomputed, nblocked, nall, nactions;
	bool backward; /* computes gradients */
};

static json_t *load_trace(void)
{
	json_error_t why;
	json_t *root = json_load_file(scratch_format_path("trace.json"), 0, &why), *list;

	ck_assert_msg(root != NULL, "line %d: %s", why.line, why.text);
	list = json_incref(json_object_get(root, "traceEvents"));
	json_decref(root);
	return list;
}

static double get_event_value(const json_t *event, const char *key)
{
	return json_number_value(json_object_get(event, key));
}

static const char *get_event_text(const json_t *event, const char *key)
{
	const char *text = json_string_value(json_object_get(event, key));

	return text ? text : "";
}

static void add_event(struct timeline *t, const json_t *event)
{
	const json_t *args = json_object_get(event, "args");
	struct span s = { .begin = get_event_value(event, "ts") };

	s.end = s.begin + get_event_value(event, "dur");
	if (isdigit((unsigned char)*get_event_text(event, "name"))) {
		ck_assert_int_lt(t->nactions, 16);
		t->action[t->nactions++] = s;
		return;
	}
	ck_assert_int_lt(t->nall, SPANS_MAX);
	t->all[t->nall++] = s;
	if (!strcmp(get_event_text(event, "cat"), "compute")) {
		ck_assert_msg(*get_event_text(event, "name") && *get_event_text(args, "ops"),
		              "a span without a name");
		t->backward = t->backward || strstr(get_event_text(args, "ops"), "linear_d");
		t->computed[t->ncomputed++] = s;
	} else if (get_event_value(args, "waited_us") > 0) {
		s.begin = s.end - get_event_value(args, "waited_us");
		t->blocked[t->nblocked++] = s;
	}
}

static struct timeline *read_timeline(int rank)
{
	struct timeline *t = calloc(1, sizeof *t);
	json_t *list = load_trace(), *event;
	size_t i;

	MUST(t);
	json_array_foreach(list, i, event) {
		if (!strcmp(get_event_text(event, "ph"), "X") &&
		    (int)get_event_value(event, "pid") == rank)
			add_event(t, event);
	}
	json_decref(list);
	return t;
}

static int compare_begins(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Checks that no span of computation overlaps another one, or a call that this rank waits in. */
static void check_overlaps(const struct timeline *t)
{
	for (int i = 0; i < t->ncomputed; i++) {
		const struct span *s = &t->computed[i];

		if (i)
			ck_assert_msg(s->begin >= s[-1].end - rounding, "spans overlap at %f",
			              s->begin);
		for (int k = 0; k < t->nblocked; k++)
			ck_assert_msg(s->begin >= t->blocked[k].end - rounding ||
			                      s->end <= t->blocked[k].begin + rounding,
			              "computes from %f to %f, and waits from %f to %f", s->begin,
			              s->end, t->blocked[k].begin, t->blocked[k].end);
	}
}

/* Checks that all is computed in one of n actions. */
static void check_actions(const struct timeline *t, int n)
{
	ck_assert_int_eq(t->nactions, n);
	for (int i = 0, k = 0; i < t->ncomputed && n; i++) {
		const struct span *s = &t->computed[i];

		for (k = 0; k < n && !(s->begin >= t->action[k].begin - rounding &&
		                       s->end <= t->action[k].end + rounding);)
			k++;
		ck_assert_msg(k < n, "computes in no action from %f to %f", s->begin, s->end);
	}
}

/* Returns the share of the time from the first computation to the last that events cover. */
static double measure_coverage(struct timeline *t)
{
	double first = t->computed[0].begin, last = t->computed[t->ncomputed - 1].end;
	double covered = 0, at = first;

	qsort(t->all, (size_t)t->nall, sizeof *t->all, compare_begins);
	for (int i = 0; i < t->nall; i++) {
		double begin = t->all[i].begin > at ? t->all[i].begin : at;
		double end = t->all[i].end < last ? t->all[i].end : last;

		if (end > begin) {
			covered += end - begin;
			at = end;
		}
	}
	return covered / (last - first);
}

/* Runs a command and checks the timeline of each rank; returns the lowest coverage. */
static double trace_command(const char *arguments, bool training)
{
	char text[TEXT];
	double lowest = 1;

	ck_assert_msg(!command_run(text, TEXT,
	                           "cd '%s' && TESSERA_TRACE_FILE=trace.json '%s' %s 2>&1", scratch,
	                           TESSERA, arguments),
	              "%s: %s", arguments, text);
	for (int rank = 0; rank < RANKS; rank++) {
		struct timeline *t = read_timeline(rank);
		double covered;

		ck_assert_msg(t->ncomputed > 50, "%s: %d spans", arguments, t->ncomputed);
		ck_assert_int_eq(t->backward, training);
		qsort(t->computed, (size_t)t->ncomputed, sizeof *t->computed, compare_begins);
		check_overlaps(t);
		/* two micro-batches: forward, backward of inputs and of weights */
		check_actions(t, strstr(arguments, "zb-h1") ? 6 : 0);
		covered = measure_coverage(t);
		lowest = covered < lowest ? covered : lowest;
		free(t);
	}
	return lowest;
}

/* Checks that events cover most of the time, in one of several runs: the machine may be busy. */
static void check_trace_of(const char *arguments, bool training)
{
	double covered = 0;

	for (int i = 0; i < 50 && covered < 0.6; i++)
		covered = trace_command(arguments, training);
	ck_assert_msg(covered >= 0.6, "%s: events cover %g of the time", arguments, covered);
}

START_TEST(traces_computation)
{
	check_trace_of("generate '" SOURCE_ROOT "/data' -n 2 --backend trace:shm --ids 5,6,7 "
	               "--max-tokens 5 --temperature 0",
	               false);
	check_trace_of("train '" SOURCE_ROOT "/data' --data '" STORIES "' -n 2 --steps 1 " SIZES
	               " --backend trace:faulty:shm",
	               true);
	check_trace_of("train '" SOURCE_ROOT "/data' --data '" STORIES
	               "' --mesh pp=2 --micro-batches 2 --pipeline-schedule zb-h1 --steps 1 " SIZES
	               " --backend trace:shm",
	               true);
	/* sums over dp overlap computation */
	check_trace_of("train '" SOURCE_ROOT "/data' --data '" STORIES
	               "' --mesh dp=2 --steps 1 " SIZES " --backend faulty:trace:loopback "
	               "--bucket 100000",
	               true);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t;
	int failed;

	scratch_make();
	t = suite_begin("trace", 120, &r);
	tcase_add_test(t, traces_computation);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

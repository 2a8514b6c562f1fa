/*
 * test_faults.c - plugins that crash or do not return, in each function, in commands of each kind:
 * one message names function, plugin, file and module within seconds. Styles that are wrong in
 * other ways are found, too.
 */
#include "tests/support/job.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MODULE "model.layers.1.mlp.up_proj"
#define STYLE " of style defective (", "tess-style-defective.so) at " MODULE
#define COMPARE "compare data --ids 1,2,3,4 -n 2 --plan-override " MODULE "=wrong:"
#define EXPLAIN "explain data -n 2 --plan-override " MODULE "=defective:"
#define GENERATE "generate data --prompt Once --max-tokens 2 -n 2 "
#define TRAIN "train data --data data/texts/stories.jsonl --steps 1 -n 2 "
#define THREADS "--backend loopback "
#define PROCESSES "--backend shm "
#define PLAN "--plan-override " MODULE "=defective:"
#define DEVICE "--device defective"

enum { PARTS = 5, BATCH = 16, SIGNALLED = 128 };

struct fault_case {
	const char *defect; /* of a device, a backend or a file: DEFECT; NULL: of a style */
	const char *command;
	int status; /* SIGNALLED: by the signal, if no sanitizer handles it */
	const char *parts[PARTS]; /* of the output */
};

/* Styles with a mistake each; what finds it names plugin and module, within 10 s. */
static const struct fault_case wrong_styles[] = {
	{ NULL,
	  COMPARE "scales",
	  1,
	  { "first difference: " MODULE ", row 0, column 0: ", "style wrong:scales (",
	    "tess-style-wrong.so)" } },
	{ NULL,
	  COMPARE "rows",
	  1,
	  { "first difference: " MODULE ", row 0, ", "style wrong:rows (" } },
	{ NULL,
	  COMPARE "one_rank",
	  1,
	  { "first difference: " MODULE ", row 0, ", "style wrong:one_" } },
	{ NULL,
	  COMPARE "rank_1",
	  1,
	  { "first difference: " MODULE ", row 0, ",
	    "(on rank 1 of A): ", "style wrong:rank_1 (" } },
	{ NULL,
	  "explain data -n 2 --plan-override " MODULE "=wrong:axis",
	  1,
	  { MODULE ": style wrong:axis: a weight that is Shard(0)" } },
	{ NULL,
	  GENERATE THREADS "--check " PLAN "drift",
	  1,
	  { MODULE ": call gives ", "same value; style defective (", "makes them differ" } },
	{ NULL,
	  GENERATE THREADS "--check " PLAN "nan",
	  1,
	  { MODULE ": call gives NaN on rank 1", "style defective (",
	    "tess-style-defective.so)" } },
	{ NULL,
	  GENERATE THREADS PLAN "call=7",
	  1,
	  { MODULE ": style defective (", "tess-style-defective.so): compute() returned 7" } },
	{ NULL,
	  EXPLAIN "layout=7",
	  1,
	  { MODULE ": style defective (", "tess-style-defective.so): layout() returned 7" } },
	{ NULL,
	  EXPLAIN "layout=crash",
	  SIGNALLED + SIGSEGV,
	  { "plugin: error: layout()" STYLE ": signal 11 (Segmentation fault), address 0x8, in /",
	    "tess-style-defective.so+0x" } },
	{ NULL,
	  EXPLAIN "partition=crash",
	  SIGNALLED + SIGSEGV,
	  { "partition_param()" STYLE ": signal 11" } },
	{ NULL, EXPLAIN "open=crash", SIGNALLED + SIGSEGV, { "open()" STYLE ": signal 11" } },
	{ NULL,
	  EXPLAIN "input=crash",
	  SIGNALLED + SIGSEGV,
	  { "prepare_input()" STYLE ": signal 11" } },
	{ NULL,
	  EXPLAIN "output=crash",
	  SIGNALLED + SIGSEGV,
	  { "prepare_output()" STYLE ": signal 11" } },
	{ NULL, EXPLAIN "close=crash", SIGNALLED + SIGSEGV, { "close()" STYLE ": signal 11" } },
	{ NULL,
	  GENERATE THREADS PLAN "compute=crash",
	  SIGNALLED + SIGSEGV,
	  { "/2] plugin: error: compute()" STYLE ": signal 11" } },
	{ NULL,
	  TRAIN THREADS PLAN "grad=crash",
	  SIGNALLED + SIGSEGV,
	  { "/2] plugin: error: grad()" STYLE ": signal 11" } },
};

static const struct fault_case wrong_styles_stay[] = {
	{ NULL,
	  EXPLAIN "layout=spin",
	  1,
	  { "tessera explain: layout()" STYLE " has not returned for 2",
	    "TESSERA_TIMEOUT (1 s)" } },
	{ NULL,
	  GENERATE THREADS PLAN "compute=spin",
	  1,
	  { "ranks 0 and 1 have been in compute()" STYLE " for 2", "is left behind" } },
	{ NULL,
	  GENERATE THREADS PLAN "compute1=spin",
	  1,
	  { "rank 1 has not joined by the deadline of rank 0", "it has been in compute()" STYLE } },
	{ NULL,
	  GENERATE PROCESSES PLAN "compute1=spin",
	  1,
	  { "rank 1 has not joined by the deadline of rank 0", "it has been in compute()" STYLE } },
};

static const struct fault_case crashes[] = {
	{ NULL,
	  EXPLAIN "layout=abort",
	  SIGNALLED + SIGABRT,
	  { "layout()" STYLE ": signal 6 (Aborted)" } },
	{ NULL,
	  EXPLAIN "layout=illegal",
	  SIGNALLED + SIGILL,
	  { "layout()" STYLE ": signal 4 (Illegal instruction)" } },
	{ NULL,
	  EXPLAIN "layout=divide",
	  SIGNALLED + SIGFPE,
	  { "layout()" STYLE ": signal 8 (Floating point exception)" } },
	{ NULL,
	  EXPLAIN "layout=bus",
	  SIGNALLED + SIGBUS,
	  { "layout()" STYLE ": signal 7 (Bus error)", "TESSERA_LOAD=copy reads files instead" } },
	{ NULL,
	  EXPLAIN "layout=overflow",
	  SIGNALLED + SIGSEGV,
	  { "layout()" STYLE, "the stack has overflowed" } },
	{ "init=crash",
	  EXPLAIN "nan",
	  SIGNALLED + SIGSEGV,
	  { "init() of /", "tess-style-defective.so: signal 11" } },
	{ "constructor=crash",
	  EXPLAIN "nan",
	  SIGNALLED + SIGSEGV,
	  { "a constructor of /", "tess-style-defective.so: signal 11" } },
	{ NULL,
	  GENERATE THREADS PLAN "compute1=crash",
	  SIGNALLED + SIGSEGV,
	  { "[1/2] plugin: error: compute()" STYLE ": signal 11" } },
	{ NULL,
	  GENERATE THREADS PLAN "compute1=overflow",
	  SIGNALLED + SIGSEGV,
	  { "[1/2] plugin: error: compute()" STYLE, "the stack has overflowed" } },
	{ NULL,
	  GENERATE PROCESSES PLAN "compute1=crash",
	  SIGNALLED + SIGSEGV,
	  { "[1/2] plugin: error: compute()" STYLE ": signal 11", "launch: error: rank 1" } },
	{ NULL,
	  GENERATE PROCESSES PLAN "compute1=overflow",
	  SIGNALLED + SIGSEGV,
	  { "[1/2] plugin: error: compute()" STYLE, "the stack has overflowed" } },
	{ NULL,
	  TRAIN PROCESSES PLAN "grad=crash",
	  SIGNALLED + SIGSEGV,
	  { "/2] plugin: error: grad()" STYLE ": signal 11" } },
	{ "run=crash",
	  GENERATE THREADS DEVICE,
	  SIGNALLED + SIGSEGV,
	  { "/2] plugin: error: run() of device defective (",
	    "tess-device-defective.so), embed at model.embed_tokens: signal 11" } },
	{ "run=crash",
	  GENERATE PROCESSES DEVICE,
	  SIGNALLED + SIGSEGV,
	  { "/2] plugin: error: run() of device defective (",
	    "tess-device-defective.so), embed at model.embed_tokens: signal 11" } },
	{ "start=crash",
	  GENERATE "--backend defective",
	  SIGNALLED + SIGSEGV,
	  { "/2] plugin: error: start() of backend defective (",
	    "tess-backend-defective.so), all_gather at options: signal 11" } },
	{ "start=crash",
	  GENERATE "--backend defective_threads",
	  SIGNALLED + SIGSEGV,
	  { "/2] plugin: error: start() of backend defective_threads (",
	    "tess-backend-defective_threads.so), " } },
};

static const struct fault_case stays[] = {
	{ NULL,
	  EXPLAIN "layout=block",
	  1,
	  { "tessera explain: layout()" STYLE " has not returned for 2" } },
	{ "init=block",
	  EXPLAIN "nan",
	  1,
	  { "tessera explain: init() of /", "tess-style-defective.so has not returned for 2" } },
	{ "constructor=block",
	  EXPLAIN "nan",
	  1,
	  { "tessera explain: a constructor of /",
	    "tess-style-defective.so has not returned for 2" } },
	{ NULL,
	  GENERATE PROCESSES PLAN "layout=block",
	  1,
	  { "tessera generate: layout()" STYLE " has not returned for 2" } },
	{ NULL,
	  GENERATE PROCESSES PLAN "compute=spin",
	  1,
	  { "launch: error: ranks 0 and 1 have been in compute()" STYLE " for 2" } },
	{ NULL,
	  GENERATE PROCESSES PLAN "compute1=block",
	  1,
	  { "rank 1 has not joined by the deadline of rank 0", "it has been in compute()" STYLE,
	    "launch: error: rank 1 is the straggler" } },
	{ "run=block",
	  GENERATE THREADS DEVICE,
	  1,
	  { "ranks 0 and 1 have been in run() of device defective (",
	    "tess-device-defective.so), embed at model.embed_tokens for 2" } },
	{ "run=block",
	  GENERATE PROCESSES DEVICE,
	  1,
	  { "launch: error: ranks 0 and 1 have been in run() of device defective (",
	    "tess-device-defective.so), embed at model.embed_tokens for 2" } },
	{ "start=block",
	  GENERATE "--backend defective",
	  1,
	  { "launch: error: ranks 0 and 1 have been in start() of backend defective (",
	    "), all_gather at options for 2" } },
	{ "start=block",
	  GENERATE "--backend defective_threads",
	  1,
	  { "ranks 0 and 1 have been in start() of backend defective_threads (", " for 2" } },
	{ "wait=block",
	  GENERATE "--backend defective",
	  1,
	  { "launch: error: ranks 0 and 1 have been in wait() of backend defective (",
	    "), all_gather at options for " } },
	{ "open=block",
	  GENERATE "--backend trace:defective",
	  1,
	  { "launch: error: ranks 0 and 1 have been in open() of backend trace:defective (",
	    "tess-backend-trace.so) for " } },
	{ NULL,
	  "launch -n 2 -- $T generate data --prompt Once " PLAN "compute=block",
	  1,
	  { "launch: error: ranks 0 and 1 have been in compute()" STYLE " for 2" } },
};

/* Starts `tessera COMMAND`, in the source folder; exec: its signals are those of the shell. */
static void start_fault_case(struct test_job *j, const struct fault_case *c, const char *timeout)
{
	char text[1024];
	char *argv[] = { "/bin/sh", "-c", text, NULL };

	snprintf(text, sizeof text,
	         "cd " SOURCE_ROOT " && T=" TESSERA "; export TESSERA_TIMEOUT=%s DEFECT=%s; "
	         "exec $T %s",
	         timeout, c->defect ? c->defect : "", c->command);
	job_start_command(j, argv);
}

static void check_fault_case(const struct test_job *j, const struct fault_case *c)
{
	const char *at = j->text;

	for (int i = 0; i < PARTS && c->parts[i]; i++) {
		const char *found = strstr(at, c->parts[i]);

		ck_assert_msg(found != NULL, "%s: no \"%s\" in: %s", c->command, c->parts[i], at);
		at = found + strlen(c->parts[i]);
	}
	if (c->status < SIGNALLED)
		ck_assert_msg(j->status == c->status, "%s: status %d: %s", c->command, j->status,
		              j->text);
	else if (SANITIZED) /* its handler ran afterwards */
		ck_assert_msg(j->status != 0, "%s: %s", c->command, j->text);
	else
		ck_assert_msg(j->status == SIGNALLED - c->status || j->status == c->status,
		              "%s: status %d: %s", c->command, j->status, j->text);
	if (!SANITIZED)
		ck_assert_msg(j->seconds < 10, "%s: %g s", c->command, j->seconds);
}

/* Runs every THINth case, side by side. */
static void run_fault_cases(const struct fault_case *c, size_t n, const char *timeout)
{
	static struct test_job jobs[BATCH];

	for (size_t first = 0; first < n; first += BATCH * THIN) {
		size_t left = (n - first + THIN - 1) / THIN, count = left < BATCH ? left : BATCH;

		for (size_t i = 0; i < count; i++)
			start_fault_case(&jobs[i], &c[first + i * THIN], timeout);
		for (size_t i = 0; i < count; i++)
			job_finish(&jobs[i]);
		for (size_t i = 0; i < count; i++)
			check_fault_case(&jobs[i], &c[first + i * THIN]);
	}
}

START_TEST(wrong_styles_are_found)
{
	run_fault_cases(wrong_styles, sizeof wrong_styles / sizeof *wrong_styles, "60");
	run_fault_cases(wrong_styles_stay, sizeof wrong_styles_stay / sizeof *wrong_styles_stay,
	                "1");
}
END_TEST

START_TEST(a_crash_names_plugin_and_module)
{
	run_fault_cases(crashes, sizeof crashes / sizeof *crashes, "60");
}
END_TEST

START_TEST(a_call_that_does_not_return_is_named)
{
	run_fault_cases(stays, sizeof stays / sizeof *stays, "1");
}
END_TEST

/* Starts a command that blocks in a plugin, and sends it SIGUSR1 when the call is known. */
static void signal_blocked_case(struct test_job *j, const struct fault_case *c)
{
	start_fault_case(j, c, SANITIZED ? "60" : "4");
	usleep(SANITIZED ? 8000000 : 1800000); /* two looks, each of an eighth of the timeout */
	kill(j->pid, SIGUSR1);
}

START_TEST(sigusr1_names_the_plugin)
{
	static const struct fault_case c = { .command = GENERATE PROCESSES PLAN "compute=block" };
	static struct test_job j;

	signal_blocked_case(&j, &c);
	job_await(&j, "launch: warning: ranks 0 and 1 have been in compute() of style defective");
	kill(j.pid, SIGKILL);
	job_finish(&j);
}
END_TEST

/* Returns whether the file has the text; it may not exist yet. */
static bool has_text(const char *path, const char *part)
{
	static char text[1 << 16];
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;

	text[n] = '\0';
	if (f)
		fclose(f);
	return strstr(text, part) != NULL;
}

/* Without a launcher each rank writes a file. */
START_TEST(a_flight_record_names_the_plugin)
{
	char dir[] = "/tmp/tessera-faults-XXXXXX", path[64], command[256];
	const struct fault_case c = { .command = command };
	static struct test_job j;

	ck_assert(mkdtemp(dir) != NULL);
	snprintf(command, sizeof command, GENERATE THREADS PLAN "compute=block --flight %s", dir);
	signal_blocked_case(&j, &c);
	for (int r = 0; r < 2; r++) {
		snprintf(path, sizeof path, "%s/rank-%d.json", dir, r);
		for (int i = 0; i < 500 && !has_text(path, "\"call\": \"compute() of style"); i++)
			usleep(10000);
		ck_assert_msg(has_text(path, "\"call\": \"compute() of style"), "%s", path);
		unlink(path);
	}
	kill(j.pid, SIGKILL);
	job_finish(&j);
	rmdir(dir);
}
END_TEST

static const char *const interrupted[] = { GENERATE THREADS PLAN "compute=spin",
	                                   GENERATE THREADS PLAN "compute1=block",
	                                   GENERATE PROCESSES PLAN "compute=block",
	                                   EXPLAIN "layout=spin" };
enum { INTERRUPTED = sizeof interrupted / sizeof *interrupted };

START_TEST(an_interrupt_ends_a_plugin_that_does_not_return)
{
	static struct test_job jobs[INTERRUPTED];

	for (int i = 0; i < INTERRUPTED; i++) {
		const struct fault_case c = { .command = interrupted[i] };

		start_fault_case(&jobs[i], &c, "60");
	}
	usleep(SANITIZED ? 4000000 : 1000000);
	for (int i = 0; i < INTERRUPTED; i++)
		kill(jobs[i].pid, SIGINT);
	for (int i = 0; i < INTERRUPTED; i++) {
		job_finish(&jobs[i]);
		ck_assert_msg(jobs[i].status == -SIGINT || jobs[i].status == 128 + SIGINT,
		              "%s: status %d: %s", interrupted[i], jobs[i].status, jobs[i].text);
		ck_assert_msg(SANITIZED || jobs[i].seconds < 10, "%s: %g s", interrupted[i],
		              jobs[i].seconds);
		if (i < 3)
			expect_part(jobs[i].text, "interrupted; compute() of style defective");
	}
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *t = suite_begin("faults", 60, &runner);

	tcase_add_test(t, wrong_styles_are_found);
	tcase_add_test(t, a_crash_names_plugin_and_module);
	tcase_add_test(t, a_call_that_does_not_return_is_named);
	tcase_add_test(t, sigusr1_names_the_plugin);
	tcase_add_test(t, a_flight_record_names_the_plugin);
	tcase_add_test(t, an_interrupt_ends_a_plugin_that_does_not_return);
	return suite_end(runner);
}

/*
 * test_generate.c - tessera generate by its command line: one text and one digest per checkpoint
 * and prompt for any ranks, backend, threads, kernels, plan and chunks of the prompt; and the
 * output when a rank dies.
 */
#include "core/base/clock.h"
#include "tests/support/command.h"
#include "tests/support/job.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 12, FACTORS = 7, LEVELS_MAX = 10, ROWS_MAX = 200 };
enum { COPY, PROMPT, RANKS, BACKEND, THREADS, KERNELS, FEED };

static const char *const copies[] = { "data", "tests/data/stories260K-bf16",
	                              "tests/data/stories260K-f16",
	                              "tests/data/stories260K-sharded" };
static const int ranks[] = { 1, 2, 3, 4, 5, 8 };
static const char *const backends[] = { "loopback", "gloo" };
static const char *const feeds[] = { "", "--prefill-chunk 3", "--prefill-chunk 1" };
static const char *const plans[] = { "tp", "tp+sp" };
static const int levels[FACTORS] = {
	4, 5, 6, 2, 2, 3, 6
}; /* prompt: every other; kernels: auto, scalar, rows; feed: 3 x plan: 2 */

/* ---- rows that have every pair of levels of every two factors -------------------------------- */

static bool seen_pairs[FACTORS][LEVELS_MAX][FACTORS][LEVELS_MAX];

static int count_unseen_pairs(const int *row)
{
	int n = 0;

	for (int a = 0; a < FACTORS; a++)
		for (int b = a + 1; b < FACTORS; b++)
			n += !seen_pairs[a][row[a]][b][row[b]];
	return n;
}

static int make_pairwise_rows(int out[ROWS_MAX][FACTORS])
{
	uint32_t r = 12345;
	int n = 0, best;

	do {
		best = 0;
		for (int k = 0; k < 400; k++) {
			int row[FACTORS];

			for (int f = 0; f < FACTORS; f++)
				row[f] = (int)((r = r * 1664525u + 1013904223u) >> 16) % levels[f];
			if (count_unseen_pairs(row) > best) {
				best = count_unseen_pairs(row);
				memcpy(out[n], row, sizeof row);
			}
		}
		for (int a = 0; a < FACTORS && best; a++)
			for (int b = a + 1; b < FACTORS; b++)
				seen_pairs[a][out[n][a]][b][out[n][b]] = true;
		n += best > 0;
	} while (best && n < ROWS_MAX);
	return n;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Returns the parsed stdout of a shell command, which must succeed. */
static json_t *run_for_json(const char *command)
{
	FILE *f = popen(command, "r");
	json_error_t err;
	json_t *o = json_loadf(f, 0, &err);

	ck_assert_msg(pclose(f) == 0 && o, "%s: %s", command, o ? "failed" : err.text);
	return o;
}

static json_t *load_golden_case(int copy, int prompt)
{
	char path[512];
	json_t *all, *c;

	snprintf(path, sizeof path, "%s/%s/golden.json", SOURCE_ROOT, copies[copy]);
	all = json_load_file(path, 0, NULL);
	c = json_incref(json_array_get(json_object_get(all, "cases"), (size_t)prompt));
	json_decref(all);
	ck_assert(c != NULL);
	return c;
}

static json_t *generate_for_row(const int *row)
{
	json_t *g = load_golden_case(row[COPY], 2 * row[PROMPT]),
	       *ids = json_object_get(g, "prompt_ids"), *said;
	char command[8192], list[4096] = "";

	for (size_t i = 0; i < json_array_size(ids); i++)
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s%lld", i ? "," : "",
		         (long long)json_integer_value(json_array_get(ids, i)));
	snprintf(command, sizeof command,
	         "%s%s '%s' generate '%s/%s' -n %d --backend %s --threads %d --ids %s "
	         "--max-tokens %d "
	         "--temperature 0 --json --plan %s %s",
	         row[KERNELS] == 1 ? "TESSERA_CPU=scalar " : "",
	         row[KERNELS] == 2 ? "TESSERA_LAYOUT=rows" : "", TESSERA, SOURCE_ROOT,
	         copies[row[COPY]], ranks[row[RANKS]], backends[row[BACKEND]], 1 + row[THREADS],
	         list, TOKENS, plans[row[FEED] / 3], feeds[row[FEED] % 3]);
	said = run_for_json(command);
	json_decref(g);
	return said;
}

static const char *get_digest(const json_t *said)
{
	return json_string_value(json_object_get(said, "digest"));
}

START_TEST(one_digest)
{
	static int row[ROWS_MAX][FACTORS];
	static json_t *want[4][5];
	int n = make_pairwise_rows(row);

	ck_assert_int_ge(n, 36); /* 6 numbers of ranks x 6 ways to feed */
	for (int i = 0; i < n; i += THIN) {
		json_t **ref = &want[row[i][COPY]][row[i][PROMPT]], *said;
		int plain[FACTORS] = { row[i][COPY], row[i][PROMPT] };

		if (!*ref)
			*ref = generate_for_row(plain);
		said = generate_for_row(row[i]);
		ck_assert_msg(!strcmp(get_digest(said), get_digest(*ref)),
		              "%s, prompt %d: %s with -n %d --backend %s, kernels %d, "
		              "threads %d, feed %d; %s with one rank",
		              copies[row[i][COPY]], 2 * row[i][PROMPT], get_digest(said),
		              ranks[row[i][RANKS]], backends[row[i][BACKEND]], row[i][KERNELS],
		              1 + row[i][THREADS], row[i][FEED], get_digest(*ref));
		json_decref(said);
	}
	for (int c = 0; c < 4; c++)
		for (int p = 0; p < 5; p++)
			json_decref(want[c][p]);
}
END_TEST

enum { PROMPTS = 10 };

/* Returns whether `said` has all ids of the golden case with its prompt. */
static bool has_golden_ids(json_t *const *cases, const json_t *said)
{
	json_t *prompt = json_object_get(said, "prompt_ids"), *have = json_object_get(said, "ids");
	size_t n = json_array_size(prompt), i = 0;

	while (i < PROMPTS && !json_equal(json_object_get(cases[i], "prompt_ids"), prompt))
		i++;
	ck_assert_int_lt(i, PROMPTS);
	/* the golden list includes the prompt, but not the stop */
	if (!strcmp(json_string_value(json_object_get(said, "finish_reason")), "eos"))
		json_array_remove(have, json_array_size(have) - 1);
	json_array_extend(prompt, have);
	ck_assert_int_gt(json_array_size(prompt), n);
	return json_equal(json_object_get(cases[i], "ids"), prompt);
}

/* Compares the full golden texts of a copy, except those that a near tie decides. */
START_TEST(golden_texts)
{
	json_t *cases[PROMPTS], *said;
	char command[8192];
	int n = 0, nsaid = 0;
	FILE *f;

	snprintf(command, sizeof command,
	         "'%s' generate '%s/%s' -n 2 --backend loopback --max-tokens 512 --temperature 0 "
	         "--json",
	         TESSERA, SOURCE_ROOT, copies[_i]);
	for (int i = 0; i < PROMPTS; i++) {
		char *text;

		cases[i] = load_golden_case(_i, i);
		if (i % THIN ||
		    json_real_value(json_object_get(cases[i], "min_gap_top1_top2")) <= 1e-3)
			continue;
		text = json_dumps(json_object_get(cases[i], "prompt_ids"), JSON_COMPACT);
		text[strlen(text) - 1] = 0;
		snprintf(command + strlen(command), sizeof command - strlen(command), " --ids %s",
		         text + 1);
		free(text);
		n++;
	}
	f = popen(command, "r");
	for (; (said = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); nsaid++) {
		ck_assert_msg(has_golden_ids(cases, said), "%s: text %d", copies[_i], nsaid);
		json_decref(said);
	}
	ck_assert_msg(!pclose(f) && nsaid == n, "%s: %d of %d texts", copies[_i], nsaid, n);
	for (int i = 0; i < PROMPTS; i++)
		json_decref(cases[i]);
}
END_TEST

#define MESH_PLAN \
	"{\"**.q_proj\":\"colwise\",\"**.k_proj\":\"colwise\",\"**.v_proj\":\"colwise\"," \
	"\"**.o_proj\":\"rowwise\",\"xp\":{\"**.gate_proj\":\"colwise\"," \
	"\"**.up_proj\":\"colwise\",\"**.down_proj\":\"rowwise\"}}"

/* --check changes no value; a tied head may read another part of its table than the rank's own. */
static const char *const alike[][2] = {
	{ "-n 3 --plan tp", "-n 3 --plan tp --check" },
	{ "-n 3 --plan tp+sp", "-n 3 --plan tp+sp --check" },
	{ "-n 1", "-n 3 --plan-override model.embed_tokens=replicate" },
	{ "-n 1", "--mesh dp=2,tp=2" },
	{ "-n 1", "-n 3 --mesh dp" },
	{ "-n 1", "-n 3 --mesh pp" },
	{ "-n 1", "--mesh xp=3,tp=2 --check --plan '" MESH_PLAN "'" },
	{ "-n 1", "--backend shm --mesh dp=2,xp=2,tp=2 --plan '" MESH_PLAN "'" },
	{ "--weights q8", "--mesh pp=2,tp=2 --weights q8" },
	{ "--weights mxfp4", "--mesh pp=2 --weights mxfp4 --plan-override "
	                     "tp:model.embed_tokens=replicate" },
};

START_TEST(same_bits)
{
	static json_t *said[2]; /* the first is the previous case's, if it is alike */
	char text[2048];

	for (int i = _i && !strcmp(alike[_i][0], alike[_i - 1][0]); i < 2; i++) {
		json_decref(said[i]);
		snprintf(text, sizeof text,
		         "'%s' generate '%s/data' --backend loopback --prompt 'One day' "
		         "--max-tokens 8 --json %s",
		         TESSERA, SOURCE_ROOT, alike[_i][i]);
		said[i] = run_for_json(text);
	}
	ck_assert_str_eq(get_digest(said[1]), get_digest(said[0]));
}
END_TEST

/* Uses 96 KiB for each thread, including the first; sanitizers need more. */
START_TEST(small_stack)
{
#if !defined(__SANITIZE_ADDRESS__)
	char command[1024];

	snprintf(command, sizeof command,
	         "ulimit -s 96; '%s' generate '%s/data' -n 3 --backend %s --prompt 'One day' "
	         "--max-tokens 4 --json",
	         TESSERA, SOURCE_ROOT, _i ? "shm" : "loopback");
	json_decref(run_for_json(command));
#endif
}
END_TEST

/* Checks that 50 ids are kept without --top-k of user or checkpoint, as documented in the help. */
START_TEST(default_top_k)
{
	static const char *const given[] = { "--top-k 50", "", "--top-k 0", "--help" };
	char text[4][8192];

	for (int i = 0; i < 4; i++)
		ck_assert(!command_run(text[i], sizeof *text,
		                       "'%s' generate '%s/data' --temperature 5 --seed 1 "
		                       "--max-tokens 20 %s",
		                       TESSERA, SOURCE_ROOT, given[i]));
	ck_assert_str_eq(text[1], text[0]);
	ck_assert_str_ne(text[1], text[2]);
	expect_part(text[3], "else 50)");
}
END_TEST

/* ---- several texts --------------------------------------------------------------------------- */

enum { SEVERAL = 3, FULL = 511, PRINTED = 8192 }; /* FULL: ids that leave room for one more */

/* Options by which texts are printed; the last ones print objects. */
static const char *const ways_to_print[] = {
	"-n 1",
	"-n 2 --backend loopback --stats",
	"-n 2 --backend shm --digest",
	"-n 2 --backend loopback --mesh dp=2",
	"-n 1 --batch 2",
	"-n 1 --json",
	"-n 2 --backend shm --mesh dp=2 --json",
	"-n 2 --backend loopback --prompts -",
};
enum { WAYS_TO_PRINT = sizeof ways_to_print / sizeof *ways_to_print, FIRST_OF_OBJECTS = 5 };

/* Formats the ids of a prompt; text 1 has room for one id, so it ends before text 0. */
static const char *format_ids(int text)
{
	static char full[4 * FULL + 1];

	for (int i = 0; i < FULL; i++)
		memcpy(full + 4 * i, "400,", 4);
	full[4 * FULL - 1] = 0;
	return text == 1 ? full : text ? "1,403" : "1";
}

/* Joins the texts of the objects in `printed`, one a line, in the order of the prompts. */
static void join_texts(char *printed)
{
	char *line = printed, text[SEVERAL][PRINTED] = { "" };

	for (int i = 0; i < SEVERAL; i++) {
		char *end = strchr(line, '\n');
		json_t *o = end ? json_loadb(line, (size_t)(end - line), 0, NULL) : NULL;
		json_int_t index = json_integer_value(json_object_get(o, "index"));

		ck_assert_msg(o && index >= 0 && index < SEVERAL, "%s", printed);
		snprintf(text[index], PRINTED, "%s\n",
		         json_string_value(json_object_get(o, "text")));
		json_decref(o);
		line = end + 1;
	}
	ck_assert_str_eq(line, "");
	*printed = 0;
	for (int i = 0; i < SEVERAL; i++)
		strcat(printed, text[i]);
}

/* Checks that rank 0 prints the digests of all replicas; a failed text has none. */
START_TEST(digests_of_several_texts)
{
	static const char *const ways[] = { "-n 1 --batch 1", "-n 2 --backend loopback --mesh dp=2",
		                            "-n 2 --backend shm --mesh dp=2" };
	char want[1024], have[1024], line[2048];

	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		command_run(i ? have : want, sizeof have,
		            "'%s' generate '%s/data' --max-tokens 3 --ids 1 --ids 512 --ids 1,403 "
		            "--digest %s 2>&1 >/dev/null | grep digest",
		            TESSERA, SOURCE_ROOT, ways[i]);
		ck_assert(i || (!strncmp(want, "digest 0 ", 9) && strstr(want, "\ndigest 2 ")));
		ck_assert_int_eq(count_occurrences(want, "digest"), 2);
		ck_assert(!i || !strcmp(have, want));
	}
	command_run(line, sizeof line,
	            "'%s' generate '%s/data' --ids 512 --ids 1 --max-tokens 1 --json "
	            "2>/dev/null",
	            TESSERA, SOURCE_ROOT);
	expect_part(line, "\"digest\":null");
}
END_TEST

/*
 * Checks that each text is printed in full, at the place of its prompt, though text 1 ends first.
 */
START_TEST(a_later_text_ends_first)
{
	const bool lines = strstr(ways_to_print[_i], "--prompts") != NULL;
	char want[3 * PRINTED] = "", have[3 * PRINTED], prompts[PRINTED] = "";

	for (int i = 0; i < SEVERAL; i++) {
		size_t n = strlen(prompts);

		ck_assert(!command_run(want + strlen(want), PRINTED,
		                       "'%s' generate '%s/data' --max-tokens 12 --temperature 0 "
		                       "--ids %s",
		                       TESSERA, SOURCE_ROOT, format_ids(i)));
		snprintf(prompts + n, sizeof prompts - n, lines ? "{\"ids\":[%s]}\n" : " --ids %s",
		         format_ids(i));
	}
	ck_assert_int_eq(command_run(have, sizeof have,
	                             "printf '%%s' '%s' | '%s' generate '%s/data' --max-tokens 12 "
	                             "--temperature 0 %s %s",
	                             lines ? prompts : "", TESSERA, SOURCE_ROOT, ways_to_print[_i],
	                             lines ? "" : prompts),
	                 0);
	if (_i >= FIRST_OF_OBJECTS)
		join_texts(have);
	ck_assert_str_eq(have, want);
}
END_TEST

/* ---- deaths ---------------------------------------------------------------------------------- */

/* Long texts: one, several in order, and several on replicas, of which one ends at once. */
static const struct {
	const char *arguments, *begun; /* begun: printed when all ranks are running */
	int texts; /* lines printed by an interrupted command */
} long_runs[] = {
	{ "--backend gloo -n 4", "Once", 1 },
	{ "--backend shm -n 4 --mesh dp=2,tp=2 --prompts '" SOURCE_ROOT
	  "/tests/data/prompts.jsonl'",
	  "\"index\":0", 6 },
	{ "--backend loopback -n 2 --prompt '' --prompt '' --batch 2", "Once", 2 },
};

/* Starts one of the commands, and waits until it has begun. */
static void start_generate(struct test_job *j, int which, const char *timeout)
{
	char command[1024], *argv[] = { "/bin/sh", "-c", command, NULL };

	snprintf(command, sizeof command,
	         "exec '%s' generate '%s/data' %s --threads 1 --max-tokens 500 --ignore-eos "
	         "--temperature 0",
	         TESSERA, SOURCE_ROOT, long_runs[which].arguments);
	setenv("TESSERA_TIMEOUT", timeout, 1);
	job_start_command(j, argv);
	unsetenv("TESSERA_TIMEOUT");
	job_await(j, long_runs[which].begun);
}

static pid_t get_parent_pid(pid_t pid)
{
	char path[64];
	int parent = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = fopen(path, "r");
	if (f && fscanf(f, "%*d (%*[^)]) %*c %d", &parent) != 1)
		parent = 0;
	if (f)
		fclose(f);
	return parent;
}

/* Returns the process of that rank, a child of a child of the launcher; 0: not yet. */
static pid_t find_rank_process(pid_t launcher, int rank)
{
	char path[300], text[4096], want[32];
	DIR *d = opendir("/proc");
	struct dirent *e;
	pid_t found = 0;

	snprintf(want, sizeof want, "RANK=%d", rank);
	while (d && !found && (e = readdir(d))) {
		ssize_t n;
		FILE *f;

		if (*e->d_name < '1' || *e->d_name > '9' ||
		    get_parent_pid(get_parent_pid(atoi(e->d_name))) != launcher)
			continue;
		snprintf(path, sizeof path, "/proc/%s/environ", e->d_name);
		f = fopen(path, "r");
		if (!f)
			continue;
		n = (ssize_t)fread(text, 1, sizeof text - 1, f);
		fclose(f);
		text[n > 0 ? n : 0] = 0;
		for (char *at = text; at < text + n && !found; at += strlen(at) + 1)
			if (!strcmp(at, want))
				found = atoi(e->d_name);
	}
	closedir(d);
	return found;
}

static void signal_rank_2(int which, int sig, const char *timeout, double max_seconds)
{
	static struct test_job j;
	pid_t all[4];
	int64_t begin;
	double took;

	start_generate(&j, which, timeout);
	for (int i = 0; i < 4; i++)
		ck_assert((all[i] = find_rank_process(j.pid, i)) > 0);
	begin = tess_now();
	ck_assert(!kill(all[2], sig));
	job_finish(&j);
	took = (double)(tess_now() - begin) / 1e9;
	ck_assert_msg(took < max_seconds, "took %.2f s", took);
	ck_assert_msg(j.status > 0, "status %d", j.status);
	/* named by the first survivor that prints the failure, and by the launcher */
	ck_assert_msg(job_count(&j, "tessera generate: rank 2 ") == 1, "%s", j.text);
	expect_part(j.text, "launch: error: rank ");
	for (int i = 0; i < 4; i++)
		ck_assert_msg(kill(all[i], 0) && errno == ESRCH, "rank %d is still running", i);
}

START_TEST(killed_rank)
{
	signal_rank_2(_i, SIGKILL, "60", 10);
}
END_TEST

START_TEST(stopped_rank)
{
	/* the deadline, SIGTERM, which a stopped rank ignores, 5 s, SIGKILL */
	signal_rank_2(0, SIGSTOP, "2", 20);
}
END_TEST

START_TEST(interrupted)
{
	static struct test_job j;

	start_generate(&j, _i, "60");
	ck_assert(!kill(j.pid, SIGINT));
	job_finish(&j);
	ck_assert_msg(j.status == 130, "status %d: %s", j.status, j.text);
	ck_assert_msg(j.text[j.len - 1] == '\n' && !strstr(j.text, "rank "), "%s", j.text);
	ck_assert_msg(job_count(&j, "\n") == long_runs[_i].texts, "%s", j.text);
	/* the beginning of each text */
	if (_i == 1)
		ck_assert_msg(job_count(&j, "\"interrupt\"") == 5, "%s", j.text);
	else
		ck_assert_msg(job_count(&j, "Once") == long_runs[_i].texts, "%s", j.text);
}
END_TEST

/*
 * Closes stdin, stdout and stderr: no other descriptor may take their numbers, and unwritten text
 * is a failure.
 */
START_TEST(closed_descriptors)
{
	char command[2048], path[64];
	int status, there;

	snprintf(path, sizeof path, "/tmp/tessera-logits-%d", (int)getpid());
	snprintf(command, sizeof command,
	         "cd '%s' && exec '%s' generate data -n 2 --backend shm --max-tokens 3 --logits %s "
	         "<&- >&- 2>&-",
	         SOURCE_ROOT, TESSERA, path);
	status = system(command);
	there = !unlink(path);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1 && there, "status %x, %s",
	              status, there ? "a file" : "no file");
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("generate", 600, &r);

	tcase_add_test(t, one_digest);
	tcase_add_test(t, digests_of_several_texts);
	tcase_add_test(t, default_top_k);
	tcase_add_loop_test(t, golden_texts, 0, sizeof copies / sizeof *copies);
	tcase_add_loop_test(t, same_bits, 0, sizeof alike / sizeof *alike);
	tcase_add_loop_test(t, small_stack, 0, 2);
	tcase_add_loop_test(t, a_later_text_ends_first, 0, WAYS_TO_PRINT);
	tcase_add_loop_test(t, killed_rank, 0, 2);
	tcase_add_test(t, stopped_rank);
	tcase_add_loop_test(t, interrupted, 0, sizeof long_runs / sizeof *long_runs);
	tcase_add_test(t, closed_descriptors);
	srunner_set_fork_status(r, CK_NOFORK);
	return suite_end(r);
}

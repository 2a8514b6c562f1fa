/*
 * load.c - `tessera bench load`: times a fresh process for each round, from its exec to its end.
 *
 * The process runs this command again with --once. Its rank 0 prints the times when the model was
 * open and when the first and the last token came, on the clock of the machine.
 */
#include "model.h"

#include "api/session.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/generate/runner.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- the process that is timed --------------------------------------------------------------- */

struct loaded_rank {
	struct tess_session *session;
	int64_t opened, first, last; /* ns */
};

static int note_token(void *self, int64_t i, int32_t id, const float *logits, const char *text,
                      uint64_t n)
{
	struct loaded_rank *r = self;

	(void)i;
	(void)id;
	(void)logits;
	(void)text;
	(void)n;
	r->last = tess_now();
	r->first = r->first ? r->first : r->last;
	return tess_tool_is_interrupted() ? TESS_END_ALL : TESS_GO_ON;
}

static tess_status run_loaded_text(struct loaded_rank *r, const struct model_options *a)
{
	static const struct tess_sampling greedy = { .top_p = 1 };
	static const int32_t none = 0;
	struct tess_session_info info = { .size = sizeof info };
	struct tess_generation how = { .size = sizeof how,
		                       .chunk = a->chunk,
		                       .self = r,
		                       .on_token = note_token,
		                       .on_end = model_end_text };
	struct tess_request request = { .size = sizeof request,
		                        .nids = a->context,
		                        .sampling = &greedy,
		                        .stop = &none,
		                        .max_tokens = a->tokens };
	const struct tess_request *list = &request;
	int32_t *ids;
	tess_status st;

	tess_session_get_info(r->session, &info);
	request.ids = ids = model_make_ids(a->context, info.vocabulary, 1);
	st = ids ? tess_session_generate(r->session, &list, 1, &how)
	         : tess_fail(TESS_ENOMEM, "out of memory");
	free(ids);
	return st;
}

/* Prints the times on rank 0, with the memory of each process; ranks may share a process. */
static tess_status print_load_line(const struct loaded_rank *r, struct tess_world *w)
{
	int32_t n = tess_world_size(w);
	int64_t *rss = calloc((size_t)n, sizeof *rss), mine;
	struct rusage usage;
	json_t *o, *list = json_array();
	tess_status st = rss ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	getrusage(RUSAGE_SELF, &usage);
	mine = 1024 * (int64_t)usage.ru_maxrss;
	if (!st)
		st = tess_all_gather(tess_world_group(w), &mine, rss, 1, TESS_I64, "bench");
	for (int32_t i = 0; i < (tess_tool_has_threads(n) ? 1 : n) && !st; i++)
		json_array_append_new(list, json_integer(rss[i]));
	free(rss);
	o = json_pack("{s:i, s:i, s:s, s:s, s:I, s:I, s:I, s:o}", "ranks", (int)n, "threads",
	              (int)tess_runner_count_threads(tess_session_runner(r->session)), "backend",
	              tess_world_backend(w), "device", tess_option_get("device"), "opened",
	              (json_int_t)r->opened, "first", (json_int_t)r->first, "last",
	              (json_int_t)r->last, "max_rss_bytes", list);
	if (!st && tess_world_rank(w) == 0 && r->first) {
		json_dumpf(o, stdout, JSON_COMPACT);
		putchar('\n');
		tess_tool_flush_output();
	}
	json_decref(o);
	return st;
}

tess_status model_load_rank(struct tess_world *w, void *options)
{
	const struct model_options *a = options;
	struct tess_session_options how = tess_tool_get_session_options(&a->session);
	struct loaded_rank r = { 0 };
	struct tess_mesh *mesh = NULL;
	tess_status st;

	if (tess_world_rank(w) == 0 || !tess_tool_has_threads(tess_world_size(w)))
		tess_tool_catch_interrupt(NULL);
	st = tess_mesh_open(w, a->session.mesh ? a->session.mesh : "tp", &mesh);
	if (!st)
		st = tess_session_open(mesh, a->session.model, &how, &r.session);
	r.opened = tess_now();
	if (!st)
		st = run_loaded_text(&r, a);
	if (!st)
		st = print_load_line(&r, w);
	if (st)
		tess_world_fail(w, st, tess_error());
	tess_session_close(r.session);
	tess_mesh_close(mesh);
	return st;
}

/* ---- the rounds ------------------------------------------------------------------------------ */

struct load_round {
	int64_t began, ended; /* ns */
	json_t *line; /* printed by rank 0 */
};

/* Starts `bench load --once` with the arguments after the kind; *out: reads its stdout. */
static tess_status spawn_load(char **argv, int *out, pid_t *pid)
{
	posix_spawn_file_actions_t actions;
	char self[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
	size_t n = 0;
	char **full;
	int ends[2], err;

	while (argv[n])
		n++;
	full = calloc(n + 3, sizeof *full);
	if (!full || len < 0 || pipe2(ends, O_CLOEXEC)) {
		free(full);
		return tess_fail(TESS_EIO, "load: no pipe to a process of this program");
	}
	self[len] = 0;
	full[0] = self;
	full[1] = argv[0];
	full[2] = argv[1];
	full[3] = "--once";
	memcpy(full + 4, argv + 2, (n - 2) * sizeof *full);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
	err = posix_spawn(pid, self, &actions, NULL, full, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	free(full);
	*out = ends[0];
	if (!err)
		return TESS_OK;
	close(ends[0]);
	return tess_fail(TESS_EIO, "load: %s: %s", self, strerror(err));
}

/* Waits for the process. *exit_status: not 0 if it has failed and printed the reason. */
static tess_status run_load(char **argv, struct load_round *r, int *exit_status)
{
	char *line = NULL;
	size_t room = 0;
	int out, how = 0;
	pid_t pid;
	FILE *f;
	tess_status st;

	r->began = tess_now();
	st = spawn_load(argv, &out, &pid);
	if (st)
		return st;
	f = fdopen(out, "r");
	if (f && getline(&line, &room, f) > 0)
		r->line = json_loads(line, 0, NULL);
	while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
		;
	r->ended = tess_now();
	*exit_status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
	if (!*exit_status && !r->line)
		st = tess_fail(TESS_EIO, "load: the process ended without its times");
	if (f)
		fclose(f);
	free(line);
	return st;
}

/* ---- results --------------------------------------------------------------------------------- */

static double compute_load_time(int64_t from, int64_t to)
{
	return 1e-9 * (double)(to - from);
}

static int64_t get_load_time(const struct load_round *r, const char *key)
{
	return json_integer_value(json_object_get(r->line, key));
}

static void print_load_table(const struct model_options *a, const struct load_round *r, int32_t n)
{
	const json_t *rss;

	printf("# load: %s, %d ranks of %d threads over %s, %s; context %d, %d tokens; files "
	       "are in the page cache\n",
	       a->session.model, (int)get_load_time(r, "ranks"), (int)get_load_time(r, "threads"),
	       json_string_value(json_object_get(r->line, "backend")),
	       json_string_value(json_object_get(r->line, "device")), (int)a->context,
	       (int)a->tokens);
	printf("#%6s %12s %12s %12s  %s\n", "round", "opened", "first token", "end",
	       "most memory of each process");
	printf("#%6s %12s %12s %12s  %s\n", "", "(s)", "(s)", "(s)", "(MiB)");
	for (int32_t i = 0; i < n; i++, r++) {
		rss = json_object_get(r->line, "max_rss_bytes");
		printf(" %6d %12.3f %12.3f %12.3f ", (int)i + 1,
		       compute_load_time(r->began, get_load_time(r, "opened")),
		       compute_load_time(r->began, get_load_time(r, "first")),
		       compute_load_time(get_load_time(r, "last"), r->ended));
		for (size_t k = 0; k < json_array_size(rss); k++)
			printf(" %.1f", json_number_value(json_array_get(rss, k)) / 1048576);
		putchar('\n');
	}
}

static tess_status print_load_json(const struct model_options *a, const struct load_round *r,
                                   int32_t n)
{
	json_t *open = json_array(), *first = json_array(), *end = json_array(), *o;
	json_t *rss = json_deep_copy(json_object_get(r->line, "max_rss_bytes"));

	for (int32_t i = 0; i < n; i++) {
		const json_t *own = json_object_get(r[i].line, "max_rss_bytes");

		json_array_append_new(open, json_real(compute_load_time(
						    r[i].began, get_load_time(&r[i], "opened"))));
		json_array_append_new(first, json_real(compute_load_time(
						     r[i].began, get_load_time(&r[i], "first"))));
		json_array_append_new(end, json_real(compute_load_time(get_load_time(&r[i], "last"),
		                                                       r[i].ended)));
		for (size_t k = 0; k < json_array_size(rss); k++)
			if (json_integer_value(json_array_get(own, k)) >
			    json_integer_value(json_array_get(rss, k)))
				json_array_set(rss, k, json_array_get(own, k));
	}
	o = json_pack("{s:s, s:s, s:O, s:O, s:O, s:O, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o}",
	              "bench", "load", "model", a->session.model, "ranks",
	              json_object_get(r->line, "ranks"), "threads",
	              json_object_get(r->line, "threads"), "backend",
	              json_object_get(r->line, "backend"), "device",
	              json_object_get(r->line, "device"), "weights",
	              tess_tool_get_weights(&a->session), "math", tess_tool_get_math(&a->session),
	              "context", (int)a->context, "tokens", (int)a->tokens, "open_s", open,
	              "first_token_s", first, "end_s", end, "max_rss_bytes", rss);
	return model_print_json(o);
}

tess_status model_time_loads(const struct model_options *a, char **argv, int *exit_status)
{
	struct load_round *r = calloc((size_t)a->rounds + 1, sizeof *r);
	tess_status st = r ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	tess_tool_catch_interrupt(NULL);
	/* the first round brings the files into the page cache, and is not counted */
	for (int32_t i = 0; i <= a->rounds && !st && !*exit_status; i++) {
		if (isatty(STDERR_FILENO))
			fprintf(stderr, "\r\033[Kload: %d of %d", (int)i, (int)a->rounds);
		st = run_load(argv, &r[i], exit_status);
		if (tess_tool_is_interrupted())
			*exit_status = tess_tool_get_interrupt_status();
	}
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
	if (!st && !*exit_status && a->json)
		st = print_load_json(a, r + 1, a->rounds);
	else if (!st && !*exit_status)
		print_load_table(a, r + 1, a->rounds);
	for (int32_t i = 0; i <= a->rounds && r; i++)
		json_decref(r[i].line);
	free(r);
	return st;
}

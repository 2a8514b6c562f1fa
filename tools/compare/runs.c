/* runs.c - runs the model for run A and run B as commands of their own. */
#include "compare.h"

#include "core/base/status.h"
#include "hf/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SEQUENCES = 8, TRIES = 100, WAIT_NS = 2000000 };

struct place { /* a directory of this command, which is removed at its end */
	char parent[PATH_MAX - 64], path[PATH_MAX - 32], values[PATH_MAX], ids[PATH_MAX];
};

/* ---- the directory --------------------------------------------------------------------------- */

/* The name lets the second signal remove it (tess_tool_remove_parts). */
static tess_status make_place(struct place *p)
{
	const char *parent = getenv("TMPDIR");
	int i = 0;

	snprintf(p->parent, sizeof p->parent, "%s", parent && *parent ? parent : "/tmp");
	do {
		snprintf(p->path, sizeof p->path, "%s/tessera-compare.%ld-%d", p->parent,
		         (long)getpid(), i);
	} while (mkdir(p->path, 0700) && errno == EEXIST && ++i < TRIES);
	if (access(p->path, W_OK))
		return tess_fail(TESS_EIO, "%s: cannot be made: %s; set TMPDIR", p->path,
		                 strerror(errno));
	snprintf(p->values, sizeof p->values, "%s/values", p->path);
	snprintf(p->ids, sizeof p->ids, "%s/ids", p->path);
	tess_tool_remove_parts(p->parent);
	return TESS_OK;
}

static void remove_place(const struct place *p)
{
	unlink(p->values);
	unlink(p->ids);
	rmdir(p->path);
}

/* ---- ids ------------------------------------------------------------------------------------- */

/* Reads "1,2,3". */
static tess_status parse_ids_option(const char *text, int32_t **out, size_t *n)
{
	int32_t *ids = calloc(strlen(text) + 2, sizeof *ids);
	const char *at = text;
	tess_status st = ids ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	*n = 0;
	while (!st) {
		char *end;
		long id = strtol(at, &end, 10);

		if (end == at || (*end && *end != ',') || id < 0 || id > INT32_MAX)
			st = tess_fail(TESS_EINVAL, "--ids %s: use token ids, as in 1,2,3", text);
		else
			ids[(*n)++] = (int32_t)id;
		if (st || !*end)
			break;
		at = end + 1;
	}
	if (st)
		free(ids);
	else
		*out = ids;
	return st;
}

/* Encodes the text of --prompt. */
static tess_status encode_prompt(const struct compare_options *o, int32_t **out, size_t *n)
{
	struct tess_tokenizer *t = NULL;
	tess_status st = tess_tokenizer_open(o->model, &t);

	if (!st)
		st = tess_tokenizer_encode(t, o->prompt, strlen(o->prompt), true, out, n);
	tess_tokenizer_close(t);
	return st;
}

static tess_status read_prompt_ids(const struct compare_options *o, int32_t **out, size_t *n)
{
	if (o->prompt)
		return encode_prompt(o, out, n);
	return parse_ids_option(o->ids ? o->ids : "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", out, n);
}

static char *join_ids(const int32_t *ids, size_t n)
{
	char *text = NULL;
	size_t len;
	FILE *f = tess_tool_open_memory(&text, &len);

	for (size_t i = 0; f && i < n; i++)
		fprintf(f, "%s%d", i ? "," : "", (int)ids[i]);
	if (f && ferror(f)) {
		free(text);
		text = NULL;
	}
	if (f)
		fclose(f);
	return text;
}

/* Writes the batch of a training step: sequences of the ids, rotated. */
static tess_status write_rotated_batch(const char *path, const int32_t *ids, size_t n)
{
	const int64_t shape[2] = { SEQUENCES, (int64_t)n };
	int64_t *batch = calloc(SEQUENCES * n, sizeof *batch);
	struct tess_slice slices[2] = {
		{ .name = "ids", .dtype = TESS_I64, .ndim = 2, .shape = shape, .data = batch },
		{ .name = "labels", .dtype = TESS_I64, .ndim = 2, .shape = shape, .data = batch },
	};
	tess_status st = batch ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	for (size_t i = 0; batch && i < SEQUENCES * n; i++)
		batch[i] = ids[(i / n + i % n) % n];
	if (!st)
		st = tess_safetensors_write(path, 2, slices);
	free(batch);
	return st;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* Replaces this process by a command that writes the values of a run. */
static void execute_run(const struct compare_run *run, char *const *argv)
{
	int null = open("/dev/null", O_RDWR);

	setpgid(0, 0); /* the parent passes signals of the terminal on */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	for (int32_t i = 0; i < run->variables.n; i++)
		putenv(run->variables.word[i]);
	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	execv("/proc/self/exe", argv);
	_exit(127);
}

/* Waits for a child, and passes a noted signal on. */
static int await_run(pid_t child)
{
	const struct timespec pause = { .tv_nsec = WAIT_NS };
	bool passed_on = false;
	int status = 0;

	while (waitpid(child, &status, WNOHANG) == 0) {
		if (tess_tool_is_interrupted() && !passed_on) {
			kill(child, tess_tool_get_interrupt_status() - 128);
			passed_on = true;
		}
		nanosleep(&pause, NULL);
	}
	return status;
}

/* Runs a command, whose messages go to stderr. */
static tess_status run_command_of(const struct compare_run *run, char *const *argv)
{
	pid_t child;
	int status;

	fflush(NULL);
	child = fork();
	if (child < 0)
		return tess_fail(TESS_EIO, "run %s cannot be started: %s", run->name,
		                 strerror(errno));
	if (!child)
		execute_run(run, argv);
	status = await_run(child);
	if (tess_tool_is_interrupted())
		return tess_fail(TESS_EABORTED, "stopped by a signal");
	if (WIFSIGNALED(status))
		return tess_fail(TESS_EIO, "run %s was ended by signal %d (%s)", run->name,
		                 WTERMSIG(status), strsignal(WTERMSIG(status)));
	return WEXITSTATUS(status)
	               ? tess_fail(TESS_EINVAL, "run %s failed, as reported above", run->name)
	               : TESS_OK;
}

struct runs { /* what both runs share */
	const struct compare_options *options;
	struct place place;
	char *ids; /* of --ids */
};

static tess_status add_words(struct compare_words *out, const char *const *words, size_t n)
{
	tess_status st = TESS_OK;

	for (size_t i = 0; i < n && !st; i++)
		st = compare_add_word(out, words[i]);
	return st;
}

/* Makes the command of a run, which writes values, or compares its ranks by --check. */
static tess_status make_command(const struct runs *r, const struct compare_run *run, bool check,
                                struct compare_words *out)
{
	const struct compare_options *o = r->options;
	const char *const first[] = { "tessera", o->train ? "grad" : "generate", o->model };
	const char *const values[] = { "--values", r->place.values, "--values-of",
		                       o->values_of ? o->values_of : "*" };
	const char *const checked[] = { "--check" };
	const char *const generate[] = {
		"--ids", r->ids, "--max-tokens", "0", "--temperature", "0"
	};
	const char *const grad[] = { "--quiet", "--ids-file",
		                     o->ids_file ? o->ids_file : r->place.ids };
	tess_status st = add_words(out, first, 3);

	if (!st)
		st = check ? add_words(out, checked, 1) : add_words(out, values, 4);
	if (!st)
		st = o->train ? add_words(out, grad, 3) : add_words(out, generate, 6);
	for (int32_t i = 0; i < run->options.n && !st; i++)
		st = compare_add_word(out, run->options.word[i]);
	return st;
}

static tess_status run_one(const struct runs *r, const struct compare_run *run, bool check,
                           struct tess_values **out)
{
	struct compare_words command = { 0 };
	tess_status st = make_command(r, run, check, &command);

	if (!st)
		st = run_command_of(run, command.word);
	if (!st && !check)
		st = tess_values_load(r->place.values, out);
	unlink(r->place.values);
	compare_free_words(&command);
	return st;
}

static void end_runs(struct runs *r)
{
	remove_place(&r->place);
	free(r->ids);
}

/* Makes the inputs of runs. End them by end_runs. */
static tess_status begin_runs(const struct compare_options *o, struct runs *r)
{
	int32_t *ids = NULL;
	size_t n = 0;
	tess_status st = o->ids_file ? TESS_OK : read_prompt_ids(o, &ids, &n);

	*r = (struct runs){ .options = o };
	tess_tool_catch_interrupt(NULL);
	if (!st && ids) {
		r->ids = join_ids(ids, n);
		st = r->ids ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	}
	if (!st)
		st = make_place(&r->place);
	if (!st && o->train && !o->ids_file) {
		st = write_rotated_batch(r->place.ids, ids, n);
		if (st)
			remove_place(&r->place);
	}
	free(ids);
	if (st)
		free(r->ids);
	return st;
}

tess_status compare_run_both(const struct compare_options *o, struct tess_values *out[2])
{
	struct runs r;
	tess_status st = begin_runs(o, &r);

	if (st)
		return st;
	st = run_one(&r, &o->a, false, &out[0]);
	if (!st)
		st = run_one(&r, &o->b, false, &out[1]);
	end_runs(&r);
	return st;
}

tess_status compare_check_both(const struct compare_options *o, bool failed[2])
{
	struct runs r;
	tess_status st = begin_runs(o, &r);

	if (st)
		return st;
	failed[0] = run_one(&r, &o->a, true, NULL) != TESS_OK;
	failed[1] = !tess_tool_is_interrupted() && run_one(&r, &o->b, true, NULL) != TESS_OK;
	end_runs(&r);
	return tess_tool_is_interrupted() ? tess_fail(TESS_EABORTED, "stopped by a signal")
	                                  : TESS_OK;
}

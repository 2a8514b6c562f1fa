#include "prompts.h"

#include "tools/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tessera/util/clock.h>
#include <unistd.h>

enum { NOTICE_MS = 5000 }; /* delay of the notice that the command waits for stdin */
enum {
	PROMPT_BYTES_MAX = 1 << 24, /* limit of a prompt file */
	PROMPTS_BYTES_MAX = 1 << 28, /* limit of a --prompts file */
	PROMPTS_MAX = 1 << 20, /* limit of the number of prompts */
};

static tess_status add_prompt(struct prompts *p, const char *option, struct prompt **out)
{
	struct prompt *more;

	if (p->n == PROMPTS_MAX)
		return tess_fail(TESS_EINVAL, "%s: more than %d prompts; split the file", option,
		                 PROMPTS_MAX);
	more = realloc(p->list, (size_t)(p->n + 1) * sizeof *more);
	if (!more)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", option);
	p->list = more;
	*out = &p->list[p->n];
	**out = (struct prompt){ .index = p->n,
		                 .temperature = NAN,
		                 .top_p = NAN,
		                 .min_p = NAN,
		                 .penalty = NAN,
		                 .top_k = -1,
		                 .seed = -1,
		                 .max_tokens = -1,
		                 .nstop = -1 };
	p->n++;
	return TESS_OK;
}

/* Copies `len` bytes, which may contain zeros, and appends a 0. Returns NULL without memory. */
static char *copy_prompt_bytes(const char *s, size_t len)
{
	char *copy = malloc(len + 1);

	if (copy) {
		memcpy(copy, s, len);
		copy[len] = '\0';
	}
	return copy;
}

tess_status prompts_add_text(struct prompts *p, const char *text, size_t len)
{
	struct prompt *last = NULL;
	tess_status st = add_prompt(p, "--prompt", &last);

	if (st)
		return st;
	last->text = copy_prompt_bytes(text, len);
	last->len = len;
	return last->text ? TESS_OK : tess_fail(TESS_ENOMEM, "--prompt: out of memory");
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Keeps stdin in a file for rank 0, which may be another process. */
static tess_status keep_stdin(const char *option, const char *bytes, size_t len)
{
	int again = memfd_create("prompt", 0);
	tess_status st = TESS_OK;

	if (again < 0 || write(again, bytes, len) != (ssize_t)len || lseek(again, 0, SEEK_SET) ||
	    dup2(again, STDIN_FILENO) < 0)
		st = tess_fail(TESS_EIO, "%s -: stdin cannot be kept for rank 0: %s", option,
		               strerror(errno));
	if (again > STDIN_FILENO)
		close(again);
	return st;
}

/* Waits until stdin has input or ends. Returns false at the time `until`. */
static bool await_stdin(int64_t until)
{
	struct pollfd on = { .fd = STDIN_FILENO, .events = POLLIN };
	int64_t left = (until - tess_now()) / TESS_MS;

	return poll(&on, 1, left > 0 ? (int)left : 0) != 0;
}

/*
 * Reads a file, - for stdin. *out ends with a 0 that *len does not count; free it, also after a
 * failure. notice: printed to stderr if stdin has not ended after NOTICE_MS; NULL: none.
 */
static tess_status read_file(const char *option, const char *path, size_t max, const char *notice,
                             char **out, size_t *len)
{
	int fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
	int64_t until = tess_now() + NOTICE_MS * (int64_t)TESS_MS;
	size_t capacity = 0;
	ssize_t n = 1;
	tess_status st =
		fd >= 0 ? TESS_OK
			: tess_fail(TESS_ENOENT, "%s %s: %s", option, path, strerror(errno));

	*out = NULL;
	*len = 0;
	while (!st && n > 0) {
		char *more = capacity - *len < 65536 ? realloc(*out, capacity += 65536 + capacity)
		                                     : *out;

		if (!more)
			st = tess_fail(TESS_ENOMEM, "%s %s: out of memory", option, path);
		else
			*out = more;
		if (!st && notice && !await_stdin(until)) {
			fprintf(stderr, "%s\n", notice);
			notice = NULL;
		}
		n = st ? 0 : read(fd, *out + *len, capacity - *len - 1);
		if (n < 0)
			st = tess_fail(TESS_EIO, "%s %s: %s", option, path, strerror(errno));
		else if ((size_t)n > max - *len)
			st = tess_fail(TESS_EINVAL, "%s %s: more than %zu bytes, the limit", option,
			               path, max);
		else
			*len += (size_t)n;
	}
	if (!st)
		(*out)[*len] = '\0';
	if (!st && fd == STDIN_FILENO)
		st = keep_stdin(option, *out, *len);
	if (fd > STDIN_FILENO)
		close(fd);
	return st;
}

bool prompts_are_on_stdin(void)
{
	struct stat about;

	return !fstat(STDIN_FILENO, &about) && (S_ISFIFO(about.st_mode) || S_ISREG(about.st_mode));
}

tess_status prompts_add_stdin(struct prompts *p)
{
	char *text;
	size_t len;
	tess_status st = read_file("stdin:", "-", PROMPT_BYTES_MAX,
	                           "tessera generate: waiting for the prompt on stdin; --prompt "
	                           "TEXT gives it as an argument",
	                           &text, &len);

	if (!st)
		st = prompts_add_text(p, text, len);
	free(text);
	return st;
}

tess_status prompts_add_file(struct prompts *p, const char *path)
{
	char *text;
	size_t len;
	tess_status st = read_file("--prompt-file", path, PROMPT_BYTES_MAX, NULL, &text, &len);

	if (!st)
		st = prompts_add_text(p, text, len);
	if (!st)
		p->list[p->n - 1].file = path;
	free(text);
	return st;
}

/* ---- ids ------------------------------------------------------------------------------------- */

tess_status prompts_add_ids(struct prompts *p, const char *text)
{
	const char *at = text;
	struct prompt *last = NULL;
	int64_t n = 1;
	tess_status st = add_prompt(p, "--ids", &last);

	if (st)
		return st;
	for (const char *c = text; *c; c++)
		n += *c == ',';
	last->ids = malloc((size_t)n * sizeof *last->ids);
	if (!last->ids)
		return tess_fail(TESS_ENOMEM, "--ids: out of memory");
	for (;;) {
		char *end;
		long v;

		errno = 0;
		v = strtol(at, &end, 10);
		if (end == at || errno || v < 0 || v > INT32_MAX || (*end && *end != ','))
			return tess_fail(TESS_EINVAL,
			                 "--ids %s: ids are numbers from 0 to %d, separated by "
			                 "commas",
			                 text, INT32_MAX);
		last->ids[last->nids++] = (int32_t)v;
		if (!*end)
			return TESS_OK;
		at = end + 1;
	}
}

/* ---- lines of JSON --------------------------------------------------------------------------- */

/* Reads an optional number. TESS_EINVAL: not a number within [lo, hi]. */
static tess_status read_real(const json_t *o, const char *key, double lo, double hi, double *out)
{
	const json_t *v = json_object_get(o, key);

	if (!v)
		return TESS_OK;
	if (!json_is_number(v) || !(json_number_value(v) >= lo && json_number_value(v) <= hi))
		return tess_fail(TESS_EINVAL, "\"%s\" must be a number from %g to %g", key, lo, hi);
	*out = json_number_value(v);
	return TESS_OK;
}

static tess_status read_integer(const json_t *o, const char *key, int64_t hi, int64_t *out)
{
	const json_t *v = json_object_get(o, key);

	if (!v)
		return TESS_OK;
	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > hi)
		return tess_fail(TESS_EINVAL, "\"%s\" must be a whole number from 0 to %lld", key,
		                 (long long)hi);
	*out = json_integer_value(v);
	return TESS_OK;
}

static tess_status read_id_list(const json_t *list, struct prompt *p)
{
	size_t n = json_array_size(list);

	if (!json_is_array(list))
		return tess_fail(TESS_EINVAL, "\"ids\" must be a list of numbers");
	p->ids = malloc((n + 1) * sizeof *p->ids);
	if (!p->ids)
		return tess_fail(TESS_ENOMEM, "--prompts: out of memory");
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);

		if (!json_is_integer(v) || json_integer_value(v) < 0 ||
		    json_integer_value(v) > INT32_MAX)
			return tess_fail(TESS_EINVAL,
			                 "\"ids\" must be a list of numbers from 0 to %d",
			                 INT32_MAX);
		p->ids[p->nids++] = (int32_t)json_integer_value(v);
	}
	return TESS_OK;
}

static tess_status add_stop_text(const json_t *text, struct prompt *p)
{
	if (!json_string_length(text))
		return tess_fail(TESS_EINVAL,
		                 "\"stop\" must be a text of 1 byte or more, or a list of them");
	p->stop[p->nstop] = strdup(json_string_value(text));
	if (!p->stop[p->nstop])
		return tess_fail(TESS_ENOMEM, "--prompts: out of memory");
	if (strlen(p->stop[p->nstop++]) < json_string_length(text))
		return tess_fail(TESS_EINVAL, "\"stop\" has a text with U+0000");
	return TESS_OK;
}

/* Reads the texts that end a prompt: one, or a list. */
static tess_status read_stop_texts(const json_t *stop, struct prompt *p)
{
	size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
	tess_status st = TESS_OK;

	if (!stop)
		return TESS_OK;
	p->nstop = 0;
	p->stop = calloc(n + 1, sizeof *p->stop);
	if (!p->stop)
		return tess_fail(TESS_ENOMEM, "--prompts: out of memory");
	for (size_t i = 0; i < n && !st; i++)
		st = add_stop_text(json_is_array(stop) ? json_array_get(stop, i) : stop, p);
	return st;
}

static tess_status check_keys(const json_t *o)
{
	static const char *const known[] = { "prompt", "ids",   "max_tokens", "temperature",
		                             "top_k",  "top_p", "min_p",      "repetition_penalty",
		                             "seed",   "stop" };
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)o, key, value) {
		size_t i = 0;

		while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0)
			i++;
		if (i == sizeof known / sizeof *known)
			return tess_fail(TESS_EINVAL,
			                 "\"%.64s\" is not a key of a prompt; use prompt or ids, "
			                 "max_tokens, temperature, top_k, top_p, min_p, "
			                 "repetition_penalty, seed, stop",
			                 key);
	}
	return TESS_OK;
}

/* Reads the options of a line. */
static tess_status read_prompt_options(const json_t *o, struct prompt *p)
{
	tess_status st = read_real(o, "temperature", 0, 1e6, &p->temperature);

	if (!st)
		st = read_real(o, "top_p", 0, 1, &p->top_p);
	if (!st)
		st = read_real(o, "min_p", 0, 1, &p->min_p);
	if (!st)
		st = read_real(o, "repetition_penalty", 1e-6, 1e6, &p->penalty);
	if (!st)
		st = read_integer(o, "top_k", INT32_MAX, &p->top_k);
	if (!st)
		st = read_integer(o, "seed", INT64_MAX, &p->seed);
	if (!st)
		st = read_integer(o, "max_tokens", INT32_MAX, &p->max_tokens);
	return st ? st : read_stop_texts(json_object_get(o, "stop"), p);
}

static tess_status read_object(const json_t *o, struct prompt *p)
{
	const json_t *text = json_object_get(o, "prompt"), *ids = json_object_get(o, "ids");
	tess_status st;

	if (text && ids)
		return tess_fail(TESS_EINVAL,
		                 "a line is an object with \"prompt\" or \"ids\", not both");
	if (!json_is_object(o) || (!text && !ids))
		return tess_fail(TESS_EINVAL,
		                 "a line is an object with \"prompt\" or \"ids\", as in "
		                 "{\"prompt\": \"Once\"}");
	st = check_keys(o);
	if (!st && text && !json_is_string(text))
		st = tess_fail(TESS_EINVAL, "\"prompt\" must be text");
	if (!st && ids)
		st = read_id_list(ids, p);
	if (!st)
		st = read_prompt_options(o, p);
	if (st || !text)
		return st;
	p->len = json_string_length(text);
	p->text = copy_prompt_bytes(json_string_value(text), p->len);
	return p->text ? TESS_OK : tess_fail(TESS_ENOMEM, "--prompts: out of memory");
}

/* Keeps a line of --messages, whose template is not known yet. */
static tess_status read_conversation(const json_t *o, const char *line, size_t len,
                                     struct prompt *p)
{
	p->row = copy_prompt_bytes(line, len);
	p->nrow = len;
	if (!p->row)
		return tess_fail(TESS_ENOMEM, "--messages: out of memory");
	return json_is_object(o) ? read_prompt_options(o, p) : TESS_OK;
}

/* Keeps the message of a line that cannot be run. */
static tess_status set_prompt_error(const struct prompts *all, struct prompt *p)
{
	p->error = strdup(tess_error());
	return p->error ? TESS_OK
	                : tess_fail(TESS_ENOMEM, "%s: out of memory", prompts_get_option(all));
}

static tess_status add_line(struct prompts *p, const char *line, size_t len, int64_t number)
{
	struct prompt *last = NULL;
	json_t *o = NULL;
	tess_status st = add_prompt(p, prompts_get_option(p), &last);

	if (st)
		return st;
	last->index = number;
	st = tess_tool_parse_line(line, len, &o);
	if (!st)
		st = p->chats ? read_conversation(o, line, len, last) : read_object(o, last);
	json_decref(o);
	return st == TESS_EINVAL ? set_prompt_error(p, last) : st;
}

tess_status prompts_add_lines(struct prompts *p, const char *path)
{
	char *text;
	size_t len = 0;
	int64_t number = 0;
	tess_status st =
		read_file(prompts_get_option(p), path, PROMPTS_BYTES_MAX, NULL, &text, &len);

	p->lines = true;
	p->file = path;
	for (size_t at = st ? 0 : tess_tool_measure_mark(text), n; !st && at < len;
	     at += n + 1, number++) {
		const char *end = memchr(text + at, '\n', len - at);

		n = end ? (size_t)(end - text) - at : len - at;
		if (strspn(text + at, " \t\r") < n)
			st = add_line(p, text + at, n, number);
	}
	free(text);
	return st;
}

tess_status prompts_add_messages(struct prompts *p, const char *path)
{
	p->chats = true;
	return prompts_add_lines(p, path);
}

const char *prompts_get_option(const struct prompts *p)
{
	return p->chats ? "--messages" : "--prompts";
}

tess_status prompts_render(struct prompts *p, const struct tess_chat *chat, const char *system)
{
	const struct tess_chat_options options = { .size = sizeof options,
		                                   .flags = TESS_CHAT_PROMPT,
		                                   .system = system };

	for (int64_t i = 0; i < p->n; i++) {
		struct prompt *q = &p->list[i];
		struct tess_chat_text text = { 0 };
		tess_status st = TESS_OK;

		if (!q->row || q->error)
			continue;
		st = tess_chat_render_row(chat, q->row, q->nrow, &options, &text);
		q->text = text.text;
		q->len = text.ntext;
		free(text.answers);
		if (st == TESS_EINVAL)
			st = set_prompt_error(p, q);
		if (st)
			return st;
		free(q->row);
		q->row = NULL;
	}
	return TESS_OK;
}

void prompts_free(struct prompts *p)
{
	for (int64_t i = 0; i < p->n; i++) {
		free(p->list[i].text);
		free(p->list[i].ids);
		free(p->list[i].error);
		for (int64_t k = 0; k < p->list[i].nstop; k++)
			free(p->list[i].stop[k]);
		free(p->list[i].stop);
		free(p->list[i].row);
	}
	free(p->list);
	*p = (struct prompts){ 0 };
}

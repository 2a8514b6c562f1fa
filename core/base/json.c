#include "core/base/json.h"

#include "core/base/file.h"
#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JSON_DEPTH_MAX = 64 };

/* ---- memory ---------------------------------------------------------------------------------- */

static json_malloc_t allocate_as_before;
static atomic_bool lacked;
static _Thread_local jmp_buf *loading; /* set by load_value() of this thread */

/* Leaves a parser that would continue with missing characters; the parser's memory is lost. */
static void *allocate_value(size_t bytes)
{
	void *p = allocate_as_before(bytes);

	if (p)
		return p;
	lacked = true;
	if (loading)
		longjmp(*loading, 1);
	return NULL;
}

static void replace_allocator(void)
{
	json_free_t release;

	json_get_alloc_funcs(&allocate_as_before, &release);
	json_set_alloc_funcs(allocate_value, release);
}

void tess_json_watch_memory(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, replace_allocator);
}

bool tess_json_lacked_memory(void)
{
	return lacked;
}

/* Parses like json_loadb(). TESS_ENOMEM: no memory; TESS_EINVAL, without a message: see `err`. */
static tess_status load_value(const char *name, const char *text, size_t len, size_t flags,
                              json_error_t *err, json_t **out)
{
	json_t *value;
	jmp_buf here;

	tess_json_watch_memory();
	if (setjmp(here)) {
		loading = NULL;
		return tess_fail(TESS_ENOMEM, "%s: out of memory", name);
	}
	loading = &here;
	value = json_loadb(text, len, flags, err);
	loading = NULL;
	if (!value)
		return TESS_EINVAL;
	*out = value;
	return TESS_OK;
}

/* ---- a text at once -------------------------------------------------------------------------- */

/*
 * Memory that Jansson allocates, rounded up: per empty object or list, per value of a list, and per
 * member of an object, with its key and its places in two lists and a table.
 */
enum { OBJECT_BYTES = 256, LIST_BYTES = 128, VALUE_BYTES = 112, MEMBER_BYTES = 208 };

/* Memory limits of parsed JSON: in total; of a member, where members are freed one by one. */
enum { JSON_MIB_MAX = 512, MEMBER_MIB_MAX = 128 };

/*
 * Measures the memory of the values and the depth of the nesting; skips quotes and escapes. Returns
 * the depth, or JSON_DEPTH_MAX + 1 if it is greater.
 */
static int measure_json(const char *text, size_t len, bool each, uint64_t *memory)
{
	bool quoted = false, object[JSON_DEPTH_MAX + 1] = { false }; /* object: by depth */
	uint64_t bytes = 0, peak = 0;
	size_t begin = 0; /* start of the member */
	int depth = 0;

	for (size_t i = 0; i < len; i++) {
		if (quoted) {
			if (text[i] == '\\')
				i++;
			else
				quoted = text[i] != '"';
		} else if (text[i] == '"') {
			quoted = true;
		} else if (text[i] == '[' || text[i] == '{') {
			bytes += text[i] == '{' ? OBJECT_BYTES : LIST_BYTES;
			if (++depth > JSON_DEPTH_MAX)
				return depth;
			object[depth > 0 ? depth : 0] = text[i] == '{';
		} else if (text[i] == ']' || text[i] == '}') {
			depth--;
		} else if (text[i] == ',' && each && depth == 1) {
			peak = bytes + i - begin > peak ? bytes + i - begin : peak;
			bytes = 0;
			begin = i;
		} else if (text[i] == ',') {
			bytes += depth > 0 && object[depth] ? MEMBER_BYTES : VALUE_BYTES;
		}
	}
	bytes += len - begin;
	*memory = bytes > peak ? bytes : peak;
	return depth;
}

/*
 * Checks the cost of parsing: Jansson recurses up to 2048 levels and allocates up to a hundred
 * bytes per byte of text. `each`: members are freed one by one. Reports a byte order mark, which
 * few editors show.
 */
static tess_status check_json_cost(const char *text, size_t len, bool each)
{
	static const char mark[] = "\xef\xbb\xbf";
	const uint64_t mib_max = each ? MEMBER_MIB_MAX : JSON_MIB_MAX;
	uint64_t bytes;

	if (len >= sizeof mark - 1 && !memcmp(text, mark, sizeof mark - 1))
		return tess_fail(TESS_EINVAL,
		                 "not valid JSON: it begins with a byte order mark; save it as "
		                 "UTF-8 without one");
	if (measure_json(text, len, each, &bytes) > JSON_DEPTH_MAX)
		return tess_fail(TESS_EINVAL, "JSON nested deeper than %d levels", JSON_DEPTH_MAX);
	if (bytes >> 20 >= mib_max)
		return tess_fail(
			TESS_EINVAL,
			"its JSON would take %llu MiB of memory; at most %llu are allowed%s",
			(unsigned long long)(bytes >> 20), (unsigned long long)mib_max,
			each ? " for a member" : "");
	return TESS_OK;
}

/* Checks the cost of a file, and reports a pointer of git-lfs in its place. */
static tess_status check_file_cost(const char *name, const char *text, size_t len, bool each)
{
	tess_status st = name ? tess_file_check_pointer(name, text, len) : TESS_OK;

	if (st)
		return st;
	st = check_json_cost(text, len, each);
	return st && name ? tess_fail_in(st, "%s", name) : st;
}

/* Explains an error at a position where a Python dict and JSON differ; else returns "". */
static const char *explain_python(const char *text, size_t len, int position)
{
	int at = position - 1, before = at - 1;

	if (at < 0 || (size_t)at >= len)
		return "";
	while (before >= 0 && strchr(" \t\r\n", text[before]))
		before--;
	if (text[at] == '\'')
		return "; JSON has \"...\" for strings";
	if ((text[at] == '}' || text[at] == ']') && before >= 0 && text[before] == ',')
		return "; JSON has no comma after the last member";
	return "";
}

static tess_status parse_json(const char *name, const char *text, size_t len, size_t flags,
                              json_t **out)
{
	tess_status st = check_file_cost(name, text, len, false);
	json_error_t err;

	if (st)
		return st;
	st = load_value(name ? name : "a line", text, len, JSON_REJECT_DUPLICATES | flags, &err,
	                out);
	if (st == TESS_EINVAL && !name)
		return tess_fail(TESS_EINVAL, "%s%s", err.text,
		                 explain_python(text, len, err.position));
	if (st == TESS_EINVAL)
		return tess_fail(TESS_EINVAL, "%s:%d:%d: not valid JSON: %s%s", name, err.line,
		                 err.column, err.text, explain_python(text, len, err.position));
	return st;
}

/* ---- member by member ------------------------------------------------------------------- */

struct scan {
	const char *name, *text;
	size_t len, at;
};

static tess_status fail_json_at(const struct scan *s, size_t at, const char *why)
{
	int line = 1, column = 1;

	for (size_t i = 0; i < at && i < s->len; i++) {
		column = s->text[i] == '\n' ? 1 : column + 1;
		line += s->text[i] == '\n';
	}
	return tess_fail(TESS_EINVAL, "%s:%d:%d: not valid JSON: %s", s->name, line, column, why);
}

/* Returns whether the next character after white space is `c`, and skips it. */
static bool take_char(struct scan *s, char c)
{
	while (s->at < s->len && memchr(" \t\r\n", s->text[s->at], 4))
		s->at++;
	if (s->at == s->len || s->text[s->at] != c)
		return false;
	s->at++;
	return true;
}

static tess_status read_next_value(struct scan *s, json_t **out)
{
	json_error_t err;
	tess_status st = load_value(
		s->name, s->text + s->at, s->len - s->at,
		JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK, &err, out);

	if (st == TESS_EINVAL)
		return fail_json_at(s, s->at + (size_t)(err.position > 0 ? err.position - 1 : 0),
		                    err.text);
	if (!st)
		s->at += (size_t)err.position;
	return st;
}

static tess_status read_next_member(struct scan *s,
                                    tess_status (*member)(void *self, const char *key,
                                                          json_t *value),
                                    void *self)
{
	json_t *key = NULL, *value = NULL;
	tess_status st = read_next_value(s, &key);

	if (!st && !json_is_string(key))
		st = fail_json_at(s, s->at, "string expected");
	if (!st && !take_char(s, ':'))
		st = fail_json_at(s, s->at, "':' expected");
	if (!st)
		st = read_next_value(s, &value);
	if (!st)
		st = member(self, json_string_value(key), value);
	json_decref(key);
	json_decref(value);
	return st;
}

tess_status tess_json_read_members(const char *name, const char *text, size_t len,
                                   tess_status (*member)(void *self, const char *key,
                                                         json_t *value),
                                   void *self)
{
	struct scan s = { name, text, len, 0 };
	tess_status st = check_file_cost(name, text, len, true);

	if (st)
		return st;
	if (!take_char(&s, '{'))
		return fail_json_at(&s, s.at, "'{' expected");
	if (!take_char(&s, '}')) {
		do
			st = read_next_member(&s, member, self);
		while (!st && take_char(&s, ','));
		if (!st && !take_char(&s, '}'))
			st = fail_json_at(&s, s.at, "'}' expected");
	}
	if (!st && (take_char(&s, 0) || s.at < s.len))
		st = fail_json_at(&s, s.at, "end of file expected");
	return st;
}

tess_status tess_json_parse(const char *name, const char *text, size_t len, json_t **out)
{
	return parse_json(name, text, len, 0, out);
}

tess_status tess_json_parse_line(const char *name, const char *text, size_t len, json_t **out)
{
	return parse_json(name, text, len, JSON_ALLOW_NUL, out);
}

static tess_status load_json(const char *path, size_t max_bytes, size_t flags, json_t **out)
{
	tess_status st = TESS_OK;
	char *text = NULL;
	struct stat about;
	size_t len = 0;
	FILE *f;
	int fd;

	/* a FIFO without a writer must not block */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	f = fd < 0 ? NULL : fdopen(fd, "rb");
	if (!f) {
		st = tess_file_fail_open(path);
		if (fd >= 0)
			close(fd);
		return st;
	}
	if (fstat(fd, &about) || !S_ISREG(about.st_mode))
		st = tess_fail(TESS_EINVAL, "%s: not a regular file", path);
	else if ((uint64_t)about.st_size > max_bytes)
		st = tess_fail(TESS_EINVAL, "%s: %lld bytes; at most %zu are allowed", path,
		               (long long)about.st_size, max_bytes);
	else if (!(text = malloc((size_t)about.st_size + 1)))
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	else if ((len = fread(text, 1, (size_t)about.st_size, f)) != (size_t)about.st_size)
		st = tess_fail(TESS_EIO, "%s: ended after %zu of %lld bytes", path, len,
		               (long long)about.st_size);
	if (!st)
		st = parse_json(path, text, len, flags, out);
	free(text);
	fclose(f);
	return st;
}

tess_status tess_json_load(const char *path, size_t max_bytes, json_t **out)
{
	return load_json(path, max_bytes, 0, out);
}

tess_status tess_json_load_as_real(const char *path, size_t max_bytes, json_t **out)
{
	return load_json(path, max_bytes, JSON_DECODE_INT_AS_REAL, out);
}

void tess_json_append(json_t **list, json_t *value)
{
	if (!json_array_append_new(*list, value))
		return;
	json_decref(*list);
	*list = NULL;
}

void tess_json_set(json_t **object, const char *key, json_t *value)
{
	if (!json_object_set_new(*object, key, value))
		return;
	json_decref(*object);
	*object = NULL;
}

/* Describes a value for a message: a number itself, else the type. */
static const char *describe_value(const json_t *value, char text[static 32])
{
	static const char *const types[] = { "an object", "a list", "text",  "",
		                             "",          "true",   "false", "null" };

	if (json_is_integer(value))
		snprintf(text, 32, "%lld", (long long)json_integer_value(value));
	else if (json_is_real(value))
		snprintf(text, 32, "%.15g", json_real_value(value));
	else
		snprintf(text, 32, "%s", types[json_typeof(value)]);
	return text;
}

static bool is_absent(const json_t *value)
{
	return !value || json_is_null(value);
}

tess_status tess_json_get_int(const char *where, const json_t *o, const char *key, int64_t lo,
                              int64_t hi, int64_t *out)
{
	const json_t *value = json_object_get(o, key);
	char text[32];

	if (is_absent(value))
		return TESS_OK;
	if (!json_is_integer(value) || json_integer_value(value) < lo ||
	    json_integer_value(value) > hi)
		return tess_fail(
			TESS_EINVAL, "%s: %s: a whole number from %lld to %lld is needed, not %s",
			where, key, (long long)lo, (long long)hi, describe_value(value, text));
	*out = json_integer_value(value);
	return TESS_OK;
}

tess_status tess_json_get_number(const char *where, const json_t *o, const char *key, double lo,
                                 double hi, double *out)
{
	const json_t *value = json_object_get(o, key);
	char text[32];

	if (is_absent(value))
		return TESS_OK;
	if (!json_is_number(value) ||
	    !(json_number_value(value) >= lo && json_number_value(value) <= hi))
		return tess_fail(TESS_EINVAL, "%s: %s: a number from %g to %g is needed, not %s",
		                 where, key, lo, hi, describe_value(value, text));
	*out = json_number_value(value);
	return TESS_OK;
}

tess_status tess_json_get_bool(const char *where, const json_t *o, const char *key, bool *out)
{
	const json_t *value = json_object_get(o, key);
	char text[32];

	if (is_absent(value))
		return TESS_OK;
	if (!json_is_boolean(value))
		return tess_fail(TESS_EINVAL, "%s: %s: true or false is needed, not %s", where, key,
		                 describe_value(value, text));
	*out = json_is_true(value);
	return TESS_OK;
}

tess_status tess_json_require(const char *where, const json_t *o, const char *key, json_type type)
{
	static const char *const types[] = { "an object", "a list", "text",  "a whole number",
		                             "a number",  "true",   "false", "null" };
	const json_t *value = json_object_get(o, key);
	char text[32];

	if (!value)
		return tess_fail(TESS_EINVAL, "%s: %s: is missing; %s is needed", where, key,
		                 types[type]);
	if (json_typeof(value) != type)
		return tess_fail(TESS_EINVAL, "%s: %s: %s is needed, not %s", where, key,
		                 types[type], describe_value(value, text));
	return TESS_OK;
}

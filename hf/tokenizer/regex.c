#define PCRE2_CODE_UNIT_WIDTH 8
#include "regex.h"

#include "core/base/status.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PATTERN_MOST = 1 << 14, /* bytes of a pattern */
	STEPS_MOST =
		10 * 1000 * 1000, /* a match from one place; a run of spaces may need its length */
	DEPTH_MOST = 1000 * 1000,
	HEAP_MOST = 128 << 10, /* KiB */
	STACK_MOST = 8 << 20, /* bytes, of compiled patterns */
};

struct tess_regex {
	pcre2_code *code;
	char *pattern;
};

struct tess_scan {
	pcre2_match_data *data;
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
};

/* What Oniguruma means by \s and \w, the latter not in a class and in one. */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_ALONE WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

struct translation {
	const char *in;
	size_t len, at;
	unsigned depth; /* of classes */
	struct tess_text out;
};

static tess_status add(struct translation *t, const char *s)
{
	return tess_text_add(&t->out, s, strlen(s));
}

static tess_status copy(struct translation *t, size_t n)
{
	n = n < t->len - t->at ? n : t->len - t->at;
	t->at += n;
	return tess_text_add(&t->out, t->in + t->at - n, n);
}

static bool next_is(const struct translation *t, const char *s)
{
	size_t n = strlen(s);

	return t->len - t->at >= n && memcmp(t->in + t->at, s, n) == 0;
}

static tess_status differs(const struct translation *t, const char *what)
{
	return tess_fail(TESS_ENOTSUP, "pattern, offset %zu: %s is not supported", t->at, what);
}

static bool is_one_of(char c, const char *set)
{
	return c && strchr(set, c);
}

static bool is_script(const char *name, size_t n)
{
	PCRE2_SIZE offset;
	char probe[48];
	pcre2_code *code;
	int why;

	snprintf(probe, sizeof probe, "\\p{sc:%.*s}", (int)n, name);
	code = n > 2 && n < 32 ? pcre2_compile((PCRE2_SPTR)probe, PCRE2_ZERO_TERMINATED, PCRE2_UTF,
	                                       &why, &offset, NULL)
	                       : NULL;
	pcre2_code_free(code);
	return code;
}

/*
 * What follows \p, \P or \x in braces. A script's name stands for the characters of this script; to
 * PCRE2 it would be those that are used with it as well.
 */
static tess_status braced(struct translation *t, char kind)
{
	const char *name = t->in + t->at + 1, *end = memchr(name, '}', t->len - t->at - 1);
	tess_status st = TESS_OK;

	if (!end)
		return TESS_OK;
	st = copy(t, name[0] == '^' ? 2 : 1);
	name += name[0] == '^';
	if (!st && kind != 'x' && is_script(name, (size_t)(end - name)))
		st = add(t, "sc:");
	return st ? st : copy(t, (size_t)(end + 1 - name));
}

static tess_status escape(struct translation *t)
{
	char c = t->at + 1 < t->len ? t->in[t->at + 1] : 0, code[16] = "\\x{";
	tess_status st;

	if (is_one_of(c, "sw") || (is_one_of(c, "SW") && !t->depth)) {
		t->at += 2;
		if (t->depth)
			return add(t, c == 's' ? SPACE : WORD);
		if (is_one_of(c, "sS"))
			return add(t, c == 's' ? "[" SPACE "]" : "[^" SPACE "]");
		return add(t, c == 'w' ? "[" WORD_ALONE "]" : "[^" WORD_ALONE "]");
	}
	if (c == 'u' && strspn(t->in + t->at + 2, "0123456789abcdefABCDEF") >= 4) {
		memcpy(code + 3, t->in + t->at + 2, 4);
		code[7] = '}';
		t->at += 6;
		return add(t, code);
	}
	if (isalnum((unsigned char)c) && !is_one_of(c, "nrtfaepPdD") &&
	    !(c == 'x' && t->in[t->at + 2] == '{') && !(is_one_of(c, "AzZ") && !t->depth))
		return differs(t, "this escape");
	st = copy(t, 2);
	return !st && is_one_of(c, "pPx") && next_is(t, "{") ? braced(t, c) : st;
}

/* A class in a class adds to it, in Oniguruma: its brackets are left out. */
static tess_status in_class(struct translation *t)
{
	switch (t->in[t->at]) {
	case '\\':
		return escape(t);
	case '[':
		if (next_is(t, "[^") || next_is(t, "[:"))
			return differs(t, "a class of this kind in a class");
		t->depth++;
		t->at++;
		return TESS_OK;
	case ']':
		if (--t->depth)
			t->at++;
		return t->depth ? TESS_OK : copy(t, 1);
	case '&':
		if (next_is(t, "&&"))
			return differs(t, "&& in a class");
		/* fall through */
	default:
		return copy(t, 1);
	}
}

static tess_status group(struct translation *t)
{
	static const char *const same[] = { "(?:",  "(?=",  "(?!",   "(?>", "(?<=",
		                            "(?<!", "(?i:", "(?-i:", NULL };

	if (next_is(t, "(*"))
		return differs(t, "(*");
	if (!next_is(t, "(?"))
		return copy(t, 1);
	for (int i = 0; same[i]; i++)
		if (next_is(t, same[i]))
			return copy(t, strlen(same[i]));
	return differs(t, "this kind of group");
}

static tess_status braces(struct translation *t)
{
	size_t end = t->at + 1;

	while (end < t->len && strchr("0123456789,", t->in[end]) && t->in[end])
		end++;
	if (end == t->at + 1 || end == t->len || t->in[end] != '}')
		return differs(t, "{ that does not begin a count");
	if (t->in[t->at + 1] == ',' || (end + 1 < t->len && t->in[end + 1] == '+'))
		return differs(t, "this count");
	return copy(t, end + 1 - t->at);
}

static tess_status outside(struct translation *t)
{
	tess_status st;

	switch (t->in[t->at]) {
	case '\\':
		return escape(t);
	case '(':
		return group(t);
	case '{':
		return braces(t);
	case '[':
		t->depth = 1;
		st = copy(t, next_is(t, "[^") ? 2 : 1);
		if (st || !next_is(t, "]"))
			return st;
		t->at++;
		return add(t, "\\]"); /* at once behind the bracket it stands for itself */
	default:
		return copy(t, 1);
	}
}

static tess_status compile(struct tess_regex *r, const char *pattern, size_t len, uint32_t options)
{
	pcre2_compile_context *context = pcre2_compile_context_create(NULL);
	PCRE2_UCHAR reason[128];
	PCRE2_SIZE offset;
	int code;

	if (!context)
		return tess_fail(TESS_ENOMEM, "out of memory for a pattern");
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	r->code = pcre2_compile((PCRE2_SPTR)pattern, len, options, &code, &offset, context);
	pcre2_compile_context_free(context);
	if (!r->code) {
		pcre2_get_error_message(code, reason, sizeof reason);
		return tess_fail(TESS_EINVAL, "pattern \"%.100s\", near its byte %zu: %s",
		                 r->pattern, offset, (char *)reason);
	}
	pcre2_jit_compile(r->code,
	                  PCRE2_JIT_COMPLETE); /* where it cannot, matching is interpreted */
	return TESS_OK;
}

tess_status tess_regex_open(const char *pattern, size_t len, bool literal, struct tess_regex **out)
{
	struct translation t = { .in = pattern, .len = len };
	struct tess_regex *r = NULL;
	tess_status st = TESS_OK;

	if (!len || len > PATTERN_MOST)
		return tess_fail(TESS_EINVAL, "a pattern of %zu bytes; 1 to %d are taken", len,
		                 PATTERN_MOST);
	while (!literal && t.at < t.len && !st)
		st = t.depth ? in_class(&t) : outside(&t);
	if (st)
		goto out;
	r = calloc(1, sizeof *r);
	if (!r || !(r->pattern = strndup(pattern, len)))
		st = tess_fail(TESS_ENOMEM, "out of memory for a pattern");
	else if (literal)
		st = compile(r, pattern, len, PCRE2_UTF | PCRE2_LITERAL);
	else
		st = compile(r, t.out.at, t.out.len,
		             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
	if (!st) {
		*out = r;
		r = NULL;
	}
out:
	tess_text_free(&t.out);
	tess_regex_close(r);
	return st;
}

void tess_regex_close(struct tess_regex *r)
{
	if (!r)
		return;
	pcre2_code_free(r->code);
	free(r->pattern);
	free(r);
}

tess_status tess_regex_parse(const json_t *object, const char *key, struct tess_regex **out)
{
	static const char *const known[] = { "Regex", "String", NULL };
	const json_t *p = json_object_get(object, key);
	const char *kind, *s;
	tess_status st;
	size_t n;

	st = tess_keys_check(p, known);
	if (!st && json_object_size(p) != 1)
		st = tess_fail(TESS_EINVAL, "either Regex or String was expected");
	if (st)
		return tess_fail_in(st, "%s", key);
	kind = json_object_get(p, known[0]) ? known[0] : known[1];
	st = tess_key_string(p, kind, &s, &n);
	if (!st)
		st = tess_regex_open(s, n, kind == known[1], out);
	return st ? tess_fail_in(st, "%s", key) : TESS_OK;
}

/* ---- matching --------------------------------------------------------------------------------------- */

tess_status tess_scan_open(struct tess_scan **out)
{
	struct tess_scan *scan = calloc(1, sizeof *scan);

	if (scan) {
		scan->data = pcre2_match_data_create(1, NULL);
		scan->context = pcre2_match_context_create(NULL);
		scan->stack = pcre2_jit_stack_create(32 << 10, STACK_MOST, NULL);
	}
	if (!scan || !scan->data || !scan->context) {
		tess_scan_close(scan);
		return tess_fail(TESS_ENOMEM, "out of memory for matching");
	}
	pcre2_set_match_limit(scan->context, STEPS_MOST);
	pcre2_set_depth_limit(scan->context, DEPTH_MOST);
	pcre2_set_heap_limit(scan->context, HEAP_MOST);
	if (scan->stack) /* NULL where PCRE2 cannot compile to machine code */
		pcre2_jit_stack_assign(scan->context, NULL, scan->stack);
	*out = scan;
	return TESS_OK;
}

void tess_scan_close(struct tess_scan *scan)
{
	if (!scan)
		return;
	pcre2_match_data_free(scan->data);
	pcre2_match_context_free(scan->context);
	if (scan->stack)
		pcre2_jit_stack_free(scan->stack);
	free(scan);
}

tess_status tess_find_next(struct tess_find *f, bool *found)
{
	const PCRE2_SIZE *span = pcre2_get_ovector_pointer(f->scan->data);
	PCRE2_UCHAR reason[128];
	int32_t cp;
	int rc;

	for (;;) {
		*found = false;
		if (f->at > f->len)
			return TESS_OK;
		rc = pcre2_match(f->regex->code, (PCRE2_SPTR)f->text, f->len, f->at,
		                 PCRE2_NO_UTF_CHECK, f->scan->data, f->scan->context);
		if (rc == PCRE2_ERROR_NOMATCH)
			return TESS_OK;
		if (rc < 0) {
			pcre2_get_error_message(rc, reason, sizeof reason);
			return tess_fail(TESS_EINVAL, "pattern \"%.100s\" on %zu bytes of text: %s",
			                 f->regex->pattern, f->len, (char *)reason);
		}
		if (span[0] != span[1] || !f->any || span[1] != f->to)
			break;
		f->at += f->at < f->len ? tess_utf8_next(f->text + f->at, &cp) : 1;
	}
	*found = true;
	f->any = true;
	f->from = span[0];
	f->to = f->at = span[1];
	return TESS_OK;
}

tess_status tess_regex_replace(const struct tess_regex *r, struct tess_scan *scan, const char *s,
                               size_t n, const char *content, size_t content_len,
                               struct tess_text *out)
{
	struct tess_find f = { .regex = r, .scan = scan, .text = s, .len = n };
	size_t done = 0;
	tess_status st;
	bool found;

	while (!(st = tess_find_next(&f, &found)) && found) {
		st = tess_text_add(out, s + done, f.from - done);
		if (!st)
			st = tess_text_add(out, content, content_len);
		if (st)
			return st;
		done = f.to;
	}
	return st ? st : tess_text_add(out, s + done, n - done);
}

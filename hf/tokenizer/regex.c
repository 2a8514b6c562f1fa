#define PCRE2_CODE_UNIT_WIDTH 8
#include "hf/tokenizer/regex.h"

#include "core/base/status.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	PATTERN_BYTES_MAX = 1 << 14,
	/* steps of a match from one position: spaces may take as many steps as characters */
	MATCH_STEPS_MAX = 10 * 1000 * 1000,
	MATCH_DEPTH_MAX = 1000 * 1000,
	MATCH_HEAP_KIB = 128 << 10,
	JIT_STACK_MAX = 8 << 20, /* bytes, for compiled patterns */
	/* steps of all matches: about 10 ns each; common patterns take 2 to 4 per byte */
	SCAN_STEPS = 50 * 1000 * 1000,
	STEPS_PER_BYTE = 64,
	BYTES_PER_STEP = 8, /* bytes that a repeated class matches in one step */
	/* bytes produced by all steps of a tokenizer */
	SCAN_BYTES = 1 << 20,
	BYTES_PER_BYTE = 64,
};

/* Callout in a pattern: calls count_match_steps() on every path of a match. */
#define CALLOUT "(?C1)"

struct tess_regex {
	pcre2_code *code; /* NULL: literal */
	char *pattern;
	size_t len;
};

struct tess_scan {
	pcre2_match_data *data;
	pcre2_match_context *context;
	pcre2_jit_stack *stack;
	size_t text; /* bytes that may be matched */
	uint64_t steps, bytes; /* so far */
	size_t last, cost; /* position of a match's last step; steps of a callout */
};

/* \s and \w in Oniguruma, the latter outside and inside a class. */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_ALONE WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

struct translation {
	const char *in;
	size_t len, at;
	unsigned depth; /* nesting of classes */
	struct tess_text out;
};

static tess_status append_pattern(struct translation *t, const char *s)
{
	return tess_text_add(&t->out, s, strlen(s));
}

static tess_status copy_pattern(struct translation *t, size_t n)
{
	n = n < t->len - t->at ? n : t->len - t->at;
	t->at += n;
	return tess_text_add(&t->out, t->in + t->at - n, n);
}

static bool is_next(const struct translation *t, const char *s)
{
	size_t n = strlen(s);

	return t->len - t->at >= n && memcmp(t->in + t->at, s, n) == 0;
}

static tess_status fail_unsupported(const struct translation *t, const char *what)
{
	return tess_fail(TESS_ENOTSUP, "pattern, offset %zu: %s is not supported", t->at, what);
}

static bool is_one_of(char c, const char *set)
{
	return c && strchr(set, c);
}

static bool is_script_name(const char *name, size_t n)
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
 * Translates the braces after \p, \P or \x. The name of a script means its own characters; PCRE2
 * would include characters of other scripts that are used with it.
 */
static tess_status translate_braced_name(struct translation *t, char kind)
{
	const char *name = t->in + t->at + 1, *end = memchr(name, '}', t->len - t->at - 1);
	tess_status st = TESS_OK;

	if (!end)
		return TESS_OK;
	st = copy_pattern(t, name[0] == '^' ? 2 : 1);
	name += name[0] == '^';
	if (!st && kind != 'x' && is_script_name(name, (size_t)(end - name)))
		st = append_pattern(t, "sc:");
	return st ? st : copy_pattern(t, (size_t)(end + 1 - name));
}

static tess_status translate_escape(struct translation *t)
{
	char c = t->at + 1 < t->len ? t->in[t->at + 1] : 0, code[16] = "\\x{";
	tess_status st;

	if (is_one_of(c, "sw") || (is_one_of(c, "SW") && !t->depth)) {
		t->at += 2;
		if (t->depth)
			return append_pattern(t, c == 's' ? SPACE : WORD);
		if (is_one_of(c, "sS"))
			return append_pattern(t, c == 's' ? "[" SPACE "]" : "[^" SPACE "]");
		return append_pattern(t, c == 'w' ? "[" WORD_ALONE "]" : "[^" WORD_ALONE "]");
	}
	if (c == 'u' && strspn(t->in + t->at + 2, "0123456789abcdefABCDEF") >= 4) {
		memcpy(code + 3, t->in + t->at + 2, 4);
		code[7] = '}';
		t->at += 6;
		return append_pattern(t, code);
	}
	if (isalnum((unsigned char)c) && !is_one_of(c, "nrtfaepPdD") &&
	    !(c == 'x' && t->in[t->at + 2] == '{') && !(is_one_of(c, "AzZ") && !t->depth))
		return fail_unsupported(t, "this escape");
	st = copy_pattern(t, 2);
	return !st && is_one_of(c, "pPx") && is_next(t, "{") ? translate_braced_name(t, c) : st;
}

/* Translates a class inside a class, which adds to it in Oniguruma: drops its brackets. */
static tess_status translate_in_class(struct translation *t)
{
	switch (t->in[t->at]) {
	case '\\':
		return translate_escape(t);
	case '[':
		if (is_next(t, "[^") || is_next(t, "[:"))
			return fail_unsupported(t, "a class of this kind in a class");
		t->depth++;
		t->at++;
		return TESS_OK;
	case ']':
		if (--t->depth)
			t->at++;
		return t->depth ? TESS_OK : copy_pattern(t, 1);
	case '&':
		if (is_next(t, "&&"))
			return fail_unsupported(t, "&& in a class");
		/* fall through */
	default:
		return copy_pattern(t, 1);
	}
}

static tess_status translate_group(struct translation *t)
{
	static const char *const same[] = { "(?:",  "(?=",  "(?!",   "(?>", "(?<=",
		                            "(?<!", "(?i:", "(?-i:", NULL };

	if (is_next(t, "(*"))
		return fail_unsupported(t, "(*");
	if (!is_next(t, "(?"))
		return copy_pattern(t, 1);
	for (int i = 0; same[i]; i++)
		if (is_next(t, same[i]))
			return copy_pattern(t, strlen(same[i]));
	return fail_unsupported(t, "this kind of group");
}

/* Copies a repeat and counts its steps: a match is slow only by backtracking into repeats. */
static tess_status copy_repeat(struct translation *t, size_t n)
{
	bool more = t->at + n < t->len && is_one_of(t->in[t->at + n], "?+");
	tess_status st = copy_pattern(t, n + more);

	return st ? st : append_pattern(t, CALLOUT);
}

static tess_status translate_count(struct translation *t)
{
	size_t end = t->at + 1;

	while (end < t->len && strchr("0123456789,", t->in[end]) && t->in[end])
		end++;
	if (end == t->at + 1 || end == t->len || t->in[end] != '}')
		return fail_unsupported(t, "{ that does not begin a count");
	if (t->in[t->at + 1] == ',' || (end + 1 < t->len && t->in[end + 1] == '+'))
		return fail_unsupported(t, "this count");
	return copy_repeat(t, end + 1 - t->at);
}

static tess_status translate_outside_class(struct translation *t)
{
	tess_status st;

	switch (t->in[t->at]) {
	case '\\':
		return translate_escape(t);
	case '(':
		return translate_group(t);
	case '{':
		return translate_count(t);
	case '*':
	case '+':
	case '?':
		return copy_repeat(t, 1);
	case '[':
		t->depth = 1;
		st = copy_pattern(t, is_next(t, "[^") ? 2 : 1);
		if (st || !is_next(t, "]"))
			return st;
		t->at++;
		return append_pattern(t, "\\]"); /* first in a class it is literal */
	default:
		return copy_pattern(t, 1);
	}
}

static tess_status compile_pattern(struct tess_regex *r, const struct tess_text *pattern)
{
	const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
	pcre2_compile_context *context = pcre2_compile_context_create(NULL);
	PCRE2_UCHAR reason[128];
	PCRE2_SIZE offset;
	int code;

	if (!context)
		return tess_fail(TESS_ENOMEM, "out of memory for a pattern");
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	r->code = pcre2_compile((PCRE2_SPTR)pattern->data, pattern->len, options, &code, &offset,
	                        context);
	pcre2_compile_context_free(context);
	if (!r->code) {
		pcre2_get_error_message(code, reason, sizeof reason);
		return tess_fail(TESS_EINVAL, "pattern \"%.100s\", near its byte %zu: %s",
		                 r->pattern, offset, (char *)reason);
	}
	pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* if that fails, matching is interpreted */
	return TESS_OK;
}

tess_status tess_regex_open(const char *pattern, size_t len, bool literal, struct tess_regex **out)
{
	struct translation t = { .in = pattern, .len = len };
	struct tess_regex *r = NULL;
	tess_status st = TESS_OK;

	if (!len || len > PATTERN_BYTES_MAX)
		return tess_fail(TESS_EINVAL, "a pattern of %zu bytes; 1 to %d are allowed", len,
		                 PATTERN_BYTES_MAX);
	if (!literal) /* of the first alternative, so at each position where a match may begin */
		st = append_pattern(&t, CALLOUT);
	while (!literal && t.at < t.len && !st)
		st = t.depth ? translate_in_class(&t) : translate_outside_class(&t);
	if (st)
		goto out;
	r = calloc(1, sizeof *r);
	if (!r || !(r->pattern = strndup(pattern, len)))
		st = tess_fail(TESS_ENOMEM, "out of memory for a pattern");
	else if (!literal)
		st = compile_pattern(r, &t.out);
	if (!st) {
		r->len = len;
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
	st = tess_key_get_string(p, kind, &s, &n);
	if (!st)
		st = tess_regex_open(s, n, kind == known[1], out);
	return st ? tess_fail_in(st, "%s", key) : TESS_OK;
}

/* ---- match ----------------------------------------------------------------------------------- */

static uint64_t get_steps_max(const struct tess_scan *scan)
{
	return SCAN_STEPS + (uint64_t)scan->text * STEPS_PER_BYTE;
}

static int count_match_steps(pcre2_callout_block *block, void *arg)
{
	size_t at = block->current_position;
	struct tess_scan *scan = arg;

	scan->steps += scan->cost;
	scan->steps += (at > scan->last ? at - scan->last : scan->last - at) / BYTES_PER_STEP;
	scan->last = at;
	return scan->steps > get_steps_max(scan) ? PCRE2_ERROR_MATCHLIMIT : 0;
}

tess_status tess_scan_open(struct tess_scan **out)
{
	struct tess_scan *scan = calloc(1, sizeof *scan);

	if (scan) {
		scan->data = pcre2_match_data_create(1, NULL);
		scan->context = pcre2_match_context_create(NULL);
		scan->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, NULL);
	}
	if (!scan || !scan->data || !scan->context) {
		tess_scan_close(scan);
		return tess_fail(TESS_ENOMEM, "out of memory for matching");
	}
	pcre2_set_match_limit(scan->context, MATCH_STEPS_MAX);
	pcre2_set_depth_limit(scan->context, MATCH_DEPTH_MAX);
	pcre2_set_heap_limit(scan->context, MATCH_HEAP_KIB);
	if (scan->stack) /* NULL: PCRE2 has no JIT here */
		pcre2_jit_stack_assign(scan->context, NULL, scan->stack);
	pcre2_set_callout(scan->context, count_match_steps, scan);
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

void tess_scan_allow(struct tess_scan *scan, size_t n)
{
	scan->text += n;
}

tess_status tess_scan_count_bytes(struct tess_scan *scan, size_t n)
{
	uint64_t most = SCAN_BYTES + (uint64_t)scan->text * BYTES_PER_BYTE;

	scan->bytes += n;
	if (scan->bytes > most)
		return tess_fail(TESS_EINVAL,
		                 "the steps of tokenizer.json make more than %llu bytes of a text "
		                 "of %zu; use fewer that lengthen it",
		                 (unsigned long long)most, scan->text);
	return TESS_OK;
}

static bool find_literal(struct tess_match_iter *f)
{
	const struct tess_regex *r = f->regex;
	const char *found =
		f->at < f->len ? memmem(f->text + f->at, f->len - f->at, r->pattern, r->len) : NULL;

	if (found) {
		f->from = (size_t)(found - f->text);
		f->to = f->at = f->from + r->len;
	}
	return found;
}

static tess_status fail_match(const struct tess_match_iter *f, int why)
{
	const struct tess_scan *scan = f->scan;
	PCRE2_UCHAR reason[128];

	if (why == PCRE2_ERROR_MATCHLIMIT)
		return tess_fail(
			TESS_EINVAL,
			"pattern \"%.100s\" of tokenizer.json: above the limit of %llu steps for a "
			"text of %zu bytes; repeats inside repeats take so many",
			f->regex->pattern,
			scan->steps > get_steps_max(scan) ? (unsigned long long)get_steps_max(scan)
							  : MATCH_STEPS_MAX,
			scan->text);
	pcre2_get_error_message(why, reason, sizeof reason);
	return tess_fail(TESS_EINVAL,
	                 "pattern \"%.100s\" of tokenizer.json on %zu bytes of text: %s",
	                 f->regex->pattern, f->len, (char *)reason);
}

tess_status tess_match_iter_next(struct tess_match_iter *f, bool *found)
{
	const PCRE2_SIZE *span = pcre2_get_ovector_pointer(f->scan->data);
	int32_t cp;
	int rc;

	*found = !f->regex->code && find_literal(f);
	if (!f->regex->code)
		return TESS_OK;
	for (;;) {
		if (f->at > f->len)
			return TESS_OK;
		f->scan->last = f->at;
		f->scan->cost =
			1 + f->regex->len / 256; /* many literals are compared before a repeat */
		rc = pcre2_match(f->regex->code, (PCRE2_SPTR)f->text, f->len, f->at,
		                 PCRE2_NO_UTF_CHECK, f->scan->data, f->scan->context);
		if (rc == PCRE2_ERROR_NOMATCH)
			return TESS_OK;
		if (rc < 0)
			return fail_match(f, rc);
		if (span[0] != span[1] || !f->any || span[1] != f->to)
			break;
		f->at += f->at < f->len ? tess_utf8_decode(f->text + f->at, &cp) : 1;
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
	struct tess_match_iter f = { .regex = r, .scan = scan, .text = s, .len = n };
	size_t done = 0;
	tess_status st;
	bool found;

	while (!(st = tess_match_iter_next(&f, &found)) && found) {
		st = tess_text_add(out, s + done, f.from - done);
		if (!st)
			st = tess_text_add(out, content, content_len);
		if (st)
			return st;
		done = f.to;
	}
	return st ? st : tess_text_add(out, s + done, n - done);
}

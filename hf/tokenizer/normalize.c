#include "hf/tokenizer/normalize.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
	NORM_SEQUENCE,
	NORM_NFC,
	NORM_NFD,
	NORM_NFKC,
	NORM_NFKD,
	NORM_LOWERCASE,
	NORM_STRIP,
	NORM_STRIP_ACCENTS,
	NORM_PREPEND,
	NORM_REPLACE,
	NORM_BYTE_LEVEL
};
static const char *const normalizer_types[] = { "Sequence", "NFC",          "NFD",
	                                        "NFKC",     "NFKD",         "Lowercase",
	                                        "Strip",    "StripAccents", "Prepend",
	                                        "Replace",  "ByteLevel",    NULL };

struct tess_norm_step {
	int type;
	bool left, right; /* Strip */
	struct tess_regex *pattern; /* Replace */
	char *content; /* Replace, Prepend */
	size_t len;
};

/* ---- parse ----------------------------------------------------------------------------------- */

static tess_status parse_norm_step(void *arg, const json_t *j, int type)
{
	static const char *const plain[] = { "type", NULL };
	static const char *const strip[] = { "type", "strip_left", "strip_right", NULL };
	static const char *const prepend[] = { "type", "prepend", NULL };
	static const char *const replace[] = { "type", "pattern", "content", NULL };
	struct tess_normalizer *norm = arg;
	struct tess_norm_step *s = &norm->step[norm->n];
	tess_status st;

	if (norm->n == TESS_STEPS_MAX)
		return tess_fail(TESS_EINVAL, "more than %d steps", TESS_STEPS_MAX);
	norm->n++;
	s->type = type;
	switch (type) {
	case NORM_STRIP:
		st = tess_keys_check(j, strip);
		if (!st)
			st = tess_key_get_bool(j, "strip_left", true, &s->left);
		return st ? st : tess_key_get_bool(j, "strip_right", true, &s->right);
	case NORM_PREPEND:
		st = tess_keys_check(j, prepend);
		return st ? st : tess_key_copy_string(j, "prepend", &s->content, &s->len);
	case NORM_REPLACE:
		st = tess_keys_check(j, replace);
		if (!st)
			st = tess_regex_parse(j, "pattern", &s->pattern);
		return st ? st : tess_key_copy_string(j, "content", &s->content, &s->len);
	default:
		return tess_keys_check(j, plain);
	}
}

tess_status tess_normalizer_parse(const json_t *j, struct tess_normalizer *out)
{
	tess_status st;

	*out = (struct tess_normalizer){ 0 };
	if (!j || json_is_null(j))
		return TESS_OK;
	out->step = calloc(TESS_STEPS_MAX, sizeof *out->step);
	if (!out->step)
		return tess_fail(TESS_ENOMEM, "out of memory for a normalizer");
	st = tess_steps_parse(j, "normalizers", normalizer_types, parse_norm_step, out);
	return st ? tess_fail_in(st, "normalizer") : TESS_OK;
}

void tess_normalizer_free(struct tess_normalizer *norm)
{
	for (size_t i = 0; i < norm->n; i++) {
		tess_regex_close(norm->step[i].pattern);
		free(norm->step[i].content);
	}
	free(norm->step);
	*norm = (struct tess_normalizer){ 0 };
}

/* ---- normal forms ---------------------------------------------------------------------------- */

struct code_points {
	utf8proc_int32_t *at;
	size_t n, capacity;
};

static tess_status decompose_char(int32_t cp, utf8proc_option_t options, struct code_points *out)
{
	utf8proc_ssize_t n;

	for (;;) {
		n = utf8proc_decompose_char(cp, out->at + out->n,
		                            (utf8proc_ssize_t)(out->capacity - out->n), options,
		                            NULL);
		if (n >= 0 && (size_t)n <= out->capacity - out->n) {
			out->n += (size_t)n;
			return TESS_OK;
		}
		if (n < 0)
			return tess_fail(TESS_EINVAL, "U+%04X cannot be decomposed", (unsigned)cp);
		out->capacity = 2 * out->capacity + (size_t)n;
		utf8proc_int32_t *at = realloc(out->at, out->capacity * sizeof *at);

		if (!at)
			return tess_fail(TESS_ENOMEM, "out of memory: %zu characters",
			                 out->capacity);
		out->at = at;
	}
}

static int get_combining_class(utf8proc_int32_t cp)
{
	return cp < 0x300 ? 0 : utf8proc_get_property(cp)->combining_class;
}

/* Sorts marks by combining class, stably, by counting: utf8proc's sort is quadratic. */
static tess_status sort_marks(utf8proc_int32_t *at, size_t n)
{
	size_t where[256] = { 0 }, sum = 0;
	utf8proc_int32_t *copy;
	bool sorted = true;

	for (size_t i = 1; i < n && sorted; i++)
		sorted = get_combining_class(at[i - 1]) <= get_combining_class(at[i]);
	if (sorted)
		return TESS_OK;
	copy = malloc(n * sizeof *copy);
	if (!copy)
		return tess_fail(TESS_ENOMEM, "out of memory: %zu marks", n);
	memcpy(copy, at, n * sizeof *copy);
	for (size_t i = 0; i < n; i++)
		where[get_combining_class(at[i])]++;
	for (int k = 0; k < 256; k++) {
		size_t count = where[k];

		where[k] = sum;
		sum += count;
	}
	for (size_t i = 0; i < n; i++)
		at[where[get_combining_class(copy[i])]++] = copy[i];
	free(copy);
	return TESS_OK;
}

static tess_status order_marks(struct code_points *p)
{
	tess_status st = TESS_OK;

	for (size_t i = 0, end; i < p->n && !st; i = end) {
		end = i + 1;
		if (!get_combining_class(p->at[i]))
			continue;
		while (end < p->n && get_combining_class(p->at[end]))
			end++;
		st = sort_marks(p->at + i, end - i);
	}
	return st;
}

static tess_status apply_normal_form(int type, const char *s, size_t n, struct tess_text *out)
{
	utf8proc_option_t options = UTF8PROC_DECOMPOSE;
	struct code_points p = { .capacity = n + 64 };
	tess_status st = TESS_OK;
	char c[4];

	if (type == NORM_NFKC || type == NORM_NFKD)
		options |= UTF8PROC_COMPAT;
	p.at = malloc(p.capacity * sizeof *p.at);
	if (!p.at)
		return tess_fail(TESS_ENOMEM, "out of memory: %zu characters", p.capacity);
	for (size_t i = 0; i < n && !st;) {
		int32_t cp;

		i += tess_utf8_decode(s + i, &cp);
		st = decompose_char(cp, options, &p);
	}
	if (!st)
		st = order_marks(&p);
	if (!st && (type == NORM_NFC || type == NORM_NFKC))
		p.n = (size_t)utf8proc_normalize_utf32(p.at, (utf8proc_ssize_t)p.n,
		                                       UTF8PROC_COMPOSE | UTF8PROC_STABLE);
	for (size_t i = 0; i < p.n && !st; i++)
		st = tess_text_add(out, c, tess_utf8_encode(p.at[i], c));
	free(p.at);
	return st;
}

/* ---- other steps ----------------------------------------------------------------------------- */

static tess_status lowercase_text(const char *s, size_t n, struct tess_text *out)
{
	tess_status st = TESS_OK;
	char c[4];

	for (size_t i = 0; i < n && !st;) {
		int32_t cp;

		i += tess_utf8_decode(s + i, &cp);
		if (cp == 0x130) /* the only character whose lower case is two */
			st = tess_text_add(out, "i\xcc\x87", 3);
		else
			st = tess_text_add(out, c, tess_utf8_encode(utf8proc_tolower(cp), c));
	}
	return st;
}

static tess_status strip_accents(const char *s, size_t n, struct tess_text *out)
{
	tess_status st = TESS_OK;

	for (size_t i = 0, len; i < n && !st; i += len) {
		utf8proc_category_t k;
		int32_t cp;

		len = tess_utf8_decode(s + i, &cp);
		k = utf8proc_category(cp);
		if (k != UTF8PROC_CATEGORY_MN && k != UTF8PROC_CATEGORY_MC &&
		    k != UTF8PROC_CATEGORY_ME)
			st = tess_text_add(out, s + i, len);
	}
	return st;
}

static tess_status strip_spaces(const struct tess_norm_step *step, const char *s, size_t n,
                                struct tess_text *out)
{
	size_t from = 0;
	int32_t cp;

	while (step->left && from < n) {
		size_t len = tess_utf8_decode(s + from, &cp);

		if (!tess_char_is_space(cp))
			break;
		from += len;
	}
	while (step->right && n > from) {
		size_t last = tess_utf8_decode_last(s, n, &cp);

		if (!tess_char_is_space(cp))
			break;
		n = last;
	}
	return tess_text_add(out, s + from, n - from);
}

static bool is_ascii(const char *s, size_t n)
{
	unsigned char all = 0;

	for (size_t i = 0; i < n; i++)
		all |= (unsigned char)s[i];
	return all < 0x80;
}

static tess_status apply_norm_step(const struct tess_norm_step *step, struct tess_scan *scan,
                                   const char *s, size_t n, struct tess_text *out)
{
	tess_status st;

	switch (step->type) {
	case NORM_LOWERCASE:
		return lowercase_text(s, n, out);
	case NORM_STRIP:
		return strip_spaces(step, s, n, out);
	case NORM_STRIP_ACCENTS:
		return strip_accents(s, n, out);
	case NORM_PREPEND:
		st = n ? tess_text_add(out, step->content, step->len) : TESS_OK;
		return st ? st : tess_text_add(out, s, n);
	case NORM_REPLACE:
		return tess_regex_replace(step->pattern, scan, s, n, step->content, step->len, out);
	case NORM_BYTE_LEVEL:
		return tess_text_add_encoded(out, s, n);
	default:
		return is_ascii(s, n) ? tess_text_add(out, s, n)
		                      : apply_normal_form(step->type, s, n, out);
	}
}

tess_status tess_normalizer_apply(const struct tess_normalizer *norm, struct tess_scan *scan,
                                  const char *s, size_t n, struct tess_text *out)
{
	struct tess_text old = { 0 }, swap;
	tess_status st = TESS_OK;

	out->len = 0;
	if (!norm->n)
		return tess_text_add(out, s, n);
	for (size_t i = 0; i < norm->n && !st; i++) {
		st = apply_norm_step(&norm->step[i], scan, s, n, out);
		if (!st)
			st = tess_scan_count_bytes(scan, out->len);
		swap = old;
		old = *out;
		*out = swap;
		out->len = 0;
		s = old.data;
		n = old.len;
	}
	swap = old; /* the result of the last step */
	old = *out;
	*out = swap;
	tess_text_free(&old);
	return st;
}

#include "hf/tokenizer/text.h"

#include "core/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

tess_status tess_text_add(struct tess_text *t, const char *s, size_t n)
{
	if (n > TESS_TEXT_MAX - t->len)
		return tess_fail(TESS_EINVAL, "a text of more than %d bytes", TESS_TEXT_MAX);
	if (n > t->capacity - t->len) {
		size_t capacity = t->len + n + t->capacity / 2 + 64;
		char *at = realloc(t->data, capacity);

		if (!at)
			return tess_fail(TESS_ENOMEM, "out of memory: %zu bytes of text", capacity);
		t->data = at;
		t->capacity = capacity;
	}
	if (n)
		memcpy(t->data + t->len, s, n);
	t->len += n;
	return TESS_OK;
}

void tess_text_free(struct tess_text *t)
{
	free(t->data);
	*t = (struct tess_text){ 0 };
}

tess_status tess_pieces_add(struct tess_pieces *p, const char *s, size_t n, int32_t id, bool first)
{
	tess_status st;

	if (!n)
		return TESS_OK;
	if (p->n == p->capacity) {
		size_t capacity = p->capacity + p->capacity / 2 + 64;
		struct tess_piece *piece = realloc(p->piece, capacity * sizeof *piece);

		if (!piece)
			return tess_fail(TESS_ENOMEM, "out of memory: %zu pieces of text",
			                 capacity);
		p->piece = piece;
		p->capacity = capacity;
	}
	st = tess_text_add(&p->text, s, n);
	if (!st)
		p->piece[p->n++] =
			(struct tess_piece){ (uint32_t)(p->text.len - n), (uint32_t)n, id, first };
	return st;
}

void tess_pieces_clear(struct tess_pieces *p)
{
	p->n = 0;
	p->text.len = 0;
}

void tess_pieces_free(struct tess_pieces *p)
{
	tess_text_free(&p->text);
	free(p->piece);
	*p = (struct tess_pieces){ 0 };
}

/* ---- characters ------------------------------------------------------------------------------ */

size_t tess_utf8_count_valid(const char *s, size_t n)
{
	utf8proc_int32_t cp;
	size_t i = 0;

	while (i < n) {
		utf8proc_ssize_t step = 1;

		if ((unsigned char)s[i] >= 0x80)
			step = utf8proc_iterate((const utf8proc_uint8_t *)s + i,
			                        (utf8proc_ssize_t)(n - i), &cp);
		if (step < 1)
			break;
		i += (size_t)step;
	}
	return i;
}

size_t tess_utf8_decode(const char *s, int32_t *cp)
{
	const unsigned char *u = (const unsigned char *)s;

	if (u[0] < 0x80) {
		*cp = u[0];
		return 1;
	}
	if (u[0] < 0xe0) {
		*cp = (u[0] & 0x1f) << 6 | (u[1] & 0x3f);
		return 2;
	}
	if (u[0] < 0xf0) {
		*cp = (u[0] & 0x0f) << 12 | (u[1] & 0x3f) << 6 | (u[2] & 0x3f);
		return 3;
	}
	*cp = (u[0] & 0x07) << 18 | (u[1] & 0x3f) << 12 | (u[2] & 0x3f) << 6 | (u[3] & 0x3f);
	return 4;
}

size_t tess_utf8_decode_last(const char *s, size_t n, int32_t *cp)
{
	do
		n--;
	while (n && ((unsigned char)s[n] & 0xc0) == 0x80);
	tess_utf8_decode(s + n, cp);
	return n;
}

size_t tess_utf8_encode(int32_t cp, char out[4])
{
	return (size_t)utf8proc_encode_char(cp, (utf8proc_uint8_t *)out);
}

bool tess_char_is_space(int32_t cp)
{
	if (cp < 0x80)
		return cp == ' ' || (cp >= '\t' && cp <= '\r');
	switch (utf8proc_category(cp)) {
	case UTF8PROC_CATEGORY_ZS:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
		return true;
	default:
		return cp == 0x85;
	}
}

/* Returns whether a byte encodes itself; the others are U+0100 and up, in order. */
static bool is_printable_byte(int byte)
{
	return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

static int32_t rank_hidden_byte(int byte)
{
	return byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7f + 33 : 33 + 34;
}

/* Encodes a byte as a printable character of GPT-2's byte alphabet. */
static size_t encode_byte(unsigned char byte, char out[4])
{
	return tess_utf8_encode(is_printable_byte(byte) ? byte : 0x100 + rank_hidden_byte(byte),
	                        out);
}

int tess_byte_decode(int32_t cp)
{
	if (cp < 0x100)
		return is_printable_byte(cp) ? cp : -1;
	cp -= 0x100;
	return cp <= 32 ? cp : cp <= 66 ? cp - 33 + 0x7f : cp == 67 ? 0xad : -1;
}

tess_status tess_text_add_encoded(struct tess_text *t, const char *s, size_t n)
{
	tess_status st = TESS_OK;
	char c[4];

	for (size_t i = 0; i < n && !st; i++)
		st = tess_text_add(t, c, encode_byte((unsigned char)s[i], c));
	return st;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void join_names(const char *const names[], char *out, size_t size)
{
	size_t len = 0;

	out[0] = 0;
	for (size_t i = 0; names[i] && len < size; i++)
		len += (size_t)snprintf(out + len, size - len, "%s%s", i ? ", " : "", names[i]);
}

static int find_name(const char *const names[], const char *name)
{
	for (int i = 0; names[i]; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	return -1;
}

tess_status tess_keys_check(const json_t *object, const char *const known[])
{
	char names[512];
	const char *key;
	json_t *value;

	if (!json_is_object(object))
		return tess_fail(TESS_EINVAL, "an object was expected");
	json_object_foreach((json_t *)object, key, value)
		if (find_name(known, key) < 0) {
			join_names(known, names, sizeof names);
			return tess_fail(TESS_ENOTSUP, "key \"%.64s\" is not known here; known: %s",
			                 key, names);
		}
	return TESS_OK;
}

tess_status tess_key_get_string(const json_t *object, const char *key, const char **s, size_t *n)
{
	const json_t *v = json_object_get(object, key);

	if (!json_is_string(v))
		return tess_fail(TESS_EINVAL, "%s: a string was expected", key);
	*s = json_string_value(v);
	*n = json_string_length(v);
	return TESS_OK;
}

tess_status tess_key_get_bool(const json_t *object, const char *key, bool preset, bool *out)
{
	const json_t *v = json_object_get(object, key);

	if (v && !json_is_null(v) && !json_is_boolean(v))
		return tess_fail(TESS_EINVAL, "%s: true or false was expected", key);
	*out = v && !json_is_null(v) ? json_is_true(v) : preset;
	return TESS_OK;
}

tess_status tess_key_get_size(const json_t *object, const char *key, size_t preset, size_t max,
                              size_t *out)
{
	const json_t *v = json_object_get(object, key);
	json_int_t n = json_integer_value(v);

	if (v && (!json_is_integer(v) || n < 0 || (uint64_t)n > max))
		return tess_fail(TESS_EINVAL, "%s: a number from 0 to %zu was expected", key, max);
	*out = v ? (size_t)n : preset;
	return TESS_OK;
}

tess_status tess_key_get_choice(const json_t *object, const char *key, const char *const names[],
                                int preset, int *out)
{
	const json_t *v = json_object_get(object, key);
	char all[512];
	int i;

	if ((!v || json_is_null(v)) && preset >= 0) {
		*out = preset;
		return TESS_OK;
	}
	join_names(names, all, sizeof all);
	if (!json_is_string(v))
		return tess_fail(TESS_EINVAL, "%s: a name was expected, one of %s", key, all);
	i = find_name(names, json_string_value(v));
	if (i < 0)
		return tess_fail(TESS_ENOTSUP, "%s: \"%.64s\" is not supported; supported: %s", key,
		                 json_string_value(v), all);
	*out = i;
	return TESS_OK;
}

tess_status tess_key_copy_string(const json_t *object, const char *key, char **out, size_t *len)
{
	const char *s;
	size_t n;
	tess_status st = tess_key_get_string(object, key, &s, &n);
	char *copy;

	if (st)
		return st;
	copy = malloc(n + 1);
	if (!copy)
		return tess_fail(TESS_ENOMEM, "out of memory: %zu bytes", n);
	memcpy(copy, s, n + 1);
	*out = copy;
	*len = n;
	return TESS_OK;
}

tess_status tess_steps_parse(const json_t *stage, const char *list, const char *const types[],
                             tess_status (*step)(void *arg, const json_t *j, int type), void *arg)
{
	const char *const known[] = { "type", list, NULL };
	const json_t *steps = json_object_get(stage, list);
	json_t *item;
	tess_status st;
	size_t i;
	int type;

	st = tess_key_get_choice(stage, "type", types, -1, &type);
	if (st)
		return st;
	if (type) {
		st = step(arg, stage, type);
		return st ? tess_fail_in(st, "%s", types[type]) : TESS_OK;
	}
	st = tess_keys_check(stage, known);
	if (!st && !json_is_array(steps))
		st = tess_fail(TESS_EINVAL, "%s: an array was expected", list);
	json_array_foreach(steps, i, item) {
		if (st)
			break;
		st = tess_steps_parse(item, list, types, step, arg);
		if (st)
			tess_fail_in(st, "%s[%zu]", list, i);
	}
	return st;
}

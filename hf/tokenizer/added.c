#include "hf/tokenizer/added.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* The maximum length of an added token, in bytes; bounds a search at each position. */
enum { CONTENT_BYTES_MAX = 1024 };

struct tess_added_token {
	int32_t id;
	bool lstrip, rstrip, single_word;
};

struct tess_trie_node {
	int32_t child, sibling; /* 0: none */
	int32_t token; /* the token that ends here, or -1 */
	unsigned char byte;
};

/* ---- trie ------------------------------------------------------------------------------------ */

/* Grows the trie. The 256 nodes after the root are the first bytes: most lookups end there. */
static tess_status grow_trie(struct tess_trie *t)
{
	struct tess_trie_node *node;

	if (t->n < t->capacity)
		return TESS_OK;
	t->capacity = t->capacity ? 2 * t->capacity : 1024;
	node = realloc(t->node, t->capacity * sizeof *node);
	if (!node)
		return tess_fail(TESS_ENOMEM, "out of memory: %zu added tokens", t->capacity);
	t->node = node;
	for (; t->n < 256; t->n++)
		node[t->n] = (struct tess_trie_node){ .token = -1 };
	return TESS_OK;
}

static int32_t find_child(const struct tess_trie *t, int32_t at, unsigned char byte)
{
	for (at = t->node[at].child; at && t->node[at].byte != byte; at = t->node[at].sibling)
		;
	return at;
}

static tess_status insert_token(struct tess_trie *t, const char *s, size_t n, int32_t token)
{
	tess_status st = grow_trie(t);
	int32_t at = (unsigned char)s[0], next;

	for (size_t i = 1; i < n && !st; i++, at = next) {
		next = find_child(t, at, (unsigned char)s[i]);
		if (next)
			continue;
		st = grow_trie(t);
		if (st)
			break;
		next = (int32_t)t->n++;
		t->node[next] = (struct tess_trie_node){ .sibling = t->node[at].child,
			                                 .token = -1,
			                                 .byte = (unsigned char)s[i] };
		t->node[at].child = next;
	}
	if (!st && t->node[at].token < 0)
		t->node[at].token = token;
	return st;
}

/* Returns the length of the longest added token that begins at s, and its id; 0: none. */
static size_t match_longest(const struct tess_trie *t, const char *s, size_t n, int32_t *token)
{
	size_t best = 0, i = 1;

	for (int32_t at = (unsigned char)s[0];; i++) {
		if (t->node[at].token >= 0) {
			*token = t->node[at].token;
			best = i;
		}
		if (i == n || !(at = find_child(t, at, (unsigned char)s[i])))
			return best;
	}
}

/* ---- parse ----------------------------------------------------------------------------------- */

tess_status tess_added_count(const json_t *list, size_t *n, size_t *ids)
{
	size_t i, top = 0;
	json_t *t;

	if (list && !json_is_null(list) && !json_is_array(list))
		return tess_fail(TESS_EINVAL, "added_tokens: an array was expected");
	json_array_foreach(list, i, t) {
		const json_t *id = json_object_get(t, "id");

		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) >= TESS_IDS_MAX)
			return tess_fail(
				TESS_EINVAL,
				"added_tokens[%zu]: id: a number from 0 to %d was expected", i,
				TESS_IDS_MAX - 1);
		top = (size_t)json_integer_value(id) >= top ? (size_t)json_integer_value(id) + 1
		                                            : top;
	}
	*n = json_array_size(list);
	*ids = top;
	return TESS_OK;
}

static bool has_content(const json_t *list, const char *content)
{
	json_t *t;
	size_t i;

	json_array_foreach(list, i, t) {
		const char *s = json_string_value(json_object_get(t, "content"));

		if (s && !strcmp(s, content))
			return true;
	}
	return false;
}

static json_int_t find_next_id(const json_t *list, const json_t *vocab)
{
	json_int_t next = (json_int_t)json_object_size(vocab);
	json_t *t;
	size_t i;

	json_array_foreach(list, i, t) {
		json_int_t id = json_integer_value(json_object_get(t, "id"));

		next = id >= next ? id + 1 : next;
	}
	return next;
}

static tess_status append_token(json_t *list, const json_t *vocab, const json_t *token)
{
	static const char *const keys[] = { "content", "single_word", "lstrip",
		                            "rstrip",  "normalized",  "special" };
	const char *content = json_string_value(json_object_get(token, "content"));
	json_t *known, *to;
	int failed = 0;

	if (!content || has_content(list, content))
		return TESS_OK;
	known = json_object_get(vocab, content);
	to = json_object();
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		json_t *value = json_object_get(token, keys[i]);

		failed |= value && json_object_set(to, keys[i], value);
	}
	failed |= json_object_set_new(
		to, "id", known ? json_incref(known) : json_integer(find_next_id(list, vocab)));
	failed |= json_array_append_new(list, to);
	return failed ? tess_fail(TESS_ENOMEM, "out of memory") : TESS_OK;
}

static int compare_ids(const void *a, const void *b)
{
	long x = strtol(*(const char *const *)a, NULL, 10),
	     y = strtol(*(const char *const *)b, NULL, 10);

	return (x > y) - (x < y);
}

tess_status tess_added_extend(json_t *tokenizer, const json_t *config)
{
	const json_t *decoder = json_object_get(config, "added_tokens_decoder");
	const json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
	json_t *list = json_object_get(tokenizer, "added_tokens"), *token;
	size_t n = json_object_size(decoder);
	tess_status st = TESS_OK;
	const char **ids, *id;

	if (!n || !json_is_object(tokenizer) || (list && !json_is_array(list)))
		return TESS_OK;
	if (!list && json_object_set_new(tokenizer, "added_tokens", json_array()))
		return tess_fail(TESS_ENOMEM, "out of memory");
	list = json_object_get(tokenizer, "added_tokens");
	ids = calloc(n, sizeof *ids);
	if (!ids)
		return tess_fail(TESS_ENOMEM, "out of memory: %zu added tokens", n);
	n = 0;
	json_object_foreach((json_t *)decoder, id, token)
		ids[n++] = id;
	qsort(ids, n, sizeof *ids, compare_ids);
	for (size_t i = 0; i < n && !st; i++)
		st = append_token(list, vocab, json_object_get(decoder, ids[i]));
	free(ids);
	return st;
}

static tess_status parse_added_token(const json_t *t, const struct tess_normalizer *norm,
                                     struct tess_scan *scan, struct tess_vocab *v,
                                     struct tess_added *out)
{
	static const char *const known[] = { "id",     "content",    "single_word", "lstrip",
		                             "rstrip", "normalized", "special",     NULL };
	struct tess_added_token *to = &out->token[out->n];
	struct tess_text text = { 0 };
	bool special, normalized;
	const char *s;
	tess_status st;
	size_t n;

	st = tess_keys_check(t, known);
	if (!st)
		st = tess_key_get_string(t, "content", &s, &n);
	if (!st && n > CONTENT_BYTES_MAX)
		st = tess_fail(TESS_EINVAL, "content: %zu bytes; at most %d are allowed", n,
		               CONTENT_BYTES_MAX);
	if (!st)
		st = tess_key_get_bool(t, "special", false, &special);
	if (!st)
		st = tess_key_get_bool(t, "normalized", !special, &normalized);
	if (!st)
		st = tess_key_get_bool(t, "single_word", false, &to->single_word);
	if (!st)
		st = tess_key_get_bool(t, "lstrip", false, &to->lstrip);
	if (!st)
		st = tess_key_get_bool(t, "rstrip", false, &to->rstrip);
	if (st)
		return st;
	to->id = (int32_t)json_integer_value(json_object_get(t, "id"));
	st = tess_vocab_add(v, s, n, to->id);
	tess_scan_allow(scan, n);
	if (!st && normalized)
		st = tess_normalizer_apply(norm, scan, s, n, &text);
	if (!st && !normalized)
		st = insert_token(&out->raw, s, n, (int32_t)out->n);
	else if (!st && (!text.len || text.len > CONTENT_BYTES_MAX))
		st = tess_fail(TESS_EINVAL,
		               "content: \"%.64s\" is normalized to %zu bytes; 1 to %d are allowed",
		               s, text.len, CONTENT_BYTES_MAX);
	else if (!st)
		st = insert_token(&out->normal, text.data, text.len, (int32_t)out->n);
	if (!st && normalized)
		st = tess_vocab_set_decoded(v, to->id, text.data, text.len);
	tess_text_free(&text);
	if (!st) {
		v->token[to->id].special |= special;
		out->n++;
	}
	return st;
}

tess_status tess_added_parse(const json_t *list, const struct tess_normalizer *norm,
                             struct tess_scan *scan, struct tess_vocab *v, struct tess_added *out)
{
	tess_status st;
	json_t *t;
	size_t i;

	out->token = calloc(json_array_size(list) + 1, sizeof *out->token);
	if (!out->token)
		return tess_fail(TESS_ENOMEM, "out of memory: %zu added tokens",
		                 json_array_size(list));
	json_array_foreach(list, i, t) {
		st = parse_added_token(t, norm, scan, v, out);
		if (st)
			return tess_fail_in(st, "added_tokens[%zu]", i);
	}
	return TESS_OK;
}

void tess_added_free(struct tess_added *a)
{
	free(a->token);
	free(a->raw.node);
	free(a->normal.node);
	*a = (struct tess_added){ 0 };
}

/* ---- find ------------------------------------------------------------------------------------ */

/* As in `tokenizers`: a letter, mark, digit, connector or joiner. */
static bool is_word_char(int32_t cp)
{
	switch (utf8proc_category(cp)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_PC:
		return true;
	default: /* circled and squared letters are symbols, but count as letters */
		return cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) ||
		       (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
		       (cp >= 0x1f170 && cp <= 0x1f189);
	}
}

static bool is_inside_word(const char *s, size_t n, size_t from, size_t to)
{
	int32_t cp;

	if (from) {
		tess_utf8_decode_last(s, from, &cp);
		if (is_word_char(cp))
			return true;
	}
	if (to == n)
		return false;
	tess_utf8_decode(s + to, &cp);
	return is_word_char(cp);
}

/* Extends [from, to) over the spaces on both sides that the token strips; `from` >= min. */
static void extend_over_spaces(const struct tess_added_token *t, const char *s, size_t n,
                               size_t min, size_t *from, size_t *to)
{
	int32_t cp;

	while (t->lstrip && *from > min) {
		size_t i = tess_utf8_decode_last(s, *from, &cp);

		if (!tess_char_is_space(cp))
			break;
		*from = i;
	}
	while (t->rstrip && *to < n) {
		size_t len = tess_utf8_decode(s + *to, &cp);

		if (!tess_char_is_space(cp))
			break;
		*to += len;
	}
}

tess_status tess_added_split(const struct tess_added *a, const struct tess_trie *set, const char *s,
                             size_t n, bool first, struct tess_pieces *out)
{
	size_t done = 0;
	tess_status st = TESS_OK;

	for (size_t i = 0, len; set->n && i < n && !st; i += len) {
		size_t from = i, to;
		int32_t token;

		len = match_longest(set, s + i, n - i, &token);
		to = i + len;
		if (!len || (a->token[token].single_word && is_inside_word(s, n, from, to))) {
			len = len ? len : 1;
			continue;
		}
		extend_over_spaces(&a->token[token], s, n, done, &from, &to);
		if (done < from)
			st = tess_pieces_add(out, s + done, from - done, -1, first && !done);
		if (!st)
			st = tess_pieces_add(out, s + from, to - from, a->token[token].id,
			                     first && !from);
		done = to;
	}
	return !st && done < n ? tess_pieces_add(out, s + done, n - done, -1, first && !done) : st;
}

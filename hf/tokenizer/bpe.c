#include "hf/tokenizer/bpe.h"

#include "core/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* A permutation: each bit of the result depends on all bits of x. */
static uint64_t permute_bits(uint64_t x)
{
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
	x = (x ^ x >> 29) * 0x9e3779b97f4a7c15u;
	return x ^ x >> 32;
}

static uint64_t hash_text(uint64_t seed, const char *s, size_t n)
{
	uint64_t h = permute_bits(seed ^ n), word;

	for (; n >= 8; s += 8, n -= 8) {
		memcpy(&word, s, 8);
		h = permute_bits(h ^ word);
	}
	word = 0;
	memcpy(&word, s, n);
	return permute_bits(h ^ word);
}

/* The slot of the text, or the free slot for it. */
static uint64_t find_token_slot(const struct tess_vocab *v, const char *s, size_t n)
{
	uint64_t i = hash_text(v->seed, s, n) & v->mask;

	for (; v->slot[i] >= 0; i = (i + 1) & v->mask) {
		const struct tess_token *t = &v->token[v->slot[i]];

		if (t->len == n && memcmp(v->text.data + t->at, s, n) == 0)
			break;
	}
	return i;
}

int32_t tess_vocab_find(const struct tess_vocab *v, const char *s, size_t n)
{
	return v->slot[find_token_slot(v, s, n)];
}

/* Memory for `tokens` tokens with ids below `ids`. */
static tess_status alloc_vocab(struct tess_vocab *v, size_t tokens, size_t ids)
{
	size_t slots = 16;

	while (slots < 2 * tokens)
		slots *= 2;
	*v = (struct tess_vocab){ .mask = slots - 1 };
	v->token = calloc(ids + 1, sizeof *v->token);
	v->slot = malloc(slots * sizeof *v->slot);
	if (!v->token || !v->slot)
		return tess_fail(TESS_ENOMEM, "out of memory: %zu tokens", tokens);
	memset(v->slot, 0xff, slots * sizeof *v->slot);
	if (getrandom(&v->seed, sizeof v->seed, 0) != sizeof v->seed)
		v->seed = (uintptr_t)v->slot;
	return TESS_OK;
}

tess_status tess_vocab_add(struct tess_vocab *v, const char *s, size_t n, int32_t id)
{
	struct tess_token *t = &v->token[id];
	uint64_t i;
	tess_status st;

	if (!n)
		return tess_fail(TESS_EINVAL, "the token of id %d is empty", id);
	i = find_token_slot(v, s, n);
	if (v->slot[i] == id)
		return TESS_OK;
	if (v->slot[i] >= 0)
		return tess_fail(TESS_EINVAL, "\"%.64s\" has id %d and id %d; a token has one", s,
		                 v->slot[i], id);
	if (t->len)
		return tess_fail(TESS_EINVAL, "\"%.64s\" and \"%.64s\" both have id %d",
		                 v->text.data + t->at, s, id);
	*t = (struct tess_token){ .at = (uint32_t)v->text.len, .len = (uint32_t)n };
	t->decoded_at = t->at;
	t->decoded_len = t->len;
	st = tess_text_add(&v->text, s, n);
	if (!st)
		st = tess_text_add(&v->text, "", 1);
	v->slot[i] = id;
	v->n = id >= v->n ? id + 1 : v->n;
	return st;
}

tess_status tess_vocab_set_decoded(struct tess_vocab *v, int32_t id, const char *s, size_t n)
{
	v->token[id].decoded_at = (uint32_t)v->text.len;
	v->token[id].decoded_len = (uint32_t)n;
	return tess_text_add(&v->text, s, n);
}

tess_status tess_vocab_parse(const json_t *vocab, size_t more, size_t ids, struct tess_vocab *out)
{
	tess_status st;
	const char *key;
	json_t *id;

	if (!json_is_object(vocab))
		return tess_fail(TESS_EINVAL,
		                 "vocab: an object of tokens and their ids was expected");
	json_object_foreach((json_t *)vocab, key, id) {
		json_int_t n = json_integer_value(id);

		if (!json_is_integer(id) || n < 0 || n >= TESS_IDS_MAX)
			return tess_fail(TESS_EINVAL,
			                 "vocab: \"%.64s\": an id from 0 to %d was expected", key,
			                 TESS_IDS_MAX - 1);
		ids = (size_t)n >= ids ? (size_t)n + 1 : ids;
	}
	st = alloc_vocab(out, json_object_size(vocab) + more, ids);
	if (st)
		return st;
	json_object_foreach((json_t *)vocab, key, id) {
		json_int_t n = json_integer_value(id);

		st = tess_vocab_add(out, key, strlen(key), (int32_t)n);
		if (st)
			return tess_fail_in(st, "vocab");
		out->token[n].model = true;
	}
	return TESS_OK;
}

void tess_vocab_free(struct tess_vocab *v)
{
	tess_text_free(&v->text);
	free(v->token);
	free(v->slot);
	*v = (struct tess_vocab){ 0 };
}

tess_status tess_ids_add(struct tess_ids *ids, int32_t id)
{
	if (ids->n == ids->capacity) {
		size_t capacity = ids->capacity + ids->capacity / 2 + 64;
		int32_t *at = realloc(ids->id, capacity * sizeof *at);
		uint32_t *begin = ids->begin;

		if (at)
			ids->id = at;
		if (at && ids->placed)
			begin = realloc(begin, capacity * sizeof *begin);
		if (!at || (ids->placed && !begin))
			return tess_fail(TESS_ENOMEM, "out of memory: %zu ids", capacity);
		ids->begin = begin;
		ids->capacity = capacity;
	}
	if (ids->placed)
		ids->begin[ids->n] = ids->at;
	ids->id[ids->n++] = id;
	return TESS_OK;
}

void tess_ids_free(struct tess_ids *ids)
{
	free(ids->id);
	free(ids->begin);
	*ids = (struct tess_ids){ 0 };
}

/* ---- merges ---------------------------------------------------------------------------------- */

struct tess_merge {
	uint32_t left, right, rank;
	int32_t id; /* -1: a free slot */
};

/* The merge of the pair, or the free slot for it. */
static struct tess_merge *find_merge(const struct tess_bpe *b, int32_t left, int32_t right)
{
	uint64_t i =
		permute_bits(((uint64_t)(uint32_t)left << 32 | (uint32_t)right) ^ b->vocab->seed) &
		b->mask;

	while (b->merge[i].id >= 0 &&
	       (b->merge[i].left != (uint32_t)left || b->merge[i].right != (uint32_t)right))
		i = (i + 1) & b->mask;
	return &b->merge[i];
}

static int32_t find_model_id(const struct tess_bpe *b, const char *s, size_t n)
{
	int32_t id = tess_vocab_find(b->vocab, s, n);

	return id >= 0 && b->vocab->token[id].model ? id : -1;
}

/* The two sides of "a b" or ["a", "b"]. */
static tess_status split_merge(const json_t *m, const char *side[2], size_t len[2])
{
	if (json_is_array(m) && json_array_size(m) == 2 && json_is_string(json_array_get(m, 0)) &&
	    json_is_string(json_array_get(m, 1))) {
		for (size_t i = 0; i < 2; i++) {
			side[i] = json_string_value(json_array_get(m, i));
			len[i] = json_string_length(json_array_get(m, i));
		}
		return TESS_OK;
	}
	side[0] = json_string_value(m);
	side[1] = side[0] ? strchr(side[0], ' ') : NULL;
	if (!side[1] || strchr(side[1] + 1, ' '))
		return tess_fail(TESS_EINVAL, "\"a b\" or [\"a\", \"b\"] was expected");
	len[0] = (size_t)(side[1] - side[0]);
	len[1] = json_string_length(m) - len[0] - 1;
	side[1]++;
	return TESS_OK;
}

static tess_status add_merge(struct tess_bpe *b, const json_t *m, uint32_t rank,
                             struct tess_text *whole)
{
	struct tess_merge *at;
	const char *side[2];
	int32_t part[2], id;
	size_t len[2];
	tess_status st = split_merge(m, side, len);

	for (int i = 0; i < 2 && !st; i++) {
		part[i] = find_model_id(b, side[i], len[i]);
		if (part[i] < 0)
			return tess_fail(TESS_EINVAL, "\"%.*s\" is not in vocab",
			                 (int)(len[i] < 64 ? len[i] : 64), side[i]);
	}
	whole->len = 0;
	for (int i = 0; i < 2 && !st; i++)
		st = tess_text_add(whole, side[i], len[i]);
	if (st)
		return st;
	id = find_model_id(b, whole->data, whole->len);
	if (id < 0)
		return tess_fail(TESS_EINVAL, "\"%.*s\" is not in vocab",
		                 (int)(whole->len < 64 ? whole->len : 64), whole->data);
	at = find_merge(b, part[0], part[1]);
	*at = (struct tess_merge){ (uint32_t)part[0], (uint32_t)part[1], rank, id };
	return TESS_OK;
}

static tess_status parse_merges(struct tess_bpe *b, const json_t *merges)
{
	struct tess_text whole = { 0 };
	size_t slots = 16, i;
	tess_status st = TESS_OK;
	json_t *m;

	if (!json_is_array(merges))
		return tess_fail(TESS_EINVAL, "merges: an array was expected");
	while (slots < 2 * json_array_size(merges))
		slots *= 2;
	b->mask = slots - 1;
	b->merge = malloc(slots * sizeof *b->merge);
	if (!b->merge)
		return tess_fail(TESS_ENOMEM, "out of memory: %zu merges", json_array_size(merges));
	memset(b->merge, 0xff, slots * sizeof *b->merge);
	json_array_foreach(merges, i, m) {
		st = add_merge(b, m, (uint32_t)i, &whole);
		if (st) {
			st = tess_fail_in(st, "merges[%zu]", i);
			break;
		}
	}
	tess_text_free(&whole);
	return st;
}

/* ---- model ----------------------------------------------------------------------------------- */

/* Refuses keys of unsupported features, unless their value has no effect. */
static tess_status refuse_unsupported(const json_t *model)
{
	static const char *const affix[] = { "continuing_subword_prefix", "end_of_word_suffix",
		                             NULL };
	const json_t *dropout = json_object_get(model, "dropout");

	if (dropout && !json_is_null(dropout) &&
	    !(json_is_number(dropout) && json_number_value(dropout) == 0))
		return tess_fail(TESS_ENOTSUP,
		                 "dropout: only null is supported: a text has one encoding");
	for (int i = 0; affix[i]; i++) {
		const json_t *v = json_object_get(model, affix[i]);

		if (v && !json_is_null(v) && !(json_is_string(v) && !json_string_length(v)))
			return tess_fail(TESS_ENOTSUP, "%s: only null and \"\" are supported",
			                 affix[i]);
	}
	return TESS_OK;
}

static tess_status parse_unk(struct tess_bpe *b, const json_t *model)
{
	const json_t *unk = json_object_get(model, "unk_token");

	b->unk = -1;
	if (!unk || json_is_null(unk))
		return TESS_OK;
	if (!json_is_string(unk))
		return tess_fail(TESS_EINVAL, "unk_token: a token or null was expected");
	b->unk = tess_vocab_find(b->vocab, json_string_value(unk), json_string_length(unk));
	if (b->unk < 0)
		return tess_fail(TESS_EINVAL, "unk_token: \"%.64s\" is not in vocab",
		                 json_string_value(unk));
	return TESS_OK;
}

static void cache_characters(struct tess_bpe *b)
{
	char s[8];

	for (int32_t cp = 0; cp < 0x400; cp++)
		b->low[cp] = find_model_id(b, s, tess_utf8_encode(cp, s));
	for (int i = 0; i < 256; i++) {
		snprintf(s, sizeof s, "<0x%02X>", i);
		b->byte[i] = b->byte_fallback ? find_model_id(b, s, 6) : -1;
	}
}

tess_status tess_bpe_parse(const json_t *model, const struct tess_vocab *vocab,
                           struct tess_bpe *out)
{
	static const char *const known[] = { "type",
		                             "dropout",
		                             "unk_token",
		                             "continuing_subword_prefix",
		                             "end_of_word_suffix",
		                             "fuse_unk",
		                             "byte_fallback",
		                             "ignore_merges",
		                             "vocab",
		                             "merges",
		                             NULL };
	tess_status st = tess_keys_check(model, known);

	*out = (struct tess_bpe){ .vocab = vocab };
	if (!st)
		st = refuse_unsupported(model);
	if (!st)
		st = tess_key_get_bool(model, "fuse_unk", false, &out->fuse_unk);
	if (!st)
		st = tess_key_get_bool(model, "byte_fallback", false, &out->byte_fallback);
	if (!st)
		st = tess_key_get_bool(model, "ignore_merges", false, &out->ignore_merges);
	if (!st)
		st = parse_unk(out, model);
	if (!st)
		st = parse_merges(out, json_object_get(model, "merges"));
	if (!st)
		cache_characters(out);
	return st;
}

void tess_bpe_free(struct tess_bpe *b)
{
	free(b->merge);
	b->merge = NULL;
}

/* ---- encode ---------------------------------------------------------------------------------- */

struct symbol {
	int32_t id; /* -1: merged into the previous symbol */
	int32_t prev, next;
	uint32_t at; /* its first byte in the piece */
};

struct pending_merge {
	uint64_t priority; /* rank, then position */
	int32_t id; /* the merged token */
};

static tess_status reserve_bpe_scratch(struct tess_bpe_scratch *scratch, size_t n)
{
	if (n <= scratch->n)
		return TESS_OK;
	tess_bpe_scratch_free(scratch);
	n += n / 2 + 64;
	scratch->symbol = malloc(n * sizeof(struct symbol));
	/* each merge removes one entry and adds at most two */
	scratch->queue = malloc(2 * n * sizeof(struct pending_merge));
	if (!scratch->symbol || !scratch->queue)
		return tess_fail(TESS_ENOMEM, "out of memory: a piece of %zu bytes", n);
	scratch->n = n;
	return TESS_OK;
}

void tess_bpe_scratch_free(struct tess_bpe_scratch *scratch)
{
	free(scratch->symbol);
	free(scratch->queue);
	*scratch = (struct tess_bpe_scratch){ 0 };
}

/* Restores the heap below q[i]; nodes have four children. */
static void sift_down(struct pending_merge *q, size_t n, size_t i)
{
	struct pending_merge d = q[i];

	for (;;) {
		size_t child = 4 * i + 1, end = child + 4 < n ? child + 4 : n, lowest = child;

		if (child >= n)
			break;
		for (size_t k = child + 1; k < end; k++)
			lowest = q[k].priority < q[lowest].priority ? k : lowest;
		if (d.priority <= q[lowest].priority)
			break;
		q[i] = q[lowest];
		i = lowest;
	}
	q[i] = d;
}

static void sift_up(struct pending_merge *q, size_t i, struct pending_merge d)
{
	for (; i && d.priority < q[(i - 1) / 4].priority; i = (i - 1) / 4)
		q[i] = q[(i - 1) / 4];
	q[i] = d;
}

static bool get_pending_merge(const struct tess_bpe *b, const struct symbol *s, int32_t at,
                              struct pending_merge *out)
{
	const struct tess_merge *m = find_merge(b, s[at].id, s[s[at].next].id);

	*out = (struct pending_merge){ (uint64_t)m->rank << 32 | (uint32_t)at, m->id };
	return m->id >= 0;
}

/*
 * Merges the lowest rank first, the leftmost of equal ones. An entry whose pair is gone still
 * applies if the pair now at its position gives the same token, as in `tokenizers`: the ids depend
 * on it.
 */
static void merge_symbols(const struct tess_bpe *b, struct symbol *s, int32_t n,
                          struct pending_merge *q)
{
	size_t npending = 0;
	struct pending_merge d;

	for (int32_t i = 0; i + 1 < n; i++)
		npending += get_pending_merge(b, s, i, &q[npending]);
	for (size_t i = npending / 4 + 1; i-- > 0;)
		if (i < npending)
			sift_down(q, npending, i);
	while (npending) {
		int32_t at = (int32_t)(q[0].priority & 0xffffffffu), right = s[at].next,
			id = q[0].id;

		q[0] = q[--npending];
		if (npending)
			sift_down(q, npending, 0);
		if (s[at].id < 0 || right < 0 || !get_pending_merge(b, s, at, &d) || d.id != id)
			continue;
		s[at].id = id;
		s[at].next = s[right].next;
		s[right].id = -1;
		if (s[at].next >= 0)
			s[s[at].next].prev = at;
		if (s[at].prev >= 0 && get_pending_merge(b, s, s[at].prev, &d))
			sift_up(q, npending++, d);
		if (s[at].next >= 0 && get_pending_merge(b, s, at, &d))
			sift_up(q, npending++, d);
	}
}

/* Splits the piece into the ids of its characters; returns their number. */
static int32_t split_symbols(const struct tess_bpe *b, const char *s, size_t n, struct symbol *out)
{
	bool unk = false; /* the previous symbol is the unknown token */
	int32_t count = 0;

	for (size_t i = 0, step; i < n; i += step) {
		bool bytes = b->byte_fallback;
		int32_t cp, id;

		step = tess_utf8_decode(s + i, &cp);
		id = cp < 0x400 ? b->low[cp] : find_model_id(b, s + i, step);
		out[count].at = (uint32_t)i;
		if (id >= 0) {
			out[count++].id = id;
			unk = false;
			continue;
		}
		for (size_t k = 0; k < step; k++)
			bytes &= b->byte[(unsigned char)s[i + k]] >= 0;
		for (size_t k = 0; k < step && bytes; k++) {
			out[count].at = (uint32_t)(i + k);
			out[count++].id = b->byte[(unsigned char)s[i + k]];
		}
		if (!bytes && b->unk >= 0 && !(unk && b->fuse_unk))
			out[count++].id = b->unk;
		unk = !bytes && b->unk >= 0;
	}
	for (int32_t i = 0; i < count; i++) {
		out[i].prev = i - 1;
		out[i].next = i + 1 < count ? i + 1 : -1;
	}
	return count;
}

tess_status tess_bpe_encode(const struct tess_bpe *b, struct tess_bpe_scratch *scratch,
                            const char *s, size_t n, struct tess_ids *out)
{
	int32_t whole = b->ignore_merges ? find_model_id(b, s, n) : -1, count;
	uint32_t begin = out->at;
	struct symbol *symbol;
	tess_status st;

	if (whole >= 0)
		return tess_ids_add(out, whole);
	st = reserve_bpe_scratch(scratch, n);
	if (st)
		return st;
	symbol = scratch->symbol;
	count = split_symbols(b, s, n, symbol);
	merge_symbols(b, symbol, count, scratch->queue);
	for (int32_t i = count ? 0 : -1; i >= 0 && !st; i = symbol[i].next) {
		out->at = begin + symbol[i].at;
		st = tess_ids_add(out, symbol[i].id);
	}
	return st;
}

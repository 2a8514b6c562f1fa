/* encode.c - encodes a text to ids, and finds the ids at borders in it. */
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/tokenizer/stages.h"
#include "hf/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct encoding { /* of one text */
	const struct tess_tokenizer *t;
	struct tess_scan *scan;
	struct tess_bpe_scratch scratch;
	struct tess_text normal;
	struct tess_ids ids;
};

/* ---- a segment: text between added tokens that are found in the original text ---------------- */

/* Normalizes a segment, and splits it into pieces that are encoded by themselves. */
static tess_status split_segment(struct encoding *e, const char *s, size_t n, bool first,
                                 struct tess_pieces *out)
{
	const struct tess_tokenizer *t = e->t;
	tess_status st = tess_normalizer_apply(&t->normalizer, e->scan, s, n, &e->normal);

	tess_pieces_clear(out);
	if (!st)
		st = tess_added_split(&t->added, &t->added.normal, e->normal.data, e->normal.len,
		                      first, out);
	return st ? st : tess_pretokenizer_apply(&t->pre, e->scan, out);
}

static tess_status encode_pieces(struct encoding *e, const struct tess_pieces *p)
{
	tess_status st = TESS_OK;

	for (size_t i = 0; i < p->n && !st; i++) {
		const struct tess_piece *at = &p->piece[i];

		e->ids.at = at->start;
		st = at->id >= 0 ? tess_ids_add(&e->ids, at->id)
		                 : tess_bpe_encode(&e->t->bpe, &e->scratch,
		                                   p->text.data + at->start, at->len, &e->ids);
	}
	return st;
}

/* ---- borders --------------------------------------------------------------------------------- */

/*
 * Finds the ids at a border after `n` bytes of a segment, whose ids begin at `first` and whose
 * pieces have `length` bytes. The text before the border gives as many bytes of pieces as in the
 * segment, since stages work from left to right; only a character that changes with the next one
 * may differ.
 */
static tess_status find_border(struct encoding *e, const char *s, size_t n, bool begins,
                               size_t first, size_t length, struct tess_token_border *out)
{
	struct tess_pieces before = { 0 };
	const uint32_t *begin = e->ids.begin;
	tess_status st = n ? split_segment(e, s, n, begins, &before) : TESS_OK;
	size_t i = first, at = before.text.len < length ? before.text.len : length, end;

	while (i < e->ids.n && begin[i] < at)
		i++;
	end = i < e->ids.n ? begin[i] : length;
	out->begins_at = i;
	out->ends_after = i > first && end > at ? i - 1 : i;
	tess_pieces_free(&before);
	return st;
}

/* Encodes a piece of the original text, and finds the ids at the n borders in it. */
static tess_status encode_segment(struct encoding *e, const char *text, const struct tess_piece *p,
                                  struct tess_token_border *border, size_t n)
{
	struct tess_pieces pieces = { 0 };
	size_t first = e->ids.n;
	tess_status st;

	if (p->id >= 0) {
		for (size_t i = 0; i < n; i++) {
			border[i].ends_after = first;
			border[i].begins_at = first + (border[i].at > p->start);
		}
		return tess_ids_add(&e->ids, p->id);
	}
	st = split_segment(e, text + p->start, p->len, p->first, &pieces);
	if (!st)
		st = encode_pieces(e, &pieces);
	for (size_t i = 0; i < n && !st; i++)
		st = find_border(e, text + p->start, border[i].at - p->start, p->first, first,
		                 pieces.text.len, &border[i]);
	tess_pieces_free(&pieces);
	return st;
}

/* Encodes a text, and finds the ids at n borders. */
static tess_status encode_segments(struct encoding *e, const char *text, size_t len,
                                   struct tess_token_border *border, size_t n)
{
	struct tess_pieces raw = { 0 };
	tess_status st = tess_added_split(&e->t->added, &e->t->added.raw, text, len, true, &raw);

	for (size_t i = 0; i < raw.n && !st; i++) {
		const struct tess_piece *p = &raw.piece[i];
		size_t inside = 0;

		while (inside < n && border[inside].at < p->start + p->len)
			inside++;
		st = encode_segment(e, raw.text.data, p, border, inside);
		border += inside;
		n -= inside;
	}
	for (size_t i = 0; i < n; i++)
		border[i].ends_after = border[i].begins_at = e->ids.n;
	tess_pieces_free(&raw);
	return st;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static tess_status append_ids(struct tess_ids *ids, const struct tess_ids *more)
{
	tess_status st = TESS_OK;

	for (size_t i = 0; i < more->n && !st; i++)
		st = tess_ids_add(ids, more->id[i]);
	return st;
}

static tess_status check_utf8_text(const char *text, size_t len)
{
	size_t valid;

	if (len > TESS_TEXT_MAX)
		return tess_fail(TESS_EINVAL, "a text of %zu bytes; at most %d are encoded", len,
		                 TESS_TEXT_MAX);
	valid = tess_utf8_count_valid(text, len);
	if (valid < len)
		return tess_fail(TESS_EINVAL, "the text is not UTF-8 at its byte %zu", valid);
	return TESS_OK;
}

static tess_status encode_text(const struct tess_tokenizer *t, const char *text, size_t len,
                               bool add_special, struct tess_token_border *border, size_t nborders,
                               int32_t **ids, size_t *n)
{
	struct encoding e = { .t = t, .ids.placed = nborders > 0 };
	tess_status st = check_utf8_text(text, len);

	if (st)
		return st;
	st = tess_scan_open(&e.scan);
	if (!st) {
		tess_scan_allow(e.scan, len * (nborders + 1));
		st = add_special ? append_ids(&e.ids, &t->post.before) : TESS_OK;
	}
	if (!st)
		st = encode_segments(&e, text, len, border, nborders);
	if (!st && add_special)
		st = append_ids(&e.ids, &t->post.after);
	if (!st && !e.ids.id && !(e.ids.id = malloc(sizeof *e.ids.id)))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	if (!st) {
		*ids = e.ids.id;
		*n = e.ids.n;
		e.ids.id = NULL;
	}
	tess_ids_free(&e.ids);
	tess_bpe_scratch_free(&e.scratch);
	tess_text_free(&e.normal);
	tess_scan_close(e.scan);
	return st ? tess_fail_in(st, "encoding a text") : TESS_OK;
}

tess_status tess_tokenizer_encode(const struct tess_tokenizer *t, const char *text, size_t len,
                                  bool add_special, int32_t **ids, size_t *n)
{
	tess_status st = TESS_REQUIRE(t, ids, n);

	if (!st && len)
		st = TESS_REQUIRE(text);
	return st ? st : encode_text(t, text, len, add_special, NULL, 0, ids, n);
}

tess_status tess_tokenizer_encode_borders(const struct tess_tokenizer *t, const char *text,
                                          size_t len, struct tess_token_border *border,
                                          size_t nborders, int32_t **ids, size_t *n)
{
	return encode_text(t, text, len, false, border, nborders, ids, n);
}

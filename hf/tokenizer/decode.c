#include "hf/tokenizer/decode.h"

#include "core/base/status.h"
#include "hf/tokenizer/pretokenize.h"

#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD, for bytes that are not UTF-8 */

enum { SEQUENCE, BYTE_LEVEL, METASPACE, BYTE_FALLBACK, FUSE, STRIP, REPLACE, JOIN_SPACED };
static const char *const decoder_types[] = { "Sequence", "ByteLevel", "Metaspace", "ByteFallback",
	                                     "Fuse",     "Strip",     "Replace",   NULL };

struct tess_decode_step {
	int type;
	struct tess_regex *pattern; /* Replace */
	char *content;
	size_t len;
	char mark[4]; /* Metaspace, Strip */
	size_t mark_len;
	int prepend; /* Metaspace */
	size_t start, stop; /* Strip */
};

/* A part of a token: its first, its last, or both. */
enum { BEGIN = 1, END = 2, WHOLE = BEGIN | END };

struct tess_decode_state {
	struct tess_text parts; /* parts of a token that the step needs in full */
	struct tess_text pending; /* bytes of an incomplete character */
	struct tess_text output; /* passed to the next step */
	size_t count; /* tokens so far; in Strip, marks stripped from this one */
	bool started; /* a token was passed on; in Strip, more may be stripped */
};

/* ---- parse ----------------------------------------------------------------------------------- */

static tess_status parse_strip(const json_t *j, struct tess_decode_step *s)
{
	static const char *const known[] = { "type", "content", "start", "stop", NULL };
	tess_status st = tess_keys_check(j, known);
	const char *content;
	int32_t cp;

	if (!st)
		st = tess_key_get_string(j, "content", &content, &s->mark_len);
	if (!st && (!s->mark_len || tess_utf8_decode(content, &cp) != s->mark_len))
		st = tess_fail(TESS_EINVAL, "content: one character was expected");
	if (!st)
		st = tess_key_get_size(j, "start", 0, TESS_TEXT_MAX, &s->start);
	if (!st)
		st = tess_key_get_size(j, "stop", 0, TESS_TEXT_MAX, &s->stop);
	if (!st)
		memcpy(s->mark, content, s->mark_len);
	return st;
}

static tess_status parse_replace(const json_t *j, struct tess_decode_step *s)
{
	static const char *const known[] = { "type", "pattern", "content", NULL };
	tess_status st = tess_keys_check(j, known);

	if (!st)
		st = tess_regex_parse(j, "pattern", &s->pattern);
	return st ? st : tess_key_copy_string(j, "content", &s->content, &s->len);
}

static tess_status parse_decode_step(void *arg, const json_t *j, int type)
{
	static const char *const plain[] = { "type", NULL };
	static const char *const byte_level[] = { "type", "add_prefix_space", "trim_offsets",
		                                  "use_regex", NULL };
	struct tess_decoder *d = arg;
	struct tess_decode_step *s = &d->step[d->n];
	bool split;

	if (d->n == TESS_STEPS_MAX)
		return tess_fail(TESS_EINVAL, "more than %d steps", TESS_STEPS_MAX);
	d->n++;
	s->type = type;
	switch (type) {
	case STRIP:
		return parse_strip(j, s);
	case REPLACE:
		return parse_replace(j, s);
	case METASPACE:
		return tess_metaspace_parse(j, s->mark, &s->mark_len, &s->prepend, &split);
	default:
		return tess_keys_check(j, type == BYTE_LEVEL ? byte_level : plain);
	}
}

tess_status tess_decoder_parse(const json_t *j, struct tess_decoder *out)
{
	tess_status st;

	*out = (struct tess_decoder){ .step = calloc(TESS_STEPS_MAX, sizeof *out->step) };
	if (!out->step)
		return tess_fail(TESS_ENOMEM, "out of memory for a decoder");
	if (!j || json_is_null(j)) {
		out->step[out->n++].type = JOIN_SPACED;
		return TESS_OK;
	}
	st = tess_steps_parse(j, "decoders", decoder_types, parse_decode_step, out);
	return st ? tess_fail_in(st, "decoder") : TESS_OK;
}

void tess_decoder_free(struct tess_decoder *d)
{
	for (size_t i = 0; i < d->n; i++) {
		tess_regex_close(d->step[i].pattern);
		free(d->step[i].content);
	}
	free(d->step);
	*d = (struct tess_decoder){ 0 };
}

/* ---- steps ----------------------------------------------------------------------------------- */

static tess_status push_token_part(struct tess_decoding *p, size_t i, const char *s, size_t n,
                                   int part);

/* Returns the value of "<0x41>", or -1. */
static int parse_byte_token(const char *s, size_t n)
{
	static const char digits[] = "0123456789abcdef0123456789ABCDEF";
	const char *high, *low;

	if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
		return -1;
	high = memchr(digits, s[3], sizeof digits - 1);
	low = memchr(digits, s[4], sizeof digits - 1);
	return high && low ? (int)((high - digits) % 16 * 16 + (low - digits) % 16) : -1;
}

/* Passes on the pending bytes: as text if all are UTF-8, else a replacement character for each. */
static tess_status flush_pending_bytes(struct tess_decoding *p, size_t i)
{
	struct tess_text *pending = &p->state[i].pending;
	size_t n = pending->len;
	tess_status st = TESS_OK;

	if (!n)
		return TESS_OK;
	if (tess_utf8_count_valid(pending->data, n) == n)
		st = push_token_part(p, i + 1, pending->data, n, WHOLE);
	else
		for (size_t k = 0; k < n && !st; k++)
			st = push_token_part(p, i + 1, REPLACEMENT, 3, WHOLE);
	pending->len = 0;
	return st;
}

static tess_status decode_byte_fallback(struct tess_decoding *p, size_t i, const char *s, size_t n)
{
	int byte = parse_byte_token(s, n);
	tess_status st;

	if (byte >= 0)
		return tess_text_add(&p->state[i].pending, &(char){ (char)byte }, 1);
	st = flush_pending_bytes(p, i);
	return st ? st : push_token_part(p, i + 1, s, n, WHOLE);
}

/* Returns whether these n bytes are an incomplete character. */
static bool begins_character(const char *text, size_t n)
{
	const unsigned char *s = (const unsigned char *)text;
	unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
	unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
	size_t want = s[0] < 0xc2 || s[0] > 0xf4 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

	return n < want && (n < 2 || (s[1] >= low && s[1] <= high)) &&
	       (n < 3 || (s[2] & 0xc0) == 0x80);
}

/*
 * Adds a byte. Invalid UTF-8 becomes one replacement character per maximal subpart of a
 * sequence, as Unicode recommends.
 */
static tess_status add_byte(struct tess_decode_state *state, char byte)
{
	struct tess_text *pending = &state->pending;
	tess_status st = tess_text_add(pending, &byte, 1);

	if (st || begins_character(pending->data, pending->len))
		return st;
	if (tess_utf8_count_valid(pending->data, pending->len) == pending->len) {
		st = tess_text_add(&state->output, pending->data, pending->len);
		pending->len = 0;
		return st;
	}
	st = tess_text_add(&state->output, REPLACEMENT, 3);
	if (pending->len == 1) {
		pending->len = 0;
		return st;
	}
	pending->len = 0;
	return st ? st : add_byte(state, byte);
}

/* Decodes a token of the byte alphabet to its bytes, any other to itself. */
static tess_status decode_byte_level(struct tess_decoding *p, size_t i, const char *s, size_t n)
{
	struct tess_decode_state *state = &p->state[i];
	bool alphabet = true, started = state->started;
	tess_status st = TESS_OK;
	int32_t cp;

	for (size_t k = 0; k < n && alphabet;) {
		k += tess_utf8_decode(s + k, &cp);
		alphabet = tess_byte_decode(cp) >= 0;
	}
	state->output.len = 0;
	for (size_t k = 0; k < n && !st;) {
		if (alphabet)
			k += tess_utf8_decode(s + k, &cp);
		st = add_byte(state, alphabet ? (char)tess_byte_decode(cp) : s[k]);
		k += !alphabet;
	}
	state->started = true;
	return st ? st
	          : push_token_part(p, i + 1, state->output.data, state->output.len,
	                            started ? 0 : BEGIN);
}

static tess_status decode_metaspace(struct tess_decoding *p, size_t i, const char *s, size_t n)
{
	const struct tess_decode_step *step = &p->decoder->step[i];
	struct tess_decode_state *state = &p->state[i];
	bool drop = state->count++ == 0 && step->prepend != TESS_PREPEND_NEVER;
	tess_status st = TESS_OK;

	state->output.len = 0;
	for (size_t k = 0, len; k < n && !st; k += len) {
		int32_t cp;

		len = tess_utf8_decode(s + k, &cp);
		if (len != step->mark_len || memcmp(s + k, step->mark, len) != 0)
			st = tess_text_add(&state->output, s + k, len);
		else if (!drop)
			st = tess_text_add(&state->output, " ", 1);
	}
	return st ? st : push_token_part(p, i + 1, state->output.data, state->output.len, WHOLE);
}

static tess_status decode_replace(struct tess_decoding *p, size_t i, const char *s, size_t n)
{
	const struct tess_decode_step *step = &p->decoder->step[i];
	struct tess_decode_state *state = &p->state[i];
	tess_status st;

	state->output.len = 0;
	st = tess_regex_replace(step->pattern, p->scan, s, n, step->content, step->len,
	                        &state->output);
	if (!st)
		st = tess_scan_count_bytes(p->scan, state->output.len);
	return st ? st : push_token_part(p, i + 1, state->output.data, state->output.len, WHOLE);
}

static bool starts_with_mark(const struct tess_decode_step *step, const char *s, size_t n)
{
	return n >= step->mark_len && memcmp(s, step->mark, step->mark_len) == 0;
}

/*
 * Strips up to `start` marks from the front of a token, and up to `stop` from its end, which
 * requires the complete token.
 */
static tess_status decode_strip(struct tess_decoding *p, size_t i, const char *s, size_t n,
                                int part)
{
	const struct tess_decode_step *step = &p->decoder->step[i];
	struct tess_decode_state *state = &p->state[i];

	if (part & BEGIN) {
		state->count = 0;
		state->started = true;
	}
	while (state->started && n) {
		state->started = state->count < step->start && starts_with_mark(step, s, n);
		if (!state->started)
			break;
		s += step->mark_len;
		n -= step->mark_len;
		state->count++;
	}
	for (size_t k = 0; k < step->stop && n >= step->mark_len &&
	                   starts_with_mark(step, s + n - step->mark_len, n);
	     k++)
		n -= step->mark_len;
	return push_token_part(p, i + 1, s, n, part);
}

static tess_status decode_spaced(struct tess_decoding *p, size_t i, const char *s, size_t n)
{
	tess_status st = p->state[i].count++ ? push_token_part(p, i + 1, " ", 1, WHOLE) : TESS_OK;

	return st ? st : push_token_part(p, i + 1, s, n, WHOLE);
}

/* ---- a text, token by token ------------------------------------------------------------------ */

static tess_status push_whole_token(struct tess_decoding *p, size_t i, const char *s, size_t n)
{
	switch (p->decoder->step[i].type) {
	case BYTE_LEVEL:
		return decode_byte_level(p, i, s, n);
	case METASPACE:
		return decode_metaspace(p, i, s, n);
	case BYTE_FALLBACK:
		return decode_byte_fallback(p, i, s, n);
	case STRIP:
		return decode_strip(p, i, s, n, WHOLE);
	case REPLACE:
		return decode_replace(p, i, s, n);
	default:
		return decode_spaced(p, i, s, n);
	}
}

static tess_status push_token_part(struct tess_decoding *p, size_t i, const char *s, size_t n,
                                   int part)
{
	const struct tess_decode_step *step = &p->decoder->step[i];
	struct tess_decode_state *state = &p->state[i];
	tess_status st;

	if (i == p->decoder->n)
		return tess_text_add(&p->out, s, n);
	s = n ? s : "";
	if (step->type == FUSE) {
		part = state->started ? 0 : BEGIN;
		state->started = true;
		return push_token_part(p, i + 1, s, n, part);
	}
	if (step->type == STRIP && !step->stop)
		return decode_strip(p, i, s, n, part);
	if (part == WHOLE)
		return push_whole_token(p, i, s, n);
	st = tess_text_add(&state->parts, s, n);
	if (st || !(part & END))
		return st;
	st = push_whole_token(p, i, state->parts.data, state->parts.len);
	state->parts.len = 0;
	return st;
}

tess_status tess_decoding_open(const struct tess_decoder *d, struct tess_decoding *out)
{
	struct tess_decoding p = { .decoder = d, .state = calloc(d->n + 1, sizeof *p.state) };
	tess_status st;

	if (!p.state)
		return tess_fail(TESS_ENOMEM, "out of memory for a decoder");
	st = tess_scan_open(&p.scan);
	if (st)
		free(p.state);
	else
		*out = p;
	return st;
}

tess_status tess_decoding_push(struct tess_decoding *p, const char *token, size_t n)
{
	tess_scan_allow(p->scan, n);
	return push_token_part(p, 0, token, n, WHOLE);
}

tess_status tess_decoding_drop(struct tess_decoding *p)
{
	tess_status st = TESS_OK;

	for (size_t i = 0; i < p->decoder->n && !st; i++) {
		if (p->decoder->step[i].type == BYTE_FALLBACK)
			st = flush_pending_bytes(p, i);
		p->state[i].pending.len = 0;
		p->state[i].parts.len = 0;
	}
	p->out.len = 0;
	return st;
}

tess_status tess_decoding_end(struct tess_decoding *p)
{
	tess_status st = TESS_OK;

	for (size_t i = 0; i < p->decoder->n && !st; i++) {
		struct tess_decode_state *state = &p->state[i];
		int part = state->started ? END : WHOLE, type = p->decoder->step[i].type;

		if (type == BYTE_FALLBACK)
			st = flush_pending_bytes(p, i);
		else if (type == BYTE_LEVEL)
			st = push_token_part(p, i + 1, REPLACEMENT, state->pending.len ? 3 : 0,
			                     part);
		else if (type == FUSE)
			st = push_token_part(p, i + 1, "", 0, part);
	}
	return st;
}

void tess_decoding_close(struct tess_decoding *p)
{
	for (size_t i = 0; p->state && i < p->decoder->n; i++) {
		tess_text_free(&p->state[i].parts);
		tess_text_free(&p->state[i].pending);
		tess_text_free(&p->state[i].output);
	}
	free(p->state);
	tess_scan_close(p->scan);
	tess_text_free(&p->out);
	*p = (struct tess_decoding){ 0 };
}

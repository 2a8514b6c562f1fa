#include "hf/tokenizer/pretokenize.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

/* GPT-2's own pattern, which ByteLevel uses. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* The characters of \w in the pattern of Whitespace in `tokenizers`. */
#define RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"

enum { ISOLATED, REMOVED, WITH_PREVIOUS, WITH_NEXT, CONTIGUOUS };
static const char *const behaviours[] = { "Isolated",       "Removed",    "MergedWithPrevious",
	                                  "MergedWithNext", "Contiguous", NULL };

/* The steps of all pre-tokenizers. */
enum { SPLIT, MARK, SPACE, BYTES };

struct tess_pre_step {
	int kind;
	struct tess_regex *pattern; /* SPLIT: at its matches, or with `invert` between them */
	int behaviour;
	bool invert;
	char mark[4]; /* MARK: the character that stands for a space */
	size_t mark_len;
	int prepend;
};

/* ---- parse ----------------------------------------------------------------------------------- */

static tess_status add_pre_step(struct tess_pretokenizer *out, struct tess_pre_step s)
{
	if (out->n == TESS_STEPS_MAX) {
		tess_regex_close(s.pattern);
		return tess_fail(TESS_EINVAL, "more than %d steps", TESS_STEPS_MAX);
	}
	out->step[out->n++] = s;
	return TESS_OK;
}

static tess_status add_split_step(struct tess_pretokenizer *out, const char *pattern, size_t len,
                                  bool literal, int behaviour, bool invert)
{
	struct tess_pre_step s = { .kind = SPLIT, .behaviour = behaviour, .invert = invert };
	tess_status st = tess_regex_open(pattern, len, literal, &s.pattern);

	return st ? st : add_pre_step(out, s);
}

static tess_status parse_split(const json_t *j, struct tess_pretokenizer *out)
{
	static const char *const known[] = { "type", "pattern", "behavior", "invert", NULL };
	struct tess_pre_step s = { .kind = SPLIT };
	tess_status st = tess_keys_check(j, known);

	if (!st)
		st = tess_key_get_choice(j, "behavior", behaviours, -1, &s.behaviour);
	if (!st)
		st = tess_key_get_bool(j, "invert", false, &s.invert);
	if (!st)
		st = tess_regex_parse(j, "pattern", &s.pattern);
	return st ? st : add_pre_step(out, s);
}

static tess_status parse_byte_level(const json_t *j, struct tess_pretokenizer *out)
{
	static const char *const known[] = { "type", "add_prefix_space", "trim_offsets",
		                             "use_regex", NULL };
	bool space, regex;
	tess_status st = tess_keys_check(j, known);

	if (!st)
		st = tess_key_get_bool(j, "add_prefix_space", true, &space);
	if (!st)
		st = tess_key_get_bool(j, "use_regex", true, &regex);
	if (!st && space)
		st = add_pre_step(out, (struct tess_pre_step){ .kind = SPACE });
	if (!st && regex)
		st = add_split_step(out, GPT2, strlen(GPT2), false, ISOLATED, false);
	return st ? st : add_pre_step(out, (struct tess_pre_step){ .kind = BYTES });
}

tess_status tess_metaspace_parse(const json_t *j, char mark[4], size_t *len, int *prepend,
                                 bool *split)
{
	static const char *const known[] = { "type",  "replacement",      "prepend_scheme",
		                             "split", "add_prefix_space", "str_rep",
		                             NULL };
	static const char *const schemes[] = { "always", "first", "never", NULL };
	tess_status st = tess_keys_check(j, known);
	const char *s;
	int32_t cp;
	bool old;

	if (!st)
		st = tess_key_get_string(j, "replacement", &s, len);
	if (!st && (!*len || tess_utf8_decode(s, &cp) != *len))
		st = tess_fail(TESS_EINVAL, "replacement: one character was expected");
	if (!st)
		st = tess_key_get_bool(j, "add_prefix_space", true, &old);
	if (!st)
		st = tess_key_get_choice(j, "prepend_scheme", schemes,
		                         old ? TESS_PREPEND_ALWAYS : TESS_PREPEND_NEVER, prepend);
	if (!st && !old && *prepend != TESS_PREPEND_NEVER)
		st = tess_fail(TESS_EINVAL,
		               "add_prefix_space: false does not go with this prepend_scheme");
	if (!st)
		st = tess_key_get_bool(j, "split", true, split);
	if (!st)
		memcpy(mark, s, *len);
	return st;
}

static tess_status parse_metaspace(const json_t *j, struct tess_pretokenizer *out)
{
	struct tess_pre_step s = { .kind = MARK };
	bool split;
	tess_status st = tess_metaspace_parse(j, s.mark, &s.mark_len, &s.prepend, &split);

	if (!st)
		st = add_pre_step(out, s);
	return st || !split ? st : add_split_step(out, s.mark, s.mark_len, true, WITH_NEXT, false);
}

static tess_status parse_digits(const json_t *j, struct tess_pretokenizer *out)
{
	static const char *const known[] = { "type", "individual_digits", NULL };
	tess_status st = tess_keys_check(j, known);
	bool each;

	if (!st)
		st = tess_key_get_bool(j, "individual_digits", false, &each);
	return st ? st
	          : add_split_step(out, "\\p{N}", 5, false, each ? ISOLATED : CONTIGUOUS, false);
}

static tess_status parse_punctuation(const json_t *j, struct tess_pretokenizer *out)
{
	static const char *const known[] = { "type", "behavior", NULL };
	static const char punctuation[] = "[\\p{P}$+<=>^`|~]";
	tess_status st = tess_keys_check(j, known);
	int behaviour;

	if (!st)
		st = tess_key_get_choice(j, "behavior", behaviours, ISOLATED, &behaviour);
	return st ? st
	          : add_split_step(out, punctuation, strlen(punctuation), false, behaviour, false);
}

static tess_status parse_delimiter(const json_t *j, struct tess_pretokenizer *out)
{
	static const char *const known[] = { "type", "delimiter", NULL };
	tess_status st = tess_keys_check(j, known);
	const char *s;
	int32_t cp;
	size_t n;

	if (!st)
		st = tess_key_get_string(j, "delimiter", &s, &n);
	if (!st && (!n || tess_utf8_decode(s, &cp) != n))
		st = tess_fail(TESS_EINVAL, "delimiter: one character was expected");
	return st ? st : add_split_step(out, s, n, true, REMOVED, false);
}

static tess_status parse_whitespace(const json_t *j, struct tess_pretokenizer *out)
{
	static const char *const known[] = { "type", NULL };
	static const char words[] = "[" RUST_WORD "]+|[^" RUST_WORD "\\s]+";
	tess_status st = tess_keys_check(j, known);

	return st ? st : add_split_step(out, words, strlen(words), false, REMOVED, true);
}

static tess_status parse_whitespace_split(const json_t *j, struct tess_pretokenizer *out)
{
	static const char *const known[] = { "type", NULL };
	tess_status st = tess_keys_check(j, known);

	return st ? st : add_split_step(out, "\\s", 2, false, REMOVED, false);
}

static const char *const pretokenizer_types[] = {
	"Sequence",           "Split",      "ByteLevel",       "Metaspace", "Digits", "Punctuation",
	"CharDelimiterSplit", "Whitespace", "WhitespaceSplit", NULL
};

static tess_status parse_pre_step(void *arg, const json_t *j, int type)
{
	static tess_status (*const parsers[])(
		const json_t *j, struct tess_pretokenizer *out) = { NULL,
		                                                    parse_split,
		                                                    parse_byte_level,
		                                                    parse_metaspace,
		                                                    parse_digits,
		                                                    parse_punctuation,
		                                                    parse_delimiter,
		                                                    parse_whitespace,
		                                                    parse_whitespace_split };

	return parsers[type](j, arg);
}

tess_status tess_pretokenizer_parse(const json_t *j, struct tess_pretokenizer *out)
{
	tess_status st;

	*out = (struct tess_pretokenizer){ 0 };
	if (!j || json_is_null(j))
		return TESS_OK;
	out->step = calloc(TESS_STEPS_MAX, sizeof *out->step);
	if (!out->step)
		return tess_fail(TESS_ENOMEM, "out of memory for a pre-tokenizer");
	st = tess_steps_parse(j, "pretokenizers", pretokenizer_types, parse_pre_step, out);
	return st ? tess_fail_in(st, "pre_tokenizer") : TESS_OK;
}

void tess_pretokenizer_free(struct tess_pretokenizer *pre)
{
	for (size_t i = 0; i < pre->n; i++)
		tess_regex_close(pre->step[i].pattern);
	free(pre->step);
	*pre = (struct tess_pretokenizer){ 0 };
}

/* ---- split ----------------------------------------------------------------------------------- */

/* The piece in progress; a span extends or ends it. */
struct piece_builder {
	const struct tess_pre_step *step;
	const char *s;
	bool first;
	size_t from, to;
	bool open, match; /* match: the last span was a match */
	struct tess_pieces *out;
};

static tess_status flush_piece(struct piece_builder *c)
{
	if (!c->open || (c->step->behaviour == REMOVED && c->match))
		return TESS_OK;
	return tess_pieces_add(c->out, c->s + c->from, c->to - c->from, -1, c->first && !c->from);
}

static tess_status add_span(struct piece_builder *c, size_t from, size_t to, bool match)
{
	int behaviour = c->step->behaviour;
	tess_status st = TESS_OK;

	match ^= c->step->invert;
	if (c->open && ((behaviour == CONTIGUOUS && match == c->match) ||
	                (behaviour == WITH_PREVIOUS && match && !c->match) ||
	                (behaviour == WITH_NEXT && !match && c->match))) {
		c->to = to;
	} else {
		st = flush_piece(c);
		c->from = from;
		c->to = to;
		c->open = true;
	}
	c->match = match;
	return st;
}

static tess_status split_at_matches(const struct tess_pre_step *step, struct tess_scan *scan,
                                    const char *s, size_t n, bool first, struct tess_pieces *out)
{
	struct tess_match_iter f = { .regex = step->pattern, .scan = scan, .text = s, .len = n };
	struct piece_builder c = { .step = step, .s = s, .first = first, .out = out };
	size_t done = 0;
	tess_status st;
	bool found;

	while (!(st = tess_match_iter_next(&f, &found)) && found) {
		if (done < f.from)
			st = add_span(&c, done, f.from, false);
		if (!st)
			st = add_span(&c, f.from, f.to, true);
		if (st)
			return st;
		done = f.to;
	}
	if (!st && done < n)
		st = add_span(&c, done, n, false);
	return st ? st : flush_piece(&c);
}

/* Replaces spaces by the mark, and prepends one where needed. */
static tess_status mark_spaces(const struct tess_pre_step *step, const char *s, size_t n,
                               bool first, struct tess_text *text, struct tess_pieces *out)
{
	tess_status st = TESS_OK;
	bool prepend = step->prepend == TESS_PREPEND_ALWAYS ||
	               (step->prepend == TESS_PREPEND_FIRST && first);

	text->len = 0;
	if (prepend && s[0] != ' ' &&
	    (n < step->mark_len || memcmp(s, step->mark, step->mark_len) != 0))
		st = tess_text_add(text, step->mark, step->mark_len);
	for (size_t i = 0; i < n && !st; i++)
		st = s[i] == ' ' ? tess_text_add(text, step->mark, step->mark_len)
		                 : tess_text_add(text, s + i, 1);
	return st ? st : tess_pieces_add(out, text->data, text->len, -1, first);
}

static tess_status apply_pre_step(const struct tess_pre_step *step, struct tess_scan *scan,
                                  const char *s, size_t n, bool first, struct tess_text *text,
                                  struct tess_pieces *out)
{
	tess_status st;

	if (step->kind == SPLIT)
		return split_at_matches(step, scan, s, n, first, out);
	if (step->kind == MARK)
		return mark_spaces(step, s, n, first, text, out);
	text->len = 0;
	if (step->kind == BYTES) {
		st = tess_text_add_encoded(text, s, n);
	} else {
		st = s[0] == ' ' ? TESS_OK : tess_text_add(text, " ", 1);
		if (!st)
			st = tess_text_add(text, s, n);
	}
	return st ? st : tess_pieces_add(out, text->data, text->len, -1, first);
}

tess_status tess_pretokenizer_apply(const struct tess_pretokenizer *pre, struct tess_scan *scan,
                                    struct tess_pieces *p)
{
	struct tess_pieces next = { 0 }, swap;
	struct tess_text text = { 0 };
	tess_status st = TESS_OK;

	for (size_t i = 0; i < pre->n && !st; i++) {
		tess_pieces_clear(&next);
		for (size_t k = 0; k < p->n && !st; k++) {
			const struct tess_piece *at = &p->piece[k];
			const char *s = p->text.data + at->start;

			if (at->id >= 0)
				st = tess_pieces_add(&next, s, at->len, at->id, at->first);
			else
				st = apply_pre_step(&pre->step[i], scan, s, at->len, at->first,
				                    &text, &next);
		}
		if (!st)
			st = tess_scan_count_bytes(scan, next.text.len);
		swap = next;
		next = *p;
		*p = swap;
	}
	tess_pieces_free(&next);
	tess_text_free(&text);
	return st;
}

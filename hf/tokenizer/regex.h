/*
 * tokenizer_regex.h - patterns of a tokenizer.json. They are written for Oniguruma and run on PCRE2:
 * what both understand alike is taken, classes whose members differ are spelled out, the rest is refused.
 */
#ifndef TESS_HF_TOKENIZER_REGEX_H
#define TESS_HF_TOKENIZER_REGEX_H

#include "text.h"

struct tess_regex; /* does not change: any thread may use it */
struct tess_scan; /* memory of matching, for one thread */

tess_status tess_regex_open(const char *pattern, size_t len, bool literal, struct tess_regex **out);
void tess_regex_close(struct tess_regex *r);

/* {"Regex": "..."} or {"String": "..."} at `key`. */
tess_status tess_regex_parse(const json_t *object, const char *key, struct tess_regex **out);

tess_status tess_scan_open(struct tess_scan **out);
void tess_scan_close(struct tess_scan *scan);

/* Matches of `regex` in a text, in order. Start with {regex, scan, text, len}. */
struct tess_match_iter {
	const struct tess_regex *regex;
	struct tess_scan *scan;
	const char *text;
	size_t len;
	size_t from, to; /* the match, where tess_match_iter_next says there is one */
	size_t at;
	bool any;
};

/*
 * The next match, which does not overlap the one before, nor is empty at its end. TESS_EINVAL where
 * the pattern takes more than its limit of steps, depth or memory.
 */
tess_status tess_match_iter_next(struct tess_match_iter *f, bool *found);

/* Appends the text with each match replaced by the very bytes of `content`. */
tess_status tess_regex_replace(const struct tess_regex *r, struct tess_scan *scan, const char *s,
                               size_t n, const char *content, size_t content_len,
                               struct tess_text *out);

#endif

/*
 * regex.h - patterns of a tokenizer.json, written for Oniguruma and run by PCRE2. Syntax that means
 * the same in both is passed on; classes with different members are spelled out; all other syntax
 * is an error.
 */
#ifndef TESS_HF_TOKENIZER_REGEX_H
#define TESS_HF_TOKENIZER_REGEX_H

#include "hf/tokenizer/text.h"

struct tess_regex; /* immutable: any thread may use it */
struct tess_scan; /* memory and limits of matching, for one thread */

tess_status tess_regex_open(const char *pattern, size_t len, bool literal, struct tess_regex **out);
void tess_regex_close(struct tess_regex *r);

/* Reads {"Regex": "..."} or {"String": "..."} at `key`. */
tess_status tess_regex_parse(const json_t *object, const char *key, struct tess_regex **out);

/*
 * Opens a scan. Its limits hold for all texts together: steps of matches, and bytes produced by the
 * steps of a tokenizer. They grow with the texts, which keeps a tokenizer linear in time.
 */
tess_status tess_scan_open(struct tess_scan **out);
void tess_scan_close(struct tess_scan *scan);
/* Raises the limits for a text of `n` bytes. */
void tess_scan_allow(struct tess_scan *scan, size_t n);
/* Counts bytes that a step has produced. TESS_EINVAL: above the limit. */
tess_status tess_scan_count_bytes(struct tess_scan *scan, size_t n);

/* Iterates over the matches of `regex` in a text. Start with {regex, scan, text, len}. */
struct tess_match_iter {
	const struct tess_regex *regex;
	struct tess_scan *scan;
	const char *text;
	size_t len;
	size_t from, to; /* the match that tess_match_iter_next found */
	size_t at;
	bool any;
};

/*
 * Finds the next match, which does not overlap the previous one, and is not empty at its end.
 * TESS_EINVAL: the pattern exceeds its limit of steps, depth or memory.
 */
tess_status tess_match_iter_next(struct tess_match_iter *f, bool *found);

/* Appends the text with each match replaced by the literal `content`. */
tess_status tess_regex_replace(const struct tess_regex *r, struct tess_scan *scan, const char *s,
                               size_t n, const char *content, size_t content_len,
                               struct tess_text *out);

#endif

#include "api/stop.h"

#include "core/base/status.h"
#include "hf/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

struct stop_text {
	const char *text;
	size_t len, matched; /* matched: bytes of it at the end of the text so far */
	size_t *border; /* [len]: the longest proper prefix of it that ends after byte i of it */
};

struct tess_stop_scan {
	struct stop_text *stop;
	int64_t n;
	struct tess_text text; /* what was not given yet, after `given` bytes that were */
	size_t given;
	bool found;
};

static tess_status open_stop_text(const char *text, struct stop_text *out)
{
	size_t len = strlen(text), k = 0;

	*out = (struct stop_text){ text, len, 0, calloc(len, sizeof *out->border) };
	if (!out->border)
		return tess_fail(TESS_ENOMEM, "out of memory for a stop text");
	for (size_t i = 1; i < len; i++) {
		while (k && text[k] != text[i])
			k = out->border[k - 1];
		k += text[k] == text[i];
		out->border[i] = k;
	}
	return TESS_OK;
}

tess_status tess_stop_scan_open(const char *texts, int64_t n, struct tess_stop_scan **out)
{
	struct tess_stop_scan *s = calloc(1, sizeof *s);
	tess_status st = TESS_OK;

	if (s)
		s->stop = calloc((size_t)n, sizeof *s->stop);
	if (!s || !s->stop) {
		free(s);
		return tess_fail(TESS_ENOMEM, "out of memory for stop texts");
	}
	for (; s->n < n && !st; texts += strlen(texts) + 1)
		st = open_stop_text(texts, &s->stop[s->n++]);
	if (st)
		tess_stop_scan_close(s);
	else
		*out = s;
	return st;
}

void tess_stop_scan_close(struct tess_stop_scan *s)
{
	if (!s)
		return;
	for (int64_t i = 0; i < s->n; i++)
		free(s->stop[i].border);
	free(s->stop);
	tess_text_free(&s->text);
	free(s);
}

/* Adds a byte to what matches of each stop text. Returns the length of a complete one, or 0. */
static size_t match_byte(struct tess_stop_scan *s, char byte)
{
	size_t complete = 0;

	for (int64_t i = 0; i < s->n; i++) {
		struct stop_text *t = &s->stop[i];

		while (t->matched && t->text[t->matched] != byte)
			t->matched = t->border[t->matched - 1];
		t->matched += t->text[t->matched] == byte;
		if (t->matched < t->len)
			continue;
		complete = t->len > complete ? t->len : complete;
		t->matched = t->border[t->len - 1];
	}
	return complete;
}

static void drop_given_text(struct tess_stop_scan *s)
{
	s->text.len -= s->given;
	if (s->text.len)
		memmove(s->text.data, s->text.data + s->given, s->text.len);
	s->given = 0;
}

tess_status tess_stop_scan_push(struct tess_stop_scan *s, const char *text, size_t len,
                                const char **out, size_t *n, bool *found)
{
	size_t before, held = 0, complete = 0, i = 0;
	tess_status st;

	drop_given_text(s);
	before = s->text.len;
	st = tess_text_add(&s->text, text, len);
	if (st)
		return st;
	while (i < len && !complete)
		complete = match_byte(s, text[i++]);
	for (int64_t k = 0; k < s->n; k++)
		held = s->stop[k].matched > held ? s->stop[k].matched : held;
	*found = s->found = complete != 0;
	s->given = before + i - (complete ? complete : held);
	*out = s->text.data;
	*n = s->given;
	return TESS_OK;
}

tess_status tess_stop_scan_finish(struct tess_stop_scan *s, const char *text, size_t len,
                                  const char **out, size_t *n, bool *found)
{
	bool before = s->found;
	tess_status st = before ? TESS_OK : tess_stop_scan_push(s, text, len, out, n, found);

	if (!st && before)
		*n = 0;
	else if (!st && !s->found)
		*n = s->given = s->text.len;
	*found = s->found;
	return st;
}

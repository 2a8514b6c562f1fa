#include "api/request_text.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

tess_status tess_request_text_open(const struct tess_tokenizer *t,
                                   const struct tess_shared_request *r, const int32_t *before,
                                   int64_t n, struct tess_request_text *out)
{
	struct tess_request_text made = { .request = r, .tokenizer = t };
	tess_status st = tess_decode_stream_open(t, true, &made.decoder);

	if (!st)
		st = tess_decode_stream_follow(made.decoder, before, n);
	if (!st && r->nstop_texts)
		st = tess_stop_scan_open(r->stop_texts, r->nstop_texts, &made.scan);
	if (st)
		tess_request_text_close(&made);
	else
		*out = made;
	return st;
}

void tess_request_text_close(struct tess_request_text *t)
{
	tess_decode_stream_close(t->decoder);
	tess_stop_scan_close(t->scan);
	*t = (struct tess_request_text){ 0 };
}

/* Returns whether the id is a special token, which has no text, and which a stop text spells. */
static bool is_stop_token(const struct tess_request_text *t, int32_t id)
{
	const char *token = tess_tokenizer_id_to_token(t->tokenizer, id);
	const char *text = t->request->stop_texts;
	bool found = false;

	if (!tess_tokenizer_is_special(t->tokenizer, id))
		return false;
	for (int64_t i = 0; i < t->request->nstop_texts && !found; i++, text += strlen(text) + 1)
		found = !strcmp(text, token);
	return found;
}

tess_status tess_request_text_push(struct tess_request_text *t, int32_t id, const char **bytes,
                                   size_t *n, bool *found)
{
	tess_status st = tess_decode_stream_push(t->decoder, id, bytes, n);

	*found = false;
	if (st || !t->scan)
		return st;
	st = tess_stop_scan_push(t->scan, *bytes, *n, bytes, n, found);
	if (!st && !*found)
		*found = is_stop_token(t, id);
	return st;
}

tess_status tess_request_text_finish(struct tess_request_text *t, const char **bytes, size_t *n,
                                     bool *found)
{
	tess_status st = tess_decode_stream_finish(t->decoder, bytes, n);

	*found = false;
	return st || !t->scan ? st : tess_stop_scan_finish(t->scan, *bytes, *n, bytes, n, found);
}

/* request_text.h - the text of a request: decodes its ids, up to a text that ends it. */
#ifndef TESS_API_REQUEST_TEXT_H
#define TESS_API_REQUEST_TEXT_H

#include "api/requests.h"
#include "api/stop.h"

struct tess_request_text { /* zeroed: closed */
	struct tess_decode_stream *decoder; /* NULL: not open */
	struct tess_stop_scan *scan; /* NULL: no stop texts */
	const struct tess_shared_request *request;
	const struct tess_tokenizer *tokenizer;
};

/* Opens the text of a request, after `n` ids of its sequence. Borrows all but `before`. */
tess_status tess_request_text_open(const struct tess_tokenizer *t,
                                   const struct tess_shared_request *r, const int32_t *before,
                                   int64_t n, struct tess_request_text *out);

/*
 * Decodes the next id: gives the *n bytes that it completes, borrowed until the next call. *found:
 * a stop text ends the text before it.
 */
tess_status tess_request_text_push(struct tess_request_text *t, int32_t id, const char **bytes,
                                   size_t *n, bool *found);

/* Ends the text: gives the last *n bytes. *found: a stop text ends the text, here or before. */
tess_status tess_request_text_finish(struct tess_request_text *t, const char **bytes, size_t *n,
                                     bool *found);

/* Closes a text. One that is closed is accepted. */
void tess_request_text_close(struct tess_request_text *t);

#endif

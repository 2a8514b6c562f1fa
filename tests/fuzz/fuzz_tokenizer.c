/*
 * fuzz_tokenizer.c - a tokenizer.json, a zero byte, a text. For any bytes encoding ends, ids are in
 * range, and decoding one by one gives the result of decoding at once. Without a zero the bytes are
 * both.
 */
#include "core/base/status.h"
#include "fuzz.h"
#include "hf/tokenizer/tokenizer.h"

#include <string.h>

static void check_decoding(const struct tess_tokenizer *t, const int32_t *ids, size_t n,
                           bool skip_special)
{
	struct tess_decode_stream *d;
	size_t len, got, at = 0;
	const char *part;
	char *whole;

	if (tess_tokenizer_decode(t, ids, n, skip_special, &whole, &len))
		return;
	MUST(!tess_decode_stream_open(t, skip_special, &d));
	for (size_t i = 0; i <= n; i++) {
		MUST(!(i < n ? tess_decode_stream_push(d, ids[i], &part, &got)
		             : tess_decode_stream_finish(d, &part, &got)));
		MUST(got <= len - at && (!got || memcmp(whole + at, part, got) == 0));
		at += got;
	}
	MUST(at == len);
	tess_decode_stream_close(d);
	free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	const uint8_t *end = memchr(bytes, 0, len);
	size_t json = end ? (size_t)(end - bytes) : len, skip = end ? json + 1 : 0, n;
	struct tess_tokenizer *t = NULL;
	int32_t *ids;

	if (tess_tokenizer_parse("file", (const char *)bytes, json, &t)) {
		MUST(!t && !strncmp(tess_error(), "file:", 5));
		return 0;
	}
	if (!tess_tokenizer_encode(t, (const char *)bytes + skip, len - skip, true, &ids, &n)) {
		for (size_t i = 0; i < n; i++)
			MUST(tess_tokenizer_id_to_token(t, ids[i]));
		check_decoding(t, ids, n, true);
		check_decoding(t, ids, n, false);
		free(ids);
	}
	tess_tokenizer_close(t);
	return 0;
}

/*
 * fuzz_safetensors.c - a complete file; or, if it begins with {, a header up to the first 0, and
 * data after it.
 */
#include "core/base/status.h"
#include "fuzz.h"
#include "hf/safetensors.h"

#include <string.h>

static void check_safetensors(const uint8_t *bytes, size_t len)
{
	struct tess_safetensors *f = NULL;
	uint64_t all = 0, sum = 0;

	if (tess_safetensors_parse("file", bytes, len, &f)) {
		MUST(!f && !strncmp(tess_error(), "file:", 5));
		return;
	}
	for (size_t i = 0; i < tess_safetensors_count(f); i++) {
		const struct tess_slice *s = tess_safetensors_at(f, i);

		MUST(tess_safetensors_find(f, s->name) == s);
		MUST(!i || strcmp(tess_safetensors_at(f, i - 1)->name, s->name) < 0);
		for (uint64_t at = 0; at < s->bytes; at++)
			sum += ((const uint8_t *)s->data)[at];
		all += s->bytes;
	}
	MUST(all < len && sum <= 255 * all);
	tess_safetensors_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	const size_t header = strnlen((const char *)bytes, len);
	const size_t data = len > header ? len - header - 1 : 0;
	uint8_t *file;

	if (!len || *bytes != '{') {
		check_safetensors(bytes, len);
		return 0;
	}
	file = malloc(8 + header + data);
	MUST(file);
	for (int i = 0; i < 8; i++)
		file[i] = (uint8_t)((uint64_t)header >> 8 * i);
	memcpy(file + 8, bytes, header);
	memcpy(file + 8 + header, bytes + len - data, data);
	check_safetensors(file, 8 + header + data);
	free(file);
	return 0;
}

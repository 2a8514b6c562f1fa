/* fuzz_index.c - an index: the result names only files in its directory, in order. */
#include "core/base/status.h"
#include "fuzz.h"
#include "hf/index.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct tess_index ix = { .n = 0 };

	if (tess_index_parse("file", (const char *)bytes, len, &ix)) {
		MUST(!ix.part && !ix.tensor && !strncmp(tess_error(), "file:", 5));
		return 0;
	}
	MUST(ix.n > 0 && ix.nparts > 0 && ix.nparts <= ix.n);
	for (size_t i = 0; i < ix.nparts; i++) {
		MUST(*ix.part[i] && !strchr(ix.part[i], '/') && strcmp(ix.part[i], "..") != 0);
		MUST(!i || strcmp(ix.part[i - 1], ix.part[i]) < 0);
	}
	for (size_t i = 0; i < ix.n; i++) {
		MUST(ix.tensor[i].part < ix.nparts);
		MUST(!i || strcmp(ix.tensor[i - 1].name, ix.tensor[i].name) < 0);
	}
	tess_index_free(&ix);
	return 0;
}

/*
 * fuzz_config.c - the input as config.json and as generation_config.json; the rotary table of a few
 * positions.
 */
#include "core/base/json.h"
#include "core/base/status.h"
#include "fuzz.h"
#include "hf/config.h"
#include "nn/program/rope.h"

#include <math.h>
#include <string.h>

static void check_rope_table(const json_t *root)
{
	enum { EACH = 8, POSITIONS = 3 };
	float table[POSITIONS * EACH];
	struct tess_rope r;

	if (tess_rope_read("dir", root, NULL, 0, &r)) {
		MUST(!strncmp(tess_error(), "dir/config.json", 15));
		return;
	}
	MUST(!tess_rope_fill_table(&r, EACH, POSITIONS, table));
	for (int i = 0; i < POSITIONS * EACH; i++)
		MUST(fabsf(table[i]) <= (float)r.scale);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct tess_config c = { .root = NULL };
	struct tess_generation_config g;
	json_t *root = NULL;

	if (tess_json_parse("file", (const char *)bytes, len, &root))
		return 0;
	check_rope_table(root);
	if (!tess_generation_make("file", root, "config", root, &g))
		MUST(g.neos >= 0 && g.neos <= TESS_EOS_MAX && g.top_p >= 0 && g.top_p <= 1 &&
		     g.top_k >= 0);
	if (tess_config_make("file", root, &c))
		MUST(!c.root && !strncmp(tess_error(), "file:", 5));
	else
		MUST(memchr(c.type, 0, sizeof c.type));
	tess_config_free(&c);
	return 0;
}

/* index.h - model.safetensors.index.json: which file of the directory holds which tensor. */
#ifndef TESS_HF_INDEX_H
#define TESS_HF_INDEX_H

#include "core/base/arena.h"

/* One entry of weight_map. */
struct tess_indexed {
	const char *name;
	size_t part; /* its file, in tess_index.part */
};

struct tess_index {
	struct tess_arena arena;
	size_t nparts, n;
	const char **part; /* plain file names, in order */
	struct tess_indexed *tensor; /* in order of names */
};

/* Parses an index; `path` is for messages. Free the contents of *out by tess_index_free. */
tess_status tess_index_parse(const char *path, const char *text, size_t len,
                             struct tess_index *out);
tess_status tess_index_load(const char *path, struct tess_index *out);
void tess_index_free(struct tess_index *ix);

#endif

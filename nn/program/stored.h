/* stored.h - the names of a parameter in files, where they are not its own. */
#ifndef TESS_NN_STORED_H
#define TESS_NN_STORED_H

#include "core/base/arena.h"
#include "nn/program/source.h"

#include <tessera/model.h>

enum { TESS_FILE_NAME = 512 }; /* bytes of a name, the last of them 0 */

struct tess_files { /* of one parameter */
	int32_t nparts; /* files of it, or of each expert: the fused parts of the out dim */
	bool by_expert; /* each expert, of axis 0, has its own */
	const char **pattern; /* [nparts]: names, in which # is the expert */
};

/*
 * Finds the first alternative of `stored` (NULL: none) whose first file is in the source; else the
 * name itself. Where no name of the source has the first component of a name (model.), it is left
 * out. The result is in the arena. Takes the time of a few look-ups for each alternative, however
 * many experts there are.
 */
tess_status tess_files_find(struct tess_arena *arena, const struct tess_stored *stored,
                            const struct tess_source *source, const char *name,
                            struct tess_files *out);

/* TESS_EABI: an entry has no files, or files whose `*` are not those of its name. */
tess_status tess_stored_check(const struct tess_model *model);

/* The name of a file, in `text` if it differs from expert to expert. */
const char *tess_files_format(const struct tess_files *f, int64_t expert, int32_t part,
                              char text[TESS_FILE_NAME]);

#endif

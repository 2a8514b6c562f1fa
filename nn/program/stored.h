/* stored.h - the names of a parameter in files, if they differ from its own. */
#ifndef TESS_NN_STORED_H
#define TESS_NN_STORED_H

#include "core/base/arena.h"
#include "nn/program/source.h"

#include <tessera/model.h>

enum { TESS_FILE_NAME = 512 }; /* bytes of a name, with the final 0 */

struct tess_files { /* the files of one parameter */
	int32_t nparts; /* files of it, or of each expert: the fused parts of the out dim */
	bool by_expert; /* each expert, of axis 0, has its own files */
	const char **pattern; /* [nparts]: names, with # for the expert */
};

/*
 * Finds the first alternative of `stored` (NULL: none) whose first file is in the source; else the
 * name itself. If no name of the source has the first component of a name (model.), it is dropped.
 * The result is in the arena. Takes a few look-ups per alternative, independent of the number of
 * experts.
 */
tess_status tess_files_find(struct tess_arena *arena, const struct tess_stored *stored,
                            const struct tess_source *source, const char *name,
                            struct tess_files *out);

/* Fails with TESS_EABI if an entry has no files, or files whose `*` differ from its name's. */
tess_status tess_stored_check(const struct tess_model *model);

/* Returns the name of a file, in `text` if experts have different names. */
const char *tess_files_format(const struct tess_files *f, int64_t expert, int32_t part,
                              char text[TESS_FILE_NAME]);

#endif

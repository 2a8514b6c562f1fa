/* convert.h - writes a checkpoint again: in another dtype, or in files of another size. */
#ifndef TESS_API_CONVERT_H
#define TESS_API_CONVERT_H

#include "hf/checkpoint.h"

#include <tessera/tessera.h>

struct tess_convert_options {
	int32_t dtype; /* floating-point tensors: TESS_F32, TESS_BF16, TESS_F16; 0: unchanged */
	uint64_t file_bytes; /* maximum bytes of tensors in one file, unless one tensor is larger */
	/*
	 * Each rank calls it in its thread after each piece, with the bytes that it has written and
	 * the bytes of all tensors. A failure stops all ranks. NULL: no callback.
	 */
	tess_status (*progress)(void *self, uint64_t bytes, uint64_t all);
	void *self;
};

/*
 * Checks that the directory `dir` can be converted into `out`, which must be absent or empty. Reads
 * the headers of weights and writes nothing.
 */
tess_status tess_convert_check(const char *dir, const char *out,
                               const struct tess_convert_options *options);

/*
 * Collective over the world. Each rank writes its own byte ranges of the files, a few MiB at a
 * time, into a directory next to `out`, which is renamed to `out` when all of it is on disk.
 * Floating-point values are rounded to nearest, ties to even; others are copied. Other files of
 * `dir` are copied, except weights in other formats and folders; config.json gets the new dtype.
 * After a failure nothing remains.
 */
tess_status tess_convert(struct tess_world *w, const char *dir, const char *out,
                         const struct tess_convert_options *options);

#endif

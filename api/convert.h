/* convert.h - writes a checkpoint again: in another dtype, or in files of another size. */
#ifndef TESS_API_CONVERT_H
#define TESS_API_CONVERT_H

#include "hf/checkpoint.h"

#include <tessera/tessera.h>

struct tess_convert_options {
	int32_t dtype; /* of floating-point tensors: TESS_F32, TESS_BF16, TESS_F16; 0: as it is */
	uint64_t file_bytes; /* of tensors in one file, at most, unless one is larger */
	/*
	 * Called by each rank, in its thread, after each piece: how many of all bytes of tensors it
	 * has written. A failure stops all ranks. NULL: none.
	 */
	tess_status (*progress)(void *self, uint64_t bytes, uint64_t all);
	void *self;
};

/*
 * Checks that the directory `dir` can be converted into `out`, which must be absent or empty. Opens
 * the headers of weights, and writes nothing.
 */
tess_status tess_convert_check(const char *dir, const char *out,
                               const struct tess_convert_options *options);

/*
 * Collective over the world: each rank writes its own byte ranges of the files, a few MiB at a
 * time, into a directory beside `out`, which gets that name when all of it is on disk. Values are
 * rounded to the nearest, ties to even; those of other types than floating-point are copied. What
 * else is in `dir`, weights of other formats and folders apart, is copied, with the dtype in
 * config.json changed. After a failure nothing is left.
 */
tess_status tess_convert(struct tess_world *w, const char *dir, const char *out,
                         const struct tess_convert_options *options);

#endif

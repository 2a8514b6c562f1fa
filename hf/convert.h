/* convert.h - writes a checkpoint again: in another dtype, in files of another size, in panels. */
#ifndef TESS_HF_CONVERT_H
#define TESS_HF_CONVERT_H

#include "hf/checkpoint.h"

#include <limits.h>
#include <tessera/tessera.h>

struct tess_convert_options {
	int32_t dtype; /* of floating-point tensors: TESS_F32, TESS_BF16, TESS_F16; 0: as it is */
	/*
	 * Stores matrices that linear layers read as the cpu device uses them, so that it maps
	 * them: [rows / 16][columns][16]. TESS_EINVAL: a checkpoint whose model is not known.
	 */
	bool panels;
	uint64_t file_bytes; /* of tensors in one file, at most, unless one is larger */
	/*
	 * Called by each rank, in its thread, after each piece: how many of all bytes of tensors it
	 * has written. A failure stops all ranks. NULL: none.
	 */
	tess_status (*progress)(void *self, uint64_t bytes, uint64_t all);
	void *self;
};

/*
 * Whether the directory `dir` can be converted into `out`, which must not exist or be empty: opens
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

/* ---- convert_dir.c: the directory that is written -------------------------------------------- */

/* Where `out` will be, into path. TESS_EINVAL: it cannot be written, or is inside `dir`. */
tess_status tess_convert_find_output(const char *dir, const char *out, char path[PATH_MAX]);
/* Makes an empty directory beside `path`, the value of find_output. */
tess_status tess_convert_make_part(const char *path, char part[PATH_MAX]);
/* Copies what is not weights; dtype 0: config.json stays as it is. */
tess_status tess_convert_copy_files(const char *dir, const char *part, int32_t dtype);
/* Creates a file of `bytes` that begins with a header; takes its room on the disk if it can. */
tess_status tess_convert_create_file(const char *path, const char *part, const char *name,
                                     const void *header, uint64_t len, uint64_t bytes);
tess_status tess_convert_write_file(const char *part, const char *name, const void *bytes,
                                    uint64_t len);
/* Names `part` `path`, durably. */
tess_status tess_convert_rename_part(const char *part, const char *path);
void tess_convert_remove_part(const char *part);

#endif

/* convert_dir.h - the directory of a checkpoint that is written, by a conversion or a save. */
#ifndef TESS_HF_CONVERT_DIR_H
#define TESS_HF_CONVERT_DIR_H

#include <limits.h>
#include <stdint.h>
#include <tessera/plugin.h>

/* In a save, beside the files of a checkpoint: what else a run needs to continue. */
#define TESS_SAVED_STATE "training.json"
#define TESS_SAVED_OPTIMIZER "optimizer.safetensors"

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

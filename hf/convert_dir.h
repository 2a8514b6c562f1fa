/* convert_dir.h - writes the directory of a checkpoint, for a conversion or a save. */
#ifndef TESS_HF_CONVERT_DIR_H
#define TESS_HF_CONVERT_DIR_H

#include <limits.h>
#include <stdint.h>
#include <tessera/plugin.h>

/* The file of a save, next to those of the checkpoint, from which training resumes. */
#define TESS_SAVED_STATE "training.json"
#define TESS_SAVED_OPTIMIZER "optimizer.safetensors"

/* Resolves `out` into path. TESS_EINVAL: it cannot be written, or is inside `dir`. */
tess_status tess_convert_find_output(const char *dir, const char *out, char path[PATH_MAX]);
/* Creates an empty directory next to `path`, a path from tess_convert_find_output. */
tess_status tess_convert_make_part(const char *path, char part[PATH_MAX]);
/*
 * Copies all files but weights. `dtype` becomes that of config.json, which then has no
 * quantization_config; 0: unchanged.
 */
tess_status tess_convert_copy_files(const char *dir, const char *part, int32_t dtype);
/* Creates a file of `bytes` that begins with a header; reserves disk space where possible. */
tess_status tess_convert_create_file(const char *path, const char *part, const char *name,
                                     const void *header, uint64_t len, uint64_t bytes);
tess_status tess_convert_write_file(const char *part, const char *name, const void *bytes,
                                    uint64_t len);
/* Renames `part` to `path`, durably. */
tess_status tess_convert_rename_part(const char *part, const char *path);
void tess_convert_remove_part(const char *part);

#endif

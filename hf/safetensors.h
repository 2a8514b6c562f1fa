/*
 * safetensors.h - one file of named tensors: 8 bytes of length, a JSON header, the data. Reading
 * enforces every rule of the format; a refusal names the file, the tensor or the offset, and the
 * rule.
 */
#ifndef TESS_HF_SAFETENSORS_H
#define TESS_HF_SAFETENSORS_H

#include <stddef.h>
#include <tessera/plugin.h>

struct tess_safetensors;

/* A value: one tensor as stored, rows, contiguous. */
struct tess_slice {
	const char *name;
	const char *type; /* as the file spells it: "BF16" */
	int32_t dtype; /* TESS_BF16, ...; 0: of the format, but nothing here computes with it */
	int32_t ndim; /* may be above TESS_DIMS */
	const int64_t *shape;
	const void *data; /* as it lies: of any alignment; NULL where only the header was read */
	uint64_t bytes, begin; /* begin: of the data, from the first tensor's */
};

/* TESSERA_LOAD, for `tessera info --options`; opening a file declares it too. */
extern const struct tess_option tess_load_options[];

/*
 * Maps the file, or reads it where TESSERA_LOAD=copy: a mapped file that is cut short while it is
 * used kills the process, so files that others may still write should be copied. Then read-only,
 * and safe from any thread.
 */
tess_status tess_safetensors_open(const char *path, struct tess_safetensors **out);

/* Reads the header alone: what tensors there are. */
tess_status tess_safetensors_open_header(const char *path, struct tess_safetensors **out);

/* As tess_safetensors_open, of bytes that stay the caller's, valid until the close; `path` is for messages. */
tess_status tess_safetensors_parse(const char *path, const void *bytes, uint64_t len,
                                   struct tess_safetensors **out);

const char *tess_safetensors_path(const struct tess_safetensors *f);
size_t tess_safetensors_count(const struct tess_safetensors *f);
/* The i-th tensor in order of names; i < count. Borrowed. */
const struct tess_slice *tess_safetensors_at(const struct tess_safetensors *f, size_t i);
/* NULL: not in this file. Borrowed. */
const struct tess_slice *tess_safetensors_find(const struct tess_safetensors *f, const char *name);

/* Bytes of the file that were read into memory of this process. */
uint64_t tess_safetensors_get_memory(const struct tess_safetensors *f);

/* Lets go of the pages of these bytes, if the file is mapped; reading brings them back. */
void tess_safetensors_drop(const struct tess_safetensors *f, const void *data, uint64_t bytes);

void tess_safetensors_close(struct tess_safetensors *f);

/*
 * Writes beside `path`, fsyncs and renames: nobody sees half a file. Of each slice name, dtype,
 * ndim, shape and data are read; larger elements come first, which keeps all data aligned.
 */
tess_status tess_safetensors_write(const char *path, int32_t n, const struct tess_slice *slices);
/* Whether a file can be made there, before the work that fills it; `path` itself is left as it is. */
tess_status tess_safetensors_check_writable(const char *path);

#endif

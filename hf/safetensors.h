/*
 * safetensors.h - one file of named tensors: 8 bytes of length, a JSON header, the data. Reading
 * enforces every rule of the format; an error names the file, the tensor or the offset, and the
 * rule.
 */
#ifndef TESS_HF_SAFETENSORS_H
#define TESS_HF_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <tessera/plugin.h>

struct tess_safetensors;

struct tess_slice { /* one tensor as stored: contiguous rows */
	const char *name;
	const char *type; /* as in the file: "BF16" */
	int32_t dtype; /* TESS_BF16, ...; 0: not supported in computations */
	int32_t ndim; /* may be above TESS_DIMS */
	const int64_t *shape;
	const void *data; /* of any alignment; NULL if they are not in memory */
	uint64_t bytes, begin; /* begin: offset of the data after the header */
};

/* TESSERA_LOAD, for `tessera info --options`; opening a file declares it as well. */
extern const struct tess_option tess_load_options[];

/*
 * Maps the file, or with TESSERA_LOAD=copy reads its header, and its data when they are wanted
 * (tess_safetensors_read). Truncating a mapped file kills the process that reads it; reading fails.
 * `header`: reads only the header, and keeps nothing open. An open file is read-only and may be
 * used from any thread.
 */
tess_status tess_safetensors_open(const char *path, bool header, struct tess_safetensors **out);

/* The same for `bytes`, which are borrowed until the close; `path` is for messages. */
tess_status tess_safetensors_parse(const char *path, const void *bytes, uint64_t len,
                                   struct tess_safetensors **out);

const char *tess_safetensors_path(const struct tess_safetensors *f);
/* Returns the offset in the file from which tess_slice.begin counts. */
uint64_t tess_safetensors_data_start(const struct tess_safetensors *f);
size_t tess_safetensors_count(const struct tess_safetensors *f);
/* The i-th tensor by name; i < count. Borrowed. */
const struct tess_slice *tess_safetensors_at(const struct tess_safetensors *f, size_t i);
/* NULL: not in this file. Borrowed. */
const struct tess_slice *tess_safetensors_find(const struct tess_safetensors *f, const char *name);

/* Removes the first `n` bytes, which must be the same in all names, from each; order is kept. */
void tess_safetensors_strip_names(struct tess_safetensors *f, size_t n);

/* Copies bytes [at, at + bytes) of a tensor. TESS_EIO: the file has become shorter. */
tess_status tess_safetensors_read(const struct tess_safetensors *f, const struct tess_slice *s,
                                  uint64_t at, uint64_t bytes, void *out);

/* Drops the pages of these bytes if the file is mapped; they are read again on demand. */
void tess_safetensors_drop(const struct tess_safetensors *f, const void *data, uint64_t bytes);

void tess_safetensors_close(struct tess_safetensors *f);

/*
 * Writes a temporary file beside `path`, or beside the target of that link, fsyncs and renames it:
 * no reader sees a partial file. Uses name, dtype, ndim, shape and data of each slice; larger
 * elements come first, so that all data are aligned.
 */
tess_status tess_safetensors_write(const char *path, int32_t n, const struct tess_slice *slices);
/*
 * The same in pieces, of which `put` writes one of tensor i, any number of times, in any order;
 * slices: name, dtype, ndim, shape. Close *out, which removes a file that is not finished.
 */
struct tess_safetensors_writer;
tess_status tess_safetensors_writer_open(const char *path, int32_t n,
                                         const struct tess_slice *slices,
                                         struct tess_safetensors_writer **out);
tess_status tess_safetensors_writer_put(struct tess_safetensors_writer *w, int32_t i, uint64_t at,
                                        uint64_t bytes, const void *data);
tess_status tess_safetensors_writer_finish(struct tess_safetensors_writer *w);
void tess_safetensors_writer_close(struct tess_safetensors_writer *w); /* NULL: nothing */
/*
 * Places the tensors of a file: reads name, shape and dtype (0: `type`), and sets type, bytes and
 * begin. *header, the first *len bytes of the file, is yours: free.
 */
tess_status tess_safetensors_layout(const char *path, int32_t n, struct tess_slice *slices,
                                    char **header, uint64_t *len);
/* Writes at byte `at` of a file; false, with errno: it failed. */
bool tess_file_write(int fd, const void *bytes, uint64_t len, uint64_t at);
/* Makes the names in the directory of `path` durable. */
void tess_directory_sync(const char *path);
/* Fails if no file can be written at `path`, which is left as it is. */
tess_status tess_safetensors_check_writable(const char *path);

#endif

/*
 * safetensors.h - a file of named tensors: 8 bytes of length, a JSON header, the data. Reading
 * enforces every rule of the format; an error names the file, the tensor or offset, and the rule.
 */
#ifndef TESS_HF_SAFETENSORS_H
#define TESS_HF_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <tessera/plugin.h>

struct tess_safetensors;

struct tess_slice { /* one tensor as stored: contiguous rows */
	const char *name;
	const char *type; /* name of the type: "BF16" */
	int32_t dtype; /* TESS_BF16, ...; 0: not supported in computations */
	int32_t ndim; /* may be above TESS_DIMS */
	const int64_t *shape;
	const void *data; /* unaligned; NULL if not in memory */
	uint64_t bytes, begin; /* begin: offset of the data after the header */
};

/* The option TESSERA_LOAD, for `tessera info --options`; opening a file declares it as well. */
extern const struct tess_option tess_load_options[];

/*
 * Maps the file. With TESSERA_LOAD=copy reads the header, and the data in tess_safetensors_read.
 * Truncating a mapped file kills the process that accesses it; a read fails instead. `header`:
 * reads the header only and keeps nothing open. An open file is read-only and may be used from any
 * thread.
 */
tess_status tess_safetensors_open(const char *path, bool header, struct tess_safetensors **out);

/* Opens a file in memory: `bytes`, borrowed until the close; `path` is for messages. */
tess_status tess_safetensors_parse(const char *path, const void *bytes, uint64_t len,
                                   struct tess_safetensors **out);

const char *tess_safetensors_path(const struct tess_safetensors *f);
/* Returns the status of the file when it was opened, borrowed; of a file in memory, zeros. */
const struct stat *tess_safetensors_stat(const struct tess_safetensors *f);
/* Returns the offset in the file from which tess_slice.begin counts. */
uint64_t tess_safetensors_data_start(const struct tess_safetensors *f);
size_t tess_safetensors_count(const struct tess_safetensors *f);
/* Returns the i-th tensor by name, borrowed; i < count. */
const struct tess_slice *tess_safetensors_at(const struct tess_safetensors *f, size_t i);
/* Returns the tensor of this name, borrowed; NULL: not in this file. */
const struct tess_slice *tess_safetensors_find(const struct tess_safetensors *f, const char *name);

/* Returns the text of a key of __metadata__, borrowed; NULL: it does not exist. */
const char *tess_safetensors_get_metadata(const struct tess_safetensors *f, const char *key);

/* Removes the first `n` bytes from each name; they must be equal in all names. Keeps the order. */
void tess_safetensors_strip_names(struct tess_safetensors *f, size_t n);

/*
 * Opens a mapped file again, from which tess_safetensors_read then reads, so that a truncated file
 * is an error. Call it before other threads use the file. Does nothing if it is open. TESS_EIO:
 * another file has its path now.
 */
tess_status tess_safetensors_reopen(struct tess_safetensors *f);
/*
 * TESS_EIO: an open file has other bytes, or another time of its last change, than when it was
 * opened first. A file that is not open is not checked.
 */
tess_status tess_safetensors_check(const struct tess_safetensors *f);
/* Advises how bytes of a tensor of an open file will be used: TESS_ADVISE_... of source.h. */
void tess_safetensors_advise(const struct tess_safetensors *f, const struct tess_slice *s,
                             uint64_t at, uint64_t bytes, int32_t how);

/* Copies bytes [at, at + bytes) of a tensor. TESS_EIO: the file has become shorter. */
tess_status tess_safetensors_read(const struct tess_safetensors *f, const struct tess_slice *s,
                                  uint64_t at, uint64_t bytes, void *out);

/* Drops the pages of these bytes if the file is mapped; they are read again on demand. */
void tess_safetensors_drop(const struct tess_safetensors *f, const void *data, uint64_t bytes);

void tess_safetensors_close(struct tess_safetensors *f);

/*
 * Writes a temporary file next to `path`, or next to the target if that is a link, fsyncs and
 * renames it: no reader sees a partial file. Uses name, dtype, ndim, shape and data of each slice.
 * Larger elements come first, so that all data are aligned.
 */
tess_status tess_safetensors_write(const char *path, int32_t n, const struct tess_slice *slices);
/* Writes a file with __metadata__: keys and their texts by turns, which end with NULL. */
tess_status tess_safetensors_write_with(const char *path, int32_t n,
                                        const struct tess_slice *slices,
                                        const char *const *metadata);
/*
 * Writes such a file in pieces: `put` writes one piece of tensor i, any number of times, in any
 * order. Uses name, dtype, ndim and shape of the slices. Closing removes an unfinished file.
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
 * Places the tensors of a file: reads name, shape and dtype (0: `type`) of each slice, and sets
 * type, bytes and begin. Free *header, the first *len bytes of the file.
 */
tess_status tess_safetensors_layout(const char *path, int32_t n, struct tess_slice *slices,
                                    char **header, uint64_t *len);
/* Writes at byte `at` of a file. Returns false on failure, with errno. */
bool tess_file_write(int fd, const void *bytes, uint64_t len, uint64_t at);
/* Makes the names in the directory of `path` durable. */
void tess_directory_sync(const char *path);
/* Fails if no file can be written at `path`; changes nothing. */
tess_status tess_safetensors_check_writable(const char *path);

#endif

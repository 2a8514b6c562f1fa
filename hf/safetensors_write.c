#include "core/base/json.h"
#include "core/base/status.h"
#include "hf/file_dtype.h"
#include "hf/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, FILE_NAME_TRIES = 1000 };

/* Sets type, bytes and begin: larger elements first, then in the given order. */
static tess_status place_tensors(const char *path, int32_t n, struct tess_slice *slices)
{
	static const int32_t widths[] = { 64, 32, 16, 8, 6, 4 };
	uint64_t at = 0;

	for (int32_t i = 0; i < n; i++) {
		struct tess_slice *s = &slices[i];
		const struct tess_file_dtype *type = s->dtype || !s->type
		                                             ? tess_file_dtype_of(s->dtype)
		                                             : tess_file_dtype_by_name(s->type);

		if (!type)
			return tess_fail(TESS_EINVAL, "%s: tensor %s: dtype %d cannot be written",
			                 path, s->name, s->dtype);
		s->type = type->name;
		s->bytes = (uint64_t)type->bits;
		for (int32_t d = 0; d < s->ndim; d++)
			if (s->shape[d] < 0 ||
			    __builtin_mul_overflow(s->bytes, (uint64_t)s->shape[d], &s->bytes))
				return tess_fail(TESS_EINVAL,
				                 "%s: tensor %s: shape: its bytes overflow 64 bits",
				                 path, s->name);
		s->bytes /= 8;
	}
	for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
		for (int32_t i = 0; i < n; i++)
			if (tess_file_dtype_by_name(slices[i].type)->bits == widths[w]) {
				slices[i].begin = at;
				at += slices[i].bytes;
			}
	return TESS_OK;
}

/* Packs length and header, padded to 8 bytes. NULL: no memory, or a name is not UTF-8. */
static char *pack_header(const json_t *root, uint64_t *len)
{
	char *text = json_dumps(root, JSON_COMPACT), *packed = NULL;
	uint64_t size = text ? (strlen(text) + 7) / 8 * 8 : 0;

	if (text)
		packed = malloc(LENGTH_BYTES + size);
	if (packed) {
		for (int i = 0; i < LENGTH_BYTES; i++)
			packed[i] = (char)(unsigned char)(size >> 8 * i);
		memset(packed + LENGTH_BYTES, ' ', size);
		memcpy(packed + LENGTH_BYTES, text, strlen(text));
		*len = LENGTH_BYTES + size;
	}
	free(text);
	return packed;
}

/* Packs "__metadata__" of the header. */
static json_t *pack_metadata(const char *const *metadata)
{
	json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	json_t *keys = json_object_get(root, "__metadata__");

	for (; metadata && metadata[0] && root; metadata += 2)
		if (json_object_set_new(keys, metadata[0], json_string(metadata[1]))) {
			json_decref(root);
			root = NULL;
		}
	return root;
}

static tess_status lay_out_tensors(const char *path, int32_t n, struct tess_slice *slices,
                                   const char *const *metadata, char **header, uint64_t *len)
{
	json_t *root = pack_metadata(metadata);
	tess_status st = place_tensors(path, n, slices);
	bool good = true;

	for (int32_t i = 0; good && !st && i < n; i++) {
		json_t *shape = json_array();

		for (int32_t d = 0; d < slices[i].ndim; d++)
			tess_json_append(&shape, json_integer(slices[i].shape[d]));
		good = !json_object_get(root, slices[i].name) &&
		       !json_object_set_new(
			       root, slices[i].name,
			       json_pack("{s:s, s:O, s:[I, I]}", "dtype", slices[i].type, "shape",
		                         shape, "data_offsets", (json_int_t)slices[i].begin,
		                         (json_int_t)(slices[i].begin + slices[i].bytes)));
		json_decref(shape);
	}
	*header = good && !st ? pack_header(root, len) : NULL;
	json_decref(root);
	if (!st && !*header)
		st = tess_fail(
			TESS_EINVAL,
			"%s: a tensor's name is a duplicate or not UTF-8, or memory is exhausted",
			path);
	return st;
}

tess_status tess_safetensors_layout(const char *path, int32_t n, struct tess_slice *slices,
                                    char **header, uint64_t *len)
{
	return lay_out_tensors(path, n, slices, NULL, header, len);
}

bool tess_file_write(int fd, const void *bytes, uint64_t len, uint64_t at)
{
	const char *from = bytes;

	while (len) {
		ssize_t done = pwrite(fd, from, len, (off_t)at);

		if (done < 0 && errno != EINTR)
			return false;
		done = done > 0 ? done : 0;
		from += done;
		at += (uint64_t)done;
		len -= (uint64_t)done;
	}
	return true;
}

void tess_directory_sync(const char *path)
{
	const char *slash = strrchr(path, '/');
	char folder[4096] = ".";
	int fd;

	if (slash)
		snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0) {
		fsync(fd);
		close(fd);
	}
}

/* Resolves `path` behind links, which are kept. Free *target. */
static tess_status resolve_target(const char *path, char **target)
{
	struct stat about;

	if (!stat(path, &about) && !S_ISREG(about.st_mode))
		return tess_fail(TESS_EINVAL, "%s: not a regular file; it would be replaced", path);
	if (lstat(path, &about) || !S_ISLNK(about.st_mode)) {
		*target = strdup(path);
		return *target ? TESS_OK : tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	}
	*target = realpath(path, NULL);
	return *target ? TESS_OK
	               : tess_fail(TESS_EIO,
	                           "%s: a link whose target cannot be resolved: %s; remove the "
	                           "link, or name a file",
	                           path, strerror(errno));
}

/* Creates a file next to `path`, to be renamed when complete. Free *beside, its name. */
static tess_status open_part_file(const char *path, char **beside, int *fd)
{
	*beside = NULL;
	*fd = -1;
	errno = EEXIST;
	/* a killed process with this id may have left its file */
	for (int i = 0; *fd < 0 && errno == EEXIST && i < FILE_NAME_TRIES; i++) {
		free(*beside);
		if (asprintf(beside, "%s.%ld-%d.part", path, (long)getpid(), i) < 0) {
			*beside = NULL;
			return tess_fail(TESS_ENOMEM, "%s: out of memory", path);
		}
		*fd = open(*beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	}
	return *fd >= 0 ? TESS_OK
	                : tess_fail(TESS_EIO, "%s: cannot be written: %s", path, strerror(errno));
}

tess_status tess_safetensors_check_writable(const char *path)
{
	char *target, *beside = NULL;
	sigset_t all, before;
	int fd;
	tess_status st = resolve_target(path, &target);

	if (st)
		return st;
	/* a signal would leave the file */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	st = open_part_file(target, &beside, &fd);
	if (!st) {
		close(fd);
		unlink(beside);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	free(beside);
	free(target);
	return st;
}

/* ---- a file, in pieces ----------------------------------------------------------------------- */

struct tess_safetensors_writer {
	char *path, *part_path; /* part_path NULL: the file has its name, or is not there */
	struct tess_slice *slice;
	int fd;
	uint64_t header;
};

static tess_status fail_write(const struct tess_safetensors_writer *w)
{
	return tess_fail(TESS_EIO, "%s: cannot be written: %s", w->path, strerror(errno));
}

static tess_status open_writer(const char *path, int32_t n, const struct tess_slice *slices,
                               const char *const *metadata, struct tess_safetensors_writer **out)
{
	struct tess_safetensors_writer *w = calloc(1, sizeof *w);
	char *header = NULL;
	tess_status st = TESS_OK;

	if (w) {
		w->fd = -1;
		w->slice = calloc((size_t)n + 1, sizeof *w->slice);
	}
	if (!w || !w->slice)
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	for (int32_t i = 0; i < n && !st; i++) {
		w->slice[i] = slices[i];
		w->slice[i].type = NULL;
	}
	if (!st)
		st = lay_out_tensors(path, n, w->slice, metadata, &header, &w->header);
	if (!st)
		st = resolve_target(path, &w->path);
	if (!st)
		st = open_part_file(w->path, &w->part_path, &w->fd);
	if (!st && !tess_file_write(w->fd, header, w->header, 0))
		st = fail_write(w);
	free(header);
	if (st)
		tess_safetensors_writer_close(w);
	else
		*out = w;
	return st;
}

tess_status tess_safetensors_writer_open(const char *path, int32_t n,
                                         const struct tess_slice *slices,
                                         struct tess_safetensors_writer **out)
{
	return open_writer(path, n, slices, NULL, out);
}

tess_status tess_safetensors_writer_put(struct tess_safetensors_writer *w, int32_t i, uint64_t at,
                                        uint64_t bytes, const void *data)
{
	return tess_file_write(w->fd, data, bytes, w->header + w->slice[i].begin + at)
	               ? TESS_OK
	               : fail_write(w);
}

tess_status tess_safetensors_writer_finish(struct tess_safetensors_writer *w)
{
	if (fsync(w->fd) || rename(w->part_path, w->path))
		return fail_write(w);
	free(w->part_path);
	w->part_path = NULL;
	tess_directory_sync(w->path);
	return TESS_OK;
}

void tess_safetensors_writer_close(struct tess_safetensors_writer *w)
{
	if (!w)
		return;
	if (w->fd >= 0)
		close(w->fd);
	if (w->part_path && w->fd >= 0)
		unlink(w->part_path);
	free(w->part_path);
	free(w->path);
	free(w->slice);
	free(w);
}

tess_status tess_safetensors_write(const char *path, int32_t n, const struct tess_slice *slices)
{
	return tess_safetensors_write_with(path, n, slices, NULL);
}

tess_status tess_safetensors_write_with(const char *path, int32_t n,
                                        const struct tess_slice *slices,
                                        const char *const *metadata)
{
	struct tess_safetensors_writer *w;
	tess_status st = open_writer(path, n, slices, metadata, &w);

	if (st)
		return st;
	for (int32_t i = 0; i < n && !st; i++)
		st = tess_safetensors_writer_put(w, i, 0, w->slice[i].bytes, slices[i].data);
	if (!st)
		st = tess_safetensors_writer_finish(w);
	tess_safetensors_writer_close(w);
	return st;
}

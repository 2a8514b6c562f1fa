#include "safetensors.h"

#include "core/base/status.h"
#include "hf/file_dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 8, TRIES = 1000 };

struct laid {
	const struct tess_slice *slice;
	const struct tess_file_dtype *type;
	uint64_t bytes;
};

/* What lies where: larger elements first, otherwise as given (insertion sort: there are few). */
static tess_status lay_out(const char *path, int32_t n, const struct tess_slice *slices,
                           struct laid *out)
{
	for (int32_t i = 0; i < n; i++) {
		struct laid one = { &slices[i], tess_file_dtype_of(slices[i].dtype), 0 };
		uint64_t bytes;
		int32_t at = i;

		if (!one.type)
			return tess_fail(TESS_EINVAL, "%s: tensor %s: dtype %d cannot be written",
			                 path, slices[i].name, slices[i].dtype);
		bytes = (uint64_t)one.type->bits / 8;
		for (int32_t d = 0; d < slices[i].ndim; d++)
			if (slices[i].shape[d] < 0 ||
			    __builtin_mul_overflow(bytes, (uint64_t)slices[i].shape[d], &bytes))
				return tess_fail(TESS_EINVAL,
				                 "%s: tensor %s: shape: its bytes overflow 64 bits",
				                 path, slices[i].name);
		one.bytes = bytes;
		for (; at > 0 && out[at - 1].type->bits < one.type->bits; at--)
			out[at] = out[at - 1];
		out[at] = one;
	}
	return TESS_OK;
}

/*
 * The header as text, padded so that the data begin at a multiple of 8. Yours to free; NULL: a name
 * that is not UTF-8 or there twice, or no memory.
 */
static char *header_text(int32_t n, const struct laid *laid, uint64_t *len)
{
	json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	char *text = NULL, *padded = NULL;
	uint64_t at = 0;
	bool good = true;

	for (int32_t i = 0; good && i < n; i++) {
		json_t *shape = json_array();

		for (int32_t d = 0; d < laid[i].slice->ndim; d++)
			json_array_append_new(shape, json_integer(laid[i].slice->shape[d]));
		good = !json_object_get(root, laid[i].slice->name) &&
		       !json_object_set_new(root, laid[i].slice->name,
		                            json_pack("{s:s, s:O, s:[I, I]}", "dtype",
		                                      laid[i].type->name, "shape", shape,
		                                      "data_offsets", (json_int_t)at,
		                                      (json_int_t)(at + laid[i].bytes)));
		json_decref(shape);
		at += laid[i].bytes;
	}
	text = good ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	if (text) {
		*len = (strlen(text) + 7) / 8 * 8;
		padded = malloc(*len + 1);
	}
	if (padded) {
		memset(padded, ' ', *len);
		memcpy(padded, text, strlen(text));
	}
	free(text);
	return padded;
}

static bool put(int fd, const void *bytes, uint64_t len)
{
	const char *at = bytes;

	while (len) {
		ssize_t done = write(fd, at, len);

		if (done < 0 && errno != EINTR)
			return false;
		at += done > 0 ? done : 0;
		len -= done > 0 ? (uint64_t)done : 0;
	}
	return true;
}

static bool put_file(int fd, const char *header, uint64_t len, int32_t n, const struct laid *laid)
{
	unsigned char length[LENGTH];
	bool good;

	for (int i = 0; i < LENGTH; i++)
		length[i] = (unsigned char)(len >> 8 * i);
	good = put(fd, length, LENGTH) && put(fd, header, len);
	for (int32_t i = 0; good && i < n; i++)
		good = put(fd, laid[i].slice->data, laid[i].bytes);
	return good && !fsync(fd);
}

/* So that the new name itself is on the disk. */
static void sync_folder(const char *path)
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

/* *fd: a new file beside `path`, which takes its place when it is whole; *beside, its name, is yours: free. */
static tess_status open_beside(const char *path, char **beside, int *fd)
{
	struct stat about;

	*beside = NULL;
	if (!stat(path, &about) && !S_ISREG(about.st_mode))
		return tess_fail(TESS_EINVAL, "%s: not a regular file; it would be replaced", path);
	*fd = -1;
	errno = EEXIST;
	/* what a killed run of this number has left keeps its name */
	for (int i = 0; *fd < 0 && errno == EEXIST && i < TRIES; i++) {
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

tess_status tess_safetensors_try(const char *path)
{
	char *beside;
	int fd;
	tess_status st = open_beside(path, &beside, &fd);

	if (!st) {
		close(fd);
		unlink(beside);
	}
	free(beside);
	return st;
}

tess_status tess_safetensors_write(const char *path, int32_t n, const struct tess_slice *slices)
{
	struct laid *laid = calloc((size_t)n + 1, sizeof *laid);
	char *header = NULL, *beside = NULL;
	tess_status st = TESS_OK;
	uint64_t len = 0;
	int fd = -1;

	if (!laid) {
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", path);
		goto out;
	}
	st = lay_out(path, n, slices, laid);
	if (st)
		goto out;
	header = header_text(n, laid, &len);
	if (!header) {
		st = tess_fail(TESS_EINVAL,
		               "%s: a tensor's name is not UTF-8, is there twice, or memory is out",
		               path);
		goto out;
	}
	st = open_beside(path, &beside, &fd);
	if (st)
		goto out;
	if (!put_file(fd, header, len, n, laid) || rename(beside, path)) {
		st = tess_fail(TESS_EIO, "%s: cannot be written: %s", path, strerror(errno));
		unlink(beside);
		goto out;
	}
	sync_folder(path);
out:
	if (fd >= 0)
		close(fd);
	free(header);
	free(beside);
	free(laid);
	return st;
}

#include "core/base/status.h"
#include "hf/file_dtype.h"
#include "hf/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 8, NAME_TRIES = 1000 };

struct placed_tensor {
	const struct tess_slice *slice;
	const struct tess_file_dtype *type;
	uint64_t bytes;
};

/* Assigns offsets: larger elements first, then in the given order (insertion sort: few tensors). */
static tess_status order_tensors(const char *path, int32_t n, const struct tess_slice *slices,
                                 struct placed_tensor *out)
{
	for (int32_t i = 0; i < n; i++) {
		struct placed_tensor one = { &slices[i], tess_file_dtype_of(slices[i].dtype), 0 };
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
 * The header as text, padded so that the data begin at a multiple of 8. Yours to free. NULL: a name
 * is a duplicate or not UTF-8, or memory is exhausted.
 */
static char *format_header(int32_t n, const struct placed_tensor *tensors, uint64_t *len)
{
	json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
	char *text = NULL, *padded = NULL;
	uint64_t at = 0;
	bool good = true;

	for (int32_t i = 0; good && i < n; i++) {
		json_t *shape = json_array();

		for (int32_t d = 0; d < tensors[i].slice->ndim; d++)
			json_array_append_new(shape, json_integer(tensors[i].slice->shape[d]));
		good = !json_object_get(root, tensors[i].slice->name) &&
		       !json_object_set_new(root, tensors[i].slice->name,
		                            json_pack("{s:s, s:O, s:[I, I]}", "dtype",
		                                      tensors[i].type->name, "shape", shape,
		                                      "data_offsets", (json_int_t)at,
		                                      (json_int_t)(at + tensors[i].bytes)));
		json_decref(shape);
		at += tensors[i].bytes;
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

static bool write_bytes(int fd, const void *bytes, uint64_t len)
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

static bool write_tensors(int fd, const char *header, uint64_t len, int32_t n,
                          const struct placed_tensor *tensors)
{
	unsigned char length[LENGTH];
	bool good;

	for (int i = 0; i < LENGTH; i++)
		length[i] = (unsigned char)(len >> 8 * i);
	good = write_bytes(fd, length, LENGTH) && write_bytes(fd, header, len);
	for (int32_t i = 0; good && i < n; i++)
		good = write_bytes(fd, tensors[i].slice->data, tensors[i].bytes);
	return good && !fsync(fd);
}

/* Makes the rename durable. */
static void sync_directory(const char *path)
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

/* Creates a file beside `path`, to be renamed when complete. *beside, its name, is yours: free. */
static tess_status open_part_file(const char *path, char **beside, int *fd)
{
	struct stat about;

	*beside = NULL;
	if (!stat(path, &about) && !S_ISREG(about.st_mode))
		return tess_fail(TESS_EINVAL, "%s: not a regular file; it would be replaced", path);
	*fd = -1;
	errno = EEXIST;
	/* a killed process with this id may have left its file */
	for (int i = 0; *fd < 0 && errno == EEXIST && i < NAME_TRIES; i++) {
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
	char *beside;
	int fd;
	tess_status st = open_part_file(path, &beside, &fd);

	if (!st) {
		close(fd);
		unlink(beside);
	}
	free(beside);
	return st;
}

tess_status tess_safetensors_write(const char *path, int32_t n, const struct tess_slice *slices)
{
	struct placed_tensor *tensors = calloc((size_t)n + 1, sizeof *tensors);
	char *header = NULL, *part_path = NULL;
	tess_status st = TESS_OK;
	uint64_t len = 0;
	int fd = -1;

	if (!tensors) {
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", path);
		goto out;
	}
	st = order_tensors(path, n, slices, tensors);
	if (st)
		goto out;
	header = format_header(n, tensors, &len);
	if (!header) {
		st = tess_fail(
			TESS_EINVAL,
			"%s: a tensor's name is a duplicate or not UTF-8, or memory is exhausted",
			path);
		goto out;
	}
	st = open_part_file(path, &part_path, &fd);
	if (st)
		goto out;
	if (!write_tensors(fd, header, len, n, tensors) || rename(part_path, path)) {
		st = tess_fail(TESS_EIO, "%s: cannot be written: %s", path, strerror(errno));
		unlink(part_path);
		goto out;
	}
	sync_directory(path);
out:
	if (fd >= 0)
		close(fd);
	free(header);
	free(part_path);
	free(tensors);
	return st;
}

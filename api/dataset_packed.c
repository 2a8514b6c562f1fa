/* dataset_packed.c - files of data: regular ones, and packed ids in them. */
#include "api/dataset.h"
#include "core/base/file.h"
#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LLMC_HEADER = 1024 };

bool tess_data_name_ends(const char *path, const char *end)
{
	size_t len = strlen(path), n = strlen(end);

	return len > n && !strcmp(path + len - n, end);
}

/* A FIFO must not block. */
tess_status tess_data_file_open(const char *path, int *out, int64_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat about;
	tess_status st = TESS_OK;

	if (fd < 0 || fstat(fd, &about))
		st = tess_file_fail_open(path);
	else if (!S_ISREG(about.st_mode))
		st = tess_fail(TESS_EINVAL, "%s: data are read from a regular file", path);
	if (st) {
		if (fd >= 0)
			close(fd);
		return st;
	}
	*out = fd;
	*bytes = (int64_t)about.st_size;
	return TESS_OK;
}

tess_status tess_data_file_read_bytes(const struct tess_data_file *f, void *out, int64_t len,
                                      int64_t at)
{
	char *to = out;

	while (len) {
		ssize_t n = pread(f->fd, to, (size_t)len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return tess_fail(TESS_EIO, "%s: cannot be read at byte %lld: %s", f->path,
			                 (long long)at,
			                 n ? strerror(errno) : "it has become shorter");
		to += n;
		at += n;
		len -= n;
	}
	return TESS_OK;
}

tess_status tess_packed_read_ids(const struct tess_data_file *f, int64_t first, int64_t n,
                                 int32_t *ids)
{
	tess_status st =
		tess_data_file_read_bytes(f, ids, n * f->id_bytes, f->begin + first * f->id_bytes);
	const uint16_t *narrow = (const uint16_t *)ids;

	if (!st && f->id_bytes == 2) /* widened in place, from the last one */
		for (int64_t i = n; i-- > 0;) {
			uint16_t id;

			memcpy(&id, narrow + i, sizeof id);
			ids[i] = id;
		}
	return st;
}

/* Reads a header of llm.c: 256 numbers, which begin with a mark, a version and a count of ids. */
static tess_status read_llmc_header(struct tess_data_file *f, int64_t bytes)
{
	static const struct {
		uint32_t mark, version;
		int64_t id_bytes;
	} known[] = { { 20240520, 1, 2 }, { 20240801, 7, 4 } };
	uint32_t header[3];
	tess_status st = TESS_OK;

	if (bytes >= LLMC_HEADER)
		st = tess_data_file_read_bytes(f, header, sizeof header, 0);
	for (size_t i = 0; i < 2 && !st && bytes >= LLMC_HEADER; i++) {
		if (header[0] != known[i].mark)
			continue;
		if (header[1] != known[i].version ||
		    LLMC_HEADER + header[2] * known[i].id_bytes != bytes)
			return tess_fail(
				TESS_EINVAL,
				"%s: has a header of llm.c, of version %u and %u ids, which "
				"does not fit its %lld bytes: with version %u they are %lld "
				"ids; write the file again",
				f->path, header[1], header[2], (long long)bytes, known[i].version,
				(long long)(bytes - LLMC_HEADER) / known[i].id_bytes);
		f->begin = LLMC_HEADER;
		f->id_bytes = known[i].id_bytes;
	}
	return st;
}

/*
 * Fails if every second id of 2 bytes is 0: the file seems to contain ids of 4 bytes, which would
 * be valid in any vocabulary.
 */
static tess_status check_id_bytes(const struct tess_data_file *f)
{
	int32_t ids[256];
	int64_t n = f->nids < 256 ? f->nids : 256, zeros = 0, others = 0;
	tess_status st = tess_packed_read_ids(f, 0, n, ids);

	for (int64_t i = 0; i < n; i++) {
		zeros += i % 2 && !ids[i];
		others += !(i % 2) && ids[i];
	}
	if (!st && n >= 16 && zeros == n / 2 && others)
		return tess_fail(TESS_EINVAL,
		                 "%s: every second id of 2 bytes is 0: it seems to hold ids of 4 "
		                 "bytes; say which (--token-dtype u32 or u16)",
		                 f->path);
	return st;
}

/* Chooses the width of ids by the options, the name of the file, or the vocabulary (guessed). */
static tess_status choose_id_bytes(const struct tess_dataset_options *o, struct tess_data_file *f,
                                   bool *guessed)
{
	*guessed = false;
	if (f->begin)
		return TESS_OK;
	f->id_bytes = tess_data_name_ends(f->path, ".u32")   ? 4
	              : tess_data_name_ends(f->path, ".u16") ? 2
	                                                     : o->id_bytes;
	if (f->id_bytes)
		return TESS_OK;
	if (!tess_data_name_ends(f->path, ".bin"))
		return tess_fail(
			TESS_EINVAL,
			"%s: what it holds is not known by its name: texts are in .jsonl or "
			".txt files, ids in .bin, .u16 or .u32 files, or say --token-dtype u16 "
			"or u32",
			f->path);
	*guessed = true;
	f->id_bytes = o->vocabulary > 65536 ? 4 : 2;
	return TESS_OK;
}

tess_status tess_packed_open(const struct tess_dataset_options *o, struct tess_data_file *f)
{
	bool guessed;
	int64_t bytes;
	tess_status st = tess_data_file_open(f->path, &f->fd, &bytes);

	if (st)
		return st;
	st = read_llmc_header(f, bytes);
	if (st)
		return st;
	st = choose_id_bytes(o, f, &guessed);
	if (st)
		return st;
	if ((bytes - f->begin) % f->id_bytes)
		return tess_fail(TESS_EINVAL,
		                 "%s: %lld bytes are no whole number of ids of %lld bytes; choose "
		                 "with --token-dtype u16 or u32",
		                 f->path, (long long)bytes, (long long)f->id_bytes);
	f->nids = (bytes - f->begin) / f->id_bytes;
	return guessed && f->id_bytes == 2 ? check_id_bytes(f) : TESS_OK;
}

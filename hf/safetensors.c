#include "hf/safetensors.h"

#include "core/base/arena.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "hf/file_dtype.h"
#include "nn/program/source.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 8, HEADER_BYTES_MAX = 100000000, NAME_LEN_MAX = 1024 };
enum { AHEAD_BYTES = 128 << 10 }; /* bytes of an advice to read ahead */
enum { FAULT_AROUND_BYTES = 64 << 10 }; /* bytes that Linux maps around a page fault */
enum { UNMAP_THREADS_MAX = 4, UNMAP_BYTES = 256 << 20 }; /* minimum bytes per thread */

const struct tess_option tess_load_options[] = {
	{ "load", "map", "map: map the files of a checkpoint; copy: each rank reads its part" },
	{ 0 },
};

struct tess_safetensors {
	struct tess_arena arena;
	const char *path;
	void *map; /* the file */
	const unsigned char *bytes; /* the complete file, mapped or the caller's; else its header */
	int fd; /* open if data are read; else -1 */
	struct stat about; /* of the file, as it was opened */
	uint64_t len, data_start;
	size_t n, capacity;
	struct tess_slice *slice; /* sorted by name; malloc'ed */
	bool has_metadata; /* __metadata__ was read */
	const char **metadata; /* keys and their texts by turns, in the arena; ends with NULL */
};

/* ---- the header ------------------------------------------------------------------------- */

static uint64_t parse_header_size(const unsigned char *bytes)
{
	uint64_t size = 0;

	for (int i = LENGTH - 1; i >= 0; i--)
		size = size << 8 | bytes[i];
	return size;
}

/* Checks the length of the header and sets data_start. */
static tess_status check_header_size(struct tess_safetensors *f)
{
	const unsigned long long len = f->len;
	uint64_t size;

	if (len < LENGTH)
		return tess_fail(
			TESS_EINVAL,
			"%s: %llu bytes; a file begins with the length of its header, 8 bytes",
			f->path, len);
	if (tess_file_check_pointer(f->path, f->bytes, LENGTH))
		return TESS_EINVAL;
	size = parse_header_size(f->bytes);
	if (size > HEADER_BYTES_MAX)
		return tess_fail(TESS_EINVAL,
		                 "%s: offset 0: a header of %llu bytes; at most %d are allowed",
		                 f->path, (unsigned long long)size, HEADER_BYTES_MAX);
	if (size > len - LENGTH)
		return tess_fail(
			TESS_EINVAL,
			"%s: offset 0: a header of %llu bytes in a file of %llu; it is truncated",
			f->path, (unsigned long long)size, len);
	if (!size || f->bytes[LENGTH] != '{')
		return tess_fail(TESS_EINVAL, "%s: offset 8: the header does not begin with {",
		                 f->path);
	f->data_start = LENGTH + size;
	return TESS_OK;
}

/* Copies "__metadata__", whose values are strings. */
static tess_status copy_metadata(struct tess_safetensors *f, json_t *meta)
{
	size_t n = 0;
	const char *key;
	json_t *value;

	f->metadata = TESS_NEW(&f->arena, const char *, 2 * json_object_size(meta) + 1);
	if (!f->metadata)
		return TESS_ENOMEM;
	json_object_foreach(meta, key, value) {
		const char *text = json_string_value(value);

		f->metadata[n] = tess_arena_copy(&f->arena, key, strlen(key));
		f->metadata[n + 1] = tess_arena_copy(&f->arena, text, strlen(text));
		if (!f->metadata[n] || !f->metadata[n + 1])
			return TESS_ENOMEM;
		n += 2;
	}
	return TESS_OK;
}

/* Reads "__metadata__", which maps strings to strings, or is null. */
static tess_status read_metadata(struct tess_safetensors *f, json_t *meta)
{
	const char *key;
	json_t *value;

	if (!json_is_object(meta) && !json_is_null(meta))
		return tess_fail(TESS_EINVAL, "%s: __metadata__: an object is needed", f->path);
	json_object_foreach(meta, key, value) {
		if (!json_is_string(value))
			return tess_fail(TESS_EINVAL, "%s: __metadata__: %.64s: text is needed",
			                 f->path, key);
	}
	value = json_object_get(meta, "format");
	if (value && !strcmp(json_string_value(value), "tessera-panels"))
		return tess_fail(TESS_ENOTSUP,
		                 "%s: stores panels, which this version does not read; use the "
		                 "original checkpoint, or convert it again without --panels",
		                 f->path);
	return copy_metadata(f, meta);
}

static tess_status read_shape(struct tess_safetensors *f, const json_t *shape,
                              const struct tess_file_dtype *type, struct tess_slice *s)
{
	/* the count as if no extent were 0: strides must not overflow either */
	uint64_t span = 1, bits;
	bool empty = false;
	int64_t *extent;

	if (!json_is_array(shape))
		return tess_fail(TESS_EINVAL, "shape is not a list");
	s->ndim = (int32_t)json_array_size(shape);
	s->shape = extent = TESS_NEW(&f->arena, int64_t, s->ndim);
	if (!extent)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < s->ndim; i++) {
		const json_t *value = json_array_get(shape, (size_t)i);

		if (!json_is_integer(value) || json_integer_value(value) < 0)
			return tess_fail(TESS_EINVAL, "shape[%d] is not a whole number from 0", i);
		extent[i] = json_integer_value(value);
		empty |= !extent[i];
		if (__builtin_mul_overflow(span, (uint64_t)(extent[i] ? extent[i] : 1), &span))
			return tess_fail(TESS_EINVAL, "shape: its elements overflow 64 bits");
	}
	if (__builtin_mul_overflow(span, (uint64_t)type->bits, &bits))
		return tess_fail(TESS_EINVAL, "shape: its bytes overflow 64 bits");
	bits = empty ? 0 : bits;
	if (bits % 8)
		return tess_fail(TESS_EINVAL, "%llu elements of %s are not whole bytes",
		                 (unsigned long long)span, type->name);
	s->bytes = bits / 8;
	return TESS_OK;
}

static tess_status read_offsets(struct tess_safetensors *f, const json_t *offsets,
                                struct tess_slice *s)
{
	const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
	const unsigned long long available = f->len - f->data_start, bytes = s->bytes;
	long long begin, end;

	if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
		return tess_fail(TESS_EINVAL, "data_offsets: a begin and an end are needed");
	begin = json_integer_value(first);
	end = json_integer_value(last);
	if (begin < 0 || end < begin)
		return tess_fail(TESS_EINVAL, "data_offsets [%lld, %lld] do not rise from 0", begin,
		                 end);
	if ((unsigned long long)end > available)
		return tess_fail(
			TESS_EINVAL,
			"data_offsets [%lld, %lld] end outside the file, which has %llu bytes of "
			"data; it is truncated",
			begin, end, available);
	if ((unsigned long long)(end - begin) != bytes)
		return tess_fail(
			TESS_EINVAL,
			"data_offsets [%lld, %lld] are %lld bytes; dtype and shape make %llu",
			begin, end, end - begin, bytes);
	s->begin = (uint64_t)begin;
	return TESS_OK;
}

static tess_status read_entry(struct tess_safetensors *f, const char *name, json_t *entry,
                              struct tess_slice *s)
{
	static const char *const keys[] = { "dtype", "shape", "data_offsets" };
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	const struct tess_file_dtype *type = dtype ? tess_file_dtype_by_name(dtype) : NULL;
	tess_status st;

	if (!*name || strlen(name) > NAME_LEN_MAX)
		return tess_fail(TESS_EINVAL, "a name of %zu bytes; 1 to %d are allowed",
		                 strlen(name), NAME_LEN_MAX);
	s->name = tess_arena_copy(&f->arena, name, NAME_LEN_MAX);
	if (!s->name)
		return TESS_ENOMEM;
	for (int i = 0; i < 3; i++)
		if (!json_object_get(entry, keys[i]))
			return tess_fail(TESS_EINVAL, "no %s", keys[i]);
	if (json_object_size(entry) != 3)
		return tess_fail(TESS_EINVAL, "keys other than dtype, shape and data_offsets");
	if (!type)
		return tess_fail(TESS_EINVAL, "dtype \"%.32s\" is not in the format",
		                 dtype ? dtype : "");
	s->type = type->name;
	s->dtype = type->dtype;
	st = read_shape(f, json_object_get(entry, "shape"), type, s);
	return st ? st : read_offsets(f, json_object_get(entry, "data_offsets"), s);
}

/* ---- the whole header ------------------------------------------------------------------------ */

static int compare_slice_names(const void *a, const void *b)
{
	return strcmp(((const struct tess_slice *)a)->name, ((const struct tess_slice *)b)->name);
}

/* Orders by offset; an empty tensor precedes one that begins at the same offset. */
static int compare_slice_offsets(const void *a, const void *b)
{
	const struct tess_slice *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Checks that each byte of the data belongs to exactly one tensor. */
static tess_status check_coverage(struct tess_safetensors *f)
{
	const uint64_t end = f->len - f->data_start;
	uint64_t at = 0;

	qsort(f->slice, f->n, sizeof *f->slice, compare_slice_offsets);
	for (size_t i = 0; i < f->n; i++) {
		const struct tess_slice *s = &f->slice[i];

		if (s->begin != at)
			return tess_fail(TESS_EINVAL,
			                 "%s: tensor %s: its data begin at %llu, %s at %llu",
			                 f->path, s->name, (unsigned long long)s->begin,
			                 s->begin < at ? "inside those of another tensor, which end"
			                               : "after a hole",
			                 (unsigned long long)at);
		at += s->bytes;
	}
	if (at != end)
		return tess_fail(TESS_EINVAL,
		                 "%s: offset %llu: %llu bytes that belong to no tensor", f->path,
		                 (unsigned long long)(f->data_start + at),
		                 (unsigned long long)(end - at));
	return TESS_OK;
}

static tess_status check_tensor_names(struct tess_safetensors *f)
{
	qsort(f->slice, f->n, sizeof *f->slice, compare_slice_names);
	for (size_t i = 1; i < f->n; i++)
		if (!strcmp(f->slice[i - 1].name, f->slice[i].name))
			return tess_fail(TESS_EINVAL, "%s: tensor %s: duplicate name", f->path,
			                 f->slice[i].name);
	return TESS_OK;
}

static tess_status read_member(void *self, const char *name, json_t *entry)
{
	struct tess_safetensors *f = self;
	struct tess_slice *more;
	tess_status st;

	if (!strcmp(name, "__metadata__")) {
		if (f->has_metadata)
			return tess_fail(TESS_EINVAL, "%s: __metadata__: duplicate name", f->path);
		f->has_metadata = true;
		return read_metadata(f, entry);
	}
	if (f->n == f->capacity) {
		more = realloc(f->slice, 2 * f->capacity * sizeof *more);
		if (!more)
			return tess_fail(TESS_ENOMEM, "%s: out of memory for %zu tensors", f->path,
			                 2 * f->capacity);
		f->slice = more;
		f->capacity *= 2;
	}
	f->slice[f->n] = (struct tess_slice){ 0 };
	st = read_entry(f, name, entry, &f->slice[f->n]);
	if (st)
		return tess_fail_in(st, "%s: tensor %.200s", f->path, name);
	f->n++;
	return TESS_OK;
}

/* Parses one tensor at a time: the tree of a full header takes ten times its size. */
static tess_status read_header_members(struct tess_safetensors *f)
{
	tess_status st = check_header_size(f);

	if (!st)
		st = tess_json_read_members(f->path, (const char *)f->bytes + LENGTH,
		                            f->data_start - LENGTH, read_member, f);
	if (!st)
		st = check_tensor_names(f);
	if (!st)
		st = check_coverage(f);
	if (!st)
		qsort(f->slice, f->n, sizeof *f->slice, compare_slice_names);
	return st;
}

/* Reads the tensors of a file that is completely in memory. */
static tess_status read_tensors(struct tess_safetensors *f)
{
	tess_status st = read_header_members(f);

	for (size_t i = 0; i < f->n && !st; i++)
		f->slice[i].data = f->bytes + f->data_start + f->slice[i].begin;
	return st;
}

/* ---- open ---------------------------------------------------------------------------- */

static tess_status alloc_safetensors(const char *path, struct tess_safetensors **out)
{
	struct tess_safetensors *f = calloc(1, sizeof *f);

	if (!f)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	f->path = tess_arena_copy(&f->arena, path, strlen(path));
	f->fd = -1;
	f->capacity = 64;
	f->slice = malloc(f->capacity * sizeof *f->slice);
	if (!f->path || !f->slice) {
		tess_safetensors_close(f);
		return tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	}
	*out = f;
	return TESS_OK;
}

tess_status tess_safetensors_parse(const char *path, const void *bytes, uint64_t len,
                                   struct tess_safetensors **out)
{
	struct tess_safetensors *f = NULL;
	tess_status st = alloc_safetensors(path, &f);

	if (st)
		return st;
	f->bytes = bytes;
	f->len = len;
	st = read_tensors(f);
	if (st)
		tess_safetensors_close(f);
	else
		*out = f;
	return st;
}

static tess_status read_bytes(const struct tess_safetensors *f, int fd, uint64_t at, uint64_t len,
                              void *out)
{
	uint64_t done = 0;
	ssize_t got = 1;

	while (done < len && got != 0) {
		got = pread(fd, (char *)out + done, len - done, (off_t)(at + done));
		if (got < 0 && errno != EINTR)
			return tess_fail(TESS_EIO, "%s: %s", f->path, strerror(errno));
		done += got > 0 ? (uint64_t)got : 0;
	}
	if (done < len)
		return tess_fail(TESS_EIO, "%s: ended after %llu of %llu bytes", f->path,
		                 (unsigned long long)(at + done), (unsigned long long)f->len);
	return TESS_OK;
}

/* Reads the header, limited by check_header_size(). */
static tess_status read_header_only(struct tess_safetensors *f, int fd)
{
	unsigned char first[LENGTH] = { 0 }, *header;
	uint64_t len = f->len < LENGTH ? f->len : LENGTH;
	tess_status st = read_bytes(f, fd, 0, len, first);

	if (st)
		return st;
	if (f->len >= LENGTH && parse_header_size(first) <= HEADER_BYTES_MAX &&
	    parse_header_size(first) <= f->len - LENGTH)
		len += parse_header_size(first);
	header = malloc(len + 1);
	if (!header)
		return tess_fail(TESS_ENOMEM, "%s: out of memory for %llu bytes", f->path,
		                 (unsigned long long)len);
	st = read_bytes(f, fd, 0, len, header);
	f->bytes = header;
	if (!st)
		st = read_header_members(f);
	f->bytes = NULL;
	free(header);
	return st;
}

static tess_status map_whole_file(struct tess_safetensors *f, int fd)
{
	void *map = f->len ? mmap(NULL, f->len, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;

	if (map == MAP_FAILED)
		return tess_fail(TESS_EIO,
		                 "%s: cannot be mapped: %s; TESSERA_LOAD=copy reads it instead",
		                 f->path, strerror(errno));
	if (map) /* advice: fewer faults, where the page cache has huge pages of this file */
		madvise(map, f->len, MADV_HUGEPAGE);
	f->map = map;
	f->bytes = map;
	return TESS_OK;
}

/* Maps the file, or reads only its header. */
static tess_status load_tensors(struct tess_safetensors *f, int fd, bool header)
{
	tess_status st;

	if (fstat(fd, &f->about) || !S_ISREG(f->about.st_mode))
		return tess_fail(TESS_EINVAL, "%s: not a regular file", f->path);
	f->len = (uint64_t)f->about.st_size;
	if (header)
		return read_header_only(f, fd);
	st = map_whole_file(f, fd);
	return st ? st : read_tensors(f);
}

tess_status tess_safetensors_open(const char *path, bool header, struct tess_safetensors **out)
{
	struct tess_safetensors *f = NULL;
	const char *load;
	tess_status st;
	bool copy;
	int fd;

	st = tess_option_add("hf/safetensors.c", tess_load_options);
	if (st)
		return st;
	load = tess_option_get("load");
	copy = !strcmp(load, "copy");
	if (!copy && strcmp(load, "map") != 0)
		return tess_fail(TESS_EINVAL, "TESSERA_LOAD=%s: use map or copy", load);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return tess_file_fail_open(path);
	st = alloc_safetensors(path, &f);
	if (!st)
		st = load_tensors(f, fd, header || copy);
	if (st)
		tess_safetensors_close(f);
	else
		*out = f;
	if (!st && copy && !header)
		f->fd = fd;
	else
		close(fd);
	return st;
}

tess_status tess_safetensors_read(const struct tess_safetensors *f, const struct tess_slice *s,
                                  uint64_t at, uint64_t bytes, void *out)
{
	if (at > s->bytes || bytes > s->bytes - at || (!s->data && f->fd < 0))
		return tess_fail(TESS_EBUG, "%s: tensor %s: its data cannot be read", f->path,
		                 s->name);
	if (f->fd >= 0)
		return read_bytes(f, f->fd, f->data_start + s->begin + at, bytes, out);
	memcpy(out, (const char *)s->data + at, bytes);
	return TESS_OK;
}

/* ---- open files ---------------------------------------------------------------------- */

static bool is_unchanged(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

tess_status tess_safetensors_check(const struct tess_safetensors *f)
{
	struct stat now;

	if (f->fd < 0)
		return TESS_OK;
	if (fstat(f->fd, &now))
		return tess_fail(TESS_EIO, "%s: %s", f->path, strerror(errno));
	if (is_unchanged(&f->about, &now))
		return TESS_OK;
	return tess_fail(TESS_EIO,
	                 "%s: has changed since it was opened; its weights are read before each "
	                 "use, so it must stay as it is: start again",
	                 f->path);
}

tess_status tess_safetensors_reopen(struct tess_safetensors *f)
{
	if (f->fd >= 0 || !f->map)
		return TESS_OK;
	f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	return f->fd < 0 ? tess_file_fail_open(f->path) : tess_safetensors_check(f);
}

void tess_safetensors_advise(const struct tess_safetensors *f, const struct tess_slice *s,
                             uint64_t at, uint64_t bytes, int32_t how)
{
	uint64_t lo = f->data_start + s->begin + at, hi = lo + bytes;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first;

	if (how == TESS_ADVISE_ROWS && s->data) {
		first = (uintptr_t)s->data + at;
		madvise((void *)(first / page * page), bytes + first % page, MADV_RANDOM);
	}
	if (f->fd < 0)
		return;
	if (how == TESS_ADVISE_DONE)
		posix_fadvise(f->fd, (off_t)lo, (off_t)bytes, POSIX_FADV_DONTNEED);
	/* Linux reads no more of a range than its window for reading ahead */
	for (; how == TESS_ADVISE_SOON && lo < hi; lo += AHEAD_BYTES)
		posix_fadvise(f->fd, (off_t)lo,
		              (off_t)(hi - lo < AHEAD_BYTES ? hi - lo : AHEAD_BYTES),
		              POSIX_FADV_WILLNEED);
}

const char *tess_safetensors_path(const struct tess_safetensors *f)
{
	return f->path;
}

const struct stat *tess_safetensors_stat(const struct tess_safetensors *f)
{
	return &f->about;
}

uint64_t tess_safetensors_data_start(const struct tess_safetensors *f)
{
	return f->data_start;
}

size_t tess_safetensors_count(const struct tess_safetensors *f)
{
	return f->n;
}

const struct tess_slice *tess_safetensors_at(const struct tess_safetensors *f, size_t i)
{
	return &f->slice[i];
}

const struct tess_slice *tess_safetensors_find(const struct tess_safetensors *f, const char *name)
{
	const struct tess_slice key = { .name = name };

	return bsearch(&key, f->slice, f->n, sizeof *f->slice, compare_slice_names);
}

const char *tess_safetensors_get_metadata(const struct tess_safetensors *f, const char *key)
{
	for (const char *const *m = f->metadata; m && *m; m += 2)
		if (!strcmp(m[0], key))
			return m[1];
	return NULL;
}

void tess_safetensors_strip_names(struct tess_safetensors *f, size_t n)
{
	for (size_t i = 0; i < f->n; i++)
		f->slice[i].name += n;
}

void tess_safetensors_drop(const struct tess_safetensors *f, const void *data, uint64_t bytes)
{
	const uintptr_t map = (uintptr_t)f->map, end = map + f->len;
	uintptr_t lo = (uintptr_t)data, hi = lo + bytes;

	if (!f->map || lo < map || hi > end || !bytes)
		return;
	/* a page fault maps the surrounding pages as well */
	lo = lo / FAULT_AROUND_BYTES * FAULT_AROUND_BYTES;
	hi = (hi + FAULT_AROUND_BYTES - 1) / FAULT_AROUND_BYTES * FAULT_AROUND_BYTES;
	lo = lo < map ? map : lo;
	hi = hi > end ? end : hi;
	madvise((void *)lo, hi - lo, MADV_DONTNEED); /* only advice: failure is harmless */
}

struct file_share {
	pthread_t thread;
	char *at;
	size_t bytes;
};

static void *drop_file_share(void *arg)
{
	const struct file_share *s = arg;

	madvise(s->at, s->bytes, MADV_DONTNEED);
	return NULL;
}

/* Unmaps on several threads: with small pages in the page cache, 1 GB takes 40 ms on one. */
static void unmap_file(void *map, uint64_t len)
{
	struct file_share share[UNMAP_THREADS_MAX];
	uint64_t n = len / UNMAP_BYTES, each;
	int started = 0;
	cpu_set_t mine;

	if (sched_getaffinity(0, sizeof mine, &mine))
		CPU_ZERO(&mine);
	n = n < (uint64_t)CPU_COUNT(&mine) ? n : (uint64_t)CPU_COUNT(&mine);
	n = n < UNMAP_THREADS_MAX ? n : UNMAP_THREADS_MAX;
	each = n ? len / n / FAULT_AROUND_BYTES * FAULT_AROUND_BYTES : 0;
	for (uint64_t i = 1; i < n; i++) {
		struct file_share *s = &share[started];

		s->at = (char *)map + i * each;
		s->bytes = each;
		started += !pthread_create(&s->thread, NULL, drop_file_share, s);
	}
	if (started)
		madvise(map, each, MADV_DONTNEED);
	for (int i = 0; i < started; i++)
		pthread_join(share[i].thread, NULL);
	munmap(map, len);
}

void tess_safetensors_close(struct tess_safetensors *f)
{
	if (!f)
		return;
	if (f->map)
		unmap_file(f->map, f->len);
	if (f->fd >= 0)
		close(f->fd);
	free(f->slice);
	tess_arena_free(&f->arena);
	free(f);
}

#include "safetensors.h"

#include "core/base/arena.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 8, HEADER_MOST = 100000000, NAME_MOST = 1024 };

const struct tess_option tess_load_options[] = {
	{ "load", "map", "map: checkpoints are mapped, copy: they are read into memory" },
	{ 0 },
};

struct tess_safetensors {
	struct tess_arena arena;
	const char *path;
	void *map, *copy;               /* the file, mapped or read; both NULL: the caller's */
	const unsigned char *bytes;
	uint64_t len, start;            /* start: of the data */
	size_t n;
	struct tess_slice *slice;       /* by name */
};

static const struct type { const char *name; int32_t bits, dtype; } types[] = {
	{ "F32", 32, TESS_F32 }, { "BF16", 16, TESS_BF16 }, { "F16", 16, TESS_F16 }, { "F64", 64, TESS_F64 },
	{ "I64", 64, TESS_I64 }, { "I32", 32, TESS_I32 }, { "I8", 8, TESS_I8 }, { "U8", 8, TESS_U8 },
	{ "BOOL", 8, 0 }, { "I16", 16, 0 }, { "U16", 16, 0 }, { "U32", 32, 0 }, { "U64", 64, 0 }, { "C64", 64, 0 },
	{ "F8_E4M3", 8, 0 }, { "F8_E5M2", 8, 0 }, { "F8_E8M0", 8, 0 }, { "F8_E4M3FNUZ", 8, 0 },
	{ "F8_E5M2FNUZ", 8, 0 }, { "F6_E2M3", 6, 0 }, { "F6_E3M2", 6, 0 }, { "F4", 4, 0 },
};
enum { NTYPES = sizeof types / sizeof *types };

static const struct type *type_named(const char *name)
{
	for (int i = 0; i < NTYPES; i++)
		if (!strcmp(types[i].name, name))
			return &types[i];
	return NULL;
}

static const struct type *type_of(int32_t dtype)
{
	for (int i = 0; i < NTYPES; i++)
		if (dtype && types[i].dtype == dtype)
			return &types[i];
	return NULL;
}

/* ---- the header -------------------------------------------------------------------------------- */

static tess_status header_of(struct tess_safetensors *f, json_t **out)
{
	uint64_t size = 0;

	if (f->len < LENGTH)
		return tess_fail(TESS_EINVAL, "%s: %llu bytes; a safetensors file begins with 8 bytes that give the length "
		                 "of its header", f->path, (unsigned long long)f->len);
	for (int i = LENGTH - 1; i >= 0; i--)
		size = size << 8 | f->bytes[i];
	if (size > HEADER_MOST)
		return tess_fail(TESS_EINVAL, "%s: offset 0: a header of %llu bytes; %d are allowed", f->path,
		                 (unsigned long long)size, HEADER_MOST);
	if (size > f->len - LENGTH)
		return tess_fail(TESS_EINVAL, "%s: offset 0: a header of %llu bytes in a file of %llu; it is truncated",
		                 f->path, (unsigned long long)size, (unsigned long long)f->len);
	if (!size || f->bytes[LENGTH] != '{')
		return tess_fail(TESS_EINVAL, "%s: offset 8: the header does not begin with {", f->path);
	f->start = LENGTH + size;
	return tess_json_parse(f->path, (const char *)f->bytes + LENGTH, size, out);
}

/* "__metadata__": text by text. */
static tess_status metadata_check(const struct tess_safetensors *f, json_t *meta)
{
	const char *key;
	json_t *value;

	if (!json_is_object(meta))
		return tess_fail(TESS_EINVAL, "%s: __metadata__: an object is needed", f->path);
	json_object_foreach(meta, key, value)
		if (!json_is_string(value))
			return tess_fail(TESS_EINVAL, "%s: __metadata__: %.64s: text is needed", f->path, key);
	return TESS_OK;
}

static tess_status shape_read(struct tess_safetensors *f, const json_t *shape, const struct type *type,
                              struct tess_slice *s)
{
	uint64_t count = 1, span = 1, bits;     /* span: as if no extent were 0, so that strides fit too */
	int64_t *extent;

	if (!json_is_array(shape))
		return tess_fail(TESS_EINVAL, "%s: tensor %s: shape is not a list", f->path, s->name);
	s->ndim = (int32_t)json_array_size(shape);
	s->shape = extent = TESS_NEW(&f->arena, int64_t, s->ndim);
	if (!extent)
		return TESS_ENOMEM;
	for (int32_t i = 0; i < s->ndim; i++) {
		const json_t *value = json_array_get(shape, (size_t)i);

		if (!json_is_integer(value) || json_integer_value(value) < 0)
			return tess_fail(TESS_EINVAL, "%s: tensor %s: shape[%d] is not a whole number from 0", f->path, s->name, i);
		extent[i] = json_integer_value(value);
		if (__builtin_mul_overflow(span, (uint64_t)(extent[i] ? extent[i] : 1), &span))
			return tess_fail(TESS_EINVAL, "%s: tensor %s: shape: its elements overflow 64 bits", f->path, s->name);
		count = extent[i] ? count : 0;
	}
	if (__builtin_mul_overflow(span, (uint64_t)type->bits, &bits))
		return tess_fail(TESS_EINVAL, "%s: tensor %s: shape: its bytes overflow 64 bits", f->path, s->name);
	count *= span;
	bits *= count != 0;
	if (bits % 8)
		return tess_fail(TESS_EINVAL, "%s: tensor %s: %llu elements of %s are not whole bytes", f->path, s->name,
		                 (unsigned long long)count, type->name);
	s->bytes = bits / 8;
	return TESS_OK;
}

static tess_status place_read(struct tess_safetensors *f, const json_t *offsets, struct tess_slice *s)
{
	const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
	const uint64_t room = f->len - f->start;
	long long begin, end;

	if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
		return tess_fail(TESS_EINVAL, "%s: tensor %s: data_offsets: a begin and an end are needed", f->path, s->name);
	begin = json_integer_value(first);
	end = json_integer_value(last);
	if (begin < 0 || end < begin)
		return tess_fail(TESS_EINVAL, "%s: tensor %s: data_offsets [%lld, %lld] do not rise from 0", f->path, s->name,
		                 begin, end);
	if ((uint64_t)end > room)
		return tess_fail(TESS_EINVAL, "%s: tensor %s: data_offsets [%lld, %lld] end outside the file, whose data are "
		                 "%llu bytes; it is truncated", f->path, s->name, begin, end, (unsigned long long)room);
	if ((uint64_t)(end - begin) != s->bytes)
		return tess_fail(TESS_EINVAL, "%s: tensor %s: data_offsets [%lld, %lld] are %lld bytes; its dtype and shape "
		                 "make %llu", f->path, s->name, begin, end, end - begin, (unsigned long long)s->bytes);
	s->data = f->bytes + f->start + begin;
	return TESS_OK;
}

static tess_status slice_read(struct tess_safetensors *f, const char *name, json_t *entry, struct tess_slice *s)
{
	static const char *const keys[] = { "dtype", "shape", "data_offsets" };
	const json_t *dtype = json_object_get(entry, "dtype");
	const struct type *type;
	tess_status st;

	if (!*name || strlen(name) > NAME_MOST)
		return tess_fail(TESS_EINVAL, "%s: tensor %.64s: a name of %zu bytes; 1 to %d are allowed", f->path, name,
		                 strlen(name), NAME_MOST);
	s->name = tess_arena_copy(&f->arena, name, NAME_MOST);
	if (!s->name)
		return TESS_ENOMEM;
	for (int i = 0; i < 3; i++)
		if (!json_object_get(entry, keys[i]))
			return tess_fail(TESS_EINVAL, "%s: tensor %s: no %s", f->path, s->name, keys[i]);
	if (json_object_size(entry) != 3)
		return tess_fail(TESS_EINVAL, "%s: tensor %s: keys other than dtype, shape and data_offsets", f->path, s->name);
	type = json_is_string(dtype) ? type_named(json_string_value(dtype)) : NULL;
	if (!type)
		return tess_fail(TESS_EINVAL, "%s: tensor %s: dtype \"%.32s\" is none of the format", f->path, s->name,
		                 json_is_string(dtype) ? json_string_value(dtype) : "");
	s->type = type->name;
	s->dtype = type->dtype;
	st = shape_read(f, json_object_get(entry, "shape"), type, s);
	return st ? st : place_read(f, json_object_get(entry, "data_offsets"), s);
}

/* ---- the whole --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct tess_slice *)a)->name, ((const struct tess_slice *)b)->name);
}

/* By place; an empty tensor comes before the one that begins where it lies. */
static int by_place(const void *a, const void *b)
{
	const struct tess_slice *x = a, *y = b;

	if (x->data != y->data)
		return (const char *)x->data < (const char *)y->data ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* All data belong to one tensor each: no overlap, no hole, nothing behind the last. */
static tess_status cover_check(struct tess_safetensors *f)
{
	const unsigned char *at = f->bytes + f->start, *end = f->bytes + f->len;

	qsort(f->slice, f->n, sizeof *f->slice, by_place);
	for (size_t i = 0; i < f->n; i++) {
		const struct tess_slice *s = &f->slice[i];
		const unsigned char *begin = s->data;

		if (begin != at)
			return tess_fail(TESS_EINVAL, "%s: tensor %s: its data begin at %llu, %s at %llu", f->path, s->name,
			                 (unsigned long long)(begin - f->bytes - f->start),
			                 begin < at ? "inside those of another tensor, which end" : "after a hole",
			                 (unsigned long long)(at - f->bytes - f->start));
		at = begin + s->bytes;
	}
	if (at != end)
		return tess_fail(TESS_EINVAL, "%s: offset %llu: %llu bytes that belong to no tensor", f->path,
		                 (unsigned long long)(at - f->bytes), (unsigned long long)(end - at));
	qsort(f->slice, f->n, sizeof *f->slice, by_name);
	return TESS_OK;
}

/* Files of old writers, or with odd sizes in an odd order: what lies unaligned is copied. */
static tess_status align(struct tess_safetensors *f)
{
	uint64_t copied = 0;

	for (size_t i = 0; i < f->n; i++) {
		struct tess_slice *s = &f->slice[i];
		const uintptr_t size = (uintptr_t)type_named(s->type)->bits / 8;
		void *copy;

		if (size < 2 || (uintptr_t)s->data % size == 0)
			continue;
		copy = tess_arena_alloc(&f->arena, s->bytes);
		if (!copy)
			return tess_fail_in(TESS_ENOMEM, "%s: tensor %s", f->path, s->name);
		memcpy(copy, s->data, s->bytes);
		s->data = copy;
		copied += s->bytes;
	}
	if (copied)
		tess_log(TESS_INFO, "hf", "%s: %llu bytes lie unaligned and were copied", f->path, (unsigned long long)copied);
	return TESS_OK;
}

static tess_status read_all(struct tess_safetensors *f)
{
	tess_status st = TESS_OK;
	json_t *root = NULL, *entry;
	const char *name;

	st = header_of(f, &root);
	if (st)
		return st;
	f->slice = TESS_NEW(&f->arena, struct tess_slice, json_object_size(root));
	st = f->slice ? TESS_OK : TESS_ENOMEM;
	json_object_foreach(root, name, entry) {
		if (st)
			break;
		if (!strcmp(name, "__metadata__"))
			st = metadata_check(f, entry);
		else
			st = slice_read(f, name, entry, &f->slice[f->n++]);
	}
	json_decref(root);
	if (!st)
		st = cover_check(f);
	return st ? st : align(f);
}

/* ---- opening ----------------------------------------------------------------------------------- */

static tess_status make(const char *path, struct tess_safetensors **out)
{
	struct tess_safetensors *f = calloc(1, sizeof *f);

	if (!f)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", path);
	f->path = tess_arena_copy(&f->arena, path, strlen(path));
	if (!f->path) {
		free(f);
		return TESS_ENOMEM;
	}
	*out = f;
	return TESS_OK;
}

tess_status tess_safetensors_parse(const char *path, const void *bytes, uint64_t len, struct tess_safetensors **out)
{
	struct tess_safetensors *f = NULL;
	tess_status st = make(path, &f);

	if (st)
		return st;
	f->bytes = bytes;
	f->len = len;
	st = read_all(f);
	if (st)
		tess_safetensors_close(f);
	else
		*out = f;
	return st;
}

static tess_status copy_in(struct tess_safetensors *f, int fd)
{
	uint64_t done = 0;
	ssize_t got = 1;

	f->copy = malloc(f->len ? f->len : 1);
	if (!f->copy)
		return tess_fail(TESS_ENOMEM, "%s: out of memory for %llu bytes (TESSERA_LOAD=copy)", f->path,
		                 (unsigned long long)f->len);
	while (done < f->len && got != 0) {
		got = read(fd, (char *)f->copy + done, f->len - done);
		if (got < 0 && errno != EINTR)
			return tess_fail(TESS_EIO, "%s: %s", f->path, strerror(errno));
		done += got > 0 ? (uint64_t)got : 0;
	}
	if (done < f->len)
		return tess_fail(TESS_EIO, "%s: ended after %llu of %llu bytes", f->path, (unsigned long long)done,
		                 (unsigned long long)f->len);
	f->bytes = f->copy;
	return TESS_OK;
}

static tess_status map_in(struct tess_safetensors *f, int fd)
{
	void *map = f->len ? mmap(NULL, f->len, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;

	if (map == MAP_FAILED)
		return tess_fail(TESS_EIO, "%s: cannot be mapped: %s; TESSERA_LOAD=copy reads it instead", f->path,
		                 strerror(errno));
	f->map = map;
	f->bytes = map;
	return TESS_OK;
}

tess_status tess_safetensors_open(const char *path, struct tess_safetensors **out)
{
	struct tess_safetensors *f = NULL;
	struct stat about;
	const char *load;
	tess_status st;
	int fd;

	st = tess_option_add("hf/safetensors.c", tess_load_options);
	if (st)
		return st;
	load = tess_option("load");
	if (strcmp(load, "map") != 0 && strcmp(load, "copy") != 0)
		return tess_fail(TESS_EINVAL, "TESSERA_LOAD=%s: map or copy is needed", load);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return tess_fail(errno == ENOENT ? TESS_ENOENT : TESS_EIO, "%s: %s", path, strerror(errno));
	st = make(path, &f);
	if (st)
		goto out;
	if (fstat(fd, &about) || !S_ISREG(about.st_mode)) {
		st = tess_fail(TESS_EINVAL, "%s: not a regular file", path);
		goto out;
	}
	f->len = (uint64_t)about.st_size;
	st = *load == 'c' ? copy_in(f, fd) : map_in(f, fd);
	if (!st)
		st = read_all(f);
	if (!st)
		*out = f;
out:
	if (st)
		tess_safetensors_close(f);
	close(fd);
	return st;
}

const char *tess_safetensors_path(const struct tess_safetensors *f)
{
	return f->path;
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

	return bsearch(&key, f->slice, f->n, sizeof *f->slice, by_name);
}

void tess_safetensors_drop(const struct tess_safetensors *f, const void *data, uint64_t bytes)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), map = (uintptr_t)f->map;
	uintptr_t begin = (uintptr_t)data, end = begin + bytes;

	if (!f->map || begin < map || end > map + f->len)
		return;
	begin = (begin + page - 1) / page * page;
	end = end / page * page;
	if (begin < end)
		madvise((void *)begin, end - begin, MADV_DONTNEED);     /* advice: nothing to do where it fails */
}

void tess_safetensors_close(struct tess_safetensors *f)
{
	if (!f)
		return;
	if (f->map)
		munmap(f->map, f->len);
	free(f->copy);
	tess_arena_free(&f->arena);
	free(f);
}

/* ---- writing ----------------------------------------------------------------------------------- */

struct laid { const struct tess_slice *slice; const struct type *type; uint64_t bytes; };

/* What lies where: larger elements first, otherwise as given (insertion sort: there are few). */
static tess_status lay_out(const char *path, int32_t n, const struct tess_slice *slices, struct laid *out)
{
	for (int32_t i = 0; i < n; i++) {
		struct laid one = { &slices[i], type_of(slices[i].dtype), 0 };
		uint64_t bytes;
		int32_t at = i;

		if (!one.type)
			return tess_fail(TESS_EINVAL, "%s: tensor %s: dtype %d cannot be written", path, slices[i].name,
			                 slices[i].dtype);
		bytes = (uint64_t)one.type->bits / 8;
		for (int32_t d = 0; d < slices[i].ndim; d++)
			if (slices[i].shape[d] < 0 || __builtin_mul_overflow(bytes, (uint64_t)slices[i].shape[d], &bytes))
				return tess_fail(TESS_EINVAL, "%s: tensor %s: shape: its bytes overflow 64 bits", path, slices[i].name);
		one.bytes = bytes;
		for (; at > 0 && out[at - 1].type->bits < one.type->bits; at--)
			out[at] = out[at - 1];
		out[at] = one;
	}
	return TESS_OK;
}

/* The header as text, padded so that the data begin at a multiple of 8. Yours to free; NULL: a bad name or twice the same. */
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
		       !json_object_set_new(root, laid[i].slice->name, json_pack("{s:s, s:O, s:[I, I]}", "dtype",
		                            laid[i].type->name, "shape", shape, "data_offsets", (json_int_t)at,
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
		ssize_t put = write(fd, at, len);

		if (put < 0 && errno != EINTR)
			return false;
		at += put > 0 ? put : 0;
		len -= put > 0 ? (uint64_t)put : 0;
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

tess_status tess_safetensors_write(const char *path, int32_t n, const struct tess_slice *slices)
{
	struct laid *laid = calloc((size_t)n + 1, sizeof *laid);
	char *header = NULL, *beside = NULL;
	tess_status st = TESS_OK;
	struct stat about;
	uint64_t len = 0;
	int fd = -1;

	if (!stat(path, &about) && !S_ISREG(about.st_mode)) {
		st = tess_fail(TESS_EINVAL, "%s: not a regular file; it would be replaced", path);
		goto out;
	}
	if (!laid || asprintf(&beside, "%s.%ld.part", path, (long)getpid()) < 0) {
		beside = NULL;
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", path);
		goto out;
	}
	st = lay_out(path, n, slices, laid);
	if (st)
		goto out;
	header = header_text(n, laid, &len);
	if (!header) {
		st = tess_fail(TESS_EINVAL, "%s: a tensor's name is not UTF-8, is there twice, or memory is out", path);
		goto out;
	}
	fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0) {
		st = tess_fail(TESS_EIO, "%s: %s", beside, strerror(errno));
		goto out;
	}
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

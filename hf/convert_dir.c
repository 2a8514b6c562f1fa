/* convert_dir.c - finds and fills the directory that a conversion writes. */
#include "core/base/json.h"
#include "core/base/memory_file.h"
#include "core/base/status.h"
#include "hf/convert_dir.h"
#include "hf/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_TRIES = 1000, COPY_BYTES = 1 << 20 };

/* ---- the output directory -------------------------------------------------------------------- */

/* Resolves the canonical path of a name that need not exist, in a directory that does. */
static tess_status resolve_output(const char *out, char path[PATH_MAX])
{
	char parent[PATH_MAX], *slash, *name;
	size_t len = strlen(out);
	struct stat about;

	if (realpath(out, path))
		return TESS_OK;
	if (errno != ENOENT || !len || len >= PATH_MAX)
		return tess_fail(TESS_EINVAL, "\"%s\": cannot be written: %s", out,
		                 strerror(errno));
	if (!lstat(out, &about))
		return tess_fail(TESS_EINVAL, "%s: is a symbolic link to nothing; name another",
		                 out);
	while (len > 1 && out[len - 1] == '/')
		len--;
	snprintf(parent, sizeof parent, "%.*s", (int)len, out);
	slash = strrchr(parent, '/');
	name = slash ? slash + 1 : parent;
	if (slash)
		*slash = 0;
	if (!realpath(!slash ? "." : *parent ? parent : "/", path))
		return tess_fail(TESS_EIO, "%s: cannot be written: %s: %s", out, parent,
		                 strerror(errno));
	len = strlen(path);
	if (snprintf(path + len, PATH_MAX - len, "%s%s", len > 1 ? "/" : "", name) >=
	    (int)(PATH_MAX - len))
		return tess_fail(TESS_EINVAL, "%s: the path is too long", out);
	return TESS_OK;
}

static tess_status check_empty(const char *out)
{
	DIR *d = opendir(out);
	const struct dirent *e;
	bool empty = true;

	if (!d)
		return errno == ENOENT ? TESS_OK
		       : errno == ENOTDIR
		               ? tess_fail(TESS_EINVAL,
		                           "%s: exists, and is not a directory; name another", out)
		               : tess_fail(TESS_EIO, "%s: %s", out, strerror(errno));
	while ((e = readdir(d)))
		empty = empty && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."));
	closedir(d);
	return empty ? TESS_OK
	             : tess_fail(TESS_EINVAL,
	                         "%s: exists, and is not empty; nothing is overwritten: name "
	                         "another directory, or remove this one",
	                         out);
}

tess_status tess_convert_find_output(const char *dir, const char *out, char path[PATH_MAX])
{
	char input[PATH_MAX];
	tess_status st = resolve_output(out, path);
	size_t len;

	if (st)
		return st;
	if (!realpath(dir, input))
		return tess_fail(TESS_EIO, "%s: %s", dir, strerror(errno));
	len = strlen(input);
	if (!strncmp(path, input, len) && (path[len] == '/' || !path[len] || len == 1))
		return tess_fail(TESS_EINVAL,
		                 "%s: is %s the checkpoint that is read; name a directory outside "
		                 "of %s",
		                 out, path[len] ? "inside" : "itself", dir);
	return check_empty(path);
}

tess_status tess_convert_make_part(const char *path, char part[PATH_MAX])
{
	errno = EEXIST;
	/* a killed process with this id may have left its directory */
	for (int i = 0; errno == EEXIST && i < NAME_TRIES; i++) {
		if (snprintf(part, PATH_MAX, "%s.%ld-%d.part", path, (long)getpid(), i) >= PATH_MAX)
			return tess_fail(TESS_EINVAL, "%s: the path is too long", path);
		if (!mkdir(part, 0777))
			return TESS_OK;
	}
	return tess_fail(TESS_EIO, "%s: cannot be written: %s", path, strerror(errno));
}

tess_status tess_convert_rename_part(const char *part, const char *path)
{
	char inside[PATH_MAX];

	snprintf(inside, sizeof inside, "%s/", part);
	tess_directory_sync(inside);
	if (rename(part, path))
		return tess_fail(TESS_EIO, "%s: cannot be written: %s", path, strerror(errno));
	tess_directory_sync(path);
	return TESS_OK;
}

void tess_convert_remove_part(const char *part)
{
	DIR *d = opendir(part);
	const struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(part);
}

/* ---- copied files ---------------------------------------------------------------------------- */

/* Returns whether a file contains weights in any format, an index of them, or training state. */
static bool is_weights(const char *name)
{
	static const char *const ends[] = { ".safetensors", ".index.json", ".bin",  ".pt",
		                            ".pth",         ".ckpt",       ".gguf", ".h5",
		                            ".msgpack",     ".onnx",       ".npz" };
	size_t len = strlen(name);

	if (!strcmp(name, TESS_SAVED_STATE))
		return true;
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		if (len > strlen(ends[i]) && !strcmp(name + len - strlen(ends[i]), ends[i]))
			return true;
	return false;
}

static tess_status fail_to_write(const char *part, const char *name)
{
	return tess_fail(TESS_EIO, "%s/%s: cannot be written: %s", part, name, strerror(errno));
}

static tess_status open_new_file(const char *part, const char *name, int *fd)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof path, "%s/%s", part, name) >= PATH_MAX)
		return tess_fail(TESS_EINVAL, "%s/%s: the path is too long", part, name);
	*fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return *fd < 0 ? fail_to_write(part, name) : TESS_OK;
}

tess_status tess_convert_write_file(const char *part, const char *name, const void *bytes,
                                    uint64_t len)
{
	int fd;
	tess_status st = open_new_file(part, name, &fd);

	if (st)
		return st;
	if (!tess_file_write(fd, bytes, len, 0) || fsync(fd))
		st = fail_to_write(part, name);
	close(fd);
	return st;
}

tess_status tess_convert_create_file(const char *path, const char *part, const char *name,
                                     const void *header, uint64_t len, uint64_t bytes)
{
	int fd;
	tess_status st = open_new_file(part, name, &fd);

	if (st)
		return st;
	if (!tess_file_write(fd, header, len, 0) ||
	    (fallocate(fd, 0, 0, (off_t)bytes) && errno != EOPNOTSUPP) ||
	    ftruncate(fd, (off_t)bytes))
		st = tess_fail(TESS_EIO, "%s/%s: %llu bytes cannot be written: %s", path, name,
		               (unsigned long long)bytes, strerror(errno));
	close(fd);
	return st;
}

static tess_status copy_whole_file(int from, const char *dir, const char *part, const char *name)
{
	char *buffer = malloc(COPY_BYTES);
	uint64_t at = 0;
	ssize_t n = 1;
	int fd = -1;
	tess_status st = buffer ? open_new_file(part, name, &fd)
	                        : tess_fail(TESS_ENOMEM, "%s/%s: out of memory", dir, name);

	while (!st && n) {
		n = pread(from, buffer, COPY_BYTES, (off_t)at);
		if (n < 0 && errno != EINTR)
			st = tess_fail(TESS_EIO, "%s/%s: %s", dir, name, strerror(errno));
		else if (n > 0 && !tess_file_write(fd, buffer, (uint64_t)n, at))
			st = fail_to_write(part, name);
		at += n > 0 ? (uint64_t)n : 0;
	}
	if (!st && fsync(fd))
		st = fail_to_write(part, name);
	if (fd >= 0)
		close(fd);
	free(buffer);
	return st;
}

/* Return the end of a string, or of any value, of valid JSON. */
static const char *skip_string(const char *s)
{
	for (s++; *s != '"'; s++)
		s += *s == '\\';
	return s + 1;
}

static const char *skip_value(const char *s)
{
	int depth = 0;

	do {
		depth += (*s == '{' || *s == '[') - (*s == '}' || *s == ']');
		s = *s == '"' ? skip_string(s) : s + 1;
	} while (depth || !strchr(",}] \t\r\n", *s));
	return s;
}

static bool is_key(const char *s, const char *key)
{
	size_t len = strlen(key);

	return *s == '"' && !strncmp(s + 1, key, len) && s[len + 1] == '"';
}

/*
 * Writes what precedes a key, from `kept` on, and returns what follows its value, without one of
 * the commas around them; before: the end of the previous value, or NULL.
 */
static const char *drop_key(FILE *f, const char *kept, const char *before, const char *key,
                            const char *end)
{
	const char *next = end + strspn(end, " \t\r\n");

	if (before)
		key = before;
	else if (*next == ',')
		end = next + 1 + strspn(next + 1, " \t\r\n");
	fprintf(f, "%.*s", (int)(key - kept), kept);
	return end;
}

/*
 * Writes config.json with another dtype, and without quantization_config: weights in MXFP4 are
 * widened. Every other byte is kept.
 */
static tess_status write_changed_dtype(const char *part, const char *text, int32_t dtype,
                                       bool has_dtype)
{
	const char *name = dtype == TESS_F32   ? "float32"
	                   : dtype == TESS_F16 ? "float16"
	                                       : "bfloat16";
	const char *kept = text, *s = strchr(text, '{') + 1, *key, *value, *before = NULL;
	char *made = NULL;
	size_t len = 0;
	FILE *f = tess_memory_file_open(&made, &len);
	tess_status st = f ? TESS_OK : TESS_ENOMEM;

	if (f && !has_dtype) { /* the spelling that every version of transformers reads */
		fprintf(f, "%.*s\n  \"torch_dtype\": \"%s\",", (int)(s - text), text, name);
		kept = s;
	}
	for (s += strspn(s, ", \t\r\n"); f && *s != '}'; s += strspn(s, ", \t\r\n")) {
		key = s;
		s = skip_string(s);
		value = s + strspn(s, ": \t\r\n");
		s = skip_value(value);
		if (*value == '{' && is_key(key, "quantization_config")) {
			kept = drop_key(f, kept, before, key, s);
			before = before ? s : NULL;
			continue;
		}
		before = s;
		if (!is_key(key, "dtype") && !is_key(key, "torch_dtype"))
			continue;
		fprintf(f, "%.*s\"%s\"", (int)(value - kept), kept, name);
		kept = s;
	}
	if (f && (fputs(kept, f) < 0 || ferror(f)))
		st = tess_fail(TESS_ENOMEM, "%s/config.json: out of memory", part);
	if (f)
		fclose(f);
	if (!st)
		st = tess_convert_write_file(part, "config.json", made, len);
	free(made);
	return st;
}

/* Changes the dtype of config.json, whose size was checked when the checkpoint was opened. */
static tess_status change_config(int from, const char *dir, const char *part, int32_t dtype,
                                 uint64_t len)
{
	char *text = calloc(1, len + 1);
	ssize_t n = text ? pread(from, text, len, 0) : 0;
	json_t *root;
	tess_status st = TESS_OK;

	if (n < 0 || (uint64_t)n < len)
		st = tess_fail(TESS_EIO, "%s/config.json: cannot be read", dir);
	if (!st)
		st = tess_json_parse(dir, text, len, &root);
	if (!st) {
		bool has_dtype =
			json_object_get(root, "dtype") || json_object_get(root, "torch_dtype");

		json_decref(root);
		st = write_changed_dtype(part, text, dtype, has_dtype);
	}
	free(text);
	return st;
}

static tess_status copy_folder_entry(int dirfd, const char *dir, const char *part, const char *name,
                                     int32_t dtype)
{
	struct stat about;
	tess_status st;
	int from;

	if (fstatat(dirfd, name, &about, 0) || !S_ISREG(about.st_mode))
		return TESS_OK;
	from = openat(dirfd, name, O_RDONLY | O_CLOEXEC);
	if (from < 0)
		return tess_fail(TESS_EIO, "%s/%s: %s", dir, name, strerror(errno));
	if (dtype && !strcmp(name, "config.json"))
		st = change_config(from, dir, part, dtype, (uint64_t)about.st_size);
	else
		st = copy_whole_file(from, dir, part, name);
	close(from);
	return st;
}

tess_status tess_convert_copy_files(const char *dir, const char *part, int32_t dtype)
{
	DIR *d = opendir(dir);
	const struct dirent *e;
	tess_status st = TESS_OK;

	if (!d)
		return tess_fail(TESS_EIO, "%s: %s", dir, strerror(errno));
	while (!st && (e = readdir(d)))
		if (*e->d_name != '.' && !is_weights(e->d_name))
			st = copy_folder_entry(dirfd(d), dir, part, e->d_name, dtype);
	closedir(d);
	return st;
}

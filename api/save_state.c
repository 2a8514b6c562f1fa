/* save_state.c - reads and writes training.json of a save, with its checksum. */
#include "api/save.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/status.h"
#include "hf/convert_dir.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { STATE_BYTES_MAX = 256 << 20, SAVED_FORMAT = 1 };

static const struct {
	const char *key;
	json_type type;
} needed_keys[] = { { "step", JSON_INTEGER },     { "config", JSON_STRING },
	            { "optimizer", JSON_STRING }, { "program", JSON_OBJECT },
	            { "checksums", JSON_OBJECT }, { "checksum", JSON_STRING } };

tess_status tess_save_hash_config(const json_t *config, char out[17])
{
	char *text = json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS);
	uint64_t h;

	if (!text)
		return tess_fail(TESS_ENOMEM, "out of memory");
	h = tess_hash_bytes(TESS_HASH_EMPTY, text, strlen(text));
	free(text);
	snprintf(out, 17, "%016llx", (unsigned long long)h);
	return TESS_OK;
}

static int sum_text(const char *text, size_t len, void *sum)
{
	*(uint32_t *)sum = (uint32_t)crc32_z(*(uint32_t *)sum, (const Bytef *)text, len);
	return 0;
}

/* Computes the checksum of all other keys, independently of their order and of spaces. */
static tess_status sum_state(const json_t *root, char out[9])
{
	json_t *others = json_object();
	uint32_t sum = 0;
	/* json_copy() would drop keys without memory; root is not changed */
	bool failed = json_object_update(others, (json_t *)(uintptr_t)root) != 0;

	json_object_del(others, "checksum");
	failed = failed ||
	         json_dump_callback(others, sum_text, &sum, JSON_COMPACT | JSON_SORT_KEYS) != 0;
	json_decref(others);
	snprintf(out, 9, "%08x", (unsigned)sum);
	return failed ? tess_fail(TESS_ENOMEM, "out of memory") : TESS_OK;
}

tess_status tess_save_write_state(const char *part, json_t *keys)
{
	char sum[9], *text = NULL;
	json_t *root = json_pack("{s:i}", "format", SAVED_FORMAT);
	bool made = root && keys && !json_object_update(root, keys);
	tess_status st = sum_state(root, sum);

	made = made && !st && !json_object_set_new(root, "checksum", json_string(sum));
	if (!made || !(text = json_dumps(root, JSON_INDENT(2))))
		st = tess_fail(TESS_ENOMEM, "%s: out of memory", part);
	if (!st)
		st = tess_convert_write_file(part, TESS_SAVED_STATE, text, strlen(text));
	json_decref(root);
	free(text);
	return st;
}

static tess_status check_format(const char *path, const json_t *root)
{
	int64_t format = 0;
	tess_status st = tess_json_require(path, root, "format", JSON_INTEGER);

	if (!st)
		st = tess_json_get_int(path, root, "format", 1, INT32_MAX, &format);
	if (!st && format != SAVED_FORMAT)
		st = tess_fail(TESS_ENOTSUP, "%s: format %lld: this version reads format %d", path,
		               (long long)format, SAVED_FORMAT);
	if (!st && !json_object_get(root, "checksums") && !json_object_get(root, "checksum"))
		st = tess_fail(TESS_ENOTSUP,
		               "%s: has no checksums: resume it with the older version of tessera "
		               "that saved it, or use the save as MODEL",
		               path);
	return st;
}

/* Fails if the directory is named after another step; names of other forms are allowed. */
static tess_status check_name(const char *dir, int64_t step)
{
	char real[PATH_MAX], want[32];
	const char *name = realpath(dir, real) ? strrchr(real, '/') + 1 : "";

	snprintf(want, sizeof want, "step-%lld", (long long)step);
	if (strncmp(name, "step-", 5) || name[5 + strspn(name + 5, "0123456789")] ||
	    !strcmp(name, want))
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "%s: holds the save of step %lld: name it %s, or resume from another save",
	                 dir, (long long)step, want);
}

tess_status tess_save_read_state(const char *dir, json_t **out)
{
	char path[PATH_MAX + 64], sum[9];
	json_t *root = NULL;
	int64_t step = 0;
	tess_status st;

	snprintf(path, sizeof path, "%s/" TESS_SAVED_STATE, dir);
	st = tess_json_load(path, STATE_BYTES_MAX, &root);
	if (st == TESS_ENOENT)
		return tess_fail(st, "%s: is no save of a training: it has no " TESS_SAVED_STATE,
		                 dir);
	if (!st)
		st = check_format(path, root);
	for (size_t i = 0; i < sizeof needed_keys / sizeof *needed_keys && !st; i++)
		st = tess_json_require(path, root, needed_keys[i].key, needed_keys[i].type);
	if (!st)
		st = tess_json_get_int(path, root, "step", 0, TESS_SAVED_STEP_MAX, &step);
	if (!st)
		st = check_name(dir, step);
	if (!st)
		st = sum_state(root, sum);
	if (!st && strcmp(sum, json_string_value(json_object_get(root, "checksum"))) != 0)
		st = tess_fail(TESS_EINVAL,
		               "%s: is damaged: its checksum is %s, not %s; resume from an earlier "
		               "save",
		               path, sum, json_string_value(json_object_get(root, "checksum")));
	if (st)
		json_decref(root);
	else
		*out = root;
	return st;
}

tess_status tess_save_compare_checksum(const char *dir, const json_t *state, const char *file,
                                       const char *tensor, uint32_t sum)
{
	const json_t *sums = json_object_get(json_object_get(state, "checksums"), file);
	const char *want = json_string_value(json_object_get(sums, tensor));
	char have[9];

	snprintf(have, sizeof have, "%08x", (unsigned)sum);
	if (!want)
		return tess_fail(TESS_EINVAL,
		                 "%s/" TESS_SAVED_STATE ": has no checksum of %s, tensor %s", dir,
		                 file, tensor);
	if (strcmp(have, want) != 0)
		return tess_fail(TESS_EINVAL,
		                 "%s/%s: tensor %s is damaged: its checksum is %s, and was %s when "
		                 "it was saved; resume from an earlier save",
		                 dir, file, tensor, have, want);
	return TESS_OK;
}

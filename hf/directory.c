#include "hf/directory.h"

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/status.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ADAPTER_BYTES_MAX = 1 << 20, REVISION = 128 };

/* The checkpoints in the folders of a directory. */
struct found {
	char first[PATH_MAX]; /* by name */
	int n;
};

static bool contains_file(const char *dir, const char *name)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof path, "%s/%s", dir, name) < PATH_MAX && !access(path, F_OK);
}

/* Fails if the directory contains an adapter. */
static tess_status check_adapter(const char *dir)
{
	char path[PATH_MAX];
	json_t *root = NULL;
	const char *type, *base;
	tess_status st;

	if (!contains_file(dir, "adapter_config.json"))
		return TESS_OK;
	snprintf(path, sizeof path, "%s/adapter_config.json", dir);
	st = tess_json_load(path, ADAPTER_BYTES_MAX, &root);
	if (st)
		return st;
	type = json_string_value(json_object_get(root, "peft_type"));
	base = json_string_value(json_object_get(root, "base_model_name_or_path"));
	st = tess_fail(TESS_ENOTSUP,
	               "%s: is an adapter%s%.32s%s of the model %.200s, not a model; merge the two "
	               "(peft: merge_and_unload(), save_pretrained) and name the result",
	               dir, type ? " (" : "", type ? type : "", type ? ")" : "",
	               base ? base : "that it was trained on");
	json_decref(root);
	return st;
}

/* ---- checkpoints in the folders below -------------------------------------------------------- */

static void note_checkpoint(const char *path, struct found *f)
{
	if (!contains_file(path, "config.json"))
		return;
	if (!f->n++ || strcmp(path, f->first) < 0)
		snprintf(f->first, sizeof f->first, "%s", path);
}

/* Finds the folders of `dir` that are checkpoints. */
static void find_below(const char *dir, struct found *f)
{
	char path[PATH_MAX];
	DIR *d = opendir(dir);
	const struct dirent *e;

	while (d && (e = readdir(d)))
		if (*e->d_name != '.' &&
		    snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < PATH_MAX)
			note_checkpoint(path, f);
	if (d)
		closedir(d);
}

/* Finds the snapshot of a cached model that refs/main names, or else all snapshots. */
static void find_snapshots(const char *model, struct found *f)
{
	char path[PATH_MAX], revision[REVISION] = "";
	int before = f->n;
	FILE *ref;

	if (snprintf(path, sizeof path, "%s/" TESS_HUB_REF, model) >= PATH_MAX)
		return;
	ref = fopen(path, "re");
	if (ref && fgets(revision, sizeof revision, ref)) {
		revision[strcspn(revision, "/\r\n")] = '\0';
		if (snprintf(path, sizeof path, "%s/snapshots/%s", model, revision) < PATH_MAX)
			note_checkpoint(path, f);
	}
	if (ref)
		fclose(ref);
	if (f->n == before && snprintf(path, sizeof path, "%s/snapshots", model) < PATH_MAX)
		find_below(path, f);
}

/* Finds the checkpoints in a cache of a hub; false: it has no folder models--ORG--NAME. */
static bool find_models(const char *cache, struct found *f)
{
	char path[PATH_MAX];
	DIR *d = opendir(cache);
	const struct dirent *e;
	bool any = false;

	while (d && (e = readdir(d)))
		if (!strncmp(e->d_name, "models--", 8) &&
		    snprintf(path, sizeof path, "%s/%s", cache, e->d_name) < PATH_MAX) {
			find_snapshots(path, f);
			any = true;
		}
	if (d)
		closedir(d);
	return any;
}

tess_status tess_directory_fail_config(const char *dir)
{
	char hub[PATH_MAX];
	struct found f = { .n = 0 };
	bool cache = contains_file(dir, "snapshots");
	tess_status st = check_adapter(dir);

	if (st)
		return st;
	if (cache)
		find_snapshots(dir, &f);
	cache |= find_models(dir, &f);
	if (snprintf(hub, sizeof hub, "%s/hub", dir) < PATH_MAX)
		cache |= find_models(hub, &f);
	if (!cache)
		find_below(dir, &f);
	if (f.n)
		return tess_fail(TESS_ENOENT, "%s: %s; name the directory of the checkpoint, %s%s",
		                 dir, cache ? "is the cache of a hub" : "no config.json is there",
		                 f.n > 1 ? "for example " : "", f.first);
	return tess_fail(TESS_ENOENT,
	                 "%s: no config.json is there%s; the directory of a checkpoint holds "
	                 "config.json, model.safetensors or its parts with "
	                 "model.safetensors.index.json, and tokenizer.json",
	                 dir, cache ? ", nor in a snapshot of this cache of a hub" : "");
}

/* ---- weights --------------------------------------------------------------------------------- */

static bool has_gguf_file(const char *dir)
{
	DIR *d = opendir(dir);
	const struct dirent *e;
	bool found = false;

	while (d && !found && (e = readdir(d))) {
		size_t len = strlen(e->d_name);

		found = len > 5 && !strcmp(e->d_name + len - 5, ".gguf");
	}
	if (d)
		closedir(d);
	return found;
}

tess_status tess_directory_fail_weights(const char *dir)
{
	static const char *const files[] = { "model.safetensors", "model.safetensors.index.json" };
	char path[PATH_MAX], target[1];
	tess_status st;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, files[i]);
		if (readlink(path, target, sizeof target) > 0 && access(path, F_OK))
			return tess_file_fail_open(path);
	}
	st = check_adapter(dir);
	if (st)
		return st;
	if (contains_file(dir, "pytorch_model.bin") ||
	    contains_file(dir, "pytorch_model.bin.index.json"))
		return tess_fail(
			TESS_ENOTSUP,
			"%s: its weights are pickled (pytorch_model.bin), a format that is never "
			"read; save them as safetensors",
			dir);
	if (has_gguf_file(dir))
		return tess_fail(TESS_ENOTSUP,
		                 "%s: its weights are GGUF, a format that is not read; fetch the "
		                 "checkpoint as safetensors",
		                 dir);
	return tess_fail(TESS_ENOENT,
	                 "%s: neither model.safetensors nor model.safetensors.index.json is there",
	                 dir);
}

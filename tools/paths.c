/* paths.c - compares paths by their files, so that no command overwrites its inputs. */
#include "tool.h"

#include "api/save.h"
#include "core/base/option.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tessera/names.h>
#include <tessera/tessera.h>
#include <unistd.h>

/* Splits `path` into its directory and its name there. Returns false if it is too long. */
static bool split_path(const char *path, char parent[PATH_MAX], const char **name)
{
	const char *slash = strrchr(path, '/');
	int len = slash ? (int)(slash - path) + 1 : 1;

	*name = slash ? slash + 1 : path;
	return snprintf(parent, PATH_MAX, "%.*s", len, slash ? path : ".") < PATH_MAX;
}

static bool is_one_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool tess_tool_is_same_path(const char *a, const char *b)
{
	const char *name[2];
	char parent[2][PATH_MAX];
	struct stat about[2];
	bool there[2] = { !stat(a, &about[0]), !stat(b, &about[1]) };

	if (there[0] != there[1])
		return false;
	if (there[0])
		return is_one_file(&about[0], &about[1]) &&
		       (S_ISREG(about[0].st_mode) || S_ISDIR(about[0].st_mode));
	if (!split_path(a, parent[0], &name[0]) || !split_path(b, parent[1], &name[1]) ||
	    stat(parent[0], &about[0]) || stat(parent[1], &about[1]))
		return false;
	return is_one_file(&about[0], &about[1]) && !strcmp(name[0], name[1]);
}

/* Returns whether `path` is in `dir`, or names a file there through a link. */
static bool is_in_directory(const char *path, const char *dir)
{
	char parent[PATH_MAX], real[PATH_MAX];
	const char *name;
	struct dirent *entry;
	bool found;
	DIR *files;

	if (split_path(path, parent, &name) && tess_tool_is_same_path(parent, dir))
		return true;
	found = realpath(path, real) && split_path(real, parent, &name) &&
	        tess_tool_is_same_path(parent, dir);
	files = found ? NULL : opendir(dir);
	while (files && !found && (entry = readdir(files)) != NULL)
		found = entry->d_name[0] != '.' &&
		        snprintf(real, sizeof real, "%s/%s", dir, entry->d_name) < PATH_MAX &&
		        !access(path, F_OK) && tess_tool_is_same_path(path, real);
	if (files)
		closedir(files);
	return found;
}

/* Returns whether `path` is named like a save in `dir`, DIR/step-N, or is a file of one. */
static bool is_in_saves(const char *path, const char *dir)
{
	char parent[PATH_MAX], real[PATH_MAX], above[PATH_MAX];
	const char *name;

	if (!split_path(path, parent, &name))
		return false;
	if (name > path + 1)
		parent[strlen(parent) - 1] = 0; /* the slash; DIR may not exist yet */
	if (tess_tool_is_same_path(parent, dir))
		return !strncmp(name, "step-", 5);
	return realpath(parent, real) && split_path(real, above, &name) &&
	       tess_tool_is_same_path(above, dir) && !strncmp(name, "step-", 5);
}

static bool is_save(const char *dir)
{
	char *path = NULL;
	bool found = !tess_save_find(dir, &path) && !strcmp(path, dir);

	free(path);
	return found;
}

int64_t tess_tool_read_saved_steps(const char *save)
{
	int64_t steps = INT64_MAX;
	json_t *state;

	if (!tess_save_read_state(save, &state)) {
		steps = json_integer_value(json_object_get(state, "step"));
		json_decref(state);
	}
	return steps;
}

int32_t tess_tool_read_saved_math(const char *save)
{
	const char *math = NULL;
	int32_t dtype = TESS_F32;
	json_t *state;

	if (tess_save_read_state(save, &state))
		return dtype;
	math = json_string_value(json_object_get(
		json_object_get(json_object_get(state, "program"), "options"), "math"));
	if (math && !strcmp(math, tess_dtype_name(TESS_BF16)))
		dtype = TESS_BF16;
	json_decref(state);
	return dtype;
}

static tess_status fail_input(const struct tess_tool_output *o, const char *input)
{
	return tess_fail(TESS_EINVAL,
	                 "%s %s: is the input %s; inputs are not overwritten; name another file",
	                 o->option, o->path, input);
}

static tess_status check_output(const struct tess_tool_output *o, const struct tess_tool_inputs *in)
{
	const char *const saves[] = { in->save, in->resume };

	for (int i = 0; i < TESS_TOOL_INPUT_LISTS; i++)
		for (const char *const *file = in->files[i]; file && *file; file++)
			if (tess_tool_is_same_path(o->path, *file))
				return fail_input(o, *file);
	if (in->plan && !access(in->plan, F_OK) && tess_tool_is_same_path(o->path, in->plan))
		return fail_input(o, in->plan);
	if (in->model && is_in_directory(o->path, in->model))
		return tess_fail(
			TESS_EINVAL,
			"%s %s: is in %s; files of MODEL are not overwritten; name a file in "
			"another directory",
			o->option, o->path, in->model);
	for (int i = 0; i < 2; i++)
		if (saves[i] && (is_in_saves(o->path, saves[i]) ||
		                 (is_save(saves[i]) && is_in_directory(o->path, saves[i]))))
			return tess_fail(TESS_EINVAL,
			                 "%s %s: is a save of %s, or a file in one; name another "
			                 "file",
			                 o->option, o->path, saves[i]);
	return TESS_OK;
}

/* Returns the file that the backend `trace` writes; NULL: none. */
static const char *find_trace_file(void)
{
	const char *file = getenv("TESSERA_TRACE_FILE");

	if (strncmp(tess_option_get("backend"), "trace", 5))
		return NULL;
	return file && *file ? file : "tessera-trace.json";
}

tess_status tess_tool_check_outputs(const struct tess_tool_output *outputs,
                                    const struct tess_tool_inputs *in)
{
	struct tess_tool_output all[TESS_TOOL_OUTPUTS_MAX + 1];
	tess_status st = TESS_OK;
	int n = 0;

	for (; outputs && outputs->option; outputs++)
		if (outputs->path)
			all[n++] = *outputs;
	all[n] = (struct tess_tool_output){ "TESSERA_TRACE_FILE", find_trace_file() };
	n += all[n].path != NULL;
	for (int i = 0; i < n && !st; i++) {
		st = check_output(&all[i], in);
		for (int k = 0; k < i && !st; k++)
			if (tess_tool_is_same_path(all[k].path, all[i].path))
				st = tess_fail(
					TESS_EINVAL, "%s %s and %s %s are one file; name two",
					all[k].option, all[k].path, all[i].option, all[i].path);
	}
	return st;
}

/* paths.c - whether two paths are of one file, so that a command does not write what it reads. */
#include "tool.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The directory that `path` is in, and its name there. False: the path is too long. */
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

/* By its name, or, where it is a link, by what it names. */
static bool is_in_directory(const char *path, const char *dir)
{
	char parent[PATH_MAX], real[PATH_MAX];
	const char *name;

	if (split_path(path, parent, &name) && tess_tool_is_same_path(parent, dir))
		return true;
	return realpath(path, real) && split_path(real, parent, &name) &&
	       tess_tool_is_same_path(parent, dir);
}

tess_status tess_tool_check_output(const char *option, const char *path, const char *model,
                                   const char *const *inputs)
{
	for (; path && *inputs; inputs++)
		if (tess_tool_is_same_path(path, *inputs))
			return tess_fail(TESS_EINVAL,
			                 "%s %s: is the file %s, which is read: nothing is written "
			                 "over it; name another file",
			                 option, path, *inputs);
	if (path && is_in_directory(path, model))
		return tess_fail(TESS_EINVAL,
		                 "%s %s: is in %s, and the files of MODEL are never written to; "
		                 "name a file in another directory",
		                 option, path, model);
	return TESS_OK;
}

/* save_dir.c - the directory of a run's saves: paths, the newest save, removal of old ones. */
#include "api/save.h"
#include "core/base/log.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/convert_dir.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns the step of a name "step-N", or with `part` of "step-N.PID-I.part"; else -1. */
static int64_t parse_save_name(const char *name, bool part)
{
	long long step, pid;
	int end = 0, digits = 0, number;

	if (sscanf(name, "step-%18lld%n", &step, &digits) != 1 || name[5] < '0' || name[5] > '9' ||
	    (name[5] == '0' && digits > 6))
		return -1;
	if (part && (sscanf(name + digits, ".%9lld-%9d.part%n", &pid, &number, &end) != 2 || !end))
		return -1;
	return name[digits + end] ? -1 : step;
}

/* Returns the largest step of a save in `d` below `below`; -1: none. */
static int64_t find_newest(DIR *d, int64_t below)
{
	const struct dirent *e;
	int64_t newest = -1, step;

	rewinddir(d);
	while ((e = readdir(d))) {
		step = parse_save_name(e->d_name, false);
		newest = step < below && step > newest ? step : newest;
	}
	return newest;
}

int64_t tess_save_find_step(const char *dir, int64_t below)
{
	DIR *d = opendir(dir);
	int64_t step = d ? find_newest(d, below) : -1;

	if (d)
		closedir(d);
	return step;
}

static bool has_saved_state(const char *path)
{
	char name[PATH_MAX];

	return snprintf(name, sizeof name, "%s/" TESS_SAVED_STATE, path) < PATH_MAX &&
	       !access(name, F_OK);
}

tess_status tess_save_find(const char *dir, char **path)
{
	char *found = NULL;
	int64_t step = -1;
	DIR *d;

	if (TESS_REQUIRE(dir, path))
		return TESS_EINVAL;
	d = opendir(dir);
	if (!d && errno != ENOENT)
		return tess_fail(TESS_EIO, "%s: %s", dir, strerror(errno));
	if (d && has_saved_state(dir))
		found = strdup(dir);
	else if (d && (step = find_newest(d, INT64_MAX)) >= 0 &&
	         asprintf(&found, "%s/step-%lld", dir, (long long)step) < 0)
		found = NULL;
	if (d)
		closedir(d);
	if (d && !found && (step >= 0 || has_saved_state(dir)))
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (!found)
		return tess_fail(TESS_ENOENT,
		                 "%s: nothing is saved there: a save is a directory step-N in it, "
		                 "with " TESS_SAVED_STATE,
		                 dir);
	*path = found;
	return TESS_OK;
}

tess_status tess_save_choose_path(const char *dir, int64_t step, char path[PATH_MAX])
{
	if (mkdir(dir, 0777) && errno != EEXIST)
		return tess_fail(TESS_EIO, "%s: cannot be made: %s", dir, strerror(errno));
	if (snprintf(path, PATH_MAX, "%s/step-%lld", dir, (long long)step) >= PATH_MAX - 64)
		return tess_fail(TESS_EINVAL, "%s: the path is too long", dir);
	if (!access(path, F_OK))
		return tess_fail(TESS_EINVAL,
		                 "%s: exists, and no save is overwritten: resume from it, or save "
		                 "in another directory",
		                 path);
	return errno == ENOENT
	               ? TESS_OK
	               : tess_fail(TESS_EIO, "%s: cannot be written: %s", path, strerror(errno));
}

/* Returns whether `path` is a directory, not a link to one. */
static bool is_own_directory(const char *path)
{
	struct stat about;

	return !lstat(path, &about) && S_ISDIR(about.st_mode);
}

/* Removes a save; renames it first, so that a partial save is never visible. */
static void remove_save(const char *path)
{
	char part[PATH_MAX];

	if (snprintf(part, sizeof part, "%s.%ld-0.part", path, (long)getpid()) >= PATH_MAX)
		return;
	if (rename(path, part))
		tess_log(TESS_WARN, "hf", "%s: cannot be removed: %s", path, strerror(errno));
	else
		tess_convert_remove_part(part);
}

/* Removes the remains of killed runs. */
static void remove_parts(DIR *d, const char *dir)
{
	char path[PATH_MAX];
	const struct dirent *e;

	while ((e = readdir(d)))
		if (parse_save_name(e->d_name, true) >= 0 &&
		    snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < PATH_MAX &&
		    is_own_directory(path))
			tess_convert_remove_part(path);
}

void tess_save_remove_old(const char *dir, const char *kept, const char *used, int32_t keep)
{
	char path[PATH_MAX], real[2][PATH_MAX];
	int64_t step = INT64_MAX;
	DIR *d = opendir(dir);
	int32_t n = 0;

	if (d)
		remove_parts(d, dir);
	while (d && keep && (step = find_newest(d, step)) >= 0) {
		snprintf(path, sizeof path, "%s/step-%lld", dir, (long long)step);
		if (!is_own_directory(path) || !has_saved_state(path))
			continue; /* not a save of ours */
		if (n++ >= keep && strcmp(path, kept) != 0 && realpath(path, real[0]) &&
		    realpath(used, real[1]) && strcmp(real[0], real[1]) != 0)
			remove_save(path);
	}
	if (d)
		closedir(d);
}

/* save_dir.c - the saves of a run: where the next one goes, which is the newest, which are old. */
#include "core/base/log.h"
#include "core/base/status.h"
#include "hf/convert.h"
#include "hf/save.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The step of a name "step-N", else -1; of "step-N.PID-I.part", with `part`. */
static int64_t parse_save_name(const char *name, bool part)
{
	char *end = NULL;
	long long step;

	if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
		return -1;
	errno = 0;
	step = strtoll(name + 5, &end, 10);
	if (errno || (part ? *end != '.' || strcmp(end + strlen(end) - 5, ".part") != 0 : *end))
		return -1;
	return step;
}

/* The largest step of a save in `dir` that is below `below`; -1: there is none. */
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
	DIR *d = opendir(dir);

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

/* Takes its name away first, so that no save is there in part. */
static void remove_save(const char *dir, const char *name)
{
	char path[PATH_MAX], part[PATH_MAX];

	if (snprintf(path, sizeof path, "%s/%s", dir, name) >= PATH_MAX ||
	    snprintf(part, sizeof part, "%s.part", path) >= PATH_MAX)
		return;
	if (parse_save_name(name, true) < 0 && rename(path, part))
		tess_log(TESS_WARN, "hf", "%s: cannot be removed: %s", path, strerror(errno));
	else
		tess_convert_remove_part(parse_save_name(name, true) < 0 ? part : path);
}

void tess_save_remove_old(const char *dir, const char *kept, const char *used, int32_t keep)
{
	char name[64], path[PATH_MAX], real[2][PATH_MAX];
	int64_t step = INT64_MAX;
	const struct dirent *e;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d)))
		if (parse_save_name(e->d_name, true) >= 0)
			remove_save(dir, e->d_name);
	for (int32_t i = 0; d && keep && (step = find_newest(d, step)) >= 0; i++) {
		snprintf(name, sizeof name, "step-%lld", (long long)step);
		snprintf(path, sizeof path, "%s/%s", dir, name);
		if (i >= keep && strcmp(path, kept) != 0 && realpath(path, real[0]) &&
		    realpath(used, real[1]) && strcmp(real[0], real[1]) != 0)
			remove_save(dir, name);
	}
	if (d)
		closedir(d);
}

/* files.c - the save to resume, the directory of saves, and checks of outputs. */
#include "train.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

tess_status train_check_outputs(const struct train_options *a)
{
	const struct tess_tool_output outputs[] = { { "--log", a->log },
		                                    { "--curve", a->curve },
		                                    { 0 } };
	const struct tess_tool_inputs in = { .model = a->session.model,
		                             .plan = a->session.plan,
		                             .save = a->save,
		                             .resume = a->resume,
		                             .files = { a->data.text, a->eval_data.text } };

	return tess_tool_check_outputs(outputs, &in);
}

tess_status train_find_resumed(const struct train_options *a, char out[TRAIN_TEXT])
{
	const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT"), *from = a->resume;
	char *path = NULL;
	tess_status st;

	*out = 0;
	if (a->save && restarts && atoi(restarts) > 0 && !tess_save_find(a->save, &path))
		from = a->save;
	if (!from)
		return TESS_OK;
	st = path ? TESS_OK : tess_save_find(from, &path);
	if (!st && snprintf(out, TRAIN_TEXT, "%s", path) >= TRAIN_TEXT)
		st = tess_fail(TESS_EINVAL, "%s: the path is too long", path);
	free(path);
	return st;
}

tess_status train_choose_math(struct train_options *a)
{
	char resumed[TRAIN_TEXT];
	tess_status st;

	if (a->session.math)
		return TESS_OK;
	st = train_find_resumed(a, resumed);
	if (!st)
		a->session.math = *resumed ? tess_tool_read_saved_math(resumed) : TESS_F32;
	return st;
}

/* Returns whether the saves in the directory of --save belong to the run of `resumed`. */
static bool is_resumed_directory(const struct train_options *a, const char *resumed)
{
	char parent[TRAIN_TEXT + 4];

	snprintf(parent, sizeof parent, "%s/..", resumed);
	return *resumed && (tess_tool_is_same_path(a->save, parent) ||
	                    (a->resume && tess_tool_is_same_path(a->save, a->resume)));
}

tess_status train_check_directory(const struct train_options *a, const char *resumed)
{
	const char *name;
	char *newest = NULL;
	tess_status st = TESS_OK;

	if (!a->save || tess_save_find(a->save, &newest))
		return TESS_OK;
	name = strrchr(newest, '/');
	if (!strcmp(newest, a->save))
		st = tess_fail(
			TESS_EINVAL,
			"--save %s: is a save itself; use its parent directory, or another one",
			a->save);
	else if (!is_resumed_directory(a, resumed))
		st = tess_fail(TESS_EINVAL,
		               "--save %s: already has %s, which this run does not resume; use "
		               "--resume %s, or another directory",
		               a->save, newest, a->save);
	else if (atoll(name + strlen("/step-")) > tess_tool_read_saved_steps(resumed))
		st = tess_fail(
			TESS_EINVAL,
			"--save %s: already has %s, which is newer than %s; use --resume %s, "
			"another directory, or remove %s",
			a->save, newest, resumed, a->save, newest);
	free(newest);
	return st;
}

tess_status train_claim_directory(const struct train_options *a, const char *resumed, int *lock)
{
	struct stat about;

	if (!a->save)
		return TESS_OK;
	if ((mkdir(a->save, 0777) && errno != EEXIST) || stat(a->save, &about) ||
	    access(a->save, W_OK))
		return tess_fail(TESS_EIO, "--save %s: %s", a->save, strerror(errno));
	if (!S_ISDIR(about.st_mode))
		return tess_fail(TESS_EIO, "--save %s: %s", a->save, strerror(ENOTDIR));
	*lock = open(a->save, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* other failures come from file systems without locks */
	if (*lock >= 0 && flock(*lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		return tess_fail(TESS_EINVAL,
		                 "--save %s: another run saves there; wait for its end, or use "
		                 "another directory",
		                 a->save);
	return train_check_directory(a, resumed);
}

/*
 * trust.c - decides whether a plugin file can be trusted: every component of its real path is
 * writable only by root, the caller, a group of the caller, or the owner of the running libtessera
 * or program. Another owner is trusted only if the user has named the directory.
 */
#include "core/registry/file.h"

#include "core/base/log.h"
#include "core/base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uid_t get_library_owner(void)
{
	char real[PATH_MAX];
	struct stat about;
	bool program;

	if (!tess_registry_find_own_file(real, &program) || stat(real, &about))
		return geteuid();
	return about.st_uid;
}

/* Returns whether a group is 0 or one of the caller's. */
static bool is_own_group(gid_t gid)
{
	return !gid || gid == getegid() || group_member(gid);
}

/* Checks one component. `holds`: the file's own directory, where a sticky bit is not enough. */
static tess_status check_component(const char *path, bool holds, const struct tess_dir *dir,
                                   bool *warned)
{
	struct stat about;
	mode_t open = 0;

	if (lstat(path, &about))
		return tess_fail(TESS_EPERM, "%s: %s", path, strerror(errno));
	if (!S_ISDIR(about.st_mode) || holds || !(about.st_mode & S_ISVTX))
		open = about.st_mode & (S_IWOTH | S_IWGRP);
	if (open & S_IWOTH)
		return tess_fail(TESS_EPERM, "%s is world-writable; chmod o-w it", path);
	if (open && !is_own_group(about.st_gid))
		return tess_fail(TESS_EPERM,
		                 "%s is writable by group %u, which is not yours; chmod g-w it",
		                 path, (unsigned)about.st_gid);
	if (about.st_uid == 0 || about.st_uid == geteuid() || about.st_uid == get_library_owner())
		return TESS_OK;
	if (!dir->user_named)
		return tess_fail(
			TESS_EPERM,
			"%s belongs to user %u, which is neither root nor you; chown it, or name "
			"its directory in TESSERA_PLUGIN_PATH",
			path, (unsigned)about.st_uid);
	if (!*warned)
		tess_log(TESS_WARN, "registry",
		         "%s belongs to user %u; it is trusted because %s is named (%s)", path,
		         (unsigned)about.st_uid, dir->path, dir->origin);
	*warned = true;
	return TESS_OK;
}

/* Checks a canonical path from the root down. */
static tess_status check_path(char *real, bool file, const struct tess_dir *dir, bool *warned)
{
	tess_status st = check_component("/", false, dir, warned);
	char *end = real;

	while (!st && *end) {
		char *next = end + 1 + strcspn(end + 1, "/"), kept = *next;
		bool last = !kept, holds = file ? !last && !strchr(next + 1, '/') : last;

		*next = '\0';
		st = check_component(real, holds, dir, warned);
		*next = kept;
		end = next;
	}
	return st;
}

tess_status tess_file_check_trust(const char *path, const struct tess_dir *dir,
                                  char real[static PATH_MAX])
{
	char folder[PATH_MAX], link[PATH_MAX];
	struct stat about;
	bool warned = false;
	tess_status st;
	ssize_t n;

	if (!realpath(dir->path, folder))
		return tess_fail(TESS_EIO, "%s: %s", dir->path, strerror(errno));
	if (!realpath(path, real)) {
		n = errno == ENOENT ? readlink(path, link, sizeof link - 1) : -1;
		if (n < 0)
			return tess_fail(TESS_EIO, "%s", strerror(errno));
		link[n] = '\0';
		return tess_fail(TESS_EINVAL, "a dangling link to %s", link);
	}
	if (stat(real, &about) || !S_ISREG(about.st_mode))
		return tess_fail(TESS_EINVAL, "not a regular file");
	st = check_path(folder, false, dir, &warned);
	return st ? st : check_path(real, true, dir, &warned);
}

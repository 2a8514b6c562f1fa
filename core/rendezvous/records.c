#include "core/rendezvous/records.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/rendezvous/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX ".records"

enum { LOCK_TRIES_MAX = 100 };

/* Locks the directory without waiting; -1: it has been removed, or is locked. */
static int lock_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	struct stat about;

	if (fd < 0 || (!flock(fd, LOCK_EX | LOCK_NB) && !fstat(fd, &about) && about.st_nlink))
		return fd;
	close(fd);
	return -1;
}

int tess_records_make(char *path, size_t size)
{
	int fd = -1, tries = 0;
	tess_status st;
	char name[64];

	snprintf(name, sizeof name, "%d-%" PRId64 SUFFIX, (int)getpid(), tess_now());
	st = tess_socket_path(name, path, size);
	while (!st && fd < 0 && tries++ < LOCK_TRIES_MAX) {
		if (tries > 1) /* another launcher swept it before it was locked */
			poll(NULL, 0, 1);
		if (mkdir(path, 0700) && errno != EEXIST)
			st = tess_fail(TESS_EIO, "%s cannot be created: %s", path, strerror(errno));
		else
			fd = lock_directory(path);
	}
	if (fd >= 0)
		return fd;
	if (!st)
		tess_fail(TESS_EIO, "%s cannot be locked", path);
	*path = '\0';
	tess_log(TESS_WARN, "launch", "the ranks' calls are not recorded: %s", tess_error());
	return -1;
}

void tess_records_sweep(void)
{
	char dir[128], path[400];
	DIR *d = tess_socket_open_directory(dir, sizeof dir);
	struct dirent *e;

	while (d && (e = readdir(d))) {
		size_t len = strlen(e->d_name);
		int fd;

		if (len < sizeof SUFFIX || strcmp(e->d_name + len + 1 - sizeof SUFFIX, SUFFIX))
			continue;
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		fd = lock_directory(path);
		if (fd < 0)
			continue;
		tess_records_remove(path);
		close(fd);
	}
	if (d)
		closedir(d);
}

void tess_records_clear(const char *path)
{
	DIR *d = *path ? opendir(path) : NULL;
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (*e->d_name != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

void tess_records_remove(const char *path)
{
	tess_records_clear(path);
	if (*path)
		rmdir(path);
}

#include "records.h"

#include "clock.h"
#include "flight.h"
#include "wire.h"

#include <core/base/log.h>
#include <core/base/status.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void tess_records_make(char *path, size_t room)
{
	tess_status st;
	char name[64];

	snprintf(name, sizeof name, "%d-%" PRId64 ".records", (int)getpid(), tess_now());
	st = tess_socket_path(name, path, room);
	if (!st && mkdir(path, 0700))
		st = tess_fail(TESS_EIO, "%s cannot be made: %s", path, strerror(errno));
	if (!st)
		return;
	*path = '\0';
	tess_log(TESS_WARN, "launch", "the ranks' calls are not recorded: %s", tess_error());
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

void tess_records_end(const char *path)
{
	tess_records_clear(path);
	if (*path)
		rmdir(path);
}

bool tess_records_has(const char *path, int32_t rank)
{
	char file[4096];

	tess_flight_path(path, rank, file, sizeof file);
	return !access(file, F_OK);
}

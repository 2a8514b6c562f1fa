#include "core/base/file.h"

#include "core/base/status.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tess_status tess_file_fail_open(const char *path)
{
	int why = errno;
	char target[PATH_MAX];
	ssize_t n = why == ENOENT ? readlink(path, target, sizeof target - 1) : -1;

	if (n < 0)
		return tess_fail(why == ENOENT ? TESS_ENOENT : TESS_EIO, "%s: %s", path,
		                 strerror(why));
	target[n] = '\0';
	return tess_fail(TESS_EIO,
	                 "%s: a link that points to no file (%s); fetch what it names, or put the "
	                 "file in its place",
	                 path, target);
}

tess_status tess_file_check_pointer(const char *path, const void *bytes, size_t len)
{
	static const char first[] = "version https://git-lfs";
	size_t n = len < sizeof first - 1 ? len : sizeof first - 1;

	if (n < strlen("version ") || memcmp(bytes, first, n) != 0)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "%s: is a pointer of git-lfs, not the file itself; run `git lfs pull` in "
	                 "the clone, or download the file",
	                 path);
}

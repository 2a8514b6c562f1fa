#include "core/base/file.h"

#include "core/base/status.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
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

/* Returns whether the bytes begin as `text`; the first 8 of them suffice. */
static bool begins_as(const char *text, const void *bytes, size_t len)
{
	size_t n = strlen(text);

	return len >= (n < 8 ? n : 8) && !memcmp(bytes, text, n < len ? n : len);
}

tess_status tess_file_check_pointer(const char *path, const void *bytes, size_t len)
{
	if (begins_as("version https://git-lfs", bytes, len))
		return tess_fail(TESS_EINVAL,
		                 "%s: is a pointer of git-lfs, not the file itself; run `git lfs "
		                 "pull` in the clone, or download the file",
		                 path);
	if (begins_as("../", bytes, len))
		return tess_fail(TESS_EINVAL,
		                 "%s: holds the target of a link as text, not the file itself; "
		                 "copy links as links (cp -a), or download the file",
		                 path);
	return TESS_OK;
}

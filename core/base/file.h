/* file.h - messages for files that cannot be read as what they are meant to be. */
#ifndef TESS_BASE_FILE_H
#define TESS_BASE_FILE_H

#include <stddef.h>
#include <tessera/plugin.h>

/*
 * Reports why `path` cannot be opened, by errno. TESS_ENOENT: no such file. A link whose target is
 * missing is TESS_EIO, so that it is not taken for an optional file that is absent.
 */
tess_status tess_file_fail_open(const char *path);

/*
 * TESS_EINVAL: the first `len` bytes of the file are those of a git-lfs pointer, or of a link that
 * was copied as text.
 */
tess_status tess_file_check_pointer(const char *path, const void *bytes, size_t len);

#endif

/* file.h - messages for files that cannot be opened, or are placeholders. */
#ifndef TESS_BASE_FILE_H
#define TESS_BASE_FILE_H

#include <stddef.h>
#include <tessera/plugin.h>

/*
 * Reports why `path` cannot be opened, by errno. TESS_ENOENT: no such file. TESS_EIO: a link whose
 * target is missing, which must not pass for an absent optional file.
 */
tess_status tess_file_fail_open(const char *path);

/*
 * Fails with TESS_EINVAL if the first `len` bytes of the file are those of a git-lfs pointer, or of
 * a link that was copied as text.
 */
tess_status tess_file_check_pointer(const char *path, const void *bytes, size_t len);

#endif

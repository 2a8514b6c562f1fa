/* scratch.h - a temporary directory of a test, made before its tests run and removed after them. */
#ifndef TESS_TESTS_SUPPORT_SCRATCH_H
#define TESS_TESTS_SUPPORT_SCRATCH_H

#include "suite.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[256];

static inline void scratch_make(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(scratch, sizeof scratch, "%s/tessera-test-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(scratch)) {
		perror(scratch);
		exit(EXIT_FAILURE);
	}
}

static inline int scratch_remove_entry(const char *path, const struct stat *about, int kind,
                                       struct FTW *walk)
{
	(void)about, (void)kind, (void)walk;
	return remove(path);
}

static inline void scratch_remove(void)
{
	nftw(scratch, scratch_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Returns the path of a file in a folder; valid for the next seven calls. */
static inline const char *format_path_in(const char *folder, const char *name)
{
	static char paths[8][1280];
	static unsigned next;
	char *path = paths[next++ % 8];

	ck_assert_int_lt(snprintf(path, sizeof paths[0], "%s/%s", folder, name), sizeof paths[0]);
	return path;
}

static inline const char *scratch_format_path(const char *name)
{
	return format_path_in(scratch, name);
}

static inline const char *scratch_write(const char *name, const void *bytes, size_t len)
{
	const char *path = scratch_format_path(name);
	FILE *f = fopen(path, "wb");

	ck_assert_msg(f && fwrite(bytes, 1, len, f) == len && !fclose(f), "%s", path);
	return path;
}

static inline const char *scratch_write_text(const char *name, const char *text)
{
	return scratch_write(name, text, strlen(text));
}

static inline void scratch_make_folder(const char *name)
{
	ck_assert_int_eq(mkdir(scratch_format_path(name), 0700), 0);
}

/* Returns the path of a file of the checkpoint in data/. */
static inline const char *format_data_path(const char *name)
{
	const char *folder = getenv("DATA_DIR");

	return format_path_in(folder ? folder : "data", name);
}

#define SCRATCH_MAIN(name, ...) \
	int main(void) \
	{ \
		int failed; \
\
		scratch_make(); \
		failed = suite_main(name, (const TTest *const[]){ __VA_ARGS__, NULL }); \
		scratch_remove(); \
		return failed; \
	}

#endif

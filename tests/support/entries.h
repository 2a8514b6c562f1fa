/* entries.h - counts the entries of a directory, to find leaks. */
#ifndef TESS_TESTS_SUPPORT_ENTRIES_H
#define TESS_TESTS_SUPPORT_ENTRIES_H

#include <dirent.h>

/*
 * Counts entries, including "." and "..", and for /proc/self/fd its own descriptor. 0: unreadable.
 */
static inline int count_dir_entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

#endif

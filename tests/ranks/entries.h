/* entries.h - how many names a directory holds: what a process must not gather. */
#ifndef TESTS_ENTRIES_H
#define TESTS_ENTRIES_H

#include <dirent.h>

/* 0: it cannot be read. "." and ".." count, and of /proc/self/fd the look itself. */
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

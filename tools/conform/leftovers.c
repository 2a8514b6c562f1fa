/*
 * leftovers.c - finds files that a job leaves in /dev/shm, /tmp or the directory of the rendezvous:
 * those that a rank had open or mapped, and those with the process id of a rank in their name.
 */
#include "conform.h"

#include "core/rendezvous/wire.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES = 3, CLEANING_MS = 1000, CHECK_MS = 20 };

static void find_places(char place[PLACES][CONFORM_PATH])
{
	bool missing;

	snprintf(place[0], CONFORM_PATH, "/dev/shm");
	snprintf(place[1], CONFORM_PATH, "/tmp");
	snprintf(place[2], CONFORM_PATH, "%.80s/tessera-%u", tess_socket_find_base(&missing),
	         (unsigned)geteuid());
}

/* ---- on a rank ------------------------------------------------------------------------------- */

static void note_file(struct conform_rank_state *s, const char *path)
{
	char place[PLACES][CONFORM_PATH];

	find_places(place);
	for (int i = 0; i < PLACES; i++) {
		size_t len = strlen(place[i]);

		if (strncmp(path, place[i], len) != 0 || path[len] != '/' ||
		    strlen(path) >= CONFORM_PATH || strstr(path, " (deleted)"))
			continue;
		for (uint32_t k = 0; k < s->nfiles; k++)
			if (!strcmp(s->file[k], path))
				return;
		if (s->nfiles < CONFORM_FILES)
			strcpy(s->file[s->nfiles++], path);
		return;
	}
}

/* Notes the path of the Unix socket with this inode, if it has one. */
static void note_socket(struct conform_rank_state *s, const char *inode)
{
	FILE *f = fopen("/proc/net/unix", "re");
	char line[512], found[32], path[CONFORM_PATH];

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%*s %*s %*s %*s %*s %*s %31s %127s", found, path) == 2 &&
		    !strcmp(found, inode))
			note_file(s, path);
	if (f)
		fclose(f);
}

static void note_open_files(struct conform_rank_state *s)
{
	DIR *dir = opendir("/proc/self/fd");
	const struct dirent *e;
	char path[CONFORM_PATH];

	while (dir && (e = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, path, sizeof path - 1);

		path[n > 0 ? n : 0] = '\0';
		if (!strncmp(path, "socket:[", 8)) {
			path[strcspn(path, "]")] = '\0';
			note_socket(s, path + 8);
		} else {
			note_file(s, path);
		}
	}
	if (dir)
		closedir(dir);
}

void conform_note_files(struct conform_rank *me)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];

	note_open_files(me->state);
	while (f && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = '\0';
		if (strchr(line, '/'))
			note_file(me->state, strchr(line, '/'));
	}
	if (f)
		fclose(f);
}

/* ---- after the job --------------------------------------------------------------------------- */

/* Returns whether a path exists that was created at or after `since`, seconds of the real time. */
static bool is_created_since(const char *path, int64_t since)
{
	struct statx about;

	if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BTIME | STATX_CTIME, &about))
		return false;
	return (about.stx_mask & STATX_BTIME ? about.stx_btime.tv_sec : about.stx_ctime.tv_sec) >=
	       since;
}

/* Returns whether a name has this number, between characters that are not digits. */
static bool has_number(const char *name, int32_t number)
{
	for (const char *at = name; *at; at++)
		if (isdigit((unsigned char)*at)) {
			char *end;

			if (strtoll(at, &end, 10) == number)
				return true;
			at = end - 1;
		}
	return false;
}

static bool names_rank(const struct conform_shared *b, const char *name)
{
	for (int32_t r = 0; r < b->job.nranks; r++)
		if (b->rank_state[r].pid > 0 && has_number(name, b->rank_state[r].pid))
			return true;
	return false;
}

static bool find_noted(const struct conform_shared *b, int64_t since, char out[CONFORM_ACTIVITY])
{
	for (int32_t r = 0; r < b->job.nranks; r++)
		for (uint32_t i = 0; i < b->rank_state[r].nfiles; i++)
			if (is_created_since(b->rank_state[r].file[i], since)) {
				snprintf(out, CONFORM_ACTIVITY, "%s", b->rank_state[r].file[i]);
				return true;
			}
	return false;
}

static bool find_named(const struct conform_shared *b, int64_t since, char out[CONFORM_ACTIVITY])
{
	char place[PLACES][CONFORM_PATH];
	bool found = false;

	find_places(place);
	for (int i = 0; i < PLACES && !found; i++) {
		DIR *dir = opendir(place[i]);
		const struct dirent *e;

		while (dir && !found && (e = readdir(dir))) {
			snprintf(out, CONFORM_ACTIVITY, "%.100s/%.150s", place[i], e->d_name);
			found = names_rank(b, e->d_name) && is_created_since(out, since);
		}
		if (dir)
			closedir(dir);
	}
	return found;
}

bool conform_find_leftover(const struct conform_shared *b, int64_t since,
                           char out[CONFORM_ACTIVITY])
{
	bool named = !b->job.foreign && !b->job.threads; /* else the process has other files */

	for (int ms = 0;; ms += CHECK_MS) {
		if (!find_noted(b, since, out) && !(named && find_named(b, since, out)))
			return false;
		if (ms >= CLEANING_MS)
			return true;
		conform_sleep(CHECK_MS * (int64_t)TESS_MS);
	}
}

#include "core/launch/subreaper.h"

#include "core/base/clock.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void tess_subreaper_set(bool yes)
{
	prctl(PR_SET_CHILD_SUBREAPER, (unsigned long)yes, 0UL, 0UL, 0UL);
}

static pid_t read_parent(const char *pid)
{
	char path[300], line[512], *end;
	int parent = -1;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%s/stat", pid);
	f = fopen(path, "re");
	if (f && fgets(line, sizeof line, f) &&
	    (end = strrchr(line, ')'))) /* the name may have any character */
		sscanf(end + 1, " %*c %d", &parent);
	if (f)
		fclose(f);
	return parent;
}

static void kill_children(void)
{
	DIR *d = opendir("/proc");
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (isdigit((unsigned char)*e->d_name) && read_parent(e->d_name) == getpid())
			kill((pid_t)atoi(e->d_name), SIGKILL);
	if (d)
		closedir(d);
}

void tess_subreaper_kill_children(int64_t deadline)
{
	for (;;) {
		pid_t pid = waitpid(-1, NULL, WNOHANG);

		if (pid > 0 || (pid < 0 && errno == EINTR))
			continue;
		if (pid < 0 || tess_now() >= deadline)
			return;
		kill_children();
		poll(NULL, 0, 1);
	}
}

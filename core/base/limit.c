#include "core/base/limit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static const struct limit {
	int error; /* the limit is a possible cause of messages with the text of this errno, */
	const char *text; /* or with this text */
	int resource;
	const char *name, *counts, *option;
} limits[] = {
	{ EMFILE, NULL, RLIMIT_NOFILE, "RLIMIT_NOFILE", "open files", "-n" },
	{ EFBIG, NULL, RLIMIT_FSIZE, "RLIMIT_FSIZE", "bytes of a file", "-f" },
	{ ENOMEM, "no memory", RLIMIT_AS, "RLIMIT_AS", "bytes of address space", "-v" },
	{ ENOMEM, "out of memory", RLIMIT_AS, "RLIMIT_AS", "bytes of address space", "-v" },
	{ ENOMEM, "failed to map segment", RLIMIT_AS, "RLIMIT_AS", "bytes of address space", "-v" },
	{ EAGAIN, NULL, RLIMIT_AS, "RLIMIT_AS", "bytes of address space", "-v" }, /* of a stack */
	{ EAGAIN, NULL, RLIMIT_NPROC, "RLIMIT_NPROC", "processes and threads of a user", "-u" },
};

void tess_limit_append(char *message, size_t size)
{
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
		const struct limit *l = &limits[i];
		size_t len = strlen(message);
		struct rlimit now;

		if ((strstr(message, strerror(l->error)) ||
		     (l->text && strstr(message, l->text))) &&
		    !strstr(message, l->name) && !getrlimit(l->resource, &now) &&
		    now.rlim_cur != RLIM_INFINITY)
			snprintf(message + len, size - len,
			         "; the limit is %" PRIu64 " %s (%s): raise it with ulimit %s",
			         (uint64_t)now.rlim_cur, l->counts, l->name, l->option);
	}
}

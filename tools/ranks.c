/* ranks.c - a command that runs itself as N rank processes. */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/comm/launch.h"
#include "tool.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tess_status tess_tool_ranks(int32_t n, char **argv, int *exit_status)
{
	struct tess_launch how = { .nranks = n, .backend = tess_option("backend"), .stream = true };
	char self[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
	size_t args = 0;
	char **full;
	tess_status st;

	if (len < 0)
		return tess_fail(TESS_EIO,
		                 "/proc/self/exe cannot be read: the ranks run this very program");
	self[len] = 0;
	while (argv[args])
		args++;
	full = calloc(args + 2, sizeof *full);
	if (!full)
		return tess_fail(TESS_ENOMEM, "out of memory");
	full[0] = self; /* argv starts with the subcommand */
	memcpy(full + 1, argv, args * sizeof *argv);
	how.path = self;
	how.argv = full;
	st = tess_launch(&how, exit_status);
	free(full);
	return st;
}

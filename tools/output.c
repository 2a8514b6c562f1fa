/* output.c - stdout of a command: what cannot be written ends the command with one sentence. */
#include "tool.h"

#include "core/base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The eventfd by which rank 0 tells the command that has started it: other ranks would hear of a bad exit status. */
static const char variable[] = "TESSERA_OUTPUT";

static int failure; /* errno of the first write that failed */
static int report = -1; /* in rank 0 */
static bool quiet; /* SIGPIPE would have ended the command */

bool tess_tool_flush_output(void)
{
	errno = 0;
	if (!failure && (fflush(stdout) || ferror(stdout)))
		failure = errno ? errno : EIO;
	return !failure;
}

void tess_tool_open_output(void)
{
	const char *fd = getenv(variable);

	quiet = signal(SIGPIPE, SIG_IGN) != SIG_IGN;
	if (fd)
		report = atoi(fd);
	unsetenv(variable);
}

tess_status tess_tool_share_output_error(int *fd)
{
	char number[16];

	*fd = eventfd(0, EFD_NONBLOCK);
	snprintf(number, sizeof number, "%d", *fd);
	if (*fd < 0 || setenv(variable, number, 1))
		return tess_fail(TESS_EIO, "no descriptor for the output: %s", strerror(errno));
	return TESS_OK;
}

void tess_tool_receive_output_error(int fd)
{
	uint64_t told;

	if (read(fd, &told, sizeof told) == sizeof told)
		failure = (int)told;
	close(fd);
}

int tess_tool_finish_output(const char *command, int status)
{
	uint64_t why;

	if (tess_tool_flush_output())
		return status;
	why = (uint64_t)failure;
	if (report >= 0 && write(report, &why, sizeof why) == sizeof why)
		return status;
	if (failure == EPIPE && quiet)
		return 128 + SIGPIPE;
	if (failure == EPIPE)
		raise(SIGPIPE); /* `| head` has had enough: no sentence, unless the caller ignores the signal */
	fprintf(stderr, "tessera %s: stdout: %s\n", command, strerror(failure));
	return status ? status : 1;
}

/* output.c - stdout of a command, and its message on stderr, which its ranks print once. */
#include "tool.h"

#include "core/base/json.h"
#include "core/base/memory_file.h"
#include "core/base/status.h"
#include "core/rendezvous/failure.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The contents of a memfd that the command and its ranks share. */
static const char variable[] = "TESSERA_OUTPUT";

struct shared_output {
	/* errno of rank 0's first failed write to stdout, which the command prints */
	int32_t error;
	int32_t status; /* exit status of the command, even if all ranks end with 0 */
	char sentence[TESS_SENTENCE]; /* the last message that a rank has printed */
};

/* Ranks may be threads, and ThreadSanitizer does not know the lock inside a FILE. */
static pthread_mutex_t stdout_lock = PTHREAD_MUTEX_INITIALIZER;
static int failure; /* errno of the first failed write */
static int shared_fd = -1; /* in a rank */
static bool ignores_sigpipe; /* inherited: a failed write does not end the command */

/* ---- stdout ---------------------------------------------------------------------------------- */

/* Writes all bytes; waits if stdout is a full non-blocking pipe. */
static ssize_t write_to_stdout(void *self, const char *bytes, size_t n)
{
	struct pollfd p = { .fd = STDOUT_FILENO, .events = POLLOUT };
	size_t done = 0;

	(void)self;
	while (done < n) {
		ssize_t k = write(STDOUT_FILENO, bytes + done, n - done);

		if (k >= 0)
			done += (size_t)k;
		else if (errno == EAGAIN)
			poll(&p, 1, -1);
		else if (errno != EINTR) {
			failure = errno; /* later output may change errno */
			return 0;
		}
	}
	return (ssize_t)n;
}

bool tess_tool_replace_stdout(void)
{
	FILE *f = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = write_to_stdout });

	if (!f || (isatty(STDOUT_FILENO) && setvbuf(f, NULL, _IOLBF, 0)))
		return false;
	stdout = f;
	return true;
}

static bool flush_stdout(void)
{
	errno = 0;
	if (!failure && (fflush(stdout) || ferror(stdout)))
		failure = errno ? errno : EIO;
	return !failure;
}

bool tess_tool_flush_output(void)
{
	bool written;

	pthread_mutex_lock(&stdout_lock);
	written = flush_stdout();
	pthread_mutex_unlock(&stdout_lock);
	return written;
}

FILE *tess_tool_open_memory(char **text, size_t *len)
{
	return tess_memory_file_open(text, len);
}

bool tess_tool_lacked_json_memory(void)
{
	return tess_json_lacked_memory();
}

/* ---- what ranks share with their command ----------------------------------------------------- */

void tess_tool_open_output(void)
{
	const char *fd = getenv(variable);

	ignores_sigpipe = signal(SIGPIPE, SIG_IGN) != SIG_IGN;
	if (fd)
		shared_fd = atoi(fd);
	unsetenv(variable);
}

tess_status tess_tool_share_output(int *fd)
{
	char number[16];

	*fd = memfd_create("output", 0);
	snprintf(number, sizeof number, "%d", *fd);
	if (*fd < 0 || setenv(variable, number, 1))
		return tess_fail(TESS_EIO, "no descriptor for the output: %s", strerror(errno));
	return TESS_OK;
}

int tess_tool_receive_output_error(int fd)
{
	struct shared_output shared = { 0 };

	if (pread(fd, &shared, sizeof shared, 0) >= (ssize_t)sizeof shared.error)
		failure = shared.error;
	close(fd);
	return shared.status;
}

int tess_tool_share_status(int status)
{
	const int32_t shared = status;
	bool told = status && shared_fd >= 0 &&
	            pwrite(shared_fd, &shared, sizeof shared,
	                   offsetof(struct shared_output, status)) > 0;

	return told ? 0 : status;
}

/* Locks (F_WRLCK) or unlocks (F_UNLCK) the output among ranks that share a descriptor. */
static void lock_output(short type)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET };

	while (shared_fd >= 0 && fcntl(shared_fd, F_SETLKW, &lock) && errno == EINTR)
		;
}

bool tess_tool_print_lines(const char *text, size_t n)
{
	bool written;

	lock_output(F_WRLCK);
	pthread_mutex_lock(&stdout_lock);
	fwrite(text, 1, n, stdout);
	written = flush_stdout();
	pthread_mutex_unlock(&stdout_lock);
	lock_output(F_UNLCK);
	return written;
}

void tess_tool_print_error(const char *command)
{
	const off_t at = offsetof(struct shared_output, sentence);
	char printed[TESS_SENTENCE] = "";

	lock_output(F_WRLCK);
	if (shared_fd >= 0 && pread(shared_fd, printed, sizeof printed, at) < 0)
		*printed = '\0';
	if (strncmp(printed, tess_error(), sizeof printed - 1) != 0)
		fprintf(stderr, "tessera %s: %s\n", command, tess_error());
	snprintf(printed, sizeof printed, "%s", tess_error());
	if (shared_fd < 0 || pwrite(shared_fd, printed, sizeof printed, at) >= 0)
		lock_output(F_UNLCK); /* else the end of the rank unlocks it */
}

int tess_tool_finish_output(const char *command, int status)
{
	int32_t error;

	if (!status && tess_json_lacked_memory()) {
		fprintf(stderr, "tessera %s: out of memory for JSON\n", command);
		status = 1;
	}
	if (tess_tool_flush_output())
		return status;
	error = failure;
	if (shared_fd >= 0 && pwrite(shared_fd, &error, sizeof error, 0) == sizeof error)
		return status;
	if (failure == EPIPE && ignores_sigpipe)
		return 128 + SIGPIPE;
	if (failure == EPIPE)
		raise(SIGPIPE); /* `| head`: no message, unless the caller ignores the signal */
	fprintf(stderr, "tessera %s: stdout: %s\n", command, strerror(failure));
	return status ? status : 1;
}

/* command.h - runs a shell command and keeps its output. */
#ifndef TESS_TESTS_SUPPORT_COMMAND_H
#define TESS_TESTS_SUPPORT_COMMAND_H

#include "suite.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>

/*
 * Runs the command and stores its stdout, ended by 0, in `out`, up to its size. Returns the exit
 * status, or 128 plus the signal.
 */
static inline int __attribute__((format(printf, 3, 4)))
command_run(char *out, size_t capacity, const char *fmt, ...)
{
	char command[8192], rest[4096];
	size_t len;
	va_list ap;
	int status;
	FILE *f;

	va_start(ap, fmt);
	MUST(vsnprintf(command, sizeof command, fmt, ap) < (int)sizeof command);
	va_end(ap);
	f = popen(command, "r");
	MUST(f);
	len = fread(out, 1, capacity - 1, f);
	out[len] = '\0';
	while (fread(rest, 1, sizeof rest, f)) /* otherwise the command would end with SIGPIPE */
		;
	status = pclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif

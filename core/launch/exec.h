/* exec.h - what a process must do to become a rank of a job. */
#ifndef TESS_COMM_EXEC_H
#define TESS_COMM_EXEC_H

#include "job.h"

enum { TESS_GIVEN = 9 }; /* variables that a rank gets, two of them by options */

struct tess_exec {
	const struct tess_launch *how;
	const struct tess_attempt *attempt;
	int32_t rank;
	pid_t parent;
	int report; /* gets an errno if the program cannot be run */
	char own[TESS_GIVEN][160]; /* the variables that are given */
	char **vars; /* the environment */
};

/* The environment: ours but for what is given. Before the fork, after which malloc is not safe. */
tess_status tess_exec_prepare(struct tess_exec *e, const struct tess_launch *how,
                              const struct tess_attempt *attempt, const char *rendezvous);
/*
 * In the new process: only calls that are safe after a fork of a program with threads. out, err: its stdout and
 * stderr; -1: ours.
 */
_Noreturn void tess_exec_become(const struct tess_exec *e, int out, int err);
void tess_exec_free(struct tess_exec *e);

#endif

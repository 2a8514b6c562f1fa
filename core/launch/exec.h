/* exec.h - turns a new process into a rank of a job, which runs a program or a function. */
#ifndef TESS_LAUNCH_EXEC_H
#define TESS_LAUNCH_EXEC_H

#include "core/launch/job.h"

enum { TESS_RANK_VARS = 9 }; /* variables set for a rank, two of them by options */

struct tess_exec {
	const struct tess_launch *how;
	const struct tess_attempt *attempt;
	int32_t rank;
	pid_t parent;
	int report; /* receives an errno if the program cannot be run */
	int start; /* a byte for each rank: its function may run; -1: a program */
	char rank_vars[TESS_RANK_VARS][160]; /* "RANK=0", ...; "": not set */
	char **environment;
};

/* Makes the environment of a rank. Allocates, so call it before the fork. */
tess_status tess_exec_prepare(struct tess_exec *e, const struct tess_launch *how,
                              const struct tess_attempt *attempt, const char *rendezvous);
/*
 * Runs the program in the new process, by async-signal-safe calls only; or the function, which the
 * process must have been forked for before there were threads. out, err: its stdout and stderr; -1:
 * inherited.
 */
_Noreturn void tess_exec_become(struct tess_exec *e, int out, int err);
void tess_exec_free(struct tess_exec *e);

#endif

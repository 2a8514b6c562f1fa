/* exec.h - turns a new process into a rank of a job. */
#ifndef TESS_LAUNCH_EXEC_H
#define TESS_LAUNCH_EXEC_H

#include "core/launch/job.h"

enum { TESS_RANK_VARS = 9 }; /* variables set for a rank, two of them by options */

struct tess_exec {
	const struct tess_launch *how;
	const struct tess_attempt *attempt;
	int32_t rank;
	pid_t parent;
	int report; /* gets an errno if the program cannot be run */
	char rank_vars[TESS_RANK_VARS][160]; /* "RANK=0", ...; "": not set */
	char **environment;
};

/* Makes the environment: this process's and the rank's variables. Before the fork: allocates. */
tess_status tess_exec_prepare(struct tess_exec *e, const struct tess_launch *how,
                              const struct tess_attempt *attempt, const char *rendezvous);
/*
 * In the new process: async-signal-safe calls only, as after a fork with threads. out, err: its
 * stdout and stderr; -1: inherited.
 */
_Noreturn void tess_exec_become(const struct tess_exec *e, int out, int err);
void tess_exec_free(struct tess_exec *e);

#endif

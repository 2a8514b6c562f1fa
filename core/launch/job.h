/* job.h - runs the ranks of a job once, as children of this process. */
#ifndef TESS_LAUNCH_JOB_H
#define TESS_LAUNCH_JOB_H

#include "core/launch/launch.h"

#include <signal.h>
#include <sys/types.h>

struct tess_attempt {
	int32_t number; /* from 0 */
	sigset_t mask; /* signal mask of the ranks */
	char name[64]; /* name of the job; the name of an attempt begins with it */
	const char *records; /* an empty directory for the records of ranks, or "" */
	bool bind_benefits; /* ranks benefit from binding (bind.h) */
	pid_t parent; /* the parent of this process; when it ends, the ranks are killed */
	int report; /* the end of the pipe to the caller, which ranks that run a function close */
};

struct tess_job_end {
	int status;
	bool by_signal; /* ended by a signal: no restart */
};

/* Lists the signals of a launcher, which must be blocked before the first thread starts. */
void tess_job_list_signals(sigset_t *out);

/*
 * Runs the ranks once, as tess_launch() does, with the signals of tess_job_list_signals() blocked.
 * No process that a rank has started remains. With `run` the job's failure is returned.
 */
tess_status tess_job_run(const struct tess_launch *how, const struct tess_attempt *attempt,
                         struct tess_job_end *out);

#endif

/* job.h - one run of a job's ranks as children of this process, from the first to the last. */
#ifndef TESS_COMM_JOB_H
#define TESS_COMM_JOB_H

#include "launch.h"

#include <signal.h>
#include <sys/types.h>

struct tess_attempt {
	int32_t number; /* from 0 */
	sigset_t mask; /* of the ranks */
	char name[64]; /* of the job; that of an attempt begins with it */
	const char *records; /* an empty directory for the records of ranks, or "" */
	bool bind_gains; /* ranks gain by being bound (bind.h) */
	pid_t parent; /* ours: when it is gone the ranks are killed */
};

/* A signal ended the run, so there is no other. */
struct tess_end {
	int status;
	bool by_signal;
};

/* The signals that a launcher takes; they are blocked, from before the first thread on. */
void tess_job_signals(sigset_t *out);

/*
 * As tess_launch. The signals of tess_job_signals() are blocked. No process that a rank has
 * started is left.
 */
tess_status tess_job_run(const struct tess_launch *how, const struct tess_attempt *attempt,
                         struct tess_end *out);

#endif

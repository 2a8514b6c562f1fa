/* job.h - runs a job like tessera launch, or a command, in a process of its own. */
#ifndef TESS_TESTS_SUPPORT_JOB_H
#define TESS_TESTS_SUPPORT_JOB_H

#include "core/launch/launch.h"

#include <sys/types.h>

struct test_job {
	pid_t pid; /* the launcher, or the command */
	int output; /* its stdout and stderr */
	char text[1 << 16]; /* the output so far, ended by 0 */
	size_t len;
	int status; /* its exit status; -N: killed by signal N */
	double seconds, begin;
};

/* Starts a job; fails the test if the process cannot be started. */
void job_start(struct test_job *j, const struct tess_launch *how);
/*
 * Starts a job of ranks that run `sh -c SCRIPT`, with stdout redirected to `out`; -1: to the pipe
 * of stderr.
 */
void job_start_shell(struct test_job *j, int nranks, const char *script, int out);
/* Starts a command instead of the launcher; argv[0]: its path. */
void job_start_command(struct test_job *j, char *const *argv);
/* Reads until `text` appears; fails the test if the output ends or 30 s pass. */
void job_await(struct test_job *j, const char *text);
void job_finish(struct test_job *j);
/* Runs job_start and job_finish. */
void job_run(struct test_job *j, const struct tess_launch *how);
/* Runs a job of ranks that are `rank ROLE ARG` of this program; NULL: no backend, timeout, arg. */
void job_run_self(struct test_job *j, int nranks, const char *backend, const char *timeout,
                  const char *role, const char *arg);

/* Returns the number of occurrences of `text` in the output. */
int job_count(const struct test_job *j, const char *text);

#endif

/* job.h - runs a job as tessera launch does, in a process of its own, and keeps what it wrote. */
#ifndef TESTS_JOB_H
#define TESTS_JOB_H

#include "core/launch/launch.h"
#include <sys/types.h>

struct test_job {
	pid_t pid; /* of the launcher */
	int output; /* its stdout and stderr */
	char text[1 << 16]; /* what came from there, ended by 0 */
	size_t len;
	int status; /* its exit status; -N: killed by signal N */
	double seconds, begin;
};

/* Fails the test where something does not work that is not under test. */
void job_start(struct test_job *j, const struct tess_launch *how);
/* The same, with its stdout there; -1: where its stderr is. */
void job_start_to(struct test_job *j, const struct tess_launch *how, int out);
/* Reads until `text` was written; fails the test if the output ends or 30 s have passed. */
void job_await(struct test_job *j, const char *text);
void job_finish(struct test_job *j);
/* Both. `argv` ends with NULL; argv[0] is NULL: this program again. */
void job_run(struct test_job *j, int nranks, char *const *argv);

/* How often `text` is in the output. */
int job_count(const struct test_job *j, const char *text);

#endif

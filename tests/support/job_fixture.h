/*
 * job_fixture.h - a job of several hosts, all of them 127.0.0.1: its directory, secret, port,
 * environment and ranks.
 */
#ifndef TESS_TESTS_SUPPORT_JOB_FIXTURE_H
#define TESS_TESTS_SUPPORT_JOB_FIXTURE_H

#include "process.h"

enum { TEST_TIMEOUT_MS = 30000 };

extern char job_dir[], secret_path[64], other_secret_path[64], hold_path[64], job_port[8];

/* Sets up the job; a checked fixture of Check. */
void job_fixture_begin(void);
/* Checks that only the files of the test are left, and removes them. */
void job_fixture_end(void);
/* Makes ranks that start later wait in the middle of their work while the file hold_path exists. */
void job_fixture_hold_ranks(void);
void job_fixture_write_file(const char *path, const char *text, int mode);

/*
 * Runs a rank in a started process. Roles: "work"; "hurry", with a deadline of 1 s; "other", with
 * another secret; "elsewhere", of another job. It prints "ready" in the middle of its work; its
 * exit status is 2 if it has no world, 3 if the world failed.
 */
int job_fixture_run_rank(const char *role, const char *number, const char *n);

/* Waits for the process; fails the test unless it printed the text and exited with this status. */
void job_fixture_expect_exit(struct process *p, int status, const char *text);

#endif

/*
 * job_fixture.h - a job of several hosts, all of which are this one, at 127.0.0.1: its directory, secret,
 * port and environment, and what its ranks do.
 */
#ifndef TESTS_JOB_FIXTURE_H
#define TESTS_JOB_FIXTURE_H

#include "process.h"

enum { TEST_TIMEOUT_MS = 30000 };

/* TEST_HOLD may name `hold`, once it was put: ranks then wait in the middle of their work. */
extern char job_dir[], secret_path[64], other_secret_path[64], hold_path[64], job_port[8];

void job_fixture_begin(void);
/* Nothing is left but the files of the test. */
void job_fixture_end(void);
void job_fixture_write_file(const char *path, const char *text, int mode);

/*
 * In a started process. Roles: "work"; "hurry", with a deadline of 1 s; "other", with another
 * secret; "elsewhere", of another job. It says "ready" in the middle of its work; its status is 2
 * if it has no world, 3 if it has lost it.
 */
int job_fixture_run_rank(const char *role, const char *number, const char *n);

/* Fails the test unless it has said the text, and ended so. */
void job_fixture_expect_text(const struct process *p, const char *text);
void job_fixture_expect_exit(struct process *p, int status, const char *text);

#endif

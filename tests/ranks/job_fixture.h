/*
 * stage.h - a job of several hosts, all of which are this one, at 127.0.0.1: its directory, secret,
 * port and environment, and what its ranks do.
 */
#ifndef TESTS_STAGE_H
#define TESTS_STAGE_H

#include "process.h"

enum { PATIENCE_MS = 30000 };

/* TEST_HOLD may name `hold`, once it was put: ranks then wait in the middle of their work. */
extern char dir[], secret[64], other[64], hold[64], port[8];

void begin(void);
/* Nothing is left but the files of the test. */
void end(void);
void put_file(const char *path, const char *text, int mode);

/*
 * In a started process. Roles: "work"; "hurry", with a deadline of 1 s; "other", with another
 * secret; "elsewhere", of another job. It says "ready" in the middle of its work; its status is 2
 * if it has no world, 3 if it has lost it.
 */
int rank(const char *role, const char *number, const char *n);

/* Fails the test unless it has said the text, and ended so. */
void said(const struct process *p, const char *text);
void finish(struct process *p, int status, const char *text);

#endif

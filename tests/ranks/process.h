/*
 * process.h - ranks that are processes: this program again, with a role, that dies with whoever
 * started it.
 */
#ifndef TESS_TESTS_PROCESS_H
#define TESS_TESTS_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct process {
	pid_t pid;
	int out_fd; /* what it says */
	int status; /* of wait(), once it has ended */
	int64_t ended_at; /* when, in ns */
	char text[4096];
};

/* Starts `argv[0] role rank n`; it fails the test where that cannot be done. */
void process_start(struct process *p, const char *role, int rank, int n);
/* Blocks until it has said something that ends with a newline, or ended. */
void process_await_line(struct process *p);
/* Collects the rest of what it says, and its end; fails the test if that takes longer than `ms`. */
void process_finish(struct process *p, int ms);

/* measure(which) takes less than a second, in ns: one of some times, as the machine may be busy. */
void process_expect_within_second(int64_t (*measure)(int which), int which);

/* In a started process: dies with its parent. To be called first. */
void process_die_with_parent(void);

#endif

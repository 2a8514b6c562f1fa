/*
 * process.h - ranks that are processes: this program started again with a role; each dies with its
 * parent.
 */
#ifndef TESS_TESTS_SUPPORT_PROCESS_H
#define TESS_TESTS_SUPPORT_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct process {
	pid_t pid;
	int out_fd; /* its stdout */
	int status; /* from wait(), once it has ended */
	int64_t ended_at; /* ns */
	char text[4096];
};

/* Starts `argv[0] role rank n`; fails the test if that is impossible. */
void process_start(struct process *p, const char *role, int rank, int n);
/*
 * Starts all n ranks; the last is rank 0, which may host the rendezvous, and without which none
 * starts.
 */
void process_start_all(struct process *p, const char *role, int n);
/* Blocks until each has printed a line, or ended. */
void process_await_all(struct process *p, int n);
/* Reads the rest of its output and waits for it; fails the test if that takes longer than `ms`. */
void process_finish(struct process *p, int ms);

/*
 * Checks that measure(which), in ns, is less than a second at least once in several tries, as the
 * machine may be busy.
 */
void process_expect_within_second(int64_t (*measure)(int which), int which);

/* Makes a started process die with its parent; call it first. */
void process_die_with_parent(void);

#endif

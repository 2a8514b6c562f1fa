/* thread.h - the library's own threads, and the event descriptors that wake them. */
#ifndef TESS_BASE_THREAD_H
#define TESS_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

/* Sets *set to all signals except faults, at which the kernel ends a process that blocks them. */
static inline void tess_signals_fill(sigset_t *set)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE };

	sigfillset(set);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(set, faults[i]);
}

/* Blocks signals in this thread, and in those that it starts from now on. */
static inline void tess_signals_block(void)
{
	sigset_t all;

	tess_signals_fill(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
}

/* Starts a thread with signals blocked, left to the program. Returns 0, or an errno. */
static inline int tess_thread_start(pthread_t *out, void *(*run)(void *arg), void *arg)
{
	sigset_t all, old;
	int err;

	tess_signals_fill(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(out, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}

/* Makes an eventfd readable. */
static inline void tess_event_post(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof one) < 0)
		return; /* it is readable: the count cannot be full otherwise */
}

#endif

/*
 * watchdog.c - ends a process that hangs in MPI_Isend, MPI_Irecv or MPI_Test.
 *
 * They return at once, except after a rank died inside MPI. A message enters a queue of Open MPI's
 * shared memory by two stores; a rank that reads the first waits for the second, which a rank that
 * was killed between them never makes. No error can be returned there. So after an abort of a group
 * a thread watches; if a call does not return, it reports that and ends the process.
 */
#include "watchdog.h"

#include "blocking_call.h"

#include <time.h>
#include <unistd.h>

enum {
	CHECK_MS = 10,
	CHECKS_MOST = 200
}; /* counts checks instead of time, since this process may be stopped */

static void *watch_calls(void *arg)
{
	const struct timespec pause = { .tv_nsec = CHECK_MS * 1000000 };
	struct group *g = arg;
	unsigned seen = 0;
	int checks = 0;

	while (!atomic_load(&g->closing)) {
		unsigned turn = atomic_load(&g->turn);

		if (turn != seen || turn % 2 == 0) {
			seen = turn;
			checks = 0;
		} else if (++checks > CHECKS_MOST) {
			mpi_host->log(
				TESS_ERROR, "mpi",
				"rank %d of group %s is kept inside MPI, where it waits for what a "
				"rank that is gone has begun; as no call can return, the process "
				"ends",
				(int)g->rank, g->name);
			_exit(1);
		}
		nanosleep(&pause, NULL);
	}
	return NULL;
}

void watchdog_start(struct group *g)
{
	if (g->comm != MPI_COMM_NULL && start_quiet_thread(watch_calls, g, &g->watcher))
		atomic_store(&g->watched, true);
}

void watchdog_stop(struct group *g)
{
	atomic_store(&g->closing, true);
	if (atomic_load(&g->watched))
		pthread_join(g->watcher, NULL);
}

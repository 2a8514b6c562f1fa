/*
 * caught.c - a rank that does not come back from MPI_Isend, MPI_Irecv or MPI_Test.
 *
 * They return at once, but not where somebody died inside of MPI: a message comes into a queue of Open MPI's shared
 * memory by two stores, and whoever finds the first waits for the second, which a rank that was killed between them
 * never makes. An error cannot be returned there. So once a group is given up a thread looks on, and where a call
 * stays out the process says so and ends.
 */
#include "member.h"

#include <time.h>
#include <unistd.h>

enum {
	LOOK_MS = 10,
	LOOKS_MOST = 200
}; /* looks are counted, not time: this process may be stopped */

static void *look_on(void *arg)
{
	const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000 };
	struct group *g = arg;
	unsigned seen = 0;
	int looks = 0;

	while (!atomic_load(&g->closing)) {
		unsigned turn = atomic_load(&g->turn);

		if (turn != seen || turn % 2 == 0) {
			seen = turn;
			looks = 0;
		} else if (++looks > LOOKS_MOST) {
			mpi_host->log(
				TESS_ERROR, "mpi",
				"rank %d of group %s is caught inside MPI, where it waits for what a rank "
				"that is gone has begun; as no call can return, the process ends",
				(int)g->rank, g->name);
			_exit(1);
		}
		nanosleep(&pause, NULL);
	}
	return NULL;
}

void caught_watch(struct group *g)
{
	if (g->comm != MPI_COMM_NULL && errand_thread(look_on, g, &g->watcher))
		atomic_store(&g->watched, true);
}

void caught_end(struct group *g)
{
	atomic_store(&g->closing, true);
	if (atomic_load(&g->watched))
		pthread_join(g->watcher, NULL);
}

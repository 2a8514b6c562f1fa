/* member.h - one rank of a group over MPI: mpi.c opens and closes it, work.c runs its calls. */
#ifndef MPI_MEMBER_H
#define MPI_MEMBER_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <tessera/coll.h>
#include <tessera/util/clock.h>

struct work;

struct group {
	MPI_Comm comm; /* MPI_COMM_NULL: a group of one rank */
	int32_t rank, nranks;
	int32_t *world; /* world rank of each member, for messages */
	char *name;
	struct tess_store store;
	int tags; /* 1 to tags are for collectives */
	struct work *works, *spare; /* unreleased works; works for reuse */
	atomic_bool aborted;
	atomic_uint turn; /* odd: inside MPI */
	atomic_bool watched, closing;
	pthread_t watcher; /* valid if `watched` */
	tess_status failed; /* the status of every later call, and its message */
	char why[512];
};

extern const struct tess_host *mpi_host;

#endif

/*
 * member.h - one rank of a group over MPI: mpi.c enters and leaves it, work.c moves what it is asked to,
 * errand.c makes the calls of MPI that block, line.c brings ranks of several hosts together, caught.c ends
 * who is kept by a call that must not block.
 */
#ifndef MPI_MEMBER_H
#define MPI_MEMBER_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <tessera/reduce.h>

struct work;

struct group {
	MPI_Comm comm; /* MPI_COMM_NULL: one rank, which talks to nobody */
	int32_t rank, nranks;
	int32_t *world; /* world rank of each member, for sentences */
	char *name;
	struct tess_store store;
	int tags; /* 1 to tags are for collectives */
	struct work *works, *spare; /* not released; to be used again */
	atomic_bool aborted;
	atomic_uint turn; /* odd: inside of MPI */
	atomic_bool watched, closing;
	pthread_t watcher; /* where `watched` */
	tess_status failed; /* what every later call answers with, and its sentence */
	char why[512];
};

extern const struct tess_host *mpi_host;
int64_t mpi_now(void); /* CLOCK_MONOTONIC, ns */

/* ---- errand.c: what only a thread that may be left behind can call ---- */

/*
 * MPI is up; `rank` is that of the job. Fails where the deadline passes, where the job has failed (store
 * NULL: it has none yet), and where MPI has other ranks than the job.
 */
tess_status errand_init(int32_t rank, int32_t nranks, const struct tess_store *store,
                        int64_t deadline);
/* A communicator of all ranks, for the life of the process. */
tess_status errand_open_all(int32_t nranks, int64_t deadline, MPI_Comm *comm);
/* A communicator of the members of `how`, and how many tags it has. */
tess_status errand_open(const struct tess_join *how, MPI_Comm *comm, int *tags);
void errand_close(MPI_Comm *comm);
/* TESS_OK, or the job's first failure. */
tess_status errand_state(const struct tess_store *store);
/* One MiB as a type: MPI counts with ints. */
MPI_Datatype errand_mebi(void);
/* From now on MPI is let alone: a call that waits for a dead rank would never return. */
void errand_lose(void);
/* MPI_Finalize, unless a group has failed. For the end of the process; once. */
void errand_finish(void);
/* A thread that gets no signals. */
bool errand_thread(void *(*run)(void *arg), void *arg, pthread_t *out);

/* ---- caught.c ---- */

/* Into a call of MPI that returns at once, and out of it; by the one thread that works with the group. */
static inline void caught_turn(struct group *g)
{
	unsigned turn = atomic_load_explicit(&g->turn, memory_order_relaxed);

	atomic_store_explicit(&g->turn, turn + 1, memory_order_relaxed);
}
/* The group is given up: whoever is kept inside of MPI for 2 s from now on ends the process. Once. */
void caught_watch(struct group *g);
/* Nobody will be inside again. */
void caught_end(struct group *g);

/* ---- line.c: tess_backend.meet ---- */

tess_status line_open(int32_t rank, int32_t nranks, int64_t deadline, int32_t *line, int32_t *end);
/* What has been said goes out, in bounded time; then the thread ends. None is running: nothing. */
void line_finish(void);

/* ---- work.c ---- */
tess_status work_supports(const struct tess_coll *c, int32_t nranks);
tess_status work_start(struct group *g, const struct tess_coll *c, struct work **out);
tess_status work_test(struct group *g, struct work *w);
tess_status work_wait(struct group *g, struct work *w, int64_t deadline);
/* An unfinished one is finished first, since the peers count on it. */
void work_release(struct group *g, struct work *w);
void work_clear(struct group *g);

#endif

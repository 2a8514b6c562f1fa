/* blocking_call.h - blocking calls of MPI, made by a thread that can be abandoned. */
#ifndef MPI_BLOCKING_CALL_H
#define MPI_BLOCKING_CALL_H

#include "member.h"

/*
 * Initialises MPI; `rank` is that of the job. Fails at the deadline, after a failure of the job
 * (store NULL: not checked), and if the ranks of MPI differ from those of the job.
 */
tess_status blocking_init_mpi(int32_t rank, int32_t nranks, const struct tess_store *store,
                              int64_t deadline);
/* Returns a communicator of all ranks, for the life of the process. */
tess_status blocking_open_world(int32_t nranks, int64_t deadline, MPI_Comm *comm);
/* Returns a communicator of the members of `how`, and its number of tags. */
tess_status blocking_open_group(const struct tess_group_entry *how, MPI_Comm *comm, int *tags);
void blocking_close_comm(MPI_Comm *comm);
/* Returns TESS_OK, or the job's first failure. */
tess_status check_job(const struct tess_store *store);
/* Returns a type of one MiB, since MPI counts with ints. */
MPI_Datatype get_mebibyte_type(void);
/* Stops all use of MPI: a call that waits for a dead rank would never return. */
void abandon_mpi(void);
/* Calls MPI_Finalize unless a group has failed, once, at the end of the process. */
void blocking_finalize_mpi(void);
/* Sets a function to call before MPI_Finalize, in the process that has initialised MPI. */
void blocking_set_finish(void (*finish)(void));
/* Starts a thread with all signals blocked. */
bool start_quiet_thread(void *(*run)(void *arg), void *arg, pthread_t *out);

#endif

/* blocking_call.h - calls of MPI that block, made by a thread that can be left behind. */
#ifndef MPI_BLOCKING_CALL_H
#define MPI_BLOCKING_CALL_H

#include "member.h"

/*
 * MPI is initialised; `rank` is that of the job. Fails where the deadline passes, where the job has
 * failed (store NULL: it has none yet), and where MPI has other ranks than the job.
 */
tess_status blocking_init_mpi(int32_t rank, int32_t nranks, const struct tess_store *store,
                              int64_t deadline);
/* A communicator of all ranks, for the life of the process. */
tess_status blocking_open_world(int32_t nranks, int64_t deadline, MPI_Comm *comm);
/* A communicator of the members of `how`, and how many tags it has. */
tess_status blocking_open_group(const struct tess_join *how, MPI_Comm *comm, int *tags);
void blocking_close_comm(MPI_Comm *comm);
/* TESS_OK, or the job's first failure. */
tess_status check_job(const struct tess_store *store);
/* One MiB as a type: MPI counts with ints. */
MPI_Datatype get_mebibyte_type(void);
/* From now on MPI is not called: a call that waits for a dead rank would never return. */
void abandon_mpi(void);
/* MPI_Finalize, unless a group has failed. For the end of the process; once. */
void blocking_finalize_mpi(void);
/* `finish` is called before MPI_Finalize, by the process that has initialised MPI. */
void blocking_set_finish(void (*finish)(void));
/* A thread that gets no signals. */
bool start_quiet_thread(void *(*run)(void *arg), void *arg, pthread_t *out);

#endif

/*
 * seat.h - which rank of which job this process is, as whoever started it says in the environment.
 *
 *   tessera launch, torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR
 *   mpirun (Open MPI)          OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
 *   mpiexec (Hydra)            PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
 *   srun                       SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_STEP_NUM_NODES
 * The first row whose rank and size are both set counts; none: one rank, alone.
 */
#ifndef TESS_COMM_SEAT_H
#define TESS_COMM_SEAT_H

#include <stdbool.h>
#include <tessera/plugin.h>

struct tess_seat {
	int32_t rank, size;
	int32_t local; /* its index among the ranks of this host */
	bool alone; /* nobody started it as a rank */
	char job[96]; /* for tess_rendezvous_open */
};

/*
 * TESS_EINVAL: a variable that is no number, or a rank that is not below its size; TESS_ENOTSUP: ranks on
 * several hosts. The job is TESSERA_JOB, else torchrun's run, port and restart, else whoever started us.
 */
tess_status tess_seat_find(struct tess_seat *out);

#endif

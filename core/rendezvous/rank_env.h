/*
 * seat.h - which rank of which job this process is, as whoever started it says in the environment.
 *
 *   tessera launch, torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
 *   mpirun (Open MPI)          OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
 *   mpiexec (Hydra)            PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
 *   srun                       SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_STEP_NUM_NODES
 * The first row whose rank and size are both set counts; none: one rank, alone. Ranks of several
 * hosts meet at MASTER_ADDR, or else the first node of Slurm's step, at port TESSERA_PORT, or else
 * the one after MASTER_PORT, where torchrun itself listens, or one made of Slurm's job and step.
 */
#ifndef TESS_COMM_SEAT_H
#define TESS_COMM_SEAT_H

#include "net.h"

struct tess_rank_env {
	int32_t rank, size;
	int32_t local; /* its index among the ranks of this host */
	bool alone; /* nobody started it as a rank */
	bool hosts; /* the ranks are on several hosts */
};

struct tess_meeting {
	char job[96]; /* the same for all ranks of the job, and for no other job */
	struct tess_hosts at; /* where ranks of several hosts meet */
};

/*
 * TESS_EINVAL: a variable that is no number, a rank that is not below its size, half of what says so, or
 * a rank set by hand that is not that of mpirun or srun.
 */
tess_status tess_rank_env_read(struct tess_rank_env *out);

/*
 * TESS_EINVAL: several hosts that do not know where to meet. The job is TESSERA_JOB, else torchrun's
 * run, port and restart, else Slurm's job, step and restart, else the port of several hosts, else
 * whoever started us.
 */
tess_status tess_rank_env_meeting(const struct tess_rank_env *seat, struct tess_meeting *out);

#endif

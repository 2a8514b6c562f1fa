/*
 * rank_env.h - determines the rank and job of this process by its launcher's environment.
 *
 *   tessera launch, torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
 *   mpirun (Open MPI)          OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
 *   mpiexec (Hydra)            PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
 *   srun                       SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_STEP_NUM_NODES
 * The first row whose rank and size are both set applies; without one this is a job of one rank.
 * Ranks of several hosts meet at MASTER_ADDR, else at the first node of Slurm's step. The port is
 * TESSERA_PORT, else MASTER_PORT + 1 (torchrun listens at MASTER_PORT), else one from Slurm's job
 * and step.
 */
#ifndef TESS_RENDEZVOUS_RANK_ENV_H
#define TESS_RENDEZVOUS_RANK_ENV_H

#include "core/rendezvous/net.h"

struct tess_rank_env {
	int32_t rank, size;
	int32_t local; /* index among the ranks of this host */
	bool alone; /* not started as a rank */
	bool hosts; /* the ranks are on several hosts */
};

struct tess_meeting {
	char job[96]; /* unique name of the job */
	struct tess_hosts at; /* address where ranks of several hosts meet */
};

/*
 * Reads the environment. TESS_EINVAL: a variable that is not a number, a rank that is not below its
 * size, one of RANK and WORLD_SIZE without the other, or a RANK that contradicts mpirun or srun.
 */
tess_status tess_rank_env_read(struct tess_rank_env *out);

/*
 * Describes the variables that make this process a rank, and how to run it alone: they may be left
 * over from another launcher.
 */
void tess_rank_env_describe(const struct tess_rank_env *env, char *text, size_t size);

/*
 * Determines the job and where its ranks meet. TESS_EINVAL: several hosts without an address or
 * port. The job is TESSERA_JOB, else torchrun's run, port and restart, else Slurm's job, step and
 * restart, else the port of several hosts, else the parent process.
 */
tess_status tess_rank_env_meeting(const struct tess_rank_env *env, struct tess_meeting *out);

#endif

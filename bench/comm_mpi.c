/*
 * comm_mpi.c - the collectives of an MPI, timed as comm.c times ours. Started by it, with mpirun.
 */
#include <mpi.h>
#include <string.h>

#include "measure.h"

static float *src, *dst;
static int nranks;

static void barrier(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
}

static void all_reduce(uint64_t bytes)
{
	MPI_Allreduce(src, dst, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(uint64_t bytes)
{
	int each = (int)(bytes / 4) / nranks;

	MPI_Allgather(src, each, MPI_FLOAT, dst, each, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(uint64_t bytes)
{
	MPI_Reduce_scatter_block(src, dst, (int)(bytes / 4) / nranks, MPI_FLOAT, MPI_SUM,
	                         MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	uint64_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : 1 << 20;
	struct contender c = { .barrier = barrier };

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nranks);
	c.src = src = malloc(most);
	dst = malloc(most);
	if (!src || !dst)
		return 1;
	c.dst = memset(dst, 0, most);
	c.blind = argc > 2;
	c.run = all_reduce;
	measure_sizes(&c, "all_reduce", most);
	c.run = all_gather;
	measure_sizes(&c, "all_gather", most);
	c.run = reduce_scatter;
	measure_sizes(&c, "reduce_scatter", most);
	MPI_Finalize();
	return 0;
}

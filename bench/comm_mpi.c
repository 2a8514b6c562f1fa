/* comm_mpi.c - MPI's own collectives, for bench/comm, which starts it with mpirun. */
#include "peer.h"

#include <mpi.h>
#include <string.h>

static int sync_mpi_ranks(void *self)
{
	(void)self;
	return MPI_Barrier(MPI_COMM_WORLD);
}

static int reduce_mpi_max(void *self, double *x)
{
	(void)self;
	return MPI_Allreduce(MPI_IN_PLACE, x, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static int mpi_all_reduce(void *self)
{
	struct peer *p = self;

	return MPI_Allreduce(p->src, p->dst, (int)(p->bytes / 4), MPI_FLOAT, MPI_SUM,
	                     MPI_COMM_WORLD);
}

static int mpi_all_gather(void *self)
{
	struct peer *p = self;
	int each = (int)(p->bytes / 4) / p->nranks;

	return MPI_Allgather(p->src, each, MPI_FLOAT, p->dst, each, MPI_FLOAT, MPI_COMM_WORLD);
}

static int mpi_reduce_scatter(void *self)
{
	struct peer *p = self;

	return MPI_Reduce_scatter_block(p->src, p->dst, (int)(p->bytes / 4) / p->nranks, MPI_FLOAT,
	                                MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	struct measure_target c = { .barrier = sync_mpi_ranks, .reduce_max = reduce_mpi_max };
	char version[MPI_MAX_LIBRARY_VERSION_STRING];
	struct peer p = { 0 };
	int len;

	MPI_Init(&argc, &argv);
	if (argc != 4)
		return 2;
	peer_parse_arguments(&p, argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &p.nranks);
	MPI_Get_library_version(version, &len);
	version[strcspn(version, ",")] = '\0';
	if (p.rank == 0)
		printf("version %s\n", version);
	c.run = !strcmp(p.kind, "all_gather")   ? mpi_all_gather
	        : !strcmp(p.kind, "all_reduce") ? mpi_all_reduce
	                                        : mpi_reduce_scatter;
	for (p.bytes = 4; p.bytes <= p.max_bytes; p.bytes *= 4)
		if (peer_time_call(&p, &c, "mpi"))
			return 1;
	MPI_Finalize();
	return 0;
}

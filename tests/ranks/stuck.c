/*
 * stuck.c - loaded before MPI: on rank 0 an MPI_Test whose request is not complete never returns,
 * as happens with Open MPI's shared memory when another rank is killed while it writes.
 */
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

enum { GOOD = 100 }; /* calls that return in any case */

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
	static int tests;
	const char *rank = getenv("OMPI_COMM_WORLD_RANK");
	int err = PMPI_Test(request, done, status);

	while (!err && !*done && rank && *rank == '0' && tests >= GOOD)
		pause();
	tests++;
	return err;
}

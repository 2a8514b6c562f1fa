/* launch.h - starts the ranks of a job on this host as processes, and sees them to their end. */
#ifndef TESS_COMM_LAUNCH_H
#define TESS_COMM_LAUNCH_H

#include <stdbool.h>
#include <tessera/plugin.h>

struct tess_launch {
	int32_t nranks;
	const char *path; /* the program; NULL: argv[0], looked for in PATH */
	char *const *argv; /* ends with NULL */
	const char *backend; /* TESSERA_BACKEND of the ranks; NULL: as it is */
	const char *timeout; /* TESSERA_TIMEOUT of the ranks, seconds; NULL: as it is */
	const char *bind; /* to CPUs: auto, cpu or none (bind.h); NULL: auto */
	bool stream; /* rank 0 writes to our own stdout and stderr, without a prefix */
	const char *log_dir; /* gets a file rank-R.log of the lines of each rank; NULL: none */
	/* Gets flight.json, the last calls of all ranks; NULL: it is not kept; "off": not recorded. */
	const char *flight;
	int32_t restarts; /* how often a job that has failed is started again */
};

/*
 * Runs the job and blocks until no rank is left. Hosts the rendezvous; every rank gets RANK,
 * WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and TESSERA_RENDEZVOUS, the lines that it writes to
 * stdout and stderr come out of ours with "[rank] " before them, rank 0 reads our stdin and the
 * others nothing.
 *
 * The first rank that fails is named on stderr; the others get a second to say what they know, then
 * SIGTERM, and SIGKILL after 5 s. SIGTERM and SIGHUP to us do the same at once. SIGINT is passed
 * on, and rank 0 has the time it wants; a second one is SIGTERM. None of them, nor SIGCHLD or SIGUSR1, need
 * be at its default in the caller, and ranks have them so, but for a SIGHUP that is ignored (nohup): it stays so.
 *
 * Output that nobody reads yet waits with its writer; what cannot be written ends the job: TESS_EIO. At the end, also if this process
 * is killed, every process that a rank has started is killed, unless it is another user's.
 *
 * Every rank records its last calls (flight.h) in a directory of ours. When the job fails a line says
 * which rank is behind, in which call; so it does at SIGUSR1 to us, and the job goes on.
 *
 * A rank that ends with status 0 and has not joined the job that another one has joined fails it.
 * A job that starts again has another name; TORCHELASTIC_RESTART_COUNT says how often it has.
 *
 * exit_status: 0; that of the first rank that failed, 128 + N if signal N killed it; 130 after
 * SIGINT, 143 after SIGTERM, 141 when what is written has no reader any more. Call it before there are threads
 * or other children; it forks. TESS_EINVAL: not 1 to 1024 ranks, or a backend whose ranks are threads; TESS_ENOENT,
 * TESS_EPERM, TESS_EIO: the program cannot be run.
 */
tess_status tess_launch(const struct tess_launch *how, int *exit_status);

#endif

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
	bool stream; /* rank 0 writes to our own stdout and stderr, without a prefix */
};

/*
 * Runs the job and blocks until no rank is left. Hosts the rendezvous; every rank gets RANK,
 * WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and TESSERA_RENDEZVOUS, the lines that it writes to
 * stdout and stderr come out of ours with "[rank] " before them, rank 0 reads our stdin and the
 * others nothing.
 *
 * The first rank that fails is named on stderr; the others get a second to say what they know, then
 * SIGTERM, and SIGKILL after 5 s. SIGTERM and SIGHUP to us do the same at once. SIGINT is passed
 * on, and rank 0 has the time it wants; a second one is SIGTERM. If this process dies the kernel
 * kills the ranks.
 *
 * exit_status: 0; that of the first rank that failed, 128 + N if signal N killed it; 130 after
 * SIGINT, 143 after SIGTERM. Call it from a thread that lives on, with no other thread that waits
 * for SIGCHLD, SIGINT, SIGTERM or SIGHUP. TESS_EINVAL: not 1 to 1024 ranks, or loopback, whose
 * ranks are threads; TESS_ENOENT, TESS_EPERM, TESS_EIO: the program cannot be run.
 */
tess_status tess_launch(const struct tess_launch *how, int *exit_status);

#endif

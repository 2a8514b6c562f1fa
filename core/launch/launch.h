/* launch.h - starts the ranks of a job on this host as processes, and waits for their end. */
#ifndef TESS_LAUNCH_LAUNCH_H
#define TESS_LAUNCH_LAUNCH_H

#include "core/rendezvous/failure.h"

#include <stdbool.h>

struct tess_flight;

/* What remains of a rank that runs a function, in memory that processes share. */
struct tess_rank_end {
	tess_status st; /* its failure */
	struct tess_flight *flight; /* its last calls (core/flight/flight.h), in shared memory */
	char sentence[TESS_SENTENCE];
};

struct tess_launch {
	int32_t nranks;
	/*
	 * Runs in each rank, in place of a program; NULL: a program. Its result is the exit status.
	 * A rank is a fork of this process, with the rank's variables in the environment. It
	 * inherits stdout and stderr.
	 */
	int (*run)(void *arg, int32_t rank);
	void *arg;
	struct tess_rank_end *ends; /* [nranks] */
	const char *path; /* the program; NULL: argv[0], found in PATH */
	char *const *argv; /* ends with NULL */
	const char *backend; /* TESSERA_BACKEND of the ranks; NULL: inherited */
	const char *timeout; /* TESSERA_TIMEOUT of the ranks, seconds; NULL: inherited */
	const char *bind; /* to CPUs: auto, cpu or none (bind.h); NULL: auto */
	bool stream; /* all ranks inherit stdout, and rank 0 stderr: no prefix */
	const char *log_dir; /* directory of rank-R.log, the output of each rank; NULL: none */
	const char *flight; /* directory for flight.json; NULL: not kept; "off": not recorded */
	int32_t restarts; /* maximum number of restarts of a failed job */
};

/*
 * Runs the job and blocks until all ranks have ended. Hosts the rendezvous; every rank gets RANK,
 * WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and TESSERA_RENDEZVOUS. Lines that ranks write appear on
 * stdout and stderr of this process, prefixed with "[rank] "; rank 0 inherits stdin, the others get
 * /dev/null.
 *
 * The first rank that fails is named on stderr. The others get a second to report, then SIGTERM,
 * and SIGKILL after 5 s. This SIGTERM is queued (SI_QUEUE), which ranks distinguish from a
 * forwarded one. The first SIGINT, SIGTERM or SIGHUP to this process is forwarded without a time
 * limit, and the job ends when rank 0 has ended; a second SIGINT or SIGTERM ends the ranks like a
 * failure. The caller's dispositions of these signals, of SIGCHLD and of SIGUSR1 have no effect.
 * Ranks get the defaults, except that an ignored SIGHUP (nohup) stays ignored, and with `stream`
 * SIGUSR1 is ignored until the rank handles it.
 *
 * Ranks wait for a slow reader of their output; a failed write ends the job: TESS_EIO. At the end,
 * even if this process is killed, every process that a rank has started is killed, unless it
 * belongs to another user.
 *
 * Every rank records its last calls (core/flight/flight.h) in a temporary directory. When the job
 * fails, and at SIGUSR1, the straggler and its call are logged.
 *
 * The job fails if a rank ends with status 0 without joining while another has joined. A restarted
 * job has another name; TORCHELASTIC_RESTART_COUNT counts restarts.
 *
 * With `run` the failure of the job is that of the call, with its message, and exit_status is not
 * used. It names a rank that was killed, the signal and the last call. A signal that ended the job
 * is raised again at the end. Processes that a rank has started may remain if the launcher's child
 * is killed.
 *
 * exit_status: 0; that of the first rank that failed, 128 + N if signal N killed it; 129 after
 * SIGHUP, 130 after SIGINT, 143 after SIGTERM, 141 after EPIPE. It forks: call it before there are
 * threads or other children. TESS_EINVAL: not 1 to 1024 ranks, or a backend whose ranks are
 * threads; TESS_ENOENT, TESS_EPERM, TESS_EIO: the program cannot be run.
 */
tess_status tess_launch(const struct tess_launch *how, int *exit_status);

#endif

/*
 * rendezvous.h - where the ranks of a job meet: on one host a Unix socket, between hosts a TCP port
 * of rank 0's, or lines that a backend's library has (MPI).
 *
 * Every rank keeps one connection to the server from its first word to its goodbye. Over it go the
 * keys that backends exchange, the fingerprints of collectives, and the first failure: a connection
 * that ends without a goodbye, a difference between two ranks' calls, a deadline, or what a rank or
 * the host of the server posts. The first one is told to every rank, with the cause and the rank;
 * the rest are ignored.
 *
 * The server is hosted by whoever starts the ranks (tessera launch), or by rank 0, in a thread. A
 * rank is started with these variables; those of torchrun, mpirun and srun are understood as well
 * (seat.h):
 *   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE     as torchrun sets them
 *   TESSERA_RENDEZVOUS    tess_rendezvous_path(): the server is there. Without it rank 0 hosts it
 *   TESSERA_JOB           the name of the job; needed only without TESSERA_RENDEZVOUS
 */
#ifndef TESS_COMM_RENDEZVOUS_H
#define TESS_COMM_RENDEZVOUS_H

#include "net.h"

struct tess_rendezvous;

/*
 * Makes the socket ${XDG_RUNTIME_DIR:-/tmp}/tessera-UID/JOB for `nranks` ranks and serves it in a
 * thread of its own, in which all signals are blocked, until it is closed. `job`: letters, digits,
 * . _ -; NULL: a name made of this process and the clock. The directory is made with mode 0700 and
 * refused where it is not ours or open to others; a socket that a dead job left is replaced, under
 * a lock. All descriptors are closed on exec. TESS_EINVAL: the name; TESS_EPERM: the directory;
 * TESS_EIO: a job of that name is running.
 */
tess_status tess_rendezvous_open(const char *job, int32_t nranks, struct tess_rendezvous **out);

/*
 * The same at one TCP address, for ranks on several hosts. Whoever connects has 5 s to prove the
 * secret, in 64 bytes for which no memory is taken; of those that have not done so yet 64 are kept,
 * the newest.
 */
tess_status tess_rendezvous_open_hosts(const struct tess_hosts *at,
                                       const struct tess_secret *secret, int32_t nranks,
                                       struct tess_rendezvous **out);

/* The same at the ends of lines that lead to all ranks (tess_backend.meet), which become ours; nobody else can come. */
tess_status tess_rendezvous_open_tunnels(const int32_t *end, int32_t nranks,
                                         struct tess_rendezvous **out);

/* The socket, for TESSERA_RENDEZVOUS; "" between hosts. Borrowed. */
const char *tess_rendezvous_path(const struct tess_rendezvous *r);

/*
 * The first failure: its status, the sentence (cut to `room`), and the world rank that it names, or
 * -1. TESS_OK: none so far, the outputs are untouched. From any thread.
 */
tess_status tess_rendezvous_failure(struct tess_rendezvous *r, int32_t *rank, char *sentence,
                                    size_t room);

/*
 * Posts a failure that the host has seen ("rank 2 was killed by SIGSEGV"): told to all, if it is
 * the first.
 */
void tess_rendezvous_fail(struct tess_rendezvous *r, int32_t rank, tess_status why,
                          const char *sentence);

/*
 * The process of this rank has ended without an error: if it has not joined, while others have, it
 * is missed, and they hear so.
 */
void tess_rendezvous_rank_ended(struct tess_rendezvous *r, int32_t rank);

/* Every rank that is here writes down its last calls (flight.h), soon. */
void tess_rendezvous_request_records(struct tess_rendezvous *r);

/* What is known of a rank's last call, as tess_coordinator_last_call(). */
uint64_t tess_rendezvous_last_call(struct tess_rendezvous *r, int32_t rank, char *text,
                                   size_t room);

/*
 * Ends the thread, tells ranks that are still there, in bounded time, and removes the socket. NULL:
 * nothing.
 */
void tess_rendezvous_close(struct tess_rendezvous *r);

#endif

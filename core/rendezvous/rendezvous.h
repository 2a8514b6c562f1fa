/*
 * rendezvous.h - where the ranks of a job meet: on one host a Unix socket, between hosts a TCP port
 * of rank 0, or tunnels through a backend's library (MPI).
 *
 * Every rank keeps one connection to the server until it leaves the job. It carries the keys that
 * backends exchange, call descriptors, and the first failure. Failures are: a connection that ends
 * before its rank has left, different calls of two ranks, a deadline, or one posted by a rank or by
 * the host of the server. The first one is sent to every rank, with the cause and the rank; later
 * ones are ignored.
 *
 * The server runs in the launcher (tessera launch), or in a thread of rank 0. A rank is started
 * with these variables; those of torchrun, mpirun and srun work as well (rank_env.h):
 *   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE     as torchrun sets them
 *   TESSERA_RENDEZVOUS    tess_rendezvous_path() of a running server; absent: rank 0 hosts it
 *   TESSERA_JOB           the name of the job; needed only without TESSERA_RENDEZVOUS
 */
#ifndef TESS_RENDEZVOUS_RENDEZVOUS_H
#define TESS_RENDEZVOUS_RENDEZVOUS_H

#include "core/rendezvous/net.h"

struct tess_rendezvous;

/*
 * Makes the socket ${XDG_RUNTIME_DIR:-/tmp}/tessera-UID/JOB for `nranks` ranks and serves it, until
 * it is closed, in a thread of its own with all signals blocked. `job`: letters, digits, . _ -;
 * NULL: a name from this process and the clock. The directory is made with mode 0700, and refused
 * if it belongs to another user or grants others access. The socket of a dead job is replaced,
 * under a lock. All descriptors are close-on-exec. TESS_EINVAL: the name; TESS_EPERM: the
 * directory; TESS_EIO: a job of that name is running.
 */
tess_status tess_rendezvous_open(const char *job, int32_t nranks, struct tess_rendezvous **out);

/*
 * Opens a rendezvous at one TCP address, for ranks on several hosts. A connection has 5 s to prove
 * the secret, in 64 bytes for which no memory is allocated; the newest 64 unauthenticated
 * connections are kept.
 */
tess_status tess_rendezvous_open_hosts(const struct tess_hosts *at,
                                       const struct tess_secret *secret, int32_t nranks,
                                       struct tess_rendezvous **out);

/* Opens a rendezvous at the ends of tunnels (tess_backend.bootstrap), which it takes. */
tess_status tess_rendezvous_open_tunnels(const int32_t *end, int32_t nranks,
                                         struct tess_rendezvous **out);

/* Returns the path of the socket, for TESSERA_RENDEZVOUS, borrowed; "" between hosts. */
const char *tess_rendezvous_path(const struct tess_rendezvous *r);

/*
 * Returns the first failure: its status, the message (cut to `size`), and the world rank at fault,
 * or -1. TESS_OK: none so far, the outputs are unchanged. Call from any thread.
 */
tess_status tess_rendezvous_failure(struct tess_rendezvous *r, int32_t *rank, char *sentence,
                                    size_t size);

/* Posts a failure detected by the host ("rank 2 was killed by SIGSEGV"), if it is the first. */
void tess_rendezvous_fail(struct tess_rendezvous *r, int32_t rank, tess_status why,
                          const char *sentence);

/*
 * Records that the process of this rank has exited with status 0. The job fails if other ranks have
 * joined it and this rank has not.
 */
void tess_rendezvous_rank_ended(struct tess_rendezvous *r, int32_t rank);

/* Returns whether the rank makes no further call, and its process only has to exit. */
bool tess_rendezvous_has_left(struct tess_rendezvous *r, int32_t rank);

/* Returns whether the rank is in a call of a plugin that is overdue: it may never return. */
bool tess_rendezvous_is_stuck(struct tess_rendezvous *r, int32_t rank);

/* Requests the flight record (core/flight/flight.h) of every rank that has joined. */
void tess_rendezvous_request_records(struct tess_rendezvous *r);

/* Describes the last call of a rank, as tess_coordinator_last_call(). */
uint64_t tess_rendezvous_last_call(struct tess_rendezvous *r, int32_t rank, char *text,
                                   size_t size);

/* Notifies connected ranks in bounded time, ends the thread, removes the socket. NULL: nothing. */
void tess_rendezvous_close(struct tess_rendezvous *r);

#endif

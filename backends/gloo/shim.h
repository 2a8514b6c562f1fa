/*
 * shim.h - what the backend needs of Gloo, in C: a mesh of connections, and messages on their way.
 *
 * No exception leaves shim.cc. Functions that return an int return 0 or a SHIM_ code, or -1 and a
 * sentence in `why`, of SHIM_WHY bytes. Times are CLOCK_MONOTONIC, ns.
 */
#ifndef GLOO_SHIM_H
#define GLOO_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHIM_WHY = 256, SHIM_ADDRESS = 192 };
enum { SHIM_DONE = 0, SHIM_PENDING, SHIM_WOKEN };
#define SHIM_SLOTS (UINT64_MAX >> 1) /* the greatest slot of a message */

struct shim_mesh; /* one rank's connections, and the thread that serves them */
struct shim_io; /* one message; the memory must stay until it is freed */

/*
 * Listens on `host`, a numeric address, once for each peer, on ports that the kernel picks. No
 * connection takes longer than `patience`. `with`: a mesh whose host and thread are used too, or
 * NULL.
 */
int shim_open(const char *host, int rank, int nranks, int64_t patience, struct shim_mesh *with,
              struct shim_mesh **out, char *why);
/* SHIM_ADDRESS bytes that say where `peer` finds this rank. */
int shim_address(struct shim_mesh *m, int peer, void *out, char *why);
/* 1 where this rank calls and `peer`, at `address`, answers; else 0. */
int shim_calls(struct shim_mesh *m, int peer, const void *address, char *why);
int shim_connect(struct shim_mesh *m, int peer, const void *address, char *why);
/* Drops all connections and what is on its way: from now on no memory of a message is touched. */
void shim_cut(struct shim_mesh *m);
/* Written messages still arrive; none may be on its way, unless all was cut. NULL: nothing. */
void shim_close(struct shim_mesh *m);

/*
 * A message matches the one of the same slot, and the two must be of one size: Gloo ends the
 * process where they are not. So the size is part of the slot (see choose_slot() in work.c). bytes
 * may be 0. known, on both sides: the receiver posts it before it sends a message that the sender
 * waits for first, so that it need not be told that there is a place.
 */
int shim_send(struct shim_mesh *m, int peer, uint64_t slot, int known, const void *src,
              size_t bytes, struct shim_io **out, char *why);
int shim_recv(struct shim_mesh *m, int peer, uint64_t slot, int known, void *dst, size_t bytes,
              struct shim_io **out, char *why);
/* Waits until done, woken or `until`; 0: only tests. A time-out costs nothing: wait again. */
int shim_wait(struct shim_io *io, int64_t until, char *why);
/* From any thread. */
void shim_wake(struct shim_io *io);
void shim_free(struct shim_io *io);

#ifdef __cplusplus
}
#endif
#endif

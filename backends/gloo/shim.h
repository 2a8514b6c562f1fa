/*
 * shim.h - Gloo's transport in C: a mesh of connections, and messages over them.
 *
 * No exception leaves shim.cc. Functions that return an int return 0 or a SHIM_ code, or -1 and a
 * message in `why`, of SHIM_WHY bytes. Times are CLOCK_MONOTONIC, ns.
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
#define SHIM_SLOTS (UINT64_MAX >> 1) /* the largest slot of a message */

struct shim_mesh; /* one rank's connections, and the thread that serves them */
struct shim_io; /* one message; the memory must stay until it is freed */

/*
 * Listens on `host`, a numeric address, once for each peer, on ports chosen by the kernel. Each
 * connection takes at most `patience`. `with`: a mesh whose host and thread are shared, or NULL.
 */
int shim_open(const char *host, int rank, int nranks, int64_t patience, struct shim_mesh *with,
              struct shim_mesh **out, char *why);
/* Returns the address of this rank for `peer`, SHIM_ADDRESS bytes. */
int shim_address(struct shim_mesh *m, int peer, void *out, char *why);
/* Returns 1 if this rank calls and `peer`, at `address`, answers; else 0. */
int shim_calls(struct shim_mesh *m, int peer, const void *address, char *why);
int shim_connect(struct shim_mesh *m, int peer, const void *address, char *why);
/* Drops all connections and messages: from now on no memory of a message is accessed. */
void shim_cut(struct shim_mesh *m);
/* Closes the mesh. Sent messages still arrive; none may be pending, unless cut. NULL: no-op. */
void shim_close(struct shim_mesh *m);

/*
 * Send and receive a message. It matches the one of the same slot, and both must have one size:
 * Gloo ends the process otherwise. So the size is part of the slot (see choose_slot() in work.c).
 * bytes may be 0. known, on both sides: the receiver posts the message before sending another one
 * that the sender waits for first, so no announcement of its place is needed.
 */
int shim_send(struct shim_mesh *m, int peer, uint64_t slot, int known, const void *src,
              size_t bytes, struct shim_io **out, char *why);
int shim_recv(struct shim_mesh *m, int peer, uint64_t slot, int known, void *dst, size_t bytes,
              struct shim_io **out, char *why);
/* Waits until done, woken or `until`; 0: only tests. After a time-out the caller may wait again. */
int shim_wait(struct shim_io *io, int64_t until, char *why);
/* Wakes the waiter; call it from any thread. */
void shim_wake(struct shim_io *io);
void shim_free(struct shim_io *io);

#ifdef __cplusplus
}
#endif
#endif

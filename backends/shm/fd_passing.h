/* fd_passing.h - sockets between rank 0 and the other ranks, which pass descriptors. */
#ifndef SHM_FD_PASSING_H
#define SHM_FD_PASSING_H

#include "state.h"

enum { UNAUTHENTICATED_MOST = 128 };
struct unauthenticated { /* connections of this user that have not sent the token */
	int fd[UNAUTHENTICATED_MOST], n;
};
struct segment_address { /* published by rank 0 in the store */
	int64_t pid;
	unsigned char process[16], token[16];
	struct map *map; /* for threads of this process */
	char name[40]; /* name of the socket, after a zero byte */
};

tess_status fd_passing_listen(const struct group *g, const char *name, int *out);
tess_status fd_passing_connect(struct group *g, const struct segment_address *a, int64_t deadline);
/* Accepts all connections: unauthenticated ones must not fill the queue in which ranks wait. */
void fd_passing_accept(struct group *g, int listener, struct unauthenticated *c,
                       const struct segment_address *a);
void fd_passing_drop(struct unauthenticated *c);
tess_status fd_passing_send(const struct group *g, int32_t r, int fd);
/* Receives a descriptor of `bytes` from rank 0, which has already sent it. */
tess_status fd_passing_receive(const struct group *g, size_t bytes, int *out);

#endif

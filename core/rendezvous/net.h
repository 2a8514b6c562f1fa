/* net.h - TCP between the hosts of a job: where its ranks meet. */
#ifndef TESS_COMM_NET_H
#define TESS_COMM_NET_H

#include "secret.h"

struct tess_hosts {
	char addr[256], port[8]; /* of rank 0: a name or number, and a number */
};

/*
 * A socket that listens at the one address, never at all of this host's. TESS_EINVAL: it is not this host's,
 * or one that stands for all; TESS_EIO: the port is taken.
 */
tess_status tess_net_listen(const struct tess_hosts *at, int *out);

/* One connection that was accepted: closed on exec, not blocking, with `from` (room for 48) its peer. -1: none. */
int tess_net_accept(int listener, char *from);

/*
 * Connects, and proves and demands the secret; blocks until that is done or the deadline, since rank 0 may
 * come later. TESS_ETIMEOUT; TESS_EPERM: one of the two proofs is not taken; TESS_EINVAL: no such host.
 */
tess_status tess_net_connect(const struct tess_hosts *at, const struct tess_secret *s,
                             int64_t deadline, int *out);

#endif

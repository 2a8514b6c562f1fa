/* net.h - TCP connections to the rendezvous of a job on several hosts. */
#ifndef TESS_RENDEZVOUS_NET_H
#define TESS_RENDEZVOUS_NET_H

#include "core/rendezvous/secret.h"

struct tess_hosts {
	char addr[256], port[8]; /* rank 0's host name or address, and its port */
};

/*
 * Opens a socket that listens at this address only. TESS_EINVAL: it is not an address of this host,
 * or is the wildcard; TESS_EIO: the port is in use.
 */
tess_status tess_net_listen(const struct tess_hosts *at, int *out);

/* Accepts a connection: close-on-exec, non-blocking; `from` (48 bytes): the peer. -1: none. */
int tess_net_accept(int listener, char *from);

/*
 * Connects; both sides prove that they hold the secret. Blocks until success or the deadline, since
 * rank 0 may start later. TESS_ETIMEOUT; TESS_EPERM: a proof was rejected; TESS_EINVAL: no such
 * host.
 */
tess_status tess_net_connect(const struct tess_hosts *at, const struct tess_secret *s,
                             int64_t deadline, int *out);

#endif

/*
 * conn_flood.h - unauthenticated peers at the TCP port of a rendezvous: connections of 8 kinds,
 * many at a time, from many loopback addresses.
 */
#ifndef TESS_TESTS_CORE_RENDEZVOUS_CONN_FLOOD_H
#define TESS_TESTS_CORE_RENDEZVOUS_CONN_FLOOD_H

#include "core/rendezvous/net.h"

#include <stdatomic.h>
#include <sys/types.h>

enum { CONN_KINDS = 8 };

struct conn_flood { /* shared with the process that opens the connections */
	atomic_int opened[CONN_KINDS]; /* connections so far */
	atomic_int accepted; /* connections to which the server sent a proof */
};

/*
 * Starts a process that makes `n` connections to the port at 127.0.0.1. `secret` is the job's,
 * `other_job` that of another job. Blocks until it has recorded a genuine exchange to replay.
 */
pid_t conn_flood_start(const char *port, const struct tess_secret *secret,
                       const struct tess_secret *other_job, int n, struct conn_flood **out);
int conn_flood_count(const struct conn_flood *c);
/* Blocks until the last connection is made. */
void conn_flood_finish(pid_t pid, const struct conn_flood *c);

#endif

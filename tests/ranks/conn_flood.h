/*
 * crowd.h - strangers at the TCP port of a rendezvous: connections of 8 kinds, many at a time, from
 * many loopback addresses.
 */
#ifndef TESTS_CROWD_H
#define TESTS_CROWD_H

#include "core/rendezvous/net.h"
#include <stdatomic.h>
#include <sys/types.h>

enum { KINDS_OF_STRANGERS = 8 };

struct crowd { /* shared with the process that is the crowd */
	atomic_int made[KINDS_OF_STRANGERS]; /* connections so far */
	atomic_int accepted; /* that got a proof from the server, and so were let in */
};

/*
 * Starts a process that makes `n` connections to the port at 127.0.0.1. `secret` is the right one,
 * `other_job` that of another job. Blocks until a genuine exchange is recorded, to be replayed.
 */
pid_t crowd_start(const char *port, const struct tess_secret *secret,
                  const struct tess_secret *other_job, int n, struct crowd **out);
int crowd_made(const struct crowd *c);
/* Blocks until the last connection was made. */
void crowd_finish(pid_t pid, const struct crowd *c);

#endif

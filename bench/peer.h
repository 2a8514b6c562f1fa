/*
 * peer.h - what the peers of bench/comm have in common: they are started with the kind, the most bytes and the
 * seconds for each time, and rank 0 prints "ALGORITHM BYTES MICROSECONDS" lines.
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <stdio.h>
#include "tools/bench/measure.h"

enum { PEER_SAMPLES = 200 };

struct peer {
	const char *kind;
	uint64_t most, bytes; /* bytes: of the call that is timed now */
	double seconds;
	int rank, nranks;
	void *src, *dst;
};

static void peer_read(struct peer *p, char **argv)
{
	p->kind = argv[1];
	p->most = strtoull(argv[2], NULL, 10);
	p->seconds = strtod(argv[3], NULL);
	p->src = calloc(p->most, 1);
	p->dst = calloc(p->most, 1);
}

/* Times one call of p->bytes. `c` has the functions; self of them is `p`. */
static int peer_time(struct peer *p, struct contender *c, const char *algorithm)
{
	static double room[PEER_SAMPLES];
	struct measured m;
	int bad;

	c->self = p;
	c->src = p->src;
	c->dst = p->dst;
	c->give = c->get = p->bytes;
	c->batch = measure_batch(p->bytes);
	c->seconds = p->seconds;
	c->room = room;
	c->most = PEER_SAMPLES;
	bad = measure(c, &m);
	if (!bad && p->rank == 0) {
		printf("%s %llu %.3f\n", algorithm, (unsigned long long)p->bytes, m.us);
		fflush(stdout);
	}
	return bad;
}

#endif

/*
 * peer.h - shared code of the peers of bench/comm. Their arguments are the kind, the maximum bytes
 * and the seconds for each time; rank 0 prints "ALGORITHM BYTES MICROSECONDS" lines.
 */
#ifndef TESS_BENCH_PEER_H
#define TESS_BENCH_PEER_H

#include "tools/bench/measure.h"

#include <stdio.h>

enum { PEER_SAMPLES = 200 };

struct peer {
	const char *kind;
	uint64_t max_bytes, bytes; /* bytes: of the current call */
	double seconds;
	int rank, nranks;
	void *src, *dst;
};

static void peer_parse_arguments(struct peer *p, char **argv)
{
	p->kind = argv[1];
	p->max_bytes = strtoull(argv[2], NULL, 10);
	p->seconds = strtod(argv[3], NULL);
	p->src = calloc(p->max_bytes, 1);
	p->dst = calloc(p->max_bytes, 1);
}

/* Times one call of p->bytes; the functions of `c` get `p` as self. */
static int peer_time_call(struct peer *p, struct measure_target *c, const char *algorithm)
{
	static double times[PEER_SAMPLES];
	struct measure_result m;
	int bad;

	c->self = p;
	c->src = p->src;
	c->dst = p->dst;
	c->src_bytes = c->dst_bytes = p->bytes;
	c->batch = measure_choose_batch(p->bytes);
	c->seconds = p->seconds;
	c->times = times;
	c->max_samples = PEER_SAMPLES;
	bad = measure_run(c, &m);
	if (!bad && p->rank == 0) {
		printf("%s %llu %.3f\n", algorithm, (unsigned long long)p->bytes, m.us);
		fflush(stdout);
	}
	return bad;
}

#endif

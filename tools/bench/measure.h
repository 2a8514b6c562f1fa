/*
 * measure.h - the one way in which a collective is timed, whoever moves the bytes: ours, and the peers
 * of bench/, of which one is C++.
 *
 * A sample begins with data that this core has just written, as a layer's output is, with what came
 * last read by it, as a layer's input is, and with a barrier. Tiny calls are timed several at a time.
 */
#ifndef TESS_BENCH_MEASURE_H
#define TESS_BENCH_MEASURE_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { MEASURE_TINY = 1024, MEASURE_BATCH = 10, MEASURE_WARM = 3, MEASURE_LEAST = 5 };

struct contender {
	void *self;
	void *src; /* `give` bytes, a multiple of 4, that each sample writes */
	const void *dst; /* `get` bytes that each sample reads first */
	uint64_t give, get;
	int batch; /* calls that are one sample: measure_batch() of the same bytes on all ranks */
	double seconds; /* that all samples may take together */
	double *room; /* for `most` times, 5 at least */
	int most;
	/* Each returns 0, or what measure() then returns at once. */
	int (*run)(void *self);
	int (*barrier)(void *self);
	int (*greatest)(void *self, double *x); /* of what the ranks have in *x, on all of them */
	void (*progress)(void *self, int done, int all); /* may be NULL */
};

struct measured {
	double us; /* the median; of the rank that had the greatest */
	double least;
	int samples;
};

static double measure_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int measure_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int measure_batch(uint64_t bytes)
{
	return bytes <= MEASURE_TINY ? MEASURE_BATCH : 1;
}

static int measure_sample(const struct contender *c, uint32_t i, double *us)
{
	const volatile unsigned char *dst = (const volatile unsigned char *)c->dst;
	uint32_t *src = (uint32_t *)c->src;
	double begin;
	int bad;

	for (uint64_t k = 0; k < c->get; k += 64)
		(void)dst[k];
	for (uint64_t k = 0; k < c->give / 4; k++)
		src[k] = UINT32_C(0x3f3f3f3f) ^ (i & 0xff); /* a normal number of every type */
	bad = c->barrier(c->self);
	begin = measure_now();
	for (int k = 0; k < c->batch && !bad; k++)
		bad = c->run(c->self);
	*us = (measure_now() - begin) / c->batch;
	return bad;
}

/* As many samples as `seconds` allow, the same number on all ranks. */
static int measure_number(const struct contender *c, uint32_t *i, int *out)
{
	double us, begin = 0, n;
	int bad = 0;

	for (int k = 0; k < MEASURE_WARM && !bad; k++) {
		begin = measure_now();
		bad = measure_sample(c, (*i)++, &us);
	}
	n = c->seconds * 1e6 / (measure_now() - begin + 1);
	n = n < c->most ? n : c->most;
	if (!bad)
		bad = c->greatest(c->self, &n);
	*out = n > MEASURE_LEAST ? (int)n : MEASURE_LEAST;
	return bad;
}

static int measure(const struct contender *c, struct measured *out)
{
	uint32_t i = 0;
	int n, bad;

	bad = measure_number(c, &i, &n);
	for (int k = 0; k < n && !bad; k++) {
		if (c->progress)
			c->progress(c->self, k, n);
		bad = measure_sample(c, i++, &c->room[k]);
	}
	if (bad)
		return bad;
	qsort(c->room, (size_t)n, sizeof *c->room, measure_order);
	out->us = c->room[n / 2];
	out->least = c->room[0];
	out->samples = n;
	bad = c->greatest(c->self, &out->us);
	return bad ? bad : c->greatest(c->self, &out->least);
}

#endif

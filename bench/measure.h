/* measure.h - the one way in which collectives are timed, whoever moves the bytes. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TINY = 1024, BATCH = 10, SAMPLES = 200 };

struct contender {
	int rank;
	float *src; /* at least `bytes`, and so has dst */
	const float *dst;
	int blind; /* what came is not read before the next call */
	void (*barrier)(void);
	void (*run)(uint64_t bytes); /* one collective that moves `bytes` in all */
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

/*
 * The median of this rank's times, in microseconds. Each sample begins with data that this core has
 * just written, as a layer's output is, with what came last read by it, as a layer's input is, and
 * with a barrier; tiny calls are timed ten at a time.
 */
static double measure(const struct contender *c, uint64_t bytes)
{
	static double time[SAMPLES];
	int samples = bytes <= 4096 ? SAMPLES : bytes <= 1 << 20 ? 60 : bytes <= 16 << 20 ? 15 : 7;
	int batch = bytes <= TINY ? BATCH : 1;

	for (int i = -2; i < samples; i++) {
		double begin;
		volatile float sum = 0;

		for (uint64_t k = 0; !c->blind && k < bytes / sizeof *c->dst; k += 16)
			sum = c->dst[k];
		(void)sum;
		for (uint64_t k = 0; k < bytes / sizeof *c->src; k++)
			c->src[k] = (float)(i + c->rank);
		c->barrier();
		begin = measure_now();
		for (int k = 0; k < batch; k++)
			c->run(bytes);
		if (i >= 0)
			time[i] = (measure_now() - begin) / batch;
	}
	qsort(time, (size_t)samples, sizeof *time, measure_order);
	return time[samples / 2];
}

/* "NAME BYTES MICROSECONDS", a line for each size from 4 bytes to `most`. */
static void measure_sizes(const struct contender *c, const char *name, uint64_t most)
{
	static const int steps[] = { 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26 };

	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		uint64_t bytes = UINT64_C(1) << steps[i];
		double t;

		if (bytes > most)
			return;
		t = measure(c, bytes);
		if (c->rank == 0)
			printf("%s %llu %.3f\n", name, (unsigned long long)bytes, t);
	}
}

#endif

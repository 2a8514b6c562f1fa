/*
 * measure.h - times a collective for `tessera bench` and for the programs of bench/, one of which
 * is C++.
 *
 * Before each sample the rank writes src, as a layer writes its output, and reads dst, as a layer
 * reads its input; then comes a barrier. A sample of tiny calls has several of them.
 */
#ifndef TESS_TOOLS_BENCH_MEASURE_H
#define TESS_TOOLS_BENCH_MEASURE_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { MEASURE_TINY = 1024, MEASURE_BATCH = 10, MEASURE_WARM = 3, MEASURE_MIN = 5 };

struct measure_target {
	void *self;
	void *src; /* written before each sample; src_bytes is a multiple of 4 */
	const void *dst; /* read before each sample */
	uint64_t src_bytes, dst_bytes;
	int batch; /* calls per sample, from measure_choose_batch(); equal on all ranks */
	double seconds; /* total of all samples */
	double *times; /* max_samples values, at least MEASURE_MIN */
	int max_samples;
	/* Callbacks; each returns 0, or an error that measure_run() returns. */
	int (*run)(void *self);
	int (*barrier)(void *self);
	int (*reduce_max)(void *self, double *x); /* *x becomes the maximum of all ranks */
	void (*progress)(void *self, int done, int all); /* may be NULL */
};

struct measure_result {
	double us; /* median of the slowest rank */
	double min_us;
	int samples;
};

static double measure_read_clock(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int measure_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int measure_choose_batch(uint64_t bytes)
{
	return bytes <= MEASURE_TINY ? MEASURE_BATCH : 1;
}

static int measure_run_sample(const struct measure_target *c, uint32_t i, double *us)
{
	const volatile unsigned char *dst = (const volatile unsigned char *)c->dst;
	uint32_t *src = (uint32_t *)c->src;
	double begin;
	int bad;

	for (uint64_t k = 0; k < c->dst_bytes; k += 64)
		(void)dst[k];
	for (uint64_t k = 0; k < c->src_bytes / 4; k++)
		src[k] = UINT32_C(0x3f3f3f3f) ^ (i & 0xff); /* a normal number in every type */
	bad = c->barrier(c->self);
	begin = measure_read_clock();
	for (int k = 0; k < c->batch && !bad; k++)
		bad = c->run(c->self);
	*us = (measure_read_clock() - begin) / c->batch;
	return bad;
}

/* Chooses as many samples as `seconds` allow, equal on all ranks. */
static int measure_count_samples(const struct measure_target *c, uint32_t *i, int *out)
{
	double us, begin = 0, n;
	int bad = 0;

	for (int k = 0; k < MEASURE_WARM && !bad; k++) {
		begin = measure_read_clock();
		bad = measure_run_sample(c, (*i)++, &us);
	}
	n = c->seconds * 1e6 / (measure_read_clock() - begin + 1);
	n = n < c->max_samples ? n : c->max_samples;
	if (!bad)
		bad = c->reduce_max(c->self, &n);
	*out = n > MEASURE_MIN ? (int)n : MEASURE_MIN;
	return bad;
}

static int measure_run(const struct measure_target *c, struct measure_result *out)
{
	uint32_t i = 0;
	int n, bad;

	bad = measure_count_samples(c, &i, &n);
	for (int k = 0; k < n && !bad; k++) {
		if (c->progress)
			c->progress(c->self, k, n);
		bad = measure_run_sample(c, i++, &c->times[k]);
	}
	if (bad)
		return bad;
	qsort(c->times, (size_t)n, sizeof *c->times, measure_compare);
	out->us = c->times[n / 2];
	out->min_us = c->times[0];
	out->samples = n;
	bad = c->reduce_max(c->self, &out->us);
	return bad ? bad : c->reduce_max(c->self, &out->min_us);
}

#endif

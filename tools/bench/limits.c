/* limits.c - measures the limits of the machine: memory reads and products. */
#include "model.h"

#include "core/base/status.h"
#include "nn/program/agree.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum {
	LIMIT_BYTES = 256 << 20, /* per rank: more than a cache */
	LIMIT_READS = 2,
	LIMIT_FMAS = 1 << 21, /* per thread and sum */
	LIMIT_SUMS = 10, /* independent sums, to hide latency */
	LIMIT_TIMES = 5
};

typedef float limit_lanes __attribute__((vector_size(64), may_alias));

struct limit_thread {
	pthread_t id;
	const limit_lanes *memory; /* to read; NULL: multiplies */
	size_t bytes;
	float sum; /* keeps the compiler from removing the work */
	int64_t flops;
};

static float add_lanes(const float *lane, size_t bytes)
{
	float all = 0;

	for (size_t i = 0; i < bytes / sizeof *lane; i++)
		all += lane[i];
	return all;
}

/* Reads units of four registers, to keep several loads in flight. */
static float read_memory(const limit_lanes *at, size_t bytes)
{
	limit_lanes sum[4] = { { 0 } };

	for (int n = 0; n < LIMIT_READS; n++)
		for (size_t i = 0; i < bytes / sizeof *at; i += 4)
			for (size_t j = 0; j < 4; j++)
				sum[j] += at[i + j];
	return add_lanes((const float *)sum, sizeof sum);
}

/* Defines `name`: multiplies and adds `type` in registers of a CPU with `attribute`. */
#define DEFINE_PRODUCTS(name, attribute, type, fma) \
	attribute static float name(int64_t *flops) \
	{ \
		volatile int zero = 0; /* unknown to the compiler */ \
		type sum[LIMIT_SUMS], x; \
		memset(sum, zero, sizeof sum); \
		memset(&x, zero, sizeof x); \
		for (int i = 0; i < LIMIT_FMAS; i++) \
			for (int j = 0; j < LIMIT_SUMS; j++) \
				sum[j] = fma(sum[j], x, x); \
		*flops = (int64_t)LIMIT_FMAS * LIMIT_SUMS * (int64_t)sizeof x / 2; \
		return add_lanes((const float *)sum, sizeof sum); \
	}

#if defined(__x86_64__)
DEFINE_PRODUCTS(multiply_avx512, __attribute__((target("avx512f"))), __m512, _mm512_fmadd_ps)
DEFINE_PRODUCTS(multiply_avx2, __attribute__((target("avx2,fma"))), __m256, _mm256_fmadd_ps)
#elif defined(__aarch64__)
DEFINE_PRODUCTS(multiply_neon, , float32x4_t, vfmaq_f32)
#endif
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
DEFINE_PRODUCTS(multiply_plain, __attribute__((unused)), limit_lanes, MULTIPLY_ADD)

static float multiply_widest(int64_t *flops)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f"))
		return multiply_avx512(flops);
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return multiply_avx2(flops);
#elif defined(__aarch64__)
	return multiply_neon(flops);
#endif
	return multiply_plain(flops);
}

static void *run_limit_thread(void *arg)
{
	struct limit_thread *t = arg;

	t->sum = t->memory ? read_memory(t->memory, t->bytes) : multiply_widest(&t->flops);
	return NULL;
}

/* Measures the seconds until all threads of this rank are done; ranks start together. */
static tess_status time_threads(struct tess_group *all, struct limit_thread *t, int32_t n,
                                double *seconds)
{
	tess_status st = tess_barrier(all, "limits");
	int64_t began = tess_now();
	int32_t started = 0;

	while (!st && started < n &&
	       !pthread_create(&t[started].id, NULL, run_limit_thread, &t[started]))
		started++;
	for (int32_t i = 0; i < started; i++)
		pthread_join(t[i].id, NULL);
	*seconds = 1e-9 * (double)(tess_now() - began);
	if (!st && started < n)
		st = tess_fail(TESS_ENOMEM, "no thread to measure the limits with");
	return st;
}

static void *map_limit_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	memset(p, 1, bytes); /* allocates pages, instead of the zero page */
	return p;
}

/*
 * Measures the limits of this rank: the best of several products, but the mean of as many reads,
 * because other users of the memory slow the measured tokens, too.
 */
static tess_status time_limits(struct tess_group *all, struct limit_thread *t, int32_t n,
                               const char *memory, struct model_limits *out)
{
	size_t each = (size_t)LIMIT_BYTES / (size_t)n / 256 * 256;
	tess_status st = TESS_OK;
	double seconds, reading = 0, all_bytes = 0;

	for (int i = 0; i < 2 * LIMIT_TIMES && !st; i++) {
		bool reads = i % 2;
		double bytes = (double)n * LIMIT_READS * (double)each, flops = 0;

		for (int32_t k = 0; k < n; k++) {
			t[k].memory = reads ? (const void *)(memory + (size_t)k * each) : NULL;
			t[k].bytes = each;
		}
		st = time_threads(all, t, n, &seconds);
		for (int32_t k = 0; k < n; k++)
			flops += (double)t[k].flops;
		if (!st && reads) {
			reading += seconds;
			all_bytes += bytes;
			out->bytes = all_bytes / reading;
		}
		if (!st && !reads && flops / seconds > out->flops)
			out->flops = flops / seconds;
	}
	return st;
}

tess_status model_measure_limits(struct tess_group *all, int32_t threads, struct model_limits *out)
{
	struct limit_thread *t = calloc((size_t)threads, sizeof *t);
	char *memory = map_limit_memory(LIMIT_BYTES);
	struct model_limits mine = { 0 };
	double sum[2];
	tess_status st = t && memory ? TESS_OK : tess_fail(TESS_ENOMEM, "limits: out of memory");

	st = tess_group_agree_status(all, st, "limits");
	if (!st)
		st = time_limits(all, t, threads, memory, &mine);
	if (memory)
		munmap(memory, LIMIT_BYTES);
	free(t);
	sum[0] = mine.bytes;
	sum[1] = mine.flops;
	if (!st)
		st = tess_all_reduce(all, sum, sum, 2, TESS_F64, TESS_SUM, "limits");
	*out = (struct model_limits){ sum[0], sum[1] };
	return st;
}

/*
 * sum.c - sums of several ranks' vectors into one or several.
 *
 * f32 sums, the common ones of models, are added in registers and written to all destinations from
 * there, by the tree of additions of tess_reduce.
 */
#include "sum.h"

#include <stdbool.h>
#include <string.h>
#include <tessera/reduce.h>
#include <tessera/util/stream.h>

enum {
	STREAMS = 8, /* vectors read at once */
	STEP = 8 << 10 /* bytes added before they are copied, still in cache */
};

/* Eight floats at any address, in as many registers as the CPU needs. */
struct eight {
	float x __attribute__((vector_size(32)));
} __attribute__((packed, aligned(4), may_alias));

struct sixteen { /* a cache line */
	float low __attribute__((vector_size(32))), high __attribute__((vector_size(32)));
};

static inline __attribute__((always_inline)) void add_sixteen(const struct sixteen *a,
                                                              const struct sixteen *b,
                                                              struct sixteen *out)
{
	out->low = a->low + b->low;
	out->high = a->high + b->high;
}

static inline __attribute__((always_inline)) void load_sixteen(const float *const *src, uint64_t k,
                                                               struct sixteen *out)
{
	const struct eight *from = (const struct eight *)(const void *)(*src + k);

	out->low = from[0].x;
	out->high = from[1].x;
}

/* Replaces every NaN by the one of tess_one_nan. */
static inline __attribute__((always_inline)) void unify_nan(struct sixteen *s)
{
	int32_t low __attribute__((vector_size(32))) = s->low == s->low;
	int32_t high __attribute__((vector_size(32))) = s->high == s->high;
	const int32_t nan = 0x7fc00000;

	s->low = (__typeof__(s->low))(((__typeof__(low))s->low & low) | (nan & ~low));
	s->high = (__typeof__(s->high))(((__typeof__(high))s->high & high) | (nan & ~high));
}

/* Adds up to three vectors from element k on: two, and then the third. */
static inline __attribute__((always_inline)) void add_few(const float *const *src, int32_t nsrc,
                                                          uint64_t k, struct sixteen *out)
{
	struct sixteen next;

	load_sixteen(src, k, out);
	if (nsrc > 1) {
		load_sixteen(src + 1, k, &next);
		add_sixteen(out, &next, out);
	}
	if (nsrc > 2) {
		load_sixteen(src + 2, k, &next);
		add_sixteen(out, &next, out);
	}
}

static inline __attribute__((always_inline)) void add_four(const float *const *src, uint64_t k,
                                                           struct sixteen *out)
{
	struct sixteen right;

	add_few(src, 2, k, out);
	add_few(src + 2, 2, k, &right);
	add_sixteen(out, &right, out);
}

/* Adds up to eight vectors as tess_reduce does: pairs, pairs of pairs, and the remainder last. */
static inline __attribute__((always_inline)) struct sixteen add_cacheline(const float *const *src,
                                                                          int32_t nsrc, uint64_t k)
{
	const struct sixteen zero = { 0 };
	struct sixteen sum, right;

	if (nsrc < 4)
		add_few(src, nsrc, k, &sum);
	else
		add_four(src, k, &sum);
	if (nsrc > 4) {
		if (nsrc == STREAMS)
			add_four(src + 4, k, &right);
		else
			add_few(src + 4, nsrc - 4, k, &right);
		add_sixteen(&sum, &right, &sum);
	}
	add_sixteen(&sum, &zero, &sum); /* no sum is -0 */
	unify_nan(&sum);
	return sum;
}

/* Adds `cachelines` cache lines; every dst except the first is aligned to them. */
static inline __attribute__((always_inline)) void add_cachelines(const float *const *src,
                                                                 int32_t nsrc, uint64_t cachelines,
                                                                 float *const *dst, int32_t ndst)
{
	for (uint64_t k = 0; k < 16 * cachelines; k += 16) {
		struct sixteen sum = add_cacheline(src, nsrc, k);

		for (int32_t i = 0; i < ndst; i++) {
			struct eight *to = (struct eight *)(void *)(dst[i] + k);

			if (i) {
				tess_stream_one(to, &sum);
				continue;
			}
			to[0].x = sum.low;
			to[1].x = sum.high;
		}
	}
}

/* Adds with constant counts for two ranks, which keeps pointers in registers, and for four. */
static inline __attribute__((always_inline)) void add_f32(const float *const *src, int32_t nsrc,
                                                          uint64_t cachelines, float *const *dst,
                                                          int32_t ndst)
{
	const float *from[2] = { src[0], src[nsrc - 1] };
	float *to[2] = { dst[0], dst[ndst - 1] };

	if (nsrc == 2 && ndst == 1)
		add_cachelines(from, 2, cachelines, to, 1);
	else if (nsrc == 2 && ndst == 2)
		add_cachelines(from, 2, cachelines, to, 2);
	else if (nsrc == 4)
		add_cachelines(src, 4, cachelines, dst, ndst);
	else
		add_cachelines(src, nsrc, cachelines, dst, ndst);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_f32_avx2(const float *const *src, int32_t nsrc,
                                                         uint64_t cachelines, float *const *dst,
                                                         int32_t ndst)
{
	add_f32(src, nsrc, cachelines, dst, ndst);
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}
#else
#define add_f32_avx2 add_f32

static bool has_avx2(void)
{
	return false;
}
#endif

static float add_element(const float *const *src, int32_t nsrc, uint64_t k)
{
	int32_t first = 1;

	if (nsrc == 1)
		return src[0][k];
	while (2 * first < nsrc)
		first *= 2;
	return add_element(src, first, k) + add_element(src + first, nsrc - first, k);
}

/* Adds f32 in registers if streams begin at cache lines; else returns false and does nothing. */
static bool add_f32_vectors(int32_t nsrc, const float *const *src, uint64_t n, float *const *dst,
                            int32_t ndst)
{
	uint64_t k = n / 16 * 16;

	for (int32_t i = 1; i < ndst; i++)
		if ((uintptr_t)dst[i] % TESS_STREAM_LINE)
			return false;
	if (k)
		(has_avx2() ? add_f32_avx2 : add_f32)(src, nsrc, n / 16, dst, ndst);
	for (; k < n; k++) {
		float sum = tess_one_nan(add_element(src, nsrc, k) + 0.0f);

		for (int32_t i = 0; i < ndst; i++)
			dst[i][k] = sum;
	}
	return true;
}

/* Adds any type, in its own function for the stack that it needs. */
static __attribute__((noinline)) void sum_any_type(int32_t dtype, int32_t op,
                                                   const void *const *src, int32_t nsrc, uint64_t n,
                                                   void *const *dst, int32_t ndst)
{
	size_t width = tess_width(dtype);
	uint64_t step = STEP / width;

	for (uint64_t k = 0; k < n; k += step) {
		uint64_t len = n - k < step ? n - k : step;
		char *sum = (char *)dst[0] + k * width;
		const void *part[RANKS_MOST];

		for (int32_t r = 0; r < nsrc; r++)
			part[r] = (const char *)src[r] + k * width;
		tess_reduce(dtype, op, part, nsrc, len, sum);
		for (int32_t i = 1; i < ndst; i++) {
			char *to = (char *)dst[i] + k * width;

			tess_stream(to, sum, len * width);
		}
	}
}

void sum_into_all(int32_t dtype, int32_t op, const void *const *src, int32_t nsrc, uint64_t n,
                  void *const *dst, int32_t ndst)
{
	uint32_t saved = tess_float_enter();

	if (dtype != TESS_F32 || op != TESS_SUM || nsrc > STREAMS ||
	    !add_f32_vectors(nsrc, (const float *const *)src, n, (float *const *)dst, ndst))
		sum_any_type(dtype, op, src, nsrc, n, dst, ndst);
	tess_float_leave(saved);
}

/*
 * sum.c - sums of several ranks' vectors, into one or several.
 *
 * f32 sums, which is what models ask for, are added from registers and written to all places from
 * there; it is the tree of additions of tess_reduce.
 */
#include <string.h>
#include <tessera/stream.h>

#include "shm.h"

enum {
	STREAMS = 8, /* vectors that are read at once */
	STEP = 8 << 10 /* bytes that are added before they are handed on, still in cache */
};

/* Eight floats, anywhere in memory: as many registers as the CPU needs for them. */
struct eight {
	float x __attribute__((vector_size(32)));
} __attribute__((packed, aligned(4), may_alias));

struct sixteen { /* a line */
	float low __attribute__((vector_size(32))), high __attribute__((vector_size(32)));
};

static inline __attribute__((always_inline)) void add(const struct sixteen *a,
                                                      const struct sixteen *b, struct sixteen *out)
{
	out->low = a->low + b->low;
	out->high = a->high + b->high;
}

static inline __attribute__((always_inline)) void load(const float *const *src, uint64_t k,
                                                       struct sixteen *out)
{
	const struct eight *from = (const struct eight *)(const void *)(*src + k);

	out->low = from[0].x;
	out->high = from[1].x;
}

/* Every NaN becomes the one of tess_one_nan. */
static inline __attribute__((always_inline)) void unite(struct sixteen *s)
{
	int32_t low __attribute__((vector_size(32))) = s->low == s->low;
	int32_t high __attribute__((vector_size(32))) = s->high == s->high;
	const int32_t nan = 0x7fc00000;

	s->low = (__typeof__(s->low))(((__typeof__(low))s->low & low) | (nan & ~low));
	s->high = (__typeof__(s->high))(((__typeof__(high))s->high & high) | (nan & ~high));
}

/* Up to three, from element k on: two, and the third. */
static inline __attribute__((always_inline)) void add_few(const float *const *src, int32_t nsrc,
                                                          uint64_t k, struct sixteen *out)
{
	struct sixteen next;

	load(src, k, out);
	if (nsrc > 1) {
		load(src + 1, k, &next);
		add(out, &next, out);
	}
	if (nsrc > 2) {
		load(src + 2, k, &next);
		add(out, &next, out);
	}
}

static inline __attribute__((always_inline)) void add_four(const float *const *src, uint64_t k,
                                                           struct sixteen *out)
{
	struct sixteen right;

	add_few(src, 2, k, out);
	add_few(src + 2, 2, k, &right);
	add(out, &right, out);
}

/* Up to eight, as tess_reduce adds them: pairs, pairs of pairs, and what is left over last. */
static inline __attribute__((always_inline)) struct sixteen add_line(const float *const *src,
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
		add(&sum, &right, &sum);
	}
	add(&sum, &zero, &sum); /* no sum is -0 */
	unite(&sum);
	return sum;
}

/* The first `lines` lines of sums; dst but for the first are aligned to lines. */
static inline __attribute__((always_inline)) void add_lines(const float *const *src, int32_t nsrc,
                                                            uint64_t lines, float *const *dst,
                                                            int32_t ndst, bool through)
{
	for (uint64_t k = 0; k < 16 * lines; k += 16) {
		struct sixteen sum = add_line(src, nsrc, k);

		for (int32_t i = 0; i < ndst; i++) {
			struct eight *to = (struct eight *)(void *)(dst[i] + k);

			if (i && !through) {
				tess_stream_one(to, &sum);
				continue;
			}
			to[0].x = sum.low;
			to[1].x = sum.high;
		}
	}
}

/* What two ranks do is made of constants, so that pointers stay in registers; of four, the tree. */
static inline __attribute__((always_inline)) void add_f32(const float *const *src, int32_t nsrc,
                                                          uint64_t lines, float *const *dst,
                                                          int32_t ndst, bool through)
{
	const float *from[2] = { src[0], src[nsrc - 1] };
	float *to[2] = { dst[0], dst[ndst - 1] };

	if (nsrc == 2 && ndst == 1)
		add_lines(from, 2, lines, to, 1, false);
	else if (nsrc == 2 && ndst == 2 && through)
		add_lines(from, 2, lines, to, 2, true);
	else if (nsrc == 2 && ndst == 2)
		add_lines(from, 2, lines, to, 2, false);
	else if (nsrc == 4)
		add_lines(src, 4, lines, dst, ndst, through);
	else
		add_lines(src, nsrc, lines, dst, ndst, through);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_f32_wide(const float *const *src, int32_t nsrc,
                                                         uint64_t lines, float *const *dst,
                                                         int32_t ndst, bool through)
{
	add_f32(src, nsrc, lines, dst, ndst, through);
}

static bool has_wide(void)
{
	return __builtin_cpu_supports("avx2");
}
#else
#define add_f32_wide add_f32

static bool has_wide(void)
{
	return false;
}
#endif

static float add_one(const float *const *src, int32_t nsrc, uint64_t k)
{
	int32_t first = 1;

	if (nsrc == 1)
		return src[0][k];
	while (2 * first < nsrc)
		first *= 2;
	return add_one(src, first, k) + add_one(src + first, nsrc - first, k);
}

/* f32 sums from registers, where streams fall on whole lines; else false, and nothing is done. */
static bool add_fast(int32_t nsrc, const float *const *src, uint64_t n, float *const *dst,
                     int32_t ndst, bool through)
{
	uint64_t k = n / 16 * 16;

	for (int32_t i = 1; i < ndst; i++)
		if ((uintptr_t)dst[i] % TESS_STREAM_LINE)
			return false;
	if (k)
		(has_wide() ? add_f32_wide : add_f32)(src, nsrc, n / 16, dst, ndst, through);
	for (; k < n; k++) {
		float sum = tess_one_nan(add_one(src, nsrc, k) + 0.0f);

		for (int32_t i = 0; i < ndst; i++)
			dst[i][k] = sum;
	}
	return true;
}

/* Apart, for the room on the stack that only these need. */
static __attribute__((noinline)) void sum_any(int32_t dtype, int32_t op, const void *const *src,
                                              int32_t nsrc, uint64_t n, void *const *dst,
                                              int32_t ndst, bool through)
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

			if (through)
				memcpy(to, sum, len * width);
			else
				tess_stream(to, sum, len * width);
		}
	}
}

static void sum_some(int32_t dtype, int32_t op, const void *const *src, int32_t nsrc, uint64_t n,
                     void *const *dst, int32_t ndst, bool through)
{
	if (dtype != TESS_F32 || op != TESS_SUM || nsrc > STREAMS ||
	    !add_fast(nsrc, (const float *const *)src, n, (float *const *)dst, ndst, through))
		sum_any(dtype, op, src, nsrc, n, dst, ndst, through);
}

/* Some of it is timed, the rest done as that told. */
static __attribute__((noinline)) void sum_at_pace(int32_t dtype, int32_t op, const void *const *src,
                                                  int32_t nsrc, uint64_t n, void *const *dst,
                                                  int32_t ndst, struct tess_store_policy *pace)
{
	size_t width = tess_width(dtype);
	const void *from[RANKS_MOST];
	void *to[RANKS_MOST];
	bool through = false;
	uint64_t tried = tess_store_policy_sample(pace, n * width, &through) / width;

	if (tried) {
		int64_t begin = bell_now();

		sum_some(dtype, op, src, nsrc, tried, dst, ndst, through);
		tess_store_policy_record(pace, tried * width, bell_now() - begin);
	}
	for (int32_t r = 0; r < nsrc; r++)
		from[r] = (const char *)src[r] + tried * width;
	for (int32_t i = 0; i < ndst; i++)
		to[i] = (char *)dst[i] + tried * width;
	if (tried < n)
		sum_some(dtype, op, from, nsrc, n - tried, to, ndst, pace->cached);
}

void sum_to(int32_t dtype, int32_t op, const void *const *src, int32_t nsrc, uint64_t n,
            void *const *dst, int32_t ndst, struct tess_store_policy *pace)
{
	uint32_t saved = tess_float_enter();

	if (pace)
		sum_at_pace(dtype, op, src, nsrc, n, dst, ndst, pace);
	else
		sum_some(dtype, op, src, nsrc, n, dst, ndst, false);
	tess_float_leave(saved);
}

/*
 * move.c - copies into memory that another rank has read, and sums.
 *
 * A line that another core holds has to be taken away from it before it can be written, and cores do
 * not do that ahead of time, as they fetch what is read: 30 ns a line against 4. Stores that pass the
 * caches spare it, from some lines on (bench/comm -c shows both). They are not ordered with other
 * stores: move_fence comes before the notice.
 *
 * f32 sums, which is what models ask for, are added from registers; it is the chain of tess_reduce.
 */
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "shm.h"

enum {
	LINE = 64,
	STREAM = 2048, /* bytes from which passing the caches is faster */
	STREAMS = 8, /* vectors that are read at once */
	STEP = 8 << 10 /* bytes that are added before they are handed on, still in cache */
};

#if defined(__x86_64__)
void move_to(void *dst, const void *src, size_t n)
{
	size_t head = (size_t)(-(uintptr_t)dst % LINE);
	const char *from = src;
	char *to = dst;

	if (n < STREAM) {
		memcpy(dst, src, n);
		return;
	}
	memcpy(to, from, head);
	for (size_t end = n - (n - head) % LINE; head < end; head += LINE)
		for (size_t k = head; k < head + LINE; k += 16)
			_mm_stream_si128(
				(__m128i *)(void *)(to + k),
				_mm_loadu_si128((const __m128i *)(const void *)(from + k)));
	memcpy(to + head, from + head, n - head);
}

void move_fence(void)
{
	_mm_sfence();
}
#else
void move_to(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

void move_fence(void)
{
}
#endif

/* Eight floats, anywhere in memory: as many registers as the CPU needs for them. */
struct eight {
	float x __attribute__((vector_size(32)));
} __attribute__((packed, aligned(4), may_alias));

static inline __attribute__((always_inline)) void stream_line(float *to, const struct eight *line)
{
#if defined(__x86_64__)
	const float *x = (const float *)line;

	for (int i = 0; i < 16; i += 4)
		_mm_stream_ps(to + i, _mm_loadu_ps(x + i));
#else
	memcpy(to, line, LINE);
#endif
}

/* The first `lines` lines of sums; dst but for the first are aligned to lines. */
static inline __attribute__((always_inline)) void add_lines(const float *const *src, int32_t nsrc,
                                                            uint64_t lines, float *const *dst,
                                                            int32_t ndst)
{
	for (uint64_t k = 0; k < 16 * lines; k += 16) {
		const struct eight *from = (const struct eight *)(const void *)(src[0] + k);
		struct eight *to = (struct eight *)(void *)(dst[0] + k),
			     sum[2] = { from[0], from[1] };

		for (int32_t r = 1; r < nsrc; r++) {
			from = (const struct eight *)(const void *)(src[r] + k);
			sum[0].x += from[0].x;
			sum[1].x += from[1].x;
		}
		to[0] = sum[0];
		to[1] = sum[1];
		for (int32_t i = 1; i < ndst; i++)
			stream_line(dst[i] + k, sum);
	}
}

/* Two ranks are constants, so that pointers stay in registers. */
static inline __attribute__((always_inline)) void add_f32(const float *const *src, int32_t nsrc,
                                                          uint64_t lines, float *const *dst,
                                                          int32_t ndst)
{
	const float *from[2] = { src[0], src[nsrc - 1] };
	float *to[2] = { dst[0], dst[ndst - 1] };

	if (nsrc == 2 && ndst == 1)
		add_lines(from, 2, lines, to, 1);
	else if (nsrc == 2 && ndst == 2)
		add_lines(from, 2, lines, to, 2);
	else
		add_lines(src, nsrc, lines, dst, ndst);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void add_f32_wide(const float *const *src, int32_t nsrc,
                                                         uint64_t lines, float *const *dst,
                                                         int32_t ndst)
{
	add_f32(src, nsrc, lines, dst, ndst);
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

/* How many lines of f32 may be added from registers: where it is worth it, and streams fall on lines. */
static uint64_t lines_of(int32_t dtype, int32_t op, int32_t nsrc, uint64_t n, void *const *dst,
                         int32_t ndst)
{
	if (dtype != TESS_F32 || op != TESS_SUM || nsrc > STREAMS)
		return 0;
	for (int32_t i = 1; i < ndst; i++)
		if ((uintptr_t)dst[i] % LINE)
			return 0;
	return n / 16;
}

void move_sum(int32_t dtype, int32_t op, const void *const *src, int32_t nsrc, uint64_t n,
              void *const *dst, int32_t ndst)
{
	size_t width = tess_width(dtype);
	uint64_t step = STEP / width, lines = lines_of(dtype, op, nsrc, n, dst, ndst);

	if (lines)
		(has_wide() ? add_f32_wide : add_f32)((const float *const *)src, nsrc, lines,
		                                      (float *const *)dst, ndst);
	for (uint64_t k = 16 * lines; k < n; k += step) {
		uint64_t len = n - k < step ? n - k : step;
		char *sum = (char *)dst[0] + k * width;
		const void *part[RANKS_MOST];

		for (int32_t r = 0; r < nsrc; r++)
			part[r] = (const char *)src[r] + k * width;
		tess_reduce(dtype, op, part, nsrc, len, sum);
		for (int32_t i = 1; i < ndst; i++)
			move_to((char *)dst[i] + k * width, sum, len * width);
	}
}

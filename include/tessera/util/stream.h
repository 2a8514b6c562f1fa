/*
 * tessera/util/stream.h - copies into memory that another core has read.
 *
 * A write first takes the cache line from the core that holds it. Cores prefetch for reads, but not
 * for this: a line costs 7 ns, or 28 ns between core complexes. Streaming stores avoid it and cost
 * 3 to 5 ns. If the other core has dropped the line, cached stores cost 1 ns.
 *
 * Example:
 *     static void send_bytes(void *shared, const void *from, size_t n)
 *     {
 *             if (n < TESS_STREAM_MIN) {
 *                     memcpy(shared, from, n);
 *                     return;
 *             }
 *             tess_stream(shared, from, n);
 *             tess_stream_end();
 *     }
 */
#ifndef TESSERA_UTIL_STREAM_H
#define TESSERA_UTIL_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Bytes of a cache line; minimum bytes of a copy for which streaming stores are faster. */
enum { TESS_STREAM_LINE = 64, TESS_STREAM_MIN = 8192 };

/* Copies one cache line; dst is aligned to it. */
static inline void tess_stream_one(void *dst, const void *src)
{
#if defined(__SSE2__)
	const __m128i *x = (const __m128i *)src;
	__m128i *y = (__m128i *)dst;

	_mm_stream_si128(y, _mm_loadu_si128(x));
	_mm_stream_si128(y + 1, _mm_loadu_si128(x + 1));
	_mm_stream_si128(y + 2, _mm_loadu_si128(x + 2));
	_mm_stream_si128(y + 3, _mm_loadu_si128(x + 3));
#else
	memcpy(dst, src, TESS_STREAM_LINE);
#endif
}

/*
 * Copies n bytes, not ordered with other stores. Call tess_stream_end before another core reads
 * dst.
 */
static inline void tess_stream(void *dst, const void *src, size_t n)
{
	size_t at = (size_t)(-(uintptr_t)dst % TESS_STREAM_LINE);
	const char *from = (const char *)src;
	char *to = (char *)dst;

	if (at > n)
		at = n;
	memcpy(to, from, at);
	for (; at + TESS_STREAM_LINE <= n; at += TESS_STREAM_LINE)
		tess_stream_one(to + at, from + at);
	memcpy(to + at, from + at, n - at);
}

/* Orders streaming stores before later stores. */
static inline void tess_stream_end(void)
{
#if defined(__SSE2__)
	_mm_sfence();
#endif
}

#endif

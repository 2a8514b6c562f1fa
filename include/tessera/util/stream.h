/*
 * tessera/util/stream.h - copies into memory that another core has read.
 *
 * A cache line that another core holds must be taken from it before it is written, and cores do not
 * prefetch for that as they do for reads: 7 ns a line, 28 where the cores are in different core
 * complexes. Streaming stores avoid it, for 3 to 5 ns; where the other core has dropped the line,
 * cached stores take 1.
 */
#ifndef TESSERA_UTIL_STREAM_H
#define TESSERA_UTIL_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { TESS_STREAM_LINE = 64, TESS_STREAM_MIN = 8192 }; /* bytes; below, caches do as well */

/* One cache line; dst is aligned to it. */
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

/* Not ordered with other stores: call tess_stream_end before another core is let read them. */
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

static inline void tess_stream_end(void)
{
#if defined(__SSE2__)
	_mm_sfence();
#endif
}

#endif

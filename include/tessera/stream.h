/*
 * tessera/stream.h - copies into memory that another core has read.
 *
 * A line that another core holds must be taken away from it before it can be written, and cores do
 * not do that ahead of time, as they fetch what is read: on a machine with two groups of cores 28
 * ns a line against 4. Stores that pass the caches spare it.
 */
#ifndef TESSERA_STREAM_H
#define TESSERA_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { TESS_STREAM_LINE = 64, TESS_STREAM_LEAST = 8192 }; /* bytes below which caches are as fast */

/* One line, to an address that is a multiple of it. */
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

/* Others may be told of it after tess_stream_end: these stores are not ordered with any other. */
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

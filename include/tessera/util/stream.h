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

#include <stdbool.h>
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

/*
 * Which kind of store is faster is measured: only that shows where the cores are and what they
 * hold. Of vectors of about one size some bytes are timed, streamed for a few calls and then
 * cached, since what cores hold follows from how it was written last. Then all use the faster kind,
 * until so many bytes have gone that measuring again costs next to nothing. Vectors that do not fit
 * in the caches are streamed. Zeroed before the first use; each rank has its own.
 */
struct tess_store_policy {
	uint64_t bytes; /* since the last measurement */
	int64_t best[2]; /* ns for 1 MiB: streaming, cached */
	int32_t tries;
	int32_t settles; /* first cached tries, which do not count unless they take too long */
	bool cached;
};
enum {
	TESS_STORE_POLICIES = 10, /* sizes: below 16 KiB, 32 KiB, .. 8 MiB */
	TESS_STORE_POLICY_TRIES = 4, /* of each kind */
	TESS_STORE_POLICY_SAMPLE = 32 << 10, /* bytes of a try */
	TESS_STORE_POLICY_AGAIN = 256 << 20 /* bytes until the next measurement */
};

/* The policy for vectors of `bytes`; NULL: they are streamed. */
static inline struct tess_store_policy *tess_store_policy_for(
	struct tess_store_policy all[TESS_STORE_POLICIES], uint64_t bytes)
{
	int i = 0;

	while (i < TESS_STORE_POLICIES && bytes >> (14 + i))
		i++;
	return i < TESS_STORE_POLICIES ? &all[i] : NULL;
}

/* How many of the next `bytes` to time, and how to store those; p->cached is for the rest. */
static inline uint64_t tess_store_policy_sample(struct tess_store_policy *p, uint64_t bytes,
                                                bool *cached)
{
	p->bytes += bytes;
	if (p->tries == 2 * TESS_STORE_POLICY_TRIES + p->settles) {
		if (p->bytes < TESS_STORE_POLICY_AGAIN)
			return 0;
		p->tries = 0;
	}
	*cached = p->tries >= TESS_STORE_POLICY_TRIES;
	return bytes < TESS_STORE_POLICY_SAMPLE ? bytes : (uint64_t)TESS_STORE_POLICY_SAMPLE;
}

/* `bytes` of a sample took `ns`. */
static inline void tess_store_policy_record(struct tess_store_policy *p, uint64_t bytes, int64_t ns)
{
	int32_t i = p->tries++ - TESS_STORE_POLICY_TRIES; /* cached tries before this one */
	int64_t *best = &p->best[i >= 0], each = (int64_t)(((uint64_t)ns << 20) / bytes);

	if (i == -TESS_STORE_POLICY_TRIES || i == 0 || i == p->settles || each < *best)
		*best = each;
	if (i == TESS_STORE_POLICY_TRIES && p->best[1] > 3 * p->best[0])
		p->tries = 2 * TESS_STORE_POLICY_TRIES + p->settles;
	if (p->tries < 2 * TESS_STORE_POLICY_TRIES + p->settles)
		return;
	p->cached = p->best[1] < p->best[0];
	p->bytes = 0;
}

#endif

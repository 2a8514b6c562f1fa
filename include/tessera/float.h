/*
 * tessera/float.h - the floating-point state in which numbers are the same everywhere: round to nearest,
 * nothing flushed to zero, no traps; and one NaN.
 *
 * The state belongs to a thread, which has it from the one that started it; a host program, or a library
 * that it loads (built with -ffast-math), may have changed it. Who computes or adds sets it first.
 */
#ifndef TESSERA_FLOAT_H
#define TESSERA_FLOAT_H

#include <stdint.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { TESS_FLOAT_STATE = 0x1f80, TESS_FLOAT_MASK = 0xffc0 }; /* of MXCSR; flags apart */

/* Returns what was there, for tess_float_leave. Costs a few cycles where there is nothing to change. */
static inline uint32_t tess_float_enter(void)
{
#if defined(__SSE2__)
	uint32_t saved = _mm_getcsr();

	if ((saved & TESS_FLOAT_MASK) != TESS_FLOAT_STATE)
		_mm_setcsr(TESS_FLOAT_STATE);
	return saved;
#elif defined(__aarch64__)
	uint64_t saved;

	__asm__ volatile("mrs %0, fpcr" : "=r"(saved));
	if (saved)
		__asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
	return (uint32_t)saved;
#else
	return 0;
#endif
}

static inline void tess_float_leave(uint32_t saved)
{
#if defined(__SSE2__)
	if ((saved & TESS_FLOAT_MASK) != TESS_FLOAT_STATE)
		_mm_setcsr(saved);
#elif defined(__aarch64__)
	if (saved)
		__asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved));
#else
	(void)saved;
#endif
}

/* x, and for every NaN the one of bits 0x7fc00000: which NaN a sum gives depends on the order of its operands. */
static inline float tess_one_nan(float x)
{
	return x == x ? x : __builtin_nanf("");
}

#endif

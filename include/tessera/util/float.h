/*
 * tessera/util/float.h - the floating-point state of reproducible results, and one NaN.
 *
 * The state is: round to nearest, nothing flushed to zero, no traps. Each thread has its own state,
 * inherited from the thread that started it. A program, or a library that it loads (built with
 * -ffast-math), may have changed it. Set it before computing.
 *
 * Example:
 *     static float add_floats(float a, float b)
 *     {
 *             uint32_t saved = tess_float_enter();
 *             float sum = tess_one_nan(a + b);
 *
 *             tess_float_leave(saved);
 *             return sum;
 *     }
 */
#ifndef TESSERA_UTIL_FLOAT_H
#define TESSERA_UTIL_FLOAT_H

#include <stdint.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* The state in MXCSR, and a mask without its flags. */
enum { TESS_FLOAT_STATE = 0x1f80, TESS_FLOAT_MASK = 0xffc0 };

/*
 * Sets the state of this thread. Returns the previous state, for tess_float_leave. It costs a few
 * cycles if the state is already set.
 */
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

/* Restores the state that tess_float_enter returned. */
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

/*
 * Returns x, or the NaN of bits 0x7fc00000 for any NaN. The NaN of a sum depends on operand order.
 */
static inline float tess_one_nan(float x)
{
	return x == x ? x : __builtin_nanf("");
}

#endif

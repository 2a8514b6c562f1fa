/*
 * ticks.h - CLOCK_MONOTONIC at a third of the cost of clock_gettime(): from the counter of the CPU,
 * synchronized with the system's clock every few ms.
 *
 * Reads the system's clock itself where the CPU has no counter of constant rate, until the rate is
 * measured, and where the counter jumps: when a thread moves to a CPU with another counter, or the
 * machine was suspended.
 */
#ifndef TESS_BASE_TICKS_H
#define TESS_BASE_TICKS_H

#include <stdint.h>

/* Zeroed before the first use; used by one thread at a time. */
struct tess_ticks {
	uint64_t sync_count; /* the counter at the last synchronization */
	int64_t sync_ns; /* the time returned then */
	int64_t last_ns; /* the time returned last */
	uint64_t sync_after; /* ticks up to the next synchronization; 0: at once */
	uint64_t rate; /* ns per tick, times 2^32; 0: unknown */
	uint64_t rate_count; /* counter and clock where the measurement of the rate began */
	int64_t rate_ns;
	int32_t has_counter; /* -1: no, 1: yes, 0: unknown */
};

static inline uint64_t tess_ticks_count(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc(); /* x86intrin.h takes longer to compile than most files */
#elif defined(__aarch64__)
	uint64_t n;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(n));
	return n;
#else
	return 0;
#endif
}

/* Reads both clocks, and returns the time. */
int64_t tess_ticks_sync(struct tess_ticks *t);

/* ns; never decreases; within a microsecond of the clock unless the clock was adjusted. */
static inline int64_t tess_ticks_now(struct tess_ticks *t)
{
	uint64_t passed = tess_ticks_count() - t->sync_count;

	if (passed >= t->sync_after)
		return tess_ticks_sync(t);
	return t->last_ns = t->sync_ns + (int64_t)(passed * t->rate >> 32);
}

#endif

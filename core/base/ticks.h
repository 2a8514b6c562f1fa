/*
 * ticks.h - CLOCK_MONOTONIC for every call, at a third of what the system asks for it: from the
 * counter of the CPU, held against the system's clock every few ms.
 *
 * Where the CPU has no counter that runs at one speed, and until it is known how fast it runs, what
 * is said is the system's clock itself. So it is where the counter jumps: when a rank moves to a CPU
 * whose counter stands elsewhere, or when the machine was asleep.
 */
#ifndef TESS_COMM_TICKS_H
#define TESS_COMM_TICKS_H

#include <stdint.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* Zeroed before the first; used by one thread at a time. */
struct tess_ticks {
	uint64_t sync_count; /* the counter, when the clock was looked at last */
	int64_t sync_ns; /* and what was said then */
	int64_t last_ns; /* last */
	uint64_t sync_after; /* ticks after which it is looked at again; 0: at once */
	uint64_t rate; /* ns of a tick, times 2^32; 0: not known */
	uint64_t rate_count; /* the counter, and the clock, from when on the rate is measured */
	int64_t rate_ns;
	int32_t has_counter; /* -1: no, 1: yes, 0: not asked */
};

static inline uint64_t tess_ticks_count(void)
{
#if defined(__x86_64__)
	return __rdtsc();
#elif defined(__aarch64__)
	uint64_t n;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(n));
	return n;
#else
	return 0;
#endif
}

/* Looks at the clock. */
int64_t tess_ticks_sync(struct tess_ticks *t);

/* ns; never less than was said before, a microsecond off the clock where that was not set meanwhile. */
static inline int64_t tess_ticks_now(struct tess_ticks *t)
{
	uint64_t passed = tess_ticks_count() - t->sync_count;

	if (passed >= t->sync_after)
		return tess_ticks_sync(t);
	return t->last_ns = t->sync_ns + (int64_t)(passed * t->rate >> 32);
}

#endif

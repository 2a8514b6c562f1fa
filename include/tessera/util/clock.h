/*
 * tessera/util/clock.h - the clock of deadlines: CLOCK_MONOTONIC, in ns.
 *
 * Only inline functions. tess_now() requires the POSIX clocks of <time.h>: define _GNU_SOURCE or
 * _POSIX_C_SOURCE before the first header.
 *
 * Example:
 *     static int is_late(int64_t now, int64_t start)
 *     {
 *             return now - start > 100 * (int64_t)TESS_MS;
 *     }
 */
#ifndef TESSERA_UTIL_CLOCK_H
#define TESSERA_UTIL_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of one millisecond. */
enum { TESS_MS = 1000000 };

/* Converts nanoseconds to a timespec; ns >= 0. */
static inline struct timespec tess_timespec(int64_t ns)
{
	struct timespec t;

	t.tv_sec = (time_t)(ns / 1000000000);
	t.tv_nsec = (long)(ns % 1000000000);
	return t;
}

#ifdef CLOCK_MONOTONIC
/* Returns the time now, in ns. */
static inline int64_t tess_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
#endif

#endif

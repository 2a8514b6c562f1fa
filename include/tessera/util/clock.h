/*
 * tessera/util/clock.h - the clock of deadlines: CLOCK_MONOTONIC, in ns.
 *
 * Only inline functions. tess_now() needs the POSIX clocks of <time.h>: define _GNU_SOURCE or
 * _POSIX_C_SOURCE before the first header.
 */
#ifndef TESSERA_UTIL_CLOCK_H
#define TESSERA_UTIL_CLOCK_H

#include <stdint.h>
#include <time.h>

enum { TESS_MS = 1000000 }; /* ns */

static inline struct timespec tess_timespec(int64_t ns)
{
	struct timespec t;

	t.tv_sec = (time_t)(ns / 1000000000);
	t.tv_nsec = (long)(ns % 1000000000);
	return t;
}

#ifdef CLOCK_MONOTONIC
static inline int64_t tess_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
#endif

#endif

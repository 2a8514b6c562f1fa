/* clock.h - deadlines: absolute CLOCK_MONOTONIC, in ns. */
#ifndef TESS_BASE_CLOCK_H
#define TESS_BASE_CLOCK_H

#include <pthread.h>
#include <tessera/util/clock.h>

/* Initializes a condition whose timed waits take deadlines of tess_now(). */
static inline void tess_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

/* Returns the milliseconds until `deadline`, for poll(), rounded up; 0 if it has passed. */
static inline int tess_ms_left(int64_t deadline)
{
	int64_t left = deadline - tess_now();

	if (left <= 0)
		return 0;
	return left > INT64_C(1000000) * TESS_MS ? 1000000 : (int)((left + TESS_MS - 1) / TESS_MS);
}

#endif

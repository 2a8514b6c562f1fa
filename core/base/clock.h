/* clock.h - deadlines are absolute: CLOCK_MONOTONIC in ns. */
#ifndef TESS_COMM_CLOCK_H
#define TESS_COMM_CLOCK_H

#include <stdint.h>
#include <time.h>

enum { TESS_MS = 1000000 };

static inline int64_t tess_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline struct timespec tess_timespec(int64_t ns)
{
	return (struct timespec){ .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
}

/* Milliseconds from now until `deadline` for poll(), rounded up; 0 if it has passed. */
static inline int tess_ms_left(int64_t deadline)
{
	int64_t left = deadline - tess_now();

	if (left <= 0)
		return 0;
	return left > INT64_C(1000000) * TESS_MS ? 1000000 : (int)((left + TESS_MS - 1) / TESS_MS);
}

#endif

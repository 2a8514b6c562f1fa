/* clock.h - deadlines: absolute CLOCK_MONOTONIC, in ns. */
#ifndef TESS_BASE_CLOCK_H
#define TESS_BASE_CLOCK_H

#include <tessera/clock.h>

/* Milliseconds from now until `deadline` for poll(), rounded up; 0 if it has passed. */
static inline int tess_ms_left(int64_t deadline)
{
	int64_t left = deadline - tess_now();

	if (left <= 0)
		return 0;
	return left > INT64_C(1000000) * TESS_MS ? 1000000 : (int)((left + TESS_MS - 1) / TESS_MS);
}

#endif

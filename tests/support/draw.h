/* draw.h - random numbers that depend only on a seed, on every rank and machine. */
#ifndef TESS_TESTS_SUPPORT_DRAW_H
#define TESS_TESTS_SUPPORT_DRAW_H

#include <stdint.h>

/* Returns a number from 0 to below - 1, by SplitMix64, whose state is *state. */
static inline uint64_t draw_below(uint64_t *state, uint64_t below)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return (x ^ x >> 31) % below;
}

#endif

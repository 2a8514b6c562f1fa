/*
 * free_order.h - the cost of the fixed order of sums: a LINEAR with the tile of devices/cpu, 6 rows
 * by 4 panels, that adds each element of K to one chain, like a library without that rule.
 */
#ifndef TESS_BENCH_FREE_ORDER_H
#define TESS_BENCH_FREE_ORDER_H

#include <stdint.h>

/*
 * Computes y [m, n] = x [m, k] times panels [n / 16][k][16], n in 64s, on one thread. packed: m * k
 * floats of scratch memory.
 */
void free_order_multiply(const float *x, const float *panels, float *y, float *packed, int64_t m,
                         int64_t n, int64_t k);

#endif

/*
 * scalar.h - every op as docs/ops.md defines it, one element at a time: for lockstep, and as a
 * second implementation to compare devices with. Shares only the split rule with devices.
 */
#ifndef TESS_TESTS_RANKS_SCALAR_H
#define TESS_TESTS_RANKS_SCALAR_H

#include <stdbool.h>
#include <tessera/device.h>

void scalar_run(const struct tess_op *op);

/* A device that knows rows only; for tess_rank_weights_load. */
extern const struct tess_device scalar_device;

/* ROUTE, EXPERTS and COMBINE (scalar_experts.c). */
void scalar_run_experts(const struct tess_op *op);
/* ATTENTION and ATTENTION_D (scalar_attention.c). */
void scalar_run_attention(const struct tess_op *op);

/* An element of a matrix, widened. */
float scalar_read(const struct tess_view *v, int64_t i, int64_t k);
/* One sum of x[row] * w[col]: finished, or its nodes, `step` elements apart. */
void scalar_contract(const struct tess_op *op, const struct tess_view *x, int64_t row,
                     const struct tess_view *w, int64_t col, bool partial, float *out,
                     int64_t step);

#endif

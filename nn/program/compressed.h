/* compressed.h - linear weights of 8 or 12 bits in memory (docs/ops.md): which, and how. */
#ifndef TESS_NN_COMPRESSED_H
#define TESS_NN_COMPRESSED_H

#include "nn/program/program.h"

/*
 * Marks the weights of linear and experts records, tied heads too, as `compressed`, TESS_Q8 or, if
 * they are bf16, TESS_BF12. Not routers, whose choice of experts jumps with a small error, nor
 * those whose inputs are not cut in units of their own: of several parts, or shared by query heads.
 * TESS_EINVAL: none is bf16.
 */
tess_status tess_program_compress(struct tess_program *p, int32_t dtype);

/* Makes the products of routers those of f32, whatever other ones are on a device. */
void tess_program_set_router_math(struct tess_program *p);

/*
 * Makes the products of linear and experts records, but for routers, those of `dtype`. TESS_EINVAL:
 * one of their weights has another dtype.
 */
tess_status tess_program_set_math(struct tess_program *p, int32_t dtype);

/* What a rank holds of a compressed weight, as [outs, ins], of several as [experts, outs, ins]. */
struct tess_view tess_weight_view_compressed(const struct tess_program *p,
                                             const struct tess_weight *w, int32_t rank);
uint64_t tess_view_count_compressed_bytes(const struct tess_view *v);

/* The bytes in use of what a rank holds of a weight, compressed or as stored. */
uint64_t tess_weight_count_bytes(const struct tess_program *p, const struct tess_weight *w,
                                 int32_t rank);

#endif

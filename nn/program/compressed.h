/* compressed.h - chooses and describes linear weights of 4 to 12 bits in memory (docs/ops.md). */
#ifndef TESS_NN_COMPRESSED_H
#define TESS_NN_COMPRESSED_H

#include "nn/program/program.h"

/*
 * Marks the weights of linear and experts records, including tied heads, as `compressed`: TESS_Q8,
 * TESS_MXFP4, or TESS_BF12 if they are bf16. Those stored in MXFP4 already are, and stay
 * so; TESS_BF16 fails if there is none. Excludes routers, since a small error changes the
 * choice of experts, and weights whose inputs are not cut in units of their own: several parts, or
 * inputs shared by query heads. TESS_EINVAL: no weight can be stored so.
 */
tess_status tess_program_compress(struct tess_program *p, int32_t dtype);

/* Makes the products of routers f32, even if a device defaults to other products. */
void tess_program_set_router_math(struct tess_program *p);

/*
 * Sets the dtype of products of linear and experts records, except routers. TESS_EINVAL: in
 * inference, one of their weights has another dtype.
 */
tess_status tess_program_set_math(struct tess_program *p, int32_t dtype);

/* Returns a rank's part of a compressed weight: [outs, ins], or [experts, outs, ins]. */
struct tess_view tess_weight_view_compressed(const struct tess_program *p,
                                             const struct tess_weight *w, int32_t rank);
/* The extent of panels in the units of their strides: bytes if compressed, else elements. */
uint64_t tess_view_count_panels(const struct tess_view *v);

/* Counts the bytes that a rank's part of a weight uses, compressed or as stored. */
uint64_t tess_weight_count_bytes(const struct tess_program *p, const struct tess_weight *w,
                                 int32_t rank);

#endif

/* check.h - the steps of TESSERA_CHECK: inspect the outputs of each record on all ranks. */
#ifndef TESS_NN_CHECK_H
#define TESS_NN_CHECK_H

#include "nn/build.h"

#include <tessera/tessera.h>

/* Adds a step for each value that `rec` computes or moves. A view of another value gets none. */
void build_add_checks(struct build *b, const struct tess_record *rec);

/*
 * Collective. TESS_EINVAL: a rank's part holds NaN or Inf; TESS_EMISMATCH: a replicated value
 * differs between ranks. The sentence is the same on all ranks: the module, the op, the rank, and
 * the row and column of the value.
 */
tess_status tess_check_run(const struct tess_check *c, struct tess_group *g);

/* Index of the first NaN or Inf of n numbers; -1: none. */
int64_t tess_logits_find_not_finite(const float *x, int64_t n);

#endif

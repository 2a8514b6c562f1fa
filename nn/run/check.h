/* check.h - steps of TESSERA_CHECK, which inspect the outputs of each record on all ranks. */
#ifndef TESS_NN_CHECK_H
#define TESS_NN_CHECK_H

#include "nn/lower/lower.h"

#include <tessera/tessera.h>

/*
 * Checks one value. TESS_EINVAL: a rank's part contains NaN or Inf; TESS_EMISMATCH: a replicated
 * value differs between ranks. All ranks get the same message, with the module, the op, the rank,
 * and the row and column of the value. Collective.
 */
tess_status tess_check_run(const struct tess_check *c, struct tess_group *g);

/* Returns the index of the first NaN or Inf of n numbers; -1: none. */
int64_t tess_logits_find_not_finite(const float *x, int64_t n);

#endif

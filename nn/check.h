/* check.h - the steps of TESSERA_CHECK: what a record has made, looked at on all ranks. */
#ifndef TESS_NN_CHECK_H
#define TESS_NN_CHECK_H

#include "nn/build.h"

#include <tessera/tessera.h>

/* A step for each value that the record at hand has computed or moved; what is a view of another has none. */
void build_add_checks(struct build *b, const struct tess_record *rec);

/*
 * Collective. TESS_EINVAL: a rank's part holds NaN or Inf; TESS_EMISMATCH: it is to be the same on all ranks, and is
 * not. The sentence is the same on all ranks: the module, the op, the rank, row and column of the value.
 */
tess_status tess_check_run(const struct tess_check *c, struct tess_group *g);

/* The first of n numbers that is NaN or infinite; -1: none. */
int64_t tess_logits_find_not_finite(const float *x, int64_t n);

#endif

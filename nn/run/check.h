/*
 * check.h - steps of TESSERA_CHECK, which inspect the outputs of each record on the ranks of a
 * stage.
 */
#ifndef TESS_NN_CHECK_H
#define TESS_NN_CHECK_H

#include "nn/lower/lower.h"

#include <tessera/tessera.h>

/*
 * Opens the group of the ranks of this rank's stages, if programs check values and have stages;
 * else *out is `all`, the ranks of the program's mesh. Collective.
 */
tess_status tess_check_open_group(const struct tess_program *p, struct tess_group *all,
                                  struct tess_group **out);
/* Closes such a group, unless it is `all` or NULL. */
void tess_check_close_group(struct tess_group *group, const struct tess_group *all);

/*
 * Checks one value. TESS_EINVAL: a rank's part contains NaN or Inf; TESS_EMISMATCH: a replicated
 * value differs between ranks. All ranks of the stage get the same message, with the module, the
 * op, the rank, and the row and column of the value. g: of tess_check_open_group. Collective.
 */
tess_status tess_check_run(const struct tess_check *c, struct tess_group *g);

/* Returns the index of the first NaN or Inf of n numbers; -1: none. */
int64_t tess_logits_find_not_finite(const float *x, int64_t n);

#endif

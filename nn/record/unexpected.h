/* unexpected.h - finds parameters of a checkpoint that no module of the program uses. */
#ifndef TESS_NN_UNEXPECTED_H
#define TESS_NN_UNEXPECTED_H

#include "nn/program/program.h"
#include "nn/program/source.h"

/*
 * Checks for unused parameters. TESS_EINVAL: the message has the first names, their number and the
 * nearest module. Allowed are those that the model lists, the weight of a tied head, and all if the
 * source ignores them. `warn`: logs ignored ones, and a tied head's own weight that differs from
 * its table (if the source has data; otherwise only names are read).
 */
tess_status tess_unexpected_check(const struct tess_program *p, const struct tess_model *model,
                                  const struct tess_source *source, bool warn);

#endif

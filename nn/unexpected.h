/* unexpected.h - parameters of a checkpoint that no module of the program asks for. */
#ifndef TESS_NN_UNEXPECTED_H
#define TESS_NN_UNEXPECTED_H

#include "nn/program.h"
#include "nn/source.h"

/*
 * TESS_EINVAL with the first names, how many there are and the nearest module. Allowed are those
 * that the model says may be there, the weight of a head that is tied to a table, and all where the
 * source ignores them. `warn`: logs what is ignored, and a tied head's own weight that is not its
 * table (where the source has data). Reads names only, but for that.
 */
tess_status tess_unexpected_check(const struct tess_program *p, const struct tess_model *model,
                                  const struct tess_source *source, bool warn);

#endif

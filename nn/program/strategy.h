/* strategy.h - what sessions and trainers take from a strategy. */
#ifndef TESS_NN_STRATEGY_H
#define TESS_NN_STRATEGY_H

#include "core/world/mesh_shape.h"

#include <stdbool.h>
#include <tessera/strategy.h>

/* Returns whether strategies have this key. */
bool tess_strategy_has_key(const char *key);
/*
 * Sets the options of training that are not given, if their plan is a strategy. Without stages in
 * the mesh, its schedule is not taken. *out: owns what the options borrow then; NULL: no strategy.
 */
tess_status tess_strategy_complete(struct tess_trainer_options *options,
                                   const struct tess_mesh_shape *mesh, struct tess_strategy **out);

#endif

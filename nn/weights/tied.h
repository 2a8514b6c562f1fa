/*
 * tied.h - what ranks along pp exchange for a tied head whose table is on another one: its
 * gradient, and the values that the optimizer has changed. The rank that sends and the one that
 * receives differ along pp only, and keep the same elements.
 *
 * along: the groups of the program's mesh dimensions. Collective; blocking.
 */
#ifndef TESS_NN_TIED_H
#define TESS_NN_TIED_H

#include "nn/weights/parameters.h"

/*
 * Adds the gradients of tied heads that are apart to those of their tables, once, after all
 * micro-batches of a step.
 */
tess_status tess_tied_add_gradients(const struct tess_parameters *s,
                                    struct tess_group *const *along);
/* Sends tables to the copies of them. */
tess_status tess_tied_copy_tables(const struct tess_parameters *s, struct tess_group *const *along);

#endif

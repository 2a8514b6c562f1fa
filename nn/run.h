/* run.h - runs the steps of a lowered program on a device and a group. */
#ifndef TESS_NN_RUN_H
#define TESS_NN_RUN_H

#include "nn/lower.h"

/* Blocks until the last step is done. The sentence of a failure starts with the module. */
tess_status tess_rank_program_run(const struct tess_rank_program *l,
                                  const struct tess_device *device, void *self,
                                  struct tess_group *group);

/* Fails with the first op that the device cannot run. */
tess_status tess_rank_program_check_device(const struct tess_rank_program *l,
                                           const struct tess_device *device);

#endif

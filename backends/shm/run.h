/* run.h - a small call from begin to end in one. */
#ifndef SHM_RUN_H
#define SHM_RUN_H

#include "state.h"

/* tess_backend.run */
tess_status run_small_call(void *self, const struct tess_coll *c, int32_t (*meanwhile)(void *arg),
                           void *arg, void **work);

#endif

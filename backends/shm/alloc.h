/* alloc.h - allocates regions, as a collective of the group. */
#ifndef SHM_ALLOC_H
#define SHM_ALLOC_H

#include "state.h"

/* Implements tess_backend.alloc. */
tess_status region_alloc(void *self, uint64_t bytes, void **mine, void **peers);

#endif

/* direct.h - transfers between buffers in memory that all ranks map. */
#ifndef SHM_DIRECT_H
#define SHM_DIRECT_H

#include "state.h"

/* Sets the refs of this rank's flag; returns true if its buffers can be used in place. */
bool direct_offer_buffers(const struct group *g, const struct work *w, struct region_ref *src,
                          struct region_ref *dst);
tess_status direct_move_call(struct group *g, const struct work *w);

#endif

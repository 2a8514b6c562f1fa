/* issue.h - a call of Tessera as calls of NCCL. */
#ifndef NCCL_ISSUE_H
#define NCCL_ISSUE_H

#include "group.h"

/* NULL: NCCL has calls of this kind, dtype and operation. Else `text`: what it lacks. */
const char *issue_find_fault(const struct tess_coll *c, char *text, size_t bytes);

/*
 * Gives the call to NCCL, between group_start and group_end; what it only copies goes onto the
 * stream at once. Locked. The failure is that of the group.
 */
tess_status issue_step(struct group *g, struct step *s);

#endif

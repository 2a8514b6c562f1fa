/* issue.h - issues a call of Tessera as calls of NCCL. */
#ifndef NCCL_ISSUE_H
#define NCCL_ISSUE_H

#include "group.h"

/*
 * Returns NULL if NCCL has calls of this kind, dtype and operation; else the missing feature in
 * `text`.
 */
const char *issue_find_fault(const struct tess_coll *c, char *text, size_t bytes);

/*
 * Issues the call to NCCL, between group_start and group_end; pure copies are queued on the stream
 * at once. Locked. A failure is that of the group.
 */
tess_status issue_step(struct group *g, struct step *s);

#endif

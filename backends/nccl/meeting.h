/*
 * meeting.h - what ranks exchange before they have a communicator, and the environment of NCCL.
 */
#ifndef NCCL_MEETING_H
#define NCCL_MEETING_H

#include "group.h"

/* Returns key `what` of rank `r` from the store; waits until the deadline of `how`. */
tess_status meeting_get_key(const struct group *g, const struct tess_group_entry *how,
                            const char *what, int32_t r, void *val, uint64_t len);
/* Sets key `what` of this rank. */
tess_status meeting_set_key(const struct group *g, const struct tess_group_entry *how,
                            const char *what, const void *val, uint64_t len);
/* Refuses different versions of NCCL, and GPUs that it cannot share. *shared: ranks share a GPU. */
tess_status meeting_exchange_cards(struct group *g, const struct tess_group_entry *how, int version,
                                   bool *shared);
/* Sets the variables of NCCL that the user has not set. */
tess_status meeting_set_environment(const struct tess_group_entry *how, bool shared);

#endif

/* call_info.h - publishes the current call to other ranks, and fails the group. */
#ifndef SHM_CALL_INFO_H
#define SHM_CALL_INFO_H

#include "state.h"

/* Fails the group, with this failure if it is the first. Returns the first one. */
tess_status group_fail_call(struct group *g, tess_status why, const char *fmt, ...)
	TESS_PRINTF(3, 4);
void call_info_write(const struct tess_coll *c, struct call_info *out);
/* Publishes this rank's call in this round. */
void call_info_publish(struct group *g, const struct tess_coll *c);
/* Returns rank r's call in this round. */
const struct call_info *call_info_await(const struct group *g, int32_t r);
/* Fails the group: rank r makes a different call. */
tess_status call_info_mismatch(struct group *g, const struct work *w, int32_t r,
                               const struct call_info *theirs);

#endif

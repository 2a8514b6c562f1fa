/* call_info.h - the current call as other ranks report it, and the failure of a group. */
#ifndef SHM_CALL_INFO_H
#define SHM_CALL_INFO_H

#include "state.h"

/* The group's first failure, which this is if there was none. */
tess_status group_fail_call(struct group *g, tess_status why, const char *fmt, ...)
	TESS_PRINTF(3, 4);
void call_info_write(const struct tess_coll *c, struct call_info *out);
/* Writes this rank's call info of this round. */
void call_info_publish(struct group *g, const struct tess_coll *c);
/* That of rank r for this round. */
const struct call_info *call_info_await(const struct group *g, int32_t r);
/* Fails the group: rank r makes another call than this rank. */
tess_status call_info_mismatch(struct group *g, const struct work *w, int32_t r,
                               const struct call_info *theirs);

#endif

/*
 * brood.h - what children leave behind when they end: processes of theirs, which become ours
 * (PR_SET_CHILD_SUBREAPER), wherever they have moved in groups and sessions.
 */
#ifndef TESS_COMM_BROOD_H
#define TESS_COMM_BROOD_H

#include <stdbool.h>
#include <stdint.h>

/* From now on, or not any more. */
void tess_subreaper_set(bool yes);

/*
 * Kills every child of this process, and theirs as they become ours, until there is none or the
 * deadline has passed.
 */
void tess_subreaper_kill_children(int64_t deadline);

#endif

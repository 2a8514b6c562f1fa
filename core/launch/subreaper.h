/*
 * subreaper.h - adopts the processes that children leave behind (PR_SET_CHILD_SUBREAPER), in any
 * process group and session.
 */
#ifndef TESS_LAUNCH_SUBREAPER_H
#define TESS_LAUNCH_SUBREAPER_H

#include <stdbool.h>
#include <stdint.h>

void tess_subreaper_set(bool yes);

/*
 * Kills every child of this process, and their children as they are adopted, until none is left or
 * the deadline has passed.
 */
void tess_subreaper_kill_children(int64_t deadline);

#endif

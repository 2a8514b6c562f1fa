/* subreaper.h - adopts orphaned descendants (PR_SET_CHILD_SUBREAPER), of any group and session. */
#ifndef TESS_LAUNCH_SUBREAPER_H
#define TESS_LAUNCH_SUBREAPER_H

#include <stdbool.h>
#include <stdint.h>

void tess_subreaper_set(bool yes);

/* Kills the children of this process, also adopted ones, until none is left or the deadline. */
void tess_subreaper_kill_children(int64_t deadline);

#endif

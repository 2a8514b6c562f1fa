/* watchdog.h - ends a process that MPI keeps inside a call that should not block. */
#ifndef MPI_WATCHDOG_H
#define MPI_WATCHDOG_H

#include "member.h"

/* Before and after a call of MPI that should return at once, by the thread of the group. */
static inline void watchdog_toggle(struct group *g)
{
	unsigned turn = atomic_load_explicit(&g->turn, memory_order_relaxed);

	atomic_store_explicit(&g->turn, turn + 1, memory_order_relaxed);
}
/* The group is aborted: a thread that MPI keeps for 2 s from now on ends the process. Once. */
void watchdog_start(struct group *g);
/* No thread will be inside MPI again. */
void watchdog_stop(struct group *g);

#endif

/* watchdog.h - ends a process that hangs in a non-blocking call of MPI. */
#ifndef MPI_WATCHDOG_H
#define MPI_WATCHDOG_H

#include "member.h"

/* Marks the begin or end of a non-blocking call of MPI, in the thread of the group. */
static inline void watchdog_toggle(struct group *g)
{
	unsigned turn = atomic_load_explicit(&g->turn, memory_order_relaxed);

	atomic_store_explicit(&g->turn, turn + 1, memory_order_relaxed);
}
/* Starts the watchdog of an aborted group: a call of 2 s ends the process. Call once. */
void watchdog_start(struct group *g);
/* Stops the watchdog; no thread enters MPI again. */
void watchdog_stop(struct group *g);

#endif

/* wakeup.h - waits, and wakes ranks that sleep. */
#ifndef SHM_WAKEUP_H
#define SHM_WAKEUP_H

#include "state.h"

/* Pauses between two loads: a rank that loads a line all the time keeps it from its writer. */
static inline void relax_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}
/* Wakes ranks that sleep, after something was posted and before this rank does anything long. */
void wakeup_notify(struct group *g);
/* Publishes this rank's CPU, before a flag is set, for ranks that wait for the flag. */
void wakeup_publish_cpu(struct group *g);
struct pause { /* the state of a wait; zeroed before its first step */
	int32_t turn;
	int64_t since;
	uint64_t events;
};
/*
 * Runs one step of a wait; later steps take longer. Before it sleeps it calls `progress`, which
 * advances all calls of the group. Returns false if the deadline has passed.
 */
bool wakeup_pause_wait(struct group *g, struct pause *p, int64_t deadline,
                       tess_status (*progress)(struct group *g));
/* Implements tess_backend.abort: ends a wait of this rank, from any thread. */
void wakeup_abort_wait(void *self);

#endif

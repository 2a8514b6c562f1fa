/* wakeup.h - waiting, and waking ranks that sleep. */
#ifndef SHM_WAKEUP_H
#define SHM_WAKEUP_H

#include "state.h"

/* Between two loads: a rank that loads a line all the time keeps it from its writer. */
static inline void relax_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}
/* After something was posted, before this rank does anything long: wakes ranks that sleep. */
void wakeup_notify(struct group *g);
/* Before a flag is set: a rank that waits for it may want to know the CPU of this one. */
void wakeup_publish_cpu(struct group *g);
/*
 * One step of a wait, zeroed before the first; later steps take longer. Before it sleeps it calls
 * `progress`, which advances all calls of the group. False: the deadline has passed.
 */
struct pause {
	int32_t turn;
	int64_t since;
	uint64_t events;
};
bool wakeup_pause_wait(struct group *g, struct pause *p, int64_t deadline,
                       tess_status (*progress)(struct group *g));
/* tess_backend.abort: ends a wait of this rank. From any thread. */
void wakeup_abort_wait(void *self);

#endif

/*
 * wakeup.c - waits by spinning, then by yielding the CPU, then by sleeping until another rank wakes
 * this one.
 *
 * A lost wake-up would be: one rank sets a flag and reads that nobody sleeps, while the other reads
 * no flag and falls asleep. To exclude it, each side writes, changes `sleepers`, then reads what
 * the other one wrote. Changes of one word are totally ordered, so at least one rank reads the
 * other's write (model/wakeup.pml). A release store and an acquire load do not suffice, even on
 * x86: a store may still be in the store buffer during the load.
 */
#include "wakeup.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOTIFY_AFTER = 16, TURNS_SHARED = 40 };
/*
 * Time that a rank yields before it sleeps. Between two ops of a model, ranks wait for each other
 * for up to some ms, as memory is faster for some cores, and a wake-up takes 30 to 80 us.
 */
enum { YIELD_NS = 2000000, YIELD_SHARED_NS = 50000 };

static void call_futex(_Atomic uint32_t *at, int op, uint32_t val, const struct timespec *until)
{
	/* Not private: for other processes. The caller checks again after any return. */
	syscall(SYS_futex, at, op, val, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wake_rank(struct rank_slot *s)
{
	atomic_fetch_add(&s->wakeups, 1);
	call_futex(&s->wakeups, FUTEX_WAKE, INT_MAX, NULL);
}

void wakeup_notify(struct group *g)
{
	if (!g->unnotified)
		return;
	g->unnotified = false;
	if (!atomic_fetch_add(&g->header->sleepers, 0))
		return;
	for (int32_t r = 0; r < g->nranks; r++)
		if (r != g->rank &&
		    atomic_load_explicit(&rank_slot_of(g, r)->asleep, memory_order_relaxed))
			wake_rank(rank_slot_of(g, r));
}

void wakeup_abort_wait(void *self)
{
	struct group *g = self;

	atomic_store(&g->aborted, true);
	wake_rank(rank_slot_of(g, g->rank));
}

/* Sleeps. The counter is read before the last check of all calls: a later wake-up changes it. */
static void sleep_until_woken(struct group *g, int64_t deadline,
                              tess_status (*progress)(struct group *g))
{
	struct rank_slot *s = rank_slot_of(g, g->rank);
	uint32_t wakeups = atomic_load(&s->wakeups);
	uint64_t moves = g->events;
	struct timespec until;

	atomic_store(&s->asleep, 1);
	atomic_fetch_add(&g->header->sleepers, 1);
	until = tess_timespec(deadline);
	if (progress(g) == TESS_OK && g->events == moves && !atomic_load(&g->aborted)) {
		wakeup_notify(g);
		call_futex(&s->wakeups, FUTEX_WAIT_BITSET, wakeups, &until);
	}
	atomic_fetch_sub(&g->header->sleepers, 1);
	atomic_store(&s->asleep, 0);
}

void wakeup_publish_cpu(struct group *g)
{
	int32_t cpu = g->spin ? 0 : sched_getcpu() + 1;

	if (cpu == g->cpu)
		return;
	g->cpu = cpu;
	atomic_store_explicit(&rank_slot_of(g, g->rank)->cpu, cpu, memory_order_relaxed);
}

/*
 * Returns true if all awaited ranks run on other CPUs, with fewer CPUs than ranks. Their flags are
 * then about to be set, and a yield would only run another rank that waits.
 */
static bool all_run_elsewhere(const struct group *g)
{
	for (int32_t r = g->seen; r < g->nranks; r++)
		if (atomic_load_explicit(&flag_of(g, r, g->round)->round, memory_order_relaxed) !=
		            g->round &&
		    atomic_load_explicit(&rank_slot_of(g, r)->cpu, memory_order_relaxed) == g->cpu)
			return false;
	return g->calls.head && !g->messages;
}

bool wakeup_pause_wait(struct group *g, struct pause *p, int64_t deadline,
                       tess_status (*progress)(struct group *g))
{
	int64_t now;

	if (p->events != g->events)
		*p = (struct pause){ .events = g->events };
	if (p->turn++ < (g->spin ? g->spin : TURNS_SHARED) && (g->spin || all_run_elsewhere(g))) {
		/* The store has probably reached the other CPUs by now: the fence is cheap. */
		if (p->turn > NOTIFY_AFTER)
			wakeup_notify(g);
		relax_cpu();
		return true;
	}
	wakeup_notify(g);
	now = tess_now();
	if (!p->since)
		p->since = now;
	if (now - p->since < (g->spin ? YIELD_NS : YIELD_SHARED_NS))
		sched_yield();
	else
		sleep_until_woken(g, deadline, progress);
	return now < deadline;
}

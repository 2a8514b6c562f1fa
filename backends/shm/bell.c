/*
 * bell.c - waiting: a spin, then a yield of the CPU, then sleep until a bell rings.
 *
 * The one thing that two ranks must not get wrong: one puts a notice up and sees nobody asleep,
 * while the other sees no notice and falls asleep. Each side writes, then reads what the other
 * wrote, with a full fence between: of two such ranks one at least sees the other
 * (model/bell.pml). A release store and an acquire load would not do, here and on x86: a store may
 * wait in the store buffer while the load is made.
 *
 * Who puts up a notice does so in every call, and his fence would wait for the line of the notice
 * to come from another core; who falls asleep has time. Where the kernel can (membarrier), the
 * sleeper makes the fence of all: on each CPU that runs a rank, between two of its instructions.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm.h"

enum { RING_AFTER = 16, YIELD_NS = 50000, NAP_NS = 1000000, NEAR = 40 };

#if defined(__SANITIZE_THREAD__)
#define WITHOUT_FENCES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITHOUT_FENCES 1
#endif
#endif

static void full_fence(const struct group *g)
{
#ifdef WITHOUT_FENCES
	/* TSan knows no fences: changes of one word order as much, and more */
	atomic_fetch_add(&g->hall->sleepers, 0);
#else
	(void)g;
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

bool bell_fenced(void)
{
#ifdef WITHOUT_FENCES
	return false;
#else
	return !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
#endif
}

int64_t bell_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void futex(_Atomic uint32_t *at, int op, uint32_t val, const struct timespec *until)
{
	/*
	 * Shared, for the other process; woken, changed, interrupted or late: the caller looks
	 * again.
	 */
	syscall(SYS_futex, at, op, val, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wake(struct seat *s)
{
	atomic_fetch_add(&s->bell, 1);
	futex(&s->bell, FUTEX_WAKE, INT_MAX, NULL);
}

void bell_wake(struct group *g)
{
	if (!g->fenced)
		full_fence(g);
	if (!atomic_load_explicit(&g->hall->sleepers, memory_order_relaxed))
		return;
	for (int32_t r = 0; r < g->nranks; r++)
		if (r != g->rank &&
		    atomic_load_explicit(&seat_of(g, r)->asleep, memory_order_relaxed))
			wake(seat_of(g, r));
}

void bell_abort(struct group *g)
{
	atomic_store(&g->aborted, true);
	wake(seat_of(g, g->rank));
}

/* The bell's value is read before all is looked at once more: a ring after that look changes it. */
static void sleep_once(struct group *g, int64_t deadline)
{
	struct seat *s = seat_of(g, g->rank);
	uint32_t bell = atomic_load(&s->bell);
	uint64_t moves = g->moves;
	struct timespec until;

	atomic_store(&s->asleep, 1);
	atomic_fetch_add(&g->hall->sleepers, 1);
	full_fence(g);
	/* Where this rank may not fence the others, one of them may not see it in time: a nap. */
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) &&
	    deadline > bell_now() + NAP_NS)
		deadline = bell_now() + NAP_NS;
	until = (struct timespec){ .tv_sec = deadline / 1000000000,
		                   .tv_nsec = deadline % 1000000000 };
	if (work_progress(g) == TESS_OK && g->moves == moves && !atomic_load(&g->aborted)) {
		bell_ring(g);
		futex(&s->bell, FUTEX_WAIT_BITSET, bell, &until);
	}
	atomic_fetch_sub(&g->hall->sleepers, 1);
	atomic_store(&s->asleep, 0);
}

void bell_place(struct group *g)
{
	int32_t cpu = g->spin ? 0 : sched_getcpu() + 1;

	if (cpu == g->cpu)
		return;
	g->cpu = cpu;
	atomic_store_explicit(&seat_of(g, g->rank)->cpu, cpu, memory_order_relaxed);
}

/*
 * With fewer CPUs than ranks: whether all that are waited for have a CPU of their own. Then they
 * are about to come, and a yield would only bring somebody who waits as well.
 */
static bool all_elsewhere(const struct group *g)
{
	for (int32_t r = g->seen; r < g->nranks; r++)
		if (atomic_load_explicit(&notice_of(g, r, g->round)->round, memory_order_relaxed) !=
		            g->round &&
		    atomic_load_explicit(&seat_of(g, r)->cpu, memory_order_relaxed) == g->cpu)
			return false;
	return g->calls.head && !g->messages;
}

bool bell_pause(struct group *g, struct pause *p, int64_t deadline)
{
	int64_t now;

	if (p->moves != g->moves)
		*p = (struct pause){ .moves = g->moves };
	if (p->turn++ < (g->spin ? g->spin : NEAR) && (g->spin || all_elsewhere(g))) {
		/*
		 * By now the store has most likely left for the others, and the fence costs
		 * little.
		 */
		if (p->turn > RING_AFTER)
			bell_ring(g);
		bell_relax();
		return true;
	}
	bell_ring(g);
	now = bell_now();
	if (!p->since)
		p->since = now;
	if (now - p->since < YIELD_NS)
		sched_yield();
	else
		sleep_once(g, deadline);
	return now < deadline;
}

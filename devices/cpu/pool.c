#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/float.h>
#include <tessera/split.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SPINS = 2000 }; /* about 30 us: the next op comes sooner than a thread wakes up */

struct job { /* of one call of pool_run; on its stack */
	pool_fn *fn;
	void *arg;
	int64_t count, grain;
	uint32_t shares;
};

struct pool {
	int32_t nthreads, started;
	/*
	 * The number of the job, and how many of its shares are left. A thread takes a share by
	 * decrementing it, and reads the job only then: the job stays valid until the share is
	 * done.
	 */
	_Alignas(64) _Atomic uint64_t ticket;
	_Alignas(64) _Atomic uint32_t done;
	_Alignas(64) _Atomic int32_t asleep; /* threads that wait for work */
	_Atomic bool waiting; /* the caller waits for the last share */
	_Atomic(struct job *) job;
	_Atomic bool stop;
	pthread_mutex_t lock;
	pthread_cond_t work, finished;
	struct worker *worker; /* nthreads - 1 */
};

struct worker {
	struct pool *pool;
	int32_t thread;
	pthread_t id;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
	_mm_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Takes and runs shares of the current job until none is left. */
static void run_shares(struct pool *p, int32_t thread)
{
	uint64_t ticket = atomic_load(&p->ticket);
	struct job *job;
	uint32_t shares;
	int64_t lo, hi;

	while ((uint32_t)ticket) {
		if (!atomic_compare_exchange_weak(&p->ticket, &ticket, ticket - 1))
			continue;
		job = atomic_load(&p->job);
		shares = job->shares;
		lo = (int64_t)(shares - (uint32_t)ticket) * job->grain;
		hi = job->count - lo < job->grain ? job->count : lo + job->grain;
		job->fn(job->arg, lo, hi, thread);
		if (atomic_fetch_add(&p->done, 1) + 1 == shares && atomic_load(&p->waiting)) {
			pthread_mutex_lock(&p->lock);
			pthread_cond_signal(&p->finished);
			pthread_mutex_unlock(&p->lock);
		}
		ticket = atomic_load(&p->ticket);
	}
}

static bool is_idle(struct pool *p)
{
	return !(uint32_t)atomic_load(&p->ticket) && !atomic_load(&p->stop);
}

static void *run_worker(void *arg)
{
	struct worker *me = arg;
	struct pool *p = me->pool;

	tess_float_enter();
	while (!atomic_load(&p->stop)) {
		for (int i = 0; i < SPINS && is_idle(p); i++)
			pause_cpu();
		if (is_idle(p)) {
			pthread_mutex_lock(&p->lock);
			atomic_fetch_add(&p->asleep, 1);
			while (is_idle(p))
				pthread_cond_wait(&p->work, &p->lock);
			atomic_fetch_sub(&p->asleep, 1);
			pthread_mutex_unlock(&p->lock);
		}
		run_shares(p, me->thread);
	}
	return NULL;
}

static void wake_workers(struct pool *p)
{
	if (!atomic_load(&p->asleep))
		return;
	pthread_mutex_lock(&p->lock);
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
}

static void wait_for_shares(struct pool *p, uint32_t shares)
{
	for (int i = 0; i < SPINS && atomic_load(&p->done) != shares; i++)
		pause_cpu();
	if (atomic_load(&p->done) == shares)
		return;
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->waiting, true);
	while (atomic_load(&p->done) != shares)
		pthread_cond_wait(&p->finished, &p->lock);
	atomic_store(&p->waiting, false);
	pthread_mutex_unlock(&p->lock);
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t count, int64_t grain)
{
	struct job job = { .fn = fn, .arg = arg, .count = count, .grain = grain };
	uint64_t number;

	if (count <= 0)
		return;
	if (p->nthreads == 1 || count <= grain) {
		fn(arg, 0, count, 0);
		return;
	}
	job.shares = (uint32_t)(count / grain + (count % grain != 0));
	number = (atomic_load(&p->ticket) >> 32) + 1;
	atomic_store(&p->done, 0);
	atomic_store(&p->job, &job);
	atomic_store(&p->ticket, number << 32 | job.shares);
	wake_workers(p);
	run_shares(p, 0);
	wait_for_shares(p, job.shares);
}

/* Blocks signals, which are for the program's own threads. */
static int start_worker(struct worker *w)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&w->id, NULL, run_worker, w);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}

tess_status pool_open(int32_t nthreads, struct pool **out)
{
	struct pool *p = aligned_alloc(64, tess_up(sizeof *p, 64) * 64);

	if (!p)
		return TESS_ENOMEM;
	memset(p, 0, sizeof *p);
	p->nthreads = nthreads;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	pthread_cond_init(&p->finished, NULL);
	p->worker = nthreads > 1 ? calloc((size_t)nthreads - 1, sizeof *p->worker) : NULL;
	if (nthreads > 1 && !p->worker) {
		pool_close(p);
		return TESS_ENOMEM;
	}
	for (int32_t i = 1; i < nthreads; i++) {
		p->worker[i - 1] = (struct worker){ .pool = p, .thread = i };
		if (start_worker(&p->worker[i - 1])) {
			pool_close(p);
			return TESS_EDEVICE;
		}
		p->started++;
	}
	*out = p;
	return TESS_OK;
}

void pool_close(struct pool *p)
{
	if (!p)
		return;
	atomic_store(&p->stop, true);
	pthread_mutex_lock(&p->lock);
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (int32_t i = 0; i < p->started; i++)
		pthread_join(p->worker[i].id, NULL);
	pthread_cond_destroy(&p->finished);
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	free(p->worker);
	free(p);
}

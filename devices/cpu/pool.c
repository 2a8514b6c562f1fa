#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>
#include <tessera/util/float.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SPINS = 2000 }; /* about 30 us: the next op starts sooner than a thread wakes up */

struct job { /* one call of pool_run; on its stack */
	pool_fn *fn;
	void *arg;
	int64_t count, grain;
	uint32_t shares;
};

/*
 * Shares [first, end), as end << 32 | first. A thread takes a share by changing this, and reads the
 * job only afterwards: the job stays valid until the share is done.
 */
struct range {
	_Alignas(64) _Atomic uint64_t left;
};

struct pool {
	int32_t nthreads, started;
	/* shares that are not taken: by thread, and of all threads */
	struct range *range;
	_Alignas(64) _Atomic uint64_t number; /* number of the job */
	_Alignas(64) _Atomic uint32_t done;
	_Alignas(64) _Atomic int32_t asleep; /* number of threads that wait for work */
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
	uint64_t seen; /* the last job whose shares this thread searched */
	pthread_t id;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Takes the first share of the range, or the last one. */
static bool take_share(struct range *r, bool last, uint32_t *share)
{
	uint64_t left = atomic_load(&r->left), rest;

	do {
		if ((uint32_t)left == left >> 32)
			return false;
		rest = last ? left - (1ull << 32) : left + 1;
	} while (!atomic_compare_exchange_weak(&r->left, &left, rest));
	*share = last ? (uint32_t)(rest >> 32) : (uint32_t)left;
	return true;
}

static void run_share(struct pool *p, uint32_t share, int32_t thread)
{
	struct job *job = atomic_load(&p->job);
	int64_t lo = share * job->grain;
	int64_t hi = job->count - lo < job->grain ? job->count : lo + job->grain;
	uint32_t shares = job->shares;

	job->fn(job->arg, lo, hi, thread);
	if (atomic_fetch_add(&p->done, 1) + 1 == shares && atomic_load(&p->waiting)) {
		pthread_mutex_lock(&p->lock);
		pthread_cond_signal(&p->finished);
		pthread_mutex_unlock(&p->lock);
	}
}

/* Takes and runs shares of the current job until none is left, this thread's own first. */
static void run_shares(struct pool *p, int32_t thread)
{
	uint32_t share;

	for (int32_t i = 0, at = thread; i <= p->nthreads; i++) {
		while (take_share(&p->range[at], i && at < p->nthreads, &share))
			run_share(p, share, thread);
		at = at < p->nthreads ? at + 1 : 0;
	}
}

static bool is_idle(struct pool *p, uint64_t seen)
{
	return atomic_load(&p->number) == seen && !atomic_load(&p->stop);
}

static void *run_worker(void *arg)
{
	struct worker *me = arg;
	struct pool *p = me->pool;

	tess_float_enter();
	while (!atomic_load(&p->stop)) {
		for (int i = 0; i < SPINS && is_idle(p, me->seen); i++)
			pause_cpu();
		if (is_idle(p, me->seen)) {
			pthread_mutex_lock(&p->lock);
			atomic_fetch_add(&p->asleep, 1);
			while (is_idle(p, me->seen))
				pthread_cond_wait(&p->work, &p->lock);
			atomic_fetch_sub(&p->asleep, 1);
			pthread_mutex_unlock(&p->lock);
		}
		me->seen = atomic_load(&p->number);
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

static void run_pool_job(struct pool *p, pool_fn *fn, void *arg, int64_t count, int64_t grain,
                         bool apart)
{
	struct job job = { .fn = fn, .arg = arg, .count = count, .grain = grain };
	int64_t first, end;

	if (count <= 0)
		return;
	if (p->nthreads == 1 || count <= grain) {
		fn(arg, 0, count, 0);
		return;
	}
	job.shares = (uint32_t)(count / grain + (count % grain != 0));
	atomic_store(&p->done, 0);
	atomic_store(&p->job, &job);
	for (int32_t i = 0; i < p->nthreads; i++) {
		first = tess_edge(job.shares, p->nthreads, i);
		end = tess_edge(job.shares, p->nthreads, i + 1);
		if (apart)
			atomic_store(&p->range[i].left, (uint64_t)end << 32 | (uint64_t)first);
	}
	if (!apart)
		atomic_store(&p->range[p->nthreads].left, (uint64_t)job.shares << 32);
	atomic_fetch_add(&p->number, 1);
	wake_workers(p);
	run_shares(p, 0);
	wait_for_shares(p, job.shares);
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t count, int64_t grain)
{
	run_pool_job(p, fn, arg, count, grain, false);
}

void pool_run_apart(struct pool *p, pool_fn *fn, void *arg, int64_t count, int64_t grain)
{
	run_pool_job(p, fn, arg, count, grain, true);
}

/* Starts a worker with signals blocked, which belong to the program; faults stay its own. */
static int start_worker(struct worker *w)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE };
	sigset_t all, old;
	int err;

	sigfillset(&all);
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(&all, faults[i]);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&w->id, NULL, run_worker, w);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}

int pool_open(int32_t nthreads, struct pool **out)
{
	struct pool *p = aligned_alloc(64, tess_up(sizeof *p, 64) * 64);
	int err = 0;

	if (!p)
		return ENOMEM;
	memset(p, 0, sizeof *p);
	p->nthreads = nthreads;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	pthread_cond_init(&p->finished, NULL);
	p->range = aligned_alloc(64, ((size_t)nthreads + 1) * sizeof *p->range);
	p->worker = calloc((size_t)nthreads, sizeof *p->worker);
	if (p->range)
		memset(p->range, 0, ((size_t)nthreads + 1) * sizeof *p->range);
	if (!p->range || !p->worker) {
		pool_close(p);
		return ENOMEM;
	}
	for (int32_t i = 1; i < nthreads && !err; i++) {
		p->worker[i - 1] = (struct worker){ .pool = p, .thread = i };
		err = start_worker(&p->worker[i - 1]);
		p->started += !err;
	}
	if (err)
		pool_close(p);
	else
		*out = p;
	return err;
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
	free(p->range);
	free(p);
}

/* pool.h - the threads of one opened device. */
#ifndef TESS_DEVICES_CPU_POOL_H
#define TESS_DEVICES_CPU_POOL_H

#include <stdint.h>
#include <tessera/plugin.h>

struct pool;

/* Runs the share [lo, hi) of the work. 0 <= thread < nthreads, unique among running shares. */
typedef void pool_fn(void *arg, int64_t lo, int64_t hi, int32_t thread);

/* Opens a pool; returns 0 or an errno. nthreads includes the caller: 1 starts no thread. */
int pool_open(int32_t nthreads, struct pool **out);
void pool_close(struct pool *p);

/*
 * Runs fn over [0, count) in shares of `grain` (the last may be smaller), in any order on any
 * thread, and returns when all are done. One caller at a time.
 */
void pool_run(struct pool *p, pool_fn *fn, void *arg, int64_t count, int64_t grain);

/*
 * Runs fn as pool_run, for shares that are read as a stream. Each thread begins with adjacent
 * shares of its own, in increasing order, and then takes the last ones of other threads.
 */
void pool_run_apart(struct pool *p, pool_fn *fn, void *arg, int64_t count, int64_t grain);

#endif

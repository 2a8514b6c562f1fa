/*
 * check.c - the cost of the checks of a call. Compares an all_reduce of f32 through a group, which
 * checks it, numbers it, computes its fingerprint and describes it to the coordinator, with that
 * call made directly on the backend; both in turn in one run.
 *
 *	check [BYTES]        on 2 threads; or as a rank of a job, over TESSERA_BACKEND:
 *	tessera launch -n 2 --backend shm -- bench/check
 *	tessera launch -n 2 --backend gloo -- bench/check
 *	mpirun -n 2 -x TESSERA_BACKEND=mpi bench/check
 *
 * Prints the best median of all rounds for each, and the difference.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/rendezvous/rank_env.h"
#include "core/world/group.h"
#include "tools/bench/measure.h"

#include <stdio.h>

enum { ROUNDS = 9, SAMPLES = 400 };

struct rank_buffers {
	struct tess_group *group;
	float *src, *dst;
	uint64_t bytes;
};

static void exit_on_error(tess_status st)
{
	if (!st)
		return;
	fprintf(stderr, "check: %s\n", tess_error());
	exit(EXIT_FAILURE);
}

static int sync_check_ranks(void *self)
{
	const struct rank_buffers *e = self;

	return tess_barrier(e->group, "bench");
}

static int reduce_check_max(void *self, double *x)
{
	const struct rank_buffers *e = self;

	return tess_all_reduce(e->group, x, x, 1, TESS_F64, TESS_MAX, "bench");
}

static int run_checked_call(void *self)
{
	const struct rank_buffers *e = self;

	return tess_all_reduce(e->group, e->src, e->dst, e->bytes / 4, TESS_F32, TESS_SUM, "bench");
}

/*
 * Calls the backend directly. All calls have one fingerprint, which a backend that compares them
 * accepts.
 */
static int run_unchecked_call(void *self)
{
	const struct rank_buffers *e = self;
	struct tess_group *g = e->group;
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = TESS_ALL_REDUCE,
		                     .dtype = TESS_F32,
		                     .op = TESS_SUM,
		                     .mem = TESS_HOST,
		                     .fingerprint = 1,
		                     .src = e->src,
		                     .dst = e->dst,
		                     .count = e->bytes / 4,
		                     .deadline = tess_now() + g->world->timeout,
		                     .where = "bench" };
	void *work;
	tess_status st = g->backend->start(g->self, &c, &work);

	if (st)
		return st;
	st = g->backend->wait(g->self, work, c.deadline);
	g->backend->release(g->self, work);
	return st;
}

static tess_status run_check_rank(struct tess_world *w, void *arg)
{
	struct rank_buffers e = { .group = tess_world_group(w), .bytes = *(const uint64_t *)arg };
	double times[SAMPLES], best[2] = { 0 };
	struct measure_target c = { .self = &e,
		                    .src_bytes = e.bytes,
		                    .dst_bytes = e.bytes,
		                    .batch = measure_choose_batch(e.bytes),
		                    .seconds = 0.1,
		                    .times = times,
		                    .max_samples = SAMPLES,
		                    .barrier = sync_check_ranks,
		                    .reduce_max = reduce_check_max };
	struct measure_result m;

	c.src = e.src = calloc(e.bytes, 1);
	c.dst = e.dst = calloc(e.bytes, 1);
	if (!e.src || !e.dst)
		exit_on_error(tess_fail(TESS_ENOMEM, "no memory"));
	for (int i = 0; i < 2 * ROUNDS; i++) {
		double *b = &best[i % 2];

		c.run = i % 2 ? run_unchecked_call : run_checked_call;
		exit_on_error(measure_run(&c, &m));
		*b = i < 2 || m.us < *b ? m.us : *b;
	}
	if (!tess_world_rank(w))
		printf("%-8s %d ranks, all_reduce of %llu bytes: %.2f us checked, %.2f us not: "
		       "%+.1f%%\n",
		       tess_world_backend(w), tess_world_size(w), (unsigned long long)e.bytes,
		       best[0], best[1], 100 * (best[0] / best[1] - 1));
	free(e.src);
	free(e.dst);
	return TESS_OK;
}

int main(int argc, char **argv)
{
	uint64_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) & ~UINT64_C(3) : 1 << 20;
	struct tess_world *world;
	struct tess_rank_env env;

	if (bytes < 4 || bytes > 1 << 30) {
		fprintf(stderr, "usage: check [BYTES]\n");
		return 2;
	}
	exit_on_error(tess_rank_env_read(&env));
	if (env.alone) {
		exit_on_error(tess_world_spawn(2, run_check_rank, &bytes));
		return 0;
	}
	exit_on_error(tess_world_open(&world));
	exit_on_error(run_check_rank(world, &bytes));
	tess_world_close(world);
	return 0;
}

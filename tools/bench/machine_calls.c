/* machine_calls.c - one rank of `tessera bench machine`: times collectives by size. */
#include "machine.h"

#include "bench.h"
#include "core/base/status.h"
#include "core/shard/move.h"
#include "core/sum/shared_region.h"
#include "measure.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

/* The calls of steps: `series` as in bench.h. */
static const struct {
	const char *name;
	int32_t kind, series;
} calls[] = {
	{ "sum", TESS_ALL_REDUCE, BENCH_EXACT },
	{ "sum_scatter", TESS_REDUCE_SCATTER, BENCH_EXACT },
	{ "all_reduce", TESS_ALL_REDUCE, BENCH_PLAIN },
	{ "reduce_scatter", TESS_REDUCE_SCATTER, BENCH_PLAIN },
	{ "all_gather", TESS_ALL_GATHER, BENCH_PLAIN },
	{ "all_to_all", TESS_ALL_TO_ALL, BENCH_PLAIN },
	{ "send", BENCH_SEND_RECV, BENCH_PLAIN },
};
enum { CALLS = sizeof calls / sizeof *calls, SIZES = 8, SAMPLES = 200 };

struct call_rank {
	const struct machine_job *job;
	struct bench_options options;
	struct bench_call call;
	struct tess_group *all;
	bool shared;
	double times[SAMPLES];
};

static int run_machine_call(void *self)
{
	return bench_call_run(&((struct call_rank *)self)->call);
}

static int sync_call_ranks(void *self)
{
	return tess_barrier(((struct call_rank *)self)->all, "bench");
}

static int reduce_call_max(void *self, double *x)
{
	double mine = *x;

	return tess_all_reduce(((struct call_rank *)self)->all, &mine, x, 1, TESS_F64, TESS_MAX,
	                       "bench");
}

/* Returns the bytes that this rank sends in a call. */
static double count_call_bytes(const struct call_rank *r)
{
	const struct bench_call *c = &r->call;
	struct tess_coll coll = c->coll;

	if (c->series == BENCH_EXACT)
		return (double)tess_move_count_reduced(
			sizeof(float) * c->sum.count,
			(uint64_t)tess_sum_nodes(&c->sum, c->n, c->rank), c->sum.share != NULL,
			c->n);
	coll.kind = coll.kind == BENCH_SEND_RECV ? TESS_SEND : coll.kind;
	return (double)tess_coll_sent_bytes(&coll, c->rank, c->n);
}

static tess_status measure_call_time(struct call_rank *r, double seconds, struct machine_call *out)
{
	struct bench_call *call = &r->call;
	const struct bench_options *a = &r->options;
	struct measure_target c = {
		.self = r,
		.src = call->src,
		.dst = call->dst,
		.src_bytes =
			(bench_get_src_bytes(a, call->n, call->rank, call->series, call->count) +
		         3) /
			4 * 4,
		.dst_bytes = bench_get_dst_bytes(a, call->n, call->count),
		.batch = measure_choose_batch(bench_get_vector_bytes(a, call->n, call->count)),
		.seconds = seconds,
		.times = r->times,
		.max_samples = SAMPLES,
		.run = run_machine_call,
		.barrier = sync_call_ranks,
		.reduce_max = reduce_call_max,
	};
	struct measure_result m;
	tess_status st = measure_run(&c, &m);

	out->bytes = count_call_bytes(r);
	out->seconds = 1e-6 * m.us;
	return st;
}

static tess_status measure_kind(struct call_rank *r, int32_t i, double seconds,
                                struct machine_result *out)
{
	uint64_t most = r->options.max_bytes;
	tess_status st = TESS_OK;

	r->options.kind = calls[i].kind;
	r->call.series = calls[i].series;
	for (uint64_t bytes = r->options.min_bytes; bytes <= most && !st; bytes *= 4) {
		struct machine_call *to = &out->call[out->ncalls];

		bench_call_set_count(&r->call, bench_count_elements(&r->options, r->call.n, bytes));
		strcpy(to->name, calls[i].name);
		st = measure_call_time(r, seconds, to);
		out->ncalls++;
	}
	return st;
}

static tess_status alloc_call_vectors(struct call_rank *r)
{
	uint64_t bytes = 16 * r->options.max_bytes + 64; /* sums have several nodes a rank */
	void *src = NULL, *dst = NULL;
	tess_status st = TESS_OK;

	if (r->shared) {
		st = tess_group_alloc(r->all, &bytes, &src);
		if (!st)
			st = tess_group_alloc(r->all, &bytes, &dst);
	} else {
		src = aligned_alloc(64, bytes);
		dst = aligned_alloc(64, bytes);
		st = src && dst ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory for collectives");
	}
	if (st)
		return st;
	r->call.src = memset(src, 0, bytes);
	r->call.dst = memset(dst, 0, bytes);
	r->call.capacity = bytes;
	return TESS_OK;
}

tess_status machine_measure_calls(struct tess_world *w, void *job, void *result)
{
	struct call_rank r = { .job = job, .all = tess_world_group(w) };
	const bool quick = r.job->options->quick;
	double seconds;
	tess_status st;

	r.options = (struct bench_options){ .dtype = TESS_F32,
		                            .op = TESS_SUM,
		                            .min_bytes = 2048,
		                            .max_bytes = quick ? 64 << 10 : 32 << 20 };
	r.call = (struct bench_call){ .group = r.all,
		                      .options = &r.options,
		                      .rank = tess_group_rank(r.all),
		                      .n = tess_group_size(r.all),
		                      .width = sizeof(float) };
	r.shared = tess_group_has_shared_memory(r.all);
	seconds = quick ? 1e-3 : r.job->seconds / (CALLS * SIZES);
	st = alloc_call_vectors(&r);
	for (int32_t i = 0; i < CALLS && !st; i++)
		st = measure_kind(&r, i, seconds, result);
	if (!st)
		st = tess_barrier(r.all, "bench");
	if (st) {
		tess_world_fail(w, st, tess_error());
		return st;
	}
	if (!r.shared) {
		free(r.call.src);
		free(r.call.dst);
	}
	return st;
}

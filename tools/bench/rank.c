/* rank.c - one rank of `tessera bench comm`. */
#include "bench.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/sum/shared_region.h"
#include "measure.h"
#include "tools/tool.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <time.h>
#include <unistd.h>

enum { SHOWN_EVERY = 100000 }; /* us between two progress lines */

struct bench_rank_state {
	struct tess_group *all, *group; /* all: the world; group: makes the calls */
	struct tess_mesh *mesh; /* or NULL */
	bool first; /* rank 0 of all, which prints */
	const struct bench_options *options;
	struct bench_call call;
	struct bench_result result;
	double *times;
	bool show_progress;
	double last_shown;
	FILE *svg;
};

/* ---- for measure_run() ----------------------------------------------------------------------- */

static int run_bench_call(void *self)
{
	struct bench_rank_state *r = self;

	return bench_call_run(&r->call);
}

static int sync_bench_ranks(void *self)
{
	struct bench_rank_state *r = self;

	return tess_barrier(r->all, "bench");
}

static int reduce_bench_max(void *self, double *x)
{
	struct bench_rank_state *r = self;
	double mine = *x;

	return tess_all_reduce(r->all, &mine, x, 1, TESS_F64, TESS_MAX, "bench");
}

static void show_progress(void *self, int done, int all)
{
	struct bench_rank_state *r = self;
	double now = measure_read_clock();
	char size[32];

	if (!r->show_progress || now - r->last_shown < SHOWN_EVERY)
		return;
	r->last_shown = now;
	bench_format_size(bench_get_vector_bytes(r->options, r->call.n, r->call.count), size);
	fprintf(stderr, "\r\033[K  %s, %s: %d of %d", size,
	        bench_series_name(r->options, r->call.series), done, all);
}

/* ---- start-up -------------------------------------------------------------------------------- */

/* Returns the seconds since a process started, to the clock tick; 0: unknown. */
static double get_process_age(pid_t pid)
{
	unsigned long long ticks = 0;
	char path[48], text[1024] = "";
	struct timespec now;
	const char *rest;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	text[fread(text, 1, sizeof text - 1, f)] = '\0';
	fclose(f);
	/* ends the 2nd field; the 22nd is the start time since boot */
	rest = strrchr(text, ')');
	for (int field = 2; rest && field < 22; field++)
		rest = strchr(rest + 1, ' ');
	if (!rest || sscanf(rest, "%llu", &ticks) != 1)
		return 0;
	clock_gettime(CLOCK_BOOTTIME, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
	       (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static bool is_same_program(pid_t pid)
{
	char path[48], program[PATH_MAX] = "", own[PATH_MAX] = "";

	snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
	return readlink(path, program, sizeof program - 1) > 0 &&
	       readlink("/proc/self/exe", own, sizeof own - 1) > 0 && !strcmp(program, own);
}

/*
 * Measures the time until all ranks have met: from the start of the command, or of this rank if it
 * was launched.
 */
static tess_status time_startup(struct bench_rank_state *r)
{
	tess_status st = tess_barrier(r->all, "bench");

	r->result.startup_seconds =
		get_process_age(is_same_program(getppid()) ? getppid() : getpid());
	return st;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static tess_status alloc_vector(struct bench_rank_state *r, uint64_t bytes, char **out)
{
	void *p;
	tess_status st;

	if (r->result.shared) {
		st = tess_group_alloc(r->group, &bytes, &p);
		if (st)
			return st;
	} else {
		p = aligned_alloc(64, bytes);
		if (!p)
			return tess_fail(TESS_ENOMEM, "no memory for vectors of %" PRIu64 " bytes",
			                 bytes);
	}
	*out = memset(p, 0, bytes);
	return TESS_OK;
}

static void free_vectors(struct bench_rank_state *r)
{
	if (!r->result.shared) {
		free(r->call.src == r->call.dst ? NULL : r->call.src);
		free(r->call.dst);
	}
}

static tess_status alloc_vectors(struct bench_rank_state *r)
{
	const struct bench_options *a = r->options;
	uint64_t count = bench_count_elements(a, r->call.n, a->max_bytes), max = 0, bytes;
	tess_status st;

	for (int32_t s = 0; s < BENCH_SERIES; s++) {
		bytes = r->result.has[s] ? bench_get_src_bytes(a, r->call.n, r->call.rank, s, count)
		                         : 0;
		max = bytes > max ? bytes : max;
	}
	/* copies need the full vector on both sides */
	bytes = bench_get_vector_bytes(a, r->call.n, count);
	max = (bytes > max ? bytes : max) / 64 * 64 + 64;
	r->call.capacity = max;
	st = alloc_vector(r, max, &r->call.dst);
	if (st)
		return st;
	r->call.src = r->call.dst;
	return a->in_place ? TESS_OK : alloc_vector(r, max, &r->call.src);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static tess_status measure_cell(struct bench_rank_state *r, int32_t series, struct bench_cell *out)
{
	const struct bench_options *a = r->options;
	struct bench_call *call = &r->call;
	struct measure_target c = {
		.self = r,
		.src = call->src,
		.dst = call->dst,
		.src_bytes =
			(bench_get_src_bytes(a, call->n, call->rank, series, call->count) + 3) / 4 *
			4,
		.dst_bytes = bench_get_dst_bytes(a, call->n, call->count),
		.batch = measure_choose_batch(bench_get_vector_bytes(a, call->n, call->count)),
		.seconds = a->seconds,
		.times = r->times,
		.max_samples = a->samples,
		.run = run_bench_call,
		.barrier = sync_bench_ranks,
		.reduce_max = reduce_bench_max,
		.progress = show_progress,
	};
	bool copies = series == BENCH_IN || series == BENCH_IN_OUT;
	struct measure_result m;
	int64_t wrong;
	tess_status st;

	call->series = series;
	st = measure_run(&c, &m);
	if (st)
		return st;
	*out = (struct bench_cell){
		.us = m.us, .min_us = m.min_us, .samples = m.samples, .wrong = -1
	};
	if (a->no_check || copies)
		return TESS_OK;
	st = bench_call_check(call, &wrong); /* checks the group */
	return st ? st
	          : tess_all_reduce(r->all, &wrong, &out->wrong, 1, TESS_I64, TESS_MAX, "bench");
}

/* Broadcasts whether rank 0 can print more rows: all ranks stop when its reader is gone. */
static tess_status check_bench_output(struct bench_rank_state *r, int32_t *writable)
{
	*writable = !r->first || tess_tool_flush_output();
	return tess_broadcast(r->all, writable, 1, TESS_I32, 0, "bench");
}

static tess_status measure_sizes(struct bench_rank_state *r)
{
	const struct bench_options *a = r->options;
	struct bench_result *b = &r->result;
	struct bench_call *call = &r->call;
	tess_status st = TESS_OK;
	int32_t writable = true;

	for (uint64_t bytes = a->min_bytes; bytes <= a->max_bytes && !st && writable;
	     bytes *= (uint64_t)a->factor) {
		struct bench_row *row = &b->row[b->nrows];

		bench_call_set_count(call, bench_count_elements(a, call->n, bytes));
		if (!call->count && a->kind != TESS_BARRIER)
			continue;
		*row = (struct bench_row){ .bytes = bench_get_vector_bytes(a, call->n, call->count),
			                   .count = call->count };
		for (int32_t s = 0; s < BENCH_SERIES && !st; s++)
			if (b->has[s])
				st = measure_cell(r, s, &row->cell[s]);
		if (st)
			break;
		b->nrows++;
		if (r->show_progress)
			fputs("\r\033[K", stderr);
		if (r->first && !a->json)
			bench_print_row(b, row);
		if (a->kind == TESS_BARRIER)
			break;
		st = check_bench_output(r, &writable);
	}
	return st;
}

/* ---- the rank -------------------------------------------------------------------------------- */

static bool has_copy_limit(int32_t kind)
{
	return kind == TESS_ALL_REDUCE || kind == TESS_ALL_GATHER || kind == TESS_REDUCE_SCATTER;
}

/* Checks options that depend on the ranks and the backend. */
static tess_status choose_series(struct bench_rank_state *r)
{
	const struct bench_options *a = r->options;
	struct bench_result *b = &r->result;
	bool sums = (a->kind == TESS_ALL_REDUCE || a->kind == TESS_REDUCE_SCATTER) &&
	            a->dtype == TESS_F32 && a->op == TESS_SUM && !a->in_place;

	if (a->root >= r->call.n && tess_kind_rooted(a->kind))
		return tess_fail(TESS_EINVAL, "--root %d: there are ranks 0 to %d", (int)a->root,
		                 (int)r->call.n - 1);
	if (a->kind == BENCH_SEND_RECV && r->call.n == 1)
		return tess_fail(TESS_EINVAL,
		                 "send_recv needs another rank to send to; give -n 2 or more");
	if (a->limit && (!b->shared || !has_copy_limit(a->kind)))
		return tess_fail(
			TESS_EINVAL,
			"--limit reads the memory of other ranks, for all_reduce, all_gather and "
			"reduce_scatter; %s",
			has_copy_limit(a->kind)
				? "these ranks share none: use --backend shm, without --own"
				: "choose one of them");
	b->has[BENCH_EXACT] = sums && a->sum != BENCH_ONLY_FAST;
	b->has[BENCH_PLAIN] = !b->has[BENCH_EXACT] || a->sum != BENCH_ONLY_EXACT;
	b->has[BENCH_IN] = a->limit;
	b->has[BENCH_IN_OUT] = a->limit && a->kind == TESS_ALL_REDUCE;
	return TESS_OK;
}

static size_t count_max_rows(const struct bench_options *a)
{
	size_t n = 1;

	for (uint64_t bytes = a->min_bytes; bytes <= a->max_bytes; bytes *= (uint64_t)a->factor)
		n++;
	return n;
}

static tess_status prepare_bench_rank(struct bench_rank_state *r)
{
	const struct bench_options *a = r->options;
	cpu_set_t mine, cpus;
	tess_status st = choose_series(r);

	if (st)
		return st;
	CPU_ZERO(&mine);
	sched_getaffinity(0, sizeof mine, &mine);
	st = tess_all_reduce(r->all, &mine, &cpus, sizeof mine / 8, TESS_I64, TESS_BOR, "bench");
	if (st)
		return st;
	r->result.ncpus = CPU_COUNT(&cpus);
	r->result.row = calloc(count_max_rows(a), sizeof *r->result.row);
	r->times = calloc((size_t)a->samples, sizeof *r->times);
	if (!r->result.row || !r->times)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (a->svg && r->first) {
		r->svg = fopen(a->svg, "w");
		if (!r->svg)
			return tess_fail(TESS_EIO, "--svg %s: %s", a->svg, strerror(errno));
	}
	return alloc_vectors(r);
}

static tess_status report_results(struct bench_rank_state *r)
{
	const struct bench_result *b = &r->result;
	tess_status st = TESS_OK;

	if (r->first && r->options->json)
		st = bench_print_json(b);
	else if (r->first)
		bench_print_end(b);
	if (!st && r->svg)
		st = bench_write_chart(b, r->svg);
	for (size_t i = 0; i < b->nrows && !st; i++)
		for (int32_t s = 0; s < BENCH_SERIES && !st; s++)
			if (b->row[i].cell[s].wrong > 0)
				st = tess_fail(
					TESS_EBUG,
					"%s over %s: elements were wrong; tessera conform %s "
					"lists the faults",
					bench_kind_name(r->options->kind), b->backend, b->backend);
	return st;
}

tess_status bench_fail_along(const struct bench_options *a)
{
	return tess_fail(TESS_EINVAL, "--along %s: the mesh \"%.100s\" has no such dimension",
	                 a->along, a->mesh);
}

/* Opens the group that makes the calls: all ranks, or those along a mesh dimension. */
static tess_status open_bench_group(struct bench_rank_state *r, struct tess_world *w)
{
	const struct bench_options *a = r->options;
	tess_status st = TESS_OK;

	r->group = r->all = tess_world_group(w);
	if (a->mesh)
		st = tess_mesh_open(w, a->mesh, &r->mesh);
	if (!st && a->mesh)
		r->group = tess_mesh_group(r->mesh, a->along);
	if (!st && !r->group)
		st = bench_fail_along(a);
	if (st)
		return st;
	r->first = tess_world_rank(w) == 0;
	r->call = (struct bench_call){ .group = r->group,
		                       .options = a,
		                       .rank = tess_group_rank(r->group),
		                       .n = tess_group_size(r->group),
		                       .width = tess_width(a->dtype) };
	r->result = (struct bench_result){ .options = a,
		                           .nranks = r->call.n,
		                           .backend = tess_world_backend(w),
		                           .shared = !a->private_memory &&
		                                     tess_group_has_shared_memory(r->group) };
	r->show_progress = r->first && isatty(STDERR_FILENO);
	return TESS_OK;
}

tess_status bench_run_rank(struct tess_world *w, void *options)
{
	const struct bench_options *a = options;
	struct bench_rank_state r = { .options = a };
	tess_status st = open_bench_group(&r, w);

	if (!st)
		st = time_startup(&r);
	if (!st)
		st = prepare_bench_rank(&r);
	if (!st && r.first && !a->json)
		bench_print_head(&r.result);
	if (!st)
		st = measure_sizes(&r);
	if (!st)
		st = report_results(&r);
	if (r.svg && fclose(r.svg) && !st)
		st = tess_fail(TESS_EIO, "--svg %s: %s", a->svg, strerror(errno));
	if (!st)
		st = tess_barrier(r.all, "bench");
	if (!st)
		free_vectors(&r);
	free(r.result.row);
	free(r.times);
	tess_mesh_close(r.mesh);
	return st;
}

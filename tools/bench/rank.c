/* One rank of `tessera bench comm`. */
#include "bench.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/group/shared_region.h"
#include "measure.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <time.h>
#include <unistd.h>

enum { SHOWN_EVERY = 100000 }; /* us between two lines of progress */

struct rank {
	struct tess_group *group;
	const struct bench_ask *ask;
	struct bench_call call;
	struct bench_result result;
	double *times;
	bool live; /* progress is shown */
	double shown;
	FILE *svg;
};

/* ---- for measure() ------------------------------------------------------------------------------ */

static int run(void *self)
{
	struct rank *r = self;

	return bench_call_run(&r->call);
}

static int barrier(void *self)
{
	struct rank *r = self;

	return tess_barrier(r->group, "bench");
}

static int greatest(void *self, double *x)
{
	struct rank *r = self;
	double mine = *x;

	return tess_all_reduce(r->group, &mine, x, 1, TESS_F64, TESS_MAX, "bench");
}

static void progress(void *self, int done, int all)
{
	struct rank *r = self;
	double now = measure_now();
	char size[32];

	if (!r->live || now - r->shown < SHOWN_EVERY)
		return;
	r->shown = now;
	bench_size_text(bench_bytes(r->ask, r->call.n, r->call.count), size);
	fprintf(stderr, "\r\033[K  %s, %s: %d of %d", size,
	        bench_series_name(r->ask, r->call.series), done, all);
}

/* ---- start-up ------------------------------------------------------------------------------------ */

/* Seconds since a process began, as its clock ticks tell. 0: it cannot be seen. */
static double age(pid_t pid)
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
	/* the 2nd of its fields ends so; the 22nd is when it began, after boot */
	rest = strrchr(text, ')');
	for (int field = 2; rest && field < 22; field++)
		rest = strchr(rest + 1, ' ');
	if (!rest || sscanf(rest, "%llu", &ticks) != 1)
		return 0;
	clock_gettime(CLOCK_BOOTTIME, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
	       (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static bool same_program(pid_t pid)
{
	char path[48], theirs[PATH_MAX] = "", own[PATH_MAX] = "";

	snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
	return readlink(path, theirs, sizeof theirs - 1) > 0 &&
	       readlink("/proc/self/exe", own, sizeof own - 1) > 0 && !strcmp(theirs, own);
}

/* Until all ranks have met: since the command began, or this rank where another program has started it. */
static tess_status get_ready(struct rank *r)
{
	tess_status st = tess_barrier(r->group, "bench");

	r->result.ready = age(same_program(getppid()) ? getppid() : getpid());
	return st;
}

/* ---- memory -------------------------------------------------------------------------------------- */

static tess_status memory(struct rank *r, uint64_t bytes, char **out)
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

static void give_up_memory(struct rank *r)
{
	if (!r->result.shared) {
		free(r->call.src == r->call.dst ? NULL : r->call.src);
		free(r->call.dst);
	}
}

static tess_status take_memory(struct rank *r)
{
	const struct bench_ask *a = r->ask;
	uint64_t count = bench_count(a, r->call.n, a->most), most = 0, give;
	tess_status st;

	for (int32_t s = 0; s < BENCH_SERIES; s++) {
		give = r->result.has[s] ? bench_give(a, r->call.n, r->call.rank, s, count) : 0;
		most = give > most ? give : most;
	}
	give = bench_bytes(a, r->call.n, count); /* copying needs all of it, on both sides */
	most = (give > most ? give : most) / 64 * 64 + 64;
	r->call.room = most;
	st = memory(r, most, &r->call.dst);
	if (st)
		return st;
	r->call.src = r->call.dst;
	return a->in_place ? TESS_OK : memory(r, most, &r->call.src);
}

/* ---- measuring ------------------------------------------------------------------------------------ */

static tess_status cell(struct rank *r, int32_t series, struct bench_cell *out)
{
	const struct bench_ask *a = r->ask;
	struct bench_call *call = &r->call;
	struct contender c = {
		.self = r,
		.src = call->src,
		.dst = call->dst,
		.give = (bench_give(a, call->n, call->rank, series, call->count) + 3) / 4 * 4,
		.get = bench_get(a, call->n, call->count),
		.batch = measure_batch(bench_bytes(a, call->n, call->count)),
		.seconds = a->seconds,
		.room = r->times,
		.most = a->samples,
		.run = run,
		.barrier = barrier,
		.greatest = greatest,
		.progress = progress,
	};
	bool copies = series == BENCH_IN || series == BENCH_IN_OUT;
	struct measured m;
	tess_status st;

	call->series = series;
	st = measure(&c, &m);
	if (st)
		return st;
	*out = (struct bench_cell){
		.us = m.us, .fastest = m.least, .samples = m.samples, .wrong = -1
	};
	return a->check && !copies ? bench_call_check(call, &out->wrong) : TESS_OK;
}

static tess_status measure_all(struct rank *r)
{
	const struct bench_ask *a = r->ask;
	struct bench_result *b = &r->result;
	struct bench_call *call = &r->call;
	tess_status st = TESS_OK;

	for (uint64_t bytes = a->least; bytes <= a->most && !st; bytes *= (uint64_t)a->factor) {
		struct bench_row *row = &b->row[b->nrows];

		bench_call_size(call, bench_count(a, call->n, bytes));
		if (!call->count && a->kind != TESS_BARRIER)
			continue;
		*row = (struct bench_row){ .bytes = bench_bytes(a, call->n, call->count),
			                   .count = call->count };
		for (int32_t s = 0; s < BENCH_SERIES && !st; s++)
			if (b->has[s])
				st = cell(r, s, &row->cell[s]);
		if (st)
			break;
		b->nrows++;
		if (r->live)
			fputs("\r\033[K", stderr);
		if (call->rank == 0 && !a->json)
			bench_table_row(b, row);
		if (a->kind == TESS_BARRIER)
			break;
	}
	return st;
}

/* ---- all of it ------------------------------------------------------------------------------------ */

static bool copies(int32_t kind)
{
	return kind == TESS_ALL_REDUCE || kind == TESS_ALL_GATHER || kind == TESS_REDUCE_SCATTER;
}

/* What can be asked only when the ranks and the backend are known. */
static tess_status choose_series(struct rank *r)
{
	const struct bench_ask *a = r->ask;
	struct bench_result *b = &r->result;
	bool sums = (a->kind == TESS_ALL_REDUCE || a->kind == TESS_REDUCE_SCATTER) &&
	            a->dtype == TESS_F32 && a->op == TESS_SUM && !a->in_place;

	if (a->root >= r->call.n && tess_kind_rooted(a->kind))
		return tess_fail(TESS_EINVAL, "--root %d: there are ranks 0 to %d", (int)a->root,
		                 (int)r->call.n - 1);
	if (a->kind == BENCH_SEND_RECV && r->call.n == 1)
		return tess_fail(TESS_EINVAL,
		                 "send_recv needs another rank to send to; give -n 2 or more");
	if (a->limit && (!b->shared || !copies(a->kind)))
		return tess_fail(
			TESS_EINVAL,
			"--limit reads the memory of other ranks, for all_reduce, all_gather and "
			"reduce_scatter; %s",
			copies(a->kind)
				? "here there is none that they share: say --backend shm, without --own"
				: "choose one of them");
	b->has[BENCH_EXACT] = sums && a->sum != BENCH_ONLY_FAST;
	b->has[BENCH_PLAIN] = !b->has[BENCH_EXACT] || a->sum != BENCH_ONLY_EXACT;
	b->has[BENCH_IN] = a->limit;
	b->has[BENCH_IN_OUT] = a->limit && a->kind == TESS_ALL_REDUCE;
	return TESS_OK;
}

static size_t rows_at_most(const struct bench_ask *a)
{
	size_t n = 1;

	for (uint64_t bytes = a->least; bytes <= a->most; bytes *= (uint64_t)a->factor)
		n++;
	return n;
}

static tess_status prepare(struct rank *r)
{
	const struct bench_ask *a = r->ask;
	cpu_set_t mine, cpus;
	tess_status st = choose_series(r);

	if (st)
		return st;
	CPU_ZERO(&mine);
	sched_getaffinity(0, sizeof mine, &mine);
	st = tess_all_reduce(r->group, &mine, &cpus, sizeof mine / 8, TESS_I64, TESS_BOR, "bench");
	if (st)
		return st;
	r->result.ncpus = CPU_COUNT(&cpus);
	r->result.row = calloc(rows_at_most(a), sizeof *r->result.row);
	r->times = calloc((size_t)a->samples, sizeof *r->times);
	if (!r->result.row || !r->times)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (a->svg && r->call.rank == 0) {
		r->svg = fopen(a->svg, "w");
		if (!r->svg)
			return tess_fail(TESS_EIO, "--svg %s: %s", a->svg, strerror(errno));
	}
	return take_memory(r);
}

static tess_status tell(struct rank *r)
{
	const struct bench_result *b = &r->result;
	tess_status st = TESS_OK;

	if (r->call.rank == 0 && r->ask->json)
		st = bench_json(b);
	else if (r->call.rank == 0)
		bench_table_end(b);
	if (!st && r->svg)
		st = bench_chart(b, r->svg);
	for (size_t i = 0; i < b->nrows && !st; i++)
		for (int32_t s = 0; s < BENCH_SERIES && !st; s++)
			if (b->row[i].cell[s].wrong > 0)
				st = tess_fail(
					TESS_EBUG,
					"%s over %s: elements were wrong; tessera conform %s "
					"says which",
					bench_kind_name(r->ask->kind), b->backend, b->backend);
	return st;
}

tess_status bench_rank(struct tess_world *w, void *ask)
{
	const struct bench_ask *a = ask;
	struct rank r = { .group = tess_world_group(w), .ask = a };
	tess_status st;

	r.call = (struct bench_call){ .group = r.group,
		                      .ask = a,
		                      .rank = tess_world_rank(w),
		                      .n = tess_world_size(w),
		                      .width = tess_width(a->dtype) };
	r.result = (struct bench_result){ .ask = a,
		                          .nranks = r.call.n,
		                          .backend = tess_world_backend(w),
		                          .shared = !a->own && tess_group_has_shared_memory(r.group) };
	r.live = r.call.rank == 0 && isatty(STDERR_FILENO);
	st = get_ready(&r);
	if (!st)
		st = prepare(&r);
	if (!st && r.call.rank == 0 && !a->json)
		bench_table_head(&r.result);
	if (!st)
		st = measure_all(&r);
	if (!st)
		st = tell(&r);
	if (r.svg && fclose(r.svg) && !st)
		st = tess_fail(TESS_EIO, "--svg %s: %s", a->svg, strerror(errno));
	if (!st)
		st = tess_barrier(r.group, "bench");
	if (!st)
		give_up_memory(&r);
	free(r.result.row);
	free(r.times);
	return st;
}

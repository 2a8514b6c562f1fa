#include "scenario.h"

#include "batches.h"
#include "data.h"
#include "subgroups.h"

#include "core/base/status.h"
#include "core/base/clock.h"
#include "core/rendezvous/call_desc.h"
#include "core/group/world.h"
#include "core/registry/registry.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { KINDS = TESS_ALL_TO_ALL - TESS_BARRIER };

static tess_status check_collectives(struct tess_world *w)
{
	static const uint64_t counts[] = { 1000, 0, 1, 70001, 5 };
	int32_t n = tess_world_size(w), turn = 0;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < KINDS * 8 * 7 * 4 && !st; i++) {
		struct conform_case c = { .kind = TESS_BROADCAST + i % KINDS,
			                  .dtype = TESS_F32 + i / KINDS % 8,
			                  .op = TESS_SUM + i / 64 % 7,
			                  .uneven = i / 448 & 1,
			                  .in_place = i / 896 & 1 };
		bool adds = tess_kind_reduces(c.kind);

		if ((c.op > TESS_SUM && !adds) || (c.uneven && c.kind <= TESS_ALL_REDUCE) ||
		    (c.op >= TESS_BAND && c.dtype <= TESS_F16))
			continue;
		for (int k = 0; k < 2 && !st; k++) {
			c.count = counts[turn++ % 5];
			c.root = tess_kind_rooted(c.kind) ? turn % n : 0;
			st = data_run(tess_world_group(w), &c);
		}
	}
	return st ? st : tess_barrier(tess_world_group(w), "moves");
}

/* Each rank waits in an order of its own, so that the rest must get on meanwhile. */
static tess_status overlap_calls(struct tess_world *w)
{
	struct data_pending work[KINDS];
	int32_t me = tess_world_rank(w);
	tess_status st = TESS_OK;

	for (int round = 0; round < 10 && !st; round++) {
		for (int k = 0; k < KINDS && !st; k++) {
			struct conform_case c = { .kind = TESS_BROADCAST + k,
				                  .dtype = TESS_F32,
				                  .op = TESS_SUM,
				                  .count = round % 2 ? 100000 : 100,
				                  .uneven = k > 2 };

			st = data_start(tess_world_group(w), &c, &work[k]);
		}
		for (int k = 0; k < KINDS && !st; k++)
			st = data_finish(&work[me % 2 ? (k + me) % KINDS : KINDS - 1 - k]);
	}
	return st;
}

static tess_status open_and_close_backend(struct tess_world *w)
{
	int32_t n = tess_world_size(w), member[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	char name[32];
	tess_status st = TESS_OK;

	for (int i = 0; i < 200 && !st; i++) {
		struct tess_join how = { .size = sizeof how,
			                 .rank = tess_world_rank(w),
			                 .nranks = n,
			                 .device = -1,
			                 .name = name,
			                 .world = member,
			                 .store = &w->store,
			                 .deadline = tess_now() + w->timeout,
			                 .parent = i % 2 ? w->all->self : NULL };
		void *self;

		snprintf(name, sizeof name, "churn %d", i);
		st = w->backend->open(&how, &self);
		if (!st)
			w->backend->close(self);
	}
	return st;
}

static tess_status sum_until_failure(struct tess_world *w, uint64_t count, int signal)
{
	float *x = calloc(count + 1, sizeof *x);
	int64_t leave = tess_now() + 200 * (int64_t)TESS_MS, last = tess_now();
	tess_status st = x ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory");

	while (!st) {
		last = tess_now();
		st = tess_all_reduce(tess_world_group(w), x, x, count, TESS_F32, TESS_SUM, "loop");
		if (signal && tess_world_rank(w) == 1 && tess_now() > leave)
			raise(signal);
	}
	printf("[%d] failed after %.3f s: %s\n", tess_world_rank(w),
	       (double)(tess_now() - last) / 1e9, tess_error());
	fflush(stdout);
	free(x);
	return st;
}

static tess_status call_differently(struct tess_world *w, const char *what)
{
	static float src[4096], dst[8 * 4096];
	bool me = tess_world_rank(w) == 1;
	struct tess_coll c = { .size = sizeof c,
		               .kind = me && !strcmp(what, "kind") ? TESS_ALL_GATHER
		                                                   : TESS_ALL_REDUCE,
		               .dtype = me && !strcmp(what, "dtype") ? TESS_I32 : TESS_F32,
		               .count = me && !strcmp(what, "count") ? 500 : 1000,
		               .src = src,
		               .dst = dst,
		               .where = me ? "odd.one" : "the.others" };
	tess_status st = tess_barrier(tess_world_group(w), "begin");

	if (!st)
		st = tess_group_run(tess_world_group(w), &c);
	if (!st) /* the others may have had theirs before the difference was seen */
		st = tess_barrier(tess_world_group(w), "end");
	printf("[%d] %s\n", tess_world_rank(w), st ? tess_error() : "fine");
	fflush(stdout);
	return st;
}

static tess_status check_repeated_sums(struct tess_world *w, int n)
{
	int32_t size = tess_world_size(w), me = tess_world_rank(w);
	float x[100];
	tess_status st = TESS_OK;

	for (int i = 0; i < n && !st; i++) {
		for (int k = 0; k < 100; k++)
			x[k] = (float)(me + i + k);
		st = tess_all_reduce(tess_world_group(w), x, x, 100, TESS_F32, TESS_SUM, "a.call");
		for (int k = 0; k < 100 && !st; k++)
			if (x[k] != (float)(size * (i + k) + size * (size - 1) / 2))
				st = tess_fail(TESS_EBUG, "call %d: element %d is %g", i, k,
				               (double)x[k]);
	}
	return st;
}

tess_status scenario_run(struct tess_world *w, const char *name, const char *arg)
{
	uint64_t count = strtoull(arg, NULL, 10);

	if (!strcmp(name, "moves"))
		return check_collectives(w);
	if (!strcmp(name, "several"))
		return overlap_calls(w);
	if (!strcmp(name, "churn"))
		return open_and_close_backend(w);
	if (!strcmp(name, "batches"))
		return batches_run(tess_world_group(w));
	if (!strcmp(name, "groups"))
		return subgroups_run_all(w);
	if (!strcmp(name, "splits"))
		return subgroups_open_and_close(w);
	if (!strcmp(name, "odd"))
		return call_differently(w, arg);
	if (!strcmp(name, "calls"))
		return check_repeated_sums(w, (int)count);
	return sum_until_failure(w, count,
	                         !strcmp(name, "killed")    ? SIGKILL
	                         : !strcmp(name, "stopped") ? SIGSTOP
	                                                    : 0);
}

int scenario_main(int argc, char **argv)
{
	struct tess_world *w;
	tess_status st;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	st = tess_world_open(&w);
	if (st) {
		fprintf(stderr, "open: %s\n", tess_error());
	} else {
		st = scenario_run(w, argv[1], argc > 2 ? argv[2] : "0");
		if (st) {
			fprintf(stderr, "%s: %s\n", argv[1], tess_error());
			tess_world_fail(w, st, tess_error());
		}
		tess_world_close(w);
	}
	tess_registry_quit();
	return st ? 1 : 0;
}

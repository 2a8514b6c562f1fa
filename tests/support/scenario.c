#include "scenario.h"
#include "batches.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "core/world/world.h"
#include "data.h"
#include "subgroups.h"

#include <check.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { KINDS = TESS_ALL_TO_ALL - TESS_BARRIER };

/*
 * Completes the calls in a different order on each rank, so that all must progress in every wait.
 */
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

/* Polls a call until it is done, or releases it before: it completes in either case. */
static tess_status poll_and_release(struct tess_world *w)
{
	tess_status st = TESS_OK;

	for (int round = 0; round < 40 && !st; round++) {
		struct conform_case c = { .kind = TESS_ALL_REDUCE,
			                  .dtype = TESS_F32,
			                  .op = TESS_SUM,
			                  .count = round % 2 ? 100000 : 10 };
		struct data_pending p;

		st = data_start(tess_world_group(w), &c, &p);
		while (!st && round % 4 < 3 && (st = tess_work_test(p.work)) == TESS_PENDING) {
			sched_yield();
			st = TESS_OK;
		}
		tess_work_release(st ? NULL : p.work);
		if (!st)
			st = data_check(p.data);
	}
	return st;
}

/* Ends rank 1, while the other ranks are in a call. */
static tess_status end_rank_1(const char *how)
{
	if (!strncmp(how, "killed", 6))
		raise(SIGKILL);
	if (!strcmp(how, "stopped"))
		raise(SIGSTOP);
	if (!strcmp(how, "exits"))
		_exit(0);
	return strcmp(how, "fails") ? TESS_OK : tess_fail(TESS_EIO, "the disk is full");
}

static tess_status sum_until_failure(struct tess_world *w, uint64_t count, const char *how)
{
	float *x = calloc(count + 1, sizeof *x);
	int64_t leave = tess_now() + 200 * (int64_t)TESS_MS, last = tess_now();
	struct tess_group *g = tess_world_group(w);
	bool odd = tess_world_rank(w) == 1;
	tess_status st = x ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory");

	if (!st && !strcmp(how, "killed_apart"))
		st = tess_group_split(g, odd, 0, "apart", &g);
	while (!st) {
		last = tess_now();
		st = tess_all_reduce(g, x, x, count, TESS_F32, TESS_SUM, "loop");
		if (!st && odd && tess_now() > leave)
			st = end_rank_1(how);
	}
	printf("[%d] failed after %.3f s: %s\n", tess_world_rank(w),
	       (double)(tess_now() - last) / 1e9, tess_error());
	fflush(stdout);
	free(x);
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

	if (!strcmp(name, "several"))
		return overlap_calls(w);
	if (!strcmp(name, "released"))
		return poll_and_release(w);
	if (!strcmp(name, "batches"))
		return batches_run(tess_world_group(w));
	if (!strcmp(name, "groups"))
		return subgroups_run_all(w);
	if (!strcmp(name, "splits"))
		return subgroups_open_and_close(w);
	if (!strcmp(name, "calls"))
		return check_repeated_sums(w, (int)count);
	return sum_until_failure(w, count, name);
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

double scenario_parse_failure(const char *output, int rank, const char *what)
{
	char begin[48], line[2048];
	const char *at;
	double seconds;

	snprintf(begin, sizeof begin, "[%d] failed after ", rank);
	at = strstr(output, begin);
	ck_assert_msg(at && sscanf(at + strlen(begin), "%lf", &seconds) == 1, "rank %d: %s", rank,
	              output);
	snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
	ck_assert_msg(strstr(line, what) != NULL, "rank %d: %s", rank, line);
	return seconds;
}

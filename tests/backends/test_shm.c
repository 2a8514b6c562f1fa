/*
 * test_shm.c - the memory of shm, which all ranks address, and its leaks. The tests of all backends
 * cover the rest (conform, subgroups, failures, exact, gloo). This program also runs as the ranks.
 */
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/sum/exact.h"
#include "core/sum/shared_region.h"
#include "core/world/group.h"
#include "tests/support/data.h"
#include "tests/support/entries.h"
#include "tests/support/job.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <tessera/split.h>
#include <unistd.h>

enum { REGION_BYTES = 24 << 20, KINDS = TESS_ALL_TO_ALL - TESS_BARRIER };

/* ---- shared regions -------------------------------------------------------------------------- */

/* Checks kinds x even x in place x roots, small enough for slots and too large for them. */
static tess_status check_all_kinds(struct tess_world *w)
{
	static const uint64_t counts[] = { 0, 1, 37, 5000, 60001 };
	int32_t last = tess_world_size(w) - 1;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < KINDS * 5 * 2 * 2 * 2 && !st; i += THIN) {
		struct conform_case c = {
			.kind = TESS_BROADCAST + i % KINDS,
			.count = counts[i / KINDS % 5],
			.uneven = i / KINDS / 5 & 1,
			.in_place = i / KINDS / 10 & 1,
			.root = i / KINDS / 20 & 1 ? last : 0,
			.dtype = TESS_F32 + (i % 5 ? 0 : i % 8),
			.op = i % 3 ? TESS_SUM : TESS_MAX,
		};

		if (c.kind == TESS_BROADCAST || c.kind == TESS_REDUCE || c.kind == TESS_ALL_REDUCE)
			c.uneven = false;
		if (!tess_kind_reduces(c.kind))
			c.op = TESS_SUM;
		if (!tess_kind_rooted(c.kind))
			c.root = 0;
		st = data_run(tess_world_group(w), &c);
	}
	return st;
}

/* Checks buffers in a shared region on all ranks, on some ranks only, and few of them. */
static tess_status check_shared_regions(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	uint64_t bytes = REGION_BYTES -
	                 4096 * (uint64_t)(tess_world_rank(w) % 3); /* the largest request counts */
	void *mine;
	tess_status st;

	(void)arg;
	if (tess_world_size(w) == 1)
		return tess_group_alloc(g, &bytes, &mine) == TESS_ENOTSUP ? check_all_kinds(w)
		                                                          : TESS_EBUG;
	st = tess_group_alloc(g, &bytes, &mine);
	if (!st && (bytes != REGION_BYTES || !tess_group_find_region(g, mine, REGION_BYTES) ||
	            tess_group_find_region(g, mine, REGION_BYTES + 1) ||
	            tess_group_find_region(g, (char *)mine + 1, REGION_BYTES) ||
	            tess_group_find_region(g, (char *)mine - 1, 1)))
		st = tess_fail(TESS_EBUG, "a shared region of %d bytes has %d", REGION_BYTES,
		               (int)bytes);
	for (int i = 0; i < 3 && !st; i++) {
		bool some = i == 1; /* of the ranks */

		conform_data_use_memory(some && tess_world_rank(w) % 2 == 0 ? NULL : mine,
		                        i == 2 ? 100000 : bytes); /* too small for most cases */
		st = check_all_kinds(w);
	}
	conform_data_use_memory(NULL, 0);
	if (!st)
		tess_group_free(g, mine);
	return st;
}

/* Checks that sums of nodes in shared regions have the bits of sums in other memory. */
static tess_status check_sums_in_regions(struct tess_world *w, void *arg)
{
	static const int64_t units[] = { 32, 5, 25 };
	static const uint64_t counts[] = { 1, 100, 700, 20001 };
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w), n = tess_world_size(w);
	uint64_t bytes = REGION_BYTES, share[8];
	float *mine, *nodes, *out, *other, *apart;
	struct tess_sum_work *work;
	tess_status st = tess_group_alloc(g, &bytes, (void **)&mine);

	(void)arg;
	nodes = malloc(REGION_BYTES / 2);
	other = malloc(REGION_BYTES / 8);
	apart = malloc(REGION_BYTES / 8);
	for (int i = 0; i < 24 && !st; i++) {
		struct tess_sum s = { .ntree = 1 + i % 2,
			              .n = units + i % 3 % 2,
			              .count = counts[i / 6],
			              .where = "sums" };
		uint64_t all = (uint64_t)tess_sum_nodes(&s, n, me) * s.count, len = s.count;

		for (int32_t r = 0; r < n; r++)
			share[r] = (uint64_t)(tess_edge((int64_t)s.count, n, r + 1) -
			                      tess_edge((int64_t)s.count, n, r));
		if (i % 4 == 3) {
			s.share = share;
			len = share[me];
		}
		for (uint64_t k = 0; k < all; k++)
			nodes[k] = mine[k + 16 * (uint64_t)me] =
				(float)((k * 7919 + (uint64_t)me * 31) % 1009) / 7 - 70;
		st = tess_group_sum(g, &s, nodes, other);
		for (int32_t odd = 0; odd < (i < 12 ? 1 : 3) && !st;
		     odd++) { /* some memory of the last rank is not shared */
			bool last = me == n - 1;
			float *from = odd == 1 && last ? nodes : mine + 16 * me;

			out = odd == 2 && last ? apart : mine + (REGION_BYTES / 4 / sizeof *mine);
			memset(out, 0xff, len * sizeof *out);
			st = tess_group_sum(g, &s, from, out);
			if (!st && memcmp(out, other, len * sizeof *out))
				st = tess_fail(TESS_EBUG,
				               "sum %d.%d has other bits in a shared region", i,
				               (int)odd);
			memset(out, 0xff, len * sizeof *out);
			if (!st)
				st = tess_sum_start(g, &s, from, out, &work);
			if (!st)
				st = tess_sum_wait(work);
			if (!st && memcmp(out, other, len * sizeof *out))
				st = tess_fail(TESS_EBUG,
				               "sum %d.%d, started, has other bits there", i,
				               (int)odd);
		}
	}
	free(apart);
	free(nodes);
	free(other);
	return st;
}

/*
 * Checks that a rank may reuse its nodes in shared regions after the sum, however slowly another
 * rank reads them.
 */
static tess_status check_region_reuse(struct tess_world *w, void *arg)
{
	enum { MANY = 1 << 18 };
	static const int64_t units[] = { 8 };
	struct tess_group *g = tess_world_group(w);
	int32_t me = tess_world_rank(w), n = tess_world_size(w);
	uint64_t bytes = REGION_BYTES, share[8] = { 0 };
	struct tess_sum s = {
		.ntree = 1, .n = units, .count = MANY, .share = share, .where = "reuse"
	};
	uint64_t all = (uint64_t)tess_sum_nodes(&s, n, me) * MANY;
	float *mine, *out = malloc(MANY * sizeof *out);
	int64_t nodes = 0;
	tess_status st = tess_group_alloc(g, &bytes, (void **)&mine);

	(void)arg;
	for (int32_t r = 0; r < n; r++)
		nodes += tess_sum_nodes(&s, n, r);
	for (int32_t i = 0; i < 2 * n && !st; i++) { /* one rank adds all */
		memset(share, 0, sizeof share);
		share[i % n] = MANY;
		for (uint64_t k = 0; k < all; k++)
			mine[k] = (float)i;
		st = tess_group_sum(g, &s, mine, out);
		memset(mine, 0xff, all * sizeof *mine);
		for (uint64_t k = 0; k < share[me] && !st; k++)
			if (out[k] != (float)(nodes * i))
				st = tess_fail(TESS_EBUG, "sum %d: element %d is %g", (int)i,
				               (int)k, (double)out[k]);
	}
	free(out);
	return st;
}

static tess_status allocate_other_sizes(struct tess_world *w, void *arg)
{
	struct tess_group *g = tess_world_group(w);
	void *mine, *peers[8];

	(void)arg;
	return g->backend->alloc(g->self, tess_world_rank(w) == 1 ? 4096 : 8192, &mine, peers);
}

static tess_status allocate_too_much(struct tess_world *w, void *arg)
{
	uint64_t bytes = UINT64_C(1) << 46;
	void *mine;
	tess_status st = tess_group_alloc(tess_world_group(w), &bytes, &mine);

	(void)arg;
	if (st != TESS_ENOMEM)
		return tess_fail(TESS_EBUG, "64 TiB of memory: %s", tess_status_name(st));
	return tess_barrier(tess_world_group(w), "still there");
}

/* ---- leaks ----------------------------------------------------------------------------------- */

static long read_mapped_bytes(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	long pages = 0;

	if (f && fscanf(f, "%ld", &pages) != 1)
		pages = 0;
	if (f)
		fclose(f);
	return pages * 4096;
}

static atomic_bool stop_disturbing;

/* Connects to all sockets of shm's kind, and sends nothing, or malformed messages. */
static void *disturb_sockets(void *arg)
{
	long *calls = arg;
	char line[512];

	while (!atomic_load(&stop_disturbing)) {
		FILE *f = fopen("/proc/net/unix", "re");

		while (f && fgets(line, sizeof line, f)) {
			struct sockaddr_un at = { .sun_family = AF_UNIX };
			char *name = strchr(line, '@');
			int fd;

			if (!name || strcspn(name, "\n") != 33)
				continue;
			memcpy(at.sun_path + 1, name + 1, 32);
			fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
			if (!connect(fd, (struct sockaddr *)&at,
			             offsetof(struct sockaddr_un, sun_path) + 33)) {
				++*calls;
				if (*calls % 2)
					send(fd, line, 24, MSG_NOSIGNAL | MSG_DONTWAIT);
			}
			close(fd);
		}
		if (f)
			fclose(f);
	}
	return NULL;
}

static tess_status open_and_close_region_group(struct tess_world *w, int i)
{
	int32_t member[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	char name[32];
	struct tess_group_entry how = { .size = sizeof how,
		                        .rank = tess_world_rank(w),
		                        .nranks = tess_world_size(w),
		                        .device = -1,
		                        .name = name,
		                        .world = member,
		                        .store = &w->store,
		                        .deadline = tess_now() + w->timeout };
	void *self, *mine, *peers[8];
	tess_status st;

	snprintf(name, sizeof name, "group %d", i);
	st = w->backend->open(&how, &self);
	if (st)
		return st;
	st = w->backend->alloc(self, 100000, &mine, peers);
	if (!st && i % 2)
		w->backend->free(self, mine);
	w->backend->close(self);
	return st;
}

/*
 * Opens 1000 groups, each with a shared region, and checks for leaks, while another process
 * connects to rank 0's sockets.
 */
static tess_status open_many_groups(struct tess_world *w)
{
	int files = 0;
	long before = 0, calls = 0;
	pthread_t thread;
	tess_status st = TESS_OK;

	if (tess_world_rank(w) == 2)
		pthread_create(&thread, NULL, disturb_sockets, &calls);
	for (int i = 0; i < 1000 && !st; i++) {
		if (i == 50) {
			files = count_dir_entries("/proc/self/fd");
			before = read_mapped_bytes();
		}
		if (i % 50 == 0 && tess_world_rank(w) == 0)
			fprintf(stderr, "%d groups\n", i); /* without output the test gives up */
		st = open_and_close_region_group(w, i);
	}
	if (tess_world_rank(w) == 2) {
		atomic_store(&stop_disturbing, true);
		pthread_join(thread, NULL);
		if (!st && !calls)
			st = tess_fail(TESS_EBUG, "no socket was found");
	}
	if (!st && count_dir_entries("/proc/self/fd") > files + 1)
		st = tess_fail(TESS_EBUG, "%d descriptors became %d", files,
		               count_dir_entries("/proc/self/fd"));
	if (!st && read_mapped_bytes() > before + (4 << 20))
		st = tess_fail(TESS_EBUG, "%ld mapped bytes became %ld", before,
		               read_mapped_bytes());
	return st;
}

/* Checks that a rank that waits long sleeps. */
static tess_status measure_long_wait(struct tess_world *w, void *arg)
{
	struct rusage before, after;
	long us;
	tess_status st = tess_barrier(tess_world_group(w), "first");

	(void)arg;
	if (tess_world_rank(w) == 0)
		usleep(400000);
	getrusage(RUSAGE_THREAD, &before);
	if (!st)
		st = tess_barrier(tess_world_group(w), "long");
	getrusage(RUSAGE_THREAD, &after);
	us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 + after.ru_utime.tv_usec -
	     before.ru_utime.tv_usec + (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
	     after.ru_stime.tv_usec - before.ru_stime.tv_usec;
	if (!st && us > 100000)
		st = tess_fail(TESS_EBUG, "a wait of 400 ms took %ld us of a CPU", us);
	return st;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static int run_shm_rank(const char *what)
{
	struct tess_world *w;
	tess_status st = tess_world_open(&w);

	if (!st) {
		st = !strcmp(what, "regions") ? check_shared_regions(w, NULL)
		     : !strcmp(what, "sums")  ? check_sums_in_regions(w, NULL)
		                              : open_many_groups(w);
		if (st)
			fprintf(stderr, "%s\n", tess_error());
		tess_world_close(w);
	}
	return st ? 1 : 0;
}

static void run_on_processes(int n, const char *what)
{
	struct test_job j;

	job_run_self(&j, n, "shm", "60", what, NULL);
	ck_assert_msg(j.status == 0, "%s by %d ranks: status %d: %s", what, n, j.status, j.text);
}

START_TEST(regions_of_threads)
{
	for (int n = 1; n <= 5; n++)
		spawn_ranks(n, check_shared_regions, NULL);
}
END_TEST

START_TEST(regions_of_processes)
{
	run_on_processes(2, "regions");
	run_on_processes(3, "regions");
}
END_TEST

START_TEST(exact_sums)
{
	for (int n = 2; n <= 5; n++)
		spawn_ranks(n, check_sums_in_regions, NULL);
	for (int n = 2; n <= 3; n++)
		spawn_ranks(n, check_region_reuse, NULL);
	run_on_processes(3, "sums");
}
END_TEST

START_TEST(regions_of_other_sizes)
{
	ck_assert_int_eq(tess_world_spawn_threads(3, allocate_other_sizes, NULL), TESS_EMISMATCH);
	expect_part(tess_error(), "4096");
	expect_part(tess_error(), "8192");
}
END_TEST

START_TEST(regions_too_large)
{
	spawn_ranks(3, allocate_too_much, NULL);
}
END_TEST

START_TEST(groups_leave_nothing)
{
	run_on_processes(3, "groups");
}
END_TEST

START_TEST(long_waits_sleep)
{
	spawn_ranks(2, measure_long_wait, NULL);
	spawn_ranks(5, measure_long_wait, NULL);
}
END_TEST

int main(int argc, char **argv)
{
	if (argc > 1)
		return run_shm_rank(argv[1]);
	setenv("TESSERA_BACKEND", "shm", 1);
	return suite_main("shm", (const TTest *const[]){
					 regions_of_threads,
					 regions_of_processes,
					 exact_sums,
					 regions_of_other_sizes,
					 regions_too_large,
					 groups_leave_nothing,
					 long_waits_sleep,
					 NULL,
				 });
}

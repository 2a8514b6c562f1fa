/*
 * disk DIR MIB [ENGINE] - moves a file (nn/offload/disk.h) as training with offloading does, for
 * bench/disk.py. Reads commands from stdin, one a line, and prints the seconds of each:
 *
 *   read, write   all bytes in order, requests of 4 MiB, eight under way
 *   update        a step of AdamW: per bucket three arrays of 4 MiB are read and written back,
 *                 while those of the next bucket are read
 */
#include "core/base/clock.h"
#include "core/base/option.h"
#include "nn/offload/disk.h"
#include "nn/offload/disk_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

enum { ARRAY = 4 << 20, ARRAYS = 3, BUCKET = ARRAYS * ARRAY, RING = 8, BUCKETS = 4 };

struct slot { /* a request, or a bucket, under way */
	struct tess_disk_request request[ARRAYS];
	char *memory;
};

static struct slot ring[RING];

static tess_status start_array(struct tess_disk *d, struct slot *s, int32_t k, bool writes,
                               uint64_t offset)
{
	s->request[k] = (struct tess_disk_request){ .where = "bench",
		                                    .what = "state",
		                                    .bucket = -1,
		                                    .writes = writes,
		                                    .data = s->memory + (size_t)k * ARRAY,
		                                    .offset = offset + (uint64_t)k * ARRAY,
		                                    .bytes = ARRAY };
	return tess_disk_start(d, &s->request[k]);
}

static tess_status wait_for_arrays(struct tess_disk *d, struct slot *s, int32_t n)
{
	tess_status st = TESS_OK;

	for (int32_t k = 0; k < n && !st; k++)
		st = tess_disk_wait(d, &s->request[k]);
	return st;
}

static tess_status start_bench_bucket(struct tess_disk *d, struct slot *s, bool writes,
                                      uint64_t offset)
{
	tess_status st = TESS_OK;

	for (int32_t k = 0; k < ARRAYS && !st; k++)
		st = start_array(d, s, k, writes, offset);
	return st;
}

static tess_status stream_file(struct tess_disk *d, uint64_t bytes, bool writes)
{
	int64_t n = (int64_t)(bytes / ARRAY);
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < n + RING && !st; i++) {
		if (i >= RING)
			st = wait_for_arrays(d, &ring[i % RING], 1);
		if (!st && i < n)
			st = start_array(d, &ring[i % RING], 0, writes, (uint64_t)i * ARRAY);
	}
	return st;
}

/* Bucket i is read in turn i, written in turn i + 1, and its slot is free in turn i + BUCKETS. */
static tess_status update_bench_file(struct tess_disk *d, uint64_t bytes)
{
	int64_t n = (int64_t)(bytes / BUCKET);
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < n + BUCKETS && !st; i++) {
		if (i >= BUCKETS)
			st = wait_for_arrays(d, &ring[i % BUCKETS], ARRAYS);
		if (!st && i < n)
			st = start_bench_bucket(d, &ring[i % BUCKETS], false, (uint64_t)i * BUCKET);
		if (!st && i >= 1 && i <= n)
			st = wait_for_arrays(d, &ring[(i - 1) % BUCKETS], ARRAYS);
		if (!st && i >= 1 && i <= n)
			st = start_bench_bucket(d, &ring[(i - 1) % BUCKETS], true,
			                        (uint64_t)(i - 1) * BUCKET);
	}
	return st;
}

static tess_status run_disk_command(struct tess_disk *d, uint64_t bytes, const char *command)
{
	if (!strcmp(command, "read\n") || !strcmp(command, "write\n"))
		return stream_file(d, bytes, *command == 'w');
	if (!strcmp(command, "update\n"))
		return update_bench_file(d, bytes);
	return tess_fail(TESS_EINVAL, "no such command: %s", command);
}

static tess_status make_ring(void)
{
	for (int32_t i = 0; i < RING; i++) {
		ring[i].memory = tess_disk_alloc(BUCKET);
		if (!ring[i].memory)
			return tess_fail(TESS_ENOMEM, "out of memory");
		memset(ring[i].memory, i + 1, BUCKET);
	}
	return TESS_OK;
}

int main(int argc, char **argv)
{
	uint64_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) << 20 : 0;
	struct tess_disk *d = NULL;
	char command[32];
	tess_status st;

	if (bytes < BUCKET) {
		fputs("usage: disk DIR MIB [ENGINE]; at least 12 MiB\n", stderr);
		return 2;
	}
	st = tess_option_add("bench/disk.c", tess_disk_options);
	if (!st && argc > 3)
		st = tess_option_set("disk_io", argv[3]);
	if (!st)
		st = make_ring();
	if (!st)
		st = tess_disk_open(argv[1], 0, bytes, &d);
	while (!st && fgets(command, sizeof command, stdin)) {
		int64_t begin = tess_now();

		st = run_disk_command(d, bytes, command);
		printf("%.6f\n", (double)(tess_now() - begin) / 1e9);
		fflush(stdout);
	}
	if (st)
		fprintf(stderr, "disk: %s\n", tess_error());
	tess_disk_close(d);
	for (int32_t i = 0; i < RING; i++)
		free(ring[i].memory);
	return st ? 1 : 0;
}

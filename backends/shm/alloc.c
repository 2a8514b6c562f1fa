#include "alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fd_passing.h"
#include "region.h"
#include "segment.h"
#include "work.h"

/* Status and map of a rank, exchanged while ranks allocate a region. */
struct region_vote {
	int64_t st, map;
};

static tess_status exchange_votes(struct group *g, const char *where, uint64_t fingerprint,
                                  struct region_vote mine, struct region_vote *all)
{
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_ALL_GATHER,
		.dtype = TESS_I64,
		.mem = TESS_HOST,
		.fingerprint = fingerprint,
		.src = &mine,
		.dst = all,
		.count = 2,
		.deadline = tess_now() + g->timeout,
		.where = where,
	};
	void *w;
	tess_status st = shm_start_call(g, &c, &w);

	if (st)
		return st;
	st = shm_work_wait(g, w, c.deadline);
	if (!st)
		shm_work_release(g, w);
	return st;
}

/* Checks available memory: a memfd may grow until the kernel kills processes for it. */
static bool has_free_memory(size_t bytes)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kib = UINT64_MAX;
	char line[128];

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return bytes / 1024 < kib;
}

/* Creates a region on rank 0, and passes it to the other ranks before they receive it. */
static tess_status create_region(struct group *g, uint64_t bytes, struct map **out)
{
	int fd;
	tess_status st;

	if (!has_free_memory(bytes))
		return g->host->fail(TESS_ENOMEM,
		                     "%llu bytes of shared memory exceed the available memory",
		                     (unsigned long long)bytes);
	st = segment_file(g, bytes, &fd);
	if (st)
		return st;
	st = segment_map(g, fd, bytes, out);
	for (int32_t r = 1; r < g->nranks && !st; r++)
		if (g->socket[r] >= 0)
			st = fd_passing_send(g, r, fd);
	close(fd);
	return st;
}

static tess_status attach_region(struct group *g, uint64_t bytes, const struct region_vote *first,
                                 struct map **out)
{
	int fd;
	tess_status st;

	if (g->socket[0] < 0)
		return segment_share(g, (struct map *)(uintptr_t)first->map, out);
	st = fd_passing_receive(g, bytes, &fd);
	if (st)
		return st;
	st = segment_map(g, fd, bytes, out);
	close(fd);
	return st;
}

/* Exchanges the status of all ranks; a failure of one rank fails all. */
static tess_status agree_on_region(struct group *g, const char *where, uint64_t fingerprint,
                                   tess_status st, const struct map *map, struct region_vote *words)
{
	struct region_vote mine = { .st = st, .map = (int64_t)(uintptr_t)map };
	tess_status exchanged =
		g->failed ? g->failed : exchange_votes(g, where, fingerprint, mine, words);

	if (exchanged)
		return exchanged;
	for (int32_t r = 0; r < g->nranks; r++)
		if (words[r].st && !st)
			return g->host->fail((tess_status)words[r].st, "%s: no memory on rank %d",
			                     where, (int)g->world[r]);
	return st;
}

static tess_status make_region(struct group *g, uint64_t bytes, uint64_t all, struct map **out)
{
	struct region_vote *words = calloc((size_t)g->nranks, sizeof *words);
	char where[WHERE];
	tess_status st = words ? TESS_OK : g->host->fail(TESS_ENOMEM, "out of memory");

	if (st)
		return st;
	snprintf(where, sizeof where, "alloc of %llu bytes", (unsigned long long)bytes);
	if (bytes > UINT64_MAX / 2 / (uint64_t)g->nranks)
		st = g->host->fail(TESS_ENOMEM, "%s: exceeds the address space", where);
	else if (!g->rank)
		st = create_region(g, all, out);
	st = agree_on_region(g, where, bytes, st, *out, words);
	if (!st) {
		if (g->rank)
			st = attach_region(g, all, &words[0], out);
		st = agree_on_region(g, where, ~bytes, st, *out, words);
	}
	free(words);
	return st;
}

/*
 * Allocates a region. Parts begin a few lines after a page: equal offsets in two of them then fall
 * into different sets of a cache.
 */
tess_status region_alloc(void *self, uint64_t bytes, void **mine, void **peers)
{
	struct group *g = self;
	uint64_t stride = (bytes + 4095) / 4096 * 4096 + 17 * 64;
	struct region *region = calloc(1, sizeof *region);
	struct map *map = NULL;
	tess_status st = region ? TESS_OK : g->host->fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = make_region(g, bytes, stride * (uint64_t)g->nranks, &map);
	if (st) {
		segment_unmap(map);
		free(region);
		return st;
	}
	region_add(g, region, map, bytes, stride);
	*mine = map->base + stride * (uint64_t)g->rank;
	for (int32_t r = 0; r < g->nranks; r++)
		peers[r] = map->base + stride * (uint64_t)r;
	return TESS_OK;
}

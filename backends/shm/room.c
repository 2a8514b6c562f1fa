/* room.c - memory from alloc: one piece for all ranks, of which each has a part. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shm.h"

/* What ranks tell each other while they make a room. */
struct word {
	int64_t st, map;
};

static tess_status tell(struct group *g, const char *where, uint64_t print, struct word mine,
                        struct word *all)
{
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_ALL_GATHER,
		.dtype = TESS_I64,
		.mem = TESS_HOST,
		.fingerprint = print,
		.src = &mine,
		.dst = all,
		.count = 2,
		.deadline = bell_now() + g->timeout,
		.where = where,
	};
	struct work *w;
	tess_status st = work_start(g, &c, false, &w);

	if (st)
		return st;
	st = work_wait(g, w, c.deadline);
	if (!st)
		work_release(g, w);
	return st;
}

/* Asked before: a memfd grows until the kernel ends processes to make room for it. */
static bool is_there(size_t bytes)
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

/* Rank 0: makes it and gives it to all before they ask for it. */
static tess_status found_room(struct group *g, uint64_t bytes, struct map **out)
{
	int fd;
	tess_status st;

	if (!is_there(bytes))
		return g->host->fail(TESS_ENOMEM,
		                     "%llu bytes of shared memory are more than there is",
		                     (unsigned long long)bytes);
	st = segment_file(g, bytes, &fd);
	if (st)
		return st;
	st = segment_map(g, fd, bytes, out);
	for (int32_t r = 1; r < g->nranks && !st; r++)
		if (g->line[r] >= 0)
			st = line_give(g, r, fd);
	close(fd);
	return st;
}

static tess_status join_room(struct group *g, uint64_t bytes, const struct word *first,
                             struct map **out)
{
	int fd;
	tess_status st;

	if (g->line[0] < 0)
		return segment_share(g, (struct map *)(uintptr_t)first->map, out);
	st = line_take(g, bytes, &fd);
	if (st)
		return st;
	st = segment_map(g, fd, bytes, out);
	close(fd);
	return st;
}

/* How a rank fares is told to all, and what the others say is its fate as well. */
static tess_status agree(struct group *g, const char *where, uint64_t print, tess_status st,
                         const struct map *map, struct word *words)
{
	struct word mine = { .st = st, .map = (int64_t)(uintptr_t)map };
	tess_status told = g->failed ? g->failed : tell(g, where, print, mine, words);

	if (told)
		return told;
	for (int32_t r = 0; r < g->nranks; r++)
		if (words[r].st && !st)
			return g->host->fail((tess_status)words[r].st,
			                     "%s: rank %d has no memory for it", where,
			                     (int)g->world[r]);
	return st;
}

static tess_status make_room(struct group *g, uint64_t bytes, uint64_t all, struct map **out)
{
	struct word *words = calloc((size_t)g->nranks, sizeof *words);
	char where[WHERE];
	tess_status st = words ? TESS_OK : g->host->fail(TESS_ENOMEM, "out of memory");

	if (st)
		return st;
	snprintf(where, sizeof where, "alloc of %llu bytes", (unsigned long long)bytes);
	if (bytes > UINT64_MAX / 2 / (uint64_t)g->nranks)
		st = g->host->fail(TESS_ENOMEM, "%s: beyond all memory", where);
	else if (!g->rank)
		st = found_room(g, all, out);
	st = agree(g, where, bytes, st, *out, words);
	if (!st) {
		if (g->rank)
			st = join_room(g, all, &words[0], out);
		st = agree(g, where, ~bytes, st, *out, words);
	}
	free(words);
	return st;
}

/*
 * Parts begin some lines after a page, so that what lies at the same place in two of them does not
 * fall into the same set of a cache.
 */
tess_status room_alloc(struct group *g, uint64_t bytes, void **mine, void **peers)
{
	uint64_t stride = (bytes + 4095) / 4096 * 4096 + 17 * 64;
	struct room *room = calloc(1, sizeof *room);
	struct map *map = NULL;
	tess_status st = room ? TESS_OK : g->host->fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = make_room(g, bytes, stride * (uint64_t)g->nranks, &map);
	if (st) {
		segment_unmap(map);
		free(room);
		return st;
	}
	*room = (struct room){ .next = g->rooms, .map = map, .bytes = bytes, .stride = stride };
	room->id = ++g->nrooms;
	g->rooms = room;
	*mine = map->base + stride * (uint64_t)g->rank;
	for (int32_t r = 0; r < g->nranks; r++)
		peers[r] = map->base + stride * (uint64_t)r;
	return TESS_OK;
}

void room_free(struct group *g, void *mine)
{
	for (struct room **at = &g->rooms, *room; (room = *at); at = &room->next)
		if (room->map->base + room->stride * (uint64_t)g->rank == mine) {
			*at = room->next;
			segment_unmap(room->map);
			free(room);
			return;
		}
}

struct ref room_find(const struct group *g, const void *p, uint64_t bytes)
{
	for (const struct room *room = g->rooms; room; room = room->next) {
		uintptr_t begin = (uintptr_t)(room->map->base + room->stride * (uint64_t)g->rank),
			  at = (uintptr_t)p;

		if (at >= begin && at - begin <= room->bytes && room->bytes - (at - begin) >= bytes)
			return (struct ref){ .room = room->id, .at = at - begin };
	}
	return (struct ref){ .room = 0 };
}

char *room_at(const struct group *g, int32_t r, struct ref at, uint64_t bytes)
{
	const struct room *room = g->rooms;

	while (room && room->id != at.room)
		room = room->next;
	if (!room || at.at > room->bytes || room->bytes - at.at < bytes)
		return NULL;
	return room->map->base + room->stride * (uint64_t)r + at.at;
}

/*
 * segment.c - creates shared memory on rank 0, and passes it to the other ranks.
 *
 * A memfd has no name: its memory is freed when the last rank has ended, in any way. Rank 0 creates
 * it and passes its descriptor (fd_passing.c). All waiting is done in the store, which has
 * deadlines and reports failures. Ranks that are threads of one process share one mapping.
 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "fd_passing.h"

enum { ANSWER_NS = 100000000, SPIN = 500, SMALL = 4 << 10, SMALL_OVERSUBSCRIBED = 8 << 10 };

/* An entry in the store, published by each rank except rank 0. */
struct rank_arrival {
	int64_t thread; /* 1: a thread of rank 0's process */
	cpu_set_t cpus; /* CPUs available to the rank */
};

/* ---- layout ---------------------------------------------------------------------------------- */

static size_t slots_offset(int32_t nranks)
{
	return (sizeof(struct segment_header) + (size_t)nranks * sizeof(struct rank_slot) + 4095) /
	       4096 * 4096;
}

static size_t pairs_offset(int32_t nranks)
{
	return slots_offset(nranks) + (size_t)nranks * (SLOTS / CHUNK) * (TABLE + CHUNK);
}

static size_t segment_bytes(int32_t nranks)
{
	return pairs_offset(nranks) + (size_t)nranks * (size_t)nranks * sizeof(struct pair);
}

struct pair *segment_pair(const struct group *g, int32_t from, int32_t to)
{
	struct pair *pairs = (struct pair *)(void *)(g->map->base + pairs_offset(g->nranks));

	return &pairs[from * g->nranks + to];
}

/* ---- maps ------------------------------------------------------------------------------------ */

/*
 * The maps of this process. A pointer to one, passed by another rank, is valid only while it is
 * listed: a group that fails to open may unmap the memory of another rank.
 */
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;
static struct map *maps;

tess_status segment_map(const struct group *g, int fd, size_t bytes, struct map **out)
{
	struct map *m = malloc(sizeof *m);
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

	if (!m || base == MAP_FAILED) {
		if (base != MAP_FAILED)
			munmap(base, bytes);
		free(m);
		return g->host->fail(TESS_ENOMEM, "no memory to map %zu bytes of shared memory: %s",
		                     bytes, strerror(errno));
	}
	pthread_mutex_lock(&maps_lock);
	*m = (struct map){ .next = maps, .base = base, .bytes = bytes, .users = 1 };
	maps = m;
	pthread_mutex_unlock(&maps_lock);
	*out = m;
	return TESS_OK;
}

tess_status segment_share(const struct group *g, struct map *theirs, struct map **out)
{
	struct map *m;

	pthread_mutex_lock(&maps_lock);
	for (m = maps; m && m != theirs;)
		m = m->next;
	if (m)
		m->users++;
	pthread_mutex_unlock(&maps_lock);
	if (!m)
		return g->host->fail(TESS_EABORTED, "rank %d has left the group", (int)g->world[0]);
	*out = m;
	return TESS_OK;
}

void segment_unmap(struct map *m)
{
	bool last;

	if (!m)
		return;
	pthread_mutex_lock(&maps_lock);
	last = !--m->users;
	for (struct map **at = &maps; last && *at; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	pthread_mutex_unlock(&maps_lock);
	if (!last)
		return;
	munmap(m->base, m->bytes);
	free(m);
}

tess_status segment_file(const struct group *g, size_t bytes, int *out)
{
	int fd = memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return g->host->fail(TESS_EIO, "no shared memory: memfd_create: %s",
		                     strerror(errno));
	if (ftruncate(fd, (off_t)bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		tess_status st = g->host->fail(TESS_ENOMEM, "no %zu bytes of shared memory: %s",
		                               bytes, strerror(errno));

		close(fd);
		return st;
	}
	*out = fd;
	return TESS_OK;
}

static bool fill_random(void *out, size_t n)
{
	return getrandom(out, n, 0) == (ssize_t)n;
}

/* ---- opening --------------------------------------------------------------------------------- */

static tess_status segment_set_key(const struct group *g, const struct tess_group_entry *how,
                                   const char *what, const void *val, size_t len)
{
	char key[256];

	snprintf(key, sizeof key, "%s/shm/%s", g->name, what);
	return how->store->set(how->store->self, key, val, len);
}

static tess_status segment_get_key(const struct group *g, const struct tess_group_entry *how,
                                   const char *what, int32_t r, void *val, size_t len)
{
	uint64_t bytes = len;
	char key[256];
	tess_status st;

	snprintf(key, sizeof key, "%s/shm/%s", g->name, what);
	memset(val, 0, len);
	st = how->store->get(how->store->self, key, how->deadline, val, &bytes);
	if (st == TESS_ETIMEOUT)
		return g->host->fail(st, "rank %d did not arrive by the deadline",
		                     (int)g->world[r]);
	return st;
}

/* Waits for the arrival of rank r, while accepting connections. */
static tess_status await_arrival(struct group *g, const struct tess_group_entry *how, int32_t r,
                                 int listener, struct unauthenticated *pending,
                                 const struct segment_address *a, struct rank_arrival *out)
{
	struct tess_group_entry soon = *how;
	char key[16];
	tess_status st;

	snprintf(key, sizeof key, "%d", (int)r);
	do {
		soon.deadline = tess_now() + ANSWER_NS;
		if (soon.deadline > how->deadline)
			soon.deadline = how->deadline;
		st = segment_get_key(g, &soon, key, r, out, sizeof *out);
		fd_passing_accept(g, listener, pending, a);
	} while (st == TESS_ETIMEOUT && soon.deadline < how->deadline);
	return st;
}

static tess_status hand_over_segment(struct group *g, const struct tess_group_entry *how,
                                     int listener, const struct segment_address *a, int fd)
{
	struct unauthenticated pending = { .n = 0 };
	cpu_set_t all;
	tess_status st = TESS_OK;

	CPU_ZERO(&all);
	sched_getaffinity(0, sizeof all, &all);
	for (int32_t r = 1; r < g->nranks && !st; r++) {
		struct rank_arrival other;

		st = await_arrival(g, how, r, listener, &pending, a, &other);
		if (st)
			break;
		CPU_OR(&all, &all, &other.cpus);
		if (!other.thread && g->socket[r] < 0)
			st = g->host->fail(TESS_EPEER, "rank %d has not connected",
			                   (int)g->world[r]);
	}
	g->header->cpus = CPU_COUNT(&all);
	for (int32_t r = 1; r < g->nranks && !st; r++)
		if (g->socket[r] >= 0)
			st = fd_passing_send(g, r, fd);
	fd_passing_drop(&pending);
	if (st || g->nranks == 1)
		return st;
	return segment_set_key(g, how, "ready", "yes", 3);
}

static tess_status create_segment(struct group *g, const struct tess_group_entry *how,
                                  const unsigned char *process)
{
	struct segment_address a = { .pid = getpid() };
	unsigned char name[16];
	int listener = -1, fd = -1;
	tess_status st;

	memcpy(a.process, process, sizeof a.process);
	if (!fill_random(a.token, sizeof a.token) || !fill_random(name, sizeof name))
		return g->host->fail(TESS_EIO, "no random bytes: %s", strerror(errno));
	for (size_t i = 0; i < sizeof name; i++)
		snprintf(a.name + 2 * i, 3, "%02x", name[i]);
	st = segment_file(g, segment_bytes(g->nranks), &fd);
	if (!st)
		st = segment_map(g, fd, segment_bytes(g->nranks), &g->map);
	if (st)
		goto out;
	a.map = g->map;
	g->header = (struct segment_header *)(void *)g->map->base;
	memcpy(g->header->token, a.token, sizeof a.token);
	if (g->nranks > 1)
		st = fd_passing_listen(g, a.name, &listener);
	if (!st && g->nranks > 1)
		st = segment_set_key(g, how, "at", &a, sizeof a);
	if (!st)
		st = hand_over_segment(g, how, listener, &a, fd);
out:
	if (listener >= 0)
		close(listener);
	if (fd >= 0)
		close(fd);
	return st;
}

static tess_status join_segment(struct group *g, const struct tess_group_entry *how,
                                const unsigned char *process)
{
	struct rank_arrival here = { .thread = 0 };
	struct segment_address a;
	char key[16], yes[4];
	int fd = -1;
	tess_status st = segment_get_key(g, how, "at", 0, &a, sizeof a);

	if (st)
		return st;
	here.thread = a.pid == getpid() && !memcmp(a.process, process, sizeof a.process);
	sched_getaffinity(0, sizeof here.cpus, &here.cpus);
	a.name[sizeof a.name - 1] = '\0';
	st = here.thread ? segment_share(g, a.map, &g->map)
	                 : fd_passing_connect(g, &a, how->deadline);
	snprintf(key, sizeof key, "%d", (int)g->rank);
	if (!st)
		st = segment_set_key(g, how, key, &here, sizeof here);
	if (!st)
		st = segment_get_key(g, how, "ready", 0, yes, sizeof yes);
	if (!st && !here.thread)
		st = fd_passing_receive(g, segment_bytes(g->nranks), &fd);
	if (!st && !here.thread)
		st = segment_map(g, fd, segment_bytes(g->nranks), &g->map);
	if (fd >= 0)
		close(fd);
	if (st)
		return st;
	g->header = (struct segment_header *)(void *)g->map->base;
	if (memcmp(g->header->token, a.token, sizeof a.token))
		return g->host->fail(TESS_EPERM, "rank %d passed the memory of another group",
		                     (int)g->world[0]);
	return TESS_OK;
}

tess_status segment_open(struct group *g, const struct tess_group_entry *how,
                         const unsigned char *process)
{
	tess_status st = g->rank ? join_segment(g, how, process) : create_segment(g, how, process);

	if (st)
		return st;
	/* With more ranks than CPUs, a spinning rank keeps the awaited one off the CPU. */
	g->spin = g->header->cpus < g->nranks ? 0 : SPIN;
	g->chunk = g->header->cpus < g->nranks || g->nranks > FEW_RANKS ? CHUNK_LARGE : CHUNK;
	g->slots = SLOTS / g->chunk;
	g->slot = g->map->base + slots_offset(g->nranks);
	g->small = g->header->cpus < g->nranks ? SMALL_OVERSUBSCRIBED : SMALL;
	return st;
}

void segment_close(struct group *g)
{
	for (int32_t r = 0; g->socket && r < g->nranks; r++)
		if (g->socket[r] >= 0)
			close(g->socket[r]);
	segment_unmap(g->map);
}

/*
 * segment.c - shared memory, and how it gets from rank 0 to the others.
 *
 * A memfd has no name: when the last rank is gone, however it went, so is the memory. Rank 0 makes
 * it and hands its descriptor over (line.c). All waiting is done in the store, which knows
 * deadlines and the dead. Ranks that are threads of one process share one mapping.
 */
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

#include "shm.h"

enum { ANSWER_NS = 100000000, SPIN = 500, SMALL = FEW, SMALL_CROWDED = 8 << 10 };

/* What the others say in the store. */
struct coming {
	int64_t thread; /* of rank 0's process */
	cpu_set_t cpus; /* that it may run on */
};

/* ---- layout ---------------------------------------------------------------------------------- */

static size_t slots_at(int32_t nranks)
{
	return (sizeof(struct hall) + (size_t)nranks * sizeof(struct seat) + 4095) / 4096 * 4096;
}

static size_t pairs_at(int32_t nranks)
{
	return slots_at(nranks) + (size_t)nranks * (SLOTS / CHUNK) * (TABLE + CHUNK);
}

static size_t segment_bytes(int32_t nranks)
{
	return pairs_at(nranks) + (size_t)nranks * (size_t)nranks * sizeof(struct pair);
}

/* Pages that come while copies are timed would tell nothing of the copies. */
void segment_touch(struct group *g)
{
	char *first = segment_slot(g, g->rank, 0, true);

	madvise(first - (uintptr_t)first % 4096, g->slots * (TABLE + g->chunk),
	        MADV_POPULATE_WRITE);
	for (int i = 0; i < TESS_STORE_POLICIES; i++)
		g->fills[i].settles = (int32_t)g->slots;
	g->filling = true;
}

struct pair *segment_pair(const struct group *g, int32_t from, int32_t to)
{
	struct pair *pairs = (struct pair *)(void *)(g->map->base + pairs_at(g->nranks));

	return &pairs[from * g->nranks + to];
}

/* ---- maps ------------------------------------------------------------------------------------ */

/*
 * The maps of this process. A pointer to one, handed over by another rank, is only good as long as it
 * is here: a group that fails while it is opened unmaps what another rank is about to enter.
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
		return g->host->fail(TESS_ENOMEM, "no room to map %zu bytes of shared memory: %s",
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

/* A memfd of a size that nobody can change. Its pages come when they are written. */
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

static bool random_bytes(void *out, size_t n)
{
	return getrandom(out, n, 0) == (ssize_t)n;
}

/* ---- entering -------------------------------------------------------------------------------- */

static tess_status put(const struct group *g, const struct tess_join *how, const char *what,
                       const void *val, size_t len)
{
	char key[256];

	snprintf(key, sizeof key, "%s/shm/%s", g->name, what);
	return how->store->set(how->store->self, key, val, len);
}

static tess_status get(const struct group *g, const struct tess_join *how, const char *what,
                       int32_t r, void *val, size_t len)
{
	uint64_t room = len;
	char key[256];
	tess_status st;

	snprintf(key, sizeof key, "%s/shm/%s", g->name, what);
	memset(val, 0, len);
	st = how->store->get(how->store->self, key, how->deadline, val, &room);
	if (st == TESS_ETIMEOUT)
		return g->host->fail(st, "rank %d did not come until the deadline",
		                     (int)g->world[r]);
	return st;
}

/* What rank r says; calls are answered meanwhile. */
static tess_status await_rank(struct group *g, const struct tess_join *how, int32_t r, int ear,
                              struct callers *callers, const struct address *a, struct coming *out)
{
	struct tess_join soon = *how;
	char key[16];
	tess_status st;

	snprintf(key, sizeof key, "%d", (int)r);
	do {
		soon.deadline = bell_now() + ANSWER_NS;
		if (soon.deadline > how->deadline)
			soon.deadline = how->deadline;
		st = get(g, &soon, key, r, out, sizeof *out);
		line_answer(g, ear, callers, a);
	} while (st == TESS_ETIMEOUT && soon.deadline < how->deadline);
	return st;
}

static tess_status hand_over(struct group *g, const struct tess_join *how, int ear,
                             const struct address *a, int fd)
{
	struct callers callers = { .n = 0 };
	cpu_set_t all;
	tess_status st = TESS_OK;

	CPU_ZERO(&all);
	sched_getaffinity(0, sizeof all, &all);
	for (int32_t r = 1; r < g->nranks && !st; r++) {
		struct coming other;

		st = await_rank(g, how, r, ear, &callers, a, &other);
		if (st)
			break;
		CPU_OR(&all, &all, &other.cpus);
		if (!other.thread && g->line[r] < 0)
			st = g->host->fail(TESS_EPEER, "rank %d has not called", (int)g->world[r]);
	}
	g->hall->cpus = CPU_COUNT(&all);
	for (int32_t r = 1; r < g->nranks && !st; r++)
		if (g->line[r] >= 0)
			st = line_give(g, r, fd);
	line_hang_up(&callers);
	if (st || g->nranks == 1)
		return st;
	return put(g, how, "ready", "yes", 3);
}

static tess_status enter_first(struct group *g, const struct tess_join *how,
                               const unsigned char *process)
{
	struct address a = { .pid = getpid() };
	unsigned char name[16];
	int ear = -1, fd = -1;
	tess_status st;

	memcpy(a.process, process, sizeof a.process);
	if (!random_bytes(a.token, sizeof a.token) || !random_bytes(name, sizeof name))
		return g->host->fail(TESS_EIO, "no random bytes: %s", strerror(errno));
	for (size_t i = 0; i < sizeof name; i++)
		snprintf(a.name + 2 * i, 3, "%02x", name[i]);
	st = segment_file(g, segment_bytes(g->nranks), &fd);
	if (!st)
		st = segment_map(g, fd, segment_bytes(g->nranks), &g->map);
	if (st)
		goto out;
	a.map = g->map;
	g->hall = (struct hall *)(void *)g->map->base;
	memcpy(g->hall->token, a.token, sizeof a.token);
	if (g->nranks > 1)
		st = line_listen(g, a.name, &ear);
	if (!st && g->nranks > 1)
		st = put(g, how, "at", &a, sizeof a);
	if (!st)
		st = hand_over(g, how, ear, &a, fd);
out:
	if (ear >= 0)
		close(ear);
	if (fd >= 0)
		close(fd);
	return st;
}

static tess_status enter_next(struct group *g, const struct tess_join *how,
                              const unsigned char *process)
{
	struct coming here = { .thread = 0 };
	struct address a;
	char key[16], yes[4];
	int fd = -1;
	tess_status st = get(g, how, "at", 0, &a, sizeof a);

	if (st)
		return st;
	here.thread = a.pid == getpid() && !memcmp(a.process, process, sizeof a.process);
	sched_getaffinity(0, sizeof here.cpus, &here.cpus);
	a.name[sizeof a.name - 1] = '\0';
	st = here.thread ? segment_share(g, a.map, &g->map) : line_call(g, &a, how->deadline);
	snprintf(key, sizeof key, "%d", (int)g->rank);
	if (!st)
		st = put(g, how, key, &here, sizeof here);
	if (!st)
		st = get(g, how, "ready", 0, yes, sizeof yes);
	if (!st && !here.thread)
		st = line_take(g, segment_bytes(g->nranks), &fd);
	if (!st && !here.thread)
		st = segment_map(g, fd, segment_bytes(g->nranks), &g->map);
	if (fd >= 0)
		close(fd);
	if (st)
		return st;
	g->hall = (struct hall *)(void *)g->map->base;
	if (memcmp(g->hall->token, a.token, sizeof a.token))
		return g->host->fail(TESS_EPERM, "rank %d handed over the memory of another group",
		                     (int)g->world[0]);
	return TESS_OK;
}

tess_status segment_enter(struct group *g, const struct tess_join *how,
                          const unsigned char *process)
{
	tess_status st = g->rank ? enter_next(g, how, process) : enter_first(g, how, process);

	if (st)
		return st;
	g->fenced = bell_fenced();
	/* With more ranks than CPUs, one that spins keeps off the one that it waits for. */
	g->spin = g->hall->cpus < g->nranks ? 0 : SPIN;
	g->chunk = g->hall->cpus < g->nranks || g->nranks > FEW_RANKS ? CHUNK_LARGE : CHUNK;
	g->slots = SLOTS / g->chunk;
	g->slot = g->map->base + slots_at(g->nranks);
	g->small = g->hall->cpus < g->nranks ? SMALL_CROWDED : SMALL;
	return st;
}

void segment_leave(struct group *g)
{
	for (struct room *next; g->rooms; g->rooms = next) {
		next = g->rooms->next;
		segment_unmap(g->rooms->map);
		free(g->rooms);
	}
	for (int32_t r = 0; g->line && r < g->nranks; r++)
		if (g->line[r] >= 0)
			close(g->line[r]);
	segment_unmap(g->map);
}

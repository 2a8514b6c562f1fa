/*
 * segment.c - shared memory, and how it gets from rank 0 to the others.
 *
 * A memfd has no name: when the last rank is gone, however it went, so is the memory. Rank 0 makes it and
 * hands its descriptor over an abstract Unix socket, whose random name and token the others know from the
 * store; both ends look at the user at the other end. All waiting is done in the store, which knows deadlines
 * and the dead: what is then read from a socket was written before, and a stranger who connects and says
 * nothing, or something else, holds nobody up. Ranks that are threads of one process share one mapping.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm.h"

enum { SPIN = 500, SMALL = 2048, SMALL_CROWDED = 8 << 10 };

struct address { /* what rank 0 says in the store */
	int64_t pid;
	unsigned char process[16], token[16];
	struct map *map; /* for threads of this process */
	char name[40]; /* of the socket, behind a 0 */
};

struct coming {
	int64_t thread;
	cpu_set_t cpus;
}; /* what the others say there */

struct greeting {
	unsigned char token[16];
	int32_t rank, zero;
};

/* ---- layout --------------------------------------------------------------------------------------------- */

static size_t slots_at(int32_t nranks)
{
	return (sizeof(struct hall) + (size_t)nranks * sizeof(struct seat) + 4095) / 4096 * 4096;
}

static size_t pairs_at(int32_t nranks)
{
	return slots_at(nranks) + (size_t)nranks * 2 * (TABLE + CHUNK);
}

size_t segment_bytes(int32_t nranks)
{
	return pairs_at(nranks) + (size_t)nranks * (size_t)nranks * sizeof(struct pair);
}

char *segment_slot(const struct group *g, int32_t r, uint64_t round)
{
	return g->map->base + slots_at(g->nranks) + ((size_t)r * 2 + (round & 1)) * (TABLE + CHUNK);
}

struct pair *segment_pair(const struct group *g, int32_t from, int32_t to)
{
	struct pair *pairs = (struct pair *)(void *)(g->map->base + pairs_at(g->nranks));

	return &pairs[from * g->nranks + to];
}

/* ---- maps ------------------------------------------------------------------------------------------------- */

static tess_status map_file(const struct group *g, int fd, size_t bytes, struct map **out)
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
	m->base = base;
	m->bytes = bytes;
	atomic_init(&m->users, 1);
	*out = m;
	return TESS_OK;
}

static void unmap(struct map *m)
{
	if (!m || atomic_fetch_sub(&m->users, 1) > 1)
		return;
	munmap(m->base, m->bytes);
	free(m);
}

/* A memfd of a size that nobody can change. Its pages come when they are written. */
static tess_status make_file(const struct group *g, size_t bytes, int *out)
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

/* ---- sockets ----------------------------------------------------------------------------------------------- */

static bool random_bytes(void *out, size_t n)
{
	return getrandom(out, n, 0) == (ssize_t)n;
}

static bool is_ours(int fd)
{
	struct ucred who;
	socklen_t len = sizeof who;

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) && who.uid == geteuid();
}

static socklen_t abstract(const char *name, struct sockaddr_un *at)
{
	size_t len = strlen(name);

	memset(at, 0, sizeof *at);
	at->sun_family = AF_UNIX;
	memcpy(at->sun_path + 1, name, len);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

static tess_status listen_at(const struct group *g, const char *name, int *out)
{
	struct sockaddr_un at;
	socklen_t len = abstract(name, &at);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) || listen(fd, SOMAXCONN)) {
		if (fd >= 0)
			close(fd);
		return g->host->fail(TESS_EIO, "no socket to hand shared memory over: %s",
		                     strerror(errno));
	}
	*out = fd;
	return TESS_OK;
}

static tess_status call(struct group *g, const struct address *a, int64_t deadline)
{
	struct greeting hello = { .rank = g->rank };
	struct sockaddr_un at;
	socklen_t len = abstract(a->name, &at);
	int64_t left = deadline - bell_now();
	struct timeval most = { .tv_sec = left > 0 ? left / 1000000000 + 1 : 1 };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(hello.token, a->token, sizeof hello.token);
	if (fd < 0)
		return g->host->fail(TESS_EIO, "no socket: %s", strerror(errno));
	g->line[0] = fd;
	/* a connection is complete before it is accepted; it waits only where strangers fill the queue */
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
	if (connect(fd, (struct sockaddr *)&at, len))
		return g->host->fail(
			TESS_EPEER,
			"no way to rank %d: %s; ranks of one group share a host and its network "
			"namespace, take gloo for others",
			(int)g->world[0], strerror(errno));
	if (!is_ours(fd))
		return g->host->fail(TESS_EPERM, "the socket of rank %d belongs to another user",
		                     (int)g->world[0]);
	if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
		return g->host->fail(TESS_EPEER, "rank %d does not listen: %s", (int)g->world[0],
		                     strerror(errno));
	return TESS_OK;
}

/* Takes the calls that are there; each of `expected` is. Others are hung up on. */
static tess_status answer(struct group *g, int ear, const struct address *a, int32_t expected)
{
	while (expected) {
		int fd = accept4(ear, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct greeting hello;

		if (fd < 0 && (errno == ECONNABORTED || errno == EINTR))
			continue;
		if (fd < 0)
			return g->host->fail(TESS_EPEER, "%d ranks have not called: %s",
			                     (int)expected, strerror(errno));
		if (!is_ours(fd) || recv(fd, &hello, sizeof hello, 0) != sizeof hello ||
		    memcmp(hello.token, a->token, sizeof hello.token) || hello.rank < 1 ||
		    hello.rank >= g->nranks || g->line[hello.rank] >= 0) {
			close(fd);
			continue;
		}
		g->line[hello.rank] = fd;
		expected--;
	}
	return TESS_OK;
}

union control {
	struct cmsghdr head;
	char room[CMSG_SPACE(sizeof(int))];
};

static tess_status give(const struct group *g, int32_t r, int fd)
{
	char byte = 1;
	union control c = { 0 };
	struct iovec v = { &byte, 1 };
	struct msghdr m = {
		.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c
	};

	c.head.cmsg_level = SOL_SOCKET;
	c.head.cmsg_type = SCM_RIGHTS;
	c.head.cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(&c.head), &fd, sizeof fd);
	if (sendmsg(g->line[r], &m, MSG_NOSIGNAL) != 1)
		return g->host->fail(TESS_EPEER, "rank %d did not take the shared memory: %s",
		                     (int)g->world[r], strerror(errno));
	return TESS_OK;
}

/* What rank 0 has given, `bytes` long: it is there already. */
static tess_status take(const struct group *g, size_t bytes, int *out)
{
	char byte;
	union control c = { 0 };
	struct iovec v = { &byte, 1 };
	struct msghdr m = {
		.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c
	};
	struct stat what;
	int fd;

	if (recvmsg(g->line[0], &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1 ||
	    c.head.cmsg_type != SCM_RIGHTS || c.head.cmsg_len != CMSG_LEN(sizeof fd))
		return g->host->fail(TESS_EPEER, "rank %d has not handed its shared memory over",
		                     (int)g->world[0]);
	memcpy(&fd, CMSG_DATA(&c.head), sizeof fd);
	if (fstat(fd, &what) || (uint64_t)what.st_size != bytes) {
		close(fd);
		return g->host->fail(
			TESS_EABI,
			"rank %d handed over %lld bytes of shared memory, not %zu: it runs another "
			"release",
			(int)g->world[0], (long long)what.st_size, bytes);
	}
	*out = fd;
	return TESS_OK;
}

/* ---- entering ---------------------------------------------------------------------------------------------- */

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

static tess_status hand_over(struct group *g, const struct tess_join *how, int ear,
                             const struct address *a, int fd)
{
	struct coming other = { .thread = 0 };
	cpu_set_t all;
	int32_t apart = 0;
	char key[16];
	tess_status st = TESS_OK;

	CPU_ZERO(&all);
	sched_getaffinity(0, sizeof all, &all);
	for (int32_t r = 1; r < g->nranks && !st; r++) {
		snprintf(key, sizeof key, "%d", (int)r);
		st = get(g, how, key, r, &other, sizeof other);
		CPU_OR(&all, &all, &other.cpus);
		apart += !other.thread;
	}
	g->hall->cpus = CPU_COUNT(&all);
	if (!st)
		st = answer(g, ear, a, apart);
	for (int32_t r = 1; r < g->nranks && !st; r++)
		if (g->line[r] >= 0)
			st = give(g, r, fd);
	if (!st && g->nranks > 1)
		st = put(g, how, "ready", "yes", 3);
	return st;
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
	st = make_file(g, segment_bytes(g->nranks), &fd);
	if (!st)
		st = map_file(g, fd, segment_bytes(g->nranks), &g->map);
	if (st)
		goto out;
	a.map = g->map;
	g->hall = (struct hall *)(void *)g->map->base;
	memcpy(g->hall->token, a.token, sizeof a.token);
	if (g->nranks > 1)
		st = listen_at(g, a.name, &ear);
	if (!st && g->nranks > 1)
		st = put(g, how, "at", &a, sizeof a);
	if (!st)
		st = hand_over(g, how, ear, &a, fd);
	if (st)
		g->map = NULL; /* not unmapped: a thread may be about to use it */
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
	if (here.thread) {
		atomic_fetch_add(&a.map->users, 1);
		g->map = a.map;
	} else {
		a.name[sizeof a.name - 1] = '\0';
		st = call(g, &a, how->deadline);
	}
	snprintf(key, sizeof key, "%d", (int)g->rank);
	if (!st)
		st = put(g, how, key, &here, sizeof here);
	if (!st)
		st = get(g, how, "ready", 0, yes, sizeof yes);
	if (!st && !here.thread)
		st = take(g, segment_bytes(g->nranks), &fd);
	if (!st && !here.thread)
		st = map_file(g, fd, segment_bytes(g->nranks), &g->map);
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
	/* With more ranks than CPUs, one that spins keeps off the one that it waits for. */
	g->spin = g->hall->cpus < g->nranks ? 0 : SPIN;
	g->small = g->hall->cpus < g->nranks ? SMALL_CROWDED : SMALL;
	return st;
}

void segment_leave(struct group *g)
{
	for (struct room *next; g->rooms; g->rooms = next) {
		next = g->rooms->next;
		unmap(g->rooms->map);
		free(g->rooms);
	}
	for (int32_t r = 0; g->line && r < g->nranks; r++)
		if (g->line[r] >= 0)
			close(g->line[r]);
	unmap(g->map);
}

/* ---- rooms --------------------------------------------------------------------------------------------------- */

struct word {
	int64_t st, map;
}; /* what ranks tell each other while they make a room */

static tess_status tell(struct group *g, const char *where, uint64_t print, struct word mine,
                        struct word *all)
{
	struct tess_coll c = {
		.size = sizeof c,
		.kind = TESS_ALL_GATHER,
		.dtype = TESS_I64,
		.mem = TESS_HOST,
		.print = print,
		.src = &mine,
		.dst = all,
		.count = 2,
		.deadline = bell_now() + g->timeout,
		.where = where,
	};
	struct work *w;
	tess_status st = work_start(g, &c, &w);

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
	st = make_file(g, bytes, &fd);
	if (st)
		return st;
	st = map_file(g, fd, bytes, out);
	for (int32_t r = 1; r < g->nranks && !st; r++)
		if (g->line[r] >= 0)
			st = give(g, r, fd);
	close(fd);
	return st;
}

static tess_status join_room(struct group *g, uint64_t bytes, const struct word *first,
                             struct map **out)
{
	int fd;
	tess_status st;

	if (g->line[0] < 0) {
		*out = (struct map *)(uintptr_t)first->map;
		atomic_fetch_add(&(*out)->users, 1);
		return TESS_OK;
	}
	st = take(g, bytes, &fd);
	if (st)
		return st;
	st = map_file(g, fd, bytes, out);
	close(fd);
	return st;
}

tess_status room_alloc(struct group *g, uint64_t bytes, void **mine, void **peers)
{
	/* A rank's part begins at a page and a few lines: the same place in two parts is not the same set of a cache */
	uint64_t stride = (bytes + 4095) / 4096 * 4096 + 17 * 64,
		 all = stride * (uint64_t)g->nranks;
	struct word word = { 0, 0 }, *words = calloc((size_t)g->nranks, sizeof *words);
	struct room *room = calloc(1, sizeof *room);
	char where[WHERE];
	tess_status st = TESS_OK, told;

	snprintf(where, sizeof where, "alloc of %llu bytes", (unsigned long long)bytes);
	if (!words || !room) {
		st = g->host->fail(TESS_ENOMEM, "out of memory");
		goto out;
	}
	if (bytes > UINT64_MAX / 2 / (uint64_t)g->nranks)
		word.st = g->host->fail(TESS_ENOMEM, "%s: beyond all memory", where);
	else if (!g->rank)
		word.st = found_room(g, all, &room->map);
	word.map = (int64_t)(uintptr_t)room->map;
	st = tell(g, where, bytes, word, words);
	for (int32_t r = 0; r < g->nranks && !st; r++)
		st = (tess_status)words[r].st;
	if (!st && g->rank)
		st = join_room(g, all, &words[0], &room->map);
	word.st = st;
	told = g->failed ? st : tell(g, where, ~bytes, word, words);
	for (int32_t r = 0; r < g->nranks && !st; r++)
		st = told ? told : (tess_status)words[r].st;
	if (st) {
		if (!g->failed && !word.st)
			g->host->fail(st, "%s: another rank has no memory for it", where);
		goto out;
	}
	*room = (struct room){ .next = g->rooms,
		               .map = room->map,
		               .id = ++g->nrooms,
		               .bytes = bytes,
		               .stride = stride };
	g->rooms = room;
	*mine = room->map->base + stride * (uint64_t)g->rank;
	for (int32_t r = 0; r < g->nranks; r++)
		peers[r] = room->map->base + stride * (uint64_t)r;
	room = NULL;
out:
	if (room)
		unmap(room->map);
	free(room);
	free(words);
	return st;
}

void room_free(struct group *g, void *mine)
{
	for (struct room **at = &g->rooms, *room; (room = *at); at = &room->next)
		if (room->map->base + room->stride * (uint64_t)g->rank == mine) {
			*at = room->next;
			unmap(room->map);
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

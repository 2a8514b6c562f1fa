/*
 * tess-backend-loopback.so: ranks are threads of one process, or one rank alone. Data really move,
 * between the ranks' own buffers; nothing is sent, and every call that does not fit is an error on
 * all ranks.
 *
 * The ranks of a group share a room. A call has a number, the same on all ranks; the first rank
 * that comes opens its meet, the last one starts the move. Ranks wait by a short spin, then on the
 * meet's condition.
 */
#include "loopback.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MOST = 1024, PIECE = 128 << 10, SENTENCE = 1024, YIELDS = 20 };

const struct tess_host *loopback_host;

/*
 * The open rooms of this process: all that its ranks have in common. A pointer handed over through
 * the store would not do: a job that fails while it is opened frees what another rank is about to
 * enter.
 */
static pthread_mutex_t rooms_lock = PTHREAD_MUTEX_INITIALIZER;
static struct room *rooms;
static uint64_t last_id;

struct room {
	struct room *next; /* in `rooms`, under their lock, with id and inside */
	uint64_t id;
	int32_t inside; /* ranks that have it open */
	pthread_mutex_t lock; /* of all that follows */
	int32_t nranks;
	int32_t *world; /* the world rank of each, for sentences */
	int32_t spin;
	bool failed; /* then no piece is moved any more */
	atomic_bool stop; /* the same, for those who spin */
	tess_status why;
	char sentence[SENTENCE];
	int32_t moving; /* pieces that are being moved now */
	pthread_cond_t still; /* ... none */
	struct meet *open, *spare;
};

struct member { /* a rank in a room */
	struct room *room;
	int32_t rank;
	uint64_t calls;
	uint64_t *sent, *received; /* messages so far, by rank */
};

/* ---- failing --------------------------------------------------------------------------------- */

static void TESS_PRINTF(3, 4) fail_room(struct room *room, tess_status why, const char *fmt, ...)
{
	va_list ap;

	if (room->failed)
		return;
	va_start(ap, fmt);
	vsnprintf(room->sentence, sizeof room->sentence, fmt, ap);
	va_end(ap);
	room->why = why;
	room->failed = true;
	atomic_store(&room->stop, true);
	for (struct meet *m = room->open; m; m = m->next)
		pthread_cond_broadcast(&m->changed);
}

static tess_status sentence(const struct room *room)
{
	return loopback_host->fail(room->why, "%s", room->sentence);
}

/*
 * With the lock: until nobody touches a buffer. Moves are short, and none begins after a failure.
 */
static void await_still(struct room *room)
{
	while (room->moving)
		pthread_cond_wait(&room->still, &room->lock);
}

static void abort_group(void *self)
{
	struct member *me = self;

	pthread_mutex_lock(&me->room->lock);
	fail_room(me->room, TESS_EABORTED, "the group was aborted");
	pthread_mutex_unlock(&me->room->lock);
}

/* ---- meets ----------------------------------------------------------------------------------- */

static struct meet *make_meet(struct room *room)
{
	struct meet *m = calloc(1, sizeof *m);
	pthread_condattr_t attr;

	if (m)
		m->call = calloc((size_t)room->nranks, sizeof *m->call);
	if (!m || !m->call) {
		free(m);
		return NULL;
	}
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&m->changed, &attr);
	pthread_condattr_destroy(&attr);
	m->room = room;
	return m;
}

static void free_meets(struct meet *m)
{
	for (struct meet *next; m; m = next) {
		next = m->next;
		pthread_cond_destroy(&m->changed);
		free(m->call);
		free(m);
	}
}

/* The meet of a number, opened if this rank is the first; from < 0: of a collective. */
static struct meet *find_meet(struct room *room, uint64_t number, int32_t from, int32_t to)
{
	struct meet *m = room->open;

	while (m && (m->number != number || m->from != from || m->to != to))
		m = m->next;
	if (m)
		return m;
	m = room->spare;
	if (m)
		room->spare = m->next;
	else
		m = make_meet(room);
	if (!m)
		return NULL;
	m->number = number;
	m->from = from;
	m->to = to;
	m->expected = from < 0 ? room->nranks : 2;
	m->arrived = m->released = m->taken = m->moved = 0;
	atomic_store(&m->state, GATHERING);
	for (int32_t r = 0; r < room->nranks; r++)
		m->call[r].kind = 0;
	m->next = room->open;
	room->open = m;
	return m;
}

static void close_meet(struct room *room, struct meet *m)
{
	for (struct meet **at = &room->open; *at; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	m->next = room->spare;
	room->spare = m;
}

/* Moves pieces as long as there are any. With the lock, which it gives up meanwhile. */
static void help(struct room *room, struct meet *m)
{
	while (atomic_load(&m->state) == MOVING && m->taken < m->pieces && !room->failed) {
		int32_t piece = m->taken++;

		room->moving++;
		pthread_mutex_unlock(&room->lock);
		loopback_move(m, room->nranks, piece);
		pthread_mutex_lock(&room->lock);
		if (!--room->moving)
			pthread_cond_broadcast(&room->still);
		if (++m->moved == m->pieces) {
			atomic_store(&m->state, DONE);
			pthread_cond_broadcast(&m->changed);
		}
	}
}

static void compare(struct room *room, const struct meet *m, int32_t rank)
{
	for (int32_t r = 0; r < room->nranks; r++) {
		char theirs[256], mine[256];
		const char *what;

		if (r == rank || !m->call[r].kind)
			continue;
		what = loopback_differ(&m->call[r], r, &m->call[rank], rank, room->nranks);
		if (!what)
			continue;
		loopback_describe(&m->call[r], room->world, theirs, sizeof theirs);
		loopback_describe(&m->call[rank], room->world, mine, sizeof mine);
		fail_room(room, TESS_EMISMATCH, "%s differ: rank %d is in %s, but rank %d in %s",
		          what, (int)room->world[r], theirs, (int)room->world[rank], mine);
	}
}

/* With the lock. This rank has come to the meet with its call. */
static void arrive(struct room *room, struct meet *m, int32_t rank, const struct tess_coll *c)
{
	uint64_t pieces;

	m->call[rank] = *c;
	m->arrived++;
	compare(room, m, rank);
	if (m->arrived < m->expected || room->failed)
		return;
	pieces = loopback_bytes(m, room->nranks) / PIECE + 1;
	m->pieces = pieces < (uint64_t)room->nranks * 2 ? (int32_t)pieces : room->nranks * 2;
	atomic_store(&m->state, MOVING);
	if (m->pieces > 1)
		pthread_cond_broadcast(&m->changed);
	help(room, m);
}

/* ---- what a backend does --------------------------------------------------------------------- */

static tess_status supports(const struct tess_coll *c, int32_t nranks)
{
	if (c->mem != TESS_HOST || c->kind < TESS_BARRIER || c->kind > TESS_RECV)
		return loopback_host->fail(TESS_ENOTSUP, "loopback moves host memory");
	if (c->kind != TESS_BARRIER && !tess_width(c->dtype))
		return loopback_host->fail(TESS_ENOTSUP, "loopback: unknown dtype %d",
		                           (int)c->dtype);
	return nranks <= RANKS_MOST
	               ? TESS_OK
	               : loopback_host->fail(TESS_ENOTSUP, "loopback has at most %d ranks",
	                                     RANKS_MOST);
}

tess_status loopback_start(void *self, const struct tess_coll *c, void **work)
{
	struct member *me = self;
	struct room *room = me->room;
	tess_status st = TESS_OK;
	struct meet *m;

	pthread_mutex_lock(&room->lock);
	if (room->failed) {
		st = sentence(room);
		goto out;
	}
	if (c->kind == TESS_SEND)
		m = find_meet(room, ++me->sent[c->peer], me->rank, c->peer);
	else if (c->kind == TESS_RECV)
		m = find_meet(room, ++me->received[c->peer], c->peer, me->rank);
	else
		m = find_meet(room, ++me->calls, -1, -1);
	if (!m) {
		st = loopback_host->fail(TESS_ENOMEM, "loopback: no memory for a call");
		goto out;
	}
	arrive(room, m, me->rank, c);
	if (room->failed)
		st = sentence(room);
	else
		*work = m;
out:
	pthread_mutex_unlock(&room->lock);
	return st;
}

tess_status loopback_test(void *self, void *work)
{
	struct member *me = self;
	struct room *room = me->room;
	struct meet *m = work;
	tess_status st;

	if (m->work.n)
		return loopback_batch_test(self, work);
	if (atomic_load(&m->state) == DONE)
		return TESS_OK;
	pthread_mutex_lock(&room->lock);
	help(room, m);
	st = atomic_load(&m->state) == DONE ? TESS_OK
	     : room->failed                 ? sentence(room)
	                                    : TESS_PENDING;
	pthread_mutex_unlock(&room->lock);
	return st;
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

/* The deadline has passed: a failure of the group, which names one who is missed. */
static void late(struct room *room, const struct meet *m, int32_t rank)
{
	char text[256];

	loopback_describe(&m->call[rank], room->world, text, sizeof text);
	for (int32_t r = 0; r < room->nranks; r++)
		if (!m->call[r].kind && (m->from < 0 || r == m->from || r == m->to)) {
			fail_room(room, TESS_ETIMEOUT,
			          "rank %d has not joined rank %d's %s by its deadline",
			          (int)room->world[r], (int)room->world[rank], text);
			return;
		}
	fail_room(room, TESS_ETIMEOUT, "rank %d's %s was not finished by its deadline",
	          (int)room->world[rank], text);
}

/* What ends a spin: it is done, it has failed, or there is a piece to help with. */
static bool worth_waking(const struct room *room, const struct meet *m)
{
	int state = atomic_load_explicit(&m->state, memory_order_acquire);

	return state == DONE || (state == MOVING && m->pieces > 1) ||
	       atomic_load_explicit(&room->stop, memory_order_relaxed);
}

tess_status loopback_wait(void *self, void *work, int64_t deadline)
{
	struct member *me = self;
	struct room *room = me->room;
	struct meet *m = work;
	struct timespec until = { .tv_sec = deadline / 1000000000,
		                  .tv_nsec = deadline % 1000000000 };
	tess_status st;

	if (m->work.n)
		return loopback_batch_wait(self, work, deadline);
	for (int32_t i = 0; i < room->spin + YIELDS && !worth_waking(room, m); i++)
		if (i < room->spin)
			pause_cpu();
		else
			sched_yield();
	if (atomic_load(&m->state) == DONE)
		return TESS_OK;
	pthread_mutex_lock(&room->lock);
	for (;;) {
		help(room, m);
		if (atomic_load(&m->state) == DONE || room->failed)
			break;
		if (pthread_cond_timedwait(&m->changed, &room->lock, &until) && now() >= deadline &&
		    atomic_load(&m->state) != DONE)
			late(room, m, me->rank);
	}
	if (atomic_load(&m->state) != DONE)
		await_still(room); /* the caller may do with its buffers what it likes */
	st = atomic_load(&m->state) == DONE ? TESS_OK : sentence(room);
	pthread_mutex_unlock(&room->lock);
	return st;
}

void loopback_release(void *self, void *work)
{
	struct member *me = self;
	struct room *room = me->room;
	struct meet *m = work;

	if (m->work.n) {
		loopback_batch_release(self, work);
		return;
	}
	pthread_mutex_lock(&room->lock);
	if (atomic_load(&m->state) != DONE) {
		fail_room(room, TESS_EINVAL, "rank %d released a call that was not finished",
		          (int)room->world[me->rank]);
		await_still(room);
	}
	if (++m->released == m->expected)
		close_meet(room, m);
	pthread_mutex_unlock(&room->lock);
}

/* ---- rooms ----------------------------------------------------------------------------------- */

struct address { /* what rank 0 says in the store */
	int64_t pid;
	uint64_t id;
};

static struct room *make_room(const struct tess_join *how)
{
	size_t bytes = (size_t)how->nranks * sizeof *how->world;
	int32_t nranks = how->nranks, *world = malloc(bytes);
	struct room *room = calloc(1, sizeof *room);
	cpu_set_t set;

	if (!room || !world) {
		free(room);
		free(world);
		return NULL;
	}
	room->world = memcpy(world, how->world, bytes);
	pthread_mutex_init(&room->lock, NULL);
	pthread_cond_init(&room->still, NULL);
	room->nranks = nranks;
	room->inside = 1;
	/* More ranks than CPUs: a spinning one keeps off the one that it waits for. */
	if (!sched_getaffinity(0, sizeof set, &set))
		room->spin = CPU_COUNT(&set) >= nranks ? 400 : 20;
	return room;
}

static void free_room(struct room *room)
{
	free_meets(room->open);
	free_meets(room->spare);
	pthread_cond_destroy(&room->still);
	pthread_mutex_destroy(&room->lock);
	free(room->world);
	free(room);
}

static void leave_room(struct room *room)
{
	bool last;

	pthread_mutex_lock(&room->lock);
	await_still(room);
	pthread_mutex_unlock(&room->lock);
	pthread_mutex_lock(&rooms_lock);
	last = !--room->inside;
	for (struct room **at = &rooms; last && *at; at = &(*at)->next)
		if (*at == room) {
			*at = room->next;
			break;
		}
	pthread_mutex_unlock(&rooms_lock);
	if (last)
		free_room(room);
}

/* The room of this id, entered; NULL: rank 0 has left it. */
static struct room *enter_room(uint64_t id)
{
	struct room *room;

	pthread_mutex_lock(&rooms_lock);
	for (room = rooms; room && room->id != id;)
		room = room->next;
	if (room)
		room->inside++;
	pthread_mutex_unlock(&rooms_lock);
	return room;
}

/* Rank 0 makes the room, says where it is, and waits until all others have found it. */
static tess_status offer_room(const struct tess_join *how, struct room **out)
{
	const struct tess_store *store = how->store;
	struct address here = { .pid = getpid() };
	struct room *room = make_room(how);
	tess_status st = TESS_OK;
	char key[160];

	if (!room)
		return loopback_host->fail(TESS_ENOMEM, "no memory for a group of %d ranks",
		                           (int)how->nranks);
	pthread_mutex_lock(&rooms_lock);
	here.id = room->id = ++last_id;
	room->next = rooms;
	rooms = room;
	pthread_mutex_unlock(&rooms_lock);
	snprintf(key, sizeof key, "%s/loopback", how->name);
	if (how->nranks > 1)
		st = store->set(store->self, key, &here, sizeof here);
	for (int32_t r = 1; r < how->nranks && !st; r++) {
		char found;
		uint64_t len = sizeof found;

		snprintf(key, sizeof key, "%s/loopback/%d", how->name, (int)r);
		st = store->get(store->self, key, how->deadline, &found, &len);
	}
	if (st)
		leave_room(room);
	else
		*out = room;
	return st;
}

static tess_status find_room(const struct tess_join *how, struct room **out)
{
	const struct tess_store *store = how->store;
	struct address there;
	struct room *room;
	uint64_t len = sizeof there;
	char key[160], found = 1;
	tess_status st;

	snprintf(key, sizeof key, "%s/loopback", how->name);
	st = store->get(store->self, key, how->deadline, &there, &len);
	if (st)
		return st;
	if (there.pid != getpid() || len != sizeof there)
		return loopback_host->fail(
			TESS_EINVAL,
			"its ranks are threads of one process, but rank 0 is process %d "
			"and rank %d process %d; take another backend for processes",
			(int)there.pid, (int)how->rank, (int)getpid());
	room = enter_room(there.id);
	if (!room)
		return loopback_host->fail(TESS_EABORTED, "rank 0 has left the group");
	snprintf(key, sizeof key, "%s/loopback/%d", how->name, (int)how->rank);
	st = store->set(store->self, key, &found, sizeof found);
	if (st)
		leave_room(room);
	else
		*out = room;
	return st;
}

static void free_member(struct member *me)
{
	if (!me)
		return;
	free(me->sent);
	free(me->received);
	free(me);
}

static void close_group(void *self)
{
	struct member *me = self;

	leave_room(me->room);
	free_member(me);
}

static tess_status open_group(const struct tess_join *how, void **self)
{
	struct member *me;
	tess_status st;

	if (how->nranks > RANKS_MOST)
		return loopback_host->fail(TESS_ENOTSUP, "at most %d ranks, not %d", RANKS_MOST,
		                           (int)how->nranks);
	me = calloc(1, sizeof *me);
	if (me) {
		me->sent = calloc((size_t)how->nranks, sizeof *me->sent);
		me->received = calloc((size_t)how->nranks, sizeof *me->received);
		me->rank = how->rank;
	}
	if (!me || !me->sent || !me->received)
		st = loopback_host->fail(TESS_ENOMEM, "no memory for a rank");
	else
		st = how->rank ? find_room(how, &me->room) : offer_room(how, &me->room);
	if (st)
		free_member(me);
	else
		*self = me;
	return st;
}

static tess_status init(const struct tess_host *h)
{
	loopback_host = h;
	return TESS_OK;
}

static const struct tess_backend loopback = {
	.size = sizeof loopback,
	.threads = 1,
	.name = "loopback",
	.summary = "threads of one process, or one rank alone",
	.supports = supports,
	.open = open_group,
	.start = loopback_start,
	.test = loopback_test,
	.wait = loopback_wait,
	.release = loopback_release,
	.close = close_group,
	.batch = loopback_batch,
	.abort = abort_group,
};
static const struct tess_backend *const backends[] = { &loopback, NULL };

TESS_PLUGIN = { .abi = TESS_ABI,
	        .size = sizeof(struct tess_plugin),
	        .name = "loopback",
	        .version = "1.0",
	        .license = "Apache-2.0",
	        .summary = "ranks as threads",
	        .backends = backends,
	        .init = init };

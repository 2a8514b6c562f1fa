/*
 * tess-backend-faulty.so: stands over another backend and makes things go wrong, by rule, for tests of
 * what a program does then. TESSERA_BACKEND=faulty:shm TESSERA_FAULTY='rank=2,call=17,do=kill'
 *
 * What is done to a call is done below the group, which has compared the calls before: a mismatch is
 * one that the group could not see.
 */
#include "rule.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_NS = 500000 };

static const struct tess_host *host;
static struct tess_backend below, table;
static struct rules rules;

struct seat { /* of a rank; its groups share it with their parents */
	int32_t rank; /* in the world */
	int32_t groups;
	int64_t calls;
	bool thread; /* others are in this process */
	bool gone, still; /* a thread that was killed, or stopped */
	char why[RULE_TEXT + 64];
};

struct group {
	void *self; /* of the backend below */
	struct seat *seat;
	atomic_bool aborted;
};

struct work {
	void *work; /* of the backend below; NULL: dropped */
	struct tess_coll c;
	int64_t call;
	bool done;
};

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Until `until`, or the group is aborted; g may be NULL. */
static void sleep_until(const struct group *g, int64_t until)
{
	struct timespec t = { .tv_nsec = PAUSE_NS };

	while (now() < until && !(g && atomic_load(&g->aborted)))
		nanosleep(&t, NULL);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static tess_status ended(const struct seat *s)
{
	return host->fail(TESS_EPEER, "%s", s->why);
}

/* A process ends; a thread makes no call any more that works. */
static tess_status end(struct seat *s, const struct rule *r)
{
	snprintf(s->why, sizeof s->why, "rank %d was ended by the rule \"%s\"", (int)s->rank,
	         r->text);
	s->gone = s->thread;
	if (s->thread)
		return ended(s);
	if (r->action == EXIT)
		_exit(r->code);
	raise(SIGKILL);
	return TESS_OK;
}

static void differ(struct tess_coll *c, char part)
{
	static const int32_t twin[] = {
		[TESS_F32] = TESS_I32,  [TESS_F64] = TESS_I64, [TESS_BF16] = TESS_F16,
		[TESS_F16] = TESS_BF16, [TESS_I64] = TESS_F64, [TESS_I32] = TESS_F32,
		[TESS_I8] = TESS_U8,    [TESS_U8] = TESS_I8
	};
	bool lists = c->send_counts || c->recv_counts;

	if (part == 'c' && c->count && !lists)
		c->count--;
	else if (part == 'o')
		c->op = c->op == TESS_MAX ? TESS_SUM : TESS_MAX;
	else if (part == 'd' && c->op < TESS_BAND && c->kind != TESS_BARRIER)
		c->dtype = twin[c->dtype];
	else if (part == 'k')
		*c = (struct tess_coll){ .size = sizeof *c,
			                 .kind = TESS_BARRIER,
			                 .mem = c->mem,
			                 .fingerprint = c->fingerprint,
			                 .deadline = c->deadline,
			                 .where = c->where };
	else
		return;
	c->fingerprint ^= 0x5bd1e9955bd1e995u;
}

/* Backend trace, over this one, compares clocks: that is no call of the program. */
static bool is_clock(const struct tess_coll *c)
{
	return c->where && !strcmp(c->where, "trace: clocks");
}

/* All rules for this moment. *drop and *c are touched where they are not NULL. */
static tess_status suffer(struct group *g, struct seat *s, int64_t call, struct tess_coll *c,
                          int32_t at, int64_t deadline, bool *drop)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < rules.n && !st && !(c && is_clock(c)); i++) {
		const struct rule *r = &rules.rule[i];
		int64_t until = now() + r->delay;

		if (!rule_applies(&rules, i, s->rank, call, c, at))
			continue;
		host->log(TESS_INFO, "faulty", "rank %d, call %lld%s%s: %s", (int)s->rank,
		          (long long)call, c && c->where ? " at " : "",
		          c && c->where ? c->where : "", r->text);
		if (r->action == DELAY)
			sleep_until(g, until < deadline ? until : deadline);
		else if (r->action == KILL || r->action == EXIT)
			st = end(s, r);
		else if (r->action == STOP && s->thread)
			s->still = true;
		else if (r->action == STOP)
			raise(SIGSTOP);
		else if (r->action == FAIL)
			st = host->fail(TESS_EIO, "rank %d failed by the rule \"%s\"", (int)s->rank,
			                r->text);
		else if (r->action == MISMATCH)
			differ(c, r->part);
		else if (drop)
			*drop = true;
	}
	return st;
}

/* ---- the table ------------------------------------------------------------------------------- */

static tess_status supports(const struct tess_coll *c, int32_t nranks)
{
	return below.supports(c, nranks);
}

/* Whether the next rank is a thread of this process. */
static tess_status find_threads(const struct tess_join *how, struct seat *s)
{
	int64_t pid = getpid(), other = 0;
	uint64_t len = sizeof other;
	char key[160];
	tess_status st;

	if (how->nranks == 1 || !below.threads)
		return TESS_OK;
	snprintf(key, sizeof key, "%s/faulty/%d", how->name, (int)how->rank);
	st = how->store->set(how->store->self, key, &pid, sizeof pid);
	snprintf(key, sizeof key, "%s/faulty/%d", how->name, (int)((how->rank + 1) % how->nranks));
	if (!st)
		st = how->store->get(how->store->self, key, how->deadline, &other, &len);
	s->thread = pid == other;
	return st;
}

static void leave(struct seat *s)
{
	if (s && !--s->groups)
		free(s);
}

static tess_status open_group(const struct tess_join *how, void **self)
{
	struct tess_join lower = { .size = sizeof lower };
	struct group *parent = how->parent, *g = calloc(1, sizeof *g);
	struct seat *s = parent ? parent->seat : calloc(1, sizeof *s);
	tess_status st = TESS_OK;

	if (g && s) {
		g->seat = s;
		s->groups++;
		if (!parent) {
			s->rank = how->world[how->rank];
			st = find_threads(how, s);
		}
		if (!st && !parent)
			st = suffer(NULL, s, 0, NULL, BEFORE, how->deadline, NULL);
		memcpy(&lower, how, how->size < sizeof lower ? how->size : sizeof lower);
		lower.parent = parent ? parent->self : NULL;
		if (!st)
			st = below.open(&lower, &g->self);
	} else {
		st = host->fail(TESS_ENOMEM, "faulty: no memory for a group");
		if (!parent)
			free(s);
	}
	if (st) {
		leave(g ? g->seat : NULL);
		free(g);
		return st;
	}
	*self = g;
	return TESS_OK;
}

static tess_status start(void *self, const struct tess_coll *c, void **work)
{
	struct group *g = self;
	struct seat *s = g->seat;
	struct work *w;
	bool drop = s->still;
	tess_status st;

	if (s->gone)
		return ended(s);
	w = calloc(1, sizeof *w);
	if (!w)
		return host->fail(TESS_ENOMEM, "faulty: no memory for a call");
	memcpy(&w->c, c, c->size < sizeof w->c ? c->size : sizeof w->c);
	if (!is_clock(&w->c))
		w->call = ++s->calls;
	st = suffer(g, s, w->call, &w->c, BEFORE, w->c.deadline, &drop);
	if (!st && !drop && !s->still)
		st = below.start(g->self, &w->c, &w->work);
	if (!st && w->work)
		st = suffer(g, s, w->call, &w->c, INSIDE, w->c.deadline, NULL);
	if (st) {
		free(w); /* one that was started is its backend's until the group is closed */
		return st;
	}
	*work = w;
	return TESS_OK;
}

/* The backend below has said `st`. */
static tess_status after(struct group *g, struct work *w, tess_status st)
{
	if (st || w->done)
		return st;
	w->done = true;
	return suffer(g, g->seat, w->call, &w->c, AFTER, w->c.deadline, NULL);
}

static tess_status given_up(void)
{
	return host->fail(TESS_EABORTED, "faulty: the group was given up");
}

static tess_status test(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	if (!w->work)
		return atomic_load(&g->aborted) ? given_up() : TESS_PENDING;
	return after(g, w, below.test(g->self, w->work));
}

static tess_status wait(void *self, void *work, int64_t deadline)
{
	struct group *g = self;
	struct work *w = work;

	if (w->work)
		return after(g, w, below.wait(g->self, w->work, deadline));
	sleep_until(g, deadline);
	if (atomic_load(&g->aborted))
		return given_up();
	return host->fail(TESS_ETIMEOUT, "faulty: a call that was dropped has not been answered");
}

static void release(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	if (w->work)
		below.release(g->self, w->work);
	free(w);
}

static void close_group(void *self)
{
	struct group *g = self;

	below.close(g->self);
	leave(g->seat);
	free(g);
}

static tess_status join(void *self, void *work, void *stream)
{
	struct work *w = work;

	return w->work ? below.join(((struct group *)self)->self, w->work, stream) : TESS_OK;
}

static tess_status alloc(void *self, uint64_t bytes, void **mine, void **peers)
{
	return below.alloc(((struct group *)self)->self, bytes, mine, peers);
}

static void free_memory(void *self, void *mine)
{
	below.free(((struct group *)self)->self, mine);
}

static void abort_group(void *self)
{
	struct group *g = self;

	atomic_store(&g->aborted, true);
	if (below.abort)
		below.abort(g->self);
}

/* ---- over another ---------------------------------------------------------------------------- */

static tess_status over(const char *name, const struct tess_backend **out);

static const struct tess_backend faulty = {
	.size = sizeof faulty,
	.name = "faulty",
	.summary = "over another backend: delays, drops, kills and mismatches by rule",
	.supports = supports,
	.open = open_group,
	.start = start,
	.test = test,
	.wait = wait,
	.release = release,
	.close = close_group,
	.join = join,
	.alloc = alloc,
	.free = free_memory,
	.abort = abort_group,
	.wrap = over,
};

/* One backend in a process: the table has no place for a second. */
static tess_status over(const char *name, const struct tess_backend **out)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char taken[128];
	const struct tess_backend *b;
	tess_status st = TESS_OK;

	pthread_mutex_lock(&lock);
	if (*taken && strcmp(taken, name))
		st = host->fail(TESS_EINVAL, "faulty stands over %s in this process already",
		                taken);
	else if (!*taken)
		st = rules_read(host, host->option("faulty"), host->option("faulty_seed"), &rules);
	if (!st && !*taken)
		st = host->backend(name, &b);
	if (!st && !*taken) {
		memcpy(&below, b, b->size < sizeof below ? b->size : sizeof below);
		table = faulty;
		table.threads = below.threads;
		table.compares = below.compares;
		table.exact = below.exact;
		table.join = below.join ? join : NULL;
		table.alloc = below.alloc ? alloc : NULL;
		table.free = below.free ? free_memory : NULL;
		table.abort = below.abort ? abort_group : NULL;
		snprintf(taken, sizeof taken, "%s", name);
	}
	pthread_mutex_unlock(&lock);
	if (!st)
		*out = &table;
	return st;
}

static tess_status init(const struct tess_host *h)
{
	host = h;
	return TESS_OK;
}

static const struct tess_backend *const backends[] = { &faulty, NULL };
static const struct tess_option what = {
	"faulty", "",
	"rules of the backend faulty, like rank=2,call=17,do=kill;every=100,do=delay:5ms"
};
static const struct tess_option seed = { "faulty_seed", "1",
	                                 "seed of the rules that have a chance" };
static const struct tess_option *const options[] = { &what, &seed, NULL };

TESS_PLUGIN = {
	.abi = TESS_ABI,
	.size = sizeof(struct tess_plugin),
	.name = "faulty",
	.version = "1.0",
	.license = "Apache-2.0",
	.summary = "makes another backend fail",
	.needs = TESS_UPTO(tess_host, backend),
	.backends = backends,
	.options = options,
	.init = init,
};

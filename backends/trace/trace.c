/*
 * tess-backend-trace.so: stands over another backend and writes down when each call began and ended, on
 * all ranks, into one file for chrome://tracing and ui.perfetto.dev. TESSERA_BACKEND=trace:shm
 *
 * Times are those of rank 0: when a world is opened and closed, each rank asks rank 0 for its clock over
 * the backend below. Events are written as the job goes on, so that a rank which dies leaves its past.
 */
#include "file.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/reduce.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 256 << 10, EVENT = 1024, LANES = 64, ROUNDS = 8 };
static const int64_t second = 1000000000, flush_each = 10000000;

static const struct tess_host *host;
static struct tess_backend below, table;

struct track { /* of a rank; its groups share it with their parents */
	int fd; /* -1: not traced */
	int32_t rank, groups;
	int64_t base, offset; /* event time: ours + offset - base */
	int64_t flushed;
	uint64_t busy, named; /* lanes, as bits */
	uint64_t missing; /* events that could not be written */
	size_t len;
	char text[BUFFER];
};

struct group {
	void *self; /* of the backend below */
	struct track *track;
	int32_t rank, nranks;
	bool opened_world; /* it has no parent */
	bool failed;
	atomic_bool aborted;
	char name[48];
	uint64_t calls;
};

struct work {
	void *work; /* of the backend below */
	struct tess_coll c;
	uint64_t call, bytes;
	int64_t begin, wait; /* ns; wait: in wait() */
	int32_t lane;
	bool written;
	char where[128];
};

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * second + t.tv_nsec;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void flush(struct track *t, int64_t patience)
{
	if (t->fd >= 0 && t->len && file_append(t->fd, t->text, t->len, patience))
		t->len = 0;
	t->flushed = now();
}

static void TESS_PRINTF(2, 3) event(struct track *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (t->fd < 0)
		return;
	if (t->len + EVENT > BUFFER)
		flush(t, second / 50);
	if (t->len + EVENT > BUFFER) {
		t->missing++;
		return;
	}
	memcpy(t->text + t->len, ",\n", 2);
	va_start(ap, fmt);
	n = vsnprintf(t->text + t->len + 2, EVENT - 2, fmt, ap);
	va_end(ap);
	if (n < EVENT - 2)
		t->len += (size_t)n + 2;
	else
		t->missing++;
}

/* Calls that overlap are drawn in lanes of their own. */
static int32_t take_lane(struct track *t)
{
	int32_t lane = 0;

	while (lane < LANES - 1 && (t->busy >> lane & 1))
		lane++;
	t->busy |= UINT64_C(1) << lane;
	if (!(t->named >> lane & 1))
		event(t,
		      "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":"
		      "{\"name\":\"%s\"}}",
		      (int)t->rank, (int)lane, lane ? "calls at the same time" : "calls");
	t->named |= UINT64_C(1) << lane;
	return lane;
}

static double micro(int64_t ns)
{
	return (double)ns / 1000;
}

static uint64_t total(const uint64_t *list, uint64_t count, int32_t n)
{
	uint64_t all = list ? 0 : count * (uint64_t)n;

	for (int32_t r = 0; list && r < n; r++)
		all += list[r];
	return all;
}

/* Of the vector that the call is about, over all blocks where it has blocks. */
static uint64_t bytes_of(const struct tess_coll *c, int32_t n)
{
	uint64_t elements = c->count;

	if (c->kind == TESS_BARRIER)
		return 0;
	if (c->kind == TESS_GATHER || c->kind == TESS_ALL_GATHER)
		elements = total(c->recv_counts, c->count, n);
	else if (c->kind >= TESS_SCATTER && c->kind <= TESS_ALL_TO_ALL)
		elements = total(c->send_counts, c->count, n);
	return elements * tess_width(c->dtype);
}

/* The call is over, as `st` says. */
static void write_down(struct group *g, struct work *w, tess_status st)
{
	struct track *t = g->track;
	const struct tess_coll *c = &w->c;
	int64_t end = now();
	char where[256], more[64] = "", wait[48] = "";

	if (w->written)
		return;
	w->written = true;
	t->busy &= ~(UINT64_C(1) << w->lane);
	file_escape(w->where, where, sizeof where);
	if (c->kind == TESS_SEND || c->kind == TESS_RECV || tess_kind_rooted(c->kind))
		snprintf(more, sizeof more, ",\"peer\":%d", (int)c->peer);
	if (w->wait)
		snprintf(wait, sizeof wait, ",\"waited_us\":%.3f", micro(end - w->wait));
	event(t,
	      "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,"
	      "\"tid\":%d,\"args\":{\"where\":\"%s\",\"bytes\":%" PRIu64 ",\"count\":%" PRIu64
	      ",\"dtype\":\"%s\",\"op\":\"%s\",\"group\":\"%s\",\"call\":%" PRIu64
	      "%s%s,\"status\":%d}}",
	      tess_kind_name(c->kind), st < 0 ? "failed" : "comm",
	      micro(w->begin + t->offset - t->base), micro(end - w->begin), (int)t->rank,
	      (int)w->lane, where, w->bytes, c->count,
	      c->kind == TESS_BARRIER ? "" : tess_dtype_name(c->dtype),
	      tess_kind_reduces(c->kind) ? tess_op_name(c->op) : "", g->name, w->call, more, wait,
	      (int)st);
	if (st < 0 || end - t->flushed > flush_each)
		flush(t, st < 0 ? second / 2 : second / 50);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static tess_status message(struct group *g, int32_t kind, int32_t peer, int64_t *x, uint64_t print,
                           int64_t deadline)
{
	struct tess_coll c = { .size = sizeof c,
		               .kind = kind,
		               .dtype = TESS_I64,
		               .op = TESS_SUM,
		               .mem = TESS_HOST,
		               .peer = peer,
		               .fingerprint = print,
		               .src = kind == TESS_SEND ? x : NULL,
		               .dst = kind == TESS_RECV ? x : NULL,
		               .count = 1,
		               .deadline = deadline,
		               .where = "trace: clocks" };
	void *work;
	tess_status st = below.start(g->self, &c, &work);

	if (st)
		return st;
	if (below.abort)
		st = below.wait(g->self, work, deadline);
	else
		while ((st = below.test(g->self, work)) == TESS_PENDING && now() < deadline)
			;
	if (!st)
		below.release(g->self, work);
	return st;
}

/*
 * Rank 0's clock less ours. The round with the shortest way there and back counts; a difference smaller
 * than half of that way is none: the clocks are one.
 */
static tess_status compare_clocks(struct group *g, int64_t deadline, int64_t *offset)
{
	int64_t best = INT64_MAX, found = 0, theirs = 0;
	tess_status st = TESS_OK;

	for (int32_t r = 1; r < g->nranks && !st; r++) {
		if (g->rank && g->rank != r)
			continue;
		for (uint64_t i = 0; i < ROUNDS && !st; i++) {
			int64_t begin = now(), x = begin, end;

			st = message(g, g->rank ? TESS_SEND : TESS_RECV, g->rank ? 0 : r, &x, 2 * i,
			             deadline);
			theirs = now();
			if (!st)
				st = message(g, g->rank ? TESS_RECV : TESS_SEND, g->rank ? 0 : r,
				             &theirs, 2 * i + 1, deadline);
			end = now();
			if (end - begin < best) {
				best = end - begin;
				found = theirs - (begin + end) / 2;
			}
		}
	}
	if (!st)
		*offset = !g->rank || llabs(found) <= best / 2 ? 0 : found;
	return st;
}

/* ---- the file -------------------------------------------------------------------------------- */

struct note { /* what rank 0 says of it */
	int64_t base;
	char path[PATH_MAX];
};

static void describe(const struct track *t, int32_t nranks, char *out, size_t room)
{
	char name[65] = "";

	gethostname(name, sizeof name - 1);
	snprintf(out, room,
	         "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":"
	         "\"rank %d of %d (process %d on %.40s)\"}}",
	         (int)t->rank, (int)t->rank, (int)nranks, (int)getpid(), name);
}

static tess_status make_file(struct track *t, const struct tess_join *how, const char *key)
{
	const char *path = host->option("trace_file");
	struct note note = { .base = now() };
	tess_status st = TESS_OK;
	char own[EVENT];

	describe(t, how->nranks, own, sizeof own);
	t->base = note.base;
	t->fd = file_make(path, own);
	if (t->fd < 0 || !realpath(path, note.path))
		st = host->fail(TESS_EIO,
		                "trace: the file %s cannot be written: %s; set "
		                "TESSERA_TRACE_FILE",
		                path, strerror(errno));
	else
		st = how->store->set(how->store->self, key, &note,
		                     offsetof(struct note, path) + strlen(note.path) + 1);
	return st;
}

static tess_status find_file(struct track *t, const struct tess_join *how, const char *key)
{
	struct note note = { 0 };
	uint64_t len = sizeof note;
	tess_status st = how->store->get(how->store->self, key, how->deadline, &note, &len);
	char own[EVENT];

	if (st)
		return st;
	t->base = note.base;
	t->fd = file_open(note.path);
	if (t->fd < 0)
		host->log(TESS_WARN, "trace",
		          "%s: %s; this rank is not traced: all ranks write to "
		          "one file",
		          note.path, strerror(errno));
	describe(t, how->nranks, own, sizeof own);
	event(t, "%s", own);
	return TESS_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

static tess_status supports(const struct tess_coll *c, int32_t nranks)
{
	return below.supports(c, nranks);
}

/* The track is written to the end with the last group of the rank. */
static void leave(struct track *t)
{
	if (--t->groups)
		return;
	if (t->missing)
		host->log(TESS_WARN, "trace", "rank %d: %" PRIu64 " events are missing in the file",
		          (int)t->rank, t->missing);
	flush(t, second);
	if (t->fd >= 0)
		close(t->fd);
	free(t);
}

static tess_status begin_track(struct group *g, const struct tess_join *how)
{
	char key[160];
	tess_status st;

	g->opened_world = true;
	g->track->rank = how->world[how->rank];
	snprintf(key, sizeof key, "%s/trace", how->name);
	st = how->rank ? find_file(g->track, how, key) : make_file(g->track, how, key);
	if (!st)
		st = compare_clocks(g, how->deadline, &g->track->offset);
	return st;
}

static void close_group(void *self)
{
	struct group *g = self;
	int64_t offset = 0;

	if (!g)
		return;
	if (g->self && g->opened_world && !g->failed && !atomic_load(&g->aborted) &&
	    !compare_clocks(g, now() + 2 * second, &offset))
		event(g->track,
		      "{\"name\":\"clock\",\"ph\":\"i\",\"s\":\"p\",\"ts\":%.3f,\"pid\":%d,\"tid\":0,"
		      "\"args\":{\"offset_open_us\":%.3f,\"offset_close_us\":%.3f}}",
		      micro(now() + g->track->offset - g->track->base), (int)g->track->rank,
		      micro(g->track->offset), micro(offset));
	if (g->self)
		below.close(g->self);
	leave(g->track);
	free(g);
}

static tess_status open_group(const struct tess_join *how, void **self)
{
	struct tess_join lower = { .size = sizeof lower };
	struct group *parent = how->parent, *g = calloc(1, sizeof *g);
	struct track *t = parent ? parent->track : calloc(1, sizeof *t);
	tess_status st;

	if (!g || !t) {
		free(g);
		free(parent ? NULL : t);
		return host->fail(TESS_ENOMEM, "trace: no memory for a group");
	}
	if (!parent)
		t->fd = -1;
	g->track = t;
	t->groups++;
	g->rank = how->rank;
	g->nranks = how->nranks;
	file_escape(how->name, g->name, sizeof g->name);
	memcpy(&lower, how, how->size < sizeof lower ? how->size : sizeof lower);
	lower.parent = parent ? parent->self : NULL;
	st = below.open(&lower, &g->self);
	if (!st && !parent)
		st = begin_track(g, how);
	if (st) {
		g->failed = true;
		close_group(g);
		return st;
	}
	*self = g;
	return TESS_OK;
}

static tess_status start(void *self, const struct tess_coll *c, void **work)
{
	struct group *g = self;
	struct work *w = calloc(1, sizeof *w);
	tess_status st;

	if (!w)
		return host->fail(TESS_ENOMEM, "trace: no memory for a call");
	memcpy(&w->c, c, c->size < sizeof w->c ? c->size : sizeof w->c);
	snprintf(w->where, sizeof w->where, "%s", w->c.where ? w->c.where : "");
	w->bytes = bytes_of(&w->c, g->nranks);
	w->call = ++g->calls;
	w->lane = take_lane(g->track);
	w->begin = now();
	st = below.start(g->self, c, &w->work);
	if (st) {
		g->failed = true;
		write_down(g, w, st);
		free(w);
		return st;
	}
	*work = w;
	return TESS_OK;
}

static tess_status came(struct group *g, struct work *w, tess_status st)
{
	g->failed = g->failed || st < 0;
	if (st != TESS_PENDING)
		write_down(g, w, st);
	return st;
}

static tess_status test(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	return came(g, w, below.test(g->self, w->work));
}

static tess_status wait(void *self, void *work, int64_t deadline)
{
	struct group *g = self;
	struct work *w = work;

	tess_status st;

	if (!w->wait)
		w->wait = now();
	st = below.wait(g->self, w->work, deadline);
	if (st == TESS_ETIMEOUT && deadline < w->c.deadline)
		return st; /* it is not over: another wait may follow */
	return came(g, w, st);
}

static void release(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	below.release(g->self, w->work);
	write_down(g, w, TESS_OK);
	free(w);
}

static tess_status join(void *self, void *work, void *stream)
{
	return below.join(((struct group *)self)->self, ((struct work *)work)->work, stream);
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
	below.abort(g->self);
}

/* ---- over another ---------------------------------------------------------------------------- */

static tess_status over(const char *name, const struct tess_backend **out);

static const struct tess_backend trace = {
	.size = sizeof trace,
	.name = "trace",
	.summary = "over another backend: writes all calls of all ranks into one Chrome trace",
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
		st = host->fail(TESS_EINVAL, "trace stands over %s in this process already", taken);
	else if (!*taken)
		st = host->backend(name, &b);
	if (!st && !*taken) {
		memcpy(&below, b, b->size < sizeof below ? b->size : sizeof below);
		table = trace;
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

static const struct tess_backend *const backends[] = { &trace, NULL };
static const struct tess_option file = { "trace_file", "tessera-trace.json",
	                                 "the file that the backend trace writes" };
static const struct tess_option *const options[] = { &file, NULL };

TESS_PLUGIN = {
	.abi = TESS_ABI,
	.size = sizeof(struct tess_plugin),
	.name = "trace",
	.version = "1.0",
	.license = "Apache-2.0",
	.summary = "a picture of another backend's calls",
	.needs = TESS_UPTO(tess_host, backend),
	.backends = backends,
	.options = options,
	.init = init,
};

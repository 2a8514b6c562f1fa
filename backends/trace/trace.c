/*
 * tess-backend-trace.so: wraps another backend and records the begin and end of each call, and of
 * the computation between calls, on all ranks, in one file for chrome://tracing and
 * ui.perfetto.dev. TESSERA_BACKEND=trace:shm
 *
 * Times are those of rank 0: when a world is opened and closed, each rank compares its clock with
 * rank 0's over the wrapped backend. Events are written while the job runs, so that those of a dead
 * rank remain.
 */
#include "trace_file.h"
#include "wrap.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>
#include <tessera/util/clock.h>
#include <unistd.h>

enum { BUFFER = 256 << 10, EVENT = 1024, LANES = 64, ROUNDS = 8 };
static const int64_t second = 1000000000, flush_each = 10000000;

struct track { /* the events of a rank, shared by its groups */
	int fd; /* -1: not traced */
	int32_t rank, groups;
	int64_t base, offset; /* event time: ours + offset - base */
	int64_t flushed;
	uint64_t busy, named; /* lanes, as bits */
	bool names_computation; /* the lane after these has its name */
	uint64_t missing; /* number of events that could not be written */
	size_t len;
	char text[BUFFER];
};

struct group {
	struct wrap_group wrap;
	struct track *track;
	int32_t rank, nranks;
	bool opened_world; /* has no parent */
	bool failed;
	char name[48];
	uint64_t calls;
};

struct work {
	struct wrap_work wrap;
	struct tess_coll c;
	uint64_t call, bytes, sent;
	int64_t begin, wait; /* ns; wait: time in wait() */
	int32_t lane;
	bool written;
	char where[128];
};

/* ---- events ---------------------------------------------------------------------------------- */

static void flush_events(struct track *t, int64_t patience)
{
	if (t->fd >= 0 && t->len && trace_file_append(t->fd, t->text, t->len, patience))
		t->len = 0;
	t->flushed = tess_now();
}

static void TESS_PRINTF(2, 3) write_event(struct track *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (t->fd < 0)
		return;
	if (t->len + EVENT > BUFFER)
		flush_events(t, second / 50);
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

/* Takes a free lane; overlapping calls are drawn in different lanes. */
static int32_t take_lane(struct track *t)
{
	int32_t lane = 0;

	while (lane < LANES - 1 && (t->busy >> lane & 1))
		lane++;
	t->busy |= UINT64_C(1) << lane;
	if (!(t->named >> lane & 1))
		write_event(t,
		            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":"
		            "{\"name\":\"%s\"}}",
		            (int)t->rank, (int)lane, lane ? "calls at the same time" : "calls");
	t->named |= UINT64_C(1) << lane;
	return lane;
}

static double to_microseconds(int64_t ns)
{
	return (double)ns / 1000;
}

/* Writes the event of a call that ended with `st`. */
static void write_call(struct group *g, struct work *w, tess_status st)
{
	struct track *t = g->track;
	const struct tess_coll *c = &w->c;
	int64_t end = tess_now();
	char where[256], more[64] = "", wait[48] = "";

	if (w->written)
		return;
	w->written = true;
	t->busy &= ~(UINT64_C(1) << w->lane);
	trace_file_escape(w->where, where, sizeof where);
	if (tess_kind_is_p2p(c->kind) || tess_kind_rooted(c->kind))
		snprintf(more, sizeof more, ",\"peer\":%d", (int)c->peer);
	if (w->wait)
		snprintf(wait, sizeof wait, ",\"waited_us\":%.3f", to_microseconds(end - w->wait));
	write_event(
		t,
		"{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,"
		"\"tid\":%d,\"args\":{\"where\":\"%s\",\"bytes\":%" PRIu64 ",\"sent\":%" PRIu64
		",\"count\":%" PRIu64
		",\"dtype\":\"%s\",\"op\":\"%s\",\"group\":\"%s\",\"call\":%" PRIu64
		"%s%s,\"status\":%d}}",
		tess_kind_name(c->kind), st < 0 ? "failed" : "comm",
		to_microseconds(w->begin + t->offset - t->base), to_microseconds(end - w->begin),
		(int)t->rank, (int)w->lane, where, w->bytes, w->sent, c->count,
		c->kind == TESS_BARRIER ? "" : tess_dtype_name(c->dtype),
		tess_kind_reduces(c->kind) ? tess_reduce_op_name(c->op) : "", g->name, w->call,
		more, wait, (int)st);
	if (st < 0 || end - t->flushed > flush_each)
		flush_events(t, st < 0 ? second / 2 : second / 50);
}

/* Writes the event of computation between calls, in a lane of its own. */
static void trace_note_computed(void *self, const char *module, const char *ops, int64_t begin,
                                int64_t end)
{
	struct track *t = ((struct group *)self)->track;
	char where[256];

	if (!t->names_computation)
		write_event(t,
		            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":"
		            "{\"name\":\"computes\"}}",
		            (int)t->rank, LANES);
	t->names_computation = true;
	trace_file_escape(module, where, sizeof where);
	write_event(t,
	            "{\"name\":\"%s\",\"cat\":\"compute\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,"
	            "\"pid\":%d,\"tid\":%d,\"args\":{\"ops\":\"%s\"}}",
	            where, to_microseconds(begin + t->offset - t->base),
	            to_microseconds(end - begin), (int)t->rank, LANES, ops);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static tess_status send_clock(struct group *g, int32_t kind, int32_t peer, int64_t *x,
                              uint64_t fingerprint, int64_t deadline)
{
	struct tess_coll c = { .size = sizeof c,
		               .kind = kind,
		               .dtype = TESS_I64,
		               .op = TESS_SUM,
		               .mem = TESS_HOST,
		               .peer = peer,
		               .fingerprint = fingerprint,
		               .src = kind == TESS_SEND ? x : NULL,
		               .dst = kind == TESS_RECV ? x : NULL,
		               .count = 1,
		               .deadline = deadline,
		               .where = "trace: clocks" };
	void *work;
	tess_status st = wrapped.start(g->wrap.self, &c, &work);

	if (st)
		return st;
	if (wrapped.abort)
		st = wrapped.wait(g->wrap.self, work, deadline);
	else
		while ((st = wrapped.test(g->wrap.self, work)) == TESS_PENDING &&
		       tess_now() < deadline)
			;
	if (!st)
		wrapped.release(g->wrap.self, work);
	return st;
}

/*
 * Measures rank 0's clock minus this rank's, by the round with the shortest round trip. A
 * difference below half of that is 0: the clocks are equal. 0 also if the wrapped backend moves no
 * host memory.
 */
static tess_status compare_clocks(struct group *g, int64_t deadline, int64_t *offset)
{
	int64_t best = INT64_MAX, found = 0, theirs = 0;
	tess_status st = TESS_OK;

	*offset = 0;
	if (wrapped.mem_kinds && !(wrapped.mem_kinds >> TESS_HOST & 1))
		return TESS_OK;
	wrap_mark_internal(g, 1);
	for (int32_t r = 1; r < g->nranks && !st; r++) {
		if (g->rank && g->rank != r)
			continue;
		for (uint64_t i = 0; i < ROUNDS && !st; i++) {
			int64_t begin = tess_now(), x = begin, end;

			st = send_clock(g, g->rank ? TESS_SEND : TESS_RECV, g->rank ? 0 : r, &x,
			                2 * i, deadline);
			theirs = tess_now();
			if (!st)
				st = send_clock(g, g->rank ? TESS_RECV : TESS_SEND, g->rank ? 0 : r,
				                &theirs, 2 * i + 1, deadline);
			end = tess_now();
			if (end - begin < best) {
				best = end - begin;
				found = theirs - (begin + end) / 2;
			}
		}
	}
	wrap_mark_internal(g, 0);
	if (!st)
		*offset = !g->rank || llabs(found) <= best / 2 ? 0 : found;
	return st;
}

/* ---- the file -------------------------------------------------------------------------------- */

struct trace_location { /* the file, published by rank 0 */
	int64_t base;
	char path[PATH_MAX];
};

static void format_process_event(const struct track *t, int32_t nranks, char *out, size_t capacity)
{
	char name[65] = "";

	gethostname(name, sizeof name - 1);
	snprintf(out, capacity,
	         "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":"
	         "\"rank %d of %d (process %d on %.40s)\"}}",
	         (int)t->rank, (int)t->rank, (int)nranks, (int)getpid(), name);
}

static tess_status create_trace(struct track *t, const struct tess_group_entry *how,
                                const char *key)
{
	const char *path = wrap_host->option("trace_file");
	struct trace_location location = { .base = tess_now() };
	tess_status st = TESS_OK;
	char own[EVENT];

	format_process_event(t, how->nranks, own, sizeof own);
	t->base = location.base;
	t->fd = trace_file_create(path, own);
	if (t->fd < 0 || !realpath(path, location.path))
		st = wrap_host->fail(TESS_EIO,
		                     "trace: the file %s cannot be written: %s; set "
		                     "TESSERA_TRACE_FILE",
		                     path, strerror(errno));
	else
		st = how->store->set(how->store->self, key, &location,
		                     offsetof(struct trace_location, path) + strlen(location.path) +
		                             1);
	return st;
}

static tess_status find_trace(struct track *t, const struct tess_group_entry *how, const char *key)
{
	struct trace_location location = { 0 };
	uint64_t len = sizeof location;
	tess_status st = how->store->get(how->store->self, key, how->deadline, &location, &len);
	char own[EVENT];

	if (st)
		return st;
	t->base = location.base;
	t->fd = trace_file_open(location.path);
	if (t->fd < 0)
		wrap_host->log(TESS_WARN, "trace",
		               "%s: %s; this rank is not traced: all ranks write to "
		               "one file",
		               location.path, strerror(errno));
	format_process_event(t, how->nranks, own, sizeof own);
	write_event(t, "%s", own);
	return TESS_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Releases a track; the rank's last group finishes it. */
static void release_track(struct track *t)
{
	if (--t->groups)
		return;
	if (t->missing)
		wrap_host->log(TESS_WARN, "trace",
		               "rank %d: %" PRIu64 " events are missing in the file", (int)t->rank,
		               t->missing);
	flush_events(t, second);
	if (t->fd >= 0)
		close(t->fd);
	free(t);
}

static tess_status begin_track(struct group *g, const struct tess_group_entry *how)
{
	char key[160];
	tess_status st;

	g->opened_world = true;
	g->track->rank = how->world[how->rank];
	snprintf(key, sizeof key, "%s/trace", how->name);
	st = how->rank ? find_trace(g->track, how, key) : create_trace(g->track, how, key);
	if (!st)
		st = compare_clocks(g, how->deadline, &g->track->offset);
	return st;
}

static void trace_close_group(void *self)
{
	struct group *g = self;
	int64_t offset = 0;

	if (!g)
		return;
	if (g->wrap.self && g->opened_world && !g->failed && !atomic_load(&g->wrap.aborted) &&
	    !compare_clocks(g, tess_now() + 2 * second, &offset))
		write_event(
			g->track,
			"{\"name\":\"clock\",\"ph\":\"i\",\"s\":\"p\",\"ts\":%.3f,\"pid\":%d,"
			"\"tid\":0,\"args\":{\"offset_open_us\":%.3f,\"offset_close_us\":%.3f}}",
			to_microseconds(tess_now() + g->track->offset - g->track->base),
			(int)g->track->rank, to_microseconds(g->track->offset),
			to_microseconds(offset));
	if (g->wrap.self)
		wrapped.close(g->wrap.self);
	release_track(g->track);
	free(g);
}

static tess_status trace_open_group(const struct tess_group_entry *how, void **self)
{
	struct group *parent = how->parent, *g = calloc(1, sizeof *g);
	struct track *t = parent ? parent->track : calloc(1, sizeof *t);
	tess_status st;

	if (!g || !t) {
		free(g);
		free(parent ? NULL : t);
		return wrap_host->fail(TESS_ENOMEM, "trace: no memory for a group");
	}
	if (!parent)
		t->fd = -1;
	g->track = t;
	t->groups++;
	g->rank = how->rank;
	g->nranks = how->nranks;
	trace_file_escape(how->name, g->name, sizeof g->name);
	st = wrap_open_group(how, &g->wrap);
	if (!st && !parent)
		st = begin_track(g, how);
	if (st) {
		g->failed = true;
		trace_close_group(g);
		return st;
	}
	*self = g;
	return TESS_OK;
}

static tess_status trace_start_call(void *self, const struct tess_coll *c, void **work)
{
	struct group *g = self;
	struct work *w = calloc(1, sizeof *w);
	tess_status st;

	if (!w)
		return wrap_host->fail(TESS_ENOMEM, "trace: no memory for a call");
	memcpy(&w->c, c, c->size < sizeof w->c ? c->size : sizeof w->c);
	snprintf(w->where, sizeof w->where, "%s", w->c.where ? w->c.where : "");
	w->bytes = tess_coll_bytes(&w->c, g->nranks);
	w->sent = tess_coll_sent_bytes(&w->c, g->rank, g->nranks);
	w->call = ++g->calls;
	w->lane = take_lane(g->track);
	w->begin = tess_now();
	st = wrapped.start(g->wrap.self, c, &w->wrap.work);
	if (st) {
		g->failed = true;
		write_call(g, w, st);
		free(w);
		return st;
	}
	*work = w;
	return TESS_OK;
}

static tess_status note_answer(struct group *g, struct work *w, tess_status st)
{
	g->failed = g->failed || st < 0;
	if (st != TESS_PENDING)
		write_call(g, w, st);
	return st;
}

static tess_status trace_test_call(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	return note_answer(g, w, wrapped.test(g->wrap.self, w->wrap.work));
}

static tess_status trace_wait_call(void *self, void *work, int64_t deadline)
{
	struct group *g = self;
	struct work *w = work;

	tess_status st;

	if (!w->wait)
		w->wait = tess_now();
	st = wrapped.wait(g->wrap.self, w->wrap.work, deadline);
	if (st == TESS_ETIMEOUT && deadline < w->c.deadline)
		return st; /* unfinished: another wait may follow */
	return note_answer(g, w, st);
}

static void trace_release_call(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	wrapped.release(g->wrap.self, w->wrap.work);
	write_call(g, w, TESS_OK);
	free(w);
}

/* ---- wrapping -------------------------------------------------------------------------------- */

static tess_status trace_wrap_backend(const char *name, const struct tess_backend **out);

static const struct tess_backend trace = {
	.size = sizeof trace,
	.name = "trace",
	.summary =
		"wraps another backend: writes calls and computation of all ranks into one trace",
	.supports = wrap_supports_call,
	.open = trace_open_group,
	.start = trace_start_call,
	.test = trace_test_call,
	.wait = trace_wait_call,
	.release = trace_release_call,
	.close = trace_close_group,
	.join = wrap_join_stream,
	.alloc = wrap_alloc_memory,
	.free = wrap_free_memory,
	.abort = wrap_abort_group,
	.internal = wrap_mark_internal,
	.computed = trace_note_computed,
	.wrap = trace_wrap_backend,
};

static tess_status trace_wrap_backend(const char *name, const struct tess_backend **out)
{
	return wrap_backend(&trace, NULL, name, out);
}

static const struct tess_option file = { "trace_file", "tessera-trace.json",
	                                 "output file of the backend trace" };

TESS_DEFINE_PLUGIN("trace", "1.0", "Apache-2.0",
                   .summary = "a timeline of another backend's calls, and of computation",
                   .needs = TESS_UPTO(tess_host, backend),
                   .backends = TESS_LIST(tess_backend, &trace),
                   .options = TESS_LIST(tess_option, &file), .init = wrap_init_plugin);

/* tess-backend-pipes.so: a pipe for each pair of ranks. The minimum that a backend must have. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/coll.h>
#include <tessera/util/clock.h>
#include <unistd.h>

enum { RANKS = 64 };

static const struct tess_host *host;

/* A call in progress. A message is the fingerprint of its call, then its bytes. */
struct work {
	struct work *next;
	struct tess_coll c;
	char *at;
	uint64_t fingerprint, body, left; /* body: bytes after it; left: a barrier's number */
};

struct group {
	int32_t rank, n;
	int in[2 * RANKS], out[2 * RANKS]; /* [2 * rank]: messages, [2 * rank + 1]: barriers */
	uint64_t barriers, joined[RANKS]; /* started by this rank; joined by each rank */
	struct work *works; /* in the order of their start */
};

static tess_status supports_call(const struct tess_coll *c, int32_t n)
{
	int message = tess_kind_is_p2p(c->kind) && tess_width(c->dtype);

	if ((message || c->kind == TESS_BARRIER) && c->mem == TESS_HOST && n <= RANKS)
		return TESS_OK;
	return host->fail(TESS_ENOTSUP, "pipes: barrier, send and recv of host memory, %d ranks",
	                  RANKS);
}

static tess_status start_call(void *self, const struct tess_coll *c, void **work)
{
	struct group *g = self;
	struct work *w = calloc(1, sizeof *w), **end = &g->works;

	if (!w)
		return host->fail(TESS_ENOMEM, "pipes: no memory for a call");
	w->c = *c;
	w->fingerprint = c->fingerprint;
	w->at = (char *)&w->fingerprint;
	w->body = c->count * tess_width(c->dtype);
	w->left = c->kind == TESS_BARRIER ? ++g->barriers : sizeof w->fingerprint;
	for (int32_t r = 0; r < g->n && c->kind == TESS_BARRIER; r++)
		if (write(g->out[2 * r + 1], "b", 1) != 1) {
			free(w);
			return host->fail(TESS_EIO, "pipes: no barrier with rank %d", (int)r);
		}
	while (*end)
		end = &(*end)->next;
	*work = *end = w;
	return TESS_OK;
}

/* Moves all messages that can move: peers may wait for any. Messages of a pair keep their order. */
static void advance_calls(struct group *g)
{
	char busy[2][RANKS] = { { 0 } }, tokens[256];
	ssize_t n;

	for (int32_t r = 0; r < g->n; r++)
		while ((n = read(g->in[2 * r + 1], tokens, sizeof tokens)) > 0)
			g->joined[r] += (uint64_t)n;
	for (struct work *w = g->works; w; w = w->next) {
		int32_t r = w->c.peer, out = w->c.kind == TESS_SEND;

		if (w->c.kind == TESS_BARRIER || busy[out][r])
			continue;
		while (w->left && (n = out ? write(g->out[2 * r], w->at, w->left)
		                           : read(g->in[2 * r], w->at, w->left)) > 0) {
			w->at += n;
			w->left -= (uint64_t)n;
			if (w->left || w->fingerprint != w->c.fingerprint)
				continue;
			w->at = out ? (char *)(uintptr_t)w->c.src : w->c.dst;
			w->left = w->body;
			w->body = 0;
		}
		busy[out][r] = w->left > 0 || w->fingerprint != w->c.fingerprint;
	}
}

static tess_status test_call(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	advance_calls(g);
	if (w->c.kind != TESS_BARRIER && w->left)
		return TESS_PENDING;
	if (w->fingerprint != w->c.fingerprint)
		return host->fail(TESS_EMISMATCH, "pipes: rank %d sends for another call",
		                  (int)w->c.peer);
	if (w->c.kind != TESS_BARRIER)
		return TESS_OK;
	for (int32_t r = 0; r < g->n; r++)
		if (g->joined[r] < w->left)
			return TESS_PENDING;
	return TESS_OK;
}

static tess_status wait_for_call(void *self, void *work, int64_t deadline)
{
	const struct timespec pause = { .tv_nsec = 50000 };
	tess_status st;

	while ((st = test_call(self, work)) == TESS_PENDING) {
		if (tess_now() >= deadline)
			return host->fail(TESS_ETIMEOUT, "pipes: not done by the deadline");
		nanosleep(&pause, NULL);
	}
	return st;
}

static void release_call(void *self, void *work)
{
	struct work **at = &((struct group *)self)->works;

	while (*at != work)
		at = &(*at)->next;
	*at = (*at)->next;
	free(work);
}

static void pipes_close(void *self)
{
	struct group *g = self;

	for (int p = 0; p < 2 * g->n; p++) {
		close(g->in[p]);
		close(g->out[p]);
	}
	free(g);
}

/* The address of a rank: the name of each pipe that it reads. */
struct address {
	int32_t pid, end[2 * RANKS];
};

/*
 * Opens both ends, so that a write to a dead rank raises no SIGPIPE: the core detects its failure.
 */
static tess_status open_peer(struct group *g, const struct tess_group_entry *how, int32_t r)
{
	struct address there;
	uint64_t len = sizeof there;
	char text[160];
	tess_status st;

	snprintf(text, sizeof text, "%s/pipes/%d", how->name, (int)r);
	st = how->store->get(how->store->self, text, how->deadline, &there, &len);
	for (int lane = 0; lane < 2 && !st; lane++) {
		snprintf(text, sizeof text, "/proc/%d/fd/%d", (int)there.pid,
		         (int)there.end[2 * g->rank + lane]);
		g->out[2 * r + lane] = open(text, O_RDWR | O_NONBLOCK | O_CLOEXEC);
		if (g->out[2 * r + lane] < 0)
			st = host->fail(TESS_EIO, "pipes: rank %d's pipe %s cannot be opened",
			                (int)r, text);
	}
	return st;
}

static tess_status pipes_open(const struct tess_group_entry *how, void **self)
{
	struct tess_coll all_here = { .size = sizeof all_here, .kind = TESS_BARRIER };
	struct group *g = calloc(1, sizeof *g);
	struct address here = { .pid = getpid() };
	tess_status st = TESS_OK;
	void *work;
	char key[160];

	if (!g || how->nranks > RANKS) {
		free(g);
		return host->fail(TESS_ENOTSUP, "pipes: no group of %d ranks", (int)how->nranks);
	}
	g->rank = how->rank;
	g->n = how->nranks;
	for (int p = 0; p < 2 * g->n; p++) {
		int end[2] = { -1, -1 };

		if (pipe2(end, O_CLOEXEC | O_NONBLOCK))
			st = host->fail(TESS_EIO, "pipes: no pipe");
		g->in[p] = end[0];
		here.end[p] = end[1];
		g->out[p] = -1;
	}
	snprintf(key, sizeof key, "%s/pipes/%d", how->name, (int)g->rank);
	if (!st)
		st = how->store->set(how->store->self, key, &here, sizeof here);
	for (int32_t r = 0; r < g->n && !st; r++)
		st = open_peer(g, how, r);
	if (!st && !(st = start_call(g, &all_here, &work))) {
		st = wait_for_call(g, work, how->deadline);
		release_call(g, work);
	}
	for (int p = 0; p < 2 * g->n; p++)
		close(here.end[p]); /* every rank has opened it by now */
	if (st)
		pipes_close(g);
	else
		*self = g;
	return st;
}

static tess_status init_pipes(const struct tess_host *h)
{
	host = h;
	return TESS_OK;
}

static const struct tess_backend pipes = {
	.size = sizeof pipes,
	.threads = 1,
	.name = "pipes",
	.summary = "a pipe for each pair of ranks of one host",
	.supports = supports_call,
	.open = pipes_open,
	.start = start_call,
	.test = test_call,
	.wait = wait_for_call,
	.release = release_call,
	.close = pipes_close,
	.reach = TESS_REACH_HOST,
	.mem_kinds = 1 << TESS_HOST,
};

TESS_DEFINE_PLUGIN("pipes", "1.0", "Apache-2.0", .backends = TESS_LIST(tess_backend, &pipes),
                   .init = init_pipes);

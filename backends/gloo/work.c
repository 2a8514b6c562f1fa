/*
 * work.c - a collective as one or two exchanges; in each, every message is under way at once.
 *
 * Gloo's own collectives are not used: they end the process where sizes differ, and close every
 * connection when one of them times out. One exchange moves what a ring does, in one step. Large
 * reductions and broadcasts cut the data in a slice per rank: each rank finishes its own, then the
 * slices are shared.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "gloo.h"

enum {
	LARGE = 512 * 1024, /* bytes to one rank from which slices are worth a second exchange */
	PEEK_NS = 200000, /* how often other works are looked after while one is waited for */
};

struct message {
	struct shim_io *io;
	int32_t peer, receives;
};

struct work {
	struct work *next;
	struct tess_coll c;
	char where[96];
	size_t width;
	uint64_t print; /* what messages of this call have in common */
	int32_t sliced, stage, done;
	int32_t nmessages, arrived;
	uint64_t sum; /* elements that this rank adds up, one vector from every rank */
	void *mine, *total; /* its own vector; where the sum goes */
	const void **part; /* the vectors of all ranks */
	void *scratch; /* the others' vectors; all_to_all in place: what was in src */
	size_t room; /* bytes of it */
	struct message message[]; /* 2 per rank; then part, and what c.give and c.get point to */
};

/* What this rank and one peer give each other in an exchange, in elements. */
struct leg {
	const void *src;
	void *dst;
	uint64_t give, get;
	int32_t gives, gets;
};

/* ---- where things lie ------------------------------------------------------------------------ */

static void *past(const struct work *w, const void *p, uint64_t elements)
{
	return p ? (char *)(uintptr_t)p + elements * w->width : NULL;
}

static uint64_t block(const struct work *w, const uint64_t *list, int32_t r)
{
	return list ? list[r] : w->c.count;
}

/* Block r of a buffer; r = nranks: its end. */
static void *block_at(const struct work *w, const void *p, const uint64_t *list, int32_t r)
{
	uint64_t at = 0;

	for (int32_t i = 0; i < r; i++)
		at += block(w, list, i);
	return past(w, p, at);
}

static uint64_t edge(const struct group *g, const struct work *w, int32_t r)
{
	uint64_t n = (uint64_t)g->nranks, at = (uint64_t)r, count = w->c.count;

	return count / n * at + (count % n < at ? count % n : at);
}

static uint64_t slice(const struct group *g, const struct work *w, int32_t r)
{
	return edge(g, w, r + 1) - edge(g, w, r);
}

static void *slice_at(const struct group *g, const struct work *w, const void *p, int32_t r)
{
	return past(w, p, edge(g, w, r));
}

/* In scratch memory: the vector that `peer` gave to be added. */
static void *given(const struct group *g, const struct work *w, int32_t peer)
{
	return past(w, w->scratch, w->sum * (uint64_t)(peer < g->rank ? peer : peer - 1));
}

static int adds(int32_t kind)
{
	return kind == TESS_REDUCE || kind == TESS_ALL_REDUCE || kind == TESS_REDUCE_SCATTER;
}

static int rooted(int32_t kind)
{
	return kind == TESS_BROADCAST || kind == TESS_REDUCE || kind == TESS_GATHER ||
	       kind == TESS_SCATTER;
}

/* ---- who gives what to whom ------------------------------------------------------------------ */

/* The second exchange: finished slices, to the root or to all. A broadcast's root has them all. */
static struct leg to_share(const struct group *g, const struct work *w, int32_t peer)
{
	const struct tess_coll *c = &w->c;
	int i_am_root = g->rank == c->peer, is_root = peer == c->peer;
	struct leg leg = {
		.src = w->total,
		.give = slice(g, w, g->rank),
		.gives = 1,
		.dst = slice_at(g, w, c->dst, peer),
		.get = slice(g, w, peer),
		.gets = 1,
	};

	if (c->kind == TESS_BROADCAST) {
		leg.src = slice_at(g, w, i_am_root ? c->src : c->dst, g->rank);
		leg.gives = !is_root;
		leg.gets = !i_am_root;
	} else if (c->kind == TESS_REDUCE) {
		leg.gives = is_root;
		leg.gets = i_am_root;
	}
	return leg;
}

/* The first exchange of a sum: what each adds. */
static struct leg to_add(const struct group *g, const struct work *w, int32_t peer)
{
	const struct tess_coll *c = &w->c;
	struct leg leg = {
		.src = c->src,
		.give = c->count,
		.gives = 1,
		.dst = given(g, w, peer),
		.get = w->sum,
		.gets = 1,
	};

	if (c->kind == TESS_REDUCE_SCATTER) {
		leg.src = block_at(w, c->src, c->give, peer);
		leg.give = block(w, c->give, peer);
	} else if (w->sliced) {
		leg.src = slice_at(g, w, c->src, peer);
		leg.give = slice(g, w, peer);
	} else if (c->kind == TESS_REDUCE) {
		leg.gives = peer == c->peer;
		leg.gets = g->rank == c->peer;
	}
	return leg;
}

static struct leg to_move(const struct group *g, const struct work *w, int32_t peer)
{
	const struct tess_coll *c = &w->c;
	int all = !rooted(c->kind), inplace = c->src == c->dst;
	int i_am_root = g->rank == c->peer, is_root = peer == c->peer;

	switch (c->kind) {
	case TESS_BROADCAST:
		if (w->sliced)
			return (struct leg){
				slice_at(g, w, c->src, peer),
				slice_at(g, w, c->dst, g->rank),
				slice(g, w, peer),
				slice(g, w, g->rank),
				i_am_root,
				is_root,
			};
		return (struct leg){ c->src, c->dst, c->count, c->count, i_am_root, is_root };
	case TESS_GATHER:
	case TESS_ALL_GATHER:
		return (struct leg){
			inplace && (all || i_am_root) ? block_at(w, c->src, c->get, g->rank)
						      : past(w, c->src, 0),
			block_at(w, c->dst, c->get, peer),
			c->count,
			block(w, c->get, peer),
			all || is_root,
			all || i_am_root,
		};
	case TESS_SCATTER:
		return (struct leg){
			block_at(w, c->src, c->give, peer),
			c->dst,
			block(w, c->give, peer),
			c->count,
			i_am_root,
			is_root,
		};
	case TESS_ALL_TO_ALL:
		return (struct leg){
			block_at(w, inplace ? w->scratch : c->src, c->give, peer),
			block_at(w, c->dst, c->get, peer),
			block(w, c->give, peer),
			block(w, c->get, peer),
			1,
			1,
		};
	case TESS_SEND:
		return (struct leg){ .src = c->src, .give = c->count, .gives = is_root };
	case TESS_RECV:
		return (struct leg){ .dst = c->dst, .get = c->count, .gets = is_root };
	default: /* a barrier: nothing, from everyone */
		return (struct leg){ .gives = 1, .gets = 1 };
	}
}

static struct leg leg_of(const struct group *g, const struct work *w, int32_t peer)
{
	if (w->stage > 0)
		return to_share(g, w, peer);
	return adds(w->c.kind) ? to_add(g, w, peer) : to_move(g, w, peer);
}

/* What a rank gives itself. In place it is there already. */
static void keep(const struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;
	struct leg own;

	if (adds(c->kind) || c->src == c->dst || c->kind == TESS_SEND || c->kind == TESS_RECV ||
	    (rooted(c->kind) && g->rank != c->peer))
		return;
	own = to_move(g, w, g->rank);
	if (c->kind == TESS_BROADCAST)
		own = (struct leg){ .src = c->src, .dst = c->dst, .get = c->count };
	if (own.get)
		memcpy(own.dst, own.src, own.get * w->width);
}

/* ---- failure --------------------------------------------------------------------------------- */

/* Says why, but for release, which is called when the caller knows already. */
static tess_status say(const struct group *g, tess_status st)
{
	return st < 0 ? g->host->fail(st, "%s", g->why) : st;
}

static tess_status lost(struct group *g, const struct work *w, int32_t peer, const char *why)
{
	g->failed = TESS_EPEER;
	snprintf(g->why, sizeof g->why, "%s: group %s over gloo lost rank %d: %s", w->where,
	         g->name, (int)g->world[peer], why);
	return g->failed;
}

static tess_status given_up(struct group *g, const char *where)
{
	g->failed = TESS_EABORTED;
	snprintf(g->why, sizeof g->why, "%s: group %s over gloo was given up", where, g->name);
	return g->failed;
}

/* Not the end of the group: who waits again may still see it done. */
static tess_status late(struct group *g, const struct work *w, const struct message *m)
{
	snprintf(g->why, sizeof g->why,
	         "%s: group %s over gloo waited until the deadline for rank %d to %s", w->where,
	         g->name, (int)g->world[m->peer], m->receives ? "send" : "receive");
	return TESS_ETIMEOUT;
}

/*
 * What failed stays failed, and its messages are taken back: the memory of a caller that has given
 * up is soon gone, and Gloo's thread ends the process when it finds that. It tells the others, too.
 */
static void cut(struct group *g)
{
	if (g->failed < 0 && g->mesh && !g->cut)
		shim_cut(g->mesh);
	g->cut = g->failed < 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

/*
 * Messages meet that agree about the call, the exchange and their size; Gloo would end the process
 * if two of different size met. Calls that do not agree wait for their deadline.
 */
static uint64_t slot(const struct work *w, uint64_t bytes)
{
	uint64_t h = w->print ^ 0x9e3779b97f4a7c15u * (bytes * 4 + (uint64_t)w->stage + 1);

	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	return (h ^ h >> 31) & SHIM_SLOTS;
}

static tess_status post(struct group *g, struct work *w, int32_t peer, int receives, void *at,
                        uint64_t elements)
{
	struct message *m = &w->message[w->nmessages];
	uint64_t bytes = elements * w->width;
	char why[SHIM_WHY];
	int bad;

	if (!bytes && w->c.kind != TESS_BARRIER)
		return TESS_OK;
	if (receives)
		bad = shim_recv(g->mesh, peer, slot(w, bytes), at, bytes, &m->io, why);
	else
		bad = shim_send(g->mesh, peer, slot(w, bytes), at, bytes, &m->io, why);
	if (bad)
		return lost(g, w, peer, why);
	m->peer = peer;
	m->receives = receives;
	w->nmessages++;
	return TESS_OK;
}

/* Posts one exchange, what is received first: a message leaves only when its place is known. */
static tess_status exchange(struct group *g, struct work *w)
{
	tess_status st = TESS_OK;

	if (!g->mesh)
		return TESS_OK;
	pthread_mutex_lock(&g->lock);
	if (g->aborted)
		st = given_up(g, w->where);
	for (int32_t receives = 1; receives >= 0; receives--) {
		for (int32_t i = 1; i < g->nranks && st == TESS_OK; i++) {
			int32_t peer = (g->rank + i) % g->nranks;
			struct leg leg = leg_of(g, w, peer);

			if (receives && leg.gets)
				st = post(g, w, peer, 1, leg.dst, leg.get);
			else if (!receives && leg.gives)
				st = post(g, w, peer, 0, (void *)(uintptr_t)leg.src, leg.give);
		}
	}
	pthread_mutex_unlock(&g->lock);
	return st;
}

static void drop_messages(struct group *g, struct work *w)
{
	pthread_mutex_lock(&g->lock);
	for (int32_t i = 0; i < w->nmessages; i++)
		shim_free(w->message[i].io);
	w->nmessages = 0;
	w->arrived = 0;
	pthread_mutex_unlock(&g->lock);
}

/* ---- works ----------------------------------------------------------------------------------- */

tess_status work_supports(const struct tess_host *host, const struct tess_coll *c, int32_t nranks)
{
	int whole = c->dtype != TESS_F32 && c->dtype != TESS_F64 && c->dtype != TESS_BF16 &&
	            c->dtype != TESS_F16;

	(void)nranks;
	if (c->kind < TESS_BARRIER || c->kind > TESS_RECV)
		return host->fail(TESS_ENOTSUP, "gloo: unknown kind of collective %d",
		                  (int)c->kind);
	if (c->kind == TESS_BARRIER)
		return TESS_OK;
	if (c->mem != TESS_HOST)
		return host->fail(TESS_ENOTSUP, "gloo moves host memory only; use nccl for GPUs");
	if (!tess_width(c->dtype))
		return host->fail(TESS_ENOTSUP, "gloo: unknown dtype %d", (int)c->dtype);
	if (adds(c->kind) &&
	    (c->op < TESS_SUM || c->op > TESS_BXOR || (c->op >= TESS_BAND && !whole)))
		return host->fail(TESS_ENOTSUP, "gloo: operation %d is not for dtype %d",
		                  (int)c->op, (int)c->dtype);
	return TESS_OK;
}

/* How much a rank adds, and where. */
static void plan_sum(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	int i_am_root = g->rank == c->peer;

	if (c->kind == TESS_REDUCE_SCATTER) {
		w->sum = block(w, c->give, g->rank);
		w->mine = block_at(w, c->src, c->give, g->rank);
		w->total = c->src == c->dst ? w->mine : c->dst;
	} else if (w->sliced) {
		w->sum = slice(g, w, g->rank);
		w->mine = slice_at(g, w, c->src, g->rank);
		w->total = slice_at(g, w, c->dst, g->rank);
	} else {
		w->sum = c->kind == TESS_ALL_REDUCE || i_am_root ? c->count : 0;
		w->mine = past(w, c->src, 0);
		w->total = c->dst;
	}
}

/* Large memory is dear to map again for every call: the group keeps one piece. */
static tess_status take_scratch(struct group *g, struct work *w, size_t bytes)
{
	if (!bytes)
		return TESS_OK;
	if (g->spare_bytes >= bytes) {
		w->scratch = g->spare;
		w->room = g->spare_bytes;
		g->spare = NULL;
		g->spare_bytes = 0;
		return TESS_OK;
	}
	w->scratch = malloc(bytes);
	w->room = bytes;
	if (!w->scratch)
		return g->host->fail(TESS_ENOMEM, "%s: no memory for %zu bytes of other ranks",
		                     w->where, bytes);
	return TESS_OK;
}

static void free_work(struct group *g, struct work *w)
{
	if (w->scratch && w->room > g->spare_bytes) {
		free(g->spare);
		g->spare = w->scratch;
		g->spare_bytes = w->room;
	} else {
		free(w->scratch);
	}
	free(w);
}

/*
 * The call as data of our own: what c points to need not outlive work_start, but for the buffers.
 */
static struct work *new_work(const struct group *g, const struct tess_coll *c)
{
	size_t n = (size_t)g->nranks,
	       tail = 2 * sizeof(struct message) + sizeof(void *) + 2 * sizeof(uint64_t);
	struct work *w = calloc(1, sizeof *w + n * tail);
	uint64_t *list;

	if (!w)
		return NULL;
	memcpy(&w->c, c, c->size < sizeof w->c ? c->size : sizeof w->c);
	snprintf(w->where, sizeof w->where, "%s", w->c.where ? w->c.where : "a collective");
	w->width = c->kind == TESS_BARRIER ? 0 : tess_width(c->dtype);
	w->part = (const void **)(w->message + 2 * n);
	list = (uint64_t *)(w->part + n);
	if (c->give)
		w->c.give = memcpy(list, c->give, n * sizeof *list);
	if (c->get)
		w->c.get = memcpy(list + n, c->get, n * sizeof *list);
	w->sliced = (n - 1) * c->count * w->width >= LARGE &&
	            (c->kind == TESS_REDUCE || c->kind == TESS_ALL_REDUCE ||
	             (c->kind == TESS_BROADCAST && n > 2));
	return w;
}

/* Plans it, takes the memory that it needs, and gives it the mark by which its messages meet. */
static tess_status prepare(struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	size_t bytes = 0;
	tess_status st;

	if (adds(c->kind)) {
		plan_sum(g, w);
		bytes = w->sum * w->width * (size_t)(g->nranks - 1);
	} else if (c->kind == TESS_ALL_TO_ALL && c->src == c->dst && c->src) {
		bytes = (size_t)((char *)block_at(w, c->src, c->give, g->nranks) - (char *)c->dst);
	}
	st = take_scratch(g, w, bytes);
	if (st < 0)
		return st;
	if (c->kind == TESS_ALL_TO_ALL && bytes)
		memcpy(w->scratch, c->src, bytes);
	if (c->kind == TESS_REDUCE && w->sliced && g->rank != c->peer)
		w->total = w->scratch;
	/* send and recv have an order of their own between two ranks, whatever else is under way */
	if (c->kind == TESS_SEND)
		w->print = ~g->sent[c->peer]++;
	else if (c->kind == TESS_RECV)
		w->print = ~g->received[c->peer]++;
	else
		w->print = c->print;
	return TESS_OK;
}

/* Nothing of it is on its way any more. */
static void discard(struct group *g, struct work *w)
{
	struct work **at = &g->works;

	drop_messages(g, w);
	pthread_mutex_lock(&g->lock);
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	pthread_mutex_unlock(&g->lock);
	free_work(g, w);
}

tess_status work_start(struct group *g, const struct tess_coll *c, struct work **out)
{
	struct work *w;
	tess_status st;

	if (g->failed < 0)
		return say(g, g->failed);
	w = new_work(g, c);
	if (!w)
		return g->host->fail(TESS_ENOMEM, "gloo: out of memory");
	st = prepare(g, w);
	if (st < 0) {
		free_work(g, w);
		return st;
	}
	pthread_mutex_lock(&g->lock);
	w->next = g->works;
	g->works = w;
	pthread_mutex_unlock(&g->lock);
	st = exchange(g, w);
	if (st < 0) {
		cut(g);
		discard(g, w);
		return say(g, st);
	}
	keep(g, w);
	*out = w;
	return TESS_OK;
}

/* What follows when an exchange is over: adding, and the second exchange. */
static tess_status proceed(struct group *g, struct work *w)
{
	drop_messages(g, w);
	if (w->stage == 0 && w->sum) {
		for (int32_t r = 0; r < g->nranks; r++)
			w->part[r] = r == g->rank ? w->mine : given(g, w, r);
		tess_reduce(w->c.dtype, w->c.op, w->part, g->nranks, w->sum, w->total);
	}
	if (w->stage == w->sliced) {
		w->done = 1;
		return TESS_OK;
	}
	w->stage++;
	return exchange(g, w);
}

static tess_status progress(struct group *g, struct work *w, int64_t deadline);

/*
 * Ranks may wait for their works in any order: the second exchanges of the others go on meanwhile.
 * Whether one of them is still to come.
 */
static int help_others(struct group *g, const struct work *w)
{
	int more = 0;

	for (struct work *o = g->works; o && g->failed == TESS_OK; o = o->next) {
		if (o == w || o->done || o->stage == o->sliced)
			continue;
		progress(g, o, 0); /* what fails fails the group */
		more |= !o->done && o->stage < o->sliced;
	}
	return more;
}

static int await(struct group *g, const struct work *w, const struct message *m, int64_t deadline,
                 char *why)
{
	struct timespec t;
	int64_t now, until;
	int answer;

	do {
		int more = deadline && help_others(g, w);

		clock_gettime(CLOCK_MONOTONIC, &t);
		now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
		until = more && now + PEEK_NS < deadline ? now + PEEK_NS : deadline;
		answer = shim_wait(m->io, until, why);
	} while (answer == SHIM_PENDING && until != deadline && g->failed == TESS_OK);
	return answer;
}

static tess_status progress(struct group *g, struct work *w, int64_t deadline)
{
	char why[SHIM_WHY];
	tess_status st;

	while (!w->done) {
		if (g->failed < 0)
			return g->failed;
		for (; w->arrived < w->nmessages; w->arrived++) {
			const struct message *m = &w->message[w->arrived];
			int answer = await(g, w, m, deadline, why);

			if (g->failed < 0)
				return g->failed;
			if (answer < 0)
				return lost(g, w, m->peer, why);
			if (answer == SHIM_WOKEN)
				return given_up(g, w->where);
			if (answer == SHIM_PENDING && !deadline)
				return TESS_PENDING;
			if (answer == SHIM_PENDING)
				return late(g, w, m);
		}
		st = proceed(g, w);
		if (st < 0)
			return st;
	}
	return TESS_OK;
}

tess_status work_run(struct group *g, struct work *w, int64_t deadline)
{
	tess_status st = progress(g, w, deadline);

	cut(g);
	return say(g, st);
}

void work_release(struct group *g, struct work *w)
{
	if (!w)
		return;
	if (progress(g, w, w->c.deadline) < 0 && g->failed == TESS_OK)
		g->failed = TESS_ETIMEOUT; /* and why is known */
	cut(g);
	discard(g, w);
}

void work_abort(struct group *g)
{
	pthread_mutex_lock(&g->lock);
	g->aborted = 1;
	for (struct work *w = g->works; w; w = w->next)
		for (int32_t i = 0; i < w->nmessages; i++)
			shim_wake(w->message[i].io);
	pthread_mutex_unlock(&g->lock);
}

void work_clear(struct group *g)
{
	if (g->works && g->mesh)
		shim_cut(g->mesh);
	while (g->works)
		discard(g, g->works);
	free(g->spare);
	g->spare = NULL;
}

/*
 * tess-backend-minimal.so: only what a backend must have: barrier, send and recv between threads;
 * no abort. For tests of what the group emulates. Messages are copied into queues, one per pair
 * of ranks, and out of them as soon as possible. Other builds lack a required kind (LACKS), have
 * no THREADS, or have a batch that refuses every call (BATCH).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

#ifndef NAME
#define NAME "minimal"
#endif
#ifndef LACKS
#define LACKS 0
#endif
#ifndef THREADS
#define THREADS 1
#endif

enum { RANKS = 16 };

static const struct tess_host *host;

struct queued_message {
	struct queued_message *next;
	uint64_t sequence, fingerprint;
	size_t bytes;
	char data[];
};

struct mailboxes {
	pthread_mutex_t lock;
	int32_t nranks, nopen;
	uint64_t barriers[RANKS]; /* that each rank has reached */
	struct queued_message *queue[RANKS][RANKS];
	uint64_t sent[RANKS][RANKS], received[RANKS][RANKS];
};

struct minimal_group {
	struct mailboxes *mailboxes;
	int32_t rank;
};

struct minimal_call {
	struct tess_coll c;
	uint64_t sequence; /* of the message or the barrier */
	int done;
};

static tess_status minimal_supports(const struct tess_coll *c, int32_t nranks)
{
	(void)nranks;
	if (c->kind == LACKS)
		return TESS_ENOTSUP;
	return c->kind == TESS_BARRIER || c->kind == TESS_SEND || c->kind == TESS_RECV
	               ? TESS_OK
	               : TESS_ENOTSUP;
}

static tess_status minimal_open(const struct tess_join *how, void **self)
{
	struct minimal_group *me = calloc(1, sizeof *me);
	struct mailboxes *shared = NULL;
	uint64_t len = sizeof shared;
	char key[64];
	tess_status st;

	snprintf(key, sizeof key, "%s/minimal", how->name);
	me->rank = how->rank;
	if (how->rank == 0) {
		shared = calloc(1, sizeof *shared);
		pthread_mutex_init(&shared->lock, NULL);
		shared->nranks = shared->nopen = how->nranks;
		st = how->store->set(how->store->self, key, &shared, sizeof shared);
	} else {
		st = how->store->get(how->store->self, key, how->deadline, &shared, &len);
	}
	me->mailboxes = shared;
	if (st)
		free(me);
	else
		*self = me;
	return st;
}

static void queue_message(struct mailboxes *o, int32_t from, const struct tess_coll *c)
{
	size_t bytes = c->count * tess_width(c->dtype);
	struct queued_message **at = &o->queue[from][c->peer], *l = malloc(sizeof *l + bytes);

	l->next = NULL;
	l->sequence = ++o->sent[from][c->peer];
	l->fingerprint = c->fingerprint;
	l->bytes = bytes;
	memcpy(l->data, c->src, bytes);
	while (*at)
		at = &(*at)->next;
	*at = l;
}

static int take_message(struct queued_message **at, const struct minimal_call *t)
{
	struct queued_message *l;

	while (*at && (*at)->sequence != t->sequence)
		at = &(*at)->next;
	l = *at;
	if (!l || l->fingerprint != t->c.fingerprint) /* nothing moves between calls that differ */
		return 0;
	memcpy(t->c.dst, l->data, l->bytes);
	*at = l->next;
	free(l);
	return 1;
}

static tess_status minimal_start(void *self, const struct tess_coll *c, void **work)
{
	struct minimal_group *me = self;
	struct mailboxes *o = me->mailboxes;
	struct minimal_call *t = calloc(1, sizeof *t);

	t->c = *c;
	pthread_mutex_lock(&o->lock);
	if (c->kind == TESS_SEND)
		queue_message(o, me->rank, c);
	if (c->kind == TESS_RECV)
		t->sequence = ++o->received[c->peer][me->rank];
	if (c->kind == TESS_RECV)
		t->done = take_message(&o->queue[c->peer][me->rank], t);
	if (c->kind == TESS_BARRIER)
		t->sequence = ++o->barriers[me->rank];
	pthread_mutex_unlock(&o->lock);
	t->done |= c->kind == TESS_SEND;
	*work = t;
	return TESS_OK;
}

static tess_status minimal_test(void *self, void *work)
{
	struct minimal_group *me = self;
	struct mailboxes *o = me->mailboxes;
	struct minimal_call *t = work;

	if (t->done)
		return TESS_OK;
	pthread_mutex_lock(&o->lock);
	t->done = 1;
	if (t->c.kind == TESS_RECV)
		t->done = take_message(&o->queue[t->c.peer][me->rank], t);
	else
		for (int32_t r = 0; r < o->nranks; r++)
			t->done &= o->barriers[r] >= t->sequence;
	pthread_mutex_unlock(&o->lock);
	return t->done ? TESS_OK : TESS_PENDING;
}

static tess_status minimal_wait(void *self, void *work, int64_t deadline)
{
	(void)self;
	(void)work;
	(void)deadline;
	return host->fail(TESS_EBUG, "minimal: wait was called, though there is no abort");
}

#ifdef BATCH
static tess_status minimal_batch(void *self, const struct tess_coll *const *c, uint32_t n,
                                 void **work)
{
	(void)self, (void)c, (void)work;
	return host->fail(TESS_EBUG, "minimal: a batch of %u calls, not all of which it has",
	                  (unsigned)n);
}
#endif

static void minimal_release(void *self, void *work)
{
	(void)self;
	free(work);
}

static void minimal_close(void *self)
{
	struct minimal_group *me = self;
	struct mailboxes *o = me->mailboxes;
	int last;

	pthread_mutex_lock(&o->lock);
	last = !--o->nopen;
	pthread_mutex_unlock(&o->lock);
	free(me);
	if (!last)
		return;
	for (int i = 0; i < RANKS * RANKS; i++)
		for (struct queued_message *l = o->queue[i / RANKS][i % RANKS], *next; l;
		     l = next) {
			next = l->next;
			free(l);
		}
	pthread_mutex_destroy(&o->lock);
	free(o);
}

static tess_status minimal_init(const struct tess_host *h)
{
	host = h;
	return TESS_OK;
}

static const struct tess_backend minimal = {
	.size = sizeof minimal,
	.threads = THREADS,
	.name = NAME,
	.summary = "only what a backend must have",
	.supports = minimal_supports,
	.open = minimal_open,
	.start = minimal_start,
	.test = minimal_test,
	.wait = minimal_wait,
	.release = minimal_release,
	.close = minimal_close,
#ifdef BATCH
	.batch = minimal_batch,
#endif
};

TESS_DEFINE_PLUGIN(NAME, "1.0", "Apache-2.0", .summary = "for tests",
                   .backends = TESS_LIST(tess_backend, &minimal), .init = minimal_init);

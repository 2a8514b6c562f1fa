#include "core/rendezvous/coordinator.h"

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/rendezvous/diagnosis.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tess_coordinator {
	pthread_mutex_t lock; /* guards the fields below */
	pthread_cond_t changed;
	struct tess_failure first;
	struct tess_failure_handler *handlers;
	struct tess_job_state state;
};

tess_status tess_coordinator_open(int32_t nranks, struct tess_coordinator **out)
{
	struct tess_coordinator *c;
	struct tess_members *all;

	if (nranks < 1 || nranks > TESS_RANKS_MAX)
		return tess_fail(TESS_EINVAL, "a job of %d ranks: 1 to %d are possible", nranks,
		                 TESS_RANKS_MAX);
	c = calloc(1, sizeof *c);
	all = tess_members_new(0, "world", nranks);
	if (c)
		c->state.rank = calloc((size_t)nranks, sizeof *c->state.rank);
	if (!c || !all || !c->state.rank || !tess_matcher_add_group(&c->state, all)) {
		if (c)
			free(c->state.rank);
		free(c);
		free(all);
		return tess_fail(TESS_ENOMEM, "no memory for a job of %d ranks", nranks);
	}
	free(all);
	c->state.nranks = nranks;
	pthread_mutex_init(&c->lock, NULL);
	tess_cond_init(&c->changed);
	*out = c;
	return TESS_OK;
}

void tess_coordinator_close(struct tess_coordinator *c)
{
	if (!c)
		return;
	tess_matcher_free(&c->state);
	tess_kv_store_free(&c->state.keys);
	for (int32_t r = 0; r < c->state.nranks; r++)
		free(c->state.rank[r].stay);
	free(c->state.rank);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* ---- the first failure ----------------------------------------------------------------------- */

/* Posts a failure unless there is one already; the lock is held. */
static void post_failure(struct tess_coordinator *c, const struct tess_failure *f)
{
	if (c->first.why)
		return;
	c->first = *f;
	pthread_cond_broadcast(&c->changed);
	for (struct tess_failure_handler *h = c->handlers; h; h = h->next)
		h->on_failure(h->arg, &c->first);
}

static void post_conflict(struct tess_coordinator *c, const struct tess_conflict *conflict)
{
	struct tess_failure f;

	if (c->first.why)
		return;
	tess_diagnose_conflict(&c->state, conflict, &f);
	post_failure(c, &f);
}

static void fail_locked(struct tess_coordinator *c, int32_t rank, tess_status why,
                        const char *sentence)
{
	struct tess_failure f = { .why = why, .rank = rank };

	snprintf(f.sentence, sizeof f.sentence, "%s", sentence);
	post_failure(c, &f);
}

void tess_coordinator_fail(struct tess_coordinator *c, int32_t rank, tess_status why,
                           const char *sentence)
{
	pthread_mutex_lock(&c->lock);
	fail_locked(c, rank, why, sentence);
	pthread_mutex_unlock(&c->lock);
}

tess_status tess_coordinator_failure(struct tess_coordinator *c, struct tess_failure *out)
{
	tess_status why;

	pthread_mutex_lock(&c->lock);
	why = c->first.why;
	if (why)
		*out = c->first;
	pthread_mutex_unlock(&c->lock);
	return why;
}

void tess_coordinator_add_handler(struct tess_coordinator *c, struct tess_failure_handler *handler)
{
	pthread_mutex_lock(&c->lock);
	handler->next = c->handlers;
	c->handlers = handler;
	if (c->first.why)
		handler->on_failure(handler->arg, &c->first);
	pthread_mutex_unlock(&c->lock);
}

void tess_coordinator_remove_handler(struct tess_coordinator *c,
                                     struct tess_failure_handler *handler)
{
	pthread_mutex_lock(&c->lock);
	for (struct tess_failure_handler **at = &c->handlers; *at; at = &(*at)->next)
		if (*at == handler) {
			*at = handler->next;
			break;
		}
	pthread_mutex_unlock(&c->lock);
}

void tess_coordinator_request_records(struct tess_coordinator *c)
{
	pthread_mutex_lock(&c->lock);
	for (struct tess_failure_handler *h = c->handlers; h; h = h->next)
		if (h->on_record)
			h->on_record(h->arg);
	pthread_mutex_unlock(&c->lock);
}

/* ---- keys ------------------------------------------------------------------------------------ */

tess_status tess_coordinator_set(struct tess_coordinator *c, const char *key, const void *val,
                                 uint64_t len)
{
	tess_status st;

	pthread_mutex_lock(&c->lock);
	st = tess_kv_store_set(&c->state.keys, key, val, len);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	return st;
}

const void *tess_coordinator_find(struct tess_coordinator *c, const char *key, uint64_t *len)
{
	const struct tess_kv_entry *e;

	pthread_mutex_lock(&c->lock);
	e = tess_kv_store_find(&c->state.keys, key);
	pthread_mutex_unlock(&c->lock);
	if (e)
		*len = e->len;
	return e ? e->val : NULL;
}

tess_status tess_coordinator_get(struct tess_coordinator *c, const char *key, int64_t deadline,
                                 void *val, uint64_t *len)
{
	struct timespec until = tess_timespec(deadline);
	const struct tess_kv_entry *e = NULL;
	tess_status st = TESS_OK;
	int err = 0;

	pthread_mutex_lock(&c->lock);
	while (!c->first.why && !(e = tess_kv_store_find(&c->state.keys, key)) && !err)
		err = pthread_cond_timedwait(&c->changed, &c->lock, &until);
	if (c->first.why)
		st = tess_fail(c->first.why, "%s", c->first.sentence);
	else if (!e)
		st = tess_fail(TESS_ETIMEOUT, "the key %s was not set by the deadline", key);
	else if (e->len > *len)
		st = tess_fail(TESS_EINVAL,
		               "the key %s holds %" PRIu64 " bytes, more than the %" PRIu64
		               " expected",
		               key, e->len, *len);
	else
		memcpy(val, e->val, *len = e->len);
	pthread_mutex_unlock(&c->lock);
	return st;
}

/* ---- groups and calls ------------------------------------------------------------------------ */

void tess_coordinator_add_group(struct tess_coordinator *c, int32_t rank,
                                const struct tess_members *m)
{
	const struct group_state *g;
	char text[160];

	pthread_mutex_lock(&c->lock);
	g = tess_matcher_find_group(&c->state, m->id);
	if (!g)
		g = tess_matcher_add_group(&c->state, m);
	if (!g) {
		snprintf(text, sizeof text, "no memory for a group of %d ranks", m->n);
		fail_locked(c, rank, TESS_ENOMEM, text);
	} else if (g->members->bytes != m->bytes || memcmp(g->members, m, m->bytes)) {
		snprintf(text, sizeof text,
		         "rank %d has a group %s with other members than its peers have", rank,
		         m->name);
		fail_locked(c, rank, TESS_EBUG, text);
	}
	pthread_mutex_unlock(&c->lock);
}

int32_t tess_coordinator_group_size(struct tess_coordinator *c, int32_t rank, uint32_t id)
{
	const struct group_state *g;
	int32_t n = 0;

	pthread_mutex_lock(&c->lock);
	g = tess_matcher_find_group(&c->state, id);
	if (g && tess_members_find(g->members, rank) >= 0)
		n = g->members->n;
	pthread_mutex_unlock(&c->lock);
	return n;
}

void tess_coordinator_leave_group(struct tess_coordinator *c, int32_t rank, uint32_t id)
{
	struct tess_conflict conflict;

	pthread_mutex_lock(&c->lock);
	if (tess_matcher_leave_group(&c->state, tess_matcher_find_group(&c->state, id), rank,
	                             &conflict))
		post_conflict(c, &conflict);
	pthread_mutex_unlock(&c->lock);
}

void tess_coordinator_add_call(struct tess_coordinator *c, int32_t rank,
                               const struct tess_call_desc *d)
{
	struct tess_conflict conflict;

	pthread_mutex_lock(&c->lock);
	if (tess_matcher_add_call(&c->state, tess_matcher_find_group(&c->state, d->key.group), rank,
	                          d, &conflict))
		post_conflict(c, &conflict);
	pthread_mutex_unlock(&c->lock);
}

uint64_t tess_coordinator_last_call(struct tess_coordinator *c, int32_t rank, char *text,
                                    size_t size)
{
	char last[LAST_CALL_TEXT];
	uint64_t number;

	pthread_mutex_lock(&c->lock);
	tess_describe_last_call(&c->state, rank, NULL, last, sizeof last);
	number = tess_matcher_find_group(&c->state, 0)->member[rank].reached;
	pthread_mutex_unlock(&c->lock);
	snprintf(text, size, "%s", last);
	return number;
}

void tess_coordinator_deadline_passed(struct tess_coordinator *c, int32_t rank,
                                      const struct tess_call_key *key, int32_t n)
{
	struct tess_failure f;

	pthread_mutex_lock(&c->lock);
	if (!c->first.why && tess_diagnose_deadline(&c->state, rank, key, n, &f))
		post_failure(c, &f);
	pthread_mutex_unlock(&c->lock);
}

void tess_coordinator_set_stay(struct tess_coordinator *c, int32_t rank, const char *text,
                               int64_t stayed, bool overdue)
{
	struct rank_state *r = &c->state.rank[rank];
	struct tess_failure f;

	pthread_mutex_lock(&c->lock);
	free(r->stay);
	r->stay = *text ? strndup(text, STAY_TEXT) : NULL;
	r->stay_began = tess_now() - stayed;
	r->overdue = overdue;
	if (r->stay && overdue && !c->first.why) {
		tess_diagnose_stay(&c->state, rank, &f);
		post_failure(c, &f);
	}
	pthread_mutex_unlock(&c->lock);
}

bool tess_coordinator_is_stuck(struct tess_coordinator *c, int32_t rank)
{
	bool stuck;

	pthread_mutex_lock(&c->lock);
	stuck = c->state.rank[rank].overdue;
	pthread_mutex_unlock(&c->lock);
	return stuck;
}

/* ---- ranks join and leave -------------------------------------------------------------------- */

tess_status tess_coordinator_join(struct tess_coordinator *c, int32_t rank, pid_t pid)
{
	tess_status st = TESS_OK;
	struct rank_state *r;

	if (rank < 0 || rank >= c->state.nranks)
		return tess_fail(TESS_EINVAL, "rank %d is not in a job of %d ranks", rank,
		                 c->state.nranks);
	pthread_mutex_lock(&c->lock);
	r = &c->state.rank[rank];
	if (r->joined) {
		st = tess_fail(TESS_EINVAL, "rank %d joined twice: as process %d and as process %d",
		               rank, (int)r->pid, (int)pid);
	} else {
		r->joined = true;
		r->pid = pid;
		c->state.joined++;
	}
	pthread_mutex_unlock(&c->lock);
	return st;
}

void tess_coordinator_heartbeat(struct tess_coordinator *c, int32_t rank)
{
	pthread_mutex_lock(&c->lock);
	c->state.rank[rank].last_heard = tess_now();
	pthread_mutex_unlock(&c->lock);
}

int32_t tess_coordinator_joined(struct tess_coordinator *c)
{
	int32_t n;

	pthread_mutex_lock(&c->lock);
	n = c->state.joined;
	pthread_mutex_unlock(&c->lock);
	return n;
}

void tess_coordinator_leave(struct tess_coordinator *c, int32_t rank)
{
	struct tess_conflict conflict;

	pthread_mutex_lock(&c->lock);
	if (!c->state.rank[rank].left) {
		c->state.rank[rank].left = true;
		c->state.left++;
		if (tess_matcher_check_left(&c->state, &conflict))
			post_conflict(c, &conflict);
		pthread_cond_broadcast(&c->changed);
	}
	pthread_mutex_unlock(&c->lock);
}

int32_t tess_coordinator_left(struct tess_coordinator *c)
{
	int32_t n;

	pthread_mutex_lock(&c->lock);
	n = c->state.left;
	pthread_mutex_unlock(&c->lock);
	return n;
}

bool tess_coordinator_has_left(struct tess_coordinator *c, int32_t rank)
{
	bool left;

	pthread_mutex_lock(&c->lock);
	left = c->state.rank[rank].left;
	pthread_mutex_unlock(&c->lock);
	return left;
}

tess_status tess_coordinator_wait_left(struct tess_coordinator *c, int64_t deadline)
{
	struct timespec until = tess_timespec(deadline);
	tess_status st;
	int err = 0;

	pthread_mutex_lock(&c->lock);
	while (!c->first.why && c->state.left < c->state.nranks && !err)
		err = pthread_cond_timedwait(&c->changed, &c->lock, &until);
	st = c->first.why                      ? c->first.why
	     : c->state.left < c->state.nranks ? TESS_ETIMEOUT
	                                       : TESS_OK;
	pthread_mutex_unlock(&c->lock);
	return st;
}

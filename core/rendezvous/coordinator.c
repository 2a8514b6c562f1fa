#include "coordinator.h"

#include "core/base/clock.h"
#include "call_matcher.h"
#include "wire.h"

#include "core/base/status.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tess_status tess_coordinator_open(int32_t nranks, struct tess_coordinator **out)
{
	struct tess_coordinator *h;
	struct tess_members *all;
	pthread_condattr_t attr;

	if (nranks < 1 || nranks > TESS_RANKS_MAX)
		return tess_fail(TESS_EINVAL, "a job of %d ranks: 1 to %d are possible", nranks,
		                 TESS_RANKS_MAX);
	h = calloc(1, sizeof *h + (size_t)nranks * sizeof *h->rank);
	all = tess_members_new(0, "world", nranks);
	if (!h || !all || !tess_matcher_add_group(h, all)) {
		free(h);
		free(all);
		return tess_fail(TESS_ENOMEM, "no memory for a job of %d ranks", nranks);
	}
	free(all);
	h->nranks = nranks;
	pthread_mutex_init(&h->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&h->changed, &attr);
	pthread_condattr_destroy(&attr);
	*out = h;
	return TESS_OK;
}

void tess_coordinator_close(struct tess_coordinator *h)
{
	if (!h)
		return;
	tess_matcher_free(h);
	tess_kv_store_free(&h->keys);
	pthread_cond_destroy(&h->changed);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

/* ---- failures -------------------------------------------------------------------------------- */

void tess_coordinator_post_failure(struct tess_coordinator *h, int32_t rank, tess_status why,
                                   const char *fmt, ...)
{
	va_list ap;

	if (h->first.why)
		return;
	va_start(ap, fmt);
	vsnprintf(h->first.sentence, sizeof h->first.sentence, fmt, ap);
	va_end(ap);
	h->first.rank = rank;
	h->first.why = why;
	pthread_cond_broadcast(&h->changed);
	for (struct tess_failure_handler *l = h->handlers; l; l = l->next)
		l->on_failure(l->arg, &h->first);
}

void tess_coordinator_fail(struct tess_coordinator *h, int32_t rank, tess_status why,
                           const char *sentence)
{
	pthread_mutex_lock(&h->lock);
	tess_coordinator_post_failure(h, rank, why, "%s", sentence);
	pthread_mutex_unlock(&h->lock);
}

tess_status tess_coordinator_failure(struct tess_coordinator *h, struct tess_failure *out)
{
	tess_status why;

	pthread_mutex_lock(&h->lock);
	why = h->first.why;
	if (why)
		*out = h->first;
	pthread_mutex_unlock(&h->lock);
	return why;
}

void tess_coordinator_add_handler(struct tess_coordinator *h, struct tess_failure_handler *l)
{
	pthread_mutex_lock(&h->lock);
	l->next = h->handlers;
	h->handlers = l;
	if (h->first.why)
		l->on_failure(l->arg, &h->first);
	pthread_mutex_unlock(&h->lock);
}

void tess_coordinator_remove_handler(struct tess_coordinator *h, struct tess_failure_handler *l)
{
	pthread_mutex_lock(&h->lock);
	for (struct tess_failure_handler **at = &h->handlers; *at; at = &(*at)->next)
		if (*at == l) {
			*at = l->next;
			break;
		}
	pthread_mutex_unlock(&h->lock);
}

void tess_coordinator_request_records(struct tess_coordinator *h)
{
	pthread_mutex_lock(&h->lock);
	for (struct tess_failure_handler *l = h->handlers; l; l = l->next)
		if (l->on_record)
			l->on_record(l->arg);
	pthread_mutex_unlock(&h->lock);
}

/* ---- keys ------------------------------------------------------------------------------------ */

tess_status tess_coordinator_set(struct tess_coordinator *h, const char *key, const void *val,
                                 uint64_t len)
{
	tess_status st;

	pthread_mutex_lock(&h->lock);
	st = tess_kv_store_set(&h->keys, key, val, len);
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
	return st;
}

const void *tess_coordinator_find(struct tess_coordinator *h, const char *key, uint64_t *len)
{
	const struct tess_kv_entry *p;

	pthread_mutex_lock(&h->lock);
	p = tess_kv_store_find(&h->keys, key);
	pthread_mutex_unlock(&h->lock);
	if (p)
		*len = p->len;
	return p ? p->val : NULL;
}

tess_status tess_coordinator_get(struct tess_coordinator *h, const char *key, int64_t deadline,
                                 void *val, uint64_t *len)
{
	struct timespec until = tess_timespec(deadline);
	const struct tess_kv_entry *p = NULL;
	tess_status st = TESS_OK;
	int err = 0;

	pthread_mutex_lock(&h->lock);
	while (!h->first.why && !(p = tess_kv_store_find(&h->keys, key)) && !err)
		err = pthread_cond_timedwait(&h->changed, &h->lock, &until);
	if (h->first.why)
		st = tess_fail(h->first.why, "%s", h->first.sentence);
	else if (!p)
		st = tess_fail(TESS_ETIMEOUT, "the key %s was not set by the deadline", key);
	else if (p->len > *len)
		st = tess_fail(TESS_EINVAL,
		               "the key %s holds %" PRIu64 " bytes, more than the %" PRIu64
		               " expected",
		               key, p->len, *len);
	else
		memcpy(val, p->val, *len = p->len);
	pthread_mutex_unlock(&h->lock);
	return st;
}

/* ---- groups and calls ------------------------------------------------------------------------ */

void tess_coordinator_add_group(struct tess_coordinator *h, int32_t rank,
                                const struct tess_members *r)
{
	const struct group_state *g;

	pthread_mutex_lock(&h->lock);
	g = tess_matcher_find_group(h, r->id);
	if (!g)
		g = tess_matcher_add_group(h, r);
	if (!g)
		tess_coordinator_post_failure(h, rank, TESS_ENOMEM,
		                              "no memory for a group of %d ranks", r->n);
	else if (g->members->bytes != r->bytes || memcmp(g->members, r, r->bytes))
		tess_coordinator_post_failure(h, rank, TESS_EBUG,
		                              "rank %d has another group %s than the others", rank,
		                              r->name);
	pthread_mutex_unlock(&h->lock);
}

int32_t tess_coordinator_group_size(struct tess_coordinator *h, int32_t rank, uint32_t id)
{
	const struct group_state *g;
	int32_t n = 0;

	pthread_mutex_lock(&h->lock);
	g = tess_matcher_find_group(h, id);
	if (g && tess_members_find(g->members, rank) >= 0)
		n = g->members->n;
	pthread_mutex_unlock(&h->lock);
	return n;
}

void tess_coordinator_leave_group(struct tess_coordinator *h, int32_t rank, uint32_t id)
{
	pthread_mutex_lock(&h->lock);
	tess_matcher_leave_group(h, tess_matcher_find_group(h, id), rank);
	pthread_mutex_unlock(&h->lock);
}

uint64_t tess_coordinator_last_call(struct tess_coordinator *h, int32_t rank, char *text,
                                    size_t room)
{
	char at[MATCHER_STATE];
	uint64_t number;

	pthread_mutex_lock(&h->lock);
	snprintf(text, room, "%s", tess_matcher_describe_rank(h, rank, NULL, at, sizeof at));
	number = tess_matcher_find_group(h, 0)->member[rank].reached;
	pthread_mutex_unlock(&h->lock);
	return number;
}

void tess_coordinator_add_call(struct tess_coordinator *h, int32_t rank,
                               const struct tess_call_desc *n)
{
	pthread_mutex_lock(&h->lock);
	tess_matcher_add_call(h, tess_matcher_find_group(h, n->key.group), rank, n);
	pthread_mutex_unlock(&h->lock);
}

/* ---- who is here, who is behind -------------------------------------------------------------- */

tess_status tess_coordinator_join(struct tess_coordinator *h, int32_t rank, pid_t pid)
{
	tess_status st = TESS_OK;

	if (rank < 0 || rank >= h->nranks)
		return tess_fail(TESS_EINVAL, "rank %d came to a job of %d ranks", rank, h->nranks);
	pthread_mutex_lock(&h->lock);
	if (h->rank[rank].joined) {
		st = tess_fail(TESS_EINVAL, "rank %d came twice: as process %d and as process %d",
		               rank, (int)h->rank[rank].pid, (int)pid);
	} else {
		h->rank[rank].joined = true;
		h->rank[rank].pid = pid;
		h->joined++;
	}
	pthread_mutex_unlock(&h->lock);
	return st;
}

void tess_coordinator_heartbeat(struct tess_coordinator *h, int32_t rank)
{
	pthread_mutex_lock(&h->lock);
	h->rank[rank].heard = tess_now();
	pthread_mutex_unlock(&h->lock);
}

int32_t tess_coordinator_joined(struct tess_coordinator *h)
{
	int32_t n;

	pthread_mutex_lock(&h->lock);
	n = h->joined;
	pthread_mutex_unlock(&h->lock);
	return n;
}

void tess_coordinator_leave(struct tess_coordinator *h, int32_t rank)
{
	pthread_mutex_lock(&h->lock);
	if (!h->rank[rank].left) {
		h->rank[rank].left = true;
		h->left++;
		tess_matcher_check_left(h);
		pthread_cond_broadcast(&h->changed);
	}
	pthread_mutex_unlock(&h->lock);
}

int32_t tess_coordinator_left(struct tess_coordinator *h)
{
	int32_t n;

	pthread_mutex_lock(&h->lock);
	n = h->left;
	pthread_mutex_unlock(&h->lock);
	return n;
}

tess_status tess_coordinator_wait_left(struct tess_coordinator *h, int64_t deadline)
{
	struct timespec until = tess_timespec(deadline);
	tess_status st;
	int err = 0;

	pthread_mutex_lock(&h->lock);
	while (!h->first.why && h->left < h->nranks && !err)
		err = pthread_cond_timedwait(&h->changed, &h->lock, &until);
	st = h->first.why ? h->first.why : h->left < h->nranks ? TESS_ETIMEOUT : TESS_OK;
	pthread_mutex_unlock(&h->lock);
	return st;
}

/* A process that SIGSTOP or a debugger holds. Threads of this process are not. */
static bool is_stopped(pid_t pid)
{
	char path[48], line[512], *end;
	FILE *f;
	bool yes = false;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	f = pid ? fopen(path, "re") : NULL;
	if (f && fgets(line, sizeof line, f) &&
	    (end = strrchr(line, ')'))) /* a name may hold anything */
		yes = end[1] == ' ' && (end[2] == 'T' || end[2] == 't');
	if (f)
		fclose(f);
	return yes;
}

/* For how long a rank that says now and then that it is alive has not said so; 0: it has, or need not. */
static double compute_silence(const struct rank_state *s)
{
	int64_t for_ns = s->heard && !s->left ? tess_now() - s->heard : 0;

	return for_ns > TESS_SILENT_MS * (int64_t)TESS_MS ? (double)for_ns / 1e9 : 0;
}

/* Outside of calls the job waits for those who have not come, or have not left. */
static bool is_awaited(const struct tess_coordinator *h, int32_t rank)
{
	return h->joined < h->nranks ? !h->rank[rank].joined : !h->rank[rank].left;
}

enum { CAUSE_NONE, CAUSE_MISSING, CAUSE_CROSSED, CAUSE_SILENT, CAUSE_STOPPED };

/*
 * A rank that is missed may itself wait for another one, and so on: the end of that chain, as far as it goes
 * over ranks that `c` lacks (NULL: over any).
 */
static int32_t follow_waits(struct tess_coordinator *h, const struct call_state *c, int32_t who)
{
	int32_t next = who;

	for (int32_t steps = 0;
	     steps < h->nranks && next >= 0 && (!c || tess_matcher_call_lacks(c, next)); steps++) {
		who = next;
		next = tess_matcher_awaited_rank(h, who);
	}
	return who;
}

void tess_coordinator_deadline_passed(struct tess_coordinator *h, int32_t rank,
                                      const struct tess_call_key *key, int32_t n)
{
	static const char *const missed[] = { "has not come", "has not left", "has not joined" };
	const struct rank_state *self = &h->rank[rank];
	char text[MATCHER_TEXT] = "the job", at[MATCHER_STATE], more[48] = "", waits[48] = "";
	const char *what, *state;
	const struct call_state *c;
	int32_t who = -1, others = 0, last;
	int worst = CAUSE_NONE;

	pthread_mutex_lock(&h->lock);
	c = tess_matcher_find_awaited(h, key, n);
	what = missed[n ? 2 : h->joined == h->nranks];
	if (c)
		tess_call_desc_format(c->by[0].note, c->group->members, text, sizeof text);
	else if (n && self->last)
		tess_call_desc_format(self->last, self->last_group->members, text, sizeof text);
	/* A rank that is held is the cause; else one that waits for this one elsewhere, or is missed. */
	for (int32_t r = 0; r < h->nranks; r++) {
		bool lacks = c ? tess_matcher_call_lacks(c, r) : !n && is_awaited(h, r);
		int how = h->rank[r].joined && is_stopped(h->rank[r].pid) ? CAUSE_STOPPED
		          : compute_silence(&h->rank[r]) > 0              ? CAUSE_SILENT
		          : !lacks                                        ? CAUSE_NONE
		          : tess_matcher_waits_for(h, r, rank)            ? CAUSE_CROSSED
		                                                          : CAUSE_MISSING;

		others += lacks;
		if (how > worst) {
			who = r;
			worst = how;
		}
	}
	if (c && worst == CAUSE_MISSING) {
		who = follow_waits(h, c, who);
		last = follow_waits(h, NULL, who);
		if (last != who && last != rank)
			snprintf(waits, sizeof waits, "; it waits for rank %d", last);
	}
	state = who < 0 ? "" : tess_matcher_describe_rank(h, who, NULL, at, sizeof at);
	if (others > 1)
		snprintf(more, sizeof more, " (one of %d such ranks)", others);
	if (who < 0 && n && !key->number)
		; /* the backend knows more of what all ranks have come to, and says it */
	else if (who < 0)
		tess_coordinator_post_failure(
			h, -1, TESS_ETIMEOUT,
			"%s was not finished by the deadline of rank %d, though all its ranks have "
			"joined it",
			text, rank);
	else if (worst == CAUSE_STOPPED)
		tess_coordinator_post_failure(
			h, who, TESS_ETIMEOUT,
			"rank %d (process %d) is stopped; %s was not finished by the deadline of "
			"rank %d",
			who, (int)h->rank[who].pid, text, rank);
	else if (worst == CAUSE_SILENT)
		tess_coordinator_post_failure(
			h, who, TESS_ETIMEOUT,
			"rank %d has not been heard of for %.1f s: it has ended, is stopped or out of "
			"reach; %s was not finished by the deadline of rank %d",
			who, compute_silence(&h->rank[who]), text, rank);
	else
		tess_coordinator_post_failure(h, who, TESS_ETIMEOUT,
		                              "rank %d%s %s by the deadline of rank %d%s%s%s%s%s",
		                              who, more, what, rank, n ? ": " : "", n ? text : "",
		                              *state ? "; " : "", state, waits);
	pthread_mutex_unlock(&h->lock);
}

#include "hub.h"

#include "clock.h"
#include "ledger.h"
#include "wire.h"

#include <core/base/status.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tess_status tess_hub_open(int32_t nranks, struct tess_hub **out)
{
	struct tess_hub *h;
	struct tess_roster *all;
	pthread_condattr_t attr;

	if (nranks < 1 || nranks > TESS_RANKS_MOST)
		return tess_fail(TESS_EINVAL, "a job of %d ranks: 1 to %d are possible", nranks,
		                 TESS_RANKS_MOST);
	h = calloc(1, sizeof *h + (size_t)nranks * sizeof *h->seat);
	all = tess_roster_new(0, "world", nranks);
	if (!h || !all || !tess_ledger_group(h, all)) {
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

void tess_hub_close(struct tess_hub *h)
{
	if (!h)
		return;
	tess_ledger_free(h);
	tess_pairs_free(&h->keys);
	pthread_cond_destroy(&h->changed);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

/* ---- failures -------------------------------------------------------------------------------- */

void tess_hub_blame(struct tess_hub *h, int32_t rank, tess_status why, const char *fmt, ...)
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
	for (struct tess_listener *l = h->listeners; l; l = l->next)
		l->failed(l->arg, &h->first);
}

void tess_hub_fail(struct tess_hub *h, int32_t rank, tess_status why, const char *sentence)
{
	pthread_mutex_lock(&h->lock);
	tess_hub_blame(h, rank, why, "%s", sentence);
	pthread_mutex_unlock(&h->lock);
}

tess_status tess_hub_failure(struct tess_hub *h, struct tess_failure *out)
{
	tess_status why;

	pthread_mutex_lock(&h->lock);
	why = h->first.why;
	if (why)
		*out = h->first;
	pthread_mutex_unlock(&h->lock);
	return why;
}

void tess_hub_listen(struct tess_hub *h, struct tess_listener *l)
{
	pthread_mutex_lock(&h->lock);
	l->next = h->listeners;
	h->listeners = l;
	if (h->first.why)
		l->failed(l->arg, &h->first);
	pthread_mutex_unlock(&h->lock);
}

void tess_hub_unlisten(struct tess_hub *h, struct tess_listener *l)
{
	pthread_mutex_lock(&h->lock);
	for (struct tess_listener **at = &h->listeners; *at; at = &(*at)->next)
		if (*at == l) {
			*at = l->next;
			break;
		}
	pthread_mutex_unlock(&h->lock);
}

void tess_hub_record(struct tess_hub *h)
{
	pthread_mutex_lock(&h->lock);
	for (struct tess_listener *l = h->listeners; l; l = l->next)
		if (l->record)
			l->record(l->arg);
	pthread_mutex_unlock(&h->lock);
}

/* ---- keys ------------------------------------------------------------------------------------ */

tess_status tess_hub_set(struct tess_hub *h, const char *key, const void *val, uint64_t len)
{
	tess_status st;

	pthread_mutex_lock(&h->lock);
	st = tess_pairs_set(&h->keys, key, val, len);
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
	return st;
}

const void *tess_hub_find(struct tess_hub *h, const char *key, uint64_t *len)
{
	const struct tess_pair *p;

	pthread_mutex_lock(&h->lock);
	p = tess_pairs_find(&h->keys, key);
	pthread_mutex_unlock(&h->lock);
	if (p)
		*len = p->len;
	return p ? p->val : NULL;
}

tess_status tess_hub_get(struct tess_hub *h, const char *key, int64_t deadline, void *val,
                         uint64_t *len)
{
	struct timespec until = tess_timespec(deadline);
	const struct tess_pair *p = NULL;
	tess_status st = TESS_OK;
	int err = 0;

	pthread_mutex_lock(&h->lock);
	while (!h->first.why && !(p = tess_pairs_find(&h->keys, key)) && !err)
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

void tess_hub_group(struct tess_hub *h, int32_t rank, const struct tess_roster *r)
{
	const struct hub_group *g;

	pthread_mutex_lock(&h->lock);
	g = tess_ledger_group_of(h, r->id);
	if (!g)
		g = tess_ledger_group(h, r);
	if (!g)
		tess_hub_blame(h, rank, TESS_ENOMEM, "no memory for a group of %d ranks", r->n);
	else if (g->roster->bytes != r->bytes || memcmp(g->roster, r, r->bytes))
		tess_hub_blame(h, rank, TESS_EBUG, "rank %d has another group %s than the others",
		               rank, r->name);
	pthread_mutex_unlock(&h->lock);
}

int32_t tess_hub_group_size(struct tess_hub *h, int32_t rank, uint32_t id)
{
	const struct hub_group *g;
	int32_t n = 0;

	pthread_mutex_lock(&h->lock);
	g = tess_ledger_group_of(h, id);
	if (g && tess_roster_place(g->roster, rank) >= 0)
		n = g->roster->n;
	pthread_mutex_unlock(&h->lock);
	return n;
}

void tess_hub_group_leave(struct tess_hub *h, int32_t rank, uint32_t id)
{
	pthread_mutex_lock(&h->lock);
	tess_ledger_group_left(h, tess_ledger_group_of(h, id), rank);
	pthread_mutex_unlock(&h->lock);
}

uint64_t tess_hub_whereabouts(struct tess_hub *h, int32_t rank, char *text, size_t room)
{
	char at[HUB_STATE];
	uint64_t number;

	pthread_mutex_lock(&h->lock);
	snprintf(text, room, "%s", tess_ledger_whereabouts(h, rank, NULL, at, sizeof at));
	number = tess_ledger_group_of(h, 0)->member[rank].reached;
	pthread_mutex_unlock(&h->lock);
	return number;
}

void tess_hub_note(struct tess_hub *h, int32_t rank, const struct tess_note *n)
{
	pthread_mutex_lock(&h->lock);
	tess_ledger_note(h, tess_ledger_group_of(h, n->key.group), rank, n);
	pthread_mutex_unlock(&h->lock);
}

/* ---- who is here, who is behind -------------------------------------------------------------- */

tess_status tess_hub_enter(struct tess_hub *h, int32_t rank, pid_t pid)
{
	tess_status st = TESS_OK;

	if (rank < 0 || rank >= h->nranks)
		return tess_fail(TESS_EINVAL, "rank %d came to a job of %d ranks", rank, h->nranks);
	pthread_mutex_lock(&h->lock);
	if (h->seat[rank].here) {
		st = tess_fail(TESS_EINVAL, "rank %d came twice: as process %d and as process %d",
		               rank, (int)h->seat[rank].pid, (int)pid);
	} else {
		h->seat[rank].here = true;
		h->seat[rank].pid = pid;
		h->entered++;
	}
	pthread_mutex_unlock(&h->lock);
	return st;
}

void tess_hub_heard(struct tess_hub *h, int32_t rank)
{
	pthread_mutex_lock(&h->lock);
	h->seat[rank].heard = tess_now();
	pthread_mutex_unlock(&h->lock);
}

int32_t tess_hub_entered(struct tess_hub *h)
{
	int32_t n;

	pthread_mutex_lock(&h->lock);
	n = h->entered;
	pthread_mutex_unlock(&h->lock);
	return n;
}

void tess_hub_leave(struct tess_hub *h, int32_t rank)
{
	pthread_mutex_lock(&h->lock);
	if (!h->seat[rank].left) {
		h->seat[rank].left = true;
		h->left++;
		tess_ledger_left(h);
		pthread_cond_broadcast(&h->changed);
	}
	pthread_mutex_unlock(&h->lock);
}

int32_t tess_hub_left(struct tess_hub *h)
{
	int32_t n;

	pthread_mutex_lock(&h->lock);
	n = h->left;
	pthread_mutex_unlock(&h->lock);
	return n;
}

tess_status tess_hub_wait_left(struct tess_hub *h, int64_t deadline)
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
static bool stopped(pid_t pid)
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
static double silent(const struct hub_seat *s)
{
	int64_t for_ns = s->heard && !s->left ? tess_now() - s->heard : 0;

	return for_ns > TESS_SILENT_MS * (int64_t)TESS_MS ? (double)for_ns / 1e9 : 0;
}

/* Outside of calls the job waits for those who have not come, or have not left. */
static bool behind(const struct tess_hub *h, int32_t rank)
{
	return h->entered < h->nranks ? !h->seat[rank].here : !h->seat[rank].left;
}

enum { NOBODY, MISSED, CROSSED, SILENT, ASLEEP };

/*
 * A rank that is missed may itself wait for another one, and so on: the end of that chain, as far as it goes
 * over ranks that `c` lacks (NULL: over any).
 */
static int32_t follow(struct tess_hub *h, const struct hub_call *c, int32_t who)
{
	int32_t next = who;

	for (int32_t steps = 0;
	     steps < h->nranks && next >= 0 && (!c || tess_ledger_lacks(c, next)); steps++) {
		who = next;
		next = tess_ledger_awaits(h, who);
	}
	return who;
}

void tess_hub_late(struct tess_hub *h, int32_t rank, const struct tess_key *key, int32_t n)
{
	static const char *const missed[] = { "has not come", "has not left", "has not joined" };
	const struct hub_seat *self = &h->seat[rank];
	char text[HUB_TEXT] = "the job", at[HUB_STATE], more[48] = "", waits[48] = "";
	const char *what, *state;
	const struct hub_call *c;
	int32_t who = -1, others = 0, last;
	int worst = NOBODY;

	pthread_mutex_lock(&h->lock);
	c = tess_ledger_awaited(h, key, n);
	what = missed[n ? 2 : h->entered == h->nranks];
	if (c)
		tess_note_text(c->by[0].note, c->group->roster, text, sizeof text);
	else if (n && self->last)
		tess_note_text(self->last, self->in->roster, text, sizeof text);
	/* A rank that is held is the cause; else one that waits for this one elsewhere, or is missed. */
	for (int32_t r = 0; r < h->nranks; r++) {
		bool lacks = c ? tess_ledger_lacks(c, r) : !n && behind(h, r);
		int how = h->seat[r].here && stopped(h->seat[r].pid) ? ASLEEP
		          : silent(&h->seat[r]) > 0                  ? SILENT
		          : !lacks                                   ? NOBODY
		          : tess_ledger_waits(h, r, rank)            ? CROSSED
		                                                     : MISSED;

		others += lacks;
		if (how > worst) {
			who = r;
			worst = how;
		}
	}
	if (c && worst == MISSED) {
		who = follow(h, c, who);
		last = follow(h, NULL, who);
		if (last != who && last != rank)
			snprintf(waits, sizeof waits, "; it waits for rank %d", last);
	}
	state = who < 0 ? "" : tess_ledger_whereabouts(h, who, NULL, at, sizeof at);
	if (others > 1)
		snprintf(more, sizeof more, " (one of %d such ranks)", others);
	if (who < 0 && n && !key->number)
		; /* the backend knows more of what all ranks have come to, and says it */
	else if (who < 0)
		tess_hub_blame(
			h, -1, TESS_ETIMEOUT,
			"%s was not finished by the deadline of rank %d, though all its ranks have "
			"joined it",
			text, rank);
	else if (worst == ASLEEP)
		tess_hub_blame(
			h, who, TESS_ETIMEOUT,
			"rank %d (process %d) is stopped; %s was not finished by the deadline of "
			"rank %d",
			who, (int)h->seat[who].pid, text, rank);
	else if (worst == SILENT)
		tess_hub_blame(
			h, who, TESS_ETIMEOUT,
			"rank %d has not been heard of for %.1f s: it has ended, is stopped or out of "
			"reach; %s was not finished by the deadline of rank %d",
			who, silent(&h->seat[who]), text, rank);
	else
		tess_hub_blame(h, who, TESS_ETIMEOUT,
		               "rank %d%s %s by the deadline of rank %d%s%s%s%s%s", who, more, what,
		               rank, n ? ": " : "", n ? text : "", *state ? "; " : "", state,
		               waits);
	pthread_mutex_unlock(&h->lock);
}

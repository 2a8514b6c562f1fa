#include "hub.h"

#include "clock.h"

#include <core/base/log.h>
#include <core/base/status.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 256, CALLS_MOST = 1 << 16, TEXT = 480, STATE = TEXT + 48 };

struct pair { /* a key of the store */
	struct pair *next;
	uint64_t len;
	char *val;
	char key[];
};

struct call { /* a call that some of its ranks have made */
	struct call *next;
	int32_t arrived;
	struct {
		int32_t rank;
		struct tess_note *note;
	} by[];
};

struct seat {
	pid_t pid;
	bool here, left;
	struct tess_note *last; /* its last call that is known; NULL: none yet */
	struct tess_key reached; /* the last collective */
};

struct tess_hub {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct tess_failure first;
	struct tess_listener *listeners;
	struct pair *keys;
	struct call *calls[BUCKETS];
	int32_t ncalls, sweep_at;
	bool blind; /* a rank ran too far ahead: some calls were not kept */
	int32_t nranks, entered, left;
	struct seat seat[];
};

tess_status tess_hub_open(int32_t nranks, struct tess_hub **out)
{
	struct tess_hub *h;
	pthread_condattr_t attr;

	if (nranks < 1 || nranks > TESS_RANKS_MOST)
		return tess_fail(TESS_EINVAL, "a job of %d ranks: 1 to %d are possible", nranks,
		                 TESS_RANKS_MOST);
	h = calloc(1, sizeof *h + (size_t)nranks * sizeof *h->seat);
	if (!h)
		return tess_fail(TESS_ENOMEM, "no memory for a job of %d ranks", nranks);
	h->nranks = nranks;
	pthread_mutex_init(&h->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&h->changed, &attr);
	pthread_condattr_destroy(&attr);
	*out = h;
	return TESS_OK;
}

static void call_free(struct call *c)
{
	for (int32_t i = 0; i < c->arrived; i++)
		free(c->by[i].note);
	free(c);
}

void tess_hub_close(struct tess_hub *h)
{
	if (!h)
		return;
	for (struct pair *p = h->keys, *next; p; p = next) {
		next = p->next;
		free(p->val);
		free(p);
	}
	for (int i = 0; i < BUCKETS; i++)
		for (struct call *c = h->calls[i], *next; c; c = next) {
			next = c->next;
			call_free(c);
		}
	for (int32_t r = 0; r < h->nranks; r++)
		free(h->seat[r].last);
	pthread_cond_destroy(&h->changed);
	pthread_mutex_destroy(&h->lock);
	free(h);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void TESS_PRINTF(4, 5)
	fail(struct tess_hub *h, int32_t rank, tess_status why, const char *fmt, ...)
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
	fail(h, rank, why, "%s", sentence);
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

/* ---- keys ------------------------------------------------------------------------------------ */

static struct pair *find(struct tess_hub *h, const char *key)
{
	struct pair *p = h->keys;

	while (p && strcmp(p->key, key))
		p = p->next;
	return p;
}

tess_status tess_hub_set(struct tess_hub *h, const char *key, const void *val, uint64_t len)
{
	struct pair *p = malloc(sizeof *p + strlen(key) + 1);
	char *copy = malloc(len + 1);
	tess_status st = TESS_OK;

	if (!p || !copy) {
		st = tess_fail(TESS_ENOMEM, "no memory for the key %s", key);
		goto out;
	}
	memcpy(p->key, key, strlen(key) + 1);
	memcpy(copy, val, len);
	pthread_mutex_lock(&h->lock);
	if (find(h, key)) {
		st = tess_fail(TESS_EINVAL,
		               "the key %s is set a second time; names of groups are used once",
		               key);
	} else {
		p->next = h->keys;
		p->val = copy;
		p->len = len;
		h->keys = p;
		p = NULL;
		copy = NULL;
		pthread_cond_broadcast(&h->changed);
	}
	pthread_mutex_unlock(&h->lock);
out:
	free(copy);
	free(p);
	return st;
}

const void *tess_hub_find(struct tess_hub *h, const char *key, uint64_t *len)
{
	struct pair *p;

	pthread_mutex_lock(&h->lock);
	p = find(h, key);
	pthread_mutex_unlock(&h->lock);
	if (p)
		*len = p->len;
	return p ? p->val : NULL;
}

tess_status tess_hub_get(struct tess_hub *h, const char *key, int64_t deadline, void *val,
                         uint64_t *len)
{
	struct timespec until = tess_timespec(deadline);
	struct pair *p = NULL;
	tess_status st = TESS_OK;
	int err = 0;

	pthread_mutex_lock(&h->lock);
	while (!h->first.why && !(p = find(h, key)) && !err)
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

/* ---- calls ----------------------------------------------------------------------------------- */

static bool expects(const struct tess_hub *h, const struct tess_key *key, int32_t rank)
{
	uint32_t n = (uint32_t)h->nranks, pair = key->channel - 1;

	return !key->channel || pair / n == (uint32_t)rank || pair % n == (uint32_t)rank;
}

static struct call **slot(struct tess_hub *h, const struct tess_key *key)
{
	struct call **at = &h->calls[(key->number + key->channel * 7 + key->group * 31) % BUCKETS];

	while (*at && memcmp(&(*at)->by[0].note->key, key, sizeof *key))
		at = &(*at)->next;
	return at;
}

/* Calls are made in order: a rank that is in a later one has made this. */
static bool joined(const struct tess_hub *h, const struct call *c, int32_t rank)
{
	const struct tess_key *key = &c->by[0].note->key, *reached = &h->seat[rank].reached;

	for (int32_t i = 0; i < c->arrived; i++)
		if (c->by[i].rank == rank)
			return true;
	return !key->channel && reached->group == key->group && reached->number >= key->number;
}

/* "its last call is ...", of a rank that is missed; "": it has not come at all. */
static const char *whereabouts(const struct tess_hub *h, int32_t rank, char *text, size_t room)
{
	const struct seat *s = &h->seat[rank];
	size_t said;

	if (!s->here)
		return "";
	if (!s->last)
		return s->left ? "it has left the job without a call" : "it has made no call yet";
	said = (size_t)snprintf(text, room, "%sits last call is ",
	                        s->left ? "it has left the job; " : "");
	tess_note_text(s->last, text + said, room - said);
	return text;
}

uint64_t tess_hub_whereabouts(struct tess_hub *h, int32_t rank, char *text, size_t room)
{
	const struct tess_key *reached = &h->seat[rank].reached;
	char at[STATE];
	uint64_t number;

	pthread_mutex_lock(&h->lock);
	snprintf(text, room, "%s", whereabouts(h, rank, at, sizeof at));
	number = reached->group ? 0 : reached->number;
	pthread_mutex_unlock(&h->lock);
	return number;
}

/* Somebody waits in `c` for a rank that has left. */
static void judge_left(struct tess_hub *h, const struct call *c)
{
	const struct tess_note *n = c->by[0].note;
	char text[TEXT], at[STATE];

	for (int32_t r = 0; h->left && !h->blind && r < h->nranks; r++)
		if (h->seat[r].left && expects(h, &n->key, r) && !joined(h, c, r)) {
			tess_note_text(n, text, sizeof text);
			fail(h, r, TESS_EMISMATCH,
			     "rank %d is in %s, but rank %d will not join: %s", c->by[0].rank, text,
			     r, whereabouts(h, r, at, sizeof at));
		}
}

static void judge(struct tess_hub *h, const struct call *c)
{
	int32_t last = c->arrived - 1, rank = c->by[last].rank;
	const struct tess_note *n = c->by[last].note;
	char mine[TEXT], theirs[TEXT];

	for (int32_t i = 0; i < last; i++) {
		if (tess_note_agree(c->by[i].note, c->by[i].rank, n, rank))
			continue;
		tess_note_text(c->by[i].note, theirs, sizeof theirs);
		tess_note_text(n, mine, sizeof mine);
		fail(h, rank, TESS_EMISMATCH,
		     "rank %d is in %s, but rank %d in %s; all ranks make the same calls "
		     "in the same order",
		     c->by[i].rank, theirs, rank, mine);
	}
	judge_left(h, c);
}

/* Calls that all have made, though not all have said so, are over. */
static void sweep(struct tess_hub *h)
{
	for (int i = 0; i < BUCKETS; i++)
		for (struct call **at = &h->calls[i], *c; (c = *at);) {
			bool over = true;

			for (int32_t r = 0; r < h->nranks && over; r++)
				over = !expects(h, &c->by[0].note->key, r) || joined(h, c, r);
			if (!over) {
				at = &c->next;
				continue;
			}
			*at = c->next;
			h->ncalls--;
			call_free(c);
		}
	h->sweep_at = 2 * h->ncalls + BUCKETS;
}

static void keep(struct tess_hub *h, int32_t rank, struct tess_note *copy)
{
	struct call **at, *c;

	if (h->ncalls >= h->sweep_at)
		sweep(h);
	at = slot(h, &copy->key);
	c = *at;
	if (!c) {
		if (h->ncalls == CALLS_MOST && !h->blind) {
			h->blind = true;
			tess_log(
				TESS_WARN, "comm",
				"a rank is more than %d calls ahead of another: calls are compared "
				"in part from now on",
				CALLS_MOST);
		}
		c = h->blind ? NULL : malloc(sizeof *c + (size_t)copy->total * sizeof *c->by);
		if (!c) {
			free(copy);
			return;
		}
		c->next = NULL;
		c->arrived = 0;
		*at = c;
		h->ncalls++;
	}
	for (int32_t i = 0; i < c->arrived; i++)
		if (c->by[i].rank == rank) {
			free(copy); /* said before */
			return;
		}
	c->by[c->arrived].rank = rank;
	c->by[c->arrived++].note = copy;
	judge(h, c);
	if (c->arrived == c->by[0].note->total) {
		*at = c->next;
		h->ncalls--;
		call_free(c);
	}
}

void tess_hub_note(struct tess_hub *h, int32_t rank, const struct tess_note *n)
{
	struct tess_note *last, *copy = malloc(n->bytes);

	pthread_mutex_lock(&h->lock);
	last = realloc(h->seat[rank].last, n->bytes);
	if (last)
		h->seat[rank].last = memcpy(last, n, n->bytes);
	if (!n->key.channel && (n->key.group != h->seat[rank].reached.group ||
	                        n->key.number > h->seat[rank].reached.number))
		h->seat[rank].reached = n->key;
	if (!copy)
		h->blind = true;
	else if (h->first.why)
		free(copy);
	else
		keep(h, rank, memcpy(copy, n, n->bytes));
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
		for (int i = 0; i < BUCKETS; i++)
			for (struct call *c = h->calls[i]; c; c = c->next)
				judge_left(h, c);
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

static bool behind(const struct tess_hub *h, const struct tess_key *key, const struct call *c,
                   int32_t rank)
{
	const struct seat *s = &h->seat[rank];

	if (key)
		return c && expects(h, key, rank) && !joined(h, c, rank);
	return h->entered < h->nranks ? !s->here : !s->left;
}

void tess_hub_late(struct tess_hub *h, int32_t rank, const struct tess_key *key)
{
	static const char *const missed[] = { "has not come", "has not left", "has not joined" };
	char text[TEXT] = "the job", at[STATE], more[48] = "";
	const char *what, *state;
	const struct call *c;
	int32_t who = -1, others = 0;
	bool asleep = false;

	pthread_mutex_lock(&h->lock);
	c = key ? *slot(h, key) : NULL;
	what = missed[key ? 2 : h->entered == h->nranks];
	if (key && h->seat[rank].last)
		tess_note_text(c ? c->by[0].note : h->seat[rank].last, text, sizeof text);
	/* A rank that is held is the cause; else the first one that is missed. */
	for (int32_t r = 0; r < h->nranks; r++) {
		bool held = h->seat[r].here && stopped(h->seat[r].pid),
		     missing = behind(h, key, c, r);

		others += missing;
		if ((held && !asleep) || (missing && who < 0)) {
			who = r;
			asleep = held;
		}
	}
	state = who < 0 ? "" : whereabouts(h, who, at, sizeof at);
	if (others > 1)
		snprintf(more, sizeof more, " (one of %d such ranks)", others);
	if (who < 0)
		fail(h, -1, TESS_ETIMEOUT,
		     "%s was not finished by the deadline of rank %d, though all its ranks have "
		     "joined it",
		     text, rank);
	else if (asleep)
		fail(h, who, TESS_ETIMEOUT,
		     "rank %d (process %d) is stopped; %s was not finished by the deadline of "
		     "rank %d",
		     who, (int)h->seat[who].pid, text, rank);
	else
		fail(h, who, TESS_ETIMEOUT, "rank %d%s %s by the deadline of rank %d%s%s%s%s", who,
		     more, what, rank, key ? ": " : "", key ? text : "", *state ? "; " : "", state);
	pthread_mutex_unlock(&h->lock);
}

#include "ledger.h"

#include <core/base/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_MOST = 1 << 16 };

/* ---- groups ---------------------------------------------------------------------------------- */

struct hub_group *tess_ledger_group(struct tess_hub *h, const struct tess_roster *r)
{
	struct hub_group *g = calloc(1, sizeof *g + (size_t)r->n * sizeof *g->member);

	if (g)
		g->roster = malloc(r->bytes);
	if (!g || !g->roster) {
		free(g);
		return NULL;
	}
	memcpy(g->roster, r, r->bytes);
	g->next = h->groups;
	h->groups = g;
	return g;
}

static void group_free(struct hub_group *g)
{
	free(g->roster);
	free(g);
}

struct hub_group *tess_ledger_group_of(const struct tess_hub *h, uint32_t id)
{
	struct hub_group *g = h->groups;

	while (g && g->roster->id != id)
		g = g->next;
	return g;
}

static void call_free(struct hub_call *c)
{
	for (int32_t i = 0; i < c->arrived; i++)
		free(c->by[i].note);
	free(c);
}

/* Its last call. A group that is over lives for as long as a seat mentions it. */
static void forget(struct hub_seat *s)
{
	struct hub_group *g = s->in;

	if (g && !--g->mentions && g->left == g->roster->n)
		group_free(g);
	s->in = NULL;
	free(s->last);
	s->last = NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Whether the member at `place` makes this call. */
static bool expects(const struct hub_group *g, const struct tess_key *key, int32_t place)
{
	uint32_t n = (uint32_t)g->roster->n, pair = key->channel - 1;

	return !key->channel || pair / n == (uint32_t)place || pair % n == (uint32_t)place;
}

static struct hub_call **slot(struct tess_hub *h, const struct tess_key *key)
{
	struct hub_call **at =
		&h->calls[(key->number + key->channel * 7 + key->group * 31) % HUB_BUCKETS];

	while (*at && memcmp(&(*at)->by[0].note->key, key, sizeof *key))
		at = &(*at)->next;
	return at;
}

/* Calls are made in order: a rank that is in a later one has made this, the opening (0) included. */
static bool joined(const struct hub_call *c, int32_t place)
{
	const struct tess_key *key = &c->by[0].note->key;

	for (int32_t i = 0; i < c->arrived; i++)
		if (c->by[i].rank == c->group->roster->member[place])
			return true;
	return !key->channel && c->group->member[place].reached >= (key->number ? key->number : 1);
}

static bool missing(const struct hub_call *c, int32_t place)
{
	return expects(c->group, &c->by[0].note->key, place) && !joined(c, place);
}

/* Somebody waits in `c` for a rank that has left the job, or the group. */
static void judge_left(struct tess_hub *h, const struct hub_call *c)
{
	const struct tess_roster *r = c->group->roster;
	const struct tess_note *n = c->by[0].note;
	char text[HUB_TEXT], at[HUB_STATE];

	if (h->blind || (!h->left && !c->group->left))
		return;
	for (int32_t i = 0; i < r->n; i++) {
		int32_t rank = r->member[i];

		if (!(h->seat[rank].left || c->group->member[i].left) || !missing(c, i))
			continue;
		tess_note_text(n, r, text, sizeof text);
		tess_hub_blame(h, rank, TESS_EMISMATCH,
		               "rank %d is in %s, but rank %d will not join: %s", c->by[0].rank,
		               text, rank,
		               tess_ledger_whereabouts(h, rank, c->group, at, sizeof at));
	}
}

/* All calls, or those of one group. */
static void judge_all(struct tess_hub *h, const struct hub_group *g)
{
	for (int i = 0; i < HUB_BUCKETS; i++)
		for (struct hub_call *c = h->calls[i]; c; c = c->next)
			if (!g || c->group == g)
				judge_left(h, c);
}

static void judge(struct tess_hub *h, const struct hub_call *c)
{
	int32_t last = c->arrived - 1, rank = c->by[last].rank;
	const struct tess_note *n = c->by[last].note;
	const struct tess_roster *r = c->group->roster;
	char mine[HUB_TEXT], theirs[HUB_TEXT];

	for (int32_t i = 0; i < last; i++) {
		if (tess_note_agree(c->by[i].note, tess_roster_place(r, c->by[i].rank), n,
		                    tess_roster_place(r, rank)))
			continue;
		tess_note_text(c->by[i].note, r, theirs, sizeof theirs);
		tess_note_text(n, r, mine, sizeof mine);
		tess_hub_blame(h, rank, TESS_EMISMATCH,
		               "rank %d is in %s, but rank %d in %s; all ranks make the same calls "
		               "in the same order",
		               c->by[i].rank, theirs, rank, mine);
	}
	judge_left(h, c);
}

static void take_out(struct tess_hub *h, struct hub_call **at)
{
	struct hub_call *c = *at;

	*at = c->next;
	h->ncalls--;
	call_free(c);
}

static bool over(const struct hub_call *c)
{
	for (int32_t i = 0; i < c->group->roster->n; i++)
		if (missing(c, i))
			return false;
	return true;
}

/* Calls that all have made, though not all have said so; and all of the group `gone`. */
static void sweep(struct tess_hub *h, const struct hub_group *gone)
{
	for (int i = 0; i < HUB_BUCKETS; i++)
		for (struct hub_call **at = &h->calls[i]; *at;)
			if ((*at)->group == gone || over(*at))
				take_out(h, at);
			else
				at = &(*at)->next;
	h->sweep_at = 2 * h->ncalls + HUB_BUCKETS;
}

static void keep(struct tess_hub *h, struct hub_group *g, int32_t rank, struct tess_note *copy)
{
	struct hub_call **at, *c;

	if (h->ncalls >= h->sweep_at)
		sweep(h, NULL);
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
		c->group = g;
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
	if (c->arrived == c->by[0].note->total)
		take_out(h, at);
}

/* What is the last that is known of the rank. */
static void remember(struct hub_seat *s, struct hub_group *g, const struct tess_note *n)
{
	struct tess_note *last = malloc(n->bytes);

	g->mentions++;
	forget(s);
	s->in = g;
	s->last = last ? memcpy(last, n, n->bytes) : NULL;
}

void tess_ledger_note(struct tess_hub *h, struct hub_group *g, int32_t rank,
                      const struct tess_note *n)
{
	int32_t place = tess_roster_place(g->roster, rank);
	struct tess_note *copy = malloc(n->bytes);

	remember(&h->seat[rank], g, n);
	if (!n->key.channel && n->key.number > g->member[place].reached)
		g->member[place].reached = n->key.number;
	if (!copy)
		h->blind = true;
	else if (h->first.why)
		free(copy);
	else
		keep(h, g, rank, memcpy(copy, n, n->bytes));
}

/* All members have closed it: nothing of it is needed any more, but in the last calls of seats. */
static void dissolve(struct tess_hub *h, struct hub_group *g)
{
	char key[TESS_ROSTER_KEY];

	sweep(h, g);
	tess_roster_key(g->roster, key);
	tess_pairs_drop(&h->keys, key);
	for (struct hub_group **at = &h->groups; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	if (!g->mentions)
		group_free(g);
}

void tess_ledger_group_left(struct tess_hub *h, struct hub_group *g, int32_t rank)
{
	int32_t place = tess_roster_place(g->roster, rank);

	if (g->member[place].left)
		return;
	g->member[place].left = true;
	g->left++;
	judge_all(h, g);
	if (g->left == g->roster->n)
		dissolve(h, g);
}

void tess_ledger_left(struct tess_hub *h)
{
	judge_all(h, NULL);
}

void tess_ledger_free(struct tess_hub *h)
{
	for (int i = 0; i < HUB_BUCKETS; i++)
		while (h->calls[i])
			take_out(h, &h->calls[i]);
	for (int32_t r = 0; r < h->nranks; r++)
		forget(&h->seat[r]);
	for (struct hub_group *g = h->groups, *next; g; g = next) {
		next = g->next;
		group_free(g);
	}
}

/* ---- who is waited for ----------------------------------------------------------------------- */

const struct hub_call *tess_ledger_awaited(struct tess_hub *h, const struct tess_key *key,
                                           int32_t n)
{
	const struct hub_call *first = NULL;

	for (int32_t i = 0; i < n; i++) {
		const struct hub_call *c = *slot(h, &key[i]);

		if (c && !over(c))
			return c;
		if (!first)
			first = c;
	}
	return first;
}

bool tess_ledger_lacks(const struct hub_call *c, int32_t rank)
{
	int32_t place = tess_roster_place(c->group->roster, rank);

	return place >= 0 && missing(c, place);
}

bool tess_ledger_waits(struct tess_hub *h, int32_t rank, int32_t other)
{
	const struct tess_note *last = h->seat[rank].last;
	const struct hub_call *c = last ? *slot(h, &last->key) : NULL;

	return c && tess_ledger_lacks(c, other);
}

int32_t tess_ledger_awaits(struct tess_hub *h, int32_t rank)
{
	for (int32_t r = 0; r < h->nranks; r++)
		if (r != rank && tess_ledger_waits(h, rank, r))
			return r;
	return -1;
}

const char *tess_ledger_whereabouts(const struct tess_hub *h, int32_t rank,
                                    const struct hub_group *g, char *text, size_t room)
{
	const struct hub_seat *s = &h->seat[rank];
	bool left = g && g->member[tess_roster_place(g->roster, rank)].left;
	const char *state = s->left ? "it has left the job" : left ? "it has closed the group" : "";
	size_t said;

	if (!s->here)
		return "";
	if (!s->last || (!s->last->key.number && !s->in->roster->id)) {
		snprintf(text, room, "%s%s", *state ? state : "it has told of no call yet",
		         *state ? " without a call" : "");
		return text;
	}
	said = *state ? (size_t)snprintf(text, room, "%s; its last call is ", state)
	              : (size_t)snprintf(text, room, "the last call that it told of is ");
	tess_note_text(s->last, s->in->roster, text + said, room - said);
	return text;
}

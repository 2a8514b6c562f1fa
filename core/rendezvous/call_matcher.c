#include "call_matcher.h"

#include "core/base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_MAX = 1 << 16 };

/* ---- groups ---------------------------------------------------------------------------------- */

struct group_state *tess_matcher_add_group(struct tess_coordinator *h, const struct tess_members *r)
{
	struct group_state *g = calloc(1, sizeof *g + (size_t)r->n * sizeof *g->member);

	if (g)
		g->members = malloc(r->bytes);
	if (!g || !g->members) {
		free(g);
		return NULL;
	}
	memcpy(g->members, r, r->bytes);
	g->next = h->groups;
	h->groups = g;
	return g;
}

static void free_group(struct group_state *g)
{
	free(g->members);
	free(g);
}

struct group_state *tess_matcher_find_group(const struct tess_coordinator *h, uint32_t id)
{
	struct group_state *g = h->groups;

	while (g && g->members->id != id)
		g = g->next;
	return g;
}

static void free_call(struct call_state *c)
{
	for (int32_t i = 0; i < c->arrived; i++)
		free(c->by[i].note);
	free(c);
}

/* Its last call. A group that is over lives for as long as a seat mentions it. */
static void forget_last_call(struct rank_state *s)
{
	struct group_state *g = s->last_group;

	if (g && !--g->references && g->left == g->members->n)
		free_group(g);
	s->last_group = NULL;
	free(s->last);
	s->last = NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Whether the member at `place` makes this call. */
static bool is_expected(const struct group_state *g, const struct tess_call_key *key, int32_t place)
{
	uint32_t n = (uint32_t)g->members->n, pair = key->channel - 1;

	return !key->channel || pair / n == (uint32_t)place || pair % n == (uint32_t)place;
}

static struct call_state **find_call_slot(struct tess_coordinator *h,
                                          const struct tess_call_key *key)
{
	struct call_state **at =
		&h->calls[(key->number + key->channel * 7 + key->group * 31) % MATCHER_BUCKETS];

	while (*at && memcmp(&(*at)->by[0].note->key, key, sizeof *key))
		at = &(*at)->next;
	return at;
}

/* Calls are made in order: a rank that is in a later one has made this, the opening (0) included. */
static bool has_joined(const struct call_state *c, int32_t place)
{
	const struct tess_call_key *key = &c->by[0].note->key;

	for (int32_t i = 0; i < c->arrived; i++)
		if (c->by[i].rank == c->group->members->member[place])
			return true;
	return !key->channel && c->group->member[place].reached >= (key->number ? key->number : 1);
}

static bool is_missing(const struct call_state *c, int32_t place)
{
	return is_expected(c->group, &c->by[0].note->key, place) && !has_joined(c, place);
}

/* Somebody waits in `c` for a rank that has left the job, or the group. */
static void check_left_ranks(struct tess_coordinator *h, const struct call_state *c)
{
	const struct tess_members *r = c->group->members;
	const struct tess_call_desc *n = c->by[0].note;
	char text[MATCHER_TEXT], at[MATCHER_STATE];

	if (h->incomplete || (!h->left && !c->group->left))
		return;
	for (int32_t i = 0; i < r->n; i++) {
		int32_t rank = r->member[i];

		if (!(h->rank[rank].left || c->group->member[i].left) || !is_missing(c, i))
			continue;
		tess_call_desc_format(n, r, text, sizeof text);
		tess_coordinator_post_failure(
			h, rank, TESS_EMISMATCH, "rank %d is in %s, but rank %d will not join: %s",
			c->by[0].rank, text, rank,
			tess_matcher_describe_rank(h, rank, c->group, at, sizeof at));
	}
}

/* All calls, or those of one group. */
static void check_all_calls(struct tess_coordinator *h, const struct group_state *g)
{
	for (int i = 0; i < MATCHER_BUCKETS; i++)
		for (struct call_state *c = h->calls[i]; c; c = c->next)
			if (!g || c->group == g)
				check_left_ranks(h, c);
}

static void match_call(struct tess_coordinator *h, const struct call_state *c)
{
	int32_t last = c->arrived - 1, rank = c->by[last].rank;
	const struct tess_call_desc *n = c->by[last].note;
	const struct tess_members *r = c->group->members;
	char mine[MATCHER_TEXT], theirs[MATCHER_TEXT];

	for (int32_t i = 0; i < last; i++) {
		if (tess_call_desc_match(c->by[i].note, tess_members_find(r, c->by[i].rank), n,
		                         tess_members_find(r, rank)))
			continue;
		tess_call_desc_format(c->by[i].note, r, theirs, sizeof theirs);
		tess_call_desc_format(n, r, mine, sizeof mine);
		tess_coordinator_post_failure(
			h, rank, TESS_EMISMATCH,
			"rank %d is in %s, but rank %d in %s; all ranks make the same calls "
			"in the same order",
			c->by[i].rank, theirs, rank, mine);
	}
	check_left_ranks(h, c);
}

static void remove_call(struct tess_coordinator *h, struct call_state **at)
{
	struct call_state *c = *at;

	*at = c->next;
	h->ncalls--;
	free_call(c);
}

static bool is_complete(const struct call_state *c)
{
	for (int32_t i = 0; i < c->group->members->n; i++)
		if (is_missing(c, i))
			return false;
	return true;
}

/* Calls that all have made, though not all have said so; and all of the group `gone`. */
static void remove_complete_calls(struct tess_coordinator *h, const struct group_state *gone)
{
	for (int i = 0; i < MATCHER_BUCKETS; i++)
		for (struct call_state **at = &h->calls[i]; *at;)
			if ((*at)->group == gone || is_complete(*at))
				remove_call(h, at);
			else
				at = &(*at)->next;
	h->sweep_at = 2 * h->ncalls + MATCHER_BUCKETS;
}

static void store_call(struct tess_coordinator *h, struct group_state *g, int32_t rank,
                       struct tess_call_desc *copy)
{
	struct call_state **at, *c;

	if (h->ncalls >= h->sweep_at)
		remove_complete_calls(h, NULL);
	at = find_call_slot(h, &copy->key);
	c = *at;
	if (!c) {
		if (h->ncalls == CALLS_MAX && !h->incomplete) {
			h->incomplete = true;
			tess_log(
				TESS_WARN, "comm",
				"a rank is more than %d calls ahead of another: calls are compared "
				"in part from now on",
				CALLS_MAX);
		}
		c = h->incomplete ? NULL : malloc(sizeof *c + (size_t)copy->total * sizeof *c->by);
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
	match_call(h, c);
	if (c->arrived == c->by[0].note->total)
		remove_call(h, at);
}

/* What is the last that is known of the rank. */
static void remember_last_call(struct rank_state *s, struct group_state *g,
                               const struct tess_call_desc *n)
{
	struct tess_call_desc *last = malloc(n->bytes);

	g->references++;
	forget_last_call(s);
	s->last_group = g;
	s->last = last ? memcpy(last, n, n->bytes) : NULL;
}

void tess_matcher_add_call(struct tess_coordinator *h, struct group_state *g, int32_t rank,
                           const struct tess_call_desc *n)
{
	int32_t place = tess_members_find(g->members, rank);
	struct tess_call_desc *copy = malloc(n->bytes);

	remember_last_call(&h->rank[rank], g, n);
	if (!n->key.channel && n->key.number > g->member[place].reached)
		g->member[place].reached = n->key.number;
	if (!copy)
		h->incomplete = true;
	else if (h->first.why)
		free(copy);
	else
		store_call(h, g, rank, memcpy(copy, n, n->bytes));
}

/* All members have closed it: nothing of it is needed any more, but in the last calls of seats. */
static void dissolve_group(struct tess_coordinator *h, struct group_state *g)
{
	char key[TESS_MEMBERS_KEY];

	remove_complete_calls(h, g);
	tess_members_key(g->members, key);
	tess_kv_store_drop(&h->keys, key);
	for (struct group_state **at = &h->groups; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	if (!g->references)
		free_group(g);
}

void tess_matcher_leave_group(struct tess_coordinator *h, struct group_state *g, int32_t rank)
{
	int32_t place = tess_members_find(g->members, rank);

	if (g->member[place].left)
		return;
	g->member[place].left = true;
	g->left++;
	check_all_calls(h, g);
	if (g->left == g->members->n)
		dissolve_group(h, g);
}

void tess_matcher_check_left(struct tess_coordinator *h)
{
	check_all_calls(h, NULL);
}

void tess_matcher_free(struct tess_coordinator *h)
{
	for (int i = 0; i < MATCHER_BUCKETS; i++)
		while (h->calls[i])
			remove_call(h, &h->calls[i]);
	for (int32_t r = 0; r < h->nranks; r++)
		forget_last_call(&h->rank[r]);
	for (struct group_state *g = h->groups, *next; g; g = next) {
		next = g->next;
		free_group(g);
	}
}

/* ---- who is waited for ----------------------------------------------------------------------- */

const struct call_state *tess_matcher_find_awaited(struct tess_coordinator *h,
                                                   const struct tess_call_key *key, int32_t n)
{
	const struct call_state *first = NULL;

	for (int32_t i = 0; i < n; i++) {
		const struct call_state *c = *find_call_slot(h, &key[i]);

		if (c && !is_complete(c))
			return c;
		if (!first)
			first = c;
	}
	return first;
}

bool tess_matcher_call_lacks(const struct call_state *c, int32_t rank)
{
	int32_t place = tess_members_find(c->group->members, rank);

	return place >= 0 && is_missing(c, place);
}

bool tess_matcher_waits_for(struct tess_coordinator *h, int32_t rank, int32_t other)
{
	const struct tess_call_desc *last = h->rank[rank].last;
	const struct call_state *c = last ? *find_call_slot(h, &last->key) : NULL;

	return c && tess_matcher_call_lacks(c, other);
}

int32_t tess_matcher_awaited_rank(struct tess_coordinator *h, int32_t rank)
{
	for (int32_t r = 0; r < h->nranks; r++)
		if (r != rank && tess_matcher_waits_for(h, rank, r))
			return r;
	return -1;
}

const char *tess_matcher_describe_rank(const struct tess_coordinator *h, int32_t rank,
                                       const struct group_state *g, char *text, size_t room)
{
	const struct rank_state *s = &h->rank[rank];
	bool left = g && g->member[tess_members_find(g->members, rank)].left;
	const char *state = s->left ? "it has left the job" : left ? "it has closed the group" : "";
	size_t said;

	if (!s->joined)
		return "";
	if (!s->last || (!s->last->key.number && !s->last_group->members->id)) {
		snprintf(text, room, "%s%s", *state ? state : "it has told of no call yet",
		         *state ? " without a call" : "");
		return text;
	}
	said = *state ? (size_t)snprintf(text, room, "%s; its last call is ", state)
	              : (size_t)snprintf(text, room, "the last call that it told of is ");
	tess_call_desc_format(s->last, s->last_group->members, text + said, room - said);
	return text;
}

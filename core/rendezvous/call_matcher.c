#include "core/rendezvous/call_matcher.h"

#include "core/base/log.h"

#include <stdlib.h>
#include <string.h>

enum { CALLS_MAX = 1 << 16 };

/* ---- groups ---------------------------------------------------------------------------------- */

struct group_state *tess_matcher_add_group(struct tess_job_state *s, const struct tess_members *m)
{
	struct group_state *g = calloc(1, sizeof *g + (size_t)m->n * sizeof *g->member);

	if (g)
		g->members = malloc(m->bytes);
	if (!g || !g->members) {
		free(g);
		return NULL;
	}
	memcpy(g->members, m, m->bytes);
	g->next = s->groups;
	s->groups = g;
	return g;
}

static void free_group(struct group_state *g)
{
	free(g->members);
	free(g);
}

struct group_state *tess_matcher_find_group(const struct tess_job_state *s, uint32_t id)
{
	struct group_state *g = s->groups;

	while (g && g->members->id != id)
		g = g->next;
	return g;
}

/* Releases the last call of a rank; a dropped group is freed when no rank refers to it. */
static void forget_last_call(struct rank_state *r)
{
	struct group_state *g = r->last_group;

	if (g && !--g->references && g->dropped)
		free_group(g);
	r->last_group = NULL;
	free(r->last);
	r->last = NULL;
}

static void remember_last_call(struct rank_state *r, struct group_state *g,
                               const struct tess_call_desc *d)
{
	struct tess_call_desc *last = malloc(d->bytes);

	g->references++;
	forget_last_call(r);
	r->last_group = g;
	r->last = last ? memcpy(last, d, d->bytes) : NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void free_call(struct call_state *c)
{
	for (int32_t i = 0; i < c->arrived; i++)
		free(c->by[i].desc);
	free(c);
}

static size_t hash_key(const struct tess_call_key *key)
{
	return (key->number + key->channel * 7 + key->group * 31) % CALL_BUCKETS;
}

static bool has_key(const struct call_state *c, const struct tess_call_key *key)
{
	return !memcmp(&c->by[0].desc->key, key, sizeof *key);
}

/* Returns the state of a call; NULL: not kept. */
static const struct call_state *find_call(const struct tess_job_state *s,
                                          const struct tess_call_key *key)
{
	const struct call_state *c = s->calls[hash_key(key)];

	while (c && !has_key(c, key))
		c = c->next;
	return c;
}

/* Returns the link of the call, or where it would be inserted. */
static struct call_state **find_call_link(struct tess_job_state *s, const struct tess_call_key *key)
{
	struct call_state **at = &s->calls[hash_key(key)];

	while (*at && !has_key(*at, key))
		at = &(*at)->next;
	return at;
}

/* Returns whether the member with index `i` takes part in this call. */
static bool is_expected(const struct group_state *g, const struct tess_call_key *key, int32_t i)
{
	uint32_t n = (uint32_t)g->members->n, pair = key->channel - 1;

	return !key->channel || pair / n == (uint32_t)i || pair % n == (uint32_t)i;
}

/* Returns whether a member has made this call, or a later one. The opening has number 0. */
static bool has_joined(const struct call_state *c, int32_t i)
{
	const struct tess_call_key *key = &c->by[0].desc->key;

	for (int32_t k = 0; k < c->arrived; k++)
		if (c->by[k].rank == c->group->members->member[i])
			return true;
	return !key->channel && c->group->member[i].reached >= (key->number ? key->number : 1);
}

static bool is_missing(const struct call_state *c, int32_t i)
{
	return is_expected(c->group, &c->by[0].desc->key, i) && !has_joined(c, i);
}

static bool is_complete(const struct call_state *c)
{
	for (int32_t i = 0; i < c->group->members->n; i++)
		if (is_missing(c, i))
			return false;
	return true;
}

static void remove_call(struct tess_job_state *s, struct call_state **at)
{
	struct call_state *c = *at;

	*at = c->next;
	s->ncalls--;
	free_call(c);
}

/* Removes calls that all ranks have made, reported or not, and all calls of group `closed`. */
static void remove_complete_calls(struct tess_job_state *s, const struct group_state *closed)
{
	for (int i = 0; i < CALL_BUCKETS; i++)
		for (struct call_state **at = &s->calls[i]; *at;)
			if ((*at)->group == closed || is_complete(*at))
				remove_call(s, at);
			else
				at = &(*at)->next;
	s->sweep_at = 2 * s->ncalls + CALL_BUCKETS;
}

/* ---- conflicts ------------------------------------------------------------------------------- */

/* Returns whether `c` waits for a rank that has left the job or the group. */
static bool find_left_rank(const struct tess_job_state *s, const struct call_state *c,
                           struct tess_conflict *out)
{
	const struct tess_members *m = c->group->members;

	if (s->incomplete || (!s->left && !c->group->left))
		return false;
	for (int32_t i = 0; i < m->n; i++) {
		bool left = s->rank[m->member[i]].left || c->group->member[i].left;

		if (left && is_missing(c, i)) {
			*out = (struct tess_conflict){ .call = c,
				                       .second = -1,
				                       .absent = m->member[i] };
			return true;
		}
	}
	return false;
}

/* Finds a rank that has left, in all calls or in those of group `g`. */
static bool find_left_ranks(const struct tess_job_state *s, const struct group_state *g,
                            struct tess_conflict *out)
{
	for (int i = 0; i < CALL_BUCKETS; i++)
		for (const struct call_state *c = s->calls[i]; c; c = c->next)
			if ((!g || c->group == g) && find_left_rank(s, c, out))
				return true;
	return false;
}

/* Compares the call of the last rank that has joined with the earlier ones. */
static bool match_last(const struct tess_job_state *s, const struct call_state *c,
                       struct tess_conflict *out)
{
	const struct tess_members *m = c->group->members;
	int32_t last = c->arrived - 1, index = tess_members_find(m, c->by[last].rank);

	for (int32_t i = 0; i < last; i++)
		if (!tess_call_desc_match(c->by[i].desc, tess_members_find(m, c->by[i].rank),
		                          c->by[last].desc, index)) {
			*out = (struct tess_conflict){
				.call = c, .first = i, .second = last, .absent = -1
			};
			return true;
		}
	return find_left_rank(s, c, out);
}

/* Makes the state of a call; NULL: it cannot be kept. */
static struct call_state *new_call(struct tess_job_state *s, struct group_state *g, int32_t total)
{
	struct call_state *c;

	if (s->ncalls == CALLS_MAX && !s->incomplete) {
		s->incomplete = true;
		tess_log(TESS_WARN, "rendezvous",
		         "a rank is more than %d calls ahead of another: from now on not all calls "
		         "are compared",
		         CALLS_MAX);
	}
	c = s->incomplete ? NULL : malloc(sizeof *c + (size_t)total * sizeof *c->by);
	if (!c)
		return NULL;
	c->next = NULL;
	c->group = g;
	c->arrived = 0;
	s->ncalls++;
	return c;
}

/* Keeps `d` with the call, or frees it. */
static bool keep_call(struct tess_job_state *s, struct group_state *g, int32_t rank,
                      struct tess_call_desc *d, struct tess_conflict *out)
{
	struct call_state **at, *c;

	if (s->ncalls >= s->sweep_at)
		remove_complete_calls(s, NULL);
	at = find_call_link(s, &d->key);
	if (!*at)
		*at = new_call(s, g, d->total);
	c = *at;
	for (int32_t i = 0; c && i < c->arrived; i++)
		if (c->by[i].rank == rank)
			c = NULL; /* a duplicate */
	if (!c) {
		free(d);
		return false;
	}
	c->by[c->arrived].rank = rank;
	c->by[c->arrived++].desc = d;
	if (match_last(s, c, out))
		return true;
	if (c->arrived == c->by[0].desc->total)
		remove_call(s, at);
	return false;
}

bool tess_matcher_add_call(struct tess_job_state *s, struct group_state *g, int32_t rank,
                           const struct tess_call_desc *d, struct tess_conflict *out)
{
	int32_t i = tess_members_find(g->members, rank);
	struct tess_call_desc *copy = malloc(d->bytes);

	remember_last_call(&s->rank[rank], g, d);
	if (!d->key.channel && d->key.number > g->member[i].reached)
		g->member[i].reached = d->key.number;
	if (copy)
		return keep_call(s, g, rank, memcpy(copy, d, d->bytes), out);
	s->incomplete = true;
	return false;
}

/* Drops a group that all members have closed; ranks may refer to it as last_group. */
static void drop_group(struct tess_job_state *s, struct group_state *g)
{
	char key[TESS_MEMBERS_KEY];

	remove_complete_calls(s, g);
	tess_members_key(g->members, key);
	tess_kv_store_drop(&s->keys, key);
	for (struct group_state **at = &s->groups; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	g->dropped = true;
	if (!g->references)
		free_group(g);
}

bool tess_matcher_leave_group(struct tess_job_state *s, struct group_state *g, int32_t rank,
                              struct tess_conflict *out)
{
	int32_t i = tess_members_find(g->members, rank);

	if (g->member[i].left)
		return false;
	g->member[i].left = true;
	g->left++;
	if (find_left_ranks(s, g, out))
		return true;
	if (g->left == g->members->n)
		drop_group(s, g);
	return false;
}

bool tess_matcher_check_left(struct tess_job_state *s, struct tess_conflict *out)
{
	return find_left_ranks(s, NULL, out);
}

void tess_matcher_free(struct tess_job_state *s)
{
	for (int i = 0; i < CALL_BUCKETS; i++)
		while (s->calls[i])
			remove_call(s, &s->calls[i]);
	for (int32_t r = 0; r < s->nranks; r++)
		forget_last_call(&s->rank[r]);
	for (struct group_state *g = s->groups, *next; g; g = next) {
		next = g->next;
		free_group(g);
	}
}

/* ---- which rank is awaited ------------------------------------------------------------------- */

const struct call_state *tess_matcher_find_awaited(const struct tess_job_state *s,
                                                   const struct tess_call_key *key, int32_t n)
{
	const struct call_state *first = NULL;

	for (int32_t i = 0; i < n; i++) {
		const struct call_state *c = find_call(s, &key[i]);

		if (c && !is_complete(c))
			return c;
		if (!first)
			first = c;
	}
	return first;
}

bool tess_matcher_call_lacks(const struct call_state *c, int32_t rank)
{
	int32_t i = tess_members_find(c->group->members, rank);

	return i >= 0 && is_missing(c, i);
}

bool tess_matcher_waits_for(const struct tess_job_state *s, int32_t rank, int32_t other)
{
	const struct tess_call_desc *last = s->rank[rank].last;
	const struct call_state *c = last ? find_call(s, &last->key) : NULL;

	return c && tess_matcher_call_lacks(c, other);
}

int32_t tess_matcher_awaited_rank(const struct tess_job_state *s, int32_t rank)
{
	for (int32_t r = 0; r < s->nranks; r++)
		if (r != rank && tess_matcher_waits_for(s, rank, r))
			return r;
	return -1;
}

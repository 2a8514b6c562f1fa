/* open.c - opens, splits and closes groups. */
#include "core/base/clock.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/call/background.h"
#include "core/call/call.h"
#include "core/call/carrier.h"
#include "core/call/report.h"
#include "core/call/staging.h"
#include "core/call/work.h"
#include "core/group/device.h"
#include "core/registry/plugin_call.h"
#include "core/sum/exact.h"
#include "core/sum/shared_region.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LETTERS = 15 }; /* maximum length of a name, without its colour */

static void destroy_group(struct tess_group *g)
{
	for (struct tess_work *w = g->spare, *next; w; w = next) {
		next = w->next;
		tess_work_free_stage(w);
		free(w);
	}
	for (struct tess_shared_region *region = g->regions, *next; region; region = next) {
		next = region->next;
		free(region);
	}
	free(g->members);
	free(g->sent);
	free(g->received);
	free(g->desc);
	free(g->staging);
	tess_group_free_sums(g);
	free(g);
}

/* Makes a group, which takes the members. NULL: no memory; the members are freed. */
static struct tess_group *make_group(struct tess_world *w, struct tess_members *members)
{
	struct tess_group *g = calloc(1, sizeof *g);
	size_t n = members ? (size_t)members->n : 0;

	if (!g || !members) {
		free(g);
		free(members);
		return NULL;
	}
	*g = (struct tess_group){
		.world = w, .backend = w->backend, .members = members, .size = members->n
	};
	g->rank = tess_members_find(members, w->rank);
	tess_members_key(members, g->key);
	g->sent = calloc(n, sizeof *g->sent);
	g->received = calloc(n, sizeof *g->received);
	g->desc = malloc(tess_call_desc_size(members->n));
	if (g->sent && g->received && g->desc)
		return g;
	destroy_group(g);
	return NULL;
}

static tess_status fail_no_memory(int32_t n)
{
	return tess_fail(TESS_ENOMEM, "no memory for a group of %d ranks", n);
}

void tess_opening_post(struct tess_world *w, uint32_t id, int32_t nranks)
{
	uint64_t buffer[sizeof(struct tess_call_desc) / 8 + 1];
	struct tess_call_desc *n = (void *)buffer;

	if (nranks < 2)
		return;
	tess_call_desc_opening(n, id, nranks);
	w->link.add_call(w->link.self, n);
}

tess_status tess_opening_failed(struct tess_world *w, uint32_t id, tess_status why,
                                const char *sentence)
{
	const struct tess_call_key key = { .group = id };

	if (why == TESS_ETIMEOUT && w->size > 1 && !w->failed)
		w->link.deadline_passed(w->link.self, &key, 1);
	return tess_world_backend_failed(w, why, sentence);
}

/* Returns whether the backend lacks a collective, which the group emulates. */
static bool lacks_collective(const struct tess_group *g)
{
	struct tess_coll c = { .size = sizeof c, .mem = TESS_HOST };

	for (c.kind = TESS_BROADCAST; c.kind <= TESS_ALL_TO_ALL; c.kind++)
		for (c.dtype = TESS_F32; c.dtype <= TESS_U8; c.dtype++)
			for (c.op = TESS_SUM; c.op <= TESS_BXOR; c.op++)
				if ((c.op == TESS_SUM || tess_kind_reduces(c.kind)) &&
				    (c.op < TESS_BAND || c.dtype > TESS_F16) &&
				    TESS_PLUGIN_VALUE(g->backend, NULL, supports, &c, g->size))
					return true;
	return false;
}

static void close_backend_groups(struct tess_group *g)
{
	if (g->p2p_channel)
		TESS_PLUGIN_DO(g->backend, NULL, close, g->p2p_channel);
	if (g->self)
		TESS_PLUGIN_DO(g->backend, NULL, close, g->self);
}

/* Collective over the members. Opens the backend's groups; destroys the group on failure. */
static tess_status open_backend_groups(struct tess_group *g, const struct tess_group *parent)
{
	struct tess_world *w = g->world;
	char p2p_name[TESS_MEMBERS_KEY + 8];
	struct tess_group_entry how = { .size = sizeof how,
		                        .rank = g->rank,
		                        .nranks = g->size,
		                        .device = -1,
		                        .name = g->key,
		                        .world = g->members->member,
		                        .store = &w->store,
		                        .parent = parent ? parent->self : NULL,
		                        .deadline = tess_now() + w->timeout };
	tess_status st = TESS_OK;

	if (parent && g->size > 1) {
		w->link.add_group(w->link.self, g->members);
		tess_opening_post(w, g->members->id, g->size);
	}
	if (!parent || g->size > 1)
		st = TESS_PLUGIN_CALL_UNTIL(TESS_STATE_ALL, how.deadline, g->backend, NULL, open,
		                            &how, &g->self);
	if (!st && g->size > 1 && lacks_collective(g)) {
		snprintf(p2p_name, sizeof p2p_name, "%s/p2p", g->key);
		how.name = p2p_name;
		how.parent = g->self;
		st = TESS_PLUGIN_CALL_UNTIL(TESS_STATE_ALL, how.deadline, g->backend, NULL, open,
		                            &how, &g->p2p_channel);
	}
	if (st) {
		st = tess_fail_in(st, "%s", w->backend->name);
		close_backend_groups(g);
		destroy_group(g);
		return st;
	}
	pthread_mutex_lock(&w->lock);
	g->next = w->groups;
	w->groups = g;
	if (w->failed)
		tess_group_abort(g);
	pthread_mutex_unlock(&w->lock);
	return TESS_OK;
}

tess_status tess_group_open_all(struct tess_world *w, struct tess_group **out)
{
	struct tess_group *g = make_group(w, tess_members_new(0, "world", w->size));
	tess_status st = g ? open_backend_groups(g, NULL) : fail_no_memory(w->size);

	if (!st) {
		g->owner = "world";
		*out = g;
	}
	return st;
}

/* ---- split ----------------------------------------------------------------------------------- */

struct split_request { /* the request of one rank; gathered from all */
	int64_t colour, key;
	int64_t number; /* number of its splits, for unique ids */
	char name[32];
};

struct split_candidate {
	int64_t key;
	int32_t rank; /* rank in the parent */
};

static int compare_candidates(const void *a, const void *b)
{
	const struct split_candidate *x = a, *y = b;

	return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : x->rank - y->rank;
}

static tess_status check_group_name(const char *name)
{
	size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");

	if (len && !name[len] && len <= NAME_MAX_LETTERS)
		return TESS_OK;
	return tess_fail(
		TESS_EINVAL,
		"a group cannot be named \"%.40s\": a name is 1 to %d letters of a-z 0-9 _", name,
		NAME_MAX_LETTERS);
}

/* Fails on all ranks, with a differing rank, unless all gave the groups one name. */
static tess_status compare_names(const struct tess_group *parent, const struct split_request *all)
{
	char text[256];

	for (int32_t r = 1; r < parent->size; r++) {
		if (!strcmp(all[r].name, all[0].name))
			continue;
		snprintf(text, sizeof text,
		         "a split of group %s is named %s by rank %d, but %s by rank %d; all ranks "
		         "make the same calls in the same order",
		         parent->members->name, all[0].name, parent->members->member[0],
		         all[r].name, parent->members->member[r]);
		return tess_world_post_failure(parent->world, TESS_EMISMATCH, text);
	}
	return TESS_OK;
}

/* Lists the ranks with this rank's colour, in order; NULL: no memory. */
static struct tess_members *assemble_members(const struct tess_group *parent,
                                             const struct split_request *all)
{
	const int32_t *world = parent->members->member;
	const struct split_request *mine = &all[parent->rank];
	struct split_candidate *c = calloc((size_t)parent->size, sizeof *c);
	struct tess_members *members = NULL;
	char name[TESS_GROUP_NAME];
	uint32_t id, size = (uint32_t)parent->world->size;
	int32_t n = 0;

	for (int32_t r = 0; c && r < parent->size; r++)
		if (all[r].colour == mine->colour)
			c[n++] = (struct split_candidate){ .key = all[r].key, .rank = r };
	if (c) {
		qsort(c, (size_t)n, sizeof *c, compare_candidates);
		id = 1 + (uint32_t)world[c[0].rank] + size * (uint32_t)all[c[0].rank].number;
		snprintf(name, sizeof name, "%.*s/%d", NAME_MAX_LETTERS, mine->name,
		         (int)mine->colour);
		members = tess_members_new(id, name, n);
	}
	for (int32_t i = 0; members && i < n; i++)
		members->member[i] = world[c[i].rank];
	free(c);
	return members;
}

tess_status tess_group_split(struct tess_group *parent, int32_t colour, int32_t key,
                             const char *name, struct tess_group **out)
{
	struct split_request mine = { .colour = colour, .key = key }, *all;
	struct tess_group *g = NULL;
	struct tess_world *w;
	uint32_t id;
	tess_status st = TESS_REQUIRE(parent, out);

	if (!name)
		name = "split";
	if (!st)
		st = check_group_name(name);
	if (st)
		return st;
	w = parent->world;
	memcpy(mine.name, name, strlen(name));
	mine.number = atomic_fetch_add(&w->splits, 1);
	all = calloc((size_t)parent->size, sizeof *all);
	st = all ? tess_all_gather(parent, &mine, all, sizeof mine / sizeof(int64_t), TESS_I64,
	                           "tess_group_split")
	         : fail_no_memory(parent->size);
	if (!st)
		st = compare_names(parent, all);
	if (!st && colour >= 0) {
		g = make_group(w, assemble_members(parent, all));
		id = g ? g->members->id : 0;
		st = g ? open_backend_groups(g, parent) : fail_no_memory(parent->size);
		if (st) /* the other ranks wait for this one */
			st = tess_opening_failed(w, id, st, tess_error());
	}
	free(all);
	if (!st)
		*out = colour < 0 ? NULL : g;
	return st;
}

/* ---- close ----------------------------------------------------------------------------------- */

void tess_group_finish(struct tess_group *g)
{
	for (struct tess_work *work = g->live; work; work = work->next)
		if (work->state == TESS_PENDING)
			tess_work_wait(work, 0);
}

void tess_group_close(struct tess_group *g)
{
	char text[256];

	if (g && g->owner) {
		snprintf(text, sizeof text,
		         "tess_group_close: the group %s is closed with its %s, not by itself",
		         g->members->name, g->owner);
		tess_world_fail(g->world, TESS_EINVAL, text);
	} else if (g) {
		tess_group_destroy(g);
	}
}

void tess_group_destroy(struct tess_group *g)
{
	char sentence[TESS_SENTENCE];
	struct tess_world *w = g->world;

	snprintf(sentence, sizeof sentence, "%s", tess_error());
	if (!w->left)
		tess_group_finish(g);
	pthread_mutex_lock(&w->lock);
	for (struct tess_group **at = &w->groups; *at; at = &(*at)->next)
		if (*at == g) {
			*at = g->next;
			break;
		}
	pthread_mutex_unlock(&w->lock);
	for (struct tess_work *work = g->live; work; work = work->next)
		tess_work_release_backend(work);
	if (g->members->id && g->size > 1 && !w->left) {
		tess_group_report_last(g);
		w->link.leave_group(w->link.self, g->members->id);
	}
	tess_carrier_close(g);
	close_backend_groups(g);
	for (struct tess_work *work = g->live, *next; work; work = next) {
		next = work->next;
		tess_background_remove(work);
		tess_work_free(work);
		tess_work_free_stage(work);
		free(work);
	}
	destroy_group(g);
	tess_fail(TESS_OK, "%s", sentence); /* discards messages of the closing backend */
}

/* ---- getters --------------------------------------------------------------------------------- */

int32_t tess_group_rank(const struct tess_group *g)
{
	return TESS_REQUIRE(g) ? -1 : g->rank;
}

int32_t tess_group_size(const struct tess_group *g)
{
	return TESS_REQUIRE(g) ? 0 : g->size;
}

int32_t tess_group_member(const struct tess_group *g, int32_t rank)
{
	return !TESS_REQUIRE(g) && rank >= 0 && rank < g->size ? g->members->member[rank] : -1;
}

const char *tess_group_name(const struct tess_group *g)
{
	return TESS_REQUIRE(g) ? "" : g->members->name;
}

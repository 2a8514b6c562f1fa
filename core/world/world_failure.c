/* world_failure.c - the first failure of a job, on one rank. */
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/registry/plugin_watch.h"
#include "core/world/group.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Bounds of the wait for a better message, about a tenth of the timeout of a call. */
enum { ANSWER_MIN_MS = 250, ANSWER_MAX_MS = 5000, CAUSE_MS = 500, CALLS_MS = 100 };

/* ---- the flight record --------------------------------------------------------------------- */

static json_t *describe_groups(const struct tess_world *w)
{
	json_t *all = json_array();

	for (const struct tess_group *g = w->groups; g; g = g->next) {
		json_t *ranks = json_array();

		for (int32_t i = 0; i < g->size; i++)
			json_array_append_new(ranks, json_integer(g->members->member[i]));
		json_array_append_new(all, json_pack("{s:s, s:o}", "name", g->key, "ranks", ranks));
	}
	return all;
}

static const struct tess_members *find_members(void *arg, uint32_t id)
{
	const struct tess_world *w = arg;
	const struct tess_group *g = w->groups;

	while (g && g->members->id != id)
		g = g->next;
	return g ? g->members : NULL;
}

/* Adds the call of a plugin in which the rank is; one that waits for others is in its calls. */
static void add_plugin_call(const struct tess_world *w, json_t *about)
{
	struct tess_plugin_stay stay;

	if (tess_plugin_watch_rank(w->job, w->rank, w->timeout, &stay) && !stay.waits)
		json_object_set_new(about, "plugin",
		                    json_pack("{s:s%, s:f}", "call", stay.text, strlen(stay.text),
		                              "seconds", (double)stay.stayed / 1e9));
}

/* Writes this rank's flight record, under the lock. f: the failure; NULL: a request. */
static void write_record(struct tess_world *w, const struct tess_failure *f)
{
	const struct tess_members_lookup lookup = { .find = find_members, .arg = w };
	json_t *about;

	if (!tess_flight_writes(w->flight))
		return;
	about = json_pack("{s:i, s:i, s:i, s:s, s:o}", "rank", (int)w->rank, "ranks", (int)w->size,
	                  "process", (int)getpid(), "backend",
	                  w->groups ? w->groups->backend->name : "", "groups", describe_groups(w));
	if (about)
		add_plugin_call(w, about);
	if (about && f)
		json_object_set_new(about, "failure", json_string(f->sentence));
	if (!about || tess_flight_write(w->flight, about, &lookup))
		tess_log(TESS_WARN, "comm", "%s",
		         about ? tess_error() : "no memory for the flight record");
}

void tess_world_handle_record(void *arg)
{
	struct tess_world *w = arg;

	pthread_mutex_lock(&w->lock);
	if (!w->failed) /* otherwise written at the failure */
		write_record(w, NULL);
	pthread_mutex_unlock(&w->lock);
}

/* ---- the first failure --------------------------------------------------------------------- */

void tess_group_abort(struct tess_group *g)
{
	if (g->self && g->backend->abort)
		TESS_PLUGIN_DO(g->backend, NULL, abort, g->self);
	if (g->p2p_channel && g->backend->abort)
		TESS_PLUGIN_DO(g->backend, NULL, abort, g->p2p_channel);
	if (g->carrier.self && g->carrier.backend->abort)
		TESS_PLUGIN_DO(g->carrier.backend, NULL, abort, g->carrier.self);
}

void tess_world_handle_failure(void *arg, const struct tess_failure *f)
{
	struct tess_world *w = arg;

	pthread_mutex_lock(&w->lock);
	if (!w->failed) {
		w->first = *f;
		write_record(w, f); /* before a caller sees the failure, and may exit */
		for (struct tess_group *g = w->groups; g; g = g->next)
			tess_group_abort(g);
		atomic_store(&w->failed, f->why); /* last, after the groups are aborted */
		pthread_cond_broadcast(&w->failed_cond);
	}
	pthread_mutex_unlock(&w->lock);
}

tess_status tess_world_failure(struct tess_world *w)
{
	atomic_store(&w->reported, true);
	return tess_fail(atomic_load(&w->failed), "%s", w->first.sentence);
}

static void wait_for_failure(struct tess_world *w, int ms)
{
	struct timespec until = tess_timespec(tess_now() + ms * (int64_t)TESS_MS);
	int err = 0;

	pthread_mutex_lock(&w->lock);
	while (!w->failed && !err)
		err = pthread_cond_timedwait(&w->failed_cond, &w->lock, &until);
	pthread_mutex_unlock(&w->lock);
}

/* Waits for the answer to a posted failure, the job's first one; else returns this rank's own. */
static tess_status await_first_failure(struct tess_world *w, tess_status why, const char *sentence)
{
	struct tess_failure own = { .why = why, .rank = w->rank };
	int64_t ms = w->timeout / 11 / TESS_MS; /* the caller gets it within a tenth */

	wait_for_failure(w, ms < ANSWER_MIN_MS   ? ANSWER_MIN_MS
	                    : ms > ANSWER_MAX_MS ? ANSWER_MAX_MS
	                                         : (int)ms);
	if (w->size == 1)
		snprintf(own.sentence, sizeof own.sentence, "%s", sentence);
	else
		snprintf(own.sentence, sizeof own.sentence,
		         "%.1400s; %s, which hosts the rendezvous, does not answer", sentence,
		         *tess_option_get("rendezvous") ? "the launcher" : "rank 0");
	tess_world_handle_failure(w, &own);
	return tess_world_check(w);
}

static void prefix_rank(const struct tess_world *w, const char *sentence, char *text)
{
	bool agreed = *w->agreed && !strcmp(sentence, w->agreed);

	if (w->size > 1 && !agreed)
		snprintf(text, TESS_SENTENCE, "rank %d: %s", w->rank, sentence);
	else
		snprintf(text, TESS_SENTENCE, "%s", sentence);
}

tess_status tess_world_post_failure(struct tess_world *w, tess_status why, const char *sentence)
{
	char text[TESS_SENTENCE];

	prefix_rank(w, sentence, text);
	if (!w->failed)
		w->link.fail(w->link.self, why, text);
	return await_first_failure(w, why, text);
}

tess_status tess_world_deadline_passed(struct tess_world *w, const struct tess_call_key *key,
                                       int32_t n, const char *sentence)
{
	char text[TESS_SENTENCE];

	prefix_rank(w, sentence, text);
	if (!w->failed)
		w->link.deadline_passed(w->link.self, key, n);
	return await_first_failure(w, TESS_ETIMEOUT, text);
}

tess_status tess_world_backend_failed(struct tess_world *w, tess_status why, const char *sentence)
{
	/* of two different calls the backend has one, or parts of both if it compares calls */
	bool by_peer = why == TESS_EPEER || why == TESS_EIO || why == TESS_EABORTED ||
	               why == TESS_ETIMEOUT || why == TESS_EMISMATCH;
	bool both = why == TESS_EMISMATCH && w->backend && w->backend->compares;
	char text[TESS_SENTENCE];

	snprintf(text, sizeof text, "%s", sentence);
	if (by_peer && w->size > 1)
		wait_for_failure(w, both ? CALLS_MS : CAUSE_MS);
	return w->failed ? tess_world_check(w) : tess_world_post_failure(w, why, text);
}

tess_status tess_group_fail_together(struct tess_group *g, tess_status why)
{
	snprintf(g->world->agreed, sizeof g->world->agreed, "%s", tess_error());
	return why;
}

tess_status tess_group_fail_agreed(struct tess_group *g, int32_t rank, tess_status why,
                                   const char *sentence)
{
	struct tess_world *w = g->world;

	if (g->size == 1 || !strcmp(sentence, w->agreed))
		return tess_fail(why, "%s", sentence);
	tess_fail(why, "rank %d: %s", (int)g->members->member[rank], sentence);
	return tess_group_fail_together(g, why);
}

void tess_world_fail(struct tess_world *w, tess_status why, const char *sentence)
{
	char text[TESS_SENTENCE];

	if (TESS_REQUIRE(w))
		return;
	/* it may be tess_error() */
	snprintf(text, sizeof text, "%s", sentence ? sentence : "tess_world_fail");
	tess_world_post_failure(w, why < 0 ? why : TESS_EBUG, text);
}

#include "world.h"

#include "choose.h"
#include "core/base/clock.h"
#include "core/rendezvous/sigusr1.h"
#include "core/rendezvous/rank_env.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long a better sentence is waited for: an answer for about a tenth of what a call has, within these. */
enum { ANSWER_MS = 250, ANSWER_MOST_MS = 5000, CAUSE_MS = 500, CALLS_MS = 100 };

const struct tess_option tess_world_options[] = {
	{ "backend", "auto",
	  "what moves data between ranks: loopback, gloo, ...; auto: the first of TESSERA_BACKENDS that joins them" },
	{ "backends", "loopback,shm,gloo", "the backends that auto tries, in this order" },
	{ "timeout", "300", "seconds that a call may take before the job fails" },
	{ "reduce", "exact",
	  "sums over ranks: exact (the same bits for any number of ranks) or fast (the backend's own)" },
	{ "job", "",
	  "name of the job on this host; default: torchrun's run, or whoever started the ranks" },
	{ "rendezvous", "", "socket where the ranks meet; set by tessera launch" },
	{ "port", "",
	  "TCP port where ranks of several hosts meet; default: the one after MASTER_PORT" },
	{ "secret_file", "",
	  "file of a secret, of mode 0600, that the ranks of several hosts prove to each other" },
	{ "bind", "auto",
	  "ranks that tessera starts on this host: cpu (each on one CPU), none; auto: cpu where it helps the backend and ranks share CPUs evenly" },
	{ "flight", "",
	  "directory for rank-R.json, the last 256 calls of each rank: at a failure, and at SIGUSR1; off: none" },
	{ NULL, NULL, NULL },
};

/* ---- the record ------------------------------------------------------------------------------ */

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

/* Writes down where this rank is, with the lock; `f` is why, NULL: somebody wants to know. */
static void write_record(struct tess_world *w, const struct tess_failure *f)
{
	const struct tess_members_lookup rosters = { .find = find_members, .arg = w };
	json_t *about;

	if (!w->flight)
		return;
	about = json_pack("{s:i, s:i, s:i, s:s, s:o}", "rank", (int)w->rank, "ranks", (int)w->size,
	                  "process", (int)getpid(), "backend",
	                  w->groups ? w->groups->backend->name : "", "groups", describe_groups(w));
	if (about && f)
		json_object_set_new(about, "failure", json_string(f->sentence));
	if (!about || tess_flight_write(w->flight, about, &rosters))
		tess_log(TESS_WARN, "comm", "%s",
		         about ? tess_error() : "no memory for the flight record");
}

static void handle_record_request(void *arg)
{
	struct tess_world *w = arg;

	pthread_mutex_lock(&w->lock);
	if (!w->failed) /* then it was written, as things were */
		write_record(w, NULL);
	pthread_mutex_unlock(&w->lock);
}

/* ---- failure --------------------------------------------------------------------------------- */

static void handle_failure(void *arg, const struct tess_failure *f)
{
	struct tess_world *w = arg;

	pthread_mutex_lock(&w->lock);
	if (!w->failed) {
		w->first = *f;
		write_record(w, f); /* before anybody hears of it, and may end */
		for (struct tess_group *g = w->groups; g; g = g->next)
			tess_group_abort(g);
		atomic_store(&w->failed, f->why); /* last: who sees it finds its group aborted */
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

/*
 * What was posted comes back as the job's first failure; where nobody answers, it is that of this
 * rank.
 */
static tess_status await_first_failure(struct tess_world *w, tess_status why, const char *sentence)
{
	struct tess_failure own = { .why = why, .rank = w->rank };
	int64_t ms = w->timeout / 11 / TESS_MS; /* so that it is heard within a tenth */

	wait_for_failure(w, ms < ANSWER_MS        ? ANSWER_MS
	                    : ms > ANSWER_MOST_MS ? ANSWER_MOST_MS
	                                          : (int)ms);
	if (w->size == 1)
		snprintf(own.sentence, sizeof own.sentence, "%s", sentence);
	else
		snprintf(own.sentence, sizeof own.sentence,
		         "%.1400s; %s, which hosts the rendezvous, does not answer", sentence,
		         *tess_option("rendezvous") ? "the launcher" : "rank 0");
	handle_failure(w, &own);
	return tess_world_check(w);
}

/* A sentence that all ranks have agreed on names its rank already. */
static void prefix_rank(const struct tess_world *w, const char *sentence, char *text)
{
	int rank, named = 0;

	if (sscanf(sentence, "rank %d: %n", &rank, &named) == 1 && named)
		snprintf(text, TESS_SENTENCE, "%s", sentence);
	else if (w->size > 1)
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
	/* of a difference a backend knows one call, or one that compares a part of both */
	bool by_others = why == TESS_EPEER || why == TESS_EIO || why == TESS_EABORTED ||
	                 why == TESS_ETIMEOUT || why == TESS_EMISMATCH;
	bool both = why == TESS_EMISMATCH && w->backend && w->backend->compares;
	char text[TESS_SENTENCE];

	snprintf(text, sizeof text, "%s", sentence);
	if (by_others && w->size > 1)
		wait_for_failure(w, both ? CALLS_MS : CAUSE_MS);
	return w->failed ? tess_world_check(w) : tess_world_post_failure(w, why, text);
}

void tess_world_fail(struct tess_world *w, tess_status why, const char *sentence)
{
	char text[TESS_SENTENCE];

	snprintf(text, sizeof text, "%s", sentence); /* it may be tess_error() */
	tess_world_post_failure(w, why < 0 ? why : TESS_EBUG, text);
}

/* ---- opening --------------------------------------------------------------------------------- */

static tess_status store_set(void *self, const char *key, const void *val, uint64_t len)
{
	struct tess_world *w = self;

	return w->link.set(w->link.self, key, val, len);
}

static tess_status store_get(void *self, const char *key, int64_t deadline, void *val,
                             uint64_t *len)
{
	struct tess_world *w = self;

	return w->link.get(w->link.self, key, deadline, val, len);
}

static tess_status read_options(struct tess_world *w)
{
	const char *reduce;
	tess_status st = tess_option_add("world", tess_world_options);

	if (!st)
		st = tess_option_get_seconds("timeout", &w->timeout);
	if (st)
		return st;
	if (w->timeout <= 0)
		return tess_fail(TESS_EINVAL, "TESSERA_TIMEOUT=%s: must be more than 0 seconds",
		                 tess_option("timeout"));
	reduce = tess_option("reduce");
	w->fast = !strcmp(reduce, "fast");
	if (!w->fast && strcmp(reduce, "exact"))
		return tess_fail(TESS_EINVAL, "TESSERA_REDUCE=%s: must be exact or fast", reduce);
	return TESS_OK;
}

tess_status tess_world_check_options(void)
{
	struct tess_world w;

	return read_options(&w);
}

static tess_status choose_world_backend(int32_t size, bool threads, bool hosts,
                                        const struct tess_backend **out)
{
	struct tess_choice choice;
	tess_status st = tess_backend_choose(tess_option("backend"), size, threads, hosts, &choice);

	if (st)
		return st;
	if (choice.second)
		tess_log(TESS_WARN, "comm", "%s is used: %s", choice.backend->name, choice.why);
	*out = choice.backend;
	return TESS_OK;
}

tess_status tess_world_make(int32_t rank, int32_t size, struct tess_world **out)
{
	struct tess_world *w = calloc(1, sizeof *w);
	pthread_condattr_t attr;
	tess_status st;

	if (!w)
		return tess_fail(TESS_ENOMEM, "no memory for a world");
	st = read_options(w);
	if (!st)
		st = tess_flight_open(tess_option("flight"), &w->flight);
	if (st) {
		free(w);
		return st;
	}
	w->rank = rank;
	w->size = size;
	w->handler = (struct tess_failure_handler){ .on_failure = handle_failure,
		                                    .on_record = handle_record_request,
		                                    .sigusr1_fd = -1,
		                                    .arg = w };
	w->store = (struct tess_store){
		.size = sizeof w->store, .self = w, .set = store_set, .get = store_get
	};
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->failed_cond, &attr);
	pthread_condattr_destroy(&attr);
	tess_log_set_rank(rank, size);
	*out = w;
	return TESS_OK;
}

void tess_world_leave(struct tess_world *w)
{
	for (struct tess_group *g = w->groups; g; g = g->next)
		tess_group_finish(g);
	for (struct tess_group *g = w->groups; g; g = g->next)
		tess_group_report_last(g);
	w->left = true;
	if (w->link.self)
		w->link.leave(w->link.self, tess_now() + w->timeout);
}

void tess_world_destroy(struct tess_world *w)
{
	while (w->groups)
		tess_group_close(w->groups);
	if (w->link.self)
		w->link.close(w->link.self);
	tess_rendezvous_close(w->server);
	tess_coordinator_close(w->coordinator);
	tess_sigusr1_close(w->handler.sigusr1_fd);
	tess_flight_close(w->flight);
	pthread_cond_destroy(&w->failed_cond);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

/* Each rank takes the backend that rank 0 takes. Threads cannot differ. */
static tess_status compare_backends(struct tess_world *w)
{
	const char *mine = w->backend->name;
	char theirs[128] = "";
	uint64_t len = sizeof theirs - 1;
	tess_status st;

	if (!w->rank)
		return w->link.set(w->link.self, "backend", mine, strlen(mine) + 1);
	st = w->link.get(w->link.self, "backend", tess_now() + w->timeout, theirs, &len);
	if (!st && strcmp(mine, theirs) != 0)
		st = tess_fail(TESS_EINVAL,
		               "it takes the backend %s, and rank 0 %s; all ranks take one, by "
		               "TESSERA_BACKEND",
		               mine, theirs);
	return st;
}

tess_status tess_world_enter(struct tess_world *w, bool threads, bool hosts)
{
	tess_status st = choose_world_backend(w->size, threads, hosts, &w->backend);

	if (!st)
		tess_opening_post(w, 0, w->size);
	if (!st && !threads && w->size > 1)
		st = compare_backends(w);
	if (!st)
		st = tess_group_open_all(w, &w->all);
	return st ? tess_opening_failed(w, 0, st, tess_error()) : TESS_OK;
}

static tess_status connect_single_rank(struct tess_world *w)
{
	tess_status st = tess_coordinator_open(1, &w->coordinator);

	return st ? st : tess_link_thread(w->coordinator, 0, &w->handler, &w->link);
}

tess_status tess_world_open(struct tess_world **out)
{
	struct tess_world *w;
	struct tess_rank_env seat;
	bool alone;
	tess_status st = tess_option_add("world", tess_world_options);

	if (st || (st = tess_rank_env_read(&seat)) ||
	    (st = tess_world_make(seat.rank, seat.size, &w)))
		return st;
	alone = seat.size == 1 && !*tess_option("rendezvous");
	if (w->flight && !alone)
		w->handler.sigusr1_fd = tess_sigusr1_open();
	st = alone ? connect_single_rank(w) : tess_world_connect(w, &seat);
	if (!st)
		st = tess_world_enter(w, false, seat.hosts);
	if (st)
		tess_world_destroy(w);
	else
		*out = w;
	return st;
}

void tess_world_close(struct tess_world *w)
{
	bool told;

	if (!w)
		return;
	told = w->reported;
	tess_world_leave(w);
	if (w->failed && !told)
		tess_log(TESS_WARN, "comm", "%s", w->first.sentence);
	tess_world_destroy(w);
}

/* ---- what it is ------------------------------------------------------------------------------ */

int32_t tess_world_rank(const struct tess_world *w)
{
	return w->rank;
}

int32_t tess_world_size(const struct tess_world *w)
{
	return w->size;
}

const char *tess_world_backend(const struct tess_world *w)
{
	return w->backend->name;
}

struct tess_group *tess_world_group(struct tess_world *w)
{
	return w->all;
}

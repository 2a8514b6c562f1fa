/*
 * spawn.c - ranks that are threads. Unlike a process, a thread cannot be killed: one that does not
 * return after the job has failed is abandoned, with all memory that it may still use.
 */
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/base/thread.h"
#include "core/registry/plugin_watch.h"
#include "core/registry/registry.h"
#include "core/rendezvous/sigusr1.h"
#include "core/world/world.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* time between a failure and the log of a rank that has not returned; the same as a launcher's */
enum { RETURN_MS = 1000 };

struct spawned_rank {
	pthread_t thread;
	struct tess_coordinator *coordinator;
	int32_t rank, size;
	tess_status (*fn)(struct tess_world *world, void *arg);
	void *arg;
	int event_fd; /* readable: a rank has ended, or the job has failed */
	bool started;
	atomic_bool ended;
	struct tess_plugin_report report; /* what the coordinator has of its call of a plugin */
	tess_status st;
	char sentence[TESS_SENTENCE];
};

static tess_status call_function(struct tess_world *w,
                                 tess_status (*fn)(struct tess_world *world, void *arg), void *arg)
{
	tess_status st;

	tess_error_clear();
	st = fn(w, arg);
	if (!st)
		return st;
	if (!*tess_error())
		tess_fail(st, "the function of the rank returned %d without a sentence", (int)st);
	tess_world_fail(w, st, tess_error());
	return st;
}

tess_status tess_world_run(struct tess_world *w,
                           tess_status (*fn)(struct tess_world *world, void *arg), void *arg)
{
	tess_status st;

	w->spawned = true;
	st = call_function(w, fn, arg);
	tess_world_leave(w);
	if (!st)
		st = tess_world_check(w);
	tess_world_destroy(w);
	return st;
}

static tess_status run_rank(struct spawned_rank *s)
{
	struct tess_world *w;
	tess_status st = tess_world_make(s->rank, s->size, NULL, &w);

	if (st) {
		tess_coordinator_fail(s->coordinator, s->rank, st, tess_error());
		return st;
	}
	w->job = s->coordinator;
	tess_plugin_set_rank(s->coordinator, s->rank, s->size);
	st = tess_link_thread(s->coordinator, s->rank, &w->handler, &w->link);
	if (!st)
		st = tess_world_set_meeting(w, "");
	if (!st)
		st = tess_world_enter(w, true, false);
	if (!st)
		return tess_world_run(w, s->fn, s->arg);
	tess_world_leave(w);
	tess_world_destroy(w);
	return st;
}

static void *run_rank_thread(void *arg)
{
	struct spawned_rank *s = arg;
	int event_fd = s->event_fd;

	s->st = run_rank(s);
	if (s->st)
		snprintf(s->sentence, sizeof s->sentence, "%s", tess_error());
	atomic_store(&s->ended, true);
	tess_event_post(event_fd); /* s may be freed already */
	return NULL;
}

static void handle_spawn_failure(void *arg, const struct tess_failure *f)
{
	(void)f;
	tess_event_post(*(const int *)arg);
}

static void start_threads(struct spawned_rank *s, int32_t n)
{
	for (int32_t r = 0; r < n; r++) {
		int err = pthread_create(&s[r].thread, NULL, run_rank_thread, &s[r]);
		char text[128];

		s[r].started = !err;
		if (!err)
			continue;
		snprintf(text, sizeof text, "no thread for rank %d of %d: %s", r, n, strerror(err));
		tess_coordinator_fail(s->coordinator, r, TESS_EIO, text);
		return;
	}
}

/* Returns the first rank that has not returned; -1: all have. */
static int32_t find_running(struct spawned_rank *s, int32_t n)
{
	for (int32_t r = 0; r < n; r++)
		if (s[r].started && !atomic_load(&s[r].ended))
			return r;
	return -1;
}

/* Reports slow calls of plugins to the coordinator. Returns the time of the next look. */
static int64_t watch_ranks(struct tess_coordinator *coordinator, struct spawned_rank *s, int32_t n,
                           int64_t timeout, int64_t when)
{
	struct tess_plugin_stay stay;

	if (tess_now() < when)
		return when;
	for (int32_t r = 0; r < n; r++)
		if (s[r].started && !atomic_load(&s[r].ended) &&
		    tess_plugin_report_due(&s[r].report, coordinator, r, timeout, &stay))
			tess_coordinator_set_stay(coordinator, r, stay.text, stay.stayed,
			                          stay.overdue);
	return tess_now() + tess_plugin_watch_interval(timeout);
}

/*
 * Returns -1 when all have ended, or a rank that has not returned within the timeout of a call
 * after the job failed. At SIGUSR1 all ranks write their flight records.
 */
static int32_t wait_for_threads(struct tess_coordinator *coordinator, struct spawned_rank *s,
                                int32_t n, int sigusr1_fd)
{
	int64_t until = 0, timeout = 0, look = 0;
	struct tess_failure first;
	uint64_t count;
	bool logged = false;
	int32_t r;

	if (tess_option_get_seconds("timeout", &timeout) || timeout <= 0)
		look = INT64_MAX; /* every rank refuses it */
	while ((r = find_running(s, n)) >= 0) {
		struct pollfd p[2] = { { .fd = s->event_fd, .events = POLLIN },
			               { .fd = sigusr1_fd, .events = POLLIN } };

		look = watch_ranks(coordinator, s, n, timeout, look);
		poll(p, 2, tess_ms_left(until && until < look ? until : look));
		if (p[0].revents && read(s->event_fd, &count, sizeof count) < 0)
			continue;
		if (p[1].revents && read(sigusr1_fd, &count, sizeof count) > 0)
			tess_coordinator_request_records(coordinator);
		if (!until && tess_coordinator_failure(coordinator, &first)) {
			until = tess_now() + RETURN_MS * (int64_t)TESS_MS;
		} else if (until && tess_now() >= until && !logged) {
			tess_log(TESS_ERROR, "comm",
			         "%s; rank %d has not returned since, and has %g s to do so",
			         first.sentence, r, (double)timeout / 1e9);
			logged = true;
			until = tess_now() + timeout;
		} else if (until && tess_now() >= until) {
			return r;
		}
	}
	return -1;
}

/* Starts all ranks. Returns -1 when all have ended, or the abandoned rank. */
static int32_t run_threads(struct tess_coordinator *coordinator, struct spawned_rank *s, int32_t n)
{
	int sigusr1_fd = tess_flight_on(tess_option_get("flight")) ? tess_sigusr1_open() : -1;
	struct tess_failure_handler handler = { .on_failure = handle_spawn_failure,
		                                .sigusr1_fd = -1,
		                                .arg = &s->event_fd };
	int32_t left;

	tess_coordinator_add_handler(coordinator, &handler);
	start_threads(s, n);
	left = wait_for_threads(coordinator, s, n, sigusr1_fd);
	for (int32_t r = 0; r < n; r++)
		if (s[r].started && atomic_load(&s[r].ended))
			pthread_join(s[r].thread, NULL);
		else if (s[r].started)
			pthread_detach(s[r].thread);
	tess_coordinator_remove_handler(coordinator, &handler);
	tess_sigusr1_close(sigusr1_fd);
	return left;
}

/* Returns the job's first failure, else that of a rank. */
static tess_status get_spawn_result(struct tess_coordinator *coordinator,
                                    const struct spawned_rank *s, int32_t n, int32_t left)
{
	struct tess_failure first;
	tess_status st = tess_coordinator_failure(coordinator, &first);

	if (left >= 0)
		return tess_fail(
			st, "%.1400s; rank %d has not returned and is left behind: end the process",
			first.sentence, left);
	if (st)
		return tess_fail(st, "%s", first.sentence);
	for (int32_t r = 0; r < n; r++)
		if (s[r].st)
			return tess_fail(s[r].st, "%s", s[r].sentence);
	return TESS_OK;
}

tess_status tess_world_run_threads(int32_t n,
                                   tess_status (*fn)(struct tess_world *world, void *arg),
                                   void *arg, bool *abandoned)
{
	tess_status st = tess_option_add("world", tess_world_options);
	struct tess_coordinator *coordinator;
	struct spawned_rank *s;
	int32_t left;
	int event_fd;

	if (abandoned)
		*abandoned = false;
	if (!st && !fn)
		st = tess_fail(TESS_EINVAL, "ranks without a function that they run");
	if (!st)
		st = tess_coordinator_open(n, &coordinator);
	if (st)
		return st;
	s = calloc((size_t)n, sizeof *s);
	event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!s || event_fd < 0) {
		st = s ? tess_fail(TESS_EIO, "no event descriptor for %d ranks: %s", n,
		                   strerror(errno))
		       : tess_fail(TESS_ENOMEM, "no memory for %d ranks", n);
		left = -1;
		goto out;
	}
	for (int32_t r = 0; r < n; r++) {
		s[r].coordinator = coordinator;
		s[r].rank = r;
		s[r].size = n;
		s[r].fn = fn;
		s[r].arg = arg;
		s[r].event_fd = event_fd;
	}
	left = run_threads(coordinator, s, n);
	st = get_spawn_result(coordinator, s, n, left);
	if (left >= 0) { /* the rank may still use this memory, and plugins */
		tess_registry_skip_quit();
		if (abandoned)
			*abandoned = true;
		return st;
	}
out:
	if (event_fd >= 0)
		close(event_fd);
	free(s);
	tess_coordinator_close(coordinator);
	return st;
}

/* Ranks report a backend that cannot be opened. */
tess_status tess_world_check_threads(void)
{
	const char *name = tess_option_get("backend");
	const struct tess_backend *b;

	if (!strcmp(name, "auto") || tess_plugin_find_backend(name, &b) ||
	    b->reach == TESS_REACH_PROCESS)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "ranks that are threads communicate over loopback, and the backend %s is "
	                 "for processes; set the backend to auto, loopback or a wrapper of it",
	                 name);
}

tess_status tess_world_spawn_threads(int32_t n,
                                     tess_status (*fn)(struct tess_world *world, void *arg),
                                     void *arg)
{
	return tess_world_run_threads(n, fn, arg, NULL);
}

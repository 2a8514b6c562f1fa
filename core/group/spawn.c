/*
 * Ranks that are threads. Unlike a process a thread cannot be killed: one that does not come back after the job
 * has failed is left behind, with all that it may still use.
 */
#include "core/base/clock.h"
#include "core/rendezvous/sigusr1.h"
#include "world.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	LAST_WORDS_MS = 1000
}; /* as a launcher gives ranks after a failure, before they are spoken of */

struct spawned_rank {
	pthread_t thread;
	struct tess_coordinator *coordinator;
	int32_t rank, size;
	tess_status (*fn)(struct tess_world *world, void *arg);
	void *arg;
	int event_fd; /* an eventfd: a rank has ended, or the job has failed */
	bool started;
	atomic_bool ended;
	tess_status st;
	char sentence[TESS_SENTENCE];
};

static tess_status run_rank(struct spawned_rank *s)
{
	struct tess_world *w;
	tess_status st = tess_world_make(s->rank, s->size, &w);

	if (st) {
		tess_coordinator_fail(s->coordinator, s->rank, st, tess_error());
		return st;
	}
	st = tess_link_thread(s->coordinator, s->rank, &w->handler, &w->link);
	if (!st)
		st = tess_world_enter(w, true, false);
	if (!st && (st = s->fn(w, s->arg)))
		tess_world_fail(w, st, tess_error());
	tess_world_leave(w);
	if (!st)
		st = tess_world_check(w);
	tess_world_destroy(w);
	return st;
}

static void wake_spawner(int news)
{
	uint64_t one = 1;

	if (write(news, &one, sizeof one) < 0)
		return; /* it is awake: the count cannot be full otherwise */
}

static void *run_rank_thread(void *arg)
{
	struct spawned_rank *s = arg;
	int news = s->event_fd;

	s->st = run_rank(s);
	if (s->st)
		snprintf(s->sentence, sizeof s->sentence, "%s", tess_error());
	atomic_store(&s->ended, true);
	wake_spawner(news);
	return NULL;
}

static void handle_spawn_failure(void *arg, const struct tess_failure *f)
{
	(void)f;
	wake_spawner(*(const int *)arg);
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

/* The first rank that has not returned; -1: all have. */
static int32_t find_running(struct spawned_rank *s, int32_t n)
{
	for (int32_t r = 0; r < n; r++)
		if (s[r].started && !atomic_load(&s[r].ended))
			return r;
	return -1;
}

/*
 * Until all of them have ended, at SIGUSR1 they write their records; or one has not returned in the time that a
 * call has, after the job has failed: which.
 */
static int32_t wait_for_threads(struct tess_coordinator *hub, struct spawned_rank *s, int32_t n,
                                int knock)
{
	int64_t until = 0, timeout = 0;
	struct tess_failure first;
	uint64_t count;
	bool said = false;
	int32_t r;

	while ((r = find_running(s, n)) >= 0) {
		struct pollfd p[2] = { { .fd = s->event_fd, .events = POLLIN },
			               { .fd = knock, .events = POLLIN } };

		poll(p, 2, until ? tess_ms_left(until) : -1);
		if (p[0].revents && read(s->event_fd, &count, sizeof count) < 0)
			continue;
		if (p[1].revents && read(knock, &count, sizeof count) > 0)
			tess_coordinator_request_records(hub);
		if (!until && tess_coordinator_failure(hub, &first)) {
			until = tess_now() + LAST_WORDS_MS * (int64_t)TESS_MS;
		} else if (until && tess_now() >= until && !said) {
			if (tess_option_get_seconds("timeout", &timeout))
				timeout = 0;
			tess_log(TESS_ERROR, "comm",
			         "%s; rank %d has not returned since, and has %g s to do so",
			         first.sentence, r, (double)timeout / 1e9);
			said = true;
			until = tess_now() + timeout;
		} else if (until && tess_now() >= until) {
			return r;
		}
	}
	return -1;
}

/* Starts all of them, and returns when they have ended: -1; or which was left behind. */
static int32_t run_threads(struct tess_coordinator *hub, struct spawned_rank *s, int32_t n)
{
	int knock = tess_flight_on(tess_option("flight")) ? tess_sigusr1_open() : -1;
	struct tess_failure_handler ear = { .on_failure = handle_spawn_failure,
		                            .sigusr1_fd = -1,
		                            .arg = &s->event_fd };
	int32_t left;

	tess_coordinator_add_handler(hub, &ear);
	start_threads(s, n);
	left = wait_for_threads(hub, s, n, knock);
	for (int32_t r = 0; r < n; r++)
		if (s[r].started && atomic_load(&s[r].ended))
			pthread_join(s[r].thread, NULL);
		else if (s[r].started)
			pthread_detach(s[r].thread);
	tess_coordinator_remove_handler(hub, &ear);
	tess_sigusr1_close(knock);
	return left;
}

/* The job's first failure, or that of a rank. */
static tess_status get_spawn_result(struct tess_coordinator *hub, const struct spawned_rank *s,
                                    int32_t n, int32_t left)
{
	struct tess_failure first;
	tess_status st = tess_coordinator_failure(hub, &first);

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

tess_status tess_world_spawn(int32_t n, tess_status (*fn)(struct tess_world *world, void *arg),
                             void *arg)
{
	tess_status st = tess_option_add("world", tess_world_options);
	struct tess_coordinator *hub;
	struct spawned_rank *s;
	int32_t left;
	int news;

	if (!st)
		st = tess_coordinator_open(n, &hub);
	if (st)
		return st;
	s = calloc((size_t)n, sizeof *s);
	news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!s || news < 0) {
		st = s ? tess_fail(TESS_EIO, "no event descriptor for %d ranks: %s", n,
		                   strerror(errno))
		       : tess_fail(TESS_ENOMEM, "no memory for %d ranks", n);
		left = -1;
		goto out;
	}
	for (int32_t r = 0; r < n; r++) {
		s[r].coordinator = hub;
		s[r].rank = r;
		s[r].size = n;
		s[r].fn = fn;
		s[r].arg = arg;
		s[r].event_fd = news;
	}
	left = run_threads(hub, s, n);
	st = get_spawn_result(hub, s, n, left);
	if (left >= 0) { /* it may go on with all of this, and in plugins */
		tess_registry_skip_quit();
		return st;
	}
out:
	if (news >= 0)
		close(news);
	free(s);
	tess_coordinator_close(hub);
	return st;
}

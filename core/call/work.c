/*
 * work.c - works, which are started calls. A work is taken from the group, tested or waited for,
 * settled with the status of its call, and released.
 */
#include "core/call/work.h"

#include "core/base/clock.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/call/background.h"
#include "core/call/call.h"
#include "core/call/carrier.h"
#include "core/call/emulate.h"
#include "core/call/report.h"
#include "core/call/staging.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_KEYS_MAX = 64 }; /* maximum number of a batch's calls that a passed deadline reports */
enum { BACKGROUND_NS = 500000 }; /* interval of tests of works in the background */

void tess_work_release_backend(struct tess_work *w)
{
	if (w->emulation)
		tess_emulation_release(w->emulation);
	else if (w->work)
		TESS_PLUGIN_DO_QUICK(w->by.backend, NULL, release, w->by.self, w->work);
	w->work = NULL;
}

void tess_work_free(struct tess_work *w)
{
	tess_emulation_free(w->emulation);
	free(w->batch);
}

void tess_work_drop(struct tess_work *w)
{
	struct tess_group *g = w->group;

	if (w->state)
		return;
	tess_work_release_backend(w);
	if (w->emulation || w->batch)
		tess_work_free(w);
	for (struct tess_work **at = &g->live; *at; at = &(*at)->next)
		if (*at == w) {
			*at = w->next;
			break;
		}
	w->next = g->spare;
	g->spare = w;
}

struct tess_work *tess_work_take(struct tess_group *g)
{
	struct tess_work *w = g->spare;

	if (w)
		g->spare = w->next;
	else
		w = calloc(1, sizeof *w);
	if (!w)
		return NULL;
	w->group = g;
	w->work = NULL;
	w->emulation = NULL;
	w->batch = NULL;
	w->queued = w->in_background = false;
	w->by = (struct tess_carrier){ g->backend, g->self };
	w->state = TESS_PENDING;
	w->next = g->live;
	return g->live = w;
}

/* ---- settled ------------------------------------------------------------------------------- */

/* Describes the call, or the first call of a batch. */
static void describe_work(struct tess_work *w, char *text, size_t size)
{
	tess_call_desc_write(w->group->desc, &w->coll, &w->key, w->group->size);
	tess_call_desc_format(w->group->desc, w->group->members, text, size);
	if (w->batch)
		snprintf(text + strlen(text), size - strlen(text), ", the first of a batch of %u",
		         w->n);
}

tess_status tess_work_settle(struct tess_work *w, tess_status st)
{
	struct tess_flight *f = w->group->world->flight;
	int64_t now = f ? tess_now() : 0;

	tess_background_remove(w);
	if (!w->batch)
		tess_flight_end(f, w->flight, st, now);
	for (uint32_t i = 0; w->batch && i < w->n; i++)
		tess_flight_end(f, w->batch[i].flight, st, now);
	return w->state = st;
}

/* Reports a passed deadline of this rank; the coordinator finds the straggler of the calls. */
static tess_status fail_deadline(struct tess_work *w, const char *sentence)
{
	struct tess_call_key key[BATCH_KEYS_MAX] = { w->key };
	int32_t n = w->batch ? 0 : 1;

	for (uint32_t i = 0; w->batch && i < w->n && n < BATCH_KEYS_MAX; i++)
		key[n++] = w->batch[i].key;
	return tess_world_deadline_passed(w->group->world, key, n, sentence);
}

tess_status tess_work_failed(struct tess_work *w, tess_status why, int64_t deadline)
{
	struct tess_world *world = w->group->world;
	char text[560], sentence[TESS_SENTENCE];

	tess_work_report(w);
	tess_work_settle(w, why); /* before the flight record is written */
	describe_work(w, text, sizeof text);
	if (why == TESS_ETIMEOUT && tess_now() >= deadline) {
		snprintf(sentence, sizeof sentence, "%s was not finished by its deadline", text);
		w->state = fail_deadline(w, sentence);
		/* In the aborted group, ranks may move the caller's data until this wait ends. */
		if (deadline < w->coll.deadline && w->work && w->by.backend->abort) {
			tess_carrier_wait(&w->by, w->work, &w->coll, deadline);
			w->state = tess_world_failure(world);
		}
	} else {
		snprintf(sentence, sizeof sentence, "%s: %s: %.900s", text, w->by.backend->name,
		         tess_error());
		w->state = tess_world_backend_failed(world, why, sentence);
	}
	return w->state;
}

tess_status tess_work_hand_out(struct tess_work *w, tess_status st, struct tess_work **out)
{
	if (w->emulation)
		tess_work_report(w);
	if (st)
		return tess_work_settle(w, st);
	*out = w;
	return TESS_OK;
}

/* ---- test and wait ------------------------------------------------------------------------- */

static tess_status test_work(struct tess_work *w)
{
	return w->emulation ? tess_emulation_test(w->emulation)
	                    : tess_carrier_test(&w->by, w->work, &w->coll, NULL);
}

/* Returns true if a backend runs the work: not while its operands are copied to host memory. */
static bool is_under_way(const struct tess_work *w)
{
	return w->state == TESS_PENDING && (w->work || w->emulation);
}

/* Returns true if a call on host memory is outstanding while a device's work `w` is awaited. */
static bool has_host_works(const struct tess_work *w)
{
	const struct tess_group *g = w->group;
	bool device = g->carrier.self && w->by.self == g->carrier.self;

	for (const struct tess_work *o = device ? g->live : NULL; o; o = o->next)
		if (is_under_way(o) && o->by.self != w->by.self)
			return true;
	return false;
}

/*
 * Tests outstanding works on the group's other backend, for a p2p_channel or a device's carrier: a
 * backend need not progress while this rank waits in another one.
 *
 * Works on the device are not tested while this rank waits for one on host memory: what they start
 * too early may block a stream. Failures are returned to the callers that wait for them.
 */
static void progress_others(const struct tess_work *w)
{
	const struct tess_group *g = w->group;
	bool any = g->p2p_channel || has_host_works(w);

	for (struct tess_work *o = any ? g->live : NULL; o; o = o->next)
		if (o != w && is_under_way(o) &&
		    (o->by.self == w->by.self || o->by.self != g->carrier.self))
			test_work(o);
}

/* Tests works in the background, except `w`; returns true if any is pending. */
static bool test_background(const struct tess_work *w)
{
	bool any = false;

	for (struct tess_work *o = w->group->world->background, *next; o; o = next) {
		next = o->next_in_background;
		/* A failure is returned to the caller that waits for it. */
		if (o != w && is_under_way(o))
			any |= tess_work_test(o) == TESS_PENDING;
	}
	return any;
}

/* Tests at increasing intervals, and never waits in the backend, which may not return. */
static tess_status poll_work(struct tess_work *w, int64_t deadline)
{
	int64_t pause = 0;

	for (;;) {
		tess_status st = test_work(w);
		struct timespec t;
		int64_t now;

		if (st != TESS_PENDING)
			return st;
		progress_others(w);
		test_background(w);
		if ((st = tess_world_check(w->group->world)))
			return st;
		now = tess_now();
		if (now >= deadline)
			return TESS_ETIMEOUT;
		if (now >= w->report_at)
			tess_work_report(w);
		t = tess_timespec(pause);
		nanosleep(&t, NULL);
		pause = pause < TESS_MS ? pause + 5000 : TESS_MS;
	}
}

static tess_status end_work(struct tess_work *w, tess_status st, int64_t deadline)
{
	if (!st && w->staged)
		st = tess_work_unstage(w);
	return st ? tess_work_failed(w, st, deadline) : tess_work_settle(w, TESS_OK);
}

/* Returns true if the work has ended, or ends now with its world; *st is the result. */
static bool has_ended(struct tess_work *w, tess_status *st)
{
	struct tess_world *world = w->group->world;

	if (w->state != TESS_PENDING) {
		*st = w->state ? tess_world_check(world) : TESS_OK;
		return true;
	}
	*st = tess_world_check(world);
	if (*st)
		tess_work_settle(w, *st);
	return *st != TESS_OK;
}

tess_status tess_work_test(struct tess_work *w)
{
	tess_status st = TESS_REQUIRE(w);

	if (st || has_ended(w, &st))
		return st;
	st = test_work(w);
	if (st == TESS_PENDING) {
		int64_t now = tess_now();

		progress_others(w);
		if (now >= w->report_at)
			tess_work_report(w);
		if (now < w->coll.deadline)
			return st;
		st = TESS_ETIMEOUT;
	}
	return end_work(w, st, w->coll.deadline);
}

static tess_status wait_in_backend(struct tess_work *w, int64_t deadline)
{
	return w->emulation ? tess_emulation_wait(w->emulation, deadline)
	                    : tess_carrier_wait(&w->by, w->work, &w->coll, deadline);
}

/* Waits in the backend, interrupted by tests while works in the background are pending. */
static tess_status wait_with_tests(struct tess_work *w, int64_t deadline)
{
	while (test_background(w)) {
		int64_t now = tess_now(), until = now + BACKGROUND_NS;
		tess_status st = wait_in_backend(w, until < deadline ? until : deadline);

		if (st != TESS_ETIMEOUT || now >= deadline)
			return st;
	}
	return wait_in_backend(w, deadline);
}

/* Waits until the call is slow, reports it, and waits until the deadline. */
static tess_status wait_work(struct tess_work *w, int64_t deadline)
{
	tess_status st;

	if (!w->by.backend->abort || w->group->p2p_channel || has_host_works(w))
		return poll_work(w, deadline);
	if (w->emulation || !w->report_at || w->report_at >= deadline)
		return wait_with_tests(w, deadline);
	st = wait_with_tests(w, w->report_at);
	if (st != TESS_ETIMEOUT)
		return st;
	tess_work_report(w);
	return wait_with_tests(w, deadline);
}

tess_status tess_work_wait(struct tess_work *w, int64_t deadline)
{
	tess_status st = TESS_REQUIRE(w);

	if (!st && deadline < 0)
		st = tess_fail(TESS_EINVAL, "tess_work_wait: deadline %lld", (long long)deadline);
	if (st || has_ended(w, &st))
		return st;
	if (!deadline || deadline > w->coll.deadline)
		deadline = w->coll.deadline;
	return end_work(w, wait_work(w, deadline), deadline);
}

void tess_work_release(struct tess_work *w)
{
	if (!w)
		return;
	if (w->state == TESS_PENDING)
		tess_work_wait(w, 0);
	tess_work_drop(w);
}

void tess_work_abandon(struct tess_work *w)
{
	if (w->state == TESS_PENDING)
		tess_work_wait(w, 0);
	if (w->state && w->work) /* an aborted group returns at once */
		tess_carrier_wait(&w->by, w->work, &w->coll, tess_now());
	tess_work_release(w);
}

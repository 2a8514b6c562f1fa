/* The group: the only caller of backends. It checks, numbers, compares, bounds, and poisons. */
#include "world.h"

#include "check.h"
#include "core/base/clock.h"
#include "emulate.h"

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/registry/returned.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPORT_INTERVAL = 1000 * TESS_MS };
enum { BATCH_KEYS_MAX = 64 }; /* calls of a batch that the others are asked about */

void tess_work_release_backend(struct tess_work *w)
{
	if (w->emulation)
		tess_emulation_release(w->emulation);
	else if (w->work)
		w->group->backend->release(w->group->self, w->work);
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

/* ---- starting --------------------------------------------------------------------------------------------- */

struct tess_work *tess_work_take(struct tess_group *g)
{
	struct tess_work *w = g->spare;

	if (w)
		g->spare = w->next;
	else
		w = malloc(sizeof *w);
	if (!w)
		return NULL;
	w->group = g;
	w->work = NULL;
	w->emulation = NULL;
	w->batch = NULL;
	w->state = TESS_PENDING;
	w->next = g->live;
	return g->live = w;
}

/*
 * Field by field: the caller has written them so, a moment ago, and a wide load of what is still on its
 * way to the cache in parts waits until all of it is there.
 */
static void copy_fields(struct tess_coll *out, const struct tess_coll *c)
{
#define COPY(field) *(volatile __typeof__(out->field) *)&out->field = c->field
	COPY(kind);
	COPY(dtype);
	COPY(op);
	COPY(mem);
	COPY(peer);
	COPY(src);
	COPY(dst);
	COPY(count);
	COPY(send_counts);
	COPY(recv_counts);
	COPY(stream);
	COPY(deadline);
	COPY(where);
#undef COPY
}

/* Checked; *shape: that it has, if it is kept. */
static tess_status complete_call(struct tess_group *g, const struct tess_coll *c, int64_t now,
                                 struct tess_coll *out, struct tess_call_shape **shape)
{
	bool whole = c->size >= sizeof *out;
	tess_status st;

	if (c->size < TESS_UPTO(tess_coll, count))
		return tess_fail(TESS_EINVAL,
		                 "a collective of %u bytes: its field `size` is not set", c->size);
	*shape = whole ? tess_group_shape(g, c->kind) : NULL;
	if (whole) {
		copy_fields(out, c);
	} else {
		memset(out, 0, sizeof *out);
		memcpy(out, c, c->size);
	}
	out->size = sizeof *out;
	out->flags = 0; /* for backends that wrap another */
	if (!out->mem)
		out->mem = TESS_HOST;
	if (!out->op)
		out->op = TESS_SUM;
	if (!out->deadline)
		out->deadline = now + g->world->timeout;
	if (*shape && tess_call_shape_fits(*shape, c))
		return TESS_OK;
	st = tess_coll_check(out, g->rank, g->size);
	if (st || out->send_counts || out->recv_counts)
		*shape = NULL;
	else if (*shape)
		tess_call_shape_learn(*shape, c, out, g->rank, g->size);
	if (*shape == g->described)
		g->described = NULL; /* it is another one now */
	return st;
}

static uint64_t compute_fingerprint(const struct tess_group *g, const struct tess_coll *c,
                                    const struct tess_call_key *key,
                                    const struct tess_call_shape *shape)
{
	return tess_call_fingerprint(shape ? shape->what : tess_call_desc_hash(c, g->size), key,
	                             g->size);
}

/* Once in a job. */
static void warn_emulation(const struct tess_group *g, const struct tess_coll *c)
{
	if (!g->world->warned && g->world->rank == 0 && g->size > 1)
		tess_log(TESS_WARN, "comm",
		         "backend %s lacks %s of %s: such calls are made of messages between all "
		         "ranks, up to %d times the bytes",
		         g->backend->name, tess_kind_name(c->kind), tess_dtype_name(c->dtype),
		         g->size - 1);
	g->world->warned = true;
}

/* *has: the backend does; else it is made of messages. */
static tess_status query_backend(const struct tess_group *g, const struct tess_coll *c, bool *has)
{
	bool basic = c->kind == TESS_BARRIER || c->kind == TESS_SEND || c->kind == TESS_RECV;
	tess_status st = g->self ? g->backend->supports(c, g->size) : TESS_ENOTSUP;

	if (st != TESS_ENOTSUP) /* which needs no sentence */
		st = tess_plugin_check_returned(g->backend, g->backend->name, "supports", c->where,
		                                st);
	*has = !st;
	if (st != TESS_ENOTSUP)
		return st;
	if (g->self && basic)
		return tess_fail_in(st, "%s: backend %s lacks %s, which every backend needs",
		                    c->where ? c->where : "", g->backend->name,
		                    tess_kind_name(c->kind));
	warn_emulation(g, c);
	return TESS_OK;
}

static tess_status start_on_backend(struct tess_group *g, struct tess_work *w,
                                    struct tess_call_shape *shape)
{
	bool has = shape && shape->has > 0;
	tess_status st = has ? TESS_OK : query_backend(g, &w->coll, &has);

	if (st)
		return st;
	if (shape)
		shape->has = has ? 1 : -1;
	return has ? TESS_PLUGIN_CALL(g->backend, w->coll.where, start, g->self, &w->coll, &w->work)
	           : tess_emulation_start(g, &w->coll, &w->emulation);
}

/* As one where the backend can; else one by one. */
static tess_status start_batch(struct tess_group *g, struct tess_work *w)
{
	const struct tess_coll **c = malloc((size_t)w->n * sizeof *c);
	tess_status st = c ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory for %u calls", w->n);
	bool whole = g->self && g->backend->batch, has;

	for (uint32_t i = 0; i < w->n && !st; i++) {
		c[i] = &w->batch[i].coll;
		st = query_backend(g, c[i], &has);
		whole = whole && !st && has;
	}
	if (!st && whole)
		st = TESS_PLUGIN_CALL(g->backend, w->coll.where, batch, g->self, c, w->n, &w->work);
	else if (!st)
		st = tess_emulation_batch(g, c, w->n, &w->emulation);
	free(c);
	return st;
}

/* Of a batch, its first call. */
static void describe_work(struct tess_work *w, char *text, size_t room)
{
	tess_call_desc_write(w->group->desc, &w->coll, &w->key, w->group->size);
	tess_call_desc_format(w->group->desc, w->group->members, text, room);
	if (w->batch)
		snprintf(text + strlen(text), room - strlen(text), ", the first of a batch of %u",
		         w->n);
}

void tess_call_report(struct tess_group *g, int64_t now)
{
	if (g->size > 1)
		g->world->link.add_call(g->world->link.self, g->desc);
	g->unreported = false;
	g->report_at = now + REPORT_INTERVAL;
}

static void report_call(struct tess_group *g, const struct tess_coll *c,
                        const struct tess_call_key *key, int64_t now)
{
	if (g->unreported && memcmp(&g->desc->key, key, sizeof *key))
		tess_call_report(g, now); /* of a later call, which would be forgotten */
	tess_call_desc_write(g->desc, c, key, g->size);
	g->described = NULL;
	tess_call_report(g, now);
}

static void report_work(struct tess_work *w)
{
	int64_t now = tess_now();

	if (!w->report_at)
		return;
	if (!w->batch)
		report_call(w->group, &w->coll, &w->key, now);
	for (uint32_t i = 0; w->batch && i < w->n; i++)
		if (w->batch[i].unreported)
			report_call(w->group, &w->batch[i].coll, &w->batch[i].key, now);
	w->report_at = 0;
}

void tess_group_report_last(struct tess_group *g)
{
	if (g->unreported)
		tess_call_report(g, 0);
}

/*
 * Tells the others of the call, if they are to know at once. False: nobody is to know yet, and the
 * note can be written while the call is under way.
 */
static bool announce_call(struct tess_work *w, int64_t now)
{
	struct tess_group *g = w->group;
	bool tells = !g->backend->compares || w->key.channel || now >= g->report_at;

	w->flight = tess_flight_number(g->world->flight);
	w->report_at = tells ? 0 : now + TESS_SLOW;
	if (w->key.channel)
		tess_group_report_last(g); /* messages have numbers of their own */
	if (!tells)
		return false;
	tess_call_describe(g, &w->coll, &w->key, NULL, w->flight, now);
	tess_call_report(g, now);
	return true;
}

/* How it has ended, for its caller and for the recorder. */
static tess_status settle_work(struct tess_work *w, tess_status st)
{
	struct tess_flight *f = w->group->world->flight;
	int64_t now = f ? tess_ticks_now(&w->group->ticks) : 0;

	if (!w->batch)
		tess_flight_end(f, w->flight, st, now);
	for (uint32_t i = 0; w->batch && i < w->n; i++)
		tess_flight_end(f, w->batch[i].flight, st, now);
	return w->state = st;
}

/* This rank's deadline has passed: who is behind, and in which of the calls? */
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

	report_work(w);
	settle_work(w, why); /* before the record is written */
	describe_work(w, text, sizeof text);
	if (why == TESS_ETIMEOUT && tess_now() >= deadline) {
		snprintf(sentence, sizeof sentence, "%s was not finished by its deadline", text);
		w->state = fail_deadline(w, sentence);
	} else {
		snprintf(sentence, sizeof sentence, "%s: %s: %.900s", text, w->group->backend->name,
		         tess_error());
		w->state = tess_world_backend_failed(world, why, sentence);
	}
	return w->state;
}

/* What has begun is the caller's; what could not stays with the group. */
static tess_status hand_out_work(struct tess_work *w, tess_status st, struct tess_work **out)
{
	if (w->emulation)
		report_work(w);
	if (st)
		return settle_work(w, st);
	*out = w;
	return TESS_OK;
}

tess_status tess_group_start(struct tess_group *g, const struct tess_coll *c,
                             struct tess_work **out)
{
	tess_status st = tess_world_check(g->world), lost;
	int64_t now = tess_ticks_now(&g->ticks);
	struct tess_call_shape *shape;
	struct tess_work *w;
	bool noted;

	if (st)
		return st;
	w = tess_work_take(g);
	if (!w)
		return tess_fail(TESS_ENOMEM, "no memory for a call");
	st = complete_call(g, c, now, &w->coll, &shape);
	if (st) {
		w->state = TESS_OK;
		tess_work_drop(w);
		return st;
	}
	w->key = tess_call_number(g, &w->coll);
	w->coll.fingerprint = compute_fingerprint(g, &w->coll, &w->key, shape);
	noted = announce_call(w, now);
	lost = tess_world_check(g->world);
	st = lost ? lost : start_on_backend(g, w, shape);
	if (!noted)
		tess_call_describe(g, &w->coll, &w->key, NULL, w->flight, now);
	if (st && !lost)
		st = tess_work_failed(w, st, w->coll.deadline);
	return hand_out_work(w, st, out);
}

/* One call of a batch: told and written down before any of them begins. */
static bool announce_batch_call(struct tess_group *g, struct tess_work_call *c, int64_t now)
{
	c->key = tess_call_number(g, &c->coll);
	c->coll.fingerprint = compute_fingerprint(g, &c->coll, &c->key, NULL);
	c->unreported = g->backend->compares && !c->key.channel && now < g->report_at;
	if (c->key.channel)
		tess_group_report_last(g); /* messages have numbers of their own */
	c->flight = tess_flight_number(g->world->flight);
	tess_call_describe(g, &c->coll, &c->key, NULL, c->flight, now);
	if (!c->unreported)
		tess_call_report(g, now);
	return c->unreported;
}

/* All are checked before the first is announced. */
static tess_status prepare_batch(struct tess_work *w, const struct tess_coll *const *c)
{
	int64_t now = tess_ticks_now(&w->group->ticks);
	struct tess_call_shape *shape;
	tess_status st = TESS_OK;

	w->report_at = 0;
	for (uint32_t i = 0; i < w->n && !st; i++)
		st = complete_call(w->group, c[i], now, &w->batch[i].coll, &shape);
	for (uint32_t i = 0; i < w->n && !st; i++)
		if (announce_batch_call(w->group, &w->batch[i], now))
			w->report_at = now + TESS_SLOW;
	if (st)
		return st;
	w->coll = w->batch->coll;
	w->key = w->batch->key;
	for (uint32_t i = 1; i < w->n; i++)
		if (w->batch[i].coll.deadline < w->coll.deadline)
			w->coll.deadline = w->batch[i].coll.deadline;
	return TESS_OK;
}

tess_status tess_group_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                             struct tess_work **out)
{
	tess_status st = tess_world_check(g->world);
	struct tess_work_call *calls;
	struct tess_work *w;

	if (st)
		return st;
	calls = calloc(n ? n : 1, sizeof *calls);
	w = calls ? tess_work_take(g) : NULL;
	if (!w) {
		free(calls);
		return tess_fail(TESS_ENOMEM, "no memory for %u calls", n);
	}
	w->batch = calls;
	w->n = n;
	st = n ? prepare_batch(w, c) : TESS_OK;
	if (!n || st) { /* nothing is under way */
		w->state = TESS_OK;
		if (st)
			tess_work_drop(w);
		else
			*out = w;
		return st;
	}
	st = tess_world_check(g->world);
	if (!st && (st = start_batch(g, w)))
		st = tess_work_failed(w, st, w->coll.deadline);
	return hand_out_work(w, st, out);
}

/* ---- finishing --------------------------------------------------------------------------------------------- */

static tess_status judge(const struct tess_group *g, const char *function, tess_status st)
{
	return tess_plugin_check_returned(g->backend, g->backend->name, function, NULL, st);
}

tess_status tess_group_wait_work(struct tess_group *g, void *self, void *work, int64_t deadline)
{
	tess_status st = g->backend->wait(self, work, deadline);

	return st == TESS_PENDING || st == TESS_ETIMEOUT ? TESS_ETIMEOUT : judge(g, "wait", st);
}

static tess_status test_work(struct tess_work *w)
{
	struct tess_group *g = w->group;

	tess_status st;

	if (w->emulation)
		return tess_emulation_test(w->emulation);
	st = g->backend->test(g->self, w->work);
	return st == TESS_PENDING ? st : judge(g, "test", st);
}

/*
 * The backend knows two groups where the program knows one, and need not work for the one while this
 * rank is in the other: what is under way in either gets on. What fails will be found by who waits for it.
 */
static void progress_others(const struct tess_work *w)
{
	const struct tess_group *g = w->group;

	for (struct tess_work *o = g->p2p_channel ? g->live : NULL; o; o = o->next)
		if (o != w && o->state == TESS_PENDING)
			test_work(o);
}

/* Asks at growing pauses, and never waits in the backend, where it could be held. */
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
		if ((st = tess_world_check(w->group->world)))
			return st;
		now = tess_now();
		if (now >= deadline)
			return TESS_ETIMEOUT;
		if (now >= w->report_at)
			report_work(w);
		t = tess_timespec(pause);
		nanosleep(&t, NULL);
		pause = pause < TESS_MS ? pause + 5000 : TESS_MS;
	}
}

tess_status tess_work_test(struct tess_work *w)
{
	struct tess_group *g = w->group;
	tess_status st;

	if (w->state != TESS_PENDING)
		return w->state ? tess_world_check(g->world) : TESS_OK;
	if ((st = tess_world_check(g->world)))
		return settle_work(w, st);
	st = test_work(w);
	if (st == TESS_PENDING) {
		int64_t now = tess_now();

		progress_others(w);
		if (now >= w->report_at)
			report_work(w);
		if (now < w->coll.deadline)
			return st;
		st = TESS_ETIMEOUT;
	}
	return st ? tess_work_failed(w, st, w->coll.deadline) : settle_work(w, TESS_OK);
}

/* Until it is slow, and then to the end. */
static tess_status wait_work(struct tess_work *w, int64_t deadline)
{
	struct tess_group *g = w->group;
	tess_status st;

	if (!g->backend->abort || g->p2p_channel)
		return poll_work(w, deadline);
	if (w->emulation)
		return tess_emulation_wait(w->emulation, deadline);
	if (!w->report_at || w->report_at >= deadline)
		return tess_group_wait_work(g, g->self, w->work, deadline);
	st = tess_group_wait_work(g, g->self, w->work, w->report_at);
	if (st != TESS_ETIMEOUT)
		return st;
	report_work(w);
	return tess_group_wait_work(g, g->self, w->work, deadline);
}

tess_status tess_work_wait(struct tess_work *w, int64_t deadline)
{
	struct tess_group *g = w->group;
	tess_status st;

	if (w->state != TESS_PENDING)
		return w->state ? tess_world_check(g->world) : TESS_OK;
	if ((st = tess_world_check(g->world)))
		return settle_work(w, st);
	if (!deadline || deadline > w->coll.deadline)
		deadline = w->coll.deadline;
	st = wait_work(w, deadline);
	return st ? tess_work_failed(w, st, deadline) : settle_work(w, TESS_OK);
}

void tess_work_release(struct tess_work *w)
{
	if (!w)
		return;
	if (w->state == TESS_PENDING)
		tess_work_wait(w, 0);
	tess_work_drop(w);
}

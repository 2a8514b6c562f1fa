/*
 * tess-backend-faulty.so: wraps another backend and injects faults by rule, to test the reaction of
 * a program. TESSERA_BACKEND=faulty:shm TESSERA_FAULTY='rank=2,call=17,do=kill'
 *
 * Faults are injected below the group, which compares calls before: it cannot detect a mismatch
 * made here.
 */
#include "rule.h"
#include "wrap.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/util/clock.h>
#include <unistd.h>

enum { PAUSE_NS = 500000 };

static struct rules rules;

struct rank_state { /* the state of a rank, shared by its groups */
	int32_t rank; /* rank in the world */
	int32_t groups;
	int64_t calls;
	bool thread; /* other ranks are in this process */
	bool gone, stopped; /* a thread that was killed, or stopped */
	char why[RULE_TEXT + 64];
};

struct group {
	struct wrap_group wrap;
	struct rank_state *state;
	bool internal; /* its calls are those of a backend that wraps this one */
};

struct work {
	struct wrap_work wrap; /* wrap.work is NULL: dropped */
	struct tess_coll c;
	int64_t call;
	bool done;
};

/* Sleeps until `until`, or until the group is aborted; g may be NULL. */
static void sleep_unless_aborted(const struct group *g, int64_t until)
{
	struct timespec t = { .tv_nsec = PAUSE_NS };

	while (tess_now() < until && !(g && atomic_load(&g->wrap.aborted)))
		nanosleep(&t, NULL);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static tess_status fail_ended_rank(const struct rank_state *s)
{
	return wrap_host->fail(TESS_EPEER, "%s", s->why);
}

/* Ends a rank: a process exits; every later call of a thread fails. */
static tess_status end_rank(struct rank_state *s, const struct rule *r)
{
	snprintf(s->why, sizeof s->why, "rank %d was ended by the rule \"%s\"", (int)s->rank,
	         r->text);
	s->gone = s->thread;
	if (s->thread)
		return fail_ended_rank(s);
	if (r->action == EXIT)
		_exit(r->code);
	raise(SIGKILL);
	return TESS_OK;
}

static void change_call(struct tess_coll *c, char part)
{
	static const int32_t twin[] = {
		[TESS_F32] = TESS_I32,  [TESS_F64] = TESS_I64, [TESS_BF16] = TESS_F16,
		[TESS_F16] = TESS_BF16, [TESS_I64] = TESS_F64, [TESS_I32] = TESS_F32,
		[TESS_I8] = TESS_U8,    [TESS_U8] = TESS_I8
	};
	bool lists = c->send_counts || c->recv_counts;

	if (part == 'c' && c->count && !lists)
		c->count--;
	else if (part == 'o')
		c->op = c->op == TESS_MAX ? TESS_SUM : TESS_MAX;
	else if (part == 'd' && c->op < TESS_BAND && c->kind != TESS_BARRIER)
		c->dtype = twin[c->dtype];
	else if (part == 'k')
		*c = (struct tess_coll){ .size = sizeof *c,
			                 .kind = TESS_BARRIER,
			                 .mem = c->mem,
			                 .fingerprint = c->fingerprint,
			                 .deadline = c->deadline,
			                 .where = c->where };
	else
		return;
	c->fingerprint ^= 0x5bd1e9955bd1e995u;
}

/* Applies all rules for this moment. Changes *drop and *c unless they are NULL. */
static tess_status inject_faults(struct group *g, struct rank_state *s, int64_t call,
                                 struct tess_coll *c, int32_t at, int64_t deadline, bool *drop)
{
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < rules.n && !st && !(g && g->internal); i++) {
		const struct rule *r = &rules.rule[i];
		int64_t until = tess_now() + r->delay;

		if (!rule_applies(&rules, i, s->rank, call, c, at))
			continue;
		wrap_host->log(TESS_INFO, "faulty", "rank %d, call %lld%s%s: %s", (int)s->rank,
		               (long long)call, c && c->where ? " at " : "",
		               c && c->where ? c->where : "", r->text);
		if (r->action == DELAY)
			sleep_unless_aborted(g, until < deadline ? until : deadline);
		else if (r->action == KILL || r->action == EXIT)
			st = end_rank(s, r);
		else if (r->action == STOP && s->thread)
			s->stopped = true;
		else if (r->action == STOP)
			raise(SIGSTOP);
		else if (r->action == FAIL)
			st = wrap_host->fail(TESS_EIO, "rank %d failed by the rule \"%s\"",
			                     (int)s->rank, r->text);
		else if (r->action == MISMATCH)
			change_call(c, r->part);
		else if (drop)
			*drop = true;
	}
	return st;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Determines whether the next rank is a thread of this process. */
static tess_status detect_threads(const struct tess_group_entry *how, struct rank_state *s)
{
	int64_t pid = getpid(), other = 0;
	uint64_t len = sizeof other;
	char key[160];
	tess_status st;

	if (how->nranks == 1 || !wrapped.threads)
		return TESS_OK;
	snprintf(key, sizeof key, "%s/faulty/%d", how->name, (int)how->rank);
	st = how->store->set(how->store->self, key, &pid, sizeof pid);
	snprintf(key, sizeof key, "%s/faulty/%d", how->name, (int)((how->rank + 1) % how->nranks));
	if (!st)
		st = how->store->get(how->store->self, key, how->deadline, &other, &len);
	s->thread = pid == other;
	return st;
}

static void release_state(struct rank_state *s)
{
	if (s && !--s->groups)
		free(s);
}

static tess_status faulty_open_group(const struct tess_group_entry *how, void **self)
{
	struct group *parent = how->parent, *g = calloc(1, sizeof *g);
	struct rank_state *s = parent ? parent->state : calloc(1, sizeof *s);
	tess_status st = TESS_OK;

	if (g && s) {
		g->state = s;
		s->groups++;
		if (!parent) {
			s->rank = how->world[how->rank];
			st = detect_threads(how, s);
		}
		if (!st && !parent)
			st = inject_faults(NULL, s, 0, NULL, BEFORE, how->deadline, NULL);
		if (!st)
			st = wrap_open_group(how, &g->wrap);
	} else {
		st = wrap_host->fail(TESS_ENOMEM, "faulty: no memory for a group");
		if (!parent)
			free(s);
	}
	if (st) {
		release_state(g ? g->state : NULL);
		free(g);
		return st;
	}
	*self = g;
	return TESS_OK;
}

static tess_status faulty_start_call(void *self, const struct tess_coll *c, void **work)
{
	struct group *g = self;
	struct rank_state *s = g->state;
	struct work *w;
	bool drop = s->stopped;
	tess_status st;

	if (s->gone)
		return fail_ended_rank(s);
	w = calloc(1, sizeof *w);
	if (!w)
		return wrap_host->fail(TESS_ENOMEM, "faulty: no memory for a call");
	memcpy(&w->c, c, c->size < sizeof w->c ? c->size : sizeof w->c);
	if (!g->internal)
		w->call = ++s->calls;
	st = inject_faults(g, s, w->call, &w->c, BEFORE, w->c.deadline, &drop);
	if (!st && !drop && !s->stopped)
		st = wrapped.start(g->wrap.self, &w->c, &w->wrap.work);
	if (!st && w->wrap.work)
		st = inject_faults(g, s, w->call, &w->c, INSIDE, w->c.deadline, NULL);
	if (st) {
		free(w); /* a started work belongs to its backend until the group is closed */
		return st;
	}
	*work = w;
	return TESS_OK;
}

/* Injects faults after the wrapped backend has returned `st`. */
static tess_status inject_after_call(struct group *g, struct work *w, tess_status st)
{
	if (st || w->done)
		return st;
	w->done = true;
	return inject_faults(g, g->state, w->call, &w->c, AFTER, w->c.deadline, NULL);
}

static tess_status fail_aborted_call(void)
{
	return wrap_host->fail(TESS_EABORTED, "faulty: the group was aborted");
}

static tess_status faulty_test_call(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	if (!w->wrap.work)
		return atomic_load(&g->wrap.aborted) ? fail_aborted_call() : TESS_PENDING;
	return inject_after_call(g, w, wrapped.test(g->wrap.self, w->wrap.work));
}

static tess_status faulty_wait_call(void *self, void *work, int64_t deadline)
{
	struct group *g = self;
	struct work *w = work;

	if (w->wrap.work)
		return inject_after_call(g, w, wrapped.wait(g->wrap.self, w->wrap.work, deadline));
	sleep_unless_aborted(g, deadline);
	if (atomic_load(&g->wrap.aborted))
		return fail_aborted_call();
	return wrap_host->fail(TESS_ETIMEOUT,
	                       "faulty: a call that was dropped has not been answered");
}

static void faulty_release_call(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	if (w->wrap.work)
		wrapped.release(g->wrap.self, w->wrap.work);
	free(w);
}

static void faulty_close_group(void *self)
{
	struct group *g = self;

	wrapped.close(g->wrap.self);
	release_state(g->state);
	free(g);
}

static void faulty_mark_internal(void *self, int32_t on)
{
	struct group *g = self;

	g->internal = on;
	wrap_mark_internal(g, on);
}

/* ---- wrapping -------------------------------------------------------------------------------- */

static tess_status faulty_wrap_backend(const char *name, const struct tess_backend **out);

static const struct tess_backend faulty = {
	.size = sizeof faulty,
	.name = "faulty",
	.summary = "wraps another backend: delays, drops, kills and mismatches by rule",
	.supports = wrap_supports_call,
	.open = faulty_open_group,
	.start = faulty_start_call,
	.test = faulty_test_call,
	.wait = faulty_wait_call,
	.release = faulty_release_call,
	.close = faulty_close_group,
	.join = wrap_join_stream,
	.alloc = wrap_alloc_memory,
	.free = wrap_free_memory,
	.abort = wrap_abort_group,
	.internal = faulty_mark_internal,
	.computed = wrap_note_computed,
	.wrap = faulty_wrap_backend,
};

static tess_status read_rules(void)
{
	return rules_read(wrap_host, wrap_host->option("faulty"), wrap_host->option("faulty_seed"),
	                  &rules);
}

static tess_status faulty_wrap_backend(const char *name, const struct tess_backend **out)
{
	return wrap_backend(&faulty, read_rules, name, out);
}

static const struct tess_option what = {
	"faulty", "",
	"rules of the backend faulty, as rank=2,call=17,do=kill;every=100,do=delay:5ms"
};
static const struct tess_option seed = { "faulty_seed", "1", "seed of the rules with a chance" };

TESS_DEFINE_PLUGIN("faulty", "1.0", "Apache-2.0", .summary = "makes another backend fail",
                   .needs = TESS_UPTO(tess_host, backend),
                   .backends = TESS_LIST(tess_backend, &faulty),
                   .options = TESS_LIST(tess_option, &what, &seed), .init = wrap_init_plugin);

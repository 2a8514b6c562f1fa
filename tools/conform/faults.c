/* faults.c - invalid calls, mismatched calls, and ranks that die, stop or are late. */
#include "conform.h"

#include "core/base/status.h"
#include "core/world/world.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- misuse ---------------------------------------------------------------------------------- */

static void expect_refusal(struct conform_rank *me, const char *what, struct tess_coll c)
{
	struct tess_work *w = NULL;
	tess_status st;

	c.size = sizeof c;
	c.where = "conform";
	conform_set_activity(me, "misuse: %s", what);
	st = tess_group_start(me->group, &c, &w);
	if (st != TESS_EINVAL && st != TESS_ENOTSUP)
		conform_add_fault(
			me,
			"it returned %s. The rule: an invalid call is refused at once, and harms "
			"nothing",
			tess_status_name(st));
	me->state->ncases++;
}

static void expect_unsupported(struct conform_rank *me, const char *what, struct tess_coll c)
{
	tess_status st;

	c.size = sizeof c;
	c.mem = TESS_HOST;
	conform_set_activity(me, "supports(), asked about %s", what);
	st = me->backend->supports(&c, me->n);
	if (st != TESS_ENOTSUP)
		conform_add_fault(
			me,
			"it returned %s. The rule: TESS_ENOTSUP for unknown numbers, which a later "
			"core may use",
			tess_status_name(st));
	me->state->ncases++;
}

tess_status conform_run_misuse(struct conform_rank *me)
{
	float x[16] = { 1 }, sum = 0, one = 1;
	uint64_t list[CONFORM_RANKS] = { 3, 3 };
	const int32_t sums = TESS_ALL_REDUCE, gathers = TESS_ALL_GATHER, f32 = TESS_F32;
	const struct {
		const char *what;
		struct tess_coll c;
	} refused[] = {
		{ "no kind", { .dtype = f32, .src = x, .dst = x, .count = 1 } },
		{ "no dtype", { .kind = sums, .src = x, .dst = x, .count = 1 } },
		{ "an operation on the bits of floats",
		  { .kind = sums, .dtype = f32, .op = TESS_BXOR, .src = x, .dst = x, .count = 1 } },
		{ "a root beyond the group",
		  { .kind = TESS_BROADCAST,
		    .dtype = f32,
		    .peer = me->n,
		    .src = x,
		    .dst = x,
		    .count = 1 } },
		{ "a message to itself",
		  { .kind = TESS_SEND, .dtype = f32, .peer = me->rank, .src = x, .count = 1 } },
		{ "buffers that overlap",
		  { .kind = sums, .dtype = f32, .src = x, .dst = x + 1, .count = 4 } },
		{ "a buffer that is not aligned",
		  { .kind = sums, .dtype = f32, .src = (char *)x + 1, .dst = x + 8, .count = 1 } },
		{ "no buffer", { .kind = sums, .dtype = f32, .dst = x, .count = 1 } },
		{ "a list with another count",
		  { .kind = gathers,
		    .dtype = f32,
		    .src = x,
		    .dst = x + 4,
		    .count = 1,
		    .recv_counts = list } },
	};
	tess_status st;

	expect_unsupported(me, "an unknown kind",
	                   (struct tess_coll){ .kind = 99, .dtype = TESS_F32 });
	expect_unsupported(me, "an unknown dtype",
	                   (struct tess_coll){ .kind = TESS_BROADCAST, .dtype = 99 });
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
		expect_refusal(me, refused[i].what, refused[i].c);
	conform_set_activity(me, "all_reduce of 1 f32 (sum), after calls that were refused");
	st = tess_all_reduce(me->group, &one, &sum, 1, TESS_F32, TESS_SUM, "conform");
	if (!st && sum != (float)me->n)
		conform_add_fault(
			me, "it is %g, expected %d. The rule: a call that is refused harms nothing",
			(double)sum, (int)me->n);
	return st;
}

/* ---- calls that differ ----------------------------------------------------------------------- */

enum { KIND, DTYPE, OP, COUNT, ROOT, ORDER, MISSING, LISTS, MESSAGE };
enum { MANY = 1000, ODD = 1 };

static const struct {
	const char *name;
	/* the ranks whose first call needs data of a rank whose call differs */
	enum { NO_RANK, RANK_0, ALL_BUT_ODD, ALL_RANKS } needs_odd;
} mismatches[] = {
	[KIND] = { "kind", ALL_RANKS },     [DTYPE] = { "dtype", ALL_RANKS },
	[OP] = { "op", ALL_RANKS },         [COUNT] = { "count", ALL_RANKS },
	[ROOT] = { "root", NO_RANK }, /* the root has all data, and agreeing ranks receive it */
	[ORDER] = { "order", ALL_BUT_ODD }, [MISSING] = { "a call is missing", ALL_BUT_ODD },
	[LISTS] = { "lists", ALL_RANKS },   [MESSAGE] = { "a message's count", RANK_0 },
};

const char *conform_mismatch_name(int32_t i)
{
	return mismatches[i].name;
}

static tess_status make_differing_call(struct conform_rank *me, int32_t what, float *x)
{
	bool odd = me->rank == ODD;
	const char *where = odd ? "the.odd.one" : "all.others";
	uint64_t list[CONFORM_RANKS];
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_REDUCE,
		               .dtype = TESS_F32,
		               .op = TESS_SUM,
		               .src = x,
		               .dst = x + MANY,
		               .count = MANY,
		               .where = where };

	for (int32_t r = 0; r < me->n; r++)
		list[r] = MANY + (uint64_t)(odd && r == 0);
	switch (what) {
	case KIND:
		c.kind = odd ? TESS_ALL_GATHER : TESS_ALL_REDUCE;
		break;
	case DTYPE:
		c.dtype = odd ? TESS_I32 : TESS_F32;
		break;
	case OP:
		c.op = odd ? TESS_MAX : TESS_SUM;
		break;
	case COUNT:
		c.count = odd ? MANY / 2 : MANY;
		break;
	case ROOT:
		c.kind = TESS_BROADCAST;
		c.root = odd ? ODD : 0;
		c.dst = x;
		break;
	case LISTS:
		c.kind = TESS_ALL_GATHER;
		c.recv_counts = list;
		break;
	case MESSAGE:
		if (me->rank > ODD)
			return conform_run_barrier_call(me, where);
		c.kind = odd ? TESS_SEND : TESS_RECV;
		c.peer = odd ? 0 : ODD;
		c.count = odd ? MANY / 2 : MANY;
		break;
	}
	return conform_run_call(me, &c);
}

static bool needs_odd_rank(const struct conform_rank *me, int32_t what)
{
	if (me->memory.device && !me->backend->compares)
		return false; /* only the coordinator compares, while the device runs */
	return mismatches[what].needs_odd == ALL_RANKS ||
	       (mismatches[what].needs_odd == ALL_BUT_ODD && me->rank != ODD) ||
	       (mismatches[what].needs_odd == RANK_0 && me->rank == 0);
}

/* Makes a call from x into the elements behind the MANY there; a broadcast from 0 is in place. */
static tess_status make_simple_call(struct conform_rank *me, int32_t kind, float *x, uint64_t count,
                                    const char *where)
{
	const struct tess_coll c = { .size = sizeof c,
		                     .kind = kind,
		                     .dtype = TESS_F32,
		                     .src = x,
		                     .dst = kind == TESS_BROADCAST ? x : x + MANY,
		                     .count = count,
		                     .where = where };

	return conform_run_call(me, &c);
}

/* Makes the calls of one rank, up to the failing one. */
static tess_status make_mismatched_calls(struct conform_rank *me, int32_t what, float *x)
{
	bool odd = me->rank == ODD;
	const char *where = odd ? "the.odd.one" : "all.others";
	tess_status st = TESS_OK;

	if (what != ORDER && what != MISSING)
		st = make_differing_call(me, what, x);
	else if (odd && what == ORDER)
		st = make_simple_call(me, TESS_BROADCAST, x, MANY, where);
	else if (!odd)
		st = make_simple_call(me, TESS_ALL_REDUCE, x, MANY, where);
	if (!st && needs_odd_rank(me, what))
		conform_add_fault(
			me,
			"the call was done. The rule: between calls whose fingerprints differ no "
			"byte moves");
	/* a rank whose first call matched gets the failure from the next one */
	return st ? st : conform_run_barrier_call(me, where);
}

tess_status conform_run_mismatch(struct conform_rank *me)
{
	int32_t what = me->job->variant;
	float *x = conform_alloc(me, MANY * (size_t)(me->n + 2) * sizeof *x);
	tess_status st = x ? conform_run_barrier_call(me, "conform") : TESS_ENOMEM;

	if (st)
		return st;
	conform_set_activity(me, "ranks whose calls differ: %s", conform_mismatch_name(what));
	conform_set_call(me, CONFORM_WAIT);
	st = make_mismatched_calls(me, what, x);
	/* a backend without comparison may finish before the core has compared the calls */
	for (int i = 0; i < 100 && !st; i++) {
		st = conform_run_barrier_call(me, me->rank == ODD ? "the.odd.one" : "all.others");
		conform_sleep(10 * (int64_t)TESS_MS);
	}
	conform_set_call(me, CONFORM_NO_CALL);
	if (!st)
		conform_add_fault(me,
		                  "the calls were done, and more of them for a second. The rule: a "
		                  "mismatch is an error on every rank");
	else if (st != TESS_EMISMATCH || !strstr(tess_error(), "the.odd.one") ||
	         (!strstr(tess_error(), "all.others") && what != MESSAGE))
		conform_add_fault(
			me,
			"%s: \"%s\". The rule: TESS_EMISMATCH, and a sentence that names both "
			"calls",
			tess_status_name(st), tess_error());
	me->state->ncases++;
	return st; /* x belongs to the group until it is closed */
}

/* ---- a rank dies ----------------------------------------------------------------------------- */

enum { BEFORE, INSIDE, AFTER };

static const struct {
	const char *name;
	int32_t kind, moment;
	uint64_t count;
} deaths[] = {
	{ "before a barrier", TESS_BARRIER, BEFORE, 0 },
	{ "inside an all_reduce of 4 MiB", TESS_ALL_REDUCE, INSIDE, 1 << 20 },
	{ "before a send", TESS_RECV, BEFORE, 1000 },
	{ "after a broadcast", TESS_BROADCAST, AFTER, 1000 },
	{ "inside an all_to_all", TESS_ALL_TO_ALL, INSIDE, 20000 },
	{ "after an all_reduce of 4 bytes", TESS_ALL_REDUCE, AFTER, 1 },
	{ "inside a barrier", TESS_BARRIER, INSIDE, 0 },
	{ "after a barrier", TESS_BARRIER, AFTER, 0 },
	{ "before an all_reduce of 4 MiB", TESS_ALL_REDUCE, BEFORE, 1 << 20 },
	{ "inside an all_reduce of 4 bytes", TESS_ALL_REDUCE, INSIDE, 1 },
	{ "before a broadcast from it", TESS_BROADCAST, BEFORE, 100000 },
	{ "inside a broadcast from it", TESS_BROADCAST, INSIDE, 100000 },
	{ "inside an all_gather", TESS_ALL_GATHER, INSIDE, 50000 },
	{ "inside a reduce_scatter", TESS_REDUCE_SCATTER, INSIDE, 50000 },
	{ "before an all_to_all", TESS_ALL_TO_ALL, BEFORE, 1000 },
	{ "inside a gather", TESS_GATHER, INSIDE, 20000 },
};

const char *conform_death_name(int32_t i)
{
	return deaths[i].name;
}

static void kill_rank(struct conform_rank *me)
{
	atomic_store(&me->shared->victim, me->rank);
	atomic_store(&me->shared->died_at, tess_now());
	if (!me->job->threads)
		kill(getpid(), SIGKILL);
}

static void *kill_rank_later(void *arg)
{
	conform_sleep(30 * (int64_t)TESS_MS);
	kill_rank(arg);
	return NULL;
}

static tess_status make_death_call(struct conform_rank *me, int32_t i, int32_t victim, float *src,
                                   float *dst)
{
	struct tess_coll c = { .size = sizeof c,
		               .kind = deaths[i].kind,
		               .dtype = TESS_F32,
		               .op = TESS_SUM,
		               .count = deaths[i].count,
		               .src = src,
		               .dst = dst,
		               .where = "conform",
		               .peer = victim };

	if (c.kind == TESS_RECV && me->rank == victim)
		return TESS_OK;
	return conform_run_call(me, &c);
}

/* Checks that a survivor got an error in time that names the victim. */
static void check_survivor(struct conform_rank *me, int32_t victim, int64_t failed_at)
{
	int64_t died = atomic_load(&me->shared->died_at);
	double limit = me->job->foreign ? me->job->timeout * 1.1 : 1,
	       took = conform_get_seconds(failed_at - died);
	char name[24];

	snprintf(name, sizeof name, "rank %d", (int)victim);
	if (!died)
		conform_add_fault(me, "it failed before rank %d died: \"%s\"", (int)victim,
		                  tess_error());
	else if (took > limit)
		conform_add_time_fault(
			me,
			"the error came %.2f s after rank %d died. The rule: every survivor gets "
			"it within %g s",
			took, (int)victim, limit);
	else if (!strstr(tess_error(), name))
		conform_add_fault(me,
		                  "\"%s\". The rule: the error names the rank that died, rank %d",
		                  tess_error(), (int)victim);
}

tess_status conform_run_death(struct conform_rank *me)
{
	int32_t i = me->job->variant, victim = (i + 1) % me->n, moment = deaths[i].moment;
	size_t n = (size_t)deaths[i].count * (size_t)me->n + 1;
	float *src = conform_alloc(me, n * sizeof *src), *dst = conform_alloc(me, n * sizeof *dst);
	tess_status st = src && dst ? conform_run_barrier_call(me, "conform") : TESS_ENOMEM;
	pthread_t killer;

	if (me->job->threads && moment == INSIDE)
		moment = AFTER; /* a thread cannot be killed */
	conform_set_activity(me, "rank %d dies %s", (int)victim, deaths[i].name);
	if (st)
		return st;
	if (me->rank == victim && moment == BEFORE) {
		conform_sleep(50 * (int64_t)TESS_MS);
		kill_rank(me);
		return TESS_OK;
	}
	if (me->rank == victim && moment == INSIDE &&
	    pthread_create(&killer, NULL, kill_rank_later, me))
		return tess_fail(TESS_EIO, "no thread");
	conform_set_call(me, CONFORM_WAIT);
	for (int k = 0; !st; k++) {
		st = make_death_call(me, i, victim, src, dst);
		if (me->rank == victim && moment == AFTER && k == 2) {
			kill_rank(me);
			return TESS_OK;
		}
	}
	conform_set_call(me, CONFORM_NO_CALL);
	if (me->rank != victim)
		check_survivor(me, victim, tess_now());
	me->state->ncases++;
	return st;
}

/* ---- a rank is late -------------------------------------------------------------------------- */

enum { LATE, ABSENT, SHORTER, STOPPED };

const char *conform_timeout_name(int32_t i)
{
	static const char *const names[] = { "a rank is late, but comes", "a rank does not come",
		                             "a shorter deadline of one call",
		                             "a rank is stopped" };

	return names[i];
}

tess_status conform_run_timeout(struct conform_rank *me)
{
	int32_t what = me->job->variant, victim = 1;
	double limit = what == SHORTER ? me->job->timeout / 2 : me->job->timeout, took;
	float *x = conform_alloc(me, 2 * sizeof *x); /* the group's until it is closed */
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_REDUCE,
		               .dtype = TESS_F32,
		               .op = TESS_SUM,
		               .count = 1,
		               .src = x,
		               .dst = x + 1,
		               .where = "conform" };
	tess_status st = x ? conform_run_barrier_call(me, "conform") : TESS_ENOMEM;
	int64_t begin;

	conform_set_activity(me, "%s", conform_timeout_name(what));
	if (st)
		return st;
	if (me->rank == victim && what != LATE)
		atomic_store(&me->shared->victim, victim); /* its launcher may end it */
	if (me->rank == victim && what == STOPPED)
		raise(SIGSTOP);
	else if (me->rank == victim)
		conform_sleep((int64_t)(me->job->timeout * 1e9 *
		                        (what == ABSENT    ? 1.25
		                         : what == SHORTER ? 0.75
		                                           : 0.5)));
	begin = tess_now();
	if (what == SHORTER)
		c.deadline = begin + (int64_t)(limit * 1e9);
	conform_set_call(me, CONFORM_WAIT);
	st = conform_run_call(me, &c);
	/* a rank that was stopped may have all data, and get the failure only from the next call */
	if (!st && me->rank == victim && what == STOPPED)
		st = conform_run_barrier_call(me, "conform");
	conform_set_call(me, CONFORM_NO_CALL);
	took = conform_get_seconds(tess_now() - begin);
	me->state->ncases++;
	if (what == LATE) {
		if (st)
			conform_add_time_fault(
				me,
				"\"%s\". The rule: a rank that comes before the deadline is waited "
				"for",
				tess_error());
	} else if (me->rank == victim) {
		if (!st)
			conform_add_time_fault(
				me, "its late call was done. The rule: after a failure every later "
				    "call fails");
	} else if (!st) {
		conform_add_time_fault(me, "the call was done, though rank %d had not come",
		                       (int)victim);
	} else if (took < limit - 0.02 || took > limit * 1.1 + 0.3) {
		conform_add_time_fault(
			me,
			"the error came after %.2f s. The rule: at the deadline, %g s, or 10%% "
			"later at most",
			took, limit);
	} else if (!strstr(tess_error(), "rank 1")) {
		conform_add_fault(
			me, "\"%s\". The rule: the error names the rank that is missing, rank 1",
			tess_error());
	}
	return st;
}

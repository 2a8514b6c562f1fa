/* What goes wrong: calls that make no sense, calls that do not fit, ranks that die, stop or come late. */
#include "conform.h"

#include "core/base/status.h"
#include "core/comm/clock.h"
#include "core/comm/world.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double seconds(int64_t ns)
{
	return (double)ns / 1e9;
}

/* ---- waiting and being told --------------------------------------------------------------------------------- */

static tess_status open_all(struct conform_rank *me, const char *name, struct conform_direct *g)
{
	int32_t member[CONFORM_RANKS];

	for (int32_t r = 0; r < me->n; r++)
		member[r] = r;
	conform_doing(me, "opening a group");
	return conform_direct_open(me, name, member, me->n, NULL, g);
}

/* A receive for which nothing has been sent: test() and wait() must come back. Ends the group. */
static tess_status wait_in_vain(struct conform_rank *me, const struct conform_direct *g,
                                void **work)
{
	static _Thread_local int32_t nowhere;
	const struct tess_backend *b = me->backend;
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_RECV,
		               .dtype = TESS_I32,
		               .mem = TESS_HOST,
		               .count = 1,
		               .peer = (me->rank + 1) % me->n,
		               .dst = &nowhere,
		               .where = "conform",
		               .deadline = tess_now() + me->world->timeout };
	int64_t begin;
	tess_status st = b->start(g->self, &c, work);

	conform_doing(me, "test() of a recv that nobody sends to");
	conform_step(me, CONFORM_TEST);
	for (int i = 0; i < 10 && !st; i++) {
		begin = tess_now();
		st = b->test(g->self, *work);
		if (st == TESS_OK)
			conform_blame(
				me,
				"it is done. The rule: test() returns TESS_PENDING until the call is done");
		if (tess_now() - begin > 500 * (int64_t)TESS_MS)
			conform_blame(me, "it took %.2f s. The rule: test() does not block",
			              seconds(tess_now() - begin));
		st = st == TESS_PENDING ? TESS_OK : st;
	}
	if (st || !b->abort)
		return st;
	conform_doing(me, "wait() for 0.2 s in a recv that nobody sends to");
	conform_step(me, CONFORM_WAIT);
	begin = tess_now();
	st = b->wait(g->self, *work, begin + 200 * (int64_t)TESS_MS);
	if (st != TESS_PENDING && st != TESS_ETIMEOUT)
		conform_blame(
			me,
			"it returned %s. The rule: at its deadline wait() returns TESS_ETIMEOUT, or TESS_PENDING",
			st ? tess_status_name(st) : "TESS_OK");
	else if (tess_now() - begin < 190 * (int64_t)TESS_MS ||
	         tess_now() - begin > 1200 * (int64_t)TESS_MS)
		conform_blame(me,
		              "it returned after %.2f s. The rule: wait() returns at its deadline",
		              seconds(tess_now() - begin));
	return TESS_OK;
}

/* One call of a kind that all have, or of the one that is used most. */
static struct conform_case common_case(struct conform_rank *me, int i)
{
	struct conform_case c = { .kind = TESS_ALL_REDUCE,
		                  .dtype = TESS_F32,
		                  .op = TESS_SUM,
		                  .count = i % 3 ? 3 : 3000 };
	struct tess_coll coll = { .size = sizeof coll,
		                  .kind = c.kind,
		                  .dtype = c.dtype,
		                  .op = c.op,
		                  .mem = TESS_HOST,
		                  .count = c.count };

	if (i % 2 || me->backend->supports(&coll, me->n))
		c.kind = TESS_SEND;
	return c;
}

/* Many waits, each with ranks that come at other moments: a waker that was missed shows up as a late return. */
static tess_status wake_ups(struct conform_rank *me, const struct conform_direct *g)
{
	int rounds = me->job->quick ? 400 : 4000;
	int64_t limit = 3000 * (int64_t)TESS_MS;
	tess_status st = TESS_OK;

	conform_doing(me, "wait() for calls to which ranks come at other moments");
	for (int i = 0; i < rounds && !st; i++) {
		struct conform_case c = common_case(me, i);
		uint64_t luck = conform_mix((uint64_t)i, (uint64_t)me->rank, 5);
		struct timespec pause = { .tv_nsec = (long)(luck % 400) * 1000 };
		struct conform_data *d;
		void *work[2];

		if (luck >> 32 & 1)
			nanosleep(&pause, NULL);
		st = conform_data_make(&c, me->rank, me->n, &d);
		for (int32_t k = 0; k < d->ncolls && !st; k++) {
			d->coll[k].mem = TESS_HOST;
			d->coll[k].deadline = tess_now() + limit;
			conform_step(me, CONFORM_START);
			st = me->backend->start(g->self, &d->coll[k], &work[k]);
		}
		for (int32_t k = d->ncolls - 1; k >= 0 && !st; k--) {
			st = conform_direct_await(me, g, work[k], d->coll[k].deadline);
			if (st == TESS_ETIMEOUT)
				return tess_fail(
					st,
					"wait() %d came back only at its deadline, 3 s after the call began%s. The rule: "
					"wait() returns as soon as the call is done",
					i,
					me->backend->test(g->self, work[k])
						? ""
						: ", though test() then says that it is "
						  "done: a wake-up was lost");
			if (!st)
				me->backend->release(g->self, work[k]);
		}
		if (!st)
			conform_data_free(d);
		me->seat->cases++;
		conform_step(me, CONFORM_ITSELF);
	}
	return st;
}

tess_status conform_run_wait(struct conform_rank *me)
{
	struct conform_direct g;
	void *work = NULL;
	tess_status st = open_all(me, "conform.wake", &g);

	if (st || (st = wake_ups(me, &g)))
		return st;
	conform_direct_close(me, &g);
	if ((st = open_all(me, "conform.wait", &g)) || (st = wait_in_vain(me, &g, &work)))
		return st;
	/* nobody leaves a group that others still ask about; and as the core ends one that has failed */
	if ((st = tess_barrier(me->group, "conform")))
		return st;
	conform_step(me, CONFORM_RELEASE);
	if (me->backend->abort)
		me->backend->abort(g.self);
	me->backend->release(g.self, work);
	conform_direct_close(me, &g);
	me->seat->cases++;
	return TESS_OK;
}

struct aborter {
	struct conform_rank *me;
	struct conform_direct *g;
	int64_t when;
};

static void *abort_later(void *arg)
{
	struct aborter *a = arg;
	struct timespec pause = tess_timespec(100 * (int64_t)TESS_MS);

	nanosleep(&pause, NULL);
	a->when = tess_now();
	a->me->backend->abort(a->g->self);
	return NULL;
}

tess_status conform_run_abort(struct conform_rank *me)
{
	struct conform_direct g;
	struct aborter a = { .me = me, .g = &g };
	int32_t nowhere = 0;
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_RECV,
		               .dtype = TESS_I32,
		               .mem = TESS_HOST,
		               .count = 1,
		               .peer = (me->rank + 1) % me->n,
		               .dst = &nowhere,
		               .where = "conform",
		               .deadline = tess_now() + me->world->timeout };
	void *work = NULL, *more = NULL;
	pthread_t thread;
	tess_status st;

	if (!me->backend->abort)
		return TESS_OK; /* the core polls with test() */
	if ((st = open_all(me, "conform.abort", &g)) ||
	    (st = me->backend->start(g.self, &c, &work)))
		return st;
	conform_doing(me, "abort() from another thread while this one waits in a recv");
	if (pthread_create(&thread, NULL, abort_later, &a))
		return tess_fail(TESS_EIO, "no thread");
	conform_step(me, CONFORM_WAIT);
	st = me->backend->wait(g.self, work, tess_now() + me->world->timeout);
	pthread_join(thread, NULL);
	if (st >= 0)
		conform_blame(me, "wait() returned %s. The rule: every pending call fails",
		              st ? "TESS_PENDING" : "TESS_OK");
	else if (tess_now() - a.when > 1000 * (int64_t)TESS_MS)
		conform_blame(
			me,
			"wait() returned %.2f s later. The rule: every pending call fails soon, within 1 s",
			seconds(tess_now() - a.when));
	conform_step(me, CONFORM_START);
	st = me->backend->start(g.self, &c, &more);
	if (!st)
		st = me->backend->test(g.self, more);
	if (st >= 0)
		conform_blame(me, "a later call returned %s. The rule: every later call fails soon",
		              st ? "TESS_PENDING" : "TESS_OK");
	if ((st = tess_barrier(me->group, "conform")))
		return st;
	conform_step(me, CONFORM_RELEASE);
	me->backend->release(g.self, work);
	if (more)
		me->backend->release(g.self, more);
	conform_direct_close(me, &g);
	me->seat->cases++;
	return TESS_OK;
}

/* ---- misuse ------------------------------------------------------------------------------------------------------ */

static void expect_refusal(struct conform_rank *me, const char *what, struct tess_coll c)
{
	struct tess_work *w = NULL;
	tess_status st;

	c.size = sizeof c;
	c.where = "conform";
	conform_doing(me, "misuse: %s", what);
	st = tess_group_start(me->group, &c, &w);
	if (st != TESS_EINVAL && st != TESS_ENOTSUP)
		conform_blame(
			me,
			"it returned %s. The rule: what makes no sense is refused at once, and harms nothing",
			st ? tess_status_name(st) : "TESS_OK");
	me->seat->cases++;
}

static void expect_no(struct conform_rank *me, const char *what, struct tess_coll c)
{
	tess_status st;

	c.size = sizeof c;
	c.mem = TESS_HOST;
	conform_doing(me, "supports(), asked about %s", what);
	st = me->backend->supports(&c, me->n);
	if (st != TESS_ENOTSUP)
		conform_blame(
			me,
			"it returned %s. The rule: TESS_ENOTSUP for what it does not know, which a later core may have",
			st ? tess_status_name(st) : "TESS_OK");
	me->seat->cases++;
}

tess_status conform_run_misuse(struct conform_rank *me)
{
	float x[16] = { 1 }, sum = 0, one = 1;
	uint64_t list[CONFORM_RANKS] = { 3, 3 };
	tess_status st;

	expect_no(me, "a kind that there is not",
	          (struct tess_coll){ .kind = 99, .dtype = TESS_F32 });
	expect_no(me, "a dtype that there is not",
	          (struct tess_coll){ .kind = TESS_BROADCAST, .dtype = 99 });
	expect_refusal(me, "no kind",
	               (struct tess_coll){ .dtype = TESS_F32, .src = x, .dst = x, .count = 1 });
	expect_refusal(
		me, "no dtype",
		(struct tess_coll){ .kind = TESS_ALL_REDUCE, .src = x, .dst = x, .count = 1 });
	expect_refusal(me, "bits of floats",
	               (struct tess_coll){ .kind = TESS_ALL_REDUCE,
	                                   .dtype = TESS_F32,
	                                   .op = TESS_BXOR,
	                                   .src = x,
	                                   .dst = x,
	                                   .count = 1 });
	expect_refusal(me, "a root beyond the group",
	               (struct tess_coll){ .kind = TESS_BROADCAST,
	                                   .dtype = TESS_F32,
	                                   .peer = me->n,
	                                   .src = x,
	                                   .dst = x,
	                                   .count = 1 });
	expect_refusal(me, "a message to itself",
	               (struct tess_coll){ .kind = TESS_SEND,
	                                   .dtype = TESS_F32,
	                                   .peer = me->rank,
	                                   .src = x,
	                                   .count = 1 });
	expect_refusal(me, "buffers that overlap",
	               (struct tess_coll){ .kind = TESS_ALL_REDUCE,
	                                   .dtype = TESS_F32,
	                                   .src = x,
	                                   .dst = x + 1,
	                                   .count = 4 });
	expect_refusal(me, "a buffer that is not aligned",
	               (struct tess_coll){ .kind = TESS_ALL_REDUCE,
	                                   .dtype = TESS_F32,
	                                   .src = (char *)x + 1,
	                                   .dst = x + 8,
	                                   .count = 1 });
	expect_refusal(me, "no buffer",
	               (struct tess_coll){
			       .kind = TESS_ALL_REDUCE, .dtype = TESS_F32, .dst = x, .count = 1 });
	expect_refusal(me, "a list that says another count",
	               (struct tess_coll){ .kind = TESS_ALL_GATHER,
	                                   .dtype = TESS_F32,
	                                   .src = x,
	                                   .dst = x + 4,
	                                   .count = 1,
	                                   .get = list });
	conform_doing(me, "all_reduce of 1 f32 (sum), after calls that were refused");
	st = tess_all_reduce(me->group, &one, &sum, 1, TESS_F32, TESS_SUM, "conform");
	if (!st && sum != (float)me->n)
		conform_blame(me, "it is %g, expected %d. The rule: what was refused harms nothing",
		              (double)sum, (int)me->n);
	return st;
}

/* ---- calls that do not fit ------------------------------------------------------------------------------------------ */

enum { KIND, DTYPE, OP, COUNT, ROOT, ORDER, MISSING, LISTS, MESSAGE };
enum { MANY = 1000, ODD = 1 };

const char *conform_mismatch_name(int32_t i)
{
	static const char *const names[] = { "kind",
		                             "dtype",
		                             "op",
		                             "count",
		                             "root",
		                             "order",
		                             "a call is missing",
		                             "lists",
		                             "a message's count" };

	return names[i];
}

static tess_status all_reduce(struct conform_rank *me, float *x, const char *where)
{
	return tess_all_reduce(me->group, x, x + MANY, MANY, TESS_F32, TESS_SUM, where);
}

static tess_status differing_call(struct conform_rank *me, int32_t what, float *x)
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
		c.peer = odd ? ODD : 0;
		c.dst = x;
		break;
	case LISTS:
		c.kind = TESS_ALL_GATHER;
		c.get = list;
		break;
	case MESSAGE:
		if (me->rank > ODD)
			return tess_barrier(me->group, where);
		c.kind = odd ? TESS_SEND : TESS_RECV;
		c.peer = odd ? 0 : ODD;
		c.count = odd ? MANY / 2 : MANY;
		break;
	}
	return tess_group_run(me->group, &c);
}

/* The calls of one rank, up to the one that fails. */
static tess_status differ(struct conform_rank *me, int32_t what, float *x)
{
	bool odd = me->rank == ODD;
	const char *where = odd ? "the.odd.one" : "all.others";
	tess_status st = TESS_OK;

	if (what != ORDER && what != MISSING)
		st = differing_call(me, what, x);
	else if (odd && what == ORDER)
		st = tess_broadcast(me->group, x, MANY, TESS_F32, 0, where);
	else if (!odd)
		st = all_reduce(me, x, where);
	/* ranks whose own call was in order hear of it in the next one */
	return st ? st : tess_barrier(me->group, where);
}

tess_status conform_run_mismatch(struct conform_rank *me)
{
	int32_t what = me->job->variant;
	size_t n = MANY * (size_t)(me->n + 2);
	struct timespec pause = tess_timespec(10 * (int64_t)TESS_MS);
	float *x = calloc(n, sizeof *x);
	tess_status st = x ? tess_barrier(me->group, "conform") : TESS_ENOMEM;

	if (st)
		return st;
	conform_doing(me, "ranks whose calls differ: %s", conform_mismatch_name(what));
	conform_step(me, CONFORM_WAIT);
	st = differ(me, what, x);
	/* a backend that only moves bytes may be done before the core has compared: then a later call tells */
	for (int i = 0; i < 100 && !st; i++) {
		st = tess_barrier(me->group, me->rank == ODD ? "the.odd.one" : "all.others");
		nanosleep(&pause, NULL);
	}
	conform_step(me, CONFORM_ITSELF);
	if (!st)
		conform_blame(
			me,
			"the calls were done, and more of them for a second. The rule: a mismatch is an error on every "
			"rank");
	else if (st != TESS_EMISMATCH || !strstr(tess_error(), "the.odd.one") ||
	         (!strstr(tess_error(), "all.others") && what != MESSAGE))
		conform_blame(
			me,
			"%s: \"%s\". The rule: TESS_EMISMATCH, and a sentence that names both calls",
			tess_status_name(st), tess_error());
	me->seat->cases++;
	return st; /* x is the group's until it is closed */
}

/* ---- a rank dies ----------------------------------------------------------------------------------------------------- */

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

static void die(struct conform_rank *me)
{
	atomic_store(&me->board->victim, me->rank);
	atomic_store(&me->board->died, tess_now());
	if (!me->job->threads)
		kill(getpid(), SIGKILL);
}

static void *die_later(void *arg)
{
	struct timespec pause = tess_timespec(30 * (int64_t)TESS_MS);

	nanosleep(&pause, NULL);
	die(arg);
	return NULL;
}

static tess_status one_call(struct conform_rank *me, int32_t i, int32_t victim, float *src,
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
	return tess_group_run(me->group, &c);
}

/* Whether a survivor was told soon, and of whom. */
static void judge_loss(struct conform_rank *me, int32_t victim, int64_t told)
{
	int64_t died = atomic_load(&me->board->died);
	double limit = me->job->foreign ? me->job->timeout * 1.1 : 1, took = seconds(told - died);
	char name[24];

	snprintf(name, sizeof name, "rank %d", (int)victim);
	if (!died)
		conform_blame(me, "it failed before rank %d went: \"%s\"", (int)victim,
		              tess_error());
	else if (took > limit)
		conform_blame(
			me,
			"the error came %.2f s after rank %d went. The rule: every survivor is told within %g s",
			took, (int)victim, limit);
	else if (!strstr(tess_error(), name))
		conform_blame(me, "\"%s\". The rule: the error names the rank that went, rank %d",
		              tess_error(), (int)victim);
}

tess_status conform_run_death(struct conform_rank *me)
{
	int32_t i = me->job->variant, victim = (i + 1) % me->n, moment = deaths[i].moment;
	size_t n = (size_t)deaths[i].count * (size_t)me->n + 1;
	float *src = calloc(n, sizeof *src), *dst = calloc(n, sizeof *dst);
	struct timespec pause = tess_timespec(50 * (int64_t)TESS_MS);
	tess_status st = src && dst ? tess_barrier(me->group, "conform") : TESS_ENOMEM;
	pthread_t killer;

	if (me->job->threads && moment == INSIDE)
		moment = AFTER; /* a thread cannot be killed */
	conform_doing(me, "rank %d goes %s", (int)victim, deaths[i].name);
	if (st)
		return st;
	if (me->rank == victim && moment == BEFORE) {
		nanosleep(&pause, NULL);
		die(me);
		return TESS_OK;
	}
	if (me->rank == victim && moment == INSIDE && pthread_create(&killer, NULL, die_later, me))
		return tess_fail(TESS_EIO, "no thread");
	conform_step(me, CONFORM_WAIT);
	for (int k = 0; !st; k++) {
		st = one_call(me, i, victim, src, dst);
		if (me->rank == victim && moment == AFTER && k == 2) {
			die(me);
			return TESS_OK;
		}
	}
	conform_step(me, CONFORM_ITSELF);
	if (me->rank != victim)
		judge_loss(me, victim, tess_now());
	me->seat->cases++;
	return st;
}

/* ---- a rank is late ----------------------------------------------------------------------------------------------------- */

enum { LATE, ABSENT, OWN, STOPPED };

const char *conform_timeout_name(int32_t i)
{
	static const char *const names[] = { "a rank is late, but comes", "a rank does not come",
		                             "a shorter deadline of one call",
		                             "a rank is stopped" };

	return names[i];
}

static void dally(const struct conform_rank *me, double share)
{
	struct timespec pause = tess_timespec((int64_t)(me->job->timeout * share * 1e9));

	nanosleep(&pause, NULL);
}

tess_status conform_run_timeout(struct conform_rank *me)
{
	int32_t what = me->job->variant, victim = 1;
	double limit = what == OWN ? me->job->timeout / 2 : me->job->timeout, took;
	float x = 1, y = 0;
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_REDUCE,
		               .dtype = TESS_F32,
		               .op = TESS_SUM,
		               .count = 1,
		               .src = &x,
		               .dst = &y,
		               .where = "conform" };
	tess_status st = tess_barrier(me->group, "conform");
	int64_t begin;

	conform_doing(me, "%s", conform_timeout_name(what));
	if (st)
		return st;
	if (me->rank == victim && what != LATE)
		atomic_store(&me->board->victim, victim); /* whoever started it may end it */
	if (me->rank == victim && what == STOPPED)
		raise(SIGSTOP);
	else if (me->rank == victim)
		dally(me, what == ABSENT ? 1.25 : what == OWN ? 0.75 : 0.5);
	begin = tess_now();
	if (what == OWN)
		c.deadline = begin + (int64_t)(limit * 1e9);
	conform_step(me, CONFORM_WAIT);
	st = tess_group_run(me->group, &c);
	conform_step(me, CONFORM_ITSELF);
	took = seconds(tess_now() - begin);
	me->seat->cases++;
	if (what == LATE) {
		if (st)
			conform_blame(
				me, "\"%s\". The rule: who comes before the deadline is waited for",
				tess_error());
	} else if (me->rank == victim) {
		if (!st)
			conform_blame(
				me,
				"its late call was done. The rule: after a failure every later call fails");
	} else if (!st) {
		conform_blame(me, "the call was done, though rank %d had not come", (int)victim);
	} else if (took < limit - 0.02 || took > limit * 1.1 + 0.3) {
		conform_blame(
			me,
			"the error came after %.2f s. The rule: at the deadline, %g s, or 10%% later at most",
			took, limit);
	} else if (!strstr(tess_error(), "rank 1")) {
		conform_blame(me,
		              "\"%s\". The rule: the error names the rank that is missed, rank 1",
		              tess_error());
	}
	return st;
}

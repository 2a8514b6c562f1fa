/* Calls through the core's group, as programs make them: one after another, several at once, messages. */
#include "conform.h"

#include "core/base/status.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- one call ------------------------------------------------------------------------------------------- */

struct call {
	struct conform_data *data;
	struct tess_work *work[2];
};

static tess_status begin(struct conform_rank *me, const struct conform_case *c, struct call *out)
{
	tess_status st = conform_data_make(c, me->rank, me->n, &out->data);

	out->work[0] = out->work[1] = NULL;
	conform_step(me, CONFORM_START);
	for (int32_t k = 0; !st && k < out->data->ncolls; k++)
		st = tess_group_start(me->group, &out->data->coll[k], &out->work[k]);
	return st;
}

static tess_status await(struct conform_rank *me, struct tess_work *w, bool looked)
{
	tess_status st;

	conform_step(me, looked ? CONFORM_TEST : CONFORM_WAIT);
	if (!looked)
		return tess_work_wait(w, 0);
	while ((st = tess_work_test(w)) == TESS_PENDING)
		sched_yield();
	return st;
}

/* Waits and judges. After a failure of the call its buffers stay: they are the group's until it is closed. */
static tess_status finish(struct conform_rank *me, struct call *call)
{
	struct conform_data *d = call->data;
	tess_status st = TESS_OK;

	for (int32_t k = d->ncolls - 1; k >= 0 && !st; k--)
		st = await(me, call->work[k], d->c.looked);
	conform_step(me, CONFORM_RELEASE);
	for (int32_t k = 0; k < d->ncolls; k++)
		tess_work_release(call->work[k]);
	conform_step(me, CONFORM_ITSELF);
	if (st)
		return st;
	if (conform_data_verdict(d))
		conform_blame(me, "%s", tess_error());
	conform_data_free(d);
	me->seat->cases++;
	return TESS_OK;
}

/* ---- nothing but a group ---- */

tess_status conform_run_open(struct conform_rank *me)
{
	conform_doing(me, "a barrier");
	me->seat->cases++;
	return tess_barrier(me->group, "conform");
}

/* ---- all cases, one after another -------------------------------------------------------------------------- */

tess_status conform_run_data(struct conform_rank *me)
{
	struct conform_case *list;
	uint32_t n;
	tess_status st = conform_cases(me->n, me->job->quick, &list, &n);

	for (uint32_t i = me->job->first; !st && i < n; i++) {
		struct call call;

		me->seat->at = i;
		conform_doing_case(me, &list[i], NULL);
		st = begin(me, &list[i], &call);
		if (!st)
			st = finish(me, &call);
	}
	if (!st)
		free(list);
	return st;
}

/* ---- barriers ------------------------------------------------------------------------------------------------ */

static void dawdle(uint64_t luck)
{
	struct timespec t = { .tv_nsec = (long)(luck % 300) * 1000 };

	if (luck >> 32 & 1)
		nanosleep(&t, NULL);
}

tess_status conform_run_barrier(struct conform_rank *me)
{
	int rounds = me->job->quick ? 200 : 2000;
	tess_status st = TESS_OK;

	for (int i = 1; i <= rounds && !st; i++) {
		conform_doing(me, "barrier %d", i);
		dawdle(conform_mix((uint64_t)i, (uint64_t)me->rank, 3));
		atomic_store(&me->board->mark[me->rank], i);
		conform_step(me, CONFORM_WAIT);
		st = tess_barrier(me->group, "conform");
		conform_step(me, CONFORM_ITSELF);
		for (int32_t r = 0; r < me->n && !st; r++)
			if (atomic_load(&me->board->mark[r]) < i)
				conform_blame(
					me,
					"it was done before rank %d had come to it. The rule: no rank leaves a barrier "
					"before all have come",
					(int)r);
		me->seat->cases++;
	}
	return st;
}

/* ---- several at once ----------------------------------------------------------------------------------------- */

/* The k-th of `n` in an order that each rank and round has of its own. */
static uint32_t shuffled(uint64_t luck, uint32_t k, uint32_t n)
{
	return (uint32_t)((k * (luck & 1 ? 1 : n - 1) + luck) % n);
}

tess_status conform_run_several(struct conform_rank *me)
{
	enum { AT_ONCE = 6 };
	int rounds = me->job->quick ? 30 : 300;
	struct call call[AT_ONCE];
	tess_status st = TESS_OK;

	for (int round = 0; round < rounds && !st; round++) {
		uint64_t luck = conform_mix((uint64_t)round, (uint64_t)me->rank, 9);

		for (uint32_t k = 0; k < AT_ONCE && !st; k++) {
			struct conform_case c =
				conform_case_any(me->n, (uint32_t)round * AT_ONCE + k);

			conform_doing_case(me, &c, "one of 6 at once");
			dawdle(luck >> k);
			st = begin(me, &c, &call[k]);
		}
		for (uint32_t k = 0; k < AT_ONCE && !st; k++) {
			uint32_t i = shuffled(luck, k, AT_ONCE);

			conform_doing_case(
				me, &call[i].data->c,
				"one of 6 at once, waited for in another order on each rank");
			st = finish(me, &call[i]);
		}
	}
	return st;
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

/* Several of one size, which only their order tells apart; then as many small ones as a backend may keep. */
enum { LETTERS = 8, SMALL_LETTERS = 64 };

static uint64_t letter_size(int32_t letters, int32_t number)
{
	static const uint64_t sizes[LETTERS] = { 1, 3000, 70000, 17, 17, 3000, 1, 70000 };

	return letters == LETTERS ? sizes[number] : 1 + (uint64_t)(number / 2 % 5);
}

struct mail {
	struct tess_work *work;
	int32_t *text;
	int32_t peer, number, letters; /* number: of so many letters to or from the peer */
	bool out;
};

static int32_t letter(int32_t from, int32_t to, int32_t number, uint64_t i)
{
	return ((from * CONFORM_RANKS + to) * SMALL_LETTERS + number) * 100000 + (int32_t)i;
}

static tess_status post(struct conform_rank *me, struct mail *m)
{
	uint64_t n = letter_size(m->letters, m->number);
	struct tess_coll c = { .size = sizeof c,
		               .kind = m->out ? TESS_SEND : TESS_RECV,
		               .dtype = TESS_I32,
		               .peer = m->peer,
		               .count = n,
		               .where = "conform" };

	m->text = calloc(n, sizeof *m->text);
	if (!m->text)
		return tess_fail(TESS_ENOMEM, "no memory for a message");
	for (uint64_t i = 0; m->out && i < n; i++)
		m->text[i] = letter(me->rank, m->peer, m->number, i);
	if (m->out)
		c.src = m->text;
	else
		c.dst = m->text;
	conform_doing(me, "message %d of %d %s rank %d", (int)m->number + 1, (int)m->letters,
	              m->out ? "to" : "from", (int)m->peer);
	conform_step(me, CONFORM_START);
	return tess_group_start(me->group, &c, &m->work);
}

static tess_status collect(struct conform_rank *me, struct mail *m)
{
	tess_status st;

	conform_doing(me, "message %d of %d %s rank %d", (int)m->number + 1, (int)m->letters,
	              m->out ? "to" : "from", (int)m->peer);
	st = await(me, m->work, m->number % 2);
	tess_work_release(m->work);
	conform_step(me, CONFORM_ITSELF);
	for (uint64_t i = 0; !st && !m->out && i < letter_size(m->letters, m->number); i++)
		if (m->text[i] != letter(m->peer, me->rank, m->number, i)) {
			conform_blame(
				me,
				"element %d is %d, expected %d. The rule: messages from one rank arrive in the order "
				"of its sends, whatever their sizes",
				(int)i, (int)m->text[i],
				(int)letter(m->peer, me->rank, m->number, i));
			break;
		}
	if (!st)
		free(m->text);
	me->seat->cases++;
	return st;
}

/*
 * All pairs, both ways, so many messages each: the receives are there before a collective, the sends come after it;
 * finished from the last to the first.
 */
static tess_status mail_round(struct conform_rank *me, int32_t letters, bool receive_first)
{
	struct mail mail[2 * SMALL_LETTERS * CONFORM_RANKS];
	tess_status st = TESS_OK;
	int n = 0;

	for (int turn = 0; turn < 2 && !st; turn++) {
		for (int32_t k = 0; k < letters * me->n && !st; k++) {
			if (k / letters == me->rank)
				continue;
			mail[n] = (struct mail){ .peer = k / letters,
				                 .number = k % letters,
				                 .letters = letters,
				                 .out = receive_first ? turn : !turn };
			st = post(me, &mail[n++]);
		}
		conform_doing(me, "a barrier with messages under way");
		conform_step(me, CONFORM_WAIT);
		if (!st && !turn)
			st = tess_barrier(me->group, "conform");
	}
	while (n-- && !st)
		st = collect(me, &mail[n]);
	return st;
}

tess_status conform_run_messages(struct conform_rank *me)
{
	int rounds = me->job->quick ? 4 : 40;
	tess_status st = TESS_OK;

	for (int i = 0; i < rounds && !st; i++)
		st = mail_round(me, i % 4 < 2 ? LETTERS : SMALL_LETTERS, i % 2);
	return st;
}

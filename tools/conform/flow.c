/* flow.c - calls of typical programs: in sequence, concurrent, messages. */
#include "conform.h"

#include "core/base/status.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>

/* ---- one call -------------------------------------------------------------------------------- */

struct call {
	struct conform_data *data;
	struct tess_work *work[2];
};

static tess_status start_case(struct conform_rank *me, const struct conform_case *c,
                              struct call *out)
{
	tess_status st = conform_data_make(c, me->rank, me->n, &out->data);

	out->work[0] = out->work[1] = NULL;
	conform_set_call(me, CONFORM_START);
	for (int32_t k = 0; !st && k < out->data->ncolls; k++)
		st = tess_group_start(me->group, &out->data->coll[k], &out->work[k]);
	return st;
}

enum { POLLS = 10 };

static tess_status wait_case_work(struct conform_rank *me, struct tess_work *w, bool polled)
{
	tess_status st;

	conform_set_call(me, polled ? CONFORM_TEST : CONFORM_WAIT);
	if (!polled)
		return tess_work_wait(w, 0);
	for (int i = 0; (st = tess_work_test(w)) == TESS_PENDING; i++)
		if (i < POLLS)
			sched_yield();
		else /* polling would keep the awaited rank off the CPU */
			conform_sleep(20000);
	return st;
}

/* Waits and checks. After a failure the group owns the buffers until it is closed. */
static tess_status finish_case(struct conform_rank *me, struct call *call)
{
	struct conform_data *d = call->data;
	tess_status st = TESS_OK;

	for (int32_t k = d->ncolls - 1; k >= 0 && !st; k--)
		st = wait_case_work(me, call->work[k], d->c.polled);
	conform_set_call(me, CONFORM_RELEASE);
	for (int32_t k = 0; k < d->ncolls; k++)
		tess_work_release(call->work[k]);
	conform_set_call(me, CONFORM_NO_CALL);
	if (st)
		return st;
	conform_finish_data(me, d);
	me->state->ncases++;
	return TESS_OK;
}

/* Checks what the backend estimates of one kind: finite, and not falling as bytes grow. */
static void check_estimates(struct conform_rank *me, int32_t kind)
{
	double last = 0;

	for (uint64_t bytes = 1; bytes <= UINT64_C(1) << 40; bytes *= 16) {
		double seconds = me->backend->estimate(kind, bytes, me->n);

		if (!isfinite(seconds) || (seconds >= 0 && seconds < last)) {
			conform_add_fault(me,
			                  "estimate() of %s of %llu bytes returned %g after %g for "
			                  "fewer bytes. The rule: it is finite and does not fall",
			                  tess_kind_name(kind), (unsigned long long)bytes, seconds,
			                  last);
			return;
		}
		if (seconds >= 0)
			last = seconds;
	}
}

tess_status conform_run_open(struct conform_rank *me)
{
	for (int32_t kind = TESS_BARRIER; kind <= TESS_RECV && me->backend->estimate; kind++)
		check_estimates(me, kind);
	conform_set_activity(me, "a barrier");
	me->state->ncases++;
	return conform_run_barrier_call(me, "conform");
}

/* ---- all cases, one after another ------------------------------------------------------------ */

tess_status conform_run_data(struct conform_rank *me)
{
	struct conform_case *list;
	uint32_t n;
	tess_status st = conform_list_cases(me->n, me->job->quick, &list, &n);

	for (uint32_t i = me->job->first; !st && i < n; i++) {
		struct call call;

		me->state->current_case = i;
		conform_set_activity_case(me, &list[i], NULL);
		st = start_case(me, &list[i], &call);
		if (!st)
			st = finish_case(me, &call);
	}
	if (!st)
		free(list);
	return st;
}

/* ---- barriers -------------------------------------------------------------------------------- */

static void sleep_randomly(uint64_t random)
{
	if (random >> 32 & 1)
		conform_sleep((int64_t)(random % 300) * 1000);
}

tess_status conform_run_barrier(struct conform_rank *me)
{
	int rounds = me->job->quick ? 200 : 2000;
	tess_status st = TESS_OK;

	for (int i = 1; i <= rounds && !st; i++) {
		conform_set_activity(me, "barrier %d", i);
		sleep_randomly(conform_hash((uint64_t)i, (uint64_t)me->rank, 3));
		atomic_store(&me->shared->mark[me->rank], i);
		conform_set_call(me, CONFORM_WAIT);
		st = conform_run_barrier_call(me, "conform");
		conform_set_call(me, CONFORM_NO_CALL);
		for (int32_t r = 0; r < me->n && !st; r++)
			if (atomic_load(&me->shared->mark[r]) < i)
				conform_add_fault(
					me,
					"it was done before rank %d had come to it. The rule: no "
					"rank leaves a barrier before all have come",
					(int)r);
		me->state->ncases++;
	}
	return st;
}

/* ---- several at a time ----------------------------------------------------------------------- */

/* Returns the k-th of `n` in an order that differs between ranks and rounds. */
static uint32_t shuffle_index(uint64_t random, uint32_t k, uint32_t n)
{
	return (uint32_t)((k * (random & 1 ? 1 : n - 1) + random) % n);
}

tess_status conform_run_several(struct conform_rank *me)
{
	enum { AT_ONCE = 6 };
	int rounds = me->job->quick ? 30 : 300;
	struct call call[AT_ONCE];
	tess_status st = TESS_OK;

	for (int round = 0; round < rounds && !st; round++) {
		uint64_t random = conform_hash((uint64_t)round, (uint64_t)me->rank, 9);

		for (uint32_t k = 0; k < AT_ONCE && !st; k++) {
			struct conform_case c =
				conform_pick_case(me->n, (uint32_t)round * AT_ONCE + k);

			conform_set_activity_case(me, &c, "one of 6 at once");
			sleep_randomly(random >> k);
			st = start_case(me, &c, &call[k]);
		}
		for (uint32_t k = 0; k < AT_ONCE && !st; k++) {
			uint32_t i = shuffle_index(random, k, AT_ONCE);

			conform_set_activity_case(
				me, &call[i].data->c,
				"one of 6 at once, waited for in another order on each rank");
			st = finish_case(me, &call[i]);
		}
	}
	return st;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Messages of equal size, which only their order distinguishes; then many small ones. */
enum { MESSAGES = 8, SMALL_MESSAGES = 64 };

static uint64_t get_message_size(int32_t all, int32_t number)
{
	static const uint64_t sizes[MESSAGES] = { 1, 3000, 70000, 17, 17, 3000, 1, 70000 };

	return all == MESSAGES ? sizes[number] : 1 + (uint64_t)(number / 2 % 5);
}

struct message {
	struct tess_work *work;
	int32_t *elements; /* in host memory */
	void *buffer; /* in the memory of the calls */
	int32_t peer, number, all; /* message `number` of `all` to or from the peer */
	bool out;
};

static int32_t make_message_element(int32_t from, int32_t to, int32_t number, uint64_t i)
{
	return ((from * CONFORM_RANKS + to) * SMALL_MESSAGES + number) * 100000 + (int32_t)i;
}

static tess_status start_message_call(struct conform_rank *me, struct message *m)
{
	uint64_t n = get_message_size(m->all, m->number);
	struct tess_coll c = { .size = sizeof c,
		               .kind = m->out ? TESS_SEND : TESS_RECV,
		               .dtype = TESS_I32,
		               .peer = m->peer,
		               .count = n,
		               .where = "conform" };
	tess_status st;

	m->elements = calloc(n, sizeof *m->elements);
	m->buffer = conform_alloc(me, n * sizeof *m->elements);
	if (!m->elements || !m->buffer)
		return tess_fail(TESS_ENOMEM, "no memory for a message");
	for (uint64_t i = 0; m->out && i < n; i++)
		m->elements[i] = make_message_element(me->rank, m->peer, m->number, i);
	st = conform_copy(me, m->buffer, m->elements, n * sizeof *m->elements);
	if (st)
		return st;
	if (m->out)
		c.src = m->buffer;
	else
		c.dst = m->buffer;
	conform_place_call(me, &c);
	conform_set_activity(me, "message %d of %d %s rank %d", (int)m->number + 1, (int)m->all,
	                     m->out ? "to" : "from", (int)m->peer);
	conform_set_call(me, CONFORM_START);
	return tess_group_start(me->group, &c, &m->work);
}

static tess_status finish_message_call(struct conform_rank *me, struct message *m)
{
	tess_status st;

	conform_set_activity(me, "message %d of %d %s rank %d", (int)m->number + 1, (int)m->all,
	                     m->out ? "to" : "from", (int)m->peer);
	st = wait_case_work(me, m->work, m->number % 2);
	tess_work_release(m->work);
	conform_set_call(me, CONFORM_NO_CALL);
	if (!st)
		st = conform_copy(me, m->elements, m->buffer,
		                  get_message_size(m->all, m->number) * sizeof *m->elements);
	for (uint64_t i = 0; !st && !m->out && i < get_message_size(m->all, m->number); i++)
		if (m->elements[i] != make_message_element(m->peer, me->rank, m->number, i)) {
			conform_add_fault(
				me,
				"element %d is %d, expected %d. The rule: messages from one rank "
				"arrive in the order of its sends, whatever their sizes",
				(int)i, (int)m->elements[i],
				(int)make_message_element(m->peer, me->rank, m->number, i));
			break;
		}
	if (!st) {
		conform_free(me, m->buffer);
		free(m->elements);
	}
	me->state->ncases++;
	return st;
}

/*
 * Sends `all` messages each way between every pair: receives start before a collective and sends
 * after it, or the reverse. They are finished from the last to the first.
 */
static tess_status exchange_messages(struct conform_rank *me, int32_t all, bool receive_first)
{
	struct message messages[2 * SMALL_MESSAGES * CONFORM_RANKS];
	tess_status st = TESS_OK;
	int n = 0;

	for (int turn = 0; turn < 2 && !st; turn++) {
		for (int32_t k = 0; k < all * me->n && !st; k++) {
			if (k / all == me->rank)
				continue;
			messages[n] = (struct message){ .peer = k / all,
				                        .number = k % all,
				                        .all = all,
				                        .out = receive_first ? turn : !turn };
			st = start_message_call(me, &messages[n++]);
		}
		conform_set_activity(me, "a barrier with messages under way");
		conform_set_call(me, CONFORM_WAIT);
		if (!st && !turn)
			st = tess_barrier(me->group, "conform");
	}
	while (n-- && !st)
		st = finish_message_call(me, &messages[n]);
	return st;
}

tess_status conform_run_messages(struct conform_rank *me)
{
	int rounds = me->job->quick ? 4 : 40;
	tess_status st = TESS_OK;

	for (int i = 0; i < rounds && !st; i++)
		st = exchange_messages(me, i % 4 < 2 ? MESSAGES : SMALL_MESSAGES, i % 2);
	return st;
}

#include "call.h"

#include <sched.h>
#include <stdlib.h>
#include <tessera/util/clock.h>

enum { PIECE = 128 << 10, YIELDS = 20 };

/* ---- pending calls --------------------------------------------------------------------------- */

static struct pending_call *make_pending_call(struct context *ctx)
{
	struct pending_call *m = calloc(1, sizeof *m);
	pthread_condattr_t attr;

	if (m)
		m->colls = calloc((size_t)ctx->nranks, sizeof *m->colls);
	if (!m || !m->colls) {
		free(m);
		return NULL;
	}
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&m->changed, &attr);
	pthread_condattr_destroy(&attr);
	return m;
}

/* Finds the pending call of a number; the first rank makes it. from < 0: a collective. */
static struct pending_call *find_pending_call(struct context *ctx, uint64_t number, int32_t from,
                                              int32_t to)
{
	struct pending_call *m = ctx->open;

	while (m && (m->number != number || m->from != from || m->to != to))
		m = m->next;
	if (m)
		return m;
	m = ctx->spare;
	if (m)
		ctx->spare = m->next;
	else
		m = make_pending_call(ctx);
	if (!m)
		return NULL;
	m->number = number;
	m->from = from;
	m->to = to;
	m->expected = from < 0 ? ctx->nranks : 2;
	m->arrived = m->released = m->taken = m->moved = 0;
	atomic_store(&m->state, GATHERING);
	for (int32_t r = 0; r < ctx->nranks; r++)
		m->colls[r].kind = 0;
	m->next = ctx->open;
	ctx->open = m;
	return m;
}

static void recycle_pending_call(struct context *ctx, struct pending_call *m)
{
	for (struct pending_call **at = &ctx->open; *at; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	m->next = ctx->spare;
	ctx->spare = m;
}

/* Moves pieces while there are any; the lock is held, and released during a move. */
static void move_pieces(struct context *ctx, struct pending_call *m)
{
	while (atomic_load(&m->state) == MOVING && m->taken < m->pieces && !ctx->failed) {
		int32_t piece = m->taken++;

		ctx->moving++;
		pthread_mutex_unlock(&ctx->lock);
		loopback_move_piece(m, ctx->nranks, piece);
		pthread_mutex_lock(&ctx->lock);
		if (!--ctx->moving)
			pthread_cond_broadcast(&ctx->moves_done);
		if (++m->moved == m->pieces) {
			atomic_store(&m->state, DONE);
			pthread_cond_broadcast(&m->changed);
		}
	}
}

static void compare_calls(struct context *ctx, const struct pending_call *m, int32_t rank)
{
	for (int32_t r = 0; r < ctx->nranks; r++) {
		char theirs[256], mine[256];
		const char *what;

		if (r == rank || !m->colls[r].kind)
			continue;
		what = loopback_find_difference(&m->colls[r], r, &m->colls[rank], rank,
		                                ctx->nranks);
		if (!what)
			continue;
		tess_coll_format(&m->colls[r], ctx->world, theirs, sizeof theirs);
		tess_coll_format(&m->colls[rank], ctx->world, mine, sizeof mine);
		context_fail(ctx, TESS_EMISMATCH, "%s differ: rank %d is in %s, but rank %d in %s",
		             what, (int)ctx->world[r], theirs, (int)ctx->world[rank], mine);
	}
}

/* Adds this rank to the pending call; the lock is held. */
static void join_call(struct context *ctx, struct pending_call *m, int32_t rank,
                      const struct tess_coll *c)
{
	uint64_t pieces;

	m->colls[rank] = *c;
	m->arrived++;
	compare_calls(ctx, m, rank);
	if (m->arrived < m->expected || ctx->failed)
		return;
	pieces = loopback_count_bytes(m, ctx->nranks) / PIECE + 1;
	m->pieces = pieces < (uint64_t)ctx->nranks * 2 ? (int32_t)pieces : ctx->nranks * 2;
	atomic_store(&m->state, MOVING);
	if (m->pieces > 1)
		pthread_cond_broadcast(&m->changed);
	move_pieces(ctx, m);
}

/* ---- one call of this rank ------------------------------------------------------------------- */

tess_status call_start_one(void *self, const struct tess_coll *c, void **work)
{
	struct member *me = self;
	struct context *ctx = me->context;
	tess_status st = TESS_OK;
	struct pending_call *m;

	pthread_mutex_lock(&ctx->lock);
	if (ctx->failed) {
		st = context_report_failure(ctx);
		goto out;
	}
	if (c->kind == TESS_SEND)
		m = find_pending_call(ctx, ++me->sent[c->peer], me->rank, c->peer);
	else if (c->kind == TESS_RECV)
		m = find_pending_call(ctx, ++me->received[c->peer], c->peer, me->rank);
	else
		m = find_pending_call(ctx, ++me->calls, -1, -1);
	if (!m) {
		st = loopback_host->fail(TESS_ENOMEM, "loopback: no memory for a call");
		goto out;
	}
	join_call(ctx, m, me->rank, c);
	if (ctx->failed)
		st = context_report_failure(ctx);
	else
		*work = m;
out:
	pthread_mutex_unlock(&ctx->lock);
	return st;
}

tess_status call_test_one(struct member *me, struct pending_call *m)
{
	struct context *ctx = me->context;
	tess_status st;

	if (atomic_load(&m->state) == DONE)
		return TESS_OK;
	pthread_mutex_lock(&ctx->lock);
	move_pieces(ctx, m);
	st = atomic_load(&m->state) == DONE ? TESS_OK
	     : ctx->failed                  ? context_report_failure(ctx)
	                                    : TESS_PENDING;
	pthread_mutex_unlock(&ctx->lock);
	return st;
}

static void relax_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

/* Fails the group at the deadline; the message names a missing rank. */
static void fail_at_deadline(struct context *ctx, const struct pending_call *m, int32_t rank)
{
	char text[256];

	tess_coll_format(&m->colls[rank], ctx->world, text, sizeof text);
	for (int32_t r = 0; r < ctx->nranks; r++)
		if (!m->colls[r].kind && (m->from < 0 || r == m->from || r == m->to)) {
			context_fail(ctx, TESS_ETIMEOUT,
			             "rank %d has not joined rank %d's %s by its deadline",
			             (int)ctx->world[r], (int)ctx->world[rank], text);
			return;
		}
	context_fail(ctx, TESS_ETIMEOUT, "rank %d's %s was not finished by its deadline",
	             (int)ctx->world[rank], text);
}

/* Waits until the call is done, the group has failed, or the deadline passes. With the lock. */
static void wait_locked(struct member *me, struct pending_call *m, int64_t deadline)
{
	struct context *ctx = me->context;
	struct timespec until = tess_timespec(deadline);

	for (;;) {
		move_pieces(ctx, m);
		if (atomic_load(&m->state) == DONE || ctx->failed)
			return;
		if (!pthread_cond_timedwait(&m->changed, &ctx->lock, &until) ||
		    tess_now() < deadline || atomic_load(&m->state) == DONE)
			continue;
		if (deadline < m->colls[me->rank].deadline)
			return;
		fail_at_deadline(ctx, m, me->rank);
	}
}

/* Returns whether to stop spinning: the call is done or failed, or a piece can be moved. */
static bool should_stop_spinning(const struct context *ctx, const struct pending_call *m)
{
	int state = atomic_load_explicit(&m->state, memory_order_acquire);

	return state == DONE || (state == MOVING && m->pieces > 1) ||
	       atomic_load_explicit(&ctx->stop, memory_order_relaxed);
}

tess_status call_wait_one(struct member *me, struct pending_call *m, int64_t deadline)
{
	struct context *ctx = me->context;
	tess_status st = TESS_ETIMEOUT;

	for (int32_t i = 0; i < ctx->spin + YIELDS && !should_stop_spinning(ctx, m); i++)
		if (i < ctx->spin)
			relax_core();
		else
			sched_yield();
	if (atomic_load(&m->state) == DONE)
		return TESS_OK;
	pthread_mutex_lock(&ctx->lock);
	wait_locked(me, m, deadline);
	if (atomic_load(&m->state) == DONE) {
		st = TESS_OK;
	} else if (ctx->failed) {
		context_await_moves(ctx); /* the caller may then free its buffers */
		st = context_report_failure(ctx);
	}
	pthread_mutex_unlock(&ctx->lock);
	return st;
}

void call_release_one(struct member *me, struct pending_call *m)
{
	struct context *ctx = me->context;

	pthread_mutex_lock(&ctx->lock);
	if (atomic_load(&m->state) != DONE) {
		context_fail(ctx, TESS_EINVAL, "rank %d released a call that was not finished",
		             (int)ctx->world[me->rank]);
		context_await_moves(ctx);
	}
	if (++m->released == m->expected)
		recycle_pending_call(ctx, m);
	pthread_mutex_unlock(&ctx->lock);
}

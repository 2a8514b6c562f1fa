/*
 * work.c - runs a collective: posts the messages of a stage, then adds and posts the next stage.
 *
 * Gloo's own collectives are not used: they end the process if sizes differ, and close every
 * connection when one of them times out. All messages of an exchange (plan.h) are under way at
 * once.
 */
#include <stdio.h>
#include <stdlib.h>

#include "plan.h"
#include "work.h"

enum { PEEK_NS = 200000 }; /* interval of progress of other works during a wait */

/* ---- failure --------------------------------------------------------------------------------- */

/* Reports the failure of the group, except to release(), whose caller has it already. */
static tess_status report_status(const struct group *g, tess_status st)
{
	return st < 0 ? g->host->fail(st, "%s", g->why) : st;
}

static tess_status fail_lost_peer(struct group *g, const struct work *w, int32_t peer,
                                  const char *why)
{
	g->failed = TESS_EPEER;
	snprintf(g->why, sizeof g->why, "%s: group %s over gloo lost rank %d: %s", w->where,
	         g->name, (int)g->world[peer], why);
	return g->failed;
}

static tess_status fail_aborted_group(struct group *g, const char *where)
{
	g->failed = TESS_EABORTED;
	snprintf(g->why, sizeof g->why, "%s: group %s over gloo was aborted", where, g->name);
	return g->failed;
}

/* Reports a late peer. The group stays usable: another wait may still succeed. */
static tess_status report_late_peer(struct group *g, const struct work *w, const struct message *m)
{
	snprintf(g->why, sizeof g->why,
	         "%s: group %s over gloo waited until the deadline for rank %d to %s", w->where,
	         g->name, (int)g->world[m->peer], m->receives ? "send" : "receive");
	return TESS_ETIMEOUT;
}

/*
 * Cuts the connections of a failed group, which peers detect. Its messages must not stay posted:
 * the caller may free their memory, and Gloo's thread would end the process.
 */
static void cut_failed_group(struct group *g)
{
	if (g->failed < 0 && g->mesh && !g->cut)
		shim_cut(g->mesh);
	g->cut = g->failed < 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

/*
 * Chooses the slot of a message. Messages match if call, position and size are equal; Gloo would
 * end the process if two of different size met. Different calls wait for their deadline.
 */
static uint64_t choose_slot(const struct work *w, uint64_t place, uint64_t bytes)
{
	uint64_t h = w->fingerprint ^ 0x9e3779b97f4a7c15u * ((bytes + 1) ^ place << 40);

	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	return (h ^ h >> 31) & SHIM_SLOTS;
}

/* Posts the receive or the send of a transfer, into one of the two lists. */
static tess_status post_transfer(struct group *g, struct work *w, int32_t list, int32_t peer,
                                 const struct transfer *t, uint64_t place, int known, int receives)
{
	uint64_t bytes = (receives ? t->recv_count : t->send_count) * w->width;
	uint64_t slot = choose_slot(w, place, bytes);
	struct message *m = &w->message[list][w->nmessages[list]];
	char why[SHIM_WHY];
	int bad;

	if (!(receives ? t->receives : t->sends) || (!bytes && w->c.kind != TESS_BARRIER))
		return TESS_OK;
	if (receives)
		bad = shim_recv(g->mesh, peer, slot, known, t->dst, bytes, &m->io, why);
	else
		bad = shim_send(g->mesh, peer, slot, known, t->src, bytes, &m->io, why);
	if (bad)
		return fail_lost_peer(g, w, peer, why);
	m->peer = peer;
	m->receives = receives;
	w->nmessages[list]++;
	return TESS_OK;
}

/* Posts the transfers of a stage: pieces to gather, and pieces to add or move. */
static tess_status post_transfers(struct group *g, struct work *w, int32_t stage, int receives)
{
	/* in every stage each rank sends to each, once the places of the next stage are posted */
	int known = stage > 0 && w->c.kind == TESS_ALL_REDUCE;
	tess_status st = TESS_OK;

	for (int shares = 1; shares >= 0; shares--) {
		int32_t k = shares ? stage - 1 : stage;

		if (shares ? !stage : stage == w->pieces && stage)
			continue;
		for (int32_t i = 1; i < g->nranks && st == TESS_OK; i++) {
			int32_t peer = (g->rank + i) % g->nranks;
			struct transfer t = plan_transfer(g, w, peer, k, shares);

			st = post_transfer(g, w, stage & 1, peer, &t, (uint64_t)(2 * k + shares),
			                   known, receives);
		}
	}
	return st;
}

/* Posts a stage. A message is sent when the places of this and the next stage are posted. */
static tess_status post_stage(struct group *g, struct work *w)
{
	tess_status st = w->stage ? TESS_OK : post_transfers(g, w, 0, 1);

	if (st == TESS_OK && w->stage < w->pieces)
		st = post_transfers(g, w, w->stage + 1, 1);
	return st == TESS_OK ? post_transfers(g, w, w->stage, 0) : st;
}

static tess_status post_half(struct group *g, struct work *w, int32_t stage, int receives)
{
	int32_t peer;
	struct transfer t = plan_half_transfer(g, w, stage, &peer);
	int known = stage >= w->halvings; /* from the rank that this one has sent its half to */

	return post_transfer(g, w, !receives, peer, &t, (uint64_t)stage, known, receives);
}

/* Posts a halving stage; all places are posted before the first message is sent. */
static tess_status post_halves(struct group *g, struct work *w)
{
	tess_status st = TESS_OK;

	for (int32_t s = 0; !w->stage && s < w->last && st == TESS_OK; s++)
		st = post_half(g, w, s, 1);
	return st == TESS_OK && w->stage < w->last ? post_half(g, w, w->stage, 0) : st;
}

/* Posts the messages of the current stage. */
static tess_status post_current_stage(struct group *g, struct work *w)
{
	tess_status st = TESS_OK;

	if (!g->mesh)
		return TESS_OK;
	pthread_mutex_lock(&g->lock);
	if (g->aborted)
		st = fail_aborted_group(g, w->where);
	if (st == TESS_OK)
		st = w->halvings ? post_halves(g, w) : post_stage(g, w);
	pthread_mutex_unlock(&g->lock);
	return st;
}

static void drop_messages(struct group *g, struct work *w, int32_t list)
{
	pthread_mutex_lock(&g->lock);
	for (int32_t i = 0; i < w->nmessages[list]; i++)
		shim_free(w->message[list][i].io);
	w->nmessages[list] = 0;
	w->arrived = 0;
	pthread_mutex_unlock(&g->lock);
}

/* Returns the awaited list of this stage; halving awaits receives, and at the end sends. */
static int32_t awaited_list(const struct work *w)
{
	return w->halvings ? w->stage == w->last : w->stage & 1;
}

/* Returns how many messages of the list must have completed at the end of the stage. */
static int32_t due_messages(const struct work *w)
{
	return w->halvings && w->stage < w->last ? w->stage + 1 : w->nmessages[awaited_list(w)];
}

/* ---- works ----------------------------------------------------------------------------------- */

/* Takes scratch memory; the group keeps one block, since mapping memory is expensive. */
static tess_status take_scratch(struct group *g, struct work *w, size_t bytes)
{
	if (!bytes)
		return TESS_OK;
	if (g->spare_bytes >= bytes) {
		w->scratch = g->spare;
		w->scratch_bytes = g->spare_bytes;
		g->spare = NULL;
		g->spare_bytes = 0;
		return TESS_OK;
	}
	w->scratch = malloc(bytes);
	w->scratch_bytes = bytes;
	if (!w->scratch)
		return g->host->fail(TESS_ENOMEM, "%s: no memory for %zu bytes of other ranks",
		                     w->where, bytes);
	return TESS_OK;
}

static void recycle_work(struct group *g, struct work *w)
{
	if (w->scratch && w->scratch_bytes > g->spare_bytes) {
		free(g->spare);
		g->spare = w->scratch;
		g->spare_bytes = w->scratch_bytes;
	} else {
		free(w->scratch);
	}
	free(w);
}

/* Makes a work with a copy of the call; only its buffers must outlive the start. */
static struct work *make_work(const struct group *g, const struct tess_coll *c)
{
	size_t n = (size_t)g->nranks,
	       tail = 8 * sizeof(struct message) + sizeof(void *) + 2 * sizeof(uint64_t);
	struct work *w = calloc(1, sizeof *w + n * tail);
	uint64_t *list;

	if (!w)
		return NULL;
	memcpy(&w->c, c, c->size < sizeof w->c ? c->size : sizeof w->c);
	snprintf(w->where, sizeof w->where, "%s", w->c.where ? w->c.where : "a collective");
	w->width = c->kind == TESS_BARRIER ? 0 : tess_width(c->dtype);
	w->message[0] = w->all;
	w->message[1] = w->all + 4 * n;
	w->part = (const void **)(w->all + 8 * n);
	list = (uint64_t *)(w->part + n);
	if (c->send_counts)
		w->c.send_counts = memcpy(list, c->send_counts, n * sizeof *list);
	if (c->recv_counts)
		w->c.recv_counts = memcpy(list + n, c->recv_counts, n * sizeof *list);
	plan_stages(g, w);
	plan_sum(g, w);
	return w;
}

/* Takes memory for the call, and sets the fingerprint by which its messages match. */
static tess_status prepare_call(struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	size_t bytes = plan_scratch(g, w);
	tess_status st = take_scratch(g, w, bytes);

	if (st < 0)
		return st;
	if (c->kind == TESS_ALL_TO_ALL && bytes)
		memcpy(w->scratch, c->src, bytes);
	/* send and recv have an order of their own between two ranks */
	w->fingerprint = c->fingerprint;
	if (c->kind == TESS_SEND)
		w->fingerprint ^= ~g->sent[c->peer]++;
	else if (c->kind == TESS_RECV)
		w->fingerprint ^= ~g->received[c->peer]++;
	return TESS_OK;
}

/* Frees a work without pending messages. */
static void discard_work(struct group *g, struct work *w)
{
	struct work **at = &g->works;

	drop_messages(g, w, 0);
	drop_messages(g, w, 1);
	pthread_mutex_lock(&g->lock);
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	pthread_mutex_unlock(&g->lock);
	recycle_work(g, w);
}

tess_status gloo_work_start(void *self, const struct tess_coll *c, void **out)
{
	struct group *g = self;
	struct work *w;
	tess_status st;

	if (g->failed < 0)
		return report_status(g, g->failed);
	w = make_work(g, c);
	if (!w)
		return g->host->fail(TESS_ENOMEM, "gloo: out of memory");
	st = prepare_call(g, w);
	if (st < 0) {
		recycle_work(g, w);
		return st;
	}
	pthread_mutex_lock(&g->lock);
	w->next = g->works;
	g->works = w;
	pthread_mutex_unlock(&g->lock);
	st = post_current_stage(g, w);
	if (st < 0) {
		cut_failed_group(g);
		discard_work(g, w);
		return report_status(g, st);
	}
	plan_copy_own(g, w);
	*out = w;
	return TESS_OK;
}

/* Finishes an exchange: adds, and posts the next exchange. */
static tess_status finish_stage(struct group *g, struct work *w)
{
	if (due_messages(w) == w->nmessages[awaited_list(w)])
		drop_messages(g, w, awaited_list(w));
	plan_sum(g, w);
	if (w->sum)
		tess_reduce(w->c.dtype, w->c.op, w->part, w->parts, w->sum, w->total);
	if (w->stage == w->last) {
		w->done = 1;
		return TESS_OK;
	}
	w->stage++;
	return post_current_stage(g, w);
}

static tess_status progress_work(struct group *g, struct work *w, int64_t deadline);

/*
 * Advances other works: ranks may wait for their works in any order. Returns whether one of them is
 * not in its last exchange.
 */
static int progress_other_works(struct group *g, const struct work *w)
{
	int more = 0;

	for (struct work *o = g->works; o && g->failed == TESS_OK; o = o->next) {
		if (o == w || o->done || o->stage == o->last)
			continue;
		progress_work(g, o, 0); /* a failure fails the group */
		more |= !o->done && o->stage < o->last;
	}
	return more;
}

static int await_message(struct group *g, const struct work *w, const struct message *m,
                         int64_t deadline, char *why)
{
	int64_t now, until;
	int answer;

	do {
		int more = deadline && progress_other_works(g, w);

		now = tess_now();
		until = more && now + PEEK_NS < deadline ? now + PEEK_NS : deadline;
		answer = shim_wait(m->io, until, why);
	} while (answer == SHIM_PENDING && until != deadline && g->failed == TESS_OK);
	return answer;
}

static tess_status progress_work(struct group *g, struct work *w, int64_t deadline)
{
	char why[SHIM_WHY];
	tess_status st;

	while (!w->done) {
		if (g->failed < 0)
			return g->failed;
		for (; w->arrived < due_messages(w); w->arrived++) {
			const struct message *m = &w->message[awaited_list(w)][w->arrived];
			int answer = await_message(g, w, m, deadline, why);

			if (g->failed < 0)
				return g->failed;
			if (answer < 0)
				return fail_lost_peer(g, w, m->peer, why);
			if (answer == SHIM_WOKEN)
				return fail_aborted_group(g, w->where);
			if (answer == SHIM_PENDING && !deadline)
				return TESS_PENDING;
			if (answer == SHIM_PENDING)
				return report_late_peer(g, w, m);
		}
		st = finish_stage(g, w);
		if (st < 0)
			return st;
	}
	return TESS_OK;
}

tess_status gloo_work_run(void *self, void *work, int64_t deadline)
{
	struct group *g = self;
	struct work *w = work;
	tess_status st = progress_work(g, w, deadline);

	if (st == TESS_PENDING) { /* repeated tests of one work must advance others, too */
		progress_other_works(g, w);
		st = g->failed < 0 ? g->failed : TESS_PENDING;
	}
	cut_failed_group(g);
	return report_status(g, st);
}

void gloo_work_release(void *self, void *work)
{
	struct group *g = self;
	struct work *w = work;

	if (!w)
		return;
	if (progress_work(g, w, w->c.deadline) < 0 && g->failed == TESS_OK)
		g->failed = TESS_ETIMEOUT; /* the message is set */
	cut_failed_group(g);
	discard_work(g, w);
}

void gloo_work_abort(void *self)
{
	struct group *g = self;

	pthread_mutex_lock(&g->lock);
	g->aborted = 1;
	for (struct work *w = g->works; w; w = w->next)
		for (int32_t odd = 0; odd < 2; odd++)
			for (int32_t i = 0; i < w->nmessages[odd]; i++)
				shim_wake(w->message[odd][i].io);
	pthread_mutex_unlock(&g->lock);
}

void gloo_work_clear(struct group *g)
{
	if (g->works && g->mesh)
		shim_cut(g->mesh);
	while (g->works)
		discard_work(g, g->works);
	free(g->spare);
	g->spare = NULL;
}

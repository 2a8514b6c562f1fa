/* emulate.c - emulates collectives by send and recv, and batches by single calls. */
#include "core/call/emulate.h"

#include "core/base/status.h"
#include "core/call/carrier.h"
#include "core/call/check.h"
#include "core/registry/plugin_call.h"

#include <stdlib.h>
#include <string.h>

struct message {
	struct tess_coll coll;
	void *work;
};

struct tess_emulation {
	struct tess_emulation *next; /* in the batch */
	struct tess_group *group;
	struct tess_carrier by; /* moves the messages */
	const struct tess_coll *coll;
	char *temp; /* received elements that are not yet added or moved */
	int32_t n, done;
	bool whole; /* the backend has the call: the only message is the call itself */
	bool finished;
	struct message message[];
};

static bool is_in_place(const struct tess_coll *c)
{
	return c->src == c->dst;
}

/* Returns block r of a buffer that contains all blocks. */
static char *get_block(const struct tess_coll *c, const void *base, const uint64_t *list, int32_t r)
{
	return base ? (char *)base + tess_block_begin(list, c->count, r) * tess_width(c->dtype)
	            : NULL;
}

static tess_status start_message(struct tess_emulation *e, int32_t kind, int32_t peer, char *at,
                                 uint64_t count)
{
	struct message *m = &e->message[e->n];
	uint64_t from = (uint64_t)(kind == TESS_SEND ? e->group->rank : peer);
	uint64_t to = (uint64_t)(kind == TESS_SEND ? peer : e->group->rank);
	tess_status st;

	if (!count)
		return TESS_OK;
	m->coll = (struct tess_coll){
		.size = sizeof m->coll,
		.kind = kind,
		.dtype = e->coll->dtype,
		.mem = e->coll->mem,
		.peer = peer,
		.fingerprint = e->coll->fingerprint * 0x9e3779b97f4a7c15 + (from << 32 | to),
		.count = count,
		.src = kind == TESS_SEND ? at : NULL,
		.dst = kind == TESS_RECV ? at : NULL,
		.deadline = e->coll->deadline,
		.where = e->coll->where,
	};
	st = TESS_PLUGIN_CALL_FOR(e->by.backend, m->coll.where, tess_kind_name(m->coll.kind), start,
	                          e->by.self, &m->coll, &m->work);
	if (!st)
		e->n++;
	return st;
}

/* Returns what this rank sends to rank r, *count elements; NULL: nothing. */
static char *find_outgoing(const struct tess_emulation *e, int32_t r, uint64_t *count)
{
	const struct tess_coll *c = e->coll;
	bool root = c->root == e->group->rank;

	*count = c->count;
	switch (c->kind) {
	case TESS_BROADCAST:
		return root ? (char *)c->src : NULL;
	case TESS_REDUCE:
	case TESS_GATHER:
		return r == c->root ? (char *)c->src : NULL;
	case TESS_ALL_REDUCE:
		return (char *)c->src;
	case TESS_ALL_GATHER:
		return is_in_place(c) ? get_block(c, c->src, c->recv_counts, e->group->rank)
		                      : (char *)c->src;
	case TESS_SCATTER:
		*count = tess_block_size(c->send_counts, c->count, r);
		return root ? get_block(c, c->src, c->send_counts, r) : NULL;
	case TESS_REDUCE_SCATTER:
	case TESS_ALL_TO_ALL:
		*count = tess_block_size(c->send_counts, c->count, r);
		return get_block(c, c->src, c->send_counts, r);
	}
	return NULL;
}

/* Returns the buffer for the *count elements from rank r; NULL: there are none. */
static char *find_incoming(const struct tess_emulation *e, int32_t r, uint64_t *count)
{
	const struct tess_coll *c = e->coll;
	bool root = c->root == e->group->rank;
	char *temp = e->temp + (uint64_t)r * c->count * tess_width(c->dtype);

	*count = c->count;
	switch (c->kind) {
	case TESS_BROADCAST:
	case TESS_SCATTER:
		return r == c->root ? (char *)c->dst : NULL;
	case TESS_REDUCE:
		return root ? temp : NULL;
	case TESS_ALL_REDUCE:
	case TESS_REDUCE_SCATTER:
		return temp;
	case TESS_GATHER:
	case TESS_ALL_GATHER:
		*count = tess_block_size(c->recv_counts, c->count, r);
		return root || c->kind == TESS_ALL_GATHER ? get_block(c, c->dst, c->recv_counts, r)
		                                          : NULL;
	case TESS_ALL_TO_ALL:
		*count = tess_block_size(c->recv_counts, c->count, r);
		return get_block(c, is_in_place(c) ? e->temp : c->dst, c->recv_counts, r);
	}
	return NULL;
}

static uint64_t count_temp_elements(const struct tess_coll *c, int32_t rank, int32_t nranks)
{
	switch (c->kind) {
	case TESS_REDUCE:
		return rank == c->root ? c->count * (uint64_t)nranks : 0;
	case TESS_ALL_REDUCE:
	case TESS_REDUCE_SCATTER:
		return c->count * (uint64_t)nranks;
	case TESS_ALL_TO_ALL:
		return is_in_place(c) ? tess_block_begin(c->recv_counts, c->count, nranks) : 0;
	}
	return 0;
}

static void copy_unless_same(void *dst, const void *src, uint64_t bytes)
{
	if (bytes && dst != src)
		memcpy(dst, src, bytes);
}

static void reduce_parts(struct tess_emulation *e)
{
	const struct tess_coll *c = e->coll;
	int32_t me = e->group->rank;
	const void *part[TESS_RANKS_MAX];
	bool slice = c->kind == TESS_REDUCE_SCATTER;
	char *own = slice ? get_block(c, c->src, c->send_counts, me) : (char *)c->src;
	uint64_t count;

	for (int32_t r = 0; r < e->group->size; r++)
		part[r] = r == me ? own : find_incoming(e, r, &count);
	if (c->count)
		tess_reduce(c->dtype, c->op, part, e->group->size, c->count,
		            slice && is_in_place(c) ? own : c->dst);
}

/* Adds received elements, and moves this rank's own, after all messages are done. */
static void finish_emulation(struct tess_emulation *e)
{
	const struct tess_coll *c = e->coll;
	int32_t me = e->group->rank;
	size_t width = tess_width(c->dtype);
	bool everywhere = c->kind == TESS_ALL_GATHER || c->kind == TESS_ALL_TO_ALL;
	uint64_t count;
	char *own;

	if (e->whole)
		return;
	if (tess_kind_reduces(c->kind)) {
		if (c->kind != TESS_REDUCE || me == c->root)
			reduce_parts(e);
	} else if (!is_in_place(c)) {
		if (!everywhere && me != c->root)
			return;
		own = find_outgoing(e, me, &count);
		copy_unless_same(c->kind == TESS_SCATTER ? c->dst : find_incoming(e, me, &count),
		                 own, count * width);
	} else if (c->kind == TESS_ALL_TO_ALL) {
		for (int32_t r = 0; r < e->group->size; r++) {
			char *received = find_incoming(e, r, &count);

			if (r != me)
				copy_unless_same(get_block(c, c->dst, c->recv_counts, r), received,
				                 count * width);
		}
	}
}

tess_status tess_emulation_start(struct tess_group *g, const struct tess_coll *c,
                                 struct tess_emulation **out)
{
	struct tess_emulation *e = calloc(1, sizeof *e + 2 * (size_t)g->size * sizeof *e->message);
	uint64_t count, bytes = count_temp_elements(c, g->rank, g->size) * tess_width(c->dtype);
	tess_status st = TESS_OK;

	if (e)
		*e = (struct tess_emulation){ .group = g,
			                      .by = { g->backend,
			                              g->p2p_channel ? g->p2p_channel : g->self },
			                      .coll = c,
			                      .temp = malloc(bytes + 1) };
	if (!e || !e->temp) {
		free(e);
		return tess_fail(TESS_ENOMEM, "no memory to emulate %s", tess_kind_name(c->kind));
	}
	*out = e; /* also after a failure: started messages use its buffers */
	for (int32_t i = 1; i < g->size && !st; i++) {
		int32_t r = (g->rank + i) % g->size;
		char *at = find_incoming(e, r, &count);

		if (at)
			st = start_message(e, TESS_RECV, r, at, count);
	}
	for (int32_t i = 1; i < g->size && !st; i++) {
		int32_t r = (g->rank + i) % g->size;
		char *at = find_outgoing(e, r, &count);

		if (at)
			st = start_message(e, TESS_SEND, r, at, count);
	}
	return st;
}

/* Starts a call that the backend has. */
static tess_status start_whole(struct tess_group *g, const struct tess_coll *c,
                               struct tess_emulation **out)
{
	struct tess_emulation *e = calloc(1, sizeof *e + sizeof *e->message);
	tess_status st;

	if (!e)
		return tess_fail(TESS_ENOMEM, "no memory for a call of a batch");
	e->group = g;
	e->by = tess_call_carrier(g, c);
	e->coll = c;
	e->whole = true;
	*out = e;
	st = TESS_PLUGIN_CALL_FOR(e->by.backend, c->where, tess_kind_name(c->kind), start,
	                          e->by.self, c, &e->message->work);
	if (!st)
		e->n = 1;
	return st;
}

tess_status tess_emulation_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                                 struct tess_emulation **out)
{
	tess_status st = TESS_OK;

	for (uint32_t i = 0; i < n && !st; i++) {
		struct tess_carrier by = tess_call_carrier(g, c[i]);

		if (by.self && !TESS_PLUGIN_VALUE(by.backend, c[i]->where, supports, c[i], g->size))
			st = start_whole(g, c[i], out);
		else
			st = tess_emulation_start(g, c[i], out);
		if (*out)
			out = &(*out)->next;
	}
	return st;
}

/* Returns the state of one emulation, without the rest of its batch. */
static tess_status test_one(struct tess_emulation *e)
{
	for (; e->done < e->n; e->done++) {
		tess_status st = tess_carrier_test(&e->by, e->message[e->done].work, e->coll,
		                                   e->coll->where);

		if (st)
			return st;
	}
	if (!e->finished)
		finish_emulation(e);
	e->finished = true;
	return TESS_OK;
}

/* Tests all emulations of the batch, so that all progress. */
tess_status tess_emulation_test(struct tess_emulation *e)
{
	tess_status all = TESS_OK;

	for (; e; e = e->next) {
		tess_status st = test_one(e);

		if (st < 0)
			return st;
		if (st)
			all = st;
	}
	return all;
}

tess_status tess_emulation_wait(struct tess_emulation *e, int64_t deadline)
{
	for (; e; e = e->next) {
		for (; e->done < e->n; e->done++) {
			tess_status st = tess_carrier_wait(&e->by, e->message[e->done].work,
			                                   e->coll, deadline);

			if (st)
				return st;
		}
		test_one(e);
	}
	return TESS_OK;
}

void tess_emulation_release(struct tess_emulation *e)
{
	for (; e; e = e->next) {
		for (int32_t i = 0; i < e->n; i++)
			TESS_PLUGIN_DO_QUICK(e->by.backend, NULL, release, e->by.self,
			                     e->message[i].work);
		e->n = 0;
	}
}

void tess_emulation_free(struct tess_emulation *e)
{
	for (struct tess_emulation *next; e; e = next) {
		next = e->next;
		free(e->temp);
		free(e);
	}
}

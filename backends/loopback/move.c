/* What moves: every kind, as copies and reductions between the buffers of the ranks. */
#include "loopback.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/reduce.h>
#include <tessera/split.h>

enum { STEP = 4096 }; /* elements that are reduced before they are handed on, still in cache */

static uint64_t size_of(const uint64_t *list, uint64_t count, int32_t r)
{
	return list ? list[r] : count;
}

static uint64_t begin_of(const uint64_t *list, uint64_t count, int32_t r)
{
	uint64_t at = 0;

	if (!list)
		return count * (uint64_t)r;
	for (int32_t i = 0; i < r; i++)
		at += list[i];
	return at;
}

/* A piece of every block is moved at a time: elements are independent of each other. */
struct piece {
	const struct meet *m;
	int32_t nranks, i; /* piece i of m->pieces */
	size_t width;
};

/* Block r of all blocks, of which rank `of` has given or gets the buffer `base`. */
static char *block(const struct piece *p, int32_t of, const void *base, const uint64_t *list,
                   int32_t r)
{
	return (char *)base + begin_of(list, p->m->call[of].count, r) * p->width;
}

static bool range(const struct piece *p, uint64_t count, uint64_t *begin, uint64_t *n)
{
	*begin = (uint64_t)tess_edge((int64_t)count, p->m->pieces, p->i);
	*n = (uint64_t)tess_edge((int64_t)count, p->m->pieces, p->i + 1) - *begin;
	return *n != 0;
}

static void copy(const struct piece *p, char *dst, const char *src, uint64_t count)
{
	uint64_t begin, n;

	if (dst != src && range(p, count, &begin, &n))
		memcpy(dst + begin * p->width, src + begin * p->width, n * p->width);
}

static void swap(const struct piece *p, char *a, char *b, uint64_t count)
{
	uint64_t begin, n;
	char temp[STEP];

	if (!range(p, count, &begin, &n))
		return;
	a += begin * p->width;
	b += begin * p->width;
	for (uint64_t at = 0, end = n * p->width; at < end; at += STEP) {
		size_t len = end - at < STEP ? end - at : STEP;

		memcpy(temp, a + at, len);
		memcpy(a + at, b + at, len);
		memcpy(b + at, temp, len);
	}
}

/*
 * Adds `count` elements that begin at `offset` of every rank's src, for rank `only` (-1: for all).
 */
static void reduce(const struct piece *p, uint64_t offset, uint64_t count, int32_t only)
{
	const struct tess_coll *call = p->m->call;
	const void *part[1024];
	uint64_t begin, n;

	if (!range(p, count, &begin, &n))
		return;
	for (uint64_t at = begin; at < begin + n; at += STEP) {
		uint64_t len = begin + n - at < STEP ? begin + n - at : STEP;
		int32_t first = only < 0 ? 0 : only;
		bool slice = call->kind == TESS_REDUCE_SCATTER;
		/* in place, a slice stays where it belongs */
		uint64_t to = slice && call[first].src == call[first].dst ? offset + at : at;
		char *dst = (char *)call[first].dst + to * p->width;

		for (int32_t r = 0; r < p->nranks; r++)
			part[r] = (const char *)call[r].src + (offset + at) * p->width;
		tess_reduce(call->dtype, call->op, part, p->nranks, len, dst);
		for (int32_t r = 1; only < 0 && r < p->nranks; r++)
			memcpy((char *)call[r].dst + at * p->width, dst, len * p->width);
	}
}

/*
 * Rank `from` gives its block to rank `to`, which keeps all blocks. In place it lies there already.
 */
static void hand_over(const struct piece *p, int32_t from, int32_t to)
{
	const struct tess_coll *call = p->m->call, *c = &call[from];
	bool full = call->kind == TESS_ALL_GATHER || from == call->peer;
	const char *src = full && c->src == c->dst ? block(p, from, c->src, c->recv_counts, from) : c->src;

	copy(p, block(p, to, call[to].dst, call[to].recv_counts, from), src, c->count);
}

static void exchange(const struct piece *p, int32_t a, int32_t b)
{
	const struct tess_coll *x = &p->m->call[a], *y = &p->m->call[b];
	char *a_to_b = block(p, a, x->src, x->send_counts, b), *b_to_a = block(p, b, y->src, y->send_counts, a);
	char *at_b = block(p, b, y->dst, y->recv_counts, a), *at_a = block(p, a, x->dst, x->recv_counts, b);
	uint64_t there = size_of(x->send_counts, x->count, b), back = size_of(y->send_counts, y->count, a);

	if (a == b) {
		copy(p, at_a, a_to_b, there);
	} else if (x->src == x->dst && y->src == y->dst) {
		swap(p, a_to_b, b_to_a, there);
	} else if (x->src == x->dst) { /* b_to_a goes where a_to_b still lies */
		copy(p, at_b, a_to_b, there);
		copy(p, at_a, b_to_a, back);
	} else {
		copy(p, at_a, b_to_a, back);
		copy(p, at_b, a_to_b, there);
	}
}

static void scatter(const struct piece *p)
{
	const struct tess_coll *call = p->m->call, *root = &call[call->peer];

	for (int32_t r = 0; r < p->nranks; r++)
		if (r != call->peer || root->src != root->dst)
			copy(p, call[r].dst, block(p, call->peer, root->src, root->send_counts, r),
			     call[r].count);
}

void loopback_move(const struct meet *m, int32_t nranks, int32_t i)
{
	const struct tess_coll *call = m->call;
	const struct tess_coll *any = m->from < 0 ? call : &call[m->from];
	const struct piece p = {
		.m = m, .nranks = nranks, .i = i, .width = tess_width(any->dtype)
	};

	switch (any->kind) {
	case TESS_BROADCAST:
		for (int32_t r = 0; r < nranks; r++)
			copy(&p, call[r].dst, call[call->peer].src, call->count);
		break;
	case TESS_REDUCE:
		reduce(&p, 0, call->count, call->peer);
		break;
	case TESS_ALL_REDUCE:
		reduce(&p, 0, call->count, -1);
		break;
	case TESS_GATHER:
		for (int32_t r = 0; r < nranks; r++)
			hand_over(&p, r, call->peer);
		break;
	case TESS_ALL_GATHER:
		for (int32_t from = 0; from < nranks; from++)
			for (int32_t to = 0; to < nranks; to++)
				hand_over(&p, from, to);
		break;
	case TESS_SCATTER:
		scatter(&p);
		break;
	case TESS_REDUCE_SCATTER:
		for (int32_t r = 0; r < nranks; r++)
			reduce(&p, begin_of(call->send_counts, call->count, r),
			       size_of(call->send_counts, call->count, r), r);
		break;
	case TESS_ALL_TO_ALL:
		for (int32_t a = 0; a < nranks; a++)
			for (int32_t b = a; b < nranks; b++)
				exchange(&p, a, b);
		break;
	case TESS_SEND:
		copy(&p, call[m->to].dst, any->src, any->count);
		break;
	}
}

uint64_t loopback_bytes(const struct meet *m, int32_t nranks)
{
	const struct tess_coll *c = m->from < 0 ? m->call : &m->call[m->from];
	uint64_t all = c->count;

	switch (c->kind) {
	case TESS_GATHER:
	case TESS_ALL_GATHER:
		all = begin_of(c->recv_counts, c->count, nranks);
		break;
	case TESS_SCATTER:
	case TESS_REDUCE_SCATTER:
	case TESS_ALL_TO_ALL:
		all = begin_of(c->send_counts, c->count, nranks);
		break;
	}
	return c->kind == TESS_BARRIER ? 0 : all * tess_width(c->dtype);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool pairs(int32_t kind)
{
	return kind == TESS_SEND || kind == TESS_RECV;
}

static bool same_list(const uint64_t *a, const uint64_t *b, int32_t nranks)
{
	return !a == !b && (!a || !memcmp(a, b, (size_t)nranks * sizeof *a));
}

const char *loopback_differ(const struct tess_coll *a, int32_t ra, const struct tess_coll *b,
                            int32_t rb, int32_t nranks)
{
	if (!pairs(a->kind) && a->kind != b->kind)
		return "kinds";
	if (a->kind == TESS_BARRIER)
		return NULL;
	if (a->dtype != b->dtype)
		return "dtypes";
	if (tess_kind_reduces(a->kind) && a->op != b->op)
		return "operations";
	if (tess_kind_rooted(a->kind) && a->peer != b->peer)
		return "roots";
	if (a->kind == TESS_ALL_TO_ALL)
		return size_of(a->send_counts, a->count, rb) != size_of(b->recv_counts, b->count, ra) ||
		                       size_of(b->send_counts, b->count, ra) !=
		                               size_of(a->recv_counts, a->count, rb)
		               ? "counts"
		               : NULL;
	if (!same_list(a->send_counts, b->send_counts, nranks) || !same_list(a->recv_counts, b->recv_counts, nranks))
		return "lists of counts";
	return !a->send_counts && !a->recv_counts && a->count != b->count ? "counts" : NULL;
}

void loopback_describe(const struct tess_coll *c, const int32_t *world, char *text, size_t room)
{
	char what[96] = "", peer[24] = "";

	if (c->kind != TESS_BARRIER)
		snprintf(what, sizeof what, " of %" PRIu64 " %s%s%s", c->count,
		         tess_dtype_name(c->dtype), tess_kind_reduces(c->kind) ? ", " : "",
		         tess_kind_reduces(c->kind) ? tess_op_name(c->op) : "");
	if (tess_kind_rooted(c->kind) || pairs(c->kind))
		snprintf(peer, sizeof peer, "%s rank %d",
		         tess_kind_rooted(c->kind) ? ", root" : ", with", (int)world[c->peer]);
	snprintf(text, room, "%s%s%s%s%s", tess_kind_name(c->kind), what, peer,
	         c->where ? " at " : "", c->where ? c->where : "");
}

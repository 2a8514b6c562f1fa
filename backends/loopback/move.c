/* move.c - collectives as copies and reductions between the buffers of the ranks. */
#include "move.h"

#include <string.h>
#include <tessera/split.h>

enum { STEP = 4096 }; /* elements reduced and copied at a time, in cache */

/* A piece of every block, which is moved at a time. */
struct call_piece {
	const struct pending_call *m;
	int32_t nranks, i; /* piece i of m->pieces */
	size_t width;
};

/* Returns the address of block r in `base`, a buffer of rank `of`. */
static char *block_address(const struct call_piece *p, int32_t of, const void *base,
                           const uint64_t *list, int32_t r)
{
	return (char *)base + tess_block_begin(list, p->m->colls[of].count, r) * p->width;
}

static bool piece_range(const struct call_piece *p, uint64_t count, uint64_t *begin, uint64_t *n)
{
	*begin = (uint64_t)tess_edge((int64_t)count, p->m->pieces, p->i);
	*n = (uint64_t)tess_edge((int64_t)count, p->m->pieces, p->i + 1) - *begin;
	return *n != 0;
}

static void copy_piece(const struct call_piece *p, char *dst, const char *src, uint64_t count)
{
	uint64_t begin, n;

	if (dst != src && piece_range(p, count, &begin, &n))
		memcpy(dst + begin * p->width, src + begin * p->width, n * p->width);
}

static void swap_piece(const struct call_piece *p, char *a, char *b, uint64_t count)
{
	uint64_t begin, n;
	char temp[STEP];

	if (!piece_range(p, count, &begin, &n))
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

/* Reduces `count` elements at `offset` of every rank's src, for rank `only` (-1: for all). */
static void reduce_piece(const struct call_piece *p, uint64_t offset, uint64_t count, int32_t only)
{
	const struct tess_coll *call = p->m->colls;
	const void *part[RANKS_MOST];
	uint64_t begin, n;

	if (!piece_range(p, count, &begin, &n))
		return;
	for (uint64_t at = begin; at < begin + n; at += STEP) {
		uint64_t len = begin + n - at < STEP ? begin + n - at : STEP;
		int32_t first = only < 0 ? 0 : only;
		bool slice = call->kind == TESS_REDUCE_SCATTER;
		/* in place, a slice stays at its own place */
		uint64_t to = slice && call[first].src == call[first].dst ? offset + at : at;
		char *dst = (char *)call[first].dst + to * p->width;

		for (int32_t r = 0; r < p->nranks; r++)
			part[r] = (const char *)call[r].src + (offset + at) * p->width;
		tess_reduce(call->dtype, call->op, part, p->nranks, len, dst);
		for (int32_t r = 1; only < 0 && r < p->nranks; r++)
			memcpy((char *)call[r].dst + at * p->width, dst, len * p->width);
	}
}

/* Copies the block of rank `from` to rank `to`, which receives all blocks, unless in place. */
static void copy_block(const struct call_piece *p, int32_t from, int32_t to)
{
	const struct tess_coll *call = p->m->colls, *c = &call[from];
	bool full = call->kind == TESS_ALL_GATHER || from == call->peer;
	const char *src = full && c->src == c->dst
	                          ? block_address(p, from, c->src, c->recv_counts, from)
	                          : c->src;

	copy_piece(p, block_address(p, to, call[to].dst, call[to].recv_counts, from), src,
	           c->count);
}

static void exchange_blocks(const struct call_piece *p, int32_t a, int32_t b)
{
	const struct tess_coll *x = &p->m->colls[a], *y = &p->m->colls[b];
	char *a_to_b = block_address(p, a, x->src, x->send_counts, b),
	     *b_to_a = block_address(p, b, y->src, y->send_counts, a);
	char *at_b = block_address(p, b, y->dst, y->recv_counts, a),
	     *at_a = block_address(p, a, x->dst, x->recv_counts, b);
	uint64_t there = tess_block_size(x->send_counts, x->count, b),
		 back = tess_block_size(y->send_counts, y->count, a);

	if (a == b) {
		copy_piece(p, at_a, a_to_b, there);
	} else if (there && back && x->src == x->dst && y->src == y->dst) {
		/* in place, and not an empty buffer that begins where another one does */
		swap_piece(p, a_to_b, b_to_a, there);
	} else if (x->src == x->dst) { /* b_to_a overwrites a_to_b */
		copy_piece(p, at_b, a_to_b, there);
		copy_piece(p, at_a, b_to_a, back);
	} else {
		copy_piece(p, at_a, b_to_a, back);
		copy_piece(p, at_b, a_to_b, there);
	}
}

static void scatter_blocks(const struct call_piece *p)
{
	const struct tess_coll *call = p->m->colls, *root = &call[call->peer];

	for (int32_t r = 0; r < p->nranks; r++)
		if (r != call->peer || root->src != root->dst)
			copy_piece(p, call[r].dst,
			           block_address(p, call->peer, root->src, root->send_counts, r),
			           call[r].count);
}

void loopback_move_piece(const struct pending_call *m, int32_t nranks, int32_t i)
{
	const struct tess_coll *call = m->colls;
	const struct tess_coll *any = m->from < 0 ? call : &call[m->from];
	const struct call_piece p = {
		.m = m, .nranks = nranks, .i = i, .width = tess_width(any->dtype)
	};

	switch (any->kind) {
	case TESS_BROADCAST:
		for (int32_t r = 0; r < nranks; r++)
			copy_piece(&p, call[r].dst, call[call->peer].src, call->count);
		break;
	case TESS_REDUCE:
		reduce_piece(&p, 0, call->count, call->peer);
		break;
	case TESS_ALL_REDUCE:
		reduce_piece(&p, 0, call->count, -1);
		break;
	case TESS_GATHER:
		for (int32_t r = 0; r < nranks; r++)
			copy_block(&p, r, call->peer);
		break;
	case TESS_ALL_GATHER:
		for (int32_t from = 0; from < nranks; from++)
			for (int32_t to = 0; to < nranks; to++)
				copy_block(&p, from, to);
		break;
	case TESS_SCATTER:
		scatter_blocks(&p);
		break;
	case TESS_REDUCE_SCATTER:
		for (int32_t r = 0; r < nranks; r++)
			reduce_piece(&p, tess_block_begin(call->send_counts, call->count, r),
			             tess_block_size(call->send_counts, call->count, r), r);
		break;
	case TESS_ALL_TO_ALL:
		for (int32_t a = 0; a < nranks; a++)
			for (int32_t b = a; b < nranks; b++)
				exchange_blocks(&p, a, b);
		break;
	case TESS_SEND:
		copy_piece(&p, call[m->to].dst, any->src, any->count);
		break;
	}
}

uint64_t loopback_count_bytes(const struct pending_call *m, int32_t nranks)
{
	return tess_coll_bytes(m->from < 0 ? m->colls : &m->colls[m->from], nranks);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool same_list(const uint64_t *a, const uint64_t *b, int32_t nranks)
{
	return !a == !b && (!a || !memcmp(a, b, (size_t)nranks * sizeof *a));
}

const char *loopback_find_difference(const struct tess_coll *a, int32_t ra,
                                     const struct tess_coll *b, int32_t rb, int32_t nranks)
{
	if (!tess_kind_is_p2p(a->kind) && a->kind != b->kind)
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
		return tess_block_size(a->send_counts, a->count, rb) !=
		                               tess_block_size(b->recv_counts, b->count, ra) ||
		                       tess_block_size(b->send_counts, b->count, ra) !=
		                               tess_block_size(a->recv_counts, a->count, rb)
		               ? "counts"
		               : NULL;
	if (!same_list(a->send_counts, b->send_counts, nranks) ||
	    !same_list(a->recv_counts, b->recv_counts, nranks))
		return "lists of counts";
	return !a->send_counts && !a->recv_counts && a->count != b->count ? "counts" : NULL;
}

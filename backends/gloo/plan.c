#include "plan.h"

enum {
	ALIGN = 16, /* elements that stay together */
	HALVES = 1 << 20, /* maximum bytes for halving */
	LARGE = 512 * 1024, /* minimum bytes per rank for slices and a second exchange */
	/* bytes that a rank then exchanges at a time, to stay in cache */
	AT_ONCE = 1024 * 1024,
	PIECE = 256 * 1024,
};

/* ---- addresses ------------------------------------------------------------------------------- */

static void *offset_buffer(const struct work *w, const void *p, uint64_t elements)
{
	return p ? (char *)(uintptr_t)p + elements * w->width : NULL;
}

/* Returns block r of a buffer; r = nranks: its end. */
static void *block_at(const struct work *w, const void *p, const uint64_t *list, int32_t r)
{
	return offset_buffer(w, p, tess_block_begin(list, w->c.count, r));
}

static uint64_t slice_edge(const struct group *g, const struct work *w, int32_t r)
{
	uint64_t n = (uint64_t)g->nranks, at = (uint64_t)r, count = w->c.count;

	return count / n * at + (count % n < at ? count % n : at);
}

static uint64_t slice_size(const struct group *g, const struct work *w, int32_t r)
{
	return slice_edge(g, w, r + 1) - slice_edge(g, w, r);
}

/* Returns the size of piece k of rank r's slice; 0 past the end of a shorter slice. */
static uint64_t piece_size(const struct group *g, const struct work *w, int32_t r, int32_t k)
{
	uint64_t all = slice_size(g, w, r), at = w->step * (uint64_t)k;

	return at >= all ? 0 : all - at < w->step ? all - at : w->step;
}

static void *piece_at(const struct group *g, const struct work *w, const void *p, int32_t r,
                      int32_t k)
{
	return offset_buffer(w, p, slice_edge(g, w, r) + w->step * (uint64_t)k);
}

/* Returns the scratch memory of addends from `peer`; stages k and k + 1 alternate. */
static void *received_at(const struct group *g, const struct work *w, int32_t peer, int32_t k)
{
	uint64_t each = w->pieces ? w->step : w->sum;
	int32_t i = (peer < g->rank ? peer : peer - 1) + (k & 1) * (g->nranks - 1);

	return offset_buffer(w, w->scratch, each * (uint64_t)i);
}

/*
 * Returns the destination of the sum of piece k of this rank's slice; scratch memory if the rank
 * only sends it.
 */
static void *total_at(const struct group *g, const struct work *w, int32_t k)
{
	if (w->c.kind == TESS_REDUCE && g->rank != w->c.peer)
		return offset_buffer(w, w->scratch, w->step * 2 * (uint64_t)(g->nranks - 1));
	return piece_at(g, w, w->c.dst, g->rank, k);
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* Plans the transfer of piece k of finished slices; a broadcast's root sends all of them. */
static struct transfer plan_share(const struct group *g, const struct work *w, int32_t peer,
                                  int32_t k)
{
	const struct tess_coll *c = &w->c;
	int i_am_root = g->rank == c->peer, is_root = peer == c->peer;
	struct transfer t = {
		.src = total_at(g, w, k),
		.send_count = piece_size(g, w, g->rank, k),
		.sends = 1,
		.dst = piece_at(g, w, c->dst, peer, k),
		.recv_count = piece_size(g, w, peer, k),
		.receives = 1,
	};

	if (c->kind == TESS_BROADCAST) {
		t.src = piece_at(g, w, i_am_root ? c->src : c->dst, g->rank, k);
		t.sends = !is_root;
		t.receives = !i_am_root;
	} else if (c->kind == TESS_REDUCE) {
		t.sends = is_root;
		t.receives = i_am_root;
	}
	return t;
}

/* Plans the transfer of addends: the full vector, or piece k of a slice. */
static struct transfer plan_addend(const struct group *g, const struct work *w, int32_t peer,
                                   int32_t k)
{
	const struct tess_coll *c = &w->c;
	struct transfer t = {
		.src = c->src,
		.send_count = c->count,
		.sends = 1,
		.dst = received_at(g, w, peer, k),
		.recv_count = w->sum,
		.receives = 1,
	};

	if (c->kind == TESS_REDUCE_SCATTER) {
		t.src = block_at(w, c->src, c->send_counts, peer);
		t.send_count = tess_block_size(c->send_counts, c->count, peer);
	} else if (w->pieces) {
		t.src = piece_at(g, w, c->src, peer, k);
		t.send_count = piece_size(g, w, peer, k);
		t.recv_count = piece_size(g, w, g->rank, k);
	} else if (c->kind == TESS_REDUCE) {
		t.sends = peer == c->peer;
		t.receives = g->rank == c->peer;
	}
	return t;
}

static struct transfer plan_move(const struct group *g, const struct work *w, int32_t peer,
                                 int32_t k)
{
	const struct tess_coll *c = &w->c;
	int all = !tess_kind_rooted(c->kind), inplace = c->src == c->dst;
	int i_am_root = g->rank == c->peer, is_root = peer == c->peer;

	switch (c->kind) {
	case TESS_BROADCAST:
		if (w->pieces)
			return (struct transfer){
				piece_at(g, w, c->src, peer, k),
				piece_at(g, w, c->dst, g->rank, k),
				piece_size(g, w, peer, k),
				piece_size(g, w, g->rank, k),
				i_am_root,
				is_root,
			};
		return (struct transfer){ c->src, c->dst, c->count, c->count, i_am_root, is_root };
	case TESS_GATHER:
	case TESS_ALL_GATHER:
		return (struct transfer){
			inplace && (all || i_am_root) ? block_at(w, c->src, c->recv_counts, g->rank)
						      : offset_buffer(w, c->src, 0),
			block_at(w, c->dst, c->recv_counts, peer),
			c->count,
			tess_block_size(c->recv_counts, c->count, peer),
			all || is_root,
			all || i_am_root,
		};
	case TESS_SCATTER:
		return (struct transfer){
			block_at(w, c->src, c->send_counts, peer),
			c->dst,
			tess_block_size(c->send_counts, c->count, peer),
			c->count,
			i_am_root,
			is_root,
		};
	case TESS_ALL_TO_ALL:
		return (struct transfer){
			block_at(w, inplace ? w->scratch : c->src, c->send_counts, peer),
			block_at(w, c->dst, c->recv_counts, peer),
			tess_block_size(c->send_counts, c->count, peer),
			tess_block_size(c->recv_counts, c->count, peer),
			1,
			1,
		};
	case TESS_SEND:
		return (struct transfer){ .src = c->src, .send_count = c->count, .sends = is_root };
	case TESS_RECV:
		return (struct transfer){ .dst = c->dst,
			                  .recv_count = c->count,
			                  .receives = is_root };
	default: /* a barrier: empty messages from all ranks */
		return (struct transfer){ .sends = 1, .receives = 1 };
	}
}

struct transfer plan_transfer(const struct group *g, const struct work *w, int32_t peer, int32_t k,
                              int shares)
{
	if (shares)
		return plan_share(g, w, peer, k);
	return tess_kind_reduces(w->c.kind) ? plan_addend(g, w, peer, k) : plan_move(g, w, peer, k);
}

/* ---- by halves ------------------------------------------------------------------------------- */

struct half_range {
	uint64_t at, n;
};

/* Returns the range of rank r after s halvings; the higher of two ranks has the second half. */
static struct half_range find_half(const struct work *w, int32_t r, int32_t s)
{
	struct half_range h = { 0, w->c.count };

	for (int32_t k = 0; k < s; k++) {
		uint64_t first = (h.n / 2 + ALIGN - 1) / ALIGN * ALIGN;

		h.at += r >> k & 1 ? first : 0;
		h.n = r >> k & 1 ? h.n - first : first;
	}
	return h;
}

/* Returns the scratch memory of the half received in stage s. */
static void *half_received_at(const struct group *g, const struct work *w, int32_t s)
{
	uint64_t at = 0;

	for (int32_t k = 1; k <= s; k++)
		at += find_half(w, g->rank, k).n;
	return offset_buffer(w, w->scratch, at);
}

struct transfer plan_half_transfer(const struct group *g, const struct work *w, int32_t stage,
                                   int32_t *peer)
{
	int adds = stage < w->halvings;
	int32_t s = adds ? stage : 2 * w->halvings - 1 - stage, other = g->rank ^ 1 << s;
	struct half_range mine = find_half(w, g->rank, s + 1), theirs = find_half(w, other, s + 1);
	struct half_range out = adds ? theirs : mine, in = adds ? mine : theirs;

	*peer = other;
	return (struct transfer){
		offset_buffer(w, stage ? w->c.dst : w->c.src, out.at),
		adds ? half_received_at(g, w, s) : offset_buffer(w, w->c.dst, in.at),
		out.n,
		in.n,
		1,
		1,
	};
}

static void plan_half_sum(const struct group *g, struct work *w)
{
	struct half_range mine = find_half(w, g->rank, w->stage + 1);
	int second = g->rank >> w->stage & 1;

	if (w->stage >= w->halvings)
		return;
	w->sum = mine.n;
	w->parts = 2;
	w->part[second] = offset_buffer(w, w->stage ? w->c.dst : w->c.src, mine.at);
	w->part[!second] = half_received_at(g, w, w->stage);
	w->total = offset_buffer(w, w->c.dst, mine.at);
}

void plan_copy_own(const struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;
	struct transfer own;

	if (tess_kind_reduces(c->kind) || c->src == c->dst || c->kind == TESS_SEND ||
	    c->kind == TESS_RECV || (tess_kind_rooted(c->kind) && g->rank != c->peer))
		return;
	own = plan_move(g, w, g->rank, 0);
	if (c->kind == TESS_BROADCAST)
		own = (struct transfer){ .src = c->src, .dst = c->dst, .recv_count = c->count };
	if (own.recv_count)
		memcpy(own.dst, own.src, own.recv_count * w->width);
}

/* ---- how it goes ----------------------------------------------------------------------------- */

/* Returns whether to halve. Each stage rounds, so 16-bit floats, rounded once, do not. */
static int use_halves(const struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;
	size_t bytes = c->count * w->width;

	return c->kind == TESS_ALL_REDUCE && c->dtype != TESS_BF16 && c->dtype != TESS_F16 &&
	       g->nranks > 2 && !(g->nranks & (g->nranks - 1)) && bytes <= HALVES &&
	       c->count >= 2 * ALIGN * (uint64_t)g->nranks; /* no half is empty */
}

void plan_stages(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	size_t n = (size_t)g->nranks;

	if ((n - 1) * c->count * w->width < LARGE)
		return;
	if (use_halves(g, w)) {
		while (1 << w->halvings < g->nranks)
			w->halvings++;
		w->last = 2 * w->halvings;
	} else if (c->kind == TESS_REDUCE || c->kind == TESS_ALL_REDUCE ||
	           (c->kind == TESS_BROADCAST && n > 2)) {
		w->step = (AT_ONCE / n > PIECE ? AT_ONCE / n : PIECE) / w->width;
		w->pieces = (int32_t)((slice_size(g, w, 0) + w->step - 1) / w->step);
		w->last = w->pieces;
	}
}

void plan_sum(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	void *mine = offset_buffer(w, c->src, 0);

	w->sum = 0;
	if (!tess_kind_reduces(c->kind))
		return;
	if (w->halvings) {
		plan_half_sum(g, w);
		return;
	}
	if (w->pieces) {
		w->sum = w->stage < w->pieces ? piece_size(g, w, g->rank, w->stage) : 0;
		mine = piece_at(g, w, c->src, g->rank, w->stage);
		w->total = total_at(g, w, w->stage);
	} else if (c->kind == TESS_REDUCE_SCATTER) {
		w->sum = tess_block_size(c->send_counts, c->count, g->rank);
		mine = block_at(w, c->src, c->send_counts, g->rank);
		w->total = c->src == c->dst ? mine : c->dst;
	} else {
		w->sum = c->kind == TESS_ALL_REDUCE || g->rank == c->peer ? c->count : 0;
		w->total = c->dst;
	}
	w->parts = g->nranks;
	for (int32_t r = 0; r < g->nranks; r++)
		w->part[r] = r == g->rank ? mine : received_at(g, w, r, w->stage);
}

size_t plan_scratch(const struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;

	if (c->kind == TESS_ALL_TO_ALL && c->src == c->dst && c->src)
		return (size_t)((char *)block_at(w, c->src, c->send_counts, g->nranks) -
		                (char *)c->dst);
	if (!tess_kind_reduces(c->kind))
		return 0;
	if (w->halvings)
		return c->count * w->width;
	return w->pieces ? w->step * w->width * (size_t)(2 * g->nranks - 1)
	                 : w->sum * w->width * (size_t)(g->nranks - 1);
}

#include "plan.h"

/* One step: all ranks send to all, limited by `from`, `to` and `excluded`. Counts in elements. */
struct exchange_plan {
	const void *src;
	void *dst;
	const uint64_t *send_counts,
		*recv_counts; /* a block for each rank, one after another; NULL: */
	uint64_t send_count, recv_count; /* blocks of one length, 0: none, */
	bool same_src, same_dst; /* or the same block for all */
	int32_t from, to; /* the only sender, the only receiver; -1: all */
	int32_t excluded; /* a rank that receives nothing; -1: none */
};

static void lay_out_transfers(const struct group *g, struct work *w, const struct exchange_plan *p)
{
	bool sends = p->from < 0 || p->from == g->rank;
	bool receives = (p->to < 0 || p->to == g->rank) && p->excluded != g->rank;
	uint64_t src = 0, dst = 0;

	for (int32_t r = 0; r < g->nranks; r++) {
		uint64_t nsend = p->send_counts ? p->send_counts[r] : p->send_count;
		uint64_t nrecv = p->recv_counts ? p->recv_counts[r] : p->recv_count;
		bool to = sends && (p->to < 0 || p->to == r) && p->excluded != r;
		bool from = receives && (p->from < 0 || p->from == r);

		w->transfer[r] = (struct transfer){
			.src = buffer_at(w, p->src, src),
			.dst = buffer_at(w, p->dst, dst),
			.send_bytes = to ? nsend * w->width : 0,
			.recv_bytes = from ? nrecv * w->width : 0,
		};
		src += p->same_src ? 0 : nsend;
		dst += p->same_dst ? 0 : nrecv;
	}
}

/* Plans the first step of a sum: the elements that this rank reduces, and their destination. */
static void plan_first_sum(const struct group *g, struct work *w, struct exchange_plan *p)
{
	const struct tess_coll *c = &w->c;
	const uint64_t *blocks = w->steps == 2 ? w->slice : c->send_counts;
	bool to_all = c->kind == TESS_ALL_REDUCE, in_blocks = w->steps == 2;
	uint64_t at = 0;

	w->sum = c->count;
	w->total = c->dst;
	if (c->kind == TESS_REDUCE_SCATTER || in_blocks) {
		at = tess_block_begin(blocks, c->count, g->rank);
		w->sum = tess_block_size(blocks, c->count, g->rank);
		p->send_counts = blocks;
		p->same_src = false;
	} else if (!to_all) {
		p->to = c->peer;
		w->sum = g->rank == c->peer ? c->count : 0;
	}
	w->part[g->rank] = buffer_at(w, c->src, at);
	if (in_blocks && (to_all || g->rank == c->peer))
		w->total = buffer_at(w, c->dst, at);
	else if (in_blocks)
		w->total = w->scratch;
	else if (c->kind == TESS_REDUCE_SCATTER && c->src == c->dst)
		w->total = buffer_at(w, c->dst, at);
	p->dst = w->scratch;
	p->recv_count = w->sum;
	p->same_dst = false;
}

void plan_first_step(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	bool root = g->rank == c->peer, in_place = c->src == c->dst;
	struct exchange_plan p = { .src = c->src,
		                   .dst = c->dst,
		                   .send_count = c->count,
		                   .recv_count = c->count,
		                   .same_src = true,
		                   .same_dst = true,
		                   .from = -1,
		                   .to = -1,
		                   .excluded = -1 };

	switch (c->kind) {
	case TESS_BROADCAST:
		p.from = p.excluded = c->peer; /* the own block is copied elsewhere */
		if (w->steps == 2) {
			p.send_counts = w->slice;
			p.same_src = false;
			p.dst = buffer_at(w, c->dst, tess_block_begin(w->slice, 0, g->rank));
			p.recv_count = w->slice[g->rank];
		}
		break;
	case TESS_GATHER:
		p.to = c->peer;
		/* fall through */
	case TESS_ALL_GATHER:
		p.recv_counts = c->recv_counts;
		p.same_dst = false;
		if (in_place && (root || c->kind == TESS_ALL_GATHER))
			p.src = buffer_at(w, c->dst,
			                  tess_block_begin(c->recv_counts, c->count, g->rank));
		break;
	case TESS_SCATTER:
		p.from = c->peer;
		p.send_counts = c->send_counts;
		p.same_src = false;
		p.recv_count = root && in_place ? 0 : c->count;
		break;
	case TESS_ALL_TO_ALL:
		p.src = in_place ? w->scratch : c->src;
		p.send_counts = c->send_counts;
		p.recv_counts = c->recv_counts;
		p.same_src = p.same_dst = false;
		break;
	case TESS_SEND:
		p.from = g->rank;
		p.to = c->peer;
		break;
	case TESS_RECV:
		p.from = c->peer;
		p.to = g->rank;
		break;
	case TESS_BARRIER:
		p.send_count = p.recv_count = 0;
		break;
	default:
		plan_first_sum(g, w, &p);
	}
	lay_out_transfers(g, w, &p);
}

/* Gathers the finished slices on all ranks or the root; a broadcast's root sends them. */
void plan_second_step(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	struct exchange_plan p = { .src = w->total,
		                   .dst = c->dst,
		                   .send_count = w->slice[g->rank],
		                   .recv_counts = w->slice,
		                   .same_src = true,
		                   .from = -1,
		                   .to = c->kind == TESS_REDUCE ? c->peer : -1,
		                   .excluded = c->kind == TESS_BROADCAST ? c->peer : -1 };

	if (c->kind == TESS_BROADCAST)
		p.src = buffer_at(w, g->rank == c->peer ? c->src : c->dst,
		                  tess_block_begin(w->slice, 0, g->rank));
	lay_out_transfers(g, w, &p);
}

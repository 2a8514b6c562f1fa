/* plan.c - who gives what to whom, in one step or two. */
#include "work.h"

/* One step: everyone gives to everyone, but as `from`, `to` and `spared` say. Counts in elements. */
struct plan {
	const void *src;
	void *dst;
	const uint64_t *give, *get; /* a block for each rank, one after another; NULL: */
	uint64_t ngive, nget; /* blocks of one length, 0: none, */
	bool same_src, same_dst; /* or the same block for all */
	int32_t from, to; /* the only rank that gives, or takes; -1: all */
	int32_t spared; /* a rank that takes nothing; -1: none */
};

static void lay(const struct group *g, struct work *w, const struct plan *p)
{
	bool gives = p->from < 0 || p->from == g->rank;
	bool takes = (p->to < 0 || p->to == g->rank) && p->spared != g->rank;
	uint64_t src = 0, dst = 0;

	for (int32_t r = 0; r < g->nranks; r++) {
		uint64_t give = p->give ? p->give[r] : p->ngive;
		uint64_t get = p->get ? p->get[r] : p->nget;
		bool to = gives && (p->to < 0 || p->to == r) && p->spared != r;
		bool from = takes && (p->from < 0 || p->from == r);

		w->leg[r] = (struct leg){
			.src = work_past(w, p->src, src),
			.dst = work_past(w, p->dst, dst),
			.give = to ? give * w->width : 0,
			.get = from ? get * w->width : 0,
		};
		src += p->same_src ? 0 : give;
		dst += p->same_dst ? 0 : get;
	}
}

/* The first step of a sum: `mine` are the elements that this rank adds, `total` is where they go. */
static void plan_sum(const struct group *g, struct work *w, struct plan *p)
{
	const struct tess_coll *c = &w->c;
	const uint64_t *blocks = w->steps == 2 ? w->slice : c->send_counts;
	bool to_all = c->kind == TESS_ALL_REDUCE, in_blocks = w->steps == 2;
	uint64_t at = 0;

	w->sum = c->count;
	w->total = c->dst;
	if (c->kind == TESS_REDUCE_SCATTER || in_blocks) {
		at = blocks ? work_begin(blocks, g->rank) : c->count * (uint64_t)g->rank;
		w->sum = blocks ? blocks[g->rank] : c->count;
		p->give = blocks;
		p->same_src = false;
	} else if (!to_all) {
		p->to = c->peer;
		w->sum = g->rank == c->peer ? c->count : 0;
	}
	w->part[g->rank] = work_past(w, c->src, at);
	if (in_blocks && (to_all || g->rank == c->peer))
		w->total = work_past(w, c->dst, at);
	else if (in_blocks)
		w->total = w->scratch;
	else if (c->kind == TESS_REDUCE_SCATTER && c->src == c->dst)
		w->total = work_past(w, c->dst, at);
	p->dst = w->scratch;
	p->nget = w->sum;
	p->same_dst = false;
}

void plan_first(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	bool root = g->rank == c->peer, in_place = c->src == c->dst;
	struct plan p = { .src = c->src,
		          .dst = c->dst,
		          .ngive = c->count,
		          .nget = c->count,
		          .same_src = true,
		          .same_dst = true,
		          .from = -1,
		          .to = -1,
		          .spared = -1 };

	switch (c->kind) {
	case TESS_BROADCAST:
		p.from = p.spared = c->peer; /* its own copy is made elsewhere */
		if (w->steps == 2) {
			p.give = w->slice;
			p.same_src = false;
			p.dst = work_past(w, c->dst, work_begin(w->slice, g->rank));
			p.nget = w->slice[g->rank];
		}
		break;
	case TESS_GATHER:
		p.to = c->peer;
		/* fall through */
	case TESS_ALL_GATHER:
		p.get = c->recv_counts;
		p.same_dst = false;
		if (in_place && (root || c->kind == TESS_ALL_GATHER))
			p.src = work_past(w, c->dst,
			                  c->recv_counts ? work_begin(c->recv_counts, g->rank)
			                         : c->count * (uint64_t)g->rank);
		break;
	case TESS_SCATTER:
		p.from = c->peer;
		p.give = c->send_counts;
		p.same_src = false;
		p.nget = root && in_place ? 0 : c->count;
		break;
	case TESS_ALL_TO_ALL:
		p.src = in_place ? w->scratch : c->src;
		p.give = c->send_counts;
		p.get = c->recv_counts;
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
		p.ngive = p.nget = 0;
		break;
	default:
		plan_sum(g, w, &p);
	}
	lay(g, w, &p);
}

/* Slices, finished by their ranks, to all or to the root. A broadcast's root has them. */
void plan_second(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	struct plan p = { .src = w->total,
		          .dst = c->dst,
		          .ngive = w->slice[g->rank],
		          .get = w->slice,
		          .same_src = true,
		          .from = -1,
		          .to = c->kind == TESS_REDUCE ? c->peer : -1,
		          .spared = c->kind == TESS_BROADCAST ? c->peer : -1 };

	if (c->kind == TESS_BROADCAST)
		p.src = work_past(w, g->rank == c->peer ? c->src : c->dst,
		                  work_begin(w->slice, g->rank));
	lay(g, w, &p);
}

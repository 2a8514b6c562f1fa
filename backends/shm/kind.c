/* kind.c - what each kind of collective puts into slots and takes out of them, a chunk a round. */
#include <string.h>
#include <tessera/split.h>
#include <tessera/stream.h>

#include "shm.h"

enum { FILLS_MOST = 4 << 20 }; /* bytes from which on all vectors fill slots alike */

uint64_t kind_block(const struct work *w, const uint64_t *list, int32_t r)
{
	return list ? list[r] : w->c.count;
}

uint64_t kind_begin(const struct work *w, const uint64_t *list, int32_t r)
{
	uint64_t at = 0;

	if (!list)
		return w->c.count * (uint64_t)r;
	for (int32_t i = 0; i < r; i++)
		at += list[i];
	return at;
}

bool kind_gives(const struct group *g, const struct work *w)
{
	bool root = w->c.peer == g->rank;

	switch (w->c.kind) {
	case TESS_BROADCAST:
	case TESS_SCATTER:
		return root;
	case TESS_REDUCE:
	case TESS_GATHER:
		return !root;
	default:
		return true;
	}
}

/* ---- plans ----------------------------------------------------------------------------------- */

static uint64_t largest(const struct work *w, const uint64_t *list, int32_t n)
{
	uint64_t most = 0;

	if (!list)
		return w->c.count;
	for (int32_t r = 0; r < n; r++)
		most = list[r] > most ? list[r] : most;
	return most;
}

static void chunks(struct work *w, uint64_t most, uint64_t room)
{
	if (w->inlined) {
		w->chunk = most;
		w->need = most != 0;
		return;
	}
	/* whole lines, so that no two ranks' parts share one */
	w->chunk = room / w->width / 64 * 64;
	w->need =
		most <= w->chunk ? most != 0 : (uint32_t)(most / w->chunk + (most % w->chunk != 0));
}

void kind_plan(const struct group *g, struct work *w)
{
	const struct tess_coll *c = &w->c;
	uint64_t n = (uint64_t)g->nranks, most = c->count;

	switch (c->kind) {
	case TESS_BROADCAST:
	case TESS_REDUCE:
	case TESS_ALL_REDUCE:
		w->bytes = most * w->width;
		w->inlined = w->bytes <= INLINE;
		/*
		 * with two ranks it is as much to read all of the other's as its half of the sums
		 */
		w->shares = c->kind != TESS_BROADCAST && n > 2 && w->bytes > g->small;
		chunks(w, most, w->shares ? g->chunk * n / (n + 2) : g->chunk);
		break;
	case TESS_GATHER:
	case TESS_ALL_GATHER:
		most = largest(w, c->recv_counts, g->nranks);
		w->bytes = kind_begin(w, c->recv_counts, g->nranks) * w->width;
		w->inlined = most * w->width <= INLINE;
		chunks(w, most, g->chunk);
		break;
	default:
		most = largest(w, c->send_counts, g->nranks);
		if (c->kind == TESS_ALL_TO_ALL && largest(w, c->recv_counts, g->nranks) > most)
			most = largest(w, c->recv_counts, g->nranks);
		w->bytes = kind_begin(w, c->send_counts, g->nranks) * w->width;
		chunks(w, most, g->chunk / n);
	}
	w->few = w->bytes <= FEW && !(c->kind == TESS_ALL_TO_ALL && c->send_counts);
}

/* ---- where things lie ------------------------------------------------------------------------ */

static char *data_of(const struct group *g, const struct work *w, int32_t r, uint64_t round)
{
	return w->inlined ? notice_of(g, r, round)->data
	                  : segment_slot(g, r, round, w->few) + TABLE;
}

static char *past(const struct work *w, const void *p, uint64_t elements)
{
	return (char *)(uintptr_t)p + elements * w->width;
}

/* Elements of a block of `count` that chunk k has. */
static uint64_t part(const struct work *w, uint64_t count, uint64_t k)
{
	uint64_t at = k * w->chunk;

	return at >= count ? 0 : count - at < w->chunk ? count - at : w->chunk;
}

static void copy(const struct work *w, void *dst, const void *src, uint64_t elements)
{
	if (elements)
		memcpy(dst, src, elements * w->width);
}

static void copy_past(const struct work *w, void *dst, const void *src, uint64_t elements)
{
	tess_stream(dst, src, elements * w->width);
}

/* Into this rank's slot; that of a large vector is timed now and then, when all have been written. */
static void put(struct group *g, const struct work *w, void *dst, const void *src,
                uint64_t elements)
{
	uint64_t bytes = elements * w->width;
	struct tess_store_policy *pace;
	bool through;
	int64_t begin;

	if (bytes < TESS_STREAM_MIN) {
		copy(w, dst, src, elements);
		return;
	}
	if (!g->filling)
		segment_touch(g);
	pace = tess_store_policy_for(g->fills, w->bytes < FILLS_MOST ? w->bytes : FILLS_MOST);
	if (!tess_store_policy_sample(pace, bytes, &through)) {
		(pace->cached ? copy : copy_past)(w, dst, src, elements);
		return;
	}
	begin = bell_now();
	(through ? copy : copy_past)(w, dst, src, elements);
	tess_store_policy_record(pace, bytes, bell_now() - begin);
}

/* The block that this rank gives to all, wherever it lies. */
static char *own_block(const struct group *g, const struct work *w)
{
	bool all = w->c.kind == TESS_ALL_GATHER || g->rank == w->c.peer;

	return past(w, w->c.src,
	            all && w->c.src == w->c.dst ? kind_begin(w, w->c.recv_counts, g->rank) : 0);
}

void kind_keep(const struct group *g, const struct work *w)
{
	const struct tess_coll *c = &w->c;
	bool root = c->peer == g->rank;
	uint64_t count = kind_block(w, c->recv_counts, g->rank);

	if (c->src == c->dst)
		return;
	if (c->kind == TESS_BROADCAST && root)
		copy(w, c->dst, c->src, c->count);
	else if (c->kind == TESS_ALL_GATHER || (c->kind == TESS_GATHER && root))
		copy(w, past(w, c->dst, kind_begin(w, c->recv_counts, g->rank)), c->src, count);
	else if (c->kind == TESS_SCATTER && root)
		copy(w, c->dst, past(w, c->src, kind_begin(w, c->send_counts, g->rank)), c->count);
	else if (c->kind == TESS_ALL_TO_ALL)
		copy(w, past(w, c->dst, kind_begin(w, c->recv_counts, g->rank)),
		     past(w, c->src, kind_begin(w, c->send_counts, g->rank)), count);
}

/* ---- all_to_all with lists ------------------------------------------------------------------- */

void kind_lies(const struct group *g, const struct work *w)
{
	struct lie *lie = (struct lie *)(void *)segment_slot(g, g->rank, g->round, w->few);

	for (int32_t r = 0; r < g->nranks; r++)
		lie[r] = (struct lie){ kind_begin(w, w->c.send_counts, r), w->c.send_counts[r] };
}

struct lie kind_lie(const struct group *g, const struct work *w, int32_t r)
{
	if (w->c.send_counts)
		return ((const struct lie *)(const void *)segment_slot(g, r, g->round,
		                                                       w->few))[g->rank];
	return (struct lie){ w->c.count * (uint64_t)g->rank, w->c.count };
}

tess_status kind_compare(struct group *g, const struct work *w)
{
	for (int32_t r = 0; r < g->nranks; r++) {
		uint64_t count = kind_lie(g, w, r).count, expected = kind_block(w, w->c.recv_counts, r);

		if (count != expected)
			return work_fail(
				g, TESS_EMISMATCH,
				"rank %d gives %llu elements of all_to_all at %.*s to rank %d, "
				"which expects %llu at %s",
				(int)g->world[r], (unsigned long long)count, WHERE,
				seat_of(g, r)->card[g->round & 1].where, (int)g->world[g->rank],
				(unsigned long long)expected, w->c.where ? w->c.where : "");
	}
	return TESS_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static uint64_t edge(const struct group *g, uint64_t n, int32_t r)
{
	return (uint64_t)tess_edge((int64_t)n, g->nranks, r);
}

/* In a slot, behind the chunk that is to be added: this rank's share of the chunk before, added. */
static char *sums_of(const struct group *g, const struct work *w, int32_t r, uint64_t round)
{
	return past(w, data_of(g, w, r, round), w->chunk);
}

/* `n` elements of all, which lie at `at` in this rank's src and at `offset` in slots. */
static void add(struct group *g, const struct work *w, uint64_t at, uint64_t offset, uint64_t n,
                void *const *dst, int32_t ndst)
{
	const void *parts[RANKS_MOST];

	for (int32_t r = 0; r < g->nranks; r++)
		parts[r] = r == g->rank ? past(w, w->c.src, at)
		                        : past(w, data_of(g, w, r, g->round), offset);
	if (n)
		sum_to(w->c.dtype, w->c.op, parts, g->nranks, n, dst, ndst,
		       ndst > 1 ? tess_store_policy_for(g->shares, w->bytes) : NULL);
}

/* Everything but this rank's share, which nobody else reads. */
static void fill_shares(struct group *g, const struct work *w, uint64_t k, char *data)
{
	uint64_t n = part(w, w->c.count, k), lo = edge(g, n, g->rank), hi = edge(g, n, g->rank + 1);
	char *src = past(w, w->c.src, k * w->chunk);

	put(g, w, data, src, lo);
	put(g, w, past(w, data, hi), past(w, src, hi), n - hi);
}

/*
 * The sums of the chunk before come in; this rank's share of chunk k goes out. It is written to
 * the slot of the next round: all notices of this one are there, so nobody reads the one before
 * any more.
 */
static void drain_shares(struct group *g, const struct work *w, uint64_t k)
{
	bool mine = w->c.kind == TESS_ALL_REDUCE || w->c.peer == g->rank;
	uint64_t n = k ? part(w, w->c.count, k - 1) : 0, lo, at;
	void *dst[2];

	for (int32_t r = 0; r < g->nranks && mine; r++) {
		at = edge(g, n, r);
		if (r != g->rank)
			copy(w, past(w, w->c.dst, (k - 1) * w->chunk + at),
			     sums_of(g, w, r, g->round), edge(g, n, r + 1) - at);
	}
	n = part(w, w->c.count, k);
	lo = edge(g, n, g->rank);
	at = k * w->chunk + lo;
	dst[0] = past(w, w->c.dst, at);
	dst[mine] = sums_of(g, w, g->rank, g->round + 1);
	add(g, w, at, lo, edge(g, n, g->rank + 1) - lo, dst, 1 + mine);
}

static void drain_sums(struct group *g, const struct work *w, uint64_t k)
{
	const struct tess_coll *c = &w->c;
	uint64_t n = part(w, c->count, k), at = k * w->chunk;
	void *dst = past(w, c->dst, at);

	if (c->kind == TESS_REDUCE_SCATTER) {
		at += kind_begin(w, c->send_counts, g->rank);
		if (c->src == c->dst)
			dst = past(w, c->dst, at);
		add(g, w, at, (uint64_t)g->rank * w->chunk, n, &dst, 1);
	} else if (w->shares) {
		drain_shares(g, w, k);
	} else if (c->kind == TESS_ALL_REDUCE || c->peer == g->rank) {
		add(g, w, at, 0, n, &dst, 1);
	}
}

/* ---- chunks ---------------------------------------------------------------------------------- */

void kind_fill(struct group *g, const struct work *w, uint64_t k)
{
	const struct tess_coll *c = &w->c;
	char *data = data_of(g, w, g->rank, g->round);
	uint64_t at = k * w->chunk;

	if (!kind_gives(g, w) && !w->shares)
		return;
	switch (c->kind) {
	case TESS_BROADCAST:
	case TESS_REDUCE:
	case TESS_ALL_REDUCE:
		if (w->shares)
			fill_shares(g, w, k, data);
		else
			put(g, w, data, past(w, c->src, at), part(w, c->count, k));
		break;
	case TESS_GATHER:
	case TESS_ALL_GATHER:
		put(g, w, data, past(w, own_block(g, w), at), part(w, c->count, k));
		break;
	default:
		for (int32_t r = 0; r < g->nranks; r++)
			if (r != g->rank)
				put(g, w, past(w, data, (uint64_t)r * w->chunk),
				    past(w, c->src, kind_begin(w, c->send_counts, r) + at),
				    part(w, kind_block(w, c->send_counts, r), k));
	}
}

void kind_drain(struct group *g, const struct work *w, uint64_t k)
{
	const struct tess_coll *c = &w->c;
	bool root = c->peer == g->rank, mine = c->kind == TESS_ALL_TO_ALL;
	uint64_t at = k * w->chunk;

	if (tess_kind_reduces(c->kind)) {
		drain_sums(g, w, k);
	} else if (c->kind == TESS_BROADCAST || c->kind == TESS_SCATTER) {
		uint64_t offset = c->kind == TESS_SCATTER ? (uint64_t)g->rank * w->chunk : 0;

		if (!root)
			copy(w, past(w, c->dst, at),
			     past(w, data_of(g, w, c->peer, g->round), offset),
			     part(w, c->count, k));
	} else if (c->kind != TESS_GATHER || root) {
		for (int32_t r = 0; r < g->nranks; r++)
			if (r != g->rank)
				copy(w, past(w, c->dst, kind_begin(w, c->recv_counts, r) + at),
				     past(w, data_of(g, w, r, g->round),
				          mine ? (uint64_t)g->rank * w->chunk : 0),
				     part(w, kind_block(w, c->recv_counts, r), k));
	}
}

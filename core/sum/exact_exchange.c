/* exact_exchange.c - exact sums by messages: nodes, or slices of them, go to the rank that adds. */
#include "core/sum/exact_add.h"
#include "core/sum/exact_work.h"
#include "core/world/group.h"

#include <string.h>
#include <tessera/split.h>

enum {
	/* bytes of a large sum moved at a time, in total and per rank: they stay in cache */
	PIECE_BYTES = 1 << 20,
	BYTES_PER_RANK = 512 << 10,
	CACHELINE_FLOATS = 16 /* elements of a cache line */
};

static bool are_even(const uint64_t *list, int32_t n)
{
	for (int32_t r = 1; r < n; r++)
		if (list[r] != list[0])
			return false;
	return true;
}

static tess_status move_nodes(struct tess_sum_work *w, int32_t kind, const float *src,
                              bool send_list, bool recv_list)
{
	int32_t me = w->g->rank;
	struct tess_coll c = {
		.size = sizeof c,
		.kind = kind,
		.dtype = TESS_F32,
		.src = src,
		.dst = w->received,
		.count = kind == TESS_ALL_GATHER ? w->recv_counts[me] : w->send_counts[me],
		.send_counts = send_list ? w->send_counts : NULL,
		.recv_counts = recv_list ? w->recv_counts : NULL,
		.where = w->s.where,
	};

	return tess_sum_work_call(w, &c);
}

void tess_sum_add_received(struct tess_sum_work *w, uint64_t count, float *out)
{
	const float *from = w->received;
	struct tess_sum s = w->s;

	s.count = count;
	for (int32_t r = 0; r < w->g->size; r++) {
		w->part[r] = from;
		from += w->recv_counts[r];
	}
	tess_sum_finish(&s, w->g->size, w->part, w->scratch, out);
}

tess_status tess_sum_gather_nodes(struct tess_sum_work *w)
{
	uint64_t scratch = tess_sum_scratch_size(w->s.count);
	tess_status st;

	for (int32_t r = 0; r < w->g->size; r++)
		w->recv_counts[r] = (uint64_t)w->held[r] * w->s.count;
	st = tess_sum_work_reserve(w, scratch + tess_sum_counts(w->recv_counts, w->g->size));
	if (st)
		return st;
	w->received = w->scratch + scratch;
	return move_nodes(w, TESS_ALL_GATHER, w->nodes, false,
	                  !are_even(w->recv_counts, w->g->size));
}

/* Packs slices of all nodes, rank by rank, for all_to_all. A single node needs no packing. */
static const float *pack_slices(const struct tess_sum_work *w, float *to)
{
	int64_t held = w->held[w->g->rank];
	uint64_t at = w->at;
	float *begin = to;

	if (held == 1)
		return w->nodes + at;
	for (int32_t r = 0; r < w->g->size; r++) {
		for (int64_t i = 0; i < held; i++) {
			memcpy(to, w->nodes + (uint64_t)i * w->s.count + at,
			       w->slice[r] * sizeof *to);
			to += w->slice[r];
		}
		at += w->slice[r];
	}
	return begin;
}

tess_status tess_sum_exchange_nodes(struct tess_sum_work *w)
{
	int32_t me = w->g->rank, n = w->g->size;
	uint64_t scratch = tess_sum_scratch_size(w->slice[me]), received;
	bool lists = !are_even(w->slice, n);
	tess_status st;

	for (int32_t r = 0; r < n; r++) {
		w->send_counts[r] = (uint64_t)w->held[me] * w->slice[r];
		w->recv_counts[r] = (uint64_t)w->held[r] * w->slice[me];
		lists |= w->held[r] != w->held[0];
	}
	received = tess_sum_counts(w->recv_counts, n);
	st = tess_sum_work_reserve(
		w, scratch + received + (w->held[me] > 1 ? tess_sum_counts(w->send_counts, n) : 0));
	if (st)
		return st;
	w->received = w->scratch + scratch;
	return move_nodes(w, TESS_ALL_TO_ALL, pack_slices(w, w->received + received), lists, lists);
}

uint64_t tess_sum_compute_slice(uint64_t count, int32_t nranks, int32_t r)
{
	int64_t lines = tess_up((int64_t)count, CACHELINE_FLOATS);
	uint64_t lo = (uint64_t)tess_edge(lines, nranks, r) * CACHELINE_FLOATS,
		 hi = (uint64_t)tess_edge(lines, nranks, r + 1) * CACHELINE_FLOATS;

	return (hi < count ? hi : count) - (lo < count ? lo : count);
}

/*
 * Describes the call that sends the finished slices of a piece to all ranks. counts: [nranks],
 * valid until the call ends.
 */
static struct tess_coll describe_slices(const struct tess_sum_work *w, uint64_t *counts)
{
	int32_t n = w->g->size;

	memcpy(counts, w->slice, (size_t)n * sizeof *counts);
	return (struct tess_coll){
		.size = sizeof(struct tess_coll),
		.kind = TESS_ALL_GATHER,
		.dtype = TESS_F32,
		.src = w->out + w->at,
		.dst = w->out + w->at,
		.count = w->slice[w->g->rank],
		.recv_counts = are_even(w->slice, n) ? NULL : counts,
		.where = w->s.where,
	};
}

/* Returns this rank's slice of the full sum, or of a piece. */
static float *find_own_slice(const struct tess_sum_work *w)
{
	return w->s.share ? w->out : w->out + w->at + tess_sum_counts(w->slice, w->g->rank);
}

tess_status tess_sum_add_exchanged(struct tess_sum_work *w)
{
	struct tess_coll c;

	tess_sum_add_received(w, w->slice[w->g->rank], find_own_slice(w));
	if (w->s.share)
		return TESS_OK;
	c = describe_slices(w, w->shared[0]);
	return tess_sum_work_call(w, &c);
}

/* Sends each piece while the next one is received and added. */
static tess_status sum_in_pieces(struct tess_sum_work *w)
{
	int32_t n = w->g->size, me = w->g->rank, i = 0;
	uint64_t step = (n * BYTES_PER_RANK > PIECE_BYTES ? n * BYTES_PER_RANK : PIECE_BYTES) /
	                sizeof *w->out,
		 m;
	struct tess_work *before = NULL, *work = NULL;
	tess_status st = TESS_OK;
	struct tess_coll c;

	for (w->at = 0; w->at < w->s.count && !st; w->at += m, i ^= 1) {
		uint64_t left = w->s.count - w->at;

		m = left < 2 * step ? left : step;
		for (int32_t r = 0; r < n; r++)
			w->slice[r] = tess_sum_compute_slice(m, n, r);
		st = tess_sum_exchange_nodes(w);
		if (!st)
			tess_sum_add_received(w, w->slice[me], find_own_slice(w));
		if (!st && before)
			st = tess_work_wait(before, 0);
		tess_work_release(before);
		before = NULL;
		c = describe_slices(w, w->shared[i]);
		if (!st)
			st = tess_group_start(w->g, &c, &work);
		if (!st)
			before = work;
	}
	if (!st)
		st = tess_work_wait(before, 0);
	tess_work_release(before);
	return st;
}

tess_status tess_sum_exchange_and_add(struct tess_sum_work *w)
{
	tess_status st;

	w->started = false;
	if (!w->s.share)
		return sum_in_pieces(w);
	st = tess_sum_exchange_nodes(w);
	return st ? st : tess_sum_add_exchanged(w);
}

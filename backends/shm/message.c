/*
 * message.c - send and recv between two ranks, in order, in pieces. Two pieces are in flight, so
 * that one is written while the other is read. `sent` and `taken` count them; each is written by
 * one rank.
 */
#include "message.h"

#include <string.h>

#include "call_info.h"
#include "segment.h"

static uint64_t piece_length(const struct work *w)
{
	uint64_t left = w->c.count - w->moved, most = PIECE / w->width;

	return left < most ? left : most;
}

static void write_piece(void *dst, const void *src, size_t bytes)
{
	if (bytes >= TESS_STREAM_MIN)
		tess_stream(dst, src, bytes);
	else if (bytes)
		memcpy(dst, src, bytes);
}

static void count_piece(struct group *g, struct queue *q, struct work *w, uint64_t n)
{
	w->moved += n;
	q->pieces++;
	g->events++;
	g->unnotified = true;
	if (w->moved == w->c.count) {
		w->done = true;
		q->head = w->next;
		g->messages--;
	}
}

static void send_pieces(struct group *g, int32_t peer)
{
	struct queue *q = &g->out[peer];
	struct pair *pair = segment_pair(g, g->rank, peer);

	/* Acquire: the receiver has read the piece that is overwritten. */
	while (q->head &&
	       q->pieces - atomic_load_explicit(&pair->taken, memory_order_acquire) < 2) {
		struct work *w = q->head;
		uint64_t n = piece_length(w);
		struct piece *p = &pair->piece[q->pieces & 1];

		*p = (struct piece){ w->c.fingerprint, w->c.count * w->width, n };
		if (!w->moved)
			call_info_write(&w->c, &pair->call[q->pieces & 1]);
		write_piece(pair->data[q->pieces & 1], (const char *)w->c.src + w->moved * w->width,
		            n * w->width);
		tess_stream_end();
		/* Release: a rank that reads the count reads the piece. */
		atomic_store_explicit(&pair->sent, q->pieces + 1, memory_order_release);
		count_piece(g, q, w, n);
	}
}

static tess_status receive_pieces(struct group *g, int32_t peer)
{
	struct queue *q = &g->in[peer];
	struct pair *pair = segment_pair(g, peer, g->rank);

	while (q->head && atomic_load_explicit(&pair->sent, memory_order_acquire) > q->pieces) {
		struct work *w = q->head;
		uint64_t n = piece_length(w);
		const struct piece *p = &pair->piece[q->pieces & 1];

		if (p->fingerprint != w->c.fingerprint || p->total != w->c.count * w->width ||
		    p->len != n)
			return call_info_mismatch(g, w, peer, &pair->call[q->pieces & 1]);
		if (n)
			memcpy((char *)w->c.dst + w->moved * w->width, pair->data[q->pieces & 1],
			       n * w->width);
		atomic_store_explicit(&pair->taken, q->pieces + 1, memory_order_release);
		count_piece(g, q, w, n);
	}
	return TESS_OK;
}

tess_status message_progress_all(struct group *g)
{
	tess_status st = TESS_OK;

	for (int32_t r = 0; r < g->nranks && !st; r++) {
		if (g->out[r].head)
			send_pieces(g, r);
		if (g->in[r].head)
			st = receive_pieces(g, r);
	}
	return st;
}

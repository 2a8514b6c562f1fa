/*
 * tessera/coll.h - helpers for a struct tess_coll: its blocks and buffers, its check, its text.
 *
 * Only inline functions, so that every backend and the core agree.
 *
 * Example:
 *     static uint64_t count_sent_bytes(const struct tess_coll *c, int32_t rank, int32_t nranks)
 *     {
 *             uint64_t src, dst;
 *
 *             tess_coll_extents(c, rank, nranks, &src, &dst);
 *             return src * tess_width(c->dtype);
 *     }
 */
#ifndef TESSERA_COLL_H
#define TESSERA_COLL_H

#include <stdio.h>
#include <tessera/names.h>
#include <tessera/reduce.h>

/* Returns 1 for send and recv, which involve this rank and `peer` only. */
static inline int tess_kind_is_p2p(int32_t kind)
{
	return kind == TESS_SEND || kind == TESS_RECV;
}

/* Returns 1 for floating-point element types. */
static inline int tess_dtype_is_float(int32_t dtype)
{
	return dtype >= TESS_F32 && dtype <= TESS_F16;
}

/* ---- blocks ---- */

/*
 * Returns the number of elements of block r. list: send_counts or recv_counts of the call; NULL:
 * `count` each.
 */
static inline uint64_t tess_block_size(const uint64_t *list, uint64_t count, int32_t r)
{
	return list ? list[r] : count;
}

/*
 * Returns the number of elements before block r. With r = number of ranks, that is all elements.
 */
static inline uint64_t tess_block_begin(const uint64_t *list, uint64_t count, int32_t r)
{
	uint64_t at = 0;

	if (!list)
		return count * (uint64_t)r;
	for (int32_t i = 0; i < r; i++)
		at += list[i];
	return at;
}

/*
 * Computes the numbers of elements that rank `rank` of `nranks` reads (*src) and writes (*dst).
 */
static inline void tess_coll_extents(const struct tess_coll *c, int32_t rank, int32_t nranks,
                                     uint64_t *src, uint64_t *dst)
{
	int root = rank == c->root;

	*src = *dst = c->kind == TESS_BARRIER ? 0 : c->count;
	switch (c->kind) {
	case TESS_BROADCAST:
		*src = root ? c->count : 0;
		break;
	case TESS_REDUCE:
		*dst = root ? c->count : 0;
		break;
	case TESS_GATHER:
		*dst = root ? tess_block_begin(c->recv_counts, c->count, nranks) : 0;
		break;
	case TESS_ALL_GATHER:
		*dst = tess_block_begin(c->recv_counts, c->count, nranks);
		break;
	case TESS_SCATTER:
		*src = root ? tess_block_begin(c->send_counts, c->count, nranks) : 0;
		break;
	case TESS_REDUCE_SCATTER:
		*src = tess_block_begin(c->send_counts, c->count, nranks);
		break;
	case TESS_ALL_TO_ALL:
		*src = tess_block_begin(c->send_counts, c->count, nranks);
		*dst = tess_block_begin(c->recv_counts, c->count, nranks);
		break;
	case TESS_SEND:
		*dst = 0;
		break;
	case TESS_RECV:
		*src = 0;
		break;
	}
}

/* Returns the number of bytes that the call moves: of its vector, or of all its blocks. */
static inline uint64_t tess_coll_bytes(const struct tess_coll *c, int32_t nranks)
{
	uint64_t elements = c->count;

	if (c->kind == TESS_BARRIER)
		return 0;
	if (c->kind == TESS_GATHER || c->kind == TESS_ALL_GATHER)
		elements = tess_block_begin(c->recv_counts, c->count, nranks);
	else if (c->kind >= TESS_SCATTER && c->kind <= TESS_ALL_TO_ALL)
		elements = tess_block_begin(c->send_counts, c->count, nranks);
	return elements * tess_width(c->dtype);
}

/*
 * Returns the bytes that rank `rank` of `nranks` sends to others, if blocks go straight to their
 * ranks; of a reduction, a rank adds one block, and sends the result to all that get it.
 */
static inline uint64_t tess_coll_sent_bytes(const struct tess_coll *c, int32_t rank, int32_t nranks)
{
	uint64_t others = (uint64_t)nranks - 1, width = tess_width(c->dtype);
	int root = tess_kind_rooted(c->kind) && c->root == rank;

	switch (c->kind) {
	case TESS_BROADCAST:
		return root ? width * c->count * others : 0;
	case TESS_GATHER:
	case TESS_REDUCE:
		return root ? 0 : width * c->count;
	case TESS_ALL_REDUCE:
		return 2 * width * c->count * others / (uint64_t)nranks;
	case TESS_ALL_GATHER:
		return width * c->count * others;
	case TESS_SCATTER:
	case TESS_REDUCE_SCATTER:
	case TESS_ALL_TO_ALL:
		if (c->kind == TESS_SCATTER && !root)
			return 0;
		return width * (tess_block_begin(c->send_counts, c->count, nranks) -
		                (c->send_counts ? c->send_counts[rank] : c->count));
	case TESS_SEND:
		return width * c->count;
	default:
		return 0;
	}
}

/* ---- valid calls ---- */

/* Returns 1 if `op` is defined for elements of `dtype`; operations on bits are for integers. */
static inline int tess_op_is_valid(int32_t op, int32_t dtype)
{
	return op >= TESS_SUM && op <= TESS_BXOR && (op < TESS_BAND || !tess_dtype_is_float(dtype));
}

/*
 * Checks kind, memory, dtype and operation of a call. Returns NULL if they are valid; else `text`,
 * with a part of a message that names the fault.
 */
static inline const char *tess_coll_find_fault(const struct tess_coll *c, char *text, size_t bytes)
{
	if (c->kind < TESS_BARRIER || c->kind > TESS_RECV)
		snprintf(text, bytes, "unknown kind %d", (int)c->kind);
	else if (c->kind == TESS_BARRIER)
		return NULL;
	else if (c->mem != TESS_HOST)
		snprintf(text, bytes, "memory of kind %d; only host memory is moved", (int)c->mem);
	else if (!tess_width(c->dtype))
		snprintf(text, bytes, "unknown dtype %d", (int)c->dtype);
	else if (tess_kind_reduces(c->kind) && (c->op < TESS_SUM || c->op > TESS_BXOR))
		snprintf(text, bytes, "unknown op %d", (int)c->op);
	else if (tess_kind_reduces(c->kind) && !tess_op_is_valid(c->op, c->dtype))
		snprintf(text, bytes, "%s of %s; operations on bits are for integers",
		         tess_reduce_op_name(c->op), tess_dtype_name(c->dtype));
	else
		return NULL;
	return text;
}

/* ---- text ---- */

/* Formats operation and peer or root: " (sum) to rank 2". peer: a world rank. */
static inline void tess_coll_format_peer(int32_t kind, int32_t op, int32_t peer, char *text,
                                         size_t bytes)
{
	const char *to =
		kind == TESS_REDUCE || kind == TESS_GATHER || kind == TESS_SEND ? "to" : "from";
	int reduces = tess_kind_reduces(kind);
	char rank[32] = "";

	if (tess_kind_rooted(kind) || tess_kind_is_p2p(kind))
		snprintf(rank, sizeof rank, " %s rank %d", to, (int)peer);
	snprintf(text, bytes, "%s%s%s%s", reduces ? " (" : "",
	         reduces ? tess_reduce_op_name(op) : "", reduces ? ")" : "", rank);
}

/*
 * Formats a call: "reduce of 4 f32 (sum) to rank 2 at layers.3". world[r]: world rank of rank r.
 */
static inline void tess_coll_format(const struct tess_coll *c, const int32_t *world, char *text,
                                    size_t bytes)
{
	int barrier = c->kind == TESS_BARRIER, named = c->where && *c->where;
	int peers = tess_kind_rooted(c->kind) || tess_kind_is_p2p(c->kind);
	char what[64] = "", peer[64] = "";

	if (!barrier) {
		snprintf(what, sizeof what, " of %llu %s", (unsigned long long)c->count,
		         tess_dtype_name(c->dtype));
		tess_coll_format_peer(c->kind, c->op, peers ? world[c->peer] : 0, peer,
		                      sizeof peer);
	}
	snprintf(text, bytes, "%s%s%s%s%s", tess_kind_name(c->kind), what, peer,
	         named ? " at " : "", named ? c->where : "");
}

#endif

#include "data.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { GUARD = 64, RANKS = 16 };
static const unsigned char guard_byte = 0xa5, unset_byte = 0x5a;

/* What rank `from` has for rank `to`, element i: small enough for all dtypes and operations. */
static int64_t compute_value(const struct data_case *c, int32_t from, int32_t to, uint64_t i)
{
	int64_t v = (int64_t)((uint64_t)from * 7 + (uint64_t)to * 5 + i * 3 + i / 11 +
	                      (uint64_t)c->kind) %
	            6;

	if (tess_kind_reduces(c->kind) && c->op == TESS_PROD)
		return 1 + v % 2;
	return c->dtype == TESS_U8 ? v : v - 2;
}

static void store_element(int32_t dtype, void *base, uint64_t i, int64_t v)
{
	switch (dtype) {
	case TESS_F32:
		((float *)base)[i] = (float)v;
		break;
	case TESS_F64:
		((double *)base)[i] = (double)v;
		break;
	case TESS_BF16:
		((uint16_t *)base)[i] = tess_bf16_round((float)v);
		break;
	case TESS_F16:
		((uint16_t *)base)[i] = tess_f16_round((float)v);
		break;
	case TESS_I64:
		((int64_t *)base)[i] = v;
		break;
	case TESS_I32:
		((int32_t *)base)[i] = (int32_t)v;
		break;
	case TESS_I8:
		((int8_t *)base)[i] = (int8_t)v;
		break;
	case TESS_U8:
		((uint8_t *)base)[i] = (uint8_t)v;
		break;
	}
}

static int64_t apply_op(int32_t op, int64_t a, int64_t b)
{
	switch (op) {
	case TESS_SUM:
		return a + b;
	case TESS_PROD:
		return a * b;
	case TESS_MIN:
		return a < b ? a : b;
	case TESS_MAX:
		return a > b ? a : b;
	case TESS_BAND:
		return a & b;
	case TESS_BOR:
		return a | b;
	default:
		return a ^ b;
	}
}

/*
 * Elements that rank a gives to rank b, or that belong to block b where that is the same for all a.
 */
static uint64_t compute_block_count(const struct data_case *c, int32_t a, int32_t b)
{
	if (!c->uneven)
		return c->count;
	if (c->kind == TESS_ALL_TO_ALL)
		return c->count + (uint64_t)(c->in_place ? a + b : a * 2 + b * 3) % 4;
	return c->count + (uint64_t)(b * 3 + 1) % 4 - (b == 1 && c->count ? 1 : 0);
}

struct buffers {
	char *src, *dst, *expected, *copy;
	uint64_t nsrc, ndst; /* bytes */
};

struct data_pending {
	struct data_case c;
	struct buffers b;
	struct tess_coll coll;
	struct tess_work *work;
	uint64_t send_counts[RANKS], recv_counts[RANKS];
	int32_t rank, n;
};

static _Thread_local struct {
	char *begin, *at, *end;
} buffer_pool; /* of buffers, as far as there is room */

void data_use_memory(void *memory, uint64_t bytes)
{
	buffer_pool.begin = buffer_pool.at = memory;
	buffer_pool.end = buffer_pool.begin + bytes;
}

static char *allocate_buffer(uint64_t bytes)
{
	char *at = buffer_pool.at;

	bytes = (bytes + 63) / 64 * 64;
	if (!at || (uint64_t)(buffer_pool.end - at) < bytes)
		return malloc(bytes);
	buffer_pool.at += bytes;
	return at;
}

static void free_buffer(char *at)
{
	uintptr_t begin = (uintptr_t)buffer_pool.begin, end = (uintptr_t)buffer_pool.end;

	if ((uintptr_t)at < begin || (uintptr_t)at >= end)
		free(at);
}

static char *make_guarded_buffer(uint64_t bytes)
{
	char *at = allocate_buffer(bytes + 2 * GUARD);

	memset(at, guard_byte, bytes + 2 * GUARD);
	memset(at + GUARD, unset_byte, bytes);
	return at + GUARD;
}

static bool is_guard_intact(const char *at, uint64_t bytes)
{
	for (int i = 1; i <= GUARD; i++)
		if ((unsigned char)at[-i] != guard_byte ||
		    (unsigned char)at[bytes + (uint64_t)i - 1] != guard_byte)
			return false;
	return true;
}

static uint64_t sum_block_counts(const uint64_t *list, int32_t r)
{
	uint64_t at = 0;

	for (int32_t i = 0; i < r; i++)
		at += list[i];
	return at;
}

/* Block `to` of this rank's src, at element `at` of `base`. */
static void fill_source_block(struct data_pending *p, char *base, uint64_t at, int32_t to,
                              uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		store_element(p->c.dtype, base, at + i, compute_value(&p->c, p->rank, to, i));
}

/* What `from` gave to `to`, or all ranks together where the kind reduces. */
static void fill_expected_block(struct data_pending *p, uint64_t at, int32_t from, int32_t to,
                                uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		int64_t v = compute_value(&p->c, from < 0 ? 0 : from, to, i);

		for (int32_t r = 1; from < 0 && r < p->n; r++)
			v = apply_op(p->c.op, v, compute_value(&p->c, r, to, i));
		store_element(p->c.dtype, p->b.expected, at + i, v);
	}
}

static bool has_source_blocks(int32_t kind)
{
	return kind == TESS_SCATTER || kind == TESS_REDUCE_SCATTER || kind == TESS_ALL_TO_ALL;
}

static bool has_result_blocks(int32_t kind)
{
	return kind == TESS_GATHER || kind == TESS_ALL_GATHER || kind == TESS_ALL_TO_ALL;
}

static bool rank_reads_source(const struct data_pending *p)
{
	return (p->c.kind != TESS_BROADCAST && p->c.kind != TESS_SCATTER) || p->rank == p->c.root;
}

static bool rank_gets_result(const struct data_pending *p)
{
	return (p->c.kind != TESS_REDUCE && p->c.kind != TESS_GATHER) || p->rank == p->c.root;
}

static void prepare_case(struct data_pending *p)
{
	const struct data_case *c = &p->c;
	size_t width = tess_width(c->dtype);
	bool in = has_source_blocks(c->kind), out = has_result_blocks(c->kind),
	     reduces = tess_kind_reduces(c->kind);
	uint64_t mine = compute_block_count(c, p->rank, p->rank);
	bool both = c->in_place && rank_reads_source(p) && rank_gets_result(p);
	uint64_t from, to;

	if (!in && !out)
		mine = c->count; /* no blocks */
	for (int32_t r = 0; r < p->n; r++) {
		p->send_counts[r] = compute_block_count(c, p->rank, r);
		p->recv_counts[r] = c->kind == TESS_ALL_TO_ALL ? compute_block_count(c, r, p->rank)
		                                               : compute_block_count(c, r, r);
	}
	p->b.nsrc = (in ? sum_block_counts(p->send_counts, p->n) : mine) * width;
	p->b.ndst = (out ? sum_block_counts(p->recv_counts, p->n) : mine) * width;
	if (both && p->b.ndst < p->b.nsrc)
		p->b.ndst = p->b.nsrc;
	p->b.dst = make_guarded_buffer(p->b.ndst);
	p->b.expected = make_guarded_buffer(p->b.ndst);
	p->b.src = both ? p->b.dst : make_guarded_buffer(p->b.nsrc);
	/* in place, a single block lies where it belongs among all */
	from = both && out && !in ? sum_block_counts(p->recv_counts, p->rank) : 0;
	to = both && in && !out ? sum_block_counts(p->send_counts, p->rank) : 0;
	if (rank_reads_source(p) && in)
		for (int32_t r = 0; r < p->n; r++)
			fill_source_block(p, p->b.src, sum_block_counts(p->send_counts, r), r,
			                  p->send_counts[r]);
	else if (rank_reads_source(p))
		fill_source_block(p, p->b.src, from, 0, mine);
	memcpy(p->b.expected, p->b.dst, p->b.ndst);
	if (rank_gets_result(p) && out)
		for (int32_t r = 0; r < p->n; r++)
			fill_expected_block(p, sum_block_counts(p->recv_counts, r), r,
			                    in ? p->rank : 0, p->recv_counts[r]);
	else if (rank_gets_result(p))
		fill_expected_block(p, to, reduces ? -1 : c->root, in ? p->rank : 0, mine);
	p->b.copy = make_guarded_buffer(p->b.nsrc);
	if (!both)
		memcpy(p->b.copy, p->b.src, p->b.nsrc);
	p->coll = (struct tess_coll){
		.size = sizeof p->coll,
		.kind = c->kind,
		.dtype = c->dtype,
		.op = c->op,
		.peer = c->root,
		.src = rank_reads_source(p) ? p->b.src : NULL,
		.dst = rank_gets_result(p) ? p->b.dst : NULL,
		.count = mine,
		.send_counts = c->uneven && in ? p->send_counts : NULL,
		.recv_counts = c->uneven && out ? p->recv_counts : NULL,
		.where = "tests:data",
	};
}

static tess_status check_case_result(struct data_pending *p)
{
	const struct data_case *c = &p->c;
	const char *what = NULL;

	if (memcmp(p->b.dst, p->b.expected, p->b.ndst))
		what = "a wrong element";
	else if (!is_guard_intact(p->b.dst, p->b.ndst) ||
	         !is_guard_intact(p->b.src, p->b.nsrc > p->b.ndst || p->b.src != p->b.dst
	                                            ? p->b.nsrc
	                                            : p->b.ndst))
		what = "a write beside the buffer";
	else if (p->b.src != p->b.dst && memcmp(p->b.src, p->b.copy, p->b.nsrc))
		what = "a changed source";
	if (!what)
		return TESS_OK;
	return tess_fail(TESS_EBUG, "%s: %s of %" PRIu64 " %s, %s, root %d%s%s, rank %d of %d",
	                 what, tess_kind_name(c->kind), c->count, tess_dtype_name(c->dtype),
	                 tess_op_name(c->op), c->root, c->uneven ? ", uneven" : "",
	                 c->in_place ? ", in place" : "", p->rank, p->n);
}

tess_status data_start(struct tess_group *g, const struct data_case *c, struct data_pending **out)
{
	struct data_pending *p = calloc(1, sizeof *p);
	tess_status st;

	p->c = *c;
	p->rank = tess_group_rank(g);
	p->n = tess_group_size(g);
	prepare_case(p);
	st = tess_group_start(g, &p->coll, &p->work);
	if (!st)
		*out = p;
	return st;
}

tess_status data_finish(struct data_pending *p)
{
	tess_status st = tess_work_wait(p->work, 0);

	tess_work_release(p->work);
	if (st)
		return st; /* the buffers are the group's now */
	st = check_case_result(p);
	if (p->b.src != p->b.dst)
		free_buffer(p->b.src - GUARD);
	free_buffer(p->b.dst - GUARD);
	free_buffer(p->b.expected - GUARD);
	free_buffer(p->b.copy - GUARD);
	free(p);
	return st;
}

tess_status data_run(struct tess_group *g, const struct data_case *c)
{
	struct data_pending *p;
	tess_status st;

	buffer_pool.at = buffer_pool.begin;
	st = data_start(g, c, &p);
	return st ? st : data_finish(p);
}

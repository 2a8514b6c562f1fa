/* call.c - one call: its buffers, its execution, and the check of its result. */
#include "bench.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/sum/shared_region.h"
#include "tools/conform/data.h"

#include <string.h>
#include <tessera/coll.h>

static const int64_t units[1] = { 32 }; /* units of an exact sum, as in most dimensions */

const char *bench_kind_name(int32_t kind)
{
	return kind == BENCH_SEND_RECV ? "send_recv" : tess_kind_name(kind);
}

uint64_t bench_get_vector_bytes(const struct bench_options *a, int32_t n, uint64_t count)
{
	return tess_coll_bytes(
		&(struct tess_coll){ .kind = a->kind, .dtype = a->dtype, .count = count }, n);
}

uint64_t bench_count_elements(const struct bench_options *a, int32_t n, uint64_t bytes)
{
	return a->kind == TESS_BARRIER ? 0 : bytes / bench_get_vector_bytes(a, n, 1);
}

static int64_t count_vectors(int32_t series, int32_t n, int32_t rank)
{
	const struct tess_sum s = { .ntree = 1, .n = units };

	return series == BENCH_EXACT ? tess_sum_nodes(&s, n, rank) : 1;
}

uint64_t bench_get_src_bytes(const struct bench_options *a, int32_t n, int32_t rank, int32_t series,
                             uint64_t count)
{
	uint64_t elements = conform_has_src_blocks(a->kind) ? count * (uint64_t)n : count;

	return elements * (uint64_t)count_vectors(series, n, rank) * tess_width(a->dtype);
}

uint64_t bench_get_dst_bytes(const struct bench_options *a, int32_t n, uint64_t count)
{
	return (conform_has_dst_blocks(a->kind) ? count * (uint64_t)n : count) *
	       tess_width(a->dtype);
}

/* ---- making the call ------------------------------------------------------------------------- */

void bench_call_set_count(struct bench_call *c, uint64_t count)
{
	const struct bench_options *a = c->options;

	c->count = count;
	for (int32_t i = 0; i < c->n; i++)
		c->share[i] = count;
	c->coll = (struct tess_coll){
		.size = sizeof c->coll,
		.kind = a->kind,
		.dtype = a->kind == TESS_BARRIER ? 0 : a->dtype,
		.op = tess_kind_reduces(a->kind) ? a->op : 0,
		.root = tess_kind_rooted(a->kind) ? a->root : 0,
		.src = c->src,
		.dst = c->dst,
		.count = count,
		.where = "bench",
	};
	c->sum = (struct tess_sum){ .ntree = 1,
		                    .n = units,
		                    .count = bench_get_vector_bytes(a, c->n, count) / c->width,
		                    .share = a->kind == TESS_REDUCE_SCATTER ? c->share : NULL,
		                    .where = "bench" };
}

/* Copies the part of every other rank's vector that this rank needs to its own memory. */
static void copy_peer_parts(const struct bench_call *c)
{
	const struct tess_shared_region *region =
		tess_group_find_region(c->group, c->src, c->capacity);
	uint64_t each = bench_get_vector_bytes(c->options, c->n, c->count) / (uint64_t)c->n;

	for (int32_t i = 1; i < c->n; i++) {
		const char *peer = region->peer[(c->rank + i) % c->n];

		memcpy(c->dst + (uint64_t)i * each, peer + (uint64_t)c->rank * each, each);
	}
}

static tess_status send_and_receive(struct bench_call *c)
{
	struct tess_coll send = c->coll, recv = c->coll;
	struct tess_work *out = NULL, *in = NULL;
	tess_status st;

	send.kind = TESS_SEND;
	send.peer = (c->rank + 1) % c->n;
	send.dst = NULL;
	recv.kind = TESS_RECV;
	recv.peer = (c->rank + c->n - 1) % c->n;
	recv.src = NULL;
	st = tess_group_start(c->group, &recv, &in);
	if (!st)
		st = tess_group_start(c->group, &send, &out);
	if (!st)
		st = tess_work_wait(out, 0);
	if (!st)
		st = tess_work_wait(in, 0);
	tess_work_release(out);
	tess_work_release(in);
	return st;
}

tess_status bench_call_run(struct bench_call *c)
{
	switch (c->series) {
	case BENCH_IN_OUT:
		copy_peer_parts(c);
		/* fallthrough */
	case BENCH_IN:
		copy_peer_parts(c);
		return TESS_OK;
	case BENCH_EXACT:
		return tess_group_sum(c->group, &c->sum, (const float *)(const void *)c->src,
		                      (float *)(void *)c->dst);
	default:
		return c->options->kind == BENCH_SEND_RECV ? send_and_receive(c)
		                                           : tess_group_run(c->group, &c->coll);
	}
}

/* ---- checking the result --------------------------------------------------------------------- */

enum { CHUNK = 512 };

/* Returns how many vectors the ranks before `rank` contribute. */
static int32_t count_vectors_before(const struct bench_call *c, int32_t rank)
{
	int64_t n = 0;

	for (int32_t r = 0; r < rank; r++)
		n += count_vectors(c->series, c->n, r);
	return (int32_t)n;
}

/* Fills src with the numbers of a group in which each rank has one vector. */
static void write_elements(const struct bench_call *c, int32_t from, int32_t to, uint64_t first,
                           uint64_t count, void *out)
{
	const struct conform_case numbers = { .kind = c->coll.kind,
		                              .dtype = c->coll.dtype,
		                              .op = c->coll.op };

	conform_data_write(&numbers, count_vectors_before(c, c->n), from, to, first, count, out);
}

static void fill_src(const struct bench_call *c)
{
	int32_t kind = c->coll.kind, from = count_vectors_before(c, c->rank);
	bool in = conform_has_src_blocks(kind);
	uint64_t bytes = c->count * c->width;
	/* in place a single block is at its own position among all */
	bool moved = c->src == c->dst &&
	             (kind == TESS_ALL_GATHER || (kind == TESS_GATHER && c->rank == c->coll.root));
	char *at = c->src + (moved ? (uint64_t)c->rank * bytes : 0);

	for (int64_t v = 0; v < count_vectors(c->series, c->n, c->rank); v++, from++)
		for (int32_t to = 0; to < (in ? c->n : 1); to++, at += bytes)
			write_elements(c, from, in ? to : -1, 0, c->count, at);
}

static int64_t count_differences(const char *a, const char *b, uint64_t n, size_t width)
{
	int64_t wrong = 0;

	if (!memcmp(a, b, n * width))
		return 0;
	for (uint64_t i = 0; i < n; i++)
		wrong += memcmp(a + i * width, b + i * width, width) != 0;
	return wrong;
}

/* Counts the wrong elements of block `b` of dst. */
static int64_t check_block(const struct bench_call *c, int32_t b)
{
	int32_t kind = c->coll.kind, root = c->coll.root;
	bool in = conform_has_src_blocks(kind), out = conform_has_dst_blocks(kind);
	int32_t from = tess_kind_reduces(kind)   ? -1
	               : out                     ? b
	               : kind == BENCH_SEND_RECV ? (c->rank + c->n - 1) % c->n
	                                         : root;
	/* in place a single block is at its own position; of a scatter only the root has all */
	bool moved = c->src == c->dst && in && (kind != TESS_SCATTER || c->rank == root);
	const char *at = c->dst + (uint64_t)(out ? b : moved ? c->rank : 0) * c->count * c->width;
	uint64_t expected[CHUNK];
	int64_t wrong = 0;

	for (uint64_t i = 0; i < c->count; i += CHUNK) {
		uint64_t m = c->count - i < CHUNK ? c->count - i : CHUNK;

		write_elements(c, from, in ? c->rank : -1, i, m, expected);
		wrong += count_differences(at + i * c->width, (const char *)expected, m, c->width);
	}
	return wrong;
}

tess_status bench_call_check(struct bench_call *c, int64_t *wrong)
{
	int32_t kind = c->coll.kind;
	bool reads = (kind != TESS_REDUCE && kind != TESS_GATHER) || c->rank == c->coll.root;
	int32_t blocks = !reads ? 0 : conform_has_dst_blocks(kind) ? c->n : 1;
	int64_t mine = 0, all;
	tess_status st;

	memset(c->dst, 0xff, bench_get_dst_bytes(c->options, c->n, c->count));
	fill_src(c);
	st = tess_barrier(c->group, "bench");
	if (!st)
		st = bench_call_run(c);
	for (int32_t b = 0; b < blocks && !st; b++)
		mine += check_block(c, b);
	if (!st)
		st = tess_all_reduce(c->group, &mine, &all, 1, TESS_I64, TESS_SUM, "bench");
	if (!st)
		*wrong = all;
	return st;
}

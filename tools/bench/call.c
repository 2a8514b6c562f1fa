/* call.c - one call: its buffers, how it is made, and the check of its result. */
#include "bench.h"

#include "core/base/status.h"
#include "core/group/shared_region.h"
#include "core/rendezvous/call_desc.h"

#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

static const int64_t units[1] = { 32 }; /* of an exact sum, as in most dimensions */

const char *bench_kind_name(int32_t kind)
{
	return kind == BENCH_SEND_RECV ? "send_recv" : tess_kind_name(kind);
}

static bool has_src_blocks(int32_t kind)
{
	return kind == TESS_SCATTER || kind == TESS_REDUCE_SCATTER || kind == TESS_ALL_TO_ALL;
}

static bool has_dst_blocks(int32_t kind)
{
	return kind == TESS_GATHER || kind == TESS_ALL_GATHER || kind == TESS_ALL_TO_ALL;
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
	uint64_t elements = has_src_blocks(a->kind) ? count * (uint64_t)n : count;

	return elements * (uint64_t)count_vectors(series, n, rank) * tess_width(a->dtype);
}

uint64_t bench_get_dst_bytes(const struct bench_options *a, int32_t n, uint64_t count)
{
	return (has_dst_blocks(a->kind) ? count * (uint64_t)n : count) * tess_width(a->dtype);
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

/* Element i of a vector of `from`. For sums it is 1 or 2: every order gives the same bits. */
static void write_element(const struct bench_options *a, int32_t from, int64_t vector, uint64_t i,
                          char *to)
{
	uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u ^
	             (((uint64_t)from << 8 | (uint64_t)vector) + 1) * 0xc2b2ae3d27d4eb4fu;
	int64_t whole = 1 + (int64_t)(h >> 63);
	double real = (double)whole;
	float single = (float)whole;
	uint16_t half;

	h ^= h >> 32;
	if (!tess_kind_reduces(a->kind)) {
		memcpy(to, &h, tess_width(a->dtype));
		return;
	}
	switch (a->dtype) {
	case TESS_F64:
		memcpy(to, &real, sizeof real);
		break;
	case TESS_F32:
		memcpy(to, &single, sizeof single);
		break;
	case TESS_BF16:
	case TESS_F16:
		half = a->dtype == TESS_BF16 ? tess_bf16_round(single) : tess_f16_round(single);
		memcpy(to, &half, sizeof half);
		break;
	default: /* little-endian: the first bytes of it are the narrower number */
		memcpy(to, &whole, tess_width(a->dtype));
		break;
	}
}

static void write_elements(const struct bench_options *a, int32_t from, int64_t vector,
                           uint64_t begin, uint64_t n, char *to)
{
	size_t width = tess_width(a->dtype);

	for (uint64_t i = 0; i < n; i++)
		write_element(a, from, vector, begin + i, to + i * width);
}

/* Elements [begin, begin + m) that `from` sends, or that all ranks' are reduced to. */
static void compute_expected(const struct bench_call *c, int32_t from, uint64_t begin, uint64_t m,
                             char *scratch, const void **part, char *expected)
{
	uint64_t step = CHUNK * c->width;
	int32_t parts = 0;

	if (!tess_kind_reduces(c->options->kind)) {
		write_elements(c->options, from, 0, begin, m, expected);
		return;
	}
	for (int32_t r = 0; r < c->n; r++)
		for (int64_t v = 0; v < count_vectors(c->series, c->n, r); v++) {
			char *to = scratch + (uint64_t)parts * step;

			write_elements(c->options, r, v, begin, m, to);
			part[parts++] = to;
		}
	tess_reduce(c->options->dtype, c->options->op, part, parts, m, expected);
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

/* The wrong elements of block `b` of dst. */
static int64_t check_block(const struct bench_call *c, uint64_t b, char *scratch, const void **part,
                           char *expected)
{
	const struct bench_options *a = c->options;
	bool in = has_src_blocks(a->kind), out = has_dst_blocks(a->kind),
	     in_place = c->src == c->dst;
	int32_t from = out                    ? (int32_t)b
	               : a->kind == TESS_SEND ? (c->rank + c->n - 1) % c->n
	                                      : a->root;
	uint64_t begin = in ? (uint64_t)c->rank * c->count : 0;
	/* in place a block is at its own position among all */
	uint64_t at = out ? b * c->count : in_place && in ? begin : 0;
	int64_t wrong = 0;

	if (a->kind == TESS_SCATTER && in_place && c->rank != a->root)
		at = 0; /* only the root has all blocks */
	for (uint64_t i = 0; i < c->count; i += CHUNK) {
		uint64_t m = c->count - i < CHUNK ? c->count - i : CHUNK;

		compute_expected(c, from, begin + i, m, scratch, part, expected);
		wrong += count_differences(c->dst + (at + i) * c->width, expected, m, c->width);
	}
	return wrong;
}

static tess_status check_result(const struct bench_call *c, int64_t *wrong)
{
	const struct bench_options *a = c->options;
	bool reads = a->kind != TESS_BARRIER &&
	             ((a->kind != TESS_REDUCE && a->kind != TESS_GATHER) || c->rank == a->root);
	size_t parts = 0, chunk = CHUNK * c->width;
	const void **part;
	char *scratch;

	for (int32_t r = 0; r < c->n; r++)
		parts += (size_t)count_vectors(c->series, c->n, r);
	part = calloc(parts, sizeof *part);
	scratch = malloc((parts + 1) * chunk + 1);
	if (!part || !scratch) {
		free(part);
		free(scratch);
		return tess_fail(TESS_ENOMEM, "no memory to check %zu vectors", parts);
	}
	*wrong = 0;
	for (uint64_t b = 0; reads && b < (has_dst_blocks(a->kind) ? (uint64_t)c->n : 1); b++)
		*wrong += check_block(c, b, scratch, part, scratch + parts * chunk);
	free(part);
	free(scratch);
	return TESS_OK;
}

tess_status bench_call_check(struct bench_call *c, int64_t *wrong)
{
	const struct bench_options *a = c->options;
	uint64_t vector = has_src_blocks(a->kind) ? c->count * (uint64_t)c->n : c->count;
	bool moved = c->src == c->dst &&
	             (a->kind == TESS_ALL_GATHER || (a->kind == TESS_GATHER && c->rank == a->root));
	char *src = c->src + (moved ? (uint64_t)c->rank * vector * c->width : 0);
	int64_t mine, all;
	tess_status st = TESS_OK;

	memset(c->dst, 0xff, bench_get_dst_bytes(a, c->n, c->count));
	for (int64_t v = 0; v < count_vectors(c->series, c->n, c->rank); v++)
		write_elements(a, c->rank, v, 0, vector, src + (uint64_t)v * vector * c->width);
	st = tess_barrier(c->group, "bench");
	if (!st)
		st = bench_call_run(c);
	if (!st)
		st = check_result(c, &mine);
	if (!st)
		st = tess_all_reduce(c->group, &mine, &all, 1, TESS_I64, TESS_SUM, "bench");
	if (!st)
		*wrong = all;
	return st;
}

#include "core/sum/reduction.h"

#include "core/base/status.h"
#include "core/sum/exact.h"
#include "core/world/buffer.h"
#include "core/world/group.h"

#include <string.h>
#include <tessera/coll.h>
#include <tessera/split.h>

/* ---- combining ------------------------------------------------------------------------------- */

struct combiner {
	int32_t dtype, op, nranks;
	const char *const *addend; /* by rank */
	uint64_t at; /* byte of the first element */
	uint32_t n; /* elements, at most TESS_REDUCE_STEP */
};

/* Combines node (depth, i) of the tree over the ranks; returns false if it is empty. */
static bool combine_node(const struct combiner *c, int32_t depth, int64_t i, union tess_acc *acc)
{
	int64_t lo = tess_edge(c->nranks, INT64_C(1) << depth, i);
	int64_t hi = tess_edge(c->nranks, INT64_C(1) << depth, i + 1);
	union tess_acc right;

	if (lo >= hi)
		return false;
	if (hi - lo == 1) {
		tess_acc_load(c->dtype, c->addend[lo] + c->at, c->n, acc);
		return true;
	}
	if (!combine_node(c, depth + 1, 2 * i, acc))
		return combine_node(c, depth + 1, 2 * i + 1, acc);
	if (combine_node(c, depth + 1, 2 * i + 1, &right))
		tess_acc_fold(c->dtype, c->op, acc, &right, c->n);
	return true;
}

/* Combines the first `count` floats of the addends of all ranks. */
static void combine_addends(const struct tess_reduction *r, int32_t nranks, const char **addend,
                            uint64_t count, char *out)
{
	static const union tess_acc zero;
	struct combiner c = { r->dtype, r->op, nranks, addend, 0, 0 };
	uint32_t saved = tess_float_enter();
	size_t width = tess_width(r->dtype);
	union tess_acc acc;

	for (uint64_t k = 0; k < count; k += c.n) {
		c.n = count - k < TESS_REDUCE_STEP ? (uint32_t)(count - k) : TESS_REDUCE_STEP;
		c.at = k * width;
		combine_node(&c, 0, 0, &acc);
		if (r->op == TESS_SUM) /* no sum is -0, not even of one rank */
			tess_acc_fold(r->dtype, TESS_SUM, &acc, &zero, c.n);
		tess_acc_one_nan(r->dtype, &acc, c.n);
		tess_acc_store(r->dtype, &acc, c.n, out + c.at);
	}
	tess_float_leave(saved);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static struct tess_coll make_reduction_call(const struct tess_reduction *r, int32_t kind)
{
	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = kind,
		                   .dtype = r->dtype,
		                   .op = r->op,
		                   .fingerprint = r->fingerprint,
		                   .where = r->where };
}

static tess_status leave_integers(struct tess_group *g, const struct tess_reduction *r,
                                  const void *addend, void *out)
{
	struct tess_coll c =
		make_reduction_call(r, r->share ? TESS_REDUCE_SCATTER : TESS_ALL_REDUCE);

	c.src = addend;
	c.dst = out;
	c.count = r->share ? r->share[g->rank] : r->count;
	c.send_counts = r->share;
	return tess_group_run(g, &c);
}

struct exchange { /* lists by rank, and the memory of received addends, in one block */
	const char **addend;
	uint64_t *slice, *recv_counts;
	char *received;
};

static tess_status open_exchange(const struct tess_group *g, const struct tess_reduction *r,
                                 struct exchange *x)
{
	size_t n = (size_t)g->size, lists = n * (sizeof(char *) + 2 * sizeof(uint64_t));
	uint64_t own = r->share ? r->share[g->rank] : (uint64_t)tess_up((int64_t)r->count, g->size);
	char *memory = tess_world_buffer_new(lists + n * own * tess_width(r->dtype));

	if (!memory)
		return tess_fail(TESS_ENOMEM, "%s: no memory for the addends of %d ranks", r->where,
		                 (int)g->size);
	x->addend = (const char **)(void *)memory;
	x->slice = (uint64_t *)(void *)(x->addend + n);
	x->recv_counts = x->slice + n;
	x->received = (char *)(x->recv_counts + n);
	for (int32_t q = 0; q < g->size; q++)
		x->slice[q] = r->share ? r->share[q]
		                       : (uint64_t)(tess_edge((int64_t)r->count, g->size, q + 1) -
		                                    tess_edge((int64_t)r->count, g->size, q));
	for (int32_t q = 0; q < g->size; q++) {
		x->recv_counts[q] = x->slice[g->rank];
		x->addend[q] = x->received + (uint64_t)q * x->slice[g->rank] * tess_width(r->dtype);
	}
	return TESS_OK;
}

/* Sends each rank its slice of all addends, combines it there, and gathers the results. */
static tess_status exchange_and_combine(struct tess_group *g, const struct tess_reduction *r,
                                        const void *addend, void *out)
{
	struct exchange x = { 0 };
	tess_status st = open_exchange(g, r, &x);
	struct tess_coll c = make_reduction_call(r, TESS_ALL_TO_ALL);
	char *own = out;

	if (st)
		return st;
	c.src = addend;
	c.dst = x.received;
	c.send_counts = x.slice;
	c.recv_counts = x.recv_counts;
	st = tess_group_run(g, &c);
	if (!r->share)
		own += tess_block_begin(x.slice, 0, g->rank) * tess_width(r->dtype);
	if (!st)
		combine_addends(r, g->size, x.addend, x.slice[g->rank], own);
	if (!st && !r->share) {
		c = make_reduction_call(r, TESS_ALL_GATHER);
		c.src = c.dst = out;
		c.count = x.slice[g->rank];
		c.recv_counts = x.slice;
		st = tess_group_run(g, &c);
	}
	tess_world_buffer_free(g->world, (void *)x.addend);
	return st;
}

tess_status tess_group_reduce(struct tess_group *g, const struct tess_reduction *r,
                              const void *addend, void *out)
{
	const int64_t units = g->size;
	const struct tess_sum sum = { .ntree = 1,
		                      .n = &units,
		                      .count = r->count,
		                      .share = r->share,
		                      .fingerprint = r->fingerprint,
		                      .where = r->where };

	if (!r->count)
		return TESS_OK;
	if (r->dtype == TESS_F32 && r->op == TESS_SUM)
		return tess_group_sum(g, &sum, addend, out);
	return tess_dtype_is_float(r->dtype) ? exchange_and_combine(g, r, addend, out)
	                                     : leave_integers(g, r, addend, out);
}

/* ---- identities ------------------------------------------------------------------------------ */

/* Returns the bits of the identity of an operation, in the first bytes. */
static uint64_t find_identity_bits(int32_t dtype, int32_t op)
{
	static const uint64_t one[] = { [TESS_F32] = 0x3f800000, [TESS_F64] = 0x3ff0000000000000,
		                        [TESS_BF16] = 0x3f80,    [TESS_F16] = 0x3c00,
		                        [TESS_I64] = 1,          [TESS_I32] = 1,
		                        [TESS_I8] = 1,           [TESS_U8] = 1 };
	static const uint64_t smallest[] = { [TESS_F32] = 0xff800000,
		                             [TESS_F64] = 0xfff0000000000000,
		                             [TESS_BF16] = 0xff80,
		                             [TESS_F16] = 0xfc00,
		                             [TESS_I64] = 0x8000000000000000,
		                             [TESS_I32] = 0x80000000,
		                             [TESS_I8] = 0x80,
		                             [TESS_U8] = 0 };
	uint64_t sign = UINT64_C(1) << (8 * tess_width(dtype) - 1);

	if (op == TESS_SUM)
		return 0;
	if (op == TESS_PROD)
		return one[dtype];
	if (op == TESS_MAX)
		return smallest[dtype];
	return tess_dtype_is_float(dtype) ? smallest[dtype] ^ sign : ~smallest[dtype];
}

void tess_reduction_fill_identity(int32_t dtype, int32_t op, uint64_t count, void *out)
{
	uint64_t bits = find_identity_bits(dtype, op);
	size_t width = tess_width(dtype);

	for (uint64_t k = 0; k < count; k++)
		memcpy((char *)out + k * width, &bits, width); /* little endian, as files are */
}

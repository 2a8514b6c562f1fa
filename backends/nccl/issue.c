#include "issue.h"

static const int dtypes[TESS_U8 + 1] = {
	[TESS_F32] = NCCL_F32, [TESS_F64] = NCCL_F64, [TESS_BF16] = NCCL_BF16,
	[TESS_F16] = NCCL_F16, [TESS_I64] = NCCL_I64, [TESS_I32] = NCCL_I32,
	[TESS_I8] = NCCL_I8,   [TESS_U8] = NCCL_U8,
};
static const int ops[TESS_MAX + 1] = {
	[TESS_SUM] = NCCL_SUM,
	[TESS_PROD] = NCCL_PROD,
	[TESS_MIN] = NCCL_MIN,
	[TESS_MAX] = NCCL_MAX,
};

/*
 * Returns whether NCCL reduces by Tessera's rules. It rounds a sum of 16-bit floats at each rank,
 * where the rule is once; its minimum of a NaN and a number is the number; and it has no operations
 * on bits.
 */
static bool reduces_by_the_rules(const struct tess_coll *c)
{
	if (!tess_dtype_is_float(c->dtype))
		return c->op <= TESS_MAX;
	return tess_width(c->dtype) >= 4 && (c->op == TESS_SUM || c->op == TESS_PROD);
}

const char *issue_find_fault(const struct tess_coll *c, char *text, size_t bytes)
{
	struct tess_coll host = *c;

	host.mem = TESS_HOST;
	if (tess_coll_find_fault(&host, text, bytes))
		return text;
	if (c->kind == TESS_BARRIER)
		return NULL;
	if (c->mem != TESS_CUDA)
		snprintf(text, bytes, "it moves memory of CUDA devices only");
	else if (tess_kind_reduces(c->kind) && !reduces_by_the_rules(c))
		snprintf(text, bytes, "NCCL has no %s of %s by Tessera's rules",
		         tess_reduce_op_name(c->op), tess_dtype_name(c->dtype));
	else
		return NULL;
	return text;
}

/* Returns block r of a buffer. */
static char *find_block(const struct tess_coll *c, const void *base, const uint64_t *list,
                        int32_t r)
{
	return (char *)((uintptr_t)base +
	                tess_block_begin(list, c->count, r) * tess_width(c->dtype));
}

static tess_status copy_own_block(struct group *g, const struct tess_coll *c, void *dst,
                                  const void *src, uint64_t count)
{
	int bad = count && dst != src
	                  ? g->calls->copy_async((uintptr_t)dst, (uintptr_t)src,
	                                         count * tess_width(c->dtype), c->stream)
	                  : 0;

	return bad ? group_fail_cuda(g, bad, "cuMemcpyDtoDAsync") : TESS_OK;
}

static tess_status check_issued(struct group *g, int result, const char *what)
{
	return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS
	               ? TESS_OK
	               : group_fail_nccl(g, result, what);
}

static tess_status send_block(struct group *g, const struct tess_coll *c, const void *src,
                              uint64_t count, int32_t peer)
{
	if (!count)
		return TESS_OK;
	return check_issued(g,
	                    g->calls->send(src, count, dtypes[c->dtype], peer, g->comm, c->stream),
	                    "ncclSend");
}

static tess_status recv_block(struct group *g, const struct tess_coll *c, void *dst, uint64_t count,
                              int32_t peer)
{
	if (!count)
		return TESS_OK;
	return check_issued(g,
	                    g->calls->recv(dst, count, dtypes[c->dtype], peer, g->comm, c->stream),
	                    "ncclRecv");
}

/* Returns whether rank `from` has a block for rank `to`. */
static bool has_block(const struct tess_coll *c, int32_t from, int32_t to)
{
	return c->kind == TESS_GATHER    ? to == c->root
	       : c->kind == TESS_SCATTER ? from == c->root
	                                 : true;
}

/*
 * Exchanges the blocks as messages. src: the block of this rank; with one for each rank, the first.
 */
static tess_status swap_blocks(struct group *g, const struct tess_coll *c, const void *src)
{
	bool one = c->kind == TESS_GATHER || c->kind == TESS_ALL_GATHER;
	int32_t n = g->nranks, me = g->rank;
	tess_status st = TESS_OK;

	for (int32_t i = 0; i < n && !st; i++) {
		int32_t to = (me + i) % n, of = (me + n - i) % n;
		uint64_t out = one ? c->count : tess_block_size(c->send_counts, c->count, to);
		uint64_t in = tess_block_size(c->recv_counts, c->count, of);
		const void *from = one ? src : find_block(c, src, c->send_counts, to);
		void *into = c->kind == TESS_SCATTER ? c->dst
		                                     : find_block(c, c->dst, c->recv_counts, of);

		if (!i && has_block(c, me, me) && c->src != c->dst)
			st = copy_own_block(g, c, into, from, in);
		if (i && has_block(c, me, to))
			st = send_block(g, c, from, out, to);
		if (i && has_block(c, of, me) && !st)
			st = recv_block(g, c, into, in, of);
	}
	return st;
}

static tess_status issue_all_to_all(struct group *g, struct step *s)
{
	const struct tess_coll *c = &s->c;
	uint64_t bytes =
		tess_block_begin(c->send_counts, c->count, g->nranks) * tess_width(c->dtype);
	int bad;

	if (c->src != c->dst || !bytes)
		return swap_blocks(g, c, c->src);
	bad = g->calls->alloc_async(&s->copy, bytes, c->stream);
	if (bad)
		return group_fail_cuda(g, bad, "cuMemAllocAsync");
	bad = g->calls->copy_async(s->copy, (uintptr_t)c->src, bytes, c->stream);
	if (bad)
		return group_fail_cuda(g, bad, "cuMemcpyDtoDAsync");
	return swap_blocks(g, c, (void *)(uintptr_t)s->copy);
}

static bool is_even(const uint64_t *list, int32_t n)
{
	for (int32_t r = 1; list && r < n; r++)
		if (list[r] != list[0])
			return false;
	return true;
}

static tess_status issue_all_gather(struct group *g, const struct tess_coll *c)
{
	const char *own =
		c->src == c->dst ? find_block(c, c->dst, c->recv_counts, g->rank) : c->src;

	if (!is_even(c->recv_counts, g->nranks))
		return swap_blocks(g, c, own);
	return check_issued(
		g,
		g->calls->all_gather(own, c->dst, c->count, dtypes[c->dtype], g->comm, c->stream),
		"ncclAllGather");
}

static tess_status issue_reduce_scatter(struct group *g, const struct tess_coll *c)
{
	char *own = c->src == c->dst ? find_block(c, c->dst, c->send_counts, g->rank) : c->dst;
	tess_status st = TESS_OK;

	if (is_even(c->send_counts, g->nranks))
		return check_issued(g,
		                    g->calls->reduce_scatter(c->src, own, c->count,
		                                             dtypes[c->dtype], ops[c->op], g->comm,
		                                             c->stream),
		                    "ncclReduceScatter");
	for (int32_t r = 0; r < g->nranks && !st; r++)
		if (c->send_counts[r])
			st = check_issued(g,
			                  g->calls->reduce(find_block(c, c->src, c->send_counts, r),
			                                   own, c->send_counts[r], dtypes[c->dtype],
			                                   ops[c->op], r, g->comm, c->stream),
			                  "ncclReduce");
	return st;
}

tess_status issue_step(struct group *g, struct step *s)
{
	const struct nccl_calls *n = g->calls;
	const struct tess_coll *c = &s->c;
	void *word = (void *)(uintptr_t)g->word;
	int type = dtypes[c->dtype], root = c->root == g->rank;

	switch (c->kind) {
	case TESS_BARRIER:
		return check_issued(
			g, n->all_reduce(word, word, 1, NCCL_I32, NCCL_SUM, g->comm, c->stream),
			"ncclAllReduce");
	case TESS_BROADCAST:
		return check_issued(g,
		                    n->broadcast(root ? c->src : c->dst, c->dst, c->count, type,
		                                 c->root, g->comm, c->stream),
		                    "ncclBroadcast");
	case TESS_REDUCE:
		return check_issued(g,
		                    n->reduce(c->src, c->dst, c->count, type, ops[c->op], c->root,
		                              g->comm, c->stream),
		                    "ncclReduce");
	case TESS_ALL_REDUCE:
		return check_issued(g,
		                    n->all_reduce(c->src, c->dst, c->count, type, ops[c->op],
		                                  g->comm, c->stream),
		                    "ncclAllReduce");
	case TESS_GATHER:
	case TESS_SCATTER:
		return swap_blocks(g, c, c->src);
	case TESS_ALL_GATHER:
		return issue_all_gather(g, c);
	case TESS_REDUCE_SCATTER:
		return issue_reduce_scatter(g, c);
	case TESS_ALL_TO_ALL:
		return issue_all_to_all(g, s);
	case TESS_SEND:
		return send_block(g, c, c->src, c->count, c->peer);
	default:
		return recv_block(g, c, c->dst, c->count, c->peer);
	}
}

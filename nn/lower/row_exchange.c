/*
 * row_exchange.c - lowers an exchange of rows with the ranks that hold their experts: a step that
 * packs rows, an all_to_all, and a step that places or adds what was received.
 */
#include "nn/lower/row_exchange.h"

#include "nn/lower/build.h"

#include <tessera/split.h>

/* Lists the rows that each rank owns. */
static void list_owned_rows(struct build *b, struct tess_row_exchange *x,
                            const struct tess_dim *rows)
{
	struct tess_run *owned;

	x->npieces = tess_dim_count_pieces(rows);
	owned = TESS_NEW(&b->l->arena, struct tess_run, x->nranks * x->npieces);
	if (!owned) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t q = 0; q < x->nranks; q++)
		tess_dim_get_owned_runs(rows, x->nranks, q, &owned[q * x->npieces]);
	x->owned = owned;
}

/* Counts the additions after each node of a tree of n units, as a stack machine makes them. */
static void count_node_merges(int64_t n, int32_t nnodes, struct tess_row_node *node)
{
	int32_t open[64], count = 0;

	for (int32_t i = 0; i < nnodes; i++) {
		int32_t depth =
			i + 1 < nnodes ? tess_node_shared_depth(n, node[i].lo, node[i + 1].lo) : -1;

		for (node[i].merges = 0; count && open[count - 1] > depth; count--)
			node[i].merges++;
		open[count++] = depth;
	}
}

/* Lists the experts of each rank: as one node, or as the nodes of its results. */
static void list_nodes(struct build *b, struct tess_row_exchange *x, const struct tess_dim *experts)
{
	int64_t n = tess_dim_count_units(experts);
	struct tess_row_node *list = TESS_NEW(&b->l->arena, struct tess_row_node, n);

	if (!list) {
		b->status = TESS_ENOMEM;
		return;
	}
	for (int32_t q = 0; q < x->nranks; q++) {
		struct tess_node node;
		int64_t lo, hi, at;

		tess_dim_get_rank_units(experts, x->nranks, q, &lo, &hi);
		if (q == x->rank)
			x->first_node = x->nnodes;
		if (!x->returns && lo < hi)
			list[x->nnodes++] = (struct tess_row_node){ lo, hi, q, 0 };
		for (at = lo; x->returns && tess_node_next(n, lo, hi, &at, &node);)
			list[x->nnodes++] = (struct tess_row_node){ node.lo, node.hi, q, 0 };
	}
	if (x->returns)
		count_node_merges(n, x->nnodes, list);
	x->node = list;
}

static int64_t count_owned_rows(const struct tess_row_exchange *x, int32_t rank)
{
	int64_t n = 0;

	for (int64_t i = 0; i < x->npieces; i++)
		n += x->owned[rank * x->npieces + i].len;
	return n;
}

static int64_t count_rank_nodes(const struct tess_row_exchange *x, int32_t rank)
{
	int64_t n = 0;

	for (int32_t i = 0; i < x->nnodes; i++)
		n += x->node[i].rank == rank;
	return n;
}

/* Adds the elements of an exchange between two ranks: in the worst case, and expected. */
static void count_exchanged_rows(const struct tess_row_exchange *x, int64_t experts, int64_t top,
                                 int32_t owner, int32_t holder, uint64_t *count, double *expected)
{
	int64_t rows = count_owned_rows(x, owner);
	int64_t nodes = count_rank_nodes(x, holder);

	*count = (uint64_t)(rows * (nodes < top ? nodes : top) * x->columns);
	for (int32_t i = 0; i < x->nnodes && expected; i++)
		if (x->node[i].rank == holder)
			*expected += (double)rows * (double)x->columns *
			             tess_experts_find_share(experts, top,
			                                     x->node[i].hi - x->node[i].lo);
}

/* Limits the sum of counts: each of this rank's rows is in at most `top` of the blocks. */
static void limit_counts(const struct tess_row_exchange *x, int64_t top, uint64_t *counts)
{
	uint64_t left = (uint64_t)(count_owned_rows(x, x->rank) * top * x->columns);

	for (int32_t q = 0; q < x->nranks; q++) {
		counts[q] = counts[q] < left ? counts[q] : left;
		left -= counts[q];
	}
}

/* Sets the counts to those of the worst case, and the bytes that the rank is expected to send. */
static void count_blocks(struct tess_row_exchange *x, int64_t experts, int64_t top)
{
	double expected = 0;

	for (int32_t q = 0; q < x->nranks; q++) {
		if (q == x->rank)
			continue;
		count_exchanged_rows(x, experts, top, x->returns ? q : x->rank,
		                     x->returns ? x->rank : q, &x->send_counts[q], &expected);
		count_exchanged_rows(x, experts, top, x->returns ? x->rank : q,
		                     x->returns ? q : x->rank, &x->recv_counts[q], NULL);
	}
	limit_counts(x, top, x->returns ? x->recv_counts : x->send_counts);
	x->expected = sizeof(float) * expected;
}

static struct value add_block_buffer(struct build *b, const struct tess_row_exchange *x,
                                     const uint64_t *counts)
{
	uint64_t n = 0;

	for (int32_t q = 0; q < x->nranks; q++)
		n += counts[q];
	return build_add_temporary(b, 0, 1, (int64_t)n, TESS_F32);
}

/* Adds a step of the exchange, which reads or writes the blocks at *at. */
static void add_exchange_step(struct build *b, const struct tess_record *rec,
                              struct tess_row_exchange *x, bool packs, float **at,
                              const struct value *blocks)
{
	struct tess_step *s = build_add_step(b, TESS_STEP_ROWS);
	const struct value *in = build_get_value(b, rec->in[0]);

	s->rows = x;
	s->packs = packs;
	build_add_pointer(b, &x->mine.data, build_get_value(b, rec->in[1]));
	build_add_pointer(b, &x->here.data, build_get_value(b, rec->in[2]));
	build_add_pointer(b, &x->in.data, in);
	build_add_pointer(b, (void **)at, blocks);
	if (!packs)
		build_add_pointer(b, &x->out.data, build_get_value(b, rec->out[0]));
}

static struct tess_row_exchange *make_exchange(struct build *b, const struct tess_record *rec)
{
	struct tess_row_exchange *x = TESS_NEW(&b->l->arena, struct tess_row_exchange, 1);
	struct tess_cut cut = tess_program_get_cut(b->p, b->l->rank, rec->along);
	uint64_t *counts = TESS_NEW(&b->l->arena, uint64_t, 2 * cut.nranks);

	if (!x || !counts) {
		b->status = TESS_ENOMEM;
		return NULL;
	}
	x->nranks = cut.nranks;
	x->rank = cut.rank;
	x->returns = rec->in[0]->place[rec->along].kind == TESS_PARTIAL;
	x->send_counts = counts;
	x->recv_counts = counts + cut.nranks;
	x->mine = build_make_view(build_get_value(b, rec->in[1]));
	x->here = build_make_view(build_get_value(b, rec->in[2]));
	x->in = build_make_view(build_get_value(b, rec->in[0]));
	x->out = build_make_view(build_get_value(b, rec->out[0]));
	x->columns = build_get_value(b, rec->out[0])->cols;
	list_owned_rows(b, x, rec->in[0]->dim[0]);
	list_nodes(b, x, rec->in[1]->dim[1]);
	x->from = TESS_NEW(&b->l->arena, const float *, x->nranks + x->nnodes);
	if (!x->from)
		b->status = TESS_ENOMEM;
	return b->status ? NULL : x;
}

void build_add_expert_rows(struct build *b, const struct tess_record *rec)
{
	struct tess_row_exchange *x = make_exchange(b, rec);
	struct value sent, received;
	struct tess_coll *c;

	if (!x)
		return;
	count_blocks(x, rec->in[1]->dim[1]->size, (int64_t)rec->num[TESS_REC_EXPERT_ROWS_TOP]);
	sent = add_block_buffer(b, x, x->send_counts);
	received = add_block_buffer(b, x, x->recv_counts);
	add_exchange_step(b, rec, x, true, &x->sent, &sent);
	c = build_add_collective(b, rec->along, TESS_ALL_TO_ALL, &sent, &received);
	c->send_counts = x->send_counts;
	c->recv_counts = x->recv_counts;
	if (!b->status)
		b->l->step[b->l->nsteps - 1]->counts_of = x;
	add_exchange_step(b, rec, x, false, &x->received, &received);
}

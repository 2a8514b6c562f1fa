#include "nn/run/row_exchange.h"

#include <string.h>
#include <tessera/util/float.h>

enum {
	SUM_COLUMNS = 512, /* columns added at a time: partial sums stay in cache */
	SUM_LEVELS = 32 /* maximum depth of a tree over experts */
};

/* ---- rows ------------------------------------------------------------------------------------ */

struct row_walk { /* the rows that a rank owns, in order */
	const struct tess_run *run;
	int64_t left; /* runs after this one */
	int64_t at; /* in the run */
};

static struct row_walk begin_row_walk(const struct tess_row_exchange *x, int32_t rank)
{
	return (struct row_walk){ &x->owned[rank * x->npieces], x->npieces, 0 };
}

/* Gets the next row; false: there is none. */
static bool get_next_row(struct row_walk *w, int64_t *row)
{
	while (w->left && w->at == w->run->len) {
		w->run++;
		w->left--;
		w->at = 0;
	}
	if (!w->left)
		return false;
	*row = w->run->start + w->at++;
	return true;
}

static float *get_view_row(const struct tess_view *v, int64_t row)
{
	return (float *)v->data + row * v->stride[v->ndim - 2];
}

/* Returns whether a row of routing weights requests one of the experts [lo, hi) of its columns. */
static bool requests_expert(const struct tess_view *weights, int64_t row, int64_t lo, int64_t hi)
{
	const float *w = get_view_row(weights, row);

	while (lo < hi && w[lo] == 0.0f)
		lo++;
	return lo < hi;
}

/* Returns whether own row i requests an expert of a node. */
static bool owner_requests(const struct tess_row_exchange *x, int64_t i,
                           const struct tess_row_node *node)
{
	return requests_expert(&x->mine, i, node->lo, node->hi);
}

/* Returns whether a row of any rank requests an expert of this rank's node. */
static bool holder_requests(const struct tess_row_exchange *x, int64_t row,
                            const struct tess_row_node *node)
{
	int64_t first = x->node[x->first_node].lo;

	return requests_expert(&x->here, row, node->lo - first, node->hi - first);
}

static bool is_own_node(const struct tess_row_exchange *x, int32_t i)
{
	return i < x->nnodes && x->node[i].rank == x->rank;
}

static float *copy_row(const struct tess_row_exchange *x, float *to, const float *from)
{
	memcpy(to, from, sizeof *to * (size_t)x->columns);
	return to + x->columns;
}

/* ---- rows to experts ------------------------------------------------------------------------- */

/* Packs own rows for the rank of a node. */
static float *pack_rows_for_node(const struct tess_row_exchange *x,
                                 const struct tess_row_node *node, float *to)
{
	for (int64_t i = 0; i < x->mine.shape[0]; i++)
		if (owner_requests(x, i, node))
			to = copy_row(x, to, get_view_row(&x->in, i));
	return to;
}

/* Counts the rows of another rank that request an expert of a node of this rank. */
static uint64_t count_requesting_rows(const struct tess_row_exchange *x, int32_t rank,
                                      const struct tess_row_node *node)
{
	struct row_walk w = begin_row_walk(x, rank);
	uint64_t n = 0;
	int64_t row;

	while (get_next_row(&w, &row))
		n += holder_requests(x, row, node);
	return n;
}

static void pack_for_experts(const struct tess_row_exchange *x)
{
	float *to = x->sent;

	for (int32_t i = 0; i < x->nnodes; i++) {
		const struct tess_row_node *node = &x->node[i];
		float *from = to;

		if (node->rank != x->rank)
			to = pack_rows_for_node(x, node, to);
		x->send_counts[node->rank] = (uint64_t)(to - from);
	}
	for (int32_t q = 0; q < x->nranks; q++)
		if (q != x->rank && is_own_node(x, x->first_node))
			x->recv_counts[q] = (uint64_t)x->columns *
			                    count_requesting_rows(x, q, &x->node[x->first_node]);
}

/* Places the rows of all ranks that request an expert of this rank. */
static void place_requested_rows(const struct tess_row_exchange *x)
{
	const float *from = x->received;

	for (int32_t q = 0; q < x->nranks && is_own_node(x, x->first_node); q++) {
		struct row_walk w = begin_row_walk(x, q);
		int64_t row;

		for (int64_t i = 0; get_next_row(&w, &row); i++) {
			if (!holder_requests(x, row, &x->node[x->first_node]))
				continue;
			copy_row(x, get_view_row(&x->out, row),
			         q == x->rank ? get_view_row(&x->in, i) : from);
			from += q == x->rank ? 0 : x->columns;
		}
	}
}

/* ---- results of experts ---------------------------------------------------------------------- */

/* Returns a row of a node of this rank's results. */
static const float *get_node_row(const struct tess_row_exchange *x, int32_t node, int64_t row)
{
	return get_view_row(&x->in, row) + (node - x->first_node) * x->in.stride[0];
}

/* Packs the results of this rank's experts for the rows of another rank: by row, then by node. */
static float *pack_results(const struct tess_row_exchange *x, int32_t rank, float *to)
{
	struct row_walk w = begin_row_walk(x, rank);
	int64_t row;

	while (get_next_row(&w, &row))
		for (int32_t i = x->first_node; is_own_node(x, i); i++)
			if (holder_requests(x, row, &x->node[i]))
				to = copy_row(x, to, get_node_row(x, i, row));
	return to;
}

static void pack_for_owners(const struct tess_row_exchange *x)
{
	float *to = x->sent;

	for (int32_t q = 0; q < x->nranks; q++) {
		float *from = to;

		if (q != x->rank)
			to = pack_results(x, q, to);
		x->send_counts[q] = (uint64_t)(to - from);
		x->recv_counts[q] = 0;
	}
	for (int32_t i = 0; i < x->nnodes; i++)
		for (int64_t k = 0; k < x->mine.shape[0] && x->node[i].rank != x->rank; k++)
			if (owner_requests(x, k, &x->node[i]))
				x->recv_counts[x->node[i].rank] += (uint64_t)x->columns;
}

/* Adds vectors; compilers vectorize this loop. */
static void add_columns(float *to, const float *left, const float *right, int64_t n)
{
	for (int64_t k = 0; k < n; k++)
		to[k] = left[k] + right[k];
}

struct row_sum { /* a stack of sums of some columns: sum[i] is in level[i], elsewhere, or NULL */
	const float *sum[SUM_LEVELS + 1];
	float *level[SUM_LEVELS + 1];
	float memory[SUM_LEVELS + 1][SUM_COLUMNS];
};

/* Adds sum[i + 1] to sum[i]. Results that the row does not request, NULL, leave a sum unchanged. */
static void merge_sums(struct row_sum *s, int32_t i, int64_t n)
{
	const float *left = s->sum[i], *right = s->sum[i + 1];

	if (left && right) {
		add_columns(s->level[i], left, right, n);
		s->sum[i] = s->level[i];
	} else if (right) {
		float *unused = s->level[i];

		s->sum[i] = right;
		s->level[i] = s->level[i + 1];
		s->level[i + 1] = unused;
	}
}

/* Adds columns [at, at + n) of the results of a row; part[i]: that of node i, or NULL. */
static void add_results(const struct tess_row_exchange *x, const float *const *part, int64_t at,
                        int64_t n, float *to)
{
	struct row_sum s;
	int32_t top = 0;

	for (int32_t i = 0; i <= SUM_LEVELS; i++)
		s.level[i] = s.memory[i];
	for (int32_t i = 0; i < x->nnodes; i++) {
		s.sum[top++] = part[i] ? part[i] + at : NULL;
		for (int32_t m = 0; m < x->node[i].merges; m++)
			merge_sums(&s, --top - 1, n);
	}
	for (int64_t k = 0; k < n; k++) /* + 0.0f: no finished sum is -0 */
		to[k] = s.sum[0] ? tess_one_nan(s.sum[0][k] + 0.0f) : 0.0f;
}

/* Finds the results of the nodes that own row i requests; *from[q]: the next received of rank q. */
static void find_results(const struct tess_row_exchange *x, int64_t i, int64_t row,
                         const float **from, const float **part)
{
	for (int32_t k = 0; k < x->nnodes; k++) {
		const struct tess_row_node *node = &x->node[k];

		part[k] = NULL;
		if (!owner_requests(x, i, node))
			continue;
		part[k] = node->rank == x->rank ? get_node_row(x, k, row) : from[node->rank];
		from[node->rank] += node->rank == x->rank ? 0 : x->columns;
	}
}

static void add_rows(const struct tess_row_exchange *x)
{
	struct row_walk w = begin_row_walk(x, x->rank);
	const float **from = x->from, **part = x->from + x->nranks;
	int64_t row;

	from[0] = x->received;
	for (int32_t q = 1; q < x->nranks; q++)
		from[q] = from[q - 1] + x->recv_counts[q - 1];
	for (int64_t i = 0; get_next_row(&w, &row); i++) {
		find_results(x, i, row, from, part);
		for (int64_t at = 0; at < x->columns; at += SUM_COLUMNS)
			add_results(x, part, at,
			            x->columns - at < SUM_COLUMNS ? x->columns - at : SUM_COLUMNS,
			            get_view_row(&x->out, i) + at);
	}
}

/* ---- both sides ------------------------------------------------------------------------------ */

void tess_row_exchange_pack(const struct tess_row_exchange *x)
{
	if (x->returns)
		pack_for_owners(x);
	else
		pack_for_experts(x);
}

void tess_row_exchange_unpack(const struct tess_row_exchange *x)
{
	uint32_t saved = tess_float_enter();

	if (x->returns)
		add_rows(x);
	else
		place_requested_rows(x);
	tess_float_leave(saved);
}

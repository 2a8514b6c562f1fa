/*
 * test_expert_rows.c - exchanges of rows with the ranks of their experts: both ends count alike, no
 * row is dropped, and the planned memory has room, for ranks without rows, rows that all request
 * the experts of one rank, uneven experts, and rows that request none.
 */
#include "nn/lower/lower.h"
#include "nn/run/row_exchange.h"
#include "tests/support/mixture.h"

#include <stdint.h>
#include <stdlib.h>

#define ROWS R("mlp", "prepare_input_output:in=shard(0),out=replicate")
#define PLAN "{" ROWS "," R("mlp.experts", "ep_all_to_all") "}"
/* Addresses that no step accesses: the program only binds them. */
#define REGION(i) ((char *)((uintptr_t)(i) << 40))

enum { RANKS_MAX = 5, ROWS_MAX = 64, EXPERTS_MAX = 12 };
/* Experts that rows request: random ones; the first ones; the last ones; none. */
enum { RANDOM, FIRST, LAST, NONE, CHOICES };

struct end { /* a rank's end of both exchanges */
	struct tess_rank_program *low;
	struct tess_memory memory;
	struct tess_row_exchange *x; /* the current exchange */
	uint64_t room[2]; /* planned elements: sent, and received */
};

static uint64_t sum_counts(const uint64_t *counts, int32_t n)
{
	uint64_t sum = 0;

	for (int32_t q = 0; q < n; q++)
		sum += counts[q];
	return sum;
}

static void open_row_end(const struct tess_program *p, int32_t rank, struct end *out)
{
	struct tess_view *weights = calloc((size_t)p->nweights, sizeof *weights);

	for (int32_t i = 0; i < p->nweights; i++) {
		const struct tess_weight *w = p->weight[i];

		weights[i] = (struct tess_view){ .data = REGION(1), .ndim = w->ndim };
		for (int32_t a = 0; a < w->ndim; a++)
			weights[i].shape[a] = tess_weight_get_local_size(p, w, rank, a);
	}
	ck_assert_msg(!tess_program_lower(p, rank, weights, &out->low), "%s", tess_error());
	out->memory = (struct tess_memory){
		.step = aligned_alloc(64, 64 * (size_t)tess_up((int64_t)out->low->bytes, 64)),
		.inputs = REGION(2),
	};
	tess_rank_program_bind(out->low, &out->memory);
	free(weights);
}

static void close_row_end(struct end *e)
{
	free(e->memory.step);
	tess_rank_program_free(e->low);
}

/* Selects the first exchange of rows, or of results. */
static void select_exchange(struct end *e, bool returns)
{
	for (int32_t i = 0; i < e->low->nsteps; i++)
		if (e->low->step[i]->kind == TESS_STEP_ROWS && e->low->step[i]->packs &&
		    e->low->step[i]->rows->returns == returns) {
			e->x = e->low->step[i]->rows;
			e->room[0] = sum_counts(e->x->send_counts, e->x->nranks);
			e->room[1] = sum_counts(e->x->recv_counts, e->x->nranks);
			return;
		}
	ck_abort_msg("no exchange");
}

/* Draws the experts of a row: weight[expert], 0 for those that it does not request. */
static void draw_requests(int how, int64_t experts, int64_t top, float *weight)
{
	memset(weight, 0, (size_t)experts * sizeof *weight);
	for (int64_t i = 0; i < top && how != NONE; i++)
		weight[how == FIRST ? i : how == LAST ? experts - 1 - i : random() % experts] = 1;
}

static float *get_routed_row(const struct tess_view *v, int64_t row)
{
	return (float *)v->data + row * v->stride[v->ndim - 2];
}

/* Returns the rank that owns a row, and the index among the rows of that rank. */
static int32_t find_row_owner(const struct tess_row_exchange *x, int64_t row, int64_t *at)
{
	for (int32_t q = 0; q < x->nranks; q++)
		if (row >= x->owned[q].start && row < x->owned[q].start + x->owned[q].len) {
			*at = row - x->owned[q].start;
			return q;
		}
	ck_abort_msg("row %d has no owner", (int)row);
	return -1;
}

/* Returns the first expert of a rank, and those after it. */
static int64_t find_expert_range(const struct tess_row_exchange *x, int32_t rank, int64_t *end)
{
	int64_t first = -1;

	*end = 0;
	for (int32_t i = 0; i < x->nnodes; i++)
		if (x->node[i].rank == rank) {
			first = first < 0 ? x->node[i].lo : first;
			*end = x->node[i].hi;
		}
	return first;
}

/* Writes the routing weights of all rows to both ends. */
static void write_routing(struct end *end, int32_t n, int64_t rows,
                          float weight[ROWS_MAX][EXPERTS_MAX], int64_t experts)
{
	for (int64_t row = 0; row < rows; row++) {
		int64_t at, last;
		int32_t owner = find_row_owner(end[0].x, row, &at);

		memcpy(get_routed_row(&end[owner].x->mine, at), weight[row], 4 * (size_t)experts);
		for (int32_t q = 0; q < n; q++) {
			int64_t first = find_expert_range(end[q].x, q, &last);

			memcpy(get_routed_row(&end[q].x->here, row), &weight[row][first],
			       4 * (size_t)(last - first));
		}
	}
}

/* Makes an element of a row, or of a node's result for it: sums of these are exact. */
static float make_element(int64_t row, int64_t node, int64_t column)
{
	return (float)(1 + row * 131 + node * 17 + column);
}

static bool row_requests_node(const float *weight, const struct tess_row_node *node)
{
	for (int64_t e = node->lo; e < node->hi; e++)
		if (weight[e] != 0)
			return true;
	return false;
}

/* Packs on all ranks, and delivers the blocks. Returns the elements that moved. */
static uint64_t deliver_row_blocks(struct end *end, int32_t n)
{
	uint64_t moved = 0;

	for (int32_t r = 0; r < n; r++) {
		tess_row_exchange_pack(end[r].x);
		ck_assert_uint_le(sum_counts(end[r].x->send_counts, n), end[r].room[0]);
		ck_assert_uint_le(sum_counts(end[r].x->recv_counts, n), end[r].room[1]);
		ck_assert_uint_eq(end[r].x->send_counts[r], 0);
		moved += sum_counts(end[r].x->send_counts, n);
	}
	for (int32_t r = 0; r < n; r++) {
		float *to = end[r].x->received;

		for (int32_t q = 0; q < n; q++) {
			uint64_t count = end[r].x->recv_counts[q];

			ck_assert_uint_eq(count, end[q].x->send_counts[r]);
			memcpy(to, end[q].x->sent + sum_counts(end[q].x->send_counts, r),
			       count * sizeof *to);
			to += count;
		}
	}
	for (int32_t r = 0; r < n; r++)
		tess_row_exchange_unpack(end[r].x);
	return moved;
}

/* Sends rows to their experts. */
static void check_sent_rows(struct end *end, int32_t n, int64_t rows,
                            float weight[ROWS_MAX][EXPERTS_MAX])
{
	const struct tess_row_exchange *x = end[0].x;
	uint64_t want = 0;
	int64_t at;

	for (int64_t row = 0; row < rows; row++) {
		int32_t owner = find_row_owner(x, row, &at);

		for (int64_t c = 0; c < x->columns; c++)
			get_routed_row(&end[owner].x->in, at)[c] = make_element(row, 0, c);
		for (int32_t i = 0; i < x->nnodes; i++)
			want += (x->node[i].rank != owner &&
			         row_requests_node(weight[row], &x->node[i])) *
			        (uint64_t)x->columns;
	}
	ck_assert_uint_eq(deliver_row_blocks(end, n), want);
	for (int64_t row = 0; row < rows; row++)
		for (int32_t i = 0; i < x->nnodes; i++)
			for (int64_t c = 0;
			     c < x->columns && row_requests_node(weight[row], &x->node[i]); c++)
				ck_assert_float_eq(
					get_routed_row(&end[x->node[i].rank].x->out, row)[c],
					make_element(row, 0, c));
}

/* Returns results to the owners of the rows. */
static void check_returned_results(struct end *end, int32_t n, int64_t rows,
                                   float weight[ROWS_MAX][EXPERTS_MAX])
{
	const struct tess_row_exchange *x = end[0].x;
	uint64_t want = 0;
	int64_t at;

	for (int32_t i = 0; i < x->nnodes; i++) {
		const struct tess_row_exchange *from = end[x->node[i].rank].x;

		for (int64_t row = 0; row < rows; row++) {
			float *to = get_routed_row(&from->in, row) +
			            (i - from->first_node) * from->in.stride[0];

			for (int64_t c = 0; c < x->columns; c++)
				to[c] = make_element(row, i, c);
			want += (x->node[i].rank != find_row_owner(x, row, &at) &&
			         row_requests_node(weight[row], &x->node[i])) *
			        (uint64_t)x->columns;
		}
	}
	ck_assert_uint_eq(deliver_row_blocks(end, n), want);
	for (int64_t row = 0; row < rows; row++) {
		int32_t owner = find_row_owner(x, row, &at);

		for (int64_t c = 0; c < x->columns; c++) {
			float sum = 0;

			for (int32_t i = 0; i < x->nnodes; i++)
				sum += row_requests_node(weight[row], &x->node[i])
				               ? make_element(row, i, c)
				               : 0;
			ck_assert_float_eq(get_routed_row(&end[owner].x->out, at)[c], sum);
		}
	}
}

static const struct {
	int32_t ranks;
	const char *mesh;
	int64_t rows;
} cases[] = { { 2, "tp=2", 9 }, { 3, "tp=3", 10 }, { 3, "tp=3", 1 }, { 3, "tp=3", 64 } };

START_TEST(no_row_is_dropped)
{
	float weight[ROWS_MAX][EXPERTS_MAX];
	int64_t rows = cases[_i % 4].rows;
	int32_t n = cases[_i % 4].ranks;
	struct end end[RANKS_MAX];
	struct tess_program *p;
	struct store *s;

	mixture = &mixtures[_i / 4];
	s = store_make(false);
	ck_assert_msg(!mixture_record(s, PLAN, cases[_i % 4].mesh, rows, &p), "%s", tess_error());
	for (int how = 0; how < CHOICES; how++) {
		for (int64_t row = 0; row < rows; row++)
			draw_requests(how, mixture->experts, mixture->route.top, weight[row]);
		for (int32_t r = 0; r < n; r++)
			open_row_end(p, r, &end[r]);
		for (int returns = 0; returns < 2; returns++) {
			for (int32_t r = 0; r < n; r++)
				select_exchange(&end[r], returns);
			write_routing(end, n, rows, weight, mixture->experts);
			(returns ? check_returned_results : check_sent_rows)(end, n, rows, weight);
		}
		for (int32_t r = 0; r < n; r++)
			close_row_end(&end[r]);
	}
	tess_program_free(p);
	store_free(s);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("expert_rows", 60, &r);

	srandom(1);
	tcase_add_loop_test(t, no_row_is_dropped, 0, 4 * MIXTURES);
	return suite_end(r);
}

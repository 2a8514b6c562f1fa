/*
 * cpu_experts_backward.c - the training ops of mixtures of experts on the CPU device, bit for bit
 * against the scalar reference of lockstep: rows routed to any experts, to one, to none; experts
 * without rows.
 */
#include "cpu_training.h"

#include <tessera/model.h>

enum { ROUNDS = 20, EXPERTS = 9 };

static void compare_and_refuse(const struct tess_op *op)
{
	compare_op(op);
	refuse_changes(op, true);
}

/* routes of rows to experts */
enum { ANY, ONE, NONE, FEW, ASKS };

/* Draws weights of at most `slots` experts of a row, different from the other rows' weights. */
static struct tess_view draw_asked(int64_t rows, int64_t n, int64_t slots, int asks)
{
	struct tess_view w = make_test_rows(rows, n, false);

	for (int64_t t = 0; t < rows; t++) {
		float *row = (float *)w.data + t * w.stride[0];
		int64_t left = asks == NONE || (asks == FEW && t % 5) ? 0 : slots;

		for (int64_t e = 0; e < n; e++) {
			bool ask = asks == ONE ? e == n / 2 : cpu_draw_random() % 3 == 0;

			row[e] = ask && left-- > 0 ? cpu_draw_float() + 1.5f : 0.0f;
			left = left < 0 ? 0 : left;
		}
	}
	return w;
}

/* ---- routing */

START_TEST(gradients_of_routes)
{
	for (int i = 0; i < ROUNDS; i++) {
		int64_t rows = draw_from(0, 60), n = draw_from(1, 70);
		struct tess_view in[3] = { make_test_rows(rows, n, i % 5 == 1),
			                   draw_asked(rows, n, draw_from(1, n), i % ASKS),
			                   make_test_rows(rows, n, i % 5 == 2) };
		struct tess_view out = make_test_rows(rows, n, false);
		double num[TESS_ROUTE_NUMS] = { 2, i % 4, i % 3 ? 1e-20 : 0.25, 2.5, 1, 1 };
		struct tess_op op = cpu_make_op(TESS_OP_ROUTE_D, in, 3, &out, num, TESS_ROUTE_NUMS);

		compare_and_refuse(&op);
		free_views(in, 3);
		free_views(&out, 1);
	}
}
END_TEST

/* Makes an output whose rows have no gaps. */
static struct tess_view make_totals(const struct sums *s, int64_t rows, int64_t n)
{
	struct tess_view v = make_out(s, rows, n);

	v.stride[v.ndim - 2] = n;
	return v;
}

START_TEST(balance)
{
	static struct sums s;

	for (int i = 0; i < ROUNDS; i++) {
		int64_t n = draw_from(1, 70);
		int32_t mixtures = (int32_t)draw_from(1, 3);
		struct tess_view in[6], out;
		struct tess_op op;

		make_token_sums(&s, i % 4);
		if (i % 4 == 2 && !s.nodes)
			continue;
		for (int32_t l = 0; l < mixtures; l++) {
			in[2 * l] = make_test_rows(s.rows, n, i % 5 == 1);
			in[2 * l + 1] = draw_asked(s.rows, n, draw_from(1, n), i / 4 % ASKS);
		}
		out = make_totals(&s, 2 * mixtures, n);
		op = make_summed_op(TESS_OP_BALANCE, &s, in, 2 * mixtures, &out, TESS_TOKENS_NUMS);
		compare_and_refuse(&op);
		free_views(in, 2 * mixtures);
		free_views(&out, 1);
	}
}
END_TEST

START_TEST(gradients_of_balance)
{
	for (int i = 0; i < ROUNDS; i++) {
		int64_t rows = draw_from(0, 60), n = draw_from(1, 70), mixtures = draw_from(1, 3);
		struct tess_view in[2] = { make_test_rows(rows, n, i % 5 == 1),
			                   make_test_rows(2 * mixtures, n, false) };
		struct tess_view out = make_test_rows(rows, n, false);
		double num[TESS_BALANCE_NUMS] = { 0.02, 3 };
		struct tess_op op =
			cpu_make_op(TESS_OP_BALANCE_D, in, 2, &out, num, TESS_BALANCE_NUMS);

		for (int64_t k = 0; k < 2 * mixtures * in[1].stride[0]; k++)
			((float *)in[1].data)[k] = (float)draw_from(0, 100);
		compare_and_refuse(&op);
		free_views(in, 2);
		free_views(&out, 1);
	}
}
END_TEST

/* ---- experts */

struct mixture { /* the operands on one rank */
	int64_t rows, e, slots, k, f, h;
	struct cpu_weights gate_up, down;
	struct tess_view in[6], out[3];
	struct sums s; /* EXPERTS_D: three trees; EXPERTS_DW: over tokens */
};

/* Makes matrices [e, n, k] in rows, or stored as [e, k, n]. */
static struct tess_view make_matrices(void *data, int32_t dtype, int64_t e, int64_t n, int64_t k,
                                      bool turned)
{
	return (struct tess_view){ .data = data,
		                   .dtype = dtype,
		                   .ndim = 3,
		                   .shape = { e, n, k },
		                   .stride = { n * k, turned ? 1 : k, turned ? n : 1 } };
}

static void draw_mixture(struct mixture *m, int64_t rows, int i)
{
	bool wide = i % 3 == 0; /* wider than a leaf and than a panel */

	m->rows = rows;
	m->e = draw_from(1, EXPERTS);
	m->slots = draw_from(1, m->e);
	m->k = draw_from(1, wide ? 280 : 20);
	m->f = draw_from(1, wide ? 40 : 20);
	m->h = draw_from(1, wide ? 70 : 20);
	m->gate_up = cpu_make_weights(cpu_choose_dtype(i), m->e * 2 * m->f * m->k);
	m->down = cpu_make_weights(cpu_choose_dtype(i), m->e * m->h * m->f);
	m->in[0] = make_test_rows(rows, m->k, i % 7 == 1);
	m->in[1] = draw_asked(rows, m->e, m->slots, i % ASKS);
}

/* Appends a tree over `size` elements of an operand, or of units [lo, hi) of n. */
static void append_operand_tree(struct sums *s, int32_t operand, int64_t n, int64_t lo, int64_t hi,
                                int64_t size)
{
	append_tree(s, n, lo, hi, 0, tess_up(size, hi > lo ? hi - lo : 1), size);
	s->term[s->nterm - 1].operand = operand;
}

/* Appends the tree over gate and up: leaf u has the range of gate, then that of up. */
static void append_gate_up_tree(struct sums *s, int64_t n, int64_t lo, int64_t hi, int64_t f)
{
	const int64_t *gate = s->bound[s->nterm];
	int64_t *up = s->bound[s->nterm + 1];

	append_operand_tree(s, 2, n, lo, hi, f);
	for (int64_t u = 0; u <= hi - lo; u++)
		up[u] = f + gate[u];
	s->term[s->nterm++] = (struct tess_term){ .operand = 2, .bound = up };
	s->tree[s->ntree - 1].terms = 2;
}

START_TEST(gradients_through_experts)
{
	static struct mixture m;

	for (int i = 0; i < 2 * ROUNDS; i++) {
		bool cut = i / 4 % 2, turned = i / 8 % 2;
		int64_t n, lo, hi;
		struct tess_op op;

		memset(&m, 0, sizeof m);
		draw_mixture(&m, draw_from(0, i % 9 ? 40 : 500), i);
		n = draw_from(1, m.f), lo = cut ? draw_from(0, n - 1) : 0;
		hi = cut ? draw_from(lo + 1, n) : n;
		append_operand_tree(&m.s, 0, 8, 0, 8, m.k);
		append_operand_tree(&m.s, 4, 8, 0, 8, m.h);
		append_gate_up_tree(&m.s, n, lo, hi, m.f);
		m.in[2] = make_matrices(m.gate_up.data, m.gate_up.dtype, m.e, 2 * m.f, m.k, turned);
		m.in[3] = make_matrices(m.down.data, m.down.dtype, m.e, m.h, m.f, turned);
		m.in[4] = make_test_rows(m.rows, m.h, i % 7 == 2);
		m.out[0] = cut ? make_nodes(tess_node_count(n, lo, hi), m.rows, m.slots * m.k)
		               : make_test_rows(m.rows, m.slots * m.k, false);
		m.out[1] = make_test_rows(m.rows, m.slots * 3 * m.f, false);
		m.s.num[TESS_EXPERTS_ACTIVATION] = (double)(TESS_SILU + i % 5);
		m.s.num[TESS_EXPERTS_SLOTS] = (double)m.slots;
		op = make_summed_op(TESS_OP_EXPERTS_D, &m.s, m.in, 5, m.out, TESS_EXPERTS_NUMS);
		op.nout = 2;
		compare_and_refuse(&op);
		m.s.num[TESS_EXPERTS_MATH] = TESS_BF16;
		compare_op(&op);
		m.s.num[TESS_EXPERTS_MATH] = TESS_F16;
		expect_refused_op(&op, "dtype of products, f32 or bf16");
		m.s.num[TESS_EXPERTS_MATH] = i % 2 ? TESS_BF16 : 0;
		m.in[5] = make_test_rows(m.e, 2 * m.f, false);
		op.nin = 6;
		compare_op(&op);
		m.s.num[TESS_EXPERTS_LIMIT] = 0.4; /* some values are beyond it */
		m.s.num[TESS_EXPERTS_ALPHA] = 1.702;
		compare_op(&op);
		free_views(&m.in[5], 1);
		free_views(m.in, 2);
		free_views(&m.in[4], 1);
		free_views(m.out, 2);
		cpu_free_weights(&m.gate_up);
		cpu_free_weights(&m.down);
	}
}
END_TEST

/* Makes a gradient [e, rows, columns], or its nodes; turned: the rows are contiguous. */
static struct tess_view make_gradient(const struct sums *s, int64_t e, int64_t rows,
                                      int64_t columns, bool turned)
{
	struct tess_view v = s->nodes ? make_nodes(s->nodes, e * rows, columns)
	                              : make_test_rows(e * rows, columns, false);
	int32_t a = v.ndim - 2;
	int64_t pitch = v.stride[a];

	v.ndim++;
	v.shape[a] = e, v.stride[a] = rows * pitch;
	v.shape[a + 1] = turned ? columns : rows, v.stride[a + 1] = turned ? 1 : pitch;
	v.shape[a + 2] = turned ? rows : columns, v.stride[a + 2] = turned ? pitch : 1;
	return v;
}

START_TEST(gradients_of_experts)
{
	static struct mixture m;

	for (int i = 0; i < 2 * ROUNDS; i++) {
		bool turned = i / 4 % 2;
		struct tess_op op;

		memset(&m, 0, sizeof m);
		make_token_sums(&m.s, i % 4);
		if (i % 4 == 2 && !m.s.nodes)
			continue;
		draw_mixture(&m, m.s.rows, i / 2);
		m.in[2] = make_test_rows(m.rows, m.h, i % 7 == 2);
		m.in[3] = make_test_rows(m.rows, m.slots * 3 * m.f, i % 7 == 3);
		m.out[0] = turned ? make_gradient(&m.s, m.e, m.k, 2 * m.f, true)
		                  : make_gradient(&m.s, m.e, 2 * m.f, m.k, false);
		m.out[1] = turned ? make_gradient(&m.s, m.e, m.f, m.h, true)
		                  : make_gradient(&m.s, m.e, m.h, m.f, false);
		op = make_summed_op(TESS_OP_EXPERTS_DW, &m.s, m.in, 4, m.out, TESS_TOKENS_NUMS);
		op.nout = 2;
		compare_and_refuse(&op);
		m.out[2] = make_gradient(&m.s, m.e, 2 * m.f, 1, false);
		op.nout = 3;
		compare_op(&op);
		op.nnum = TESS_EXPERTS_DW_NUMS;
		m.s.num[TESS_EXPERTS_DW_MATH] = TESS_BF16;
		compare_op(&op);
		m.s.num[TESS_EXPERTS_DW_MATH] = TESS_F16;
		expect_refused_op(&op, "products are of f32, or of bf16");
		free_views(m.in, 4);
		free_views(m.out, 3);
		cpu_free_weights(&m.gate_up);
		cpu_free_weights(&m.down);
	}
}
END_TEST

START_TEST(gradients_of_weights)
{
	static struct mixture m;

	for (int i = 0; i < ROUNDS; i++) {
		struct tess_op op;

		memset(&m, 0, sizeof m);
		draw_mixture(&m, draw_from(0, 60), i);
		append_operand_tree(&m.s, 2, 8, 0, 8, m.h);
		free_views(m.in, 1);
		m.in[0] = make_test_rows(m.rows, m.slots * m.h, i % 7 == 2);
		m.in[2] = make_test_rows(m.rows, m.h, i % 7 == 3);
		m.out[0] = make_test_rows(m.rows, m.e, false);
		op = make_summed_op(TESS_OP_COMBINE_D, &m.s, m.in, 3, m.out, 0);
		compare_and_refuse(&op);
		free_views(m.in, 3);
		free_views(m.out, 1);
		cpu_free_weights(&m.gate_up);
		cpu_free_weights(&m.down);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("cpu_experts_backward", 120, &r);

	tcase_add_test(t, gradients_of_routes);
	tcase_add_test(t, balance);
	tcase_add_test(t, gradients_of_balance);
	tcase_add_test(t, gradients_through_experts);
	tcase_add_test(t, gradients_of_experts);
	tcase_add_test(t, gradients_of_weights);
	return suite_end(r);
}

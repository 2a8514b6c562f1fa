/*
 * test_experts_d PLUGIN - compares the backward of mixtures of experts on the CUDA device with the
 * CPU: routes are equal, sums within a bound. Rows have any experts, one, or none.
 */
#include "device.h"

enum { ROUNDS = 8, TREES = 3, BOUNDS = 32, UNIT = 32 };
enum { ANY, ONE, NONE, FEW, ASKS };
static const float near = 4e-6f;

static int64_t choose_between(int64_t lo, int64_t hi)
{
	return lo + cpu_draw_random() % (hi - lo + 1);
}

static struct tess_view make_drawn_rows(int64_t rows, int64_t columns)
{
	int64_t pitch = columns + choose_between(0, 4);

	return cpu_make_rows(make_buffer(rows * pitch + 1, true), rows, columns, pitch);
}

/* Makes weights of at most `slots` experts of a row. */
static struct tess_view make_asked(int64_t rows, int64_t n, int64_t slots, int asks)
{
	struct tess_view w = make_drawn_rows(rows, n);

	for (int64_t t = 0; t < rows; t++) {
		float *row = (float *)w.data + t * w.stride[0];
		int64_t left = asks == NONE || (asks == FEW && t % 5) ? 0 : slots;

		for (int64_t e = 0; e < n; e++) {
			bool ask = asks == ONE ? e == n / 2 : cpu_draw_random() % 3 == 0;

			row[e] = ask && left-- > 0 ? fabsf(row[e]) + 0.5f : 0.0f;
			left = left < 0 ? 0 : left;
		}
	}
	return w;
}

/* ---- sums */

struct sums { /* over tokens: a tree for each sequence; or over operands */
	struct tess_tree tree[TREES];
	struct tess_term term[TREES + 1];
	int64_t bound[TREES + 1][BOUNDS];
	double num[TESS_TOKENS_NUMS];
	int32_t ntree, nterm;
	int64_t rows;
};

static void append_unit_tree(struct sums *s, int32_t operand, int64_t units, int64_t from,
                             int64_t unit, int64_t end)
{
	int64_t *bound = s->bound[s->nterm];

	for (int64_t u = 0; u <= units; u++)
		bound[u] = from + u * unit < end ? from + u * unit : end;
	s->term[s->nterm] = (struct tess_term){ .operand = operand, .bound = bound };
	s->tree[s->ntree++] = (struct tess_tree){ units, 0, units, s->nterm++, 1 };
}

static void make_sequences(struct sums *s, int64_t sequences)
{
	memset(s, 0, sizeof *s);
	s->rows = choose_between(0, 3); /* in no sum */
	for (int64_t i = 0; i < sequences; i++) {
		int64_t length = choose_between(1, i ? 40 : 130);

		append_unit_tree(s, 0, tess_up(length, UNIT), s->rows, UNIT, s->rows + length);
		s->rows += length;
	}
	s->num[TESS_TOKENS_SEQUENCES] = (double)sequences;
}

static struct tess_op make_token_op(int32_t kind, const struct sums *s, const struct tess_view *in,
                                    int32_t nin, const struct tess_view *out)
{
	return cpu_make_sum_op(kind, in, nin, out, s->num, TESS_TOKENS_NUMS, s->tree, s->ntree,
	                       s->term, s->nterm);
}

/* Makes a view [e, rows, columns]; turned: rows are contiguous. */
static struct tess_view make_matrix_stack(void *data, int32_t dtype, int64_t e, int64_t rows,
                                          int64_t columns, bool turned)
{
	return (struct tess_view){ .data = data,
		                   .dtype = dtype,
		                   .ndim = 3,
		                   .shape = { e, rows, columns },
		                   .stride = { rows * columns, turned ? 1 : columns,
		                               turned ? rows : 1 } };
}

static struct tess_view make_gradients(int64_t e, int64_t rows, int64_t columns, bool turned)
{
	return make_matrix_stack(make_buffer(e * rows * columns, false), TESS_F32, e, rows, columns,
	                         turned);
}

/* Makes the output the one node of a Partial. */
static struct tess_view make_node(const struct tess_view *v)
{
	struct tess_view node = *v;

	node.ndim++;
	node.shape[0] = 1;
	node.stride[0] = cpu_count_elements(v) + 1;
	memcpy(node.shape + 1, v->shape, sizeof *v->shape * (size_t)v->ndim);
	memcpy(node.stride + 1, v->stride, sizeof *v->stride * (size_t)v->ndim);
	return node;
}

/* ---- routes */

START_TEST(gradients_of_routes)
{
	set_up_devices("auto");
	for (int i = 0; i < ROUNDS; i++) {
		int64_t rows = choose_between(0, 9), n = choose_between(1, 70);
		struct tess_view in[3] = { make_drawn_rows(rows, n),
			                   make_asked(rows, n, choose_between(1, n), i % ASKS),
			                   make_drawn_rows(rows, n) };
		struct tess_view out = make_drawn_rows(rows, n);
		double num[TESS_ROUTE_NUMS] = { 2, i % 4, i % 3 ? 1e-20 : 0.25, 2.5, 1, 1 };
		struct tess_op op = cpu_make_op(TESS_OP_ROUTE_D, in, 3, &out, num, TESS_ROUTE_NUMS);

		expect_near("route_d", &op, 0);
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

START_TEST(balance)
{
	static struct sums s;

	set_up_devices("auto");
	for (int i = 0; i < ROUNDS; i++) {
		int64_t n = choose_between(1, 70);
		int32_t mixtures = 1 + i % 3;
		struct tess_view in[6], out;
		struct tess_op op;
		double num[TESS_BALANCE_NUMS] = { 0.02, 3 };

		make_sequences(&s, i % (TREES + 1));
		for (int32_t l = 0; l < mixtures; l++) {
			in[2 * l] = make_drawn_rows(s.rows, n);
			in[2 * l + 1] = make_asked(s.rows, n, n, i % 2 ? ANY : FEW);
		}
		out = cpu_make_rows(make_buffer(2 * mixtures * n, false), 2 * mixtures, n, n);
		op = make_token_op(TESS_OP_BALANCE, &s, in, 2 * mixtures, &out);
		expect_near("balance", &op, near);
		if (s.rows) {
			in[1] = out;
			for (int64_t k = 0; k < 2 * mixtures * n; k++) /* not all are 0 */
				((float *)out.data)[k] += 1;
			out = make_drawn_rows(s.rows, n);
			op = cpu_make_op(TESS_OP_BALANCE_D, in, 2, &out, num, TESS_BALANCE_NUMS);
			expect_near("balance_d", &op, 0);
		}
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

/* ---- experts */

struct mixture {
	int64_t rows, e, slots, k, f, h;
	struct tess_view in[6], out[3];
	struct sums s;
};

static void make_small_mixture(struct mixture *m, int64_t rows, int i)
{
	bool wide = i % 3 == 0; /* wider than a tile */

	m->rows = rows;
	m->e = choose_between(1, 9);
	m->slots = choose_between(1, m->e);
	m->k = choose_between(1, wide ? 140 : 20);
	m->f = choose_between(1, wide ? 40 : 20);
	m->h = choose_between(1, wide ? 70 : 20);
	m->in[0] = make_drawn_rows(rows, m->k);
	m->in[1] = make_asked(rows, m->e, m->slots, i % ASKS);
}

/* Adds the tree over gate and up, which alternate if `limited`: of all units, or one of three. */
static void append_gate_tree(struct mixture *m, bool limited, bool part)
{
	int64_t lo = part ? m->f / 3 : 0, hi = part ? m->f - m->f / 4 : m->f;
	int32_t each = limited ? 2 : 1, terms = limited ? 1 : 2;
	struct sums *s = &m->s;

	s->tree[s->ntree++] = (struct tess_tree){ part ? 3 : 1, part, part + 1, s->nterm, terms };
	for (int32_t up = 0; up < terms; up++) {
		int64_t *bound = s->bound[s->nterm];

		bound[0] = up * m->f + each * lo;
		bound[1] = up * m->f + each * hi;
		s->term[s->nterm++] = (struct tess_term){ .operand = 2, .bound = bound };
	}
}

START_TEST(gradients_through_experts)
{
	static struct mixture m;

	set_up_devices("auto");
	for (int i = 0; i < 2 * ROUNDS; i++) {
		bool turned = i / 4 % 2;
		int32_t dtype = cpu_choose_dtype(i);
		bool biased = i % 3, limited = i % 3 == 2; /* gates alternate with ups */
		double num[TESS_EXPERTS_NUMS] = { TESS_SILU + i % 5 };
		struct tess_op op;

		memset(&m, 0, sizeof m);
		make_small_mixture(&m, choose_between(0, i % 5 ? 20 : 90), i);
		append_unit_tree(&m.s, 0, 1, 0, m.k, m.k);
		append_unit_tree(&m.s, 4, 1, 0, m.h, m.h);
		append_gate_tree(&m, limited, i % 4 == 3);
		num[TESS_EXPERTS_LIMIT] = limited ? 0.5 : 0;
		num[TESS_EXPERTS_ALPHA] = 1.7;
		m.in[2] = make_matrix_stack(make_weight_buffer(dtype, m.e * 2 * m.f * m.k, NULL),
		                            dtype, m.e, 2 * m.f, m.k, turned);
		m.in[3] = make_matrix_stack(make_weight_buffer(dtype, m.e * m.h * m.f, NULL), dtype,
		                            m.e, m.h, m.f, turned);
		m.in[4] = make_drawn_rows(m.rows, m.h);
		m.in[5] = cpu_make_view(make_weight_buffer(dtype, m.e * 2 * m.f, NULL), dtype, m.e,
		                        2 * m.f, 2 * m.f, 1);
		m.out[0] = make_drawn_rows(m.rows, m.slots * m.k);
		if (i % 4 == 3)
			m.out[0] = make_node(&m.out[0]);
		m.out[1] = make_drawn_rows(m.rows, m.slots * 3 * m.f);
		num[TESS_EXPERTS_SLOTS] = (double)m.slots;
		op = cpu_make_sum_op(TESS_OP_EXPERTS_D, m.in, biased ? 6 : 5, m.out, num,
		                     TESS_EXPERTS_NUMS, m.s.tree, 3, m.s.term, m.s.nterm);
		op.nout = 2;
		expect_near("experts_d", &op, near);
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

START_TEST(gradients_of_experts)
{
	static struct mixture m;

	set_up_devices("auto");
	for (int i = 0; i < 2 * ROUNDS; i++) {
		bool turned = i / 4 % 2;
		struct tess_op op;

		memset(&m, 0, sizeof m);
		make_sequences(&m.s, i % (TREES + 1));
		make_small_mixture(&m, m.s.rows, i / 2);
		m.in[2] = make_drawn_rows(m.rows, m.h);
		m.in[3] = make_drawn_rows(m.rows, m.slots * 3 * m.f);
		m.out[0] = make_gradients(m.e, 2 * m.f, m.k, turned);
		m.out[1] = make_gradients(m.e, m.h, m.f, turned);
		m.out[2] = make_gradients(m.e, 2 * m.f, 1, false);
		op = make_token_op(TESS_OP_EXPERTS_DW, &m.s, m.in, 4, m.out);
		op.nout = 2 + i / 2 % 2; /* biases */
		for (int k = 0; k < 3 && i % 4 == 1; k++) /* one sequence of one node or none */
			m.out[k] = make_node(&m.out[k]);
		expect_near("experts_dw", &op, near);
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

START_TEST(gradients_of_weights)
{
	static struct mixture m;

	set_up_devices("auto");
	for (int i = 0; i < ROUNDS; i++) {
		struct tess_op op;

		memset(&m, 0, sizeof m);
		make_small_mixture(&m, choose_between(0, 30), i);
		append_unit_tree(&m.s, 2, 1, 0, m.h, m.h);
		m.in[0] = make_drawn_rows(m.rows, m.slots * m.h);
		m.in[2] = make_drawn_rows(m.rows, m.h);
		m.out[0] = make_drawn_rows(m.rows, m.e);
		op = cpu_make_sum_op(TESS_OP_COMBINE_D, m.in, 3, m.out, NULL, 0, m.s.tree, 1,
		                     m.s.term, 1);
		expect_near("combine_d", &op, near);
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

START_TEST(gradients_of_heads)
{
	static struct sums s;

	set_up_devices("auto");
	for (int i = 0; i < ROUNDS; i++) {
		int64_t heads = choose_between(1, 3), n = choose_between(1, 70),
			k = choose_between(1, 70);
		int64_t rest = choose_between(0, 5);
		struct tess_view in[2], out;
		struct tess_op op;

		make_sequences(&s, i % (TREES + 1));
		in[0] = make_drawn_rows(s.rows, heads * (k + rest));
		in[1] = make_drawn_rows(s.rows, heads * (n + rest));
		out = make_gradients(heads, n, k, i / 4 % 2);
		op = make_token_op(TESS_OP_HEAD_LINEAR_DW, &s, in, 2, &out);
		expect_near("head_linear_dw", &op, near);
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

/* Refuses a row with more experts than slots, without access beyond the slots. */
START_TEST(refuses_more_experts_than_slots)
{
	static struct mixture m;
	static const int64_t bound[] = { 0, 1, 2 };
	struct tess_tree tree = { 1, 0, 1, 0, 1 };
	struct tess_term term = { .operand = 2, .bound = (int64_t[]){ 0, 8 } };
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_COMBINE_D, m.in, 3, m.out, NULL, 0, &tree, 1, &term, 1);

	set_up_devices("auto");
	m.in[0] = make_drawn_rows(3, 8);
	m.in[1] = make_drawn_rows(3, 2); /* no weight is 0 */
	m.in[2] = make_drawn_rows(3, 8);
	m.out[0] = make_drawn_rows(3, 2);
	ck_assert_int_eq(run_on_gpu(&op), TESS_EINVAL);
	expect_part(cpu_sentence, "experts: a row has more experts than slots");
	op.kind = TESS_OP_COMBINE;
	op.nin = 2;
	tree = (struct tess_tree){ 2, 0, 2, 0, 1 };
	term = (struct tess_term){ .operand = 1, .bound = bound };
	m.out[0] = make_drawn_rows(3, 8);
	ck_assert_int_eq(run_on_gpu(&op), TESS_EINVAL);
	expect_part(cpu_sentence, "experts: a row has more experts than slots");
	free_host_buffers();
	tear_down_devices();
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_experts_d", 300, &r);

	tcase_add_test(t, gradients_of_routes);
	tcase_add_test(t, balance);
	tcase_add_test(t, gradients_through_experts);
	tcase_add_test(t, gradients_of_experts);
	tcase_add_test(t, gradients_of_weights);
	tcase_add_test(t, gradients_of_heads);
	tcase_add_test(t, refuses_more_experts_than_slots);
	return suite_end(r);
}

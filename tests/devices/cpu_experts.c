/*
 * cpu_experts.c - ROUTE, EXPERTS and COMBINE on the CPU device, bit for bit against their
 * definitions.
 */
#include "compare.h"

#include <sys/mman.h>
#include <tessera/model.h>
#include <unistd.h>

/* ---- ROUTE */

enum { EXPERTS_MAX = 64 };

struct routing {
	int64_t n, top, groups, kept;
	int flags;
	double eps, scale;
	bool correction;
};

static struct tess_op make_route_op(const struct routing *r, const struct tess_view *in,
                                    const struct tess_view *out, double num[TESS_ROUTE_NUMS])
{
	num[TESS_ROUTE_TOP] = (double)r->top;
	num[TESS_ROUTE_FLAGS] = r->flags;
	num[TESS_ROUTE_EPS] = r->eps;
	num[TESS_ROUTE_SCALE] = r->scale;
	num[TESS_ROUTE_GROUPS] = (double)r->groups;
	num[TESS_ROUTE_GROUPS_KEPT] = (double)r->kept;
	return cpu_make_op(TESS_OP_ROUTE, in, 1 + r->correction, out, num, TESS_ROUTE_NUMS);
}

static const struct routing routings[] = {
	{ 8, 2, 0, 0, TESS_NORMALIZE, 0, 1, false },
	{ 4, 4, 0, 0, TESS_NORMALIZE, 0, 1, false },
	{ 5, 1, 0, 0, 0, 0, 1, false },
	{ 60, 8, 1, 1, 0, 0, 1, false },
	{ 16, 3, 4, 2, TESS_SIGMOID | TESS_NORMALIZE, 1e-20, 2.5, true },
	{ 16, 8, 4, 2, TESS_SIGMOID, 0, 1.5, true },
	{ 12, 2, 6, 6, TESS_NORMALIZE, 0.25, 1, true },
	{ 16, 6, 4, 2, TESS_GROUP_MAX, 0, 16, false },
	{ 12, 5, 4, 3, TESS_SIGMOID | TESS_NORMALIZE | TESS_GROUP_MAX, 0.25, 1, true },
};
enum { ROUTINGS = sizeof routings / sizeof *routings };

/* Draws logits with ties: of values, of complete rows, of groups. */
static void draw_logits(int64_t tokens, int64_t n, float *x)
{
	for (int64_t i = 0; i < tokens * n; i++)
		x[i] = i / n % 3 == 0 ? 8 * cpu_draw_float() : (float)(cpu_draw_random() % 3);
	for (int64_t i = 0; i < n; i++)
		x[i] = 0.5f;
}

START_TEST(routes)
{
	enum { T = 40 };
	const struct routing *r = &routings[_i];
	float x[T * EXPERTS_MAX], y[T * (EXPERTS_MAX + 1)] = { 0 };
	struct cpu_weights b = cpu_make_weights(cpu_choose_dtype(_i), r->n);
	struct tess_view in[2] = { cpu_make_rows(x, T, r->n, r->n),
		                   cpu_make_list(b.data, b.dtype, r->n) };
	struct tess_view out = cpu_make_rows(y, T, r->n, r->n + 1);
	double num[TESS_ROUTE_NUMS];
	struct tess_op op = make_route_op(r, in, &out, num);

	draw_logits(T, r->n, x);
	x[2 * r->n + r->n / 2] = NAN;
	x[3 * r->n] = INFINITY;
	x[4 * r->n + 1] = -INFINITY;
	compare_op(&op);
	scalar_run(&op);
	for (int64_t t = 5; t < T; t++) {
		int64_t asked = 0;

		for (int64_t i = 0; i < r->n; i++)
			asked += y[t * out.stride[0] + i] != 0;
		ck_assert_int_eq(asked, r->top);
	}
	cpu_free_weights(&b);
}
END_TEST

/* ---- EXPERTS, COMBINE */

enum { UNITS_MAX = 64 };

struct moe { /* the operands on one rank: experts [lo, lo + e) of n */
	int64_t tokens, k, f, h, n, lo, e, slots;
	int64_t k_units, f_units, f_lo, f_hi; /* F has units [f_lo, f_hi) of f_units */
	int32_t act, dtype, math;
	struct cpu_weights gate_up, down;
	float *x, *weight;
	struct tess_tree tree[3];
	struct tess_term term[3];
	int64_t bound[3][UNITS_MAX + 1];
};

static void set_moe_tree(struct moe *m, int i, int32_t operand, int64_t n, int64_t lo, int64_t hi,
                         int64_t size)
{
	m->tree[i] = (struct tess_tree){ .n = n, .lo = lo, .hi = hi, .first = i, .terms = 1 };
	m->term[i] = (struct tess_term){ .operand = operand, .bound = m->bound[i] };
	for (int64_t u = 0; u <= hi - lo; u++)
		m->bound[i][u] = tess_edge(size, hi - lo ? hi - lo : 1, u);
}

static void set_up_moe(struct moe *m)
{
	m->gate_up = cpu_make_weights(m->dtype, m->e * 2 * m->f * m->k);
	m->down = cpu_make_weights(m->dtype, m->e * m->h * m->f);
	m->x = cpu_make_floats(m->tokens * m->k);
	m->weight = calloc((size_t)(m->tokens * m->e) + 1, sizeof *m->weight);
	set_moe_tree(m, 0, 0, m->k_units, 0, m->k_units, m->k);
	set_moe_tree(m, 1, 3, m->f_units, m->f_lo, m->f_hi, m->f);
	set_moe_tree(m, 2, 1, m->n, m->lo, m->lo + m->e, m->e);
}

static void free_moe(struct moe *m)
{
	cpu_free_weights(&m->gate_up);
	cpu_free_weights(&m->down);
	free(m->x);
	free(m->weight);
}

static struct tess_view make_stack(const struct cpu_weights *w, int64_t e, int64_t n, int64_t k)
{
	return (struct tess_view){ .data = w->data,
		                   .dtype = w->dtype,
		                   .ndim = 3,
		                   .shape = { e, n, k },
		                   .stride = { n * k, k, 1 } };
}

/* Returns the number of nodes of EXPERTS, or of COMBINE; 0: a finished sum. */
static int64_t count_moe_nodes(const struct moe *m, bool in_slots)
{
	const struct tess_tree *tree = &m->tree[in_slots ? 1 : 2];
	bool whole = tree->hi - tree->lo == tree->n;

	return whole ? 0 : tess_node_count(tree->n, tree->lo, tree->hi);
}

static struct tess_view make_moe_out(const struct moe *m, bool in_slots)
{
	int64_t nodes = count_moe_nodes(m, in_slots), columns = m->h * (in_slots ? m->slots : 1);
	float *y = cpu_make_floats((nodes ? nodes : 1) * m->tokens * columns);

	return nodes ? cpu_make_partial(y, nodes, m->tokens, columns, columns)
	             : cpu_make_rows(y, m->tokens, columns, columns);
}

static struct tess_op make_experts_op(const struct moe *m, struct tess_view in[4],
                                      const struct tess_view *out, double num[TESS_EXPERTS_NUMS])
{
	memset(num, 0, sizeof *num * TESS_EXPERTS_NUMS);
	num[TESS_EXPERTS_ACTIVATION] = m->act;
	num[TESS_EXPERTS_SLOTS] = (double)m->slots;
	num[TESS_EXPERTS_MATH] = m->math;
	in[0] = cpu_make_rows(m->x, m->tokens, m->k, m->k);
	in[1] = cpu_make_rows(m->weight, m->tokens, m->e, m->e);
	in[2] = make_stack(&m->gate_up, m->e, 2 * m->f, m->k);
	in[3] = make_stack(&m->down, m->e, m->h, m->f);
	return cpu_make_sum_op(TESS_OP_EXPERTS, in, 4, out, num, TESS_EXPERTS_NUMS, m->tree, 3,
	                       m->term, 3);
}

static void compare_experts(const struct moe *m)
{
	double num[TESS_EXPERTS_NUMS];
	struct tess_view in[5], out = make_moe_out(m, m->slots > 0);
	struct tess_op op = make_experts_op(m, in, &out, num);

	compare_op(&op);
	in[4] = cpu_make_rows(cpu_make_floats(m->e * 2 * m->f), m->e, 2 * m->f, 2 * m->f);
	op.nin = 5;
	num[TESS_EXPERTS_LIMIT] = 0.4; /* some values are beyond it */
	num[TESS_EXPERTS_ALPHA] = 1.702;
	compare_op(&op);
	free(in[4].data);
	free(out.data);
}

/* Compares COMBINE of finished results in slots. */
static void compare_combine(const struct moe *m)
{
	int64_t columns = m->h * m->slots;
	struct tess_view in[2] = { cpu_make_rows(cpu_make_floats(m->tokens * columns), m->tokens,
		                                 columns, columns),
		                   cpu_make_rows(m->weight, m->tokens, m->e, m->e) };
	struct tess_view out = make_moe_out(m, false);
	struct tess_term term = { .operand = 1, .bound = m->bound[2] };
	struct tess_tree tree = m->tree[2];
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_COMBINE, in, 2, &out, NULL, 0, &tree, 1, &term, 1);

	tree.first = 0;
	compare_op(&op);
	free(in[0].data);
	free(out.data);
}

/* routes of rows, to at most `top` of n experts; this rank has m->e */
enum { RANDOM, ALL_TO_ONE, NONE, SPARSE, ASKS };

static void draw_weights(struct moe *m, int64_t top, int asks)
{
	for (int64_t t = 0; t < m->tokens && asks != NONE; t++) {
		for (int64_t k = 0; k < top; k++) {
			int64_t e = (int64_t)cpu_draw_random() % m->n - m->lo;

			if (asks == ALL_TO_ONE)
				e = m->e / 2;
			if (asks == SPARSE && t % 5)
				continue;
			if (e >= 0 && e < m->e)
				m->weight[t * m->e + e] = cpu_draw_float() + 1.5f;
		}
	}
}

static const struct moe shapes[] = {
	{ .k = 20, .f = 24, .h = 20, .n = 8, .e = 8, .k_units = 8, .f_units = 24, .f_hi = 24 },
	{ .k = 300, .f = 33, .h = 70, .n = 5, .e = 5, .k_units = 1, .f_units = 3, .f_hi = 3 },
	{ .k = 8,
	  .f = 40,
	  .h = 17,
	  .n = 7,
	  .lo = 2,
	  .e = 3,
	  .k_units = 8,
	  .f_units = 5,
	  .f_hi = 5 },
	{ .k = 8,
	  .f = 10,
	  .h = 9,
	  .n = 13,
	  .lo = 12,
	  .e = 1,
	  .k_units = 3,
	  .f_units = 5,
	  .f_hi = 5 },
	{ .k = 16,
	  .f = 3,
	  .h = 33,
	  .n = 60,
	  .lo = 7,
	  .e = 40,
	  .k_units = 2,
	  .f_units = 1,
	  .f_hi = 1 },
};
/* inside: F is cut */
static const struct moe cut_shapes[] = {
	{ .k = 20,
	  .f = 24,
	  .h = 20,
	  .n = 8,
	  .e = 8,
	  .slots = 3,
	  .k_units = 8,
	  .f_units = 5,
	  .f_hi = 5 },
	{ .k = 20,
	  .f = 24,
	  .h = 20,
	  .n = 8,
	  .e = 8,
	  .slots = 3,
	  .k_units = 8,
	  .f_units = 25,
	  .f_lo = 3,
	  .f_hi = 17 },
	{ .k = 9,
	  .f = 14,
	  .h = 40,
	  .n = 7,
	  .lo = 1,
	  .e = 5,
	  .slots = 4,
	  .k_units = 8,
	  .f_units = 14,
	  .f_lo = 5,
	  .f_hi = 9 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes, CUT = sizeof cut_shapes / sizeof *cut_shapes };
static const int64_t moe_tokens[] = { 1, 3, 8, 60 };

static void check_products(const struct moe *shape, int64_t tokens, int asks, int i, int32_t math)
{
	struct moe m = *shape;

	m.tokens = tokens;
	m.dtype = cpu_choose_dtype(i);
	m.math = math;
	m.act = i % 2 ? TESS_SILU : TESS_RELU;
	set_up_moe(&m);
	draw_weights(&m, m.slots ? m.slots : 3, asks);
	compare_experts(&m);
	if (m.slots && m.f_lo == 0)
		compare_combine(&m);
	free_moe(&m);
}

static void check_moe(const struct moe *shape, int64_t tokens, int asks, int i)
{
	check_products(shape, tokens, asks, i, 0);
	if (cpu_choose_dtype(i) == TESS_BF16 || asks % 2)
		check_products(shape, tokens, asks, i, TESS_BF16);
}

START_TEST(experts_of_rows)
{
	for (int t = 0; t < 4; t++)
		for (int asks = 0; asks < ASKS; asks++)
			check_moe(&shapes[_i], moe_tokens[t], asks, t + asks);
}
END_TEST

START_TEST(experts_that_are_cut)
{
	for (int t = 0; t < 4; t++)
		for (int asks = 0; asks < ASKS; asks++)
			check_moe(&cut_shapes[_i], moe_tokens[t], asks, t + asks + 1);
}
END_TEST

/* Checks more rows than a wave has, and more than a group. */
START_TEST(many_rows)
{
	check_moe(&shapes[0], 512, _i ? ALL_TO_ONE : RANDOM, _i);
	check_moe(&cut_shapes[0], 512, _i ? ALL_TO_ONE : RANDOM, _i);
}
END_TEST

/* Checks that a weight that is NaN, or negative, selects its expert. */
START_TEST(odd_weights)
{
	struct moe m = shapes[0];

	m.tokens = 3;
	m.dtype = TESS_F32;
	m.act = TESS_SILU;
	set_up_moe(&m);
	m.weight[1] = NAN;
	m.weight[2] = 1;
	m.weight[m.e] = -0.0f;
	m.weight[m.e + 3] = -2;
	m.weight[2 * m.e + 5] = -1; /* the weight of a result of 0 */
	memset(m.x + 2 * m.k, 0, sizeof *m.x * (size_t)m.k);
	compare_experts(&m);
	free_moe(&m);
}
END_TEST

/* Checks that an expert without rows costs nothing: its weights are not even readable here. */
START_TEST(experts_without_rows_are_not_read)
{
	const int64_t page = sysconf(_SC_PAGESIZE);
	struct moe m = { .tokens = 2, .k = 16, .h = 16, .n = 6, .e = 6, .k_units = 8 };
	double num[TESS_EXPERTS_NUMS];
	struct tess_view in[4], out;
	float y[2 * 16], want[2 * 16];
	struct tess_op op;
	char *memory;

	m.f = page / (16 * 4); /* a page for each of gate, up and down of an expert */
	m.f_units = m.f_hi = 32;
	m.act = TESS_SILU;
	m.dtype = TESS_F32;
	set_up_moe(&m);
	m.weight[1] = m.weight[m.e + 4] = 0.5f;
	out = cpu_make_rows(want, 2, 16, 16);
	op = make_experts_op(&m, in, &out, num);
	scalar_run(&op);
	memory = mmap(NULL, (size_t)(18 * page), PROT_READ | PROT_WRITE,
	              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert(memory != MAP_FAILED);
	memcpy(memory, m.gate_up.data, (size_t)(12 * page));
	memcpy(memory + 12 * page, m.down.data, (size_t)(6 * page));
	for (int e = 0; e < 6; e++) {
		if (e == 1 || e == 4)
			continue;
		ck_assert_int_eq(mprotect(memory + 2 * e * page, (size_t)(2 * page), PROT_NONE), 0);
		ck_assert_int_eq(mprotect(memory + (12 + e) * page, (size_t)page, PROT_NONE), 0);
	}
	in[2].data = memory;
	in[3].data = memory + 12 * page;
	out.data = y;
	for (struct cpu_devices d = { 0 }; cpu_open_next(&d);) {
		cpu_run_op(d.now, &op);
		cpu_expect_equal(d.variant->isa, y, want, 2 * 16);
	}
	munmap(memory, (size_t)(18 * page));
	free_moe(&m);
}
END_TEST

/*
 * Checks that mismatches are refused with the module's name; each is one change to an accepted op.
 */
START_TEST(refuses)
{
	void *device = cpu_open_device("auto", 1);
	struct moe m = cut_shapes[0];
	double num[TESS_EXPERTS_NUMS], route[TESS_ROUTE_NUMS];
	struct tess_view in[4], out, logits[2], weights;
	struct tess_op op, routed;
	float memory[3 * 60];

	m.tokens = 2;
	m.dtype = TESS_BF16;
	m.act = TESS_SILU;
	set_up_moe(&m);
	out = cpu_make_rows(memory, 2, 3 * m.h, 3 * m.h);
	op = make_experts_op(&m, in, &out, num);
	logits[0] = cpu_make_rows(m.x, 2, 16, 16);
	logits[1] = cpu_make_list(m.x, TESS_F32, 16);
	weights = cpu_make_rows(memory, 2, 16, 16);
	routed = make_route_op(&routings[4], logits, &weights, route);
#define REFUSED(o, field, value, says) \
	do { \
		__typeof__(field) old = field; \
		ck_assert_msg(cpu_check_op(&o) == TESS_OK, "%s", cpu_sentence); \
		field = value; \
		ck_assert_int_eq(cpu_check_op(&o), TESS_ENOTSUP); \
		expect_part(cpu_sentence, "layers.0.mlp"); \
		expect_part(cpu_sentence, says); \
		field = old; \
	} while (0)
	REFUSED(op, in[2].shape[0], 7, "gate_up [e, 2F, K]");
	REFUSED(op, in[2].shape[1], 2 * m.f + 1, "gate_up [e, 2F, K]");
	REFUSED(op, in[3].dtype, TESS_I32, "f32, bf16 or f16");
	REFUSED(op, in[1].shape[0], 3, "weights [T, e]");
	REFUSED(op, op.ntree, 2, "three trees");
	REFUSED(op, num[TESS_EXPERTS_SLOTS], 2, "with s slots");
	REFUSED(op, num[TESS_EXPERTS_ACTIVATION], 0, "activation");
	REFUSED(op, m.tree[1].lo, 1, "over all units");
	REFUSED(op, m.tree[2].hi, 7, "an expert must be a unit");
	REFUSED(op, m.term[1].operand, 0, "the wrong operand");
	REFUSED(op, m.term[0].operand, 1, "summed operand is 0");
	REFUSED(routed, logits[1].shape[0], 15, "a correction [E]");
	REFUSED(routed, route[TESS_ROUTE_TOP], 17, "at most E");
	REFUSED(routed, route[TESS_ROUTE_GROUPS], 3, "groups must be equal");
	REFUSED(routed, route[TESS_ROUTE_GROUPS], 16, "of two or more");
	REFUSED(routed, route[TESS_ROUTE_TOP], 9, "must have `top` of them");
	/* found only when the op runs */
	for (int64_t e = 0; e < 4; e++)
		m.weight[m.e + e] = 1;
	ck_assert_int_lt(cpu_device->run(device, &op), 0);
	expect_part(cpu_sentence, "layers.0.mlp: cpu: a row asks for 4 experts, but has 3 slots");
	free_moe(&m);
	cpu_device->close(device);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("cpu_experts", 60, &r);

	tcase_add_loop_test(t, routes, 0, ROUTINGS);
	tcase_add_loop_test(t, experts_of_rows, 0, SHAPES);
	tcase_add_loop_test(t, experts_that_are_cut, 0, CUT);
	tcase_add_loop_test(t, many_rows, 0, 2);
	tcase_add_test(t, odd_weights);
	tcase_add_test(t, experts_without_rows_are_not_read);
	tcase_add_test(t, refuses);
	return suite_end(r);
}

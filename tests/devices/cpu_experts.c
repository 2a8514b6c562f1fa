/* ROUTE, EXPERTS and COMBINE on the CPU device, bit for bit against their definitions. */
#include "devices/mathf.h"
#include "tests/support/cpu.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- ROUTE */

enum { SIGMOID = 1, NORMALIZE = 2 };
enum { EXPERTS_MAX = 64 };

struct routing {
	int64_t n, top, groups, kept;
	int flags;
	double eps, scale;
	bool correction;
};

static bool is_before(const float *v, int64_t i, int64_t k)
{
	if (isnan(v[i]) || isnan(v[k]))
		return isnan(v[i]) && (!isnan(v[k]) || i < k);
	return v[i] > v[k] || (v[i] == v[k] && i < k);
}

/* Of those with `in`, whether i is one of the `count` first by value, then by index. */
static bool is_chosen(const float *v, const bool *in, int64_t n, int64_t count, int64_t i)
{
	int64_t before = 0;

	for (int64_t k = 0; k < n; k++)
		before += k != i && in[k] && is_before(v, k, i);
	return in[i] && before < count;
}

static void compute_routing(const struct routing *r, const float *x, const float *b, float *y)
{
	float score[EXPERTS_MAX], choice[EXPERTS_MAX], best[EXPERTS_MAX], m = -INFINITY, sum = 0;
	bool in[EXPERTS_MAX], all[EXPERTS_MAX];
	int64_t each = r->groups > 1 ? r->n / r->groups : r->n;

	for (int64_t i = 0; i < r->n; i++)
		m = fmaxf(m, x[i]);
	for (int64_t i = 0; i < r->n; i++)
		sum += score[i] = mathf_exp(x[i] - m);
	for (int64_t i = 0; i < r->n; i++) {
		score[i] = r->flags & SIGMOID ? 1 / (1 + mathf_exp(-x[i])) : score[i] / sum;
		choice[i] = r->correction ? score[i] + b[i] : score[i];
		all[i] = true;
	}
	for (int64_t g = 0; g < r->n / each; g++) {
		best[g] = 0;
		for (int64_t i = 0; i < each; i++)
			if (is_chosen(choice + g * each, all, each, 2, i))
				best[g] += choice[g * each + i];
	}
	for (int64_t i = 0; i < r->n; i++)
		in[i] = r->groups <= 1 || is_chosen(best, all, r->groups, r->kept, i / each);
	sum = 0;
	for (int64_t i = 0; i < r->n; i++)
		if (is_chosen(choice, in, r->n, r->top, i))
			sum += score[i];
	for (int64_t i = 0; i < r->n; i++) {
		y[i] = r->flags & NORMALIZE ? score[i] / (sum + (float)r->eps) : score[i];
		y[i] = is_chosen(choice, in, r->n, r->top, i) ? y[i] * (float)r->scale : 0;
	}
}

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
	{ 8, 2, 0, 0, NORMALIZE, 0, 1, false },
	{ 4, 4, 0, 0, NORMALIZE, 0, 1, false },
	{ 5, 1, 0, 0, 0, 0, 1, false },
	{ 60, 8, 1, 1, 0, 0, 1, false },
	{ 16, 3, 4, 2, SIGMOID | NORMALIZE, 1e-20, 2.5, true },
	{ 16, 8, 4, 2, SIGMOID, 0, 1.5, true },
	{ 12, 2, 6, 6, NORMALIZE, 0.25, 1, true },
};
enum { ROUTINGS = sizeof routings / sizeof *routings };

/* Logits with ties: of values, of whole rows, of groups. */
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
	float x[T * EXPERTS_MAX], want[T * EXPERTS_MAX], got[T * (EXPERTS_MAX + 1)];
	struct cpu_weights b = cpu_make_weights(cpu_choose_dtype(_i), r->n);
	struct tess_view in[2] = { cpu_make_rows(x, T, r->n, r->n),
		                   cpu_make_list(b.data, b.dtype, r->n) };
	struct tess_view out = cpu_make_rows(got, T, r->n, r->n + 1);
	double num[TESS_ROUTE_NUMS];
	struct tess_op op = make_route_op(r, in, &out, num);
	struct cpu_devices d = { 0 };

	draw_logits(T, r->n, x);
	x[2 * r->n + r->n / 2] = NAN;
	x[3 * r->n] = INFINITY;
	x[4 * r->n + 1] = -INFINITY;
	for (int64_t t = 0; t < T; t++)
		compute_routing(r, x + t * r->n, b.value, want + t * r->n);
	while (cpu_open_next(&d)) {
		cpu_run_op(d.now, &op);
		for (int64_t t = 0; t < T; t++)
			cpu_expect_equal(d.variant->isa, got + t * (r->n + 1), want + t * r->n,
			                 r->n);
	}
	for (int64_t t = 5; t < T; t++) {
		int64_t asked = 0;

		for (int64_t i = 0; i < r->n; i++)
			asked += want[t * r->n + i] != 0;
		ck_assert_int_eq(asked, r->top);
	}
	cpu_free_weights(&b);
}
END_TEST

/* ---- EXPERTS, COMBINE */

enum { UNITS_MAX = 128 };

struct moe { /* on one rank: experts [lo, lo + e) of n */
	int64_t tokens, k, f, h, n, lo, e, slots;
	int64_t k_units, f_units, f_lo, f_hi; /* F has units [f_lo, f_hi) of f_units */
	int32_t act, dtype, math;
	struct cpu_weights gate_up, down;
	float *x, *weight, *want; /* want: the out, dense */
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
	free(m->want);
}

struct product {
	const int64_t *bound;
	const float *x, *w;
	bool pairs; /* products of bf16 */
};

static float sum_unit_products(const void *arg, const struct tess_tree *tree, int64_t u)
{
	const struct product *p = arg;
	float acc = 0;

	int64_t first = p->bound[u - tree->lo], end = p->bound[u - tree->lo + 1];

	if (p->pairs)
		return cpu_add_pairs(p->x + first, p->w + first, end - first, 0);
	for (int64_t k = first; k < end; k++)
		acc = fmaf(p->x[k], p->w[k], acc);
	return acc;
}

/* The nodes over F, or the finished sum, of each column of one expert's result for a row. */
static int64_t compute_expert(const struct moe *m, int64_t t, int64_t e, bool nodes, float *z)
{
	float *h = malloc(sizeof *h * (size_t)(2 * m->f));
	int64_t count = 1;

	for (int64_t j = 0; j < 2 * m->f; j++) {
		struct product p = { m->bound[0], m->x + t * m->k,
			             m->gate_up.value + (e * 2 * m->f + j) * m->k,
			             m->math == TESS_BF16 };

		h[j] = cpu_sum_trees(&m->tree[0], 1, sum_unit_products, &p);
	}
	for (int64_t j = 0; j < m->f; j++)
		h[j] = (m->act == TESS_RELU ? (h[j] < 0 ? 0 : h[j])
		                            : h[j] * (1 / (1 + mathf_exp(-h[j])))) *
		       h[m->f + j];
	for (int64_t j = 0; j < m->h; j++) {
		struct product p = { m->bound[1], h, m->down.value + (e * m->h + j) * m->f,
			             m->math == TESS_BF16 };

		if (nodes)
			count = cpu_sum_nodes(&m->tree[1], 1, sum_unit_products, &p,
			                      z + j * UNITS_MAX);
		else
			z[j * UNITS_MAX] = cpu_sum_trees(&m->tree[1], 1, sum_unit_products, &p);
	}
	free(h);
	return count;
}

struct weighted {
	const struct moe *m;
	const float *z; /* [e] */
	int64_t t;
};

static float weigh_expert(const void *arg, const struct tess_tree *tree, int64_t u)
{
	const struct weighted *w = arg;
	float weight = w->m->weight[w->t * w->m->e + u - tree->lo];

	return weight != 0 ? weight * w->z[u - tree->lo] : 0;
}

/* Column j of the weighted sum of z [e], to out [nodes][tokens][h]. */
static void combine_column(const struct moe *m, int64_t t, int64_t j, const float *z, bool nodes,
                           float *out)
{
	struct weighted w = { m, z, t };
	float node[UNITS_MAX];
	int64_t count = 1;

	if (nodes)
		count = cpu_sum_nodes(&m->tree[2], 1, weigh_expert, &w, node);
	else
		node[0] = cpu_sum_trees(&m->tree[2], 1, weigh_expert, &w);
	for (int64_t i = 0; i < count; i++)
		out[(i * m->tokens + t) * m->h + j] = node[i];
}

/* m->want of EXPERTS; returns its nodes, 0: finished. */
static int64_t compute_moe(struct moe *m)
{
	bool whole = m->slots ? m->f_lo == 0 && m->f_hi == m->f_units : m->e == m->n;
	const struct tess_tree *tree = &m->tree[m->slots ? 1 : 2];
	int64_t nodes = whole ? 0 : tess_node_count(tree->n, tree->lo, tree->hi), count,
		columns = m->h * (m->slots ? m->slots : 1);
	float *z = malloc(sizeof *z * (size_t)(m->h * UNITS_MAX)),
	      *apart = calloc((size_t)(m->h * m->e + 1), sizeof *apart);

	m->want = calloc((size_t)((nodes ? nodes : 1) * m->tokens * columns) + 1, sizeof *m->want);
	for (int64_t t = 0; t < m->tokens; t++) {
		int64_t slot = 0;

		for (int64_t e = 0; e < m->e; e++) {
			if (m->weight[t * m->e + e] == 0)
				continue;
			count = compute_expert(m, t, e, m->slots && nodes, z);
			for (int64_t j = 0; j < m->h; j++) {
				apart[j * m->e + e] = z[j * UNITS_MAX];
				for (int64_t i = 0; i < count && m->slots; i++)
					m->want[(i * m->tokens + t) * columns + slot * m->h + j] =
						z[j * UNITS_MAX + i];
			}
			slot++;
		}
		for (int64_t j = 0; j < m->h && !m->slots; j++)
			combine_column(m, t, j, apart + j * m->e, nodes, m->want);
	}
	free(z);
	free(apart);
	return nodes;
}

static struct tess_view make_stack(const struct cpu_weights *w, int64_t e, int64_t n, int64_t k)
{
	return (struct tess_view){ .data = w->data,
		                   .dtype = w->dtype,
		                   .ndim = 3,
		                   .shape = { e, n, k },
		                   .stride = { n * k, k, 1 } };
}

/* EXPERTS on every device, from rows and from panels. */
static void compare_experts(struct moe *m)
{
	int64_t nodes = compute_moe(m), columns = m->h * (m->slots ? m->slots : 1),
		rows = (nodes ? nodes : 1) * m->tokens;
	double num[TESS_EXPERTS_NUMS] = { m->act, (double)m->slots, m->math };
	struct tess_view in[4] = { cpu_make_rows(m->x, m->tokens, m->k, m->k),
		                   cpu_make_rows(m->weight, m->tokens, m->e, m->e) };
	struct tess_view out, stack[2] = { make_stack(&m->gate_up, m->e, 2 * m->f, m->k),
		                           make_stack(&m->down, m->e, m->h, m->f) };
	struct tess_op op = cpu_make_sum_op(TESS_OP_EXPERTS, in, 4, &out, num, TESS_EXPERTS_NUMS,
	                                    m->tree, 3, m->term, 3);
	struct cpu_devices d = { 0 };
	char what[128];

	for (int run = 0; run % 2 || cpu_open_next(&d); run++) {
		float *got = malloc(sizeof *got * (size_t)(rows * columns + 1));

		memset(got, 0x7f, sizeof *got * (size_t)(rows * columns));
		out = nodes ? cpu_make_partial(got, nodes, m->tokens, columns, columns)
		            : cpu_make_rows(got, m->tokens, columns, columns);
		for (int i = 0; i < 2; i++)
			in[2 + i] = run % 2 ? cpu_pack_matrices(d.now, &stack[i]) : stack[i];
		cpu_run_op(d.now, &op);
		snprintf(what, sizeof what, "%s %s, %d threads, %lld rows, %lld slots",
		         d.variant->isa, run % 2 ? "panels" : "rows", (int)d.variant->nthreads,
		         (long long)m->tokens, (long long)m->slots);
		cpu_expect_equal(what, got, m->want, rows * columns);
		for (int i = 0; i < 2 && run % 2; i++)
			free(in[2 + i].data);
		free(got);
	}
}

/* COMBINE of finished results in slots is EXPERTS without slots. */
static void compare_combine(struct moe *m)
{
	int64_t slots = m->slots, rows, nodes, columns = m->h * m->slots;
	float *z = m->want, *got;
	struct tess_view in[2] = { cpu_make_rows(z, m->tokens, columns, columns),
		                   cpu_make_rows(m->weight, m->tokens, m->e, m->e) };
	struct tess_term term = { .operand = 1, .bound = m->bound[2] };
	struct tess_tree tree = m->tree[2];
	struct cpu_devices d = { 0 };
	struct tess_view out;
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_COMBINE, in, 2, &out, NULL, 0, &tree, 1, &term, 1);

	m->slots = 0;
	tree.first = 0;
	nodes = compute_moe(m);
	rows = (nodes ? nodes : 1) * m->tokens;
	got = malloc(sizeof *got * (size_t)(rows * m->h + 1));
	out = nodes ? cpu_make_partial(got, nodes, m->tokens, m->h, m->h)
	            : cpu_make_rows(got, m->tokens, m->h, m->h);
	while (cpu_open_next(&d)) {
		memset(got, 0x7f, sizeof *got * (size_t)(rows * m->h));
		cpu_run_op(d.now, &op);
		cpu_expect_equal(d.variant->isa, got, m->want, rows * m->h);
	}
	free(got);
	free(z);
	m->slots = slots;
}

/* How rows ask for experts; `top` of n at most, of which this rank has m->e. */
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
	if (cpu_choose_dtype(i) == TESS_BF16)
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

/* More rows than a wave has, and more than a group. */
START_TEST(many_rows)
{
	check_moe(&shapes[0], 512, _i ? ALL_TO_ONE : RANDOM, _i);
	check_moe(&cut_shapes[0], 512, _i ? ALL_TO_ONE : RANDOM, _i);
}
END_TEST

/* A weight that is NaN asks; so does one that is negative. */
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
	m.weight[2 * m.e + 5] = -1; /* of a result of 0 */
	memset(m.x + 2 * m.k, 0, sizeof *m.x * (size_t)m.k);
	compare_experts(&m);
	ck_assert(isnan(m.want[0]));
	free_moe(&m);
}
END_TEST

/* An expert that no row asks for costs nothing: its weights are not even readable here. */
START_TEST(experts_without_rows_are_not_read)
{
	const int64_t page = sysconf(_SC_PAGESIZE);
	struct moe m = { .tokens = 2, .k = 16, .h = 16, .n = 6, .e = 6, .k_units = 8 };
	struct tess_view in[4], out;
	float y[2 * 16];
	char *memory;

	m.f = page / (16 * 4); /* a page for each of gate, up and down of an expert */
	m.f_units = m.f_hi = 32;
	m.act = TESS_SILU;
	m.dtype = TESS_F32;
	set_up_moe(&m);
	m.weight[1] = m.weight[m.e + 4] = 0.5f;
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
	in[0] = cpu_make_rows(m.x, 2, 16, 16);
	in[1] = cpu_make_rows(m.weight, 2, 6, 6);
	in[2] = make_stack(&m.gate_up, 6, 2 * m.f, 16);
	in[2].data = memory;
	in[3] = make_stack(&m.down, 6, 16, m.f);
	in[3].data = memory + 12 * page;
	out = cpu_make_rows(y, 2, 16, 16);
	compute_moe(&m);
	for (struct cpu_devices d = { 0 }; cpu_open_next(&d);) {
		double num[TESS_EXPERTS_NUMS] = { TESS_SILU, 0 };
		struct tess_op op = cpu_make_sum_op(TESS_OP_EXPERTS, in, 4, &out, num,
		                                    TESS_EXPERTS_NUMS, m.tree, 3, m.term, 3);

		cpu_run_op(d.now, &op);
		cpu_expect_equal(d.variant->isa, y, m.want, 2 * 16);
	}
	munmap(memory, (size_t)(18 * page));
	free_moe(&m);
}
END_TEST

/* What does not fit is refused with the module's name; each change is of ops that are accepted. */
START_TEST(refuses)
{
	void *device = cpu_open_device("auto", 1);
	struct moe m = cut_shapes[0];
	double num[TESS_EXPERTS_NUMS] = { TESS_SILU, 3 }, route[TESS_ROUTE_NUMS];
	struct tess_view in[4], out, logits[2], weights;
	struct tess_op op, routed;
	float memory[3 * 60];

	m.tokens = 2;
	m.dtype = TESS_BF16;
	set_up_moe(&m);
	in[0] = cpu_make_rows(m.x, 2, m.k, m.k);
	in[1] = cpu_make_rows(m.weight, 2, m.e, m.e);
	in[2] = make_stack(&m.gate_up, m.e, 2 * m.f, m.k);
	in[3] = make_stack(&m.down, m.e, m.h, m.f);
	out = cpu_make_rows(memory, 2, 3 * m.h, 3 * m.h);
	op = cpu_make_sum_op(TESS_OP_EXPERTS, in, 4, &out, num, TESS_EXPERTS_NUMS, m.tree, 3,
	                     m.term, 3);
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
	REFUSED(op, m.term[1].operand, 0, "another operand");
	REFUSED(op, m.term[0].operand, 1, "summed operand is 0");
	REFUSED(routed, logits[1].shape[0], 15, "a correction [E]");
	REFUSED(routed, route[TESS_ROUTE_TOP], 17, "at most E");
	REFUSED(routed, route[TESS_ROUTE_GROUPS], 3, "groups must be equal");
	REFUSED(routed, route[TESS_ROUTE_GROUPS], 16, "of two or more");
	REFUSED(routed, route[TESS_ROUTE_TOP], 9, "must have `top` of them");
	/* found only when it runs */
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

/* cpu_linear.c - LINEAR on the CPU device, bit for bit against its definition. */
#include "compare.h"

#include <sys/mman.h>
#include <unistd.h>

static double math; /* number of the next op: TESS_BF16, or 0 */

/* Makes an op with one result for each weight. */
static struct tess_op make_linear_op(const struct tess_view *in, int32_t nin,
                                     const struct tess_view *out, const struct tess_tree *tree,
                                     int32_t ntree, const struct tess_term *term, int32_t nterm)
{
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_LINEAR, in, nin, out, NULL, 0, tree, ntree, term, nterm);

	op.nout = nin - 1;
	op.num = &math;
	op.nnum = math != 0;
	return op;
}

enum { TREES_MAX = 4, UNITS_MAX = 64, NODES_MAX = 64 };

/* The trees of a contraction over K elements, and memory for their bounds. */
struct contraction {
	int64_t k;
	int32_t ntree, nterm;
	struct tess_tree tree[TREES_MAX];
	struct tess_term term[2 * TREES_MAX];
	int64_t bound[2 * TREES_MAX][UNITS_MAX + 1];
};

/* Adds a tree: units [lo, hi) of n, each of `size` elements (or one more) of every term. */
static void add_contraction_tree(struct contraction *c, int64_t n, int64_t lo, int64_t hi,
                                 int32_t terms, int64_t size)
{
	c->tree[c->ntree++] =
		(struct tess_tree){ .n = n, .lo = lo, .hi = hi, .first = c->nterm, .terms = terms };
	for (int32_t i = 0; i < terms; i++) {
		int64_t *bound = c->bound[c->nterm];

		bound[0] = c->k + (c->nterm > 0 ? 1 : 0); /* an element outside all units */
		for (int64_t u = 0; u < hi - lo; u++)
			bound[u + 1] = bound[u] + size + (int64_t)(cpu_draw_random() % 2);
		c->k = bound[hi - lo];
		c->term[c->nterm].bound = bound;
		c->nterm++;
	}
}

struct weight {
	struct cpu_weights data;
	struct tess_view rows;
	int64_t n;
};

/* Makes a weight; order 0: [out, in], contiguous; 1: [in, out]; 2: rows with gaps. */
static struct weight make_test_weight(int64_t n, int64_t k, int32_t dtype, int order)
{
	struct weight w = { .data = cpu_make_weights(dtype, n * (k + 3)), .n = n };

	if (order == 1)
		w.rows = cpu_make_matrix(&w.data, n, k, 1, n);
	else
		w.rows = cpu_make_matrix(&w.data, n, k, order == 2 ? k + 3 : k, 1);
	return w;
}

/* Compares one op with two weights. */
static void compare_products(const struct contraction *c, int64_t tokens, const int64_t n[2],
                             bool partial, int dtype)
{
	struct weight w[2];
	struct tess_view in[3] = { 0 }, out[2] = { 0 };
	struct tess_op op = make_linear_op(in, 3, out, c->tree, c->ntree, c->term, c->nterm);
	int64_t nodes = 0, pitch;
	float *y;

	for (int32_t i = 0; partial && i < c->ntree; i++)
		nodes += tess_node_count(c->tree[i].n, c->tree[i].lo, c->tree[i].hi);
	in[0] = cpu_make_rows(cpu_make_floats(tokens * c->k), tokens, c->k, c->k);
	for (int i = 0; i < 2; i++) {
		w[i] = make_test_weight(n[i], c->k,
		                        math == 0   ? cpu_choose_dtype(dtype + i)
		                        : dtype % 2 ? TESS_BF16
		                                    : cpu_choose_dtype(dtype / 2),
		                        (dtype + i) % 3);
		in[1 + i] = w[i].rows;
		pitch = n[i] + dtype % 2;
		y = cpu_make_floats((nodes ? nodes : 1) * tokens * pitch);
		out[i] = partial ? cpu_make_partial(y, nodes, tokens, n[i], pitch)
		                 : cpu_make_rows(y, tokens, n[i], pitch);
	}
	compare_op(&op);
	free(in[0].data);
	for (int i = 0; i < 2; i++) {
		cpu_free_weights(&w[i].data);
		free(out[i].data);
	}
}

static void compare_linear(const struct contraction *c, int64_t tokens, const int64_t n[2],
                           bool partial, int dtype)
{
	compare_products(c, tokens, n, partial, dtype);
	math = TESS_BF16;
	compare_products(c, tokens, n, partial, dtype);
	math = 0;
}

START_TEST(finished_sums)
{
	static const int64_t units[] = { 1, 5, 8, 28, 32, 40 };
	static const int64_t n[][2] = { { 1, 40 }, { 16, 17 }, { 150, 64 } };

	for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
		for (int t = 0; t < NTOKENS; t++) {
			struct contraction c = { 0 };

			add_contraction_tree(&c, units[u], 0, units[u], 1, units[u] == 1 ? 600 : 7);
			compare_linear(&c, tokens_of[t], n[(u + (size_t)t) % 3], false, (int)u + t);
		}
	}
}
END_TEST

START_TEST(nodes_of_ranks)
{
	static const int64_t n[2] = { 33, 70 };

	for (int64_t units = 5; units <= 40; units += 7) {
		for (int64_t rank = 0; rank < 3; rank++) {
			struct contraction c = { .k = 2 };

			add_contraction_tree(&c, units, tess_edge(units, 3, rank),
			                     tess_edge(units, 3, rank + 1), 1, 6);
			compare_linear(&c, tokens_of[(units + rank) % NTOKENS], n, true,
			               (int)(units + rank));
		}
	}
}
END_TEST

START_TEST(several_trees_and_terms)
{
	static const int64_t n[2] = { 20, 100 };

	for (int t = 0; t < NTOKENS; t++) {
		struct contraction whole = { 0 }, part = { .k = 1 };

		add_contraction_tree(&whole, 7, 0, 7, 2, 3);
		add_contraction_tree(&whole, 1, 0, 1, 1, 300);
		add_contraction_tree(&whole, 12, 0, 12, 1, 0); /* some units are empty */
		compare_linear(&whole, tokens_of[t], n, false, t);
		add_contraction_tree(&part, 7, 2, 6, 2, 3);
		add_contraction_tree(&part, 9, 4, 4, 1, 3); /* a rank without units */
		add_contraction_tree(&part, 28, 3, 28, 1, 5);
		compare_linear(&part, tokens_of[t], n, true, t);
	}
}
END_TEST

START_TEST(rows_beyond_a_block)
{
	static const int64_t n[2] = { 18, 5 };
	struct contraction c = { 0 };

	add_contraction_tree(&c, 3, 0, 3, 1, 11);
	compare_linear(&c, 0, n, false, 0);
	compare_linear(&c, 7, n, false, 0);
	compare_linear(&c, 197, n, false, 0);
}
END_TEST

/* Multiplies few rows of panels in ranges, and panels after them. */
START_TEST(runs_of_panels)
{
	static const int64_t n[2] = { 1100, 417 };
	struct contraction c = { 0 };

	add_contraction_tree(&c, 8, 0, 8, 1, 64);
	compare_linear(&c, 1, n, false, 0);
	compare_linear(&c, 5, n, true, 1);
}
END_TEST

/* Checks that nodes of ranks, added by one tree, give the finished sum of one rank. */
START_TEST(partials_finish_alike)
{
	enum { UNITS = 28, EACH = 9, N = 35, T = 5, K = UNITS * EACH };
	struct weight w = make_test_weight(N, K, TESS_BF16, 0);
	float *x = cpu_make_floats(T * K), whole[T * N], part[8][8 * T * N], leaves[UNITS_MAX];
	int64_t bound[UNITS + 1], at, used[8];
	void *device = cpu_open_device("auto", 2);

	for (int64_t u = 0; u <= UNITS; u++)
		bound[u] = u * EACH;
	for (int64_t ranks = 1; ranks <= 8; ranks++) {
		for (int64_t r = 0; r < ranks; r++) {
			struct tess_tree tree = { .n = UNITS,
				                  .lo = tess_edge(UNITS, ranks, r),
				                  .hi = tess_edge(UNITS, ranks, r + 1),
				                  .terms = 1 };
			struct tess_term term = { .bound = bound };
			int64_t nodes = tess_node_count(UNITS, tree.lo, tree.hi),
				first = tree.lo * EACH;
			struct tess_view in[2] = {
				cpu_make_rows(x + first, T, (tree.hi - tree.lo) * EACH, K), w.rows
			};
			struct tess_view out = cpu_make_partial(part[r], nodes, T, N, N);
			struct tess_op op = make_linear_op(in, 2, &out, &tree, 1, &term, 1);

			in[1].data = w.data.data + first * 2;
			in[1].shape[1] = in[0].shape[1];
			if (ranks == 1)
				out = cpu_make_rows(whole, T, N, N);
			cpu_run_op(device, &op);
		}
		if (ranks == 1)
			continue;
		for (int64_t i = 0; i < T * N; i++) {
			/*
			 * A node is added like a leaf: put it at the place of its first unit, and
			 * -0, which adds nothing, at the places of the others.
			 */
			struct tess_node node;
			float sum[UNITS];

			memset(used, 0, sizeof used);
			for (int64_t u = 0; u < UNITS; u++)
				leaves[u] = -0.0f;
			for (int64_t r = 0; r < ranks; r++)
				for (at = tess_edge(UNITS, ranks, r);
				     tess_node_next(UNITS, tess_edge(UNITS, ranks, r),
				                    tess_edge(UNITS, ranks, r + 1), &at, &node);)
					leaves[node.lo] = part[r][used[r]++ * T * N + i];
			scalar_sum_nodes(UNITS, 0, UNITS, leaves, sum);
			MUST(cpu_is_same(sum[0] + 0.0f, whole[i]));
		}
	}
	cpu_device->close(device);
	cpu_free_weights(&w.data);
	free(x);
}
END_TEST

/* Checks fma(-1e-30, 1e-30, +0), which is -0: a node may be -0, a finished sum never. */
START_TEST(finished_sums_are_not_minus_zero)
{
	float x[48], w[16] = { 0 }, y[48 * 16];
	int64_t bound[] = { 0, 1 };
	struct tess_tree tree = { .n = 1, .hi = 1, .terms = 1 };
	struct tess_term term = { .bound = bound };
	struct cpu_devices d = { 0 };

	for (int i = 0; i < 48; i++)
		x[i] = -1e-30f;
	for (int j = 0; j < 16; j++)
		w[j] = 1e-30f;
	while (cpu_open_next(&d)) {
		for (int t = 0; t < NTOKENS; t++) {
			struct tess_view in[2] = { cpu_make_rows(x, tokens_of[t], 1, 1),
				                   cpu_make_rows(w, 16, 1, 1) };
			struct tess_view out = cpu_make_rows(y, tokens_of[t], 16, 16);
			struct tess_op op = make_linear_op(in, 2, &out, &tree, 1, &term, 1);

			cpu_run_op(d.now, &op);
			for (int64_t i = 0; i < tokens_of[t] * 16; i++)
				MUST(cpu_is_same(y[i], 0.0f));
			out = cpu_make_partial(y, 1, tokens_of[t], 16, 16);
			cpu_run_op(d.now, &op);
			for (int64_t i = 0; i < tokens_of[t] * 16; i++)
				MUST(cpu_is_same(y[i], -0.0f));
		}
	}
}
END_TEST

/*
 * Checks that ranges of columns of K of a weight in panels, and ranges of panels, are views of it.
 */
START_TEST(views_of_panels)
{
	enum { N = 40, K = 50, FROM = 13, LEN = 20 };
	struct weight w = make_test_weight(N, K, TESS_BF16, 0);
	float *x = cpu_make_floats(LEN), y[N], want[N];
	int64_t bound[] = { 0, 8, LEN };
	struct tess_tree tree = { .n = 2, .hi = 2, .terms = 1 };
	struct tess_term term = { .bound = bound };
	struct tess_view in[2], out = cpu_make_rows(y, 1, N, N), panels;
	struct tess_op op = make_linear_op(in, 2, &out, &tree, 1, &term, 1);
	void *device = cpu_open_device("auto", 1);

	in[0] = cpu_make_rows(x, 1, LEN, LEN);
	in[1] = w.rows;
	in[1].data = w.data.data + FROM * 2;
	in[1].shape[1] = LEN;
	cpu_run_op(device, &op);
	memcpy(want, y, sizeof y);
	panels = cpu_pack_weight(device, &w.rows);
	ck_assert_int_eq(panels.layout, TESS_PANELS);
	ck_assert_int_eq(panels.stride[0], K * 16);
	ck_assert_int_eq(panels.stride[1], 16);
	in[1] = panels;
	in[1].data = (char *)panels.data + FROM * 16 * 2;
	in[1].shape[1] = LEN;
	memset(y, 0, sizeof y);
	cpu_run_op(device, &op);
	cpu_expect_equal("columns", y, want, N);
	in[1].data = (char *)in[1].data + panels.stride[0] * 2;
	in[1].shape[0] = out.shape[1] = N - 16;
	cpu_run_op(device, &op);
	cpu_expect_equal("panels", y, want + 16, N - 16);
	cpu_device->close(device);
	free(panels.data);
	free(x);
	cpu_free_weights(&w.data);
}
END_TEST

/* Checks that old contents of the scratch memory have no effect. */
START_TEST(a_sum_of_nothing_is_zero)
{
	float x[48 * 4], w[40 * 4], y[48 * 40];
	int64_t bound[] = { 0, 4 }, none[] = { 2 };
	struct tess_tree tree = { .n = 1, .hi = 1, .terms = 1 }, empty = { .terms = 1 };
	struct tess_term term = { .bound = bound }, no_term = { .bound = none };
	struct cpu_devices d = { 0 };

	for (int i = 0; i < 48 * 4; i++)
		x[i] = w[i % 160] = 1;
	while (cpu_open_next(&d)) {
		for (int t = 0; t < NTOKENS; t++) {
			struct tess_view in[2] = { cpu_make_rows(x, tokens_of[t], 4, 4),
				                   cpu_make_rows(w, 40, 4, 4) };
			struct tess_view out = cpu_make_rows(y, tokens_of[t], 40, 40);
			struct tess_op op = make_linear_op(in, 2, &out, &tree, 1, &term, 1),
				       nothing =
					       make_linear_op(in, 2, &out, &empty, 1, &no_term, 1);

			cpu_run_op(d.now, &op);
			MUST(y[0] == 4 && y[tokens_of[t] * 40 - 1] == 4);
			cpu_run_op(d.now, &nothing);
			for (int64_t i = 0; i < tokens_of[t] * 40; i++)
				MUST(cpu_is_same(y[i], 0.0f));
		}
	}
}
END_TEST

/* Checks that nothing is read after the end of the weight, where its mapping may end. */
START_TEST(reads_the_weight_only)
{
	enum { K = 5, MOST_N = 33 };
	long page = sysconf(_SC_PAGESIZE);
	char *map = mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	float x[K] = { 1, 2, 3, 4, 5 }, y[MOST_N];
	int64_t bound[] = { 0, K };
	struct tess_tree tree = { .n = 1, .hi = 1, .terms = 1 };
	struct tess_term term = { .bound = bound };
	struct cpu_devices d = { 0 };

	ck_assert(map != MAP_FAILED && !mprotect(map + page, (size_t)page, PROT_NONE));
	while (cpu_open_next(&d)) {
		for (int i = 0; i < 3 * 2 * MOST_N; i++) {
			int64_t n = 1 + i / 6, in_out = i / 3 % 2;
			int32_t dtype = cpu_choose_dtype(i);
			struct tess_view in[2] = { cpu_make_rows(x, 1, K, K) },
					 out = cpu_make_rows(y, 1, n, n);
			struct tess_op op = make_linear_op(in, 2, &out, &tree, 1, &term, 1);

			in[1] = cpu_make_view(map + page - n * K * cpu_get_width(dtype), dtype, n,
			                      K, in_out ? 1 : K, in_out ? n : 1);
			memset(y, 0xff, sizeof y);
			cpu_run_op(d.now, &op);
			for (int64_t k = 0; k < n; k++)
				MUST(y[k] == 0);
		}
	}
	munmap(map, 2 * (size_t)page);
}
END_TEST

/*
 * Multiplies rows that share sets of a cache, from any byte of a line on, up to the end of their
 * mapping.
 */
START_TEST(rows_that_share_sets)
{
	enum { N = 35, ROW = 2048, UNITS = 3, T = 6, K_MOST = UNITS * 101 };
	long page = sysconf(_SC_PAGESIZE);
	size_t bytes = ((size_t)N * ROW + (size_t)page - 1) / (size_t)page * (size_t)page;
	char *map = mmap(NULL, bytes + (size_t)page, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	float *x = cpu_make_floats(T * K_MOST), y[2][T * N];
	struct cpu_devices d = { 0 };

	ck_assert(map != MAP_FAILED && !mprotect(map + bytes, (size_t)page, PROT_NONE));
	while (cpu_open_next(&d)) {
		for (int i = 0; i < 18; i++) {
			struct contraction c = { 0 };
			int32_t dtype = cpu_choose_dtype(i);
			int64_t rows = 1 + i % T, width = cpu_get_width(dtype), k;
			struct cpu_weights data = cpu_make_weights(dtype, N * ROW / width);
			struct tess_view in[2], out = cpu_make_rows(y[0], rows, N, N);
			struct tess_op op = make_linear_op(in, 2, &out, c.tree, 1, c.term, 1);

			add_contraction_tree(&c, UNITS, 0, UNITS, 1, 15 + 17 * (i % 6));
			k = c.k;
			memcpy(map + bytes - (size_t)N * ROW, data.data, (size_t)N * ROW);
			in[0] = cpu_make_rows(x, rows, k, k);
			in[1] = cpu_make_view(map + bytes - (N - 1) * ROW - k * width, dtype, N, k,
			                      ROW / width, 1);
			cpu_run_op(d.now, &op);
			in[1] = cpu_pack_weight(d.now, &in[1]);
			out.data = y[1];
			cpu_run_op(d.now, &op);
			cpu_expect_equal(d.variant->isa, y[0], y[1], rows * N);
			free(in[1].data);
			cpu_free_weights(&data);
		}
	}
	munmap(map, bytes + (size_t)page);
	free(x);
}
END_TEST

/*
 * Draws numbers that make products of bf16 flush, round, overflow and cancel: exponents that meet
 * in a sum.
 */
static float draw_hard_number(int kind, bool narrow)
{
	static const uint32_t special[] = { 0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
		                            1, 0x80007fff, 0x007fffff, 0x00800000, 0x7f7fffff };
	static const int exponents[] = { 1, 2, 50, 64, 75, 120, 127, 192, 254 };
	uint32_t u = cpu_draw_random() << 1, n = cpu_draw_random();
	int e = exponents[kind % 9] + (int)(n % 3) - 1;

	u = n % 40 == 0 ? special[n / 40 % 10] : (u & 0x807fffff) | (uint32_t)e << 23;
	return tess_float(narrow ? u & 0xffff0000 : u);
}

START_TEST(hard_products_of_bf16)
{
	enum { N = 33, K = 7, T = 7, TIMES = 200 };
	int64_t bound[] = { 0, K };
	struct tess_tree tree = { 1, 0, 1, 0, 1 };
	struct tess_term term = { .bound = bound };
	float x[T * K], y[T * N] = { 0 };
	uint16_t w[N * K];
	struct tess_view in[2] = { cpu_make_rows(x, T, K, K),
		                   cpu_make_view(w, TESS_BF16, N, K, K, 1) };
	struct tess_view out = cpu_make_rows(y, T, N, N);
	struct tess_op op;

	math = TESS_BF16;
	op = make_linear_op(in, 2, &out, &tree, 1, &term, 1);
	for (int i = 0; i < TIMES; i++) {
		for (int k = 0; k < T * K; k++)
			x[k] = draw_hard_number(i, false);
		for (int k = 0; k < N * K; k++)
			w[k] = tess_bf16_round(draw_hard_number(i / 9 + k % 2 * i % 4, true));
		compare_op(&op);
	}
	math = 0;
}
END_TEST

/*
 * Checks 2^-126 - 1.5 * 2^-151, which is below 2^-126 in 24 bits, and not among denormals: it is
 * flushed.
 */
START_TEST(rounds_before_it_flushes)
{
	int64_t bound[] = { 0, 2 };
	struct tess_tree tree = { 1, 0, 1, 0, 1 };
	struct tess_term term = { .bound = bound };
	float x[2] = { 0x1.8p-76f, 0x1p-63f }, got;
	uint16_t w[2] = { tess_bf16_round(-0x1p-75f), tess_bf16_round(0x1p-63f) };
	struct tess_view in[2] = { cpu_make_rows(x, 1, 2, 2) }, out = cpu_make_rows(&got, 1, 1, 1);
	struct cpu_devices d = { 0 };
	struct tess_op op;

	math = TESS_BF16;
	op = make_linear_op(in, 2, &out, &tree, 1, &term, 1);
	in[1] = cpu_make_view(w, TESS_BF16, 1, 2, 2, 1);
	while (cpu_open_next(&d)) {
		cpu_run_op(d.now, &op);
		cpu_expect_equal(d.variant->isa, &got, &(float){ 0 }, 1);
	}
	math = 0;
}
END_TEST

/*
 * Checks the error: rounding x costs half a unit in the last of 8 places of each product; the sums
 * little.
 */
START_TEST(error_of_products_of_bf16)
{
	enum { N = 20, K = 1200, T = 9, UNITS = 8 };
	struct contraction c = { 0 };
	struct weight w;
	float *x, whole[T * N], got[T * N];
	struct tess_view in[2], out = cpu_make_rows(whole, T, N, N);
	void *device = cpu_open_device("auto", 1);
	struct tess_op op;
	double most;

	add_contraction_tree(&c, UNITS, 0, UNITS, 1, K / UNITS);
	w = make_test_weight(N, c.k, TESS_BF16, 0);
	x = cpu_make_floats(T * c.k);
	in[0] = cpu_make_rows(x, T, c.k, c.k);
	in[1] = w.rows;
	op = make_linear_op(in, 2, &out, c.tree, c.ntree, c.term, c.nterm);
	scalar_run(&op);
	out.data = got;
	math = TESS_BF16;
	op = make_linear_op(in, 2, &out, c.tree, c.ntree, c.term, c.nterm);
	cpu_run_op(device, &op);
	math = 0;
	for (int i = 0; i < T * N; i++) {
		most = 0;
		for (int64_t k = 0; k < c.k; k++)
			most += fabs((double)x[i / N * c.k + k] *
			             (double)w.data.value[i % N * c.k + k]);
		ck_assert(fabs((double)got[i] - (double)whole[i]) <= most * 0x1.1p-9);
	}
	cpu_device->close(device);
	cpu_free_weights(&w.data);
	free(x);
}
END_TEST

START_TEST(refuses_products_that_it_has_not)
{
	struct contraction c = { 0 };
	float x[16] = { 0 }, w[16] = { 0 }, y[1];
	struct tess_view in[2], out = cpu_make_rows(y, 1, 1, 1);
	void *device = cpu_open_device("auto", 1);
	struct tess_op op;

	add_contraction_tree(&c, 1, 0, 1, 1, 8);
	in[0] = cpu_make_rows(x, 1, c.k, c.k);
	in[1] = cpu_make_rows(w, 1, c.k, c.k);
	math = TESS_BF16;
	op = make_linear_op(in, 2, &out, c.tree, c.ntree, c.term, c.nterm);
	ck_assert_int_eq(cpu_check_op(&op), TESS_OK);
	in[1].layout = TESS_PANELS;
	in[1].stride[0] = 16 * c.k, in[1].stride[1] = 16;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	ck_assert_msg(strstr(cpu_sentence, "in rows, or in panels of bf16"), "%s", cpu_sentence);
	in[1] = cpu_make_rows(w, 1, c.k, c.k);
	math = TESS_F16;
	in[1].dtype = TESS_F16;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	math = TESS_F32;
	ck_assert_int_eq(cpu_check_op(&op), TESS_OK);
	op.nnum = 2;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	math = 0;
	cpu_device->close(device);
}
END_TEST

SUITE_MAIN("cpu_linear", finished_sums, nodes_of_ranks, several_trees_and_terms,
           rows_beyond_a_block, runs_of_panels, partials_finish_alike,
           finished_sums_are_not_minus_zero, views_of_panels, a_sum_of_nothing_is_zero,
           reads_the_weight_only, rows_that_share_sets, hard_products_of_bf16,
           rounds_before_it_flushes, error_of_products_of_bf16, refuses_products_that_it_has_not)

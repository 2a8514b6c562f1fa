/*
 * test_experts PLUGIN - compares ROUTE, EXPERTS, COMBINE and HEAD_LINEAR of the CUDA device with
 * the CPU: experts of a row and their weights are equal; sums are within a bound.
 */
#include "device.h"

/* Expects outputs, rows of `n` elements and 3 more, within `bound` of the largest. */
static void expect_within(const char *what, const struct tess_op *op, float *y, int64_t rows,
                          int64_t n, float bound)
{
	uint64_t bytes = sizeof *y * (uint64_t)(rows * (n + 3));
	void *before = memcpy(malloc(bytes), y, bytes);
	float *want = run_on_both(cpu, op, y, bytes, before), max = 0;

	for (int64_t i = 0; i < rows * (n + 3); i++)
		max = i % (n + 3) < n ? fmaxf(max, fabsf(want[i])) : max;
	ck_assert_msg(max > 0 && isfinite(max), "%s: the largest is %g", what, (double)max);
	for (int64_t i = 0; i < rows * (n + 3); i++)
		if (i % (n + 3) >= n ? !cpu_is_same(y[i], want[i])
		                     : !(fabsf(y[i] - want[i]) <= bound * max))
			ck_abort_msg("%s: row %d, element %d: %g, not %g", what, (int)(i / (n + 3)),
			             (int)(i % (n + 3)), (double)y[i], (double)want[i]);
	free(before);
	free(want);
}

static void expect_close(const char *what, const struct tess_op *op, float *y, int64_t rows,
                         int64_t n)
{
	expect_within(what, op, y, rows, n, 2e-6f);
}

/* ---- ROUTE ----------------------------------------------------------------------------------- */

static void test_route_op(int64_t experts, int64_t top, int flags, int64_t groups, bool correction)
{
	int64_t rows = 5, n = experts, kept = groups > 1 ? groups / 2 + 1 : 0;
	double num[] = { (double)top, flags, 1e-20, 2.5, (double)groups, (double)kept };
	float *x = make_buffer(rows * n, true), *y = make_buffer(rows * n, false);
	struct tess_view in[] = {
		cpu_make_rows(x, rows, n, n),
		cpu_make_list(make_weight_buffer(TESS_F32, n, NULL), TESS_F32, n),
	};
	struct tess_view out = cpu_make_rows(y, rows, n, n);
	struct tess_op op =
		cpu_make_op(TESS_OP_ROUTE, in, correction ? 2 : 1, &out, num, TESS_ROUTE_NUMS);

	for (int64_t i = 0; i < rows * n; i++) /* several are equal */
		x[i] = roundf(x[i] * 8) / 4;
	x[n + n / 2] = x[2 * n - 1] = NAN;
	expect_same("route", &op, y, sizeof *y * (uint64_t)(rows * n));
	free_host_buffers();
}

START_TEST(routes)
{
	set_up_devices("auto");
	for (int flags = 0; flags < 8; flags++) {
		test_route_op(4, 2, flags, 0, false);
		test_route_op(60, 6, flags, 0, true);
		test_route_op(64, 5, flags, 8, true);
		test_route_op(12, 3, flags, 3, false);
		test_route_op(130, 130, flags, 1, false);
		test_route_op(320, 8, flags, 0, false);
	}
	tear_down_devices();
}
END_TEST

/* ---- EXPERTS, COMBINE ------------------------------------------------------------------------ */

struct experts_case {
	int32_t dtype, act;
	int64_t rows, k, ffn, h, experts, asked;
	bool turned; /* weights are stored [experts, in, out] */
	int64_t slots, top; /* top: the number, 0 or the experts of a row */
	bool rounded; /* on tensor cores: x and intermediates in bf16 */
	bool biased;
	double limit;
};

static struct tess_view make_weight_stack(const struct experts_case *c, int64_t n, int64_t k)
{
	void *data = make_weight_buffer(c->dtype, c->experts * n * k, NULL);

	return (struct tess_view){ .data = data,
		                   .dtype = c->dtype,
		                   .ndim = 3,
		                   .shape = { c->experts, n, k },
		                   .stride = { n * k, c->turned ? 1 : k, c->turned ? n : 1 } };
}

/* Routes row t to `asked` experts from t on; row 2 to none. */
static float *make_routing(const struct experts_case *c)
{
	float *w = make_buffer(c->rows * c->experts, true);

	for (int64_t i = 0; i < c->rows * c->experts; i++) {
		int64_t t = i / c->experts, from = (t * 3 + 1) % c->experts;
		int64_t at = (i % c->experts + c->experts - from) % c->experts;

		w[i] = at < c->asked && t != 2 ? fabsf(w[i]) + 0.1f : 0.0f;
	}
	return w;
}

static void test_experts_op(const struct experts_case *c)
{
	int64_t n = c->h * (c->slots ? c->slots : 1), e = c->experts;
	int64_t k_bound[] = { 0, c->k }, f_bound[] = { 0, c->ffn }, e_bound[41];
	struct tess_tree tree[] = { { 1, 0, 1, 0, 1 }, { 1, 0, 1, 1, 1 }, { e, 0, e, 2, 1 } };
	struct tess_term term[] = { { 0, 0, k_bound }, { 3, 0, f_bound }, { 1, 0, e_bound } };
	double num[TESS_EXPERTS_NUMS] = {
		c->act, (double)c->slots, 0, (double)c->top, c->limit, 1.7
	};
	struct tess_view in[5], out, mid[2];
	struct tess_op op = cpu_make_sum_op(TESS_OP_EXPERTS, in, c->biased ? 5 : 4, &out, num,
	                                    TESS_EXPERTS_NUMS, tree, 3, term, 3);
	float *y;

	for (int64_t i = 0; i <= e; i++)
		e_bound[i] = i;
	in[0] = cpu_make_rows(make_buffer(c->rows * (c->k + 4), true), c->rows, c->k, c->k + 4);
	in[1] = cpu_make_rows(make_routing(c), c->rows, e, e);
	in[2] = make_weight_stack(c, 2 * c->ffn, c->k);
	in[3] = make_weight_stack(c, c->h, c->ffn);
	in[4] = cpu_make_view(make_weight_buffer(c->dtype, e * (2 * c->ffn + 5), NULL), c->dtype, e,
	                      2 * c->ffn, 2 * c->ffn + 5, 1);
	y = make_buffer(c->rows * (n + 3), false);
	out = cpu_make_rows(y, c->rows, n, n + 3);
	expect_within("experts", &op, y, c->rows, n, c->rounded ? 0x1p-8f : 2e-6f);
	if (c->top > 1) {
		num[TESS_EXPERTS_TOP] = 1;
		ck_assert_int_eq(run_on_gpu(&op), TESS_EINVAL);
		expect_part(cpu_sentence, "experts: a row has more experts than slots");
	}
	if (c->slots) {
		mid[0] = out;
		mid[1] = in[1];
		tree[2].first = 0;
		y = make_buffer(c->rows * (c->h + 3), false);
		out = cpu_make_rows(y, c->rows, c->h, c->h + 3);
		op = cpu_make_sum_op(TESS_OP_COMBINE, mid, 2, &out, NULL, 0, &tree[2], 1, &term[2],
		                     1);
		expect_close("combine", &op, y, c->rows, c->h);
	}
	free_host_buffers();
}

enum { EXPERTS_CASES = 30 };

START_TEST(experts)
{
	static const struct experts_case cases[] = {
		/* one row of each on average: rows are separate */
		{ TESS_F32, TESS_SILU, 1, 64, 32, 48, 8, 2, false, 0, 2, false, false, 0 },
		{ TESS_BF16, TESS_SILU, 3, 1320, 808, 66, 40, 11, false, 0, 11, false, false, 0 },
		{ TESS_F16, TESS_GELU, 1, 648, 264, 7, 40, 19, false, 0, 0, false, false, 0 },
		{ TESS_BF16, TESS_SILU, 4, 40, 24, 16, 40, 2, false, 9, 0, false, false, 0 },
		/* up to 8 rows, or other weights with up to 8 of each: columns */
		{ TESS_BF16, TESS_SILU, 5, 1320, 40, 64, 4, 2, false, 0, 0, false, false, 0 },
		{ TESS_F16, TESS_SILU, 9, 1320, 40, 64, 8, 2, false, 0, 0, false, false, 0 },
		{ TESS_BF16, TESS_SILU, 21, 33, 15, 24, 32, 1, true, 0, 0, false, false, 0 },
		{ TESS_F32, TESS_RELU, 9, 40, 24, 16, 6, 3, false, 4, 0, false, false, 0 },
		{ TESS_BF16, TESS_SILU, 3, 40, 24, 16, 9, 2, true, 2, 0, false, false, 0 },
		/* tiles in f32 */
		{ TESS_F16, TESS_GELU_TANH, 21, 20, 12, 17, 5, 5, false, 0, 0, false, false, 0 },
		{ TESS_F32, TESS_SILU, 80, 70, 40, 90, 3, 2, false, 0, 2, false, false, 0 },
		/* tiles of 16, 32, 64 and 128 on tensor cores; two experts of six have rows */
		{ TESS_BF16, TESS_SILU, 9, 1320, 40, 64, 4, 2, false, 0, 2, true, false, 0 },
		{ TESS_BF16, TESS_SILU, 40, 456, 40, 70, 6, 1, false, 0, 1, true, false, 0 },
		{ TESS_BF16, TESS_SILU, 60, 8, 8, 5, 6, 1, false, 0, 1, true, false, 0 },
		{ TESS_BF16, TESS_GELU, 90, 72, 520, 20, 6, 1, false, 0, 1, true, false, 0 },
		{ TESS_BF16, TESS_SILU, 150, 136, 200, 24, 6, 1, false, 0, 1, true, false, 0 },
		{ TESS_BF16, TESS_SILU, 40, 72, 24, 16, 4, 2, false, 9, 0, true, false, 0 },
		{ TESS_BF16, TESS_RELU, 1100, 8, 8, 5, 1, 1, false, 0, 1, true, false, 0 },
		{ TESS_BF16, TESS_GELU, 90, 72, 72, 20, 3, 2, false, 0, 2, true, false, 0 },
		{ TESS_BF16, TESS_SILU, 150, 200, 72, 136, 1, 1, false, 0, 0, true, false, 0 },
		/* biases, gates that alternate with ups: by rows, columns, tiles, tensor cores */
		{ TESS_BF16, TESS_SILU, 3, 40, 24, 16, 40, 11, false, 0, 11, false, true, 0.5 },
		{ TESS_F32, TESS_SILU, 1, 64, 32, 48, 8, 2, false, 0, 2, false, true, 0 },
		{ TESS_BF16, TESS_SILU, 21, 33, 15, 24, 32, 1, true, 0, 0, false, true, 0.5 },
		{ TESS_F16, TESS_SILU, 9, 72, 40, 64, 8, 2, false, 0, 0, false, true, 0 },
		{ TESS_F32, TESS_RELU, 9, 40, 24, 16, 6, 3, false, 4, 0, false, false, 0.3 },
		{ TESS_F32, TESS_SILU, 80, 70, 40, 90, 3, 2, false, 0, 2, false, true, 0.5 },
		{ TESS_F16, TESS_GELU, 21, 20, 12, 17, 5, 5, true, 0, 0, false, true, 0 },
		{ TESS_BF16, TESS_SILU, 40, 72, 40, 70, 6, 1, false, 0, 1, true, true, 0.5 },
		{ TESS_BF16, TESS_SILU, 90, 72, 88, 20, 6, 1, false, 0, 1, true, true, 0.5 },
		{ TESS_BF16, TESS_GELU, 150, 136, 200, 24, 6, 1, false, 0, 1, true, true, 0 },
	};

	ck_assert_int_eq(sizeof cases / sizeof *cases, EXPERTS_CASES);

	set_up_devices("auto");
	test_experts_op(&cases[_i]);
	tear_down_devices();
}
END_TEST

/* ---- HEAD_LINEAR ----------------------------------------------------------------------------- */

static void test_head_linear_op(int32_t dtype, int64_t rows, int64_t heads, int64_t n, int64_t k,
                                int64_t rest, bool turned, bool rounded)
{
	int64_t xn = heads * (k + rest), yn = heads * (n + rest);
	struct tess_view in[] = {
		cpu_make_rows(make_buffer(rows * (xn + 4), true), rows, xn, xn + 4),
		{ .data = make_weight_buffer(dtype, heads * n * k, NULL),
		  .dtype = dtype,
		  .ndim = 3,
		  .shape = { heads, n, k },
		  .stride = { n * k, turned ? 1 : k, turned ? n : 1 } },
	};
	float *y = make_buffer(rows * (yn + 3), false);
	struct tess_view out = cpu_make_rows(y, rows, yn, yn + 3);
	struct tess_op op = cpu_make_op(TESS_OP_HEAD_LINEAR, in, 2, &out, NULL, 0);

	expect_within("head_linear", &op, y, rows, yn, rounded ? 0x1p-8f : 2e-6f);
	free_host_buffers();
}

START_TEST(head_linears)
{
	set_up_devices("auto");
	for (int i = 0; i < 6; i += 1 + THIN / 4) {
		test_head_linear_op(cpu_choose_dtype(i), 1, 4, 32, 16, 8, i >= 3, false);
		test_head_linear_op(cpu_choose_dtype(i), 11, 3, 13, 300, 0, i >= 3, false);
		test_head_linear_op(cpu_choose_dtype(i), 8, 2, 5, 7, 3, i >= 3, false);
	}
	test_head_linear_op(TESS_BF16, 140, 2, 70, 72, 8, false, true);
	test_head_linear_op(TESS_BF16, 9, 3, 5, 8, 0, false, true);
	test_head_linear_op(TESS_BF16, 63, 2, 70, 72, 8, false, true);
	test_head_linear_op(TESS_BF16, 70, 2, 70, 72, 8, true, false);
	tear_down_devices();
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_experts", 300, &r);

	tcase_add_test(t, routes);
	tcase_add_loop_test(t, experts, 0, EXPERTS_CASES);
	tcase_add_test(t, head_linears);
	return suite_end(r);
}

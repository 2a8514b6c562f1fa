/*
 * test_rounded PLUGIN - compares rows of bf16 with rounded f32 rows, on a GPU or an emulated one:
 * an out has the rounded values, and a product of operands in bf16 the same bits.
 */
#include "device.h"

enum { ROWS = 70 };

static void run_rounded(const char *what, const struct tess_op *op)
{
	ck_assert_msg(run_on_gpu(op) == TESS_OK, "%s: %s", what, cpu_sentence);
}

/* Expects that outs of bf16, [ROWS, n] each, are the rounded f32 ones. */
static void expect_rounded_outs(const char *what, struct tess_op op, int64_t n)
{
	struct tess_view half[2] = { op.out[0], op.out[op.nout - 1] };
	float *want[2];

	run_rounded(what, &op);
	for (int32_t i = 0; i < op.nout; i++) {
		want[i] = memcpy(malloc((size_t)(ROWS * n * 4)), half[i].data,
		                 (size_t)(ROWS * n * 4));
		half[i].dtype = TESS_BF16;
		memset(half[i].data, 0x7f, (size_t)(ROWS * n * 4));
	}
	op.out = half;
	run_rounded(what, &op);
	for (int32_t i = 0; i < op.nout; i++) {
		const uint16_t *y = half[i].data;

		for (int64_t k = 0; k < ROWS * n; k++)
			ck_assert_msg(y[k] == tess_bf16_round(want[i][k]), "%s: element %d", what,
			              (int)k);
		MUST(y[ROWS * n] == 0x7f7f);
		free(want[i]);
	}
}

/*
 * Expects equal bits of a product if its first `n` operands are bf16. Without cuBLASLt products are
 * of f32, so all operands are rounded before.
 */
static void expect_rounded_operands(const char *what, struct tess_op op, int32_t n)
{
	struct tess_view *in =
		memcpy(malloc(sizeof *in * (size_t)op.nin), op.in, sizeof *in * (size_t)op.nin);
	uint64_t bytes = sizeof(float) * (uint64_t)cpu_count_elements(op.out);
	void *want = malloc(bytes);

	for (int32_t i = 0; i < n && getenv("FAKE_CUDA_FAILS"); i++)
		for (int64_t k = 0; k < ROWS * in[i].stride[0]; k++)
			((float *)in[i].data)[k] = tess_float(
				(uint32_t)tess_bf16_round(((float *)in[i].data)[k]) << 16);
	run_rounded(what, &op);
	memcpy(want, op.out->data, bytes);
	memset(op.out->data, 0x7f, bytes);
	for (int32_t i = 0; i < n; i++) {
		const float *x = in[i].data;
		uint16_t *half = in[i].data;

		for (int64_t k = 0; k < ROWS * in[i].stride[0]; k++)
			half[k] = tess_bf16_round(x[k]);
		in[i].dtype = TESS_BF16;
	}
	op.in = in;
	run_rounded(what, &op);
	ck_assert_msg(!memcmp(want, op.out->data, bytes), "%s", what);
	free(want);
	free(in);
}

static void test_rounded_rows(void)
{
	enum { N = 40 };
	float *x = make_buffer(3 * ROWS * N, true), *y = make_buffer(2 * ROWS * N, false);
	struct tess_view rows[5], w[2] = { { .ndim = 0 } };
	struct tess_tree tree = { 1, 0, 1, 0, 1 };
	struct tess_term term = { 0, 0, (int64_t[]){ 0, N } };
	double silu = TESS_SILU, norm[] = { TESS_RMS, 1e-5, 0, 0 };
	struct tess_op op;

	for (int i = 0; i < 5; i++)
		rows[i] = cpu_make_rows(i < 3 ? x + i * ROWS * N : y + (i - 3) * ROWS * N, ROWS, N,
		                        N);
	x[3] = 100; /* SiLU has other instructions for large ones */
	x[90] = -95;
	op = cpu_make_op(TESS_OP_GLU_D, rows, 3, rows + 3, &silu, 1);
	op.nout = 2;
	rows[4].data = y + ROWS * N;
	expect_rounded_outs("glu_d", op, N);
	expect_rounded_outs("glu", cpu_make_op(TESS_OP_GLU, rows, 2, rows + 3, &silu, 1), N);
	w[0] = rows[0];
	expect_rounded_outs("norm",
	                    cpu_make_sum_op(TESS_OP_NORM, w, 2, rows + 3, norm, TESS_NORM_NUMS,
	                                    &tree, 1, &term, 1),
	                    N);
	free_host_buffers();
}

static void test_rounded_products(void)
{
	enum { N = 24, K = 40 };
	float *x = make_buffer(ROWS * (K + 8), true), *g = make_buffer(2 * ROWS * N, true);
	float *y = make_buffer(ROWS * N + ROWS * K, false);
	uint16_t *w = make_weight_buffer(TESS_BF16, 2 * N * K, NULL);
	double num[] = { 1, 0, TESS_BF16, 0 };
	struct tess_tree tree = { 1, 0, 1, 0, 1 }, tokens = { 3, 0, 3, 0, 1 };
	struct tess_term rows = { 0, 0, (int64_t[]){ 0, 32, 64, ROWS } };
	struct tess_term term[] = { { 0, 0, (int64_t[]){ 0, K } }, { 1, 0, (int64_t[]){ 0, N } } };
	struct tess_view in[4] = { cpu_make_rows(x, ROWS, K, K + 8),
		                   cpu_make_view(w, TESS_BF16, N, K, K, 1) };
	struct tess_view out = cpu_make_rows(y, ROWS, N, N);
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_LINEAR, in, 2, &out, NULL, 0, &tree, 1, term, 1);

	expect_rounded_operands("linear", op, 1);
	for (int i = 0; i < 2; i++) {
		in[i] = cpu_make_rows(g + i * ROWS * N, ROWS, N, N);
		in[2 + i] = cpu_make_view(w + i * N * K, TESS_BF16, N, K, K, 1);
	}
	out = cpu_make_rows(y, ROWS, K, K);
	term[0].bound = term[1].bound;
	tree.terms = 2;
	op = cpu_make_sum_op(TESS_OP_LINEAR_DX, in, 4, &out, NULL, 0, &tree, 1, term, 2);
	expect_rounded_operands("linear_dx", op, 2);
	for (int32_t n = 1; n <= 2; n++) { /* x, then both */
		for (int64_t i = 0; i < ROWS * (K + 8); i++)
			x[i] = (float)(i % 7) / 3;
		for (int64_t i = 0; i < ROWS * N; i++)
			g[i] = (float)(i % 11) / 7;
		in[0] = cpu_make_rows(x, ROWS, K, K + 8);
		in[1] = cpu_make_rows(g, ROWS, N, N);
		out = cpu_make_rows(y, N, K, K);
		op = cpu_make_op(TESS_OP_LINEAR_DW, in, 2, &out, num, TESS_LINEAR_DW_NUMS);
		op.tree = &tokens;
		op.term = &rows;
		op.ntree = op.nterm = 1;
		expect_rounded_operands("linear_dw", op, n);
	}
	free_host_buffers();
}

/* Values that are rounded when they are written: the results of products keep their bits. */
START_TEST(rounded)
{
	set_up_devices("auto");
	test_rounded_rows();
	test_rounded_products();
	tear_down_devices();
	if (!strstr(gpu_file, "cuda_emulated")) /* a GPU's cuBLASLt supports all of them */
		return;
	setenv("FAKE_CUDA_FAILS", "heuristic", 1);
	set_up_devices("auto");
	test_rounded_products();
	tear_down_devices();
	unsetenv("FAKE_CUDA_FAILS");
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_rounded", 300, &r);

	tcase_add_test(t, rounded);
	return suite_end(r);
}

/*
 * test_training PLUGIN - compares the ops of training on a GPU, or an emulated one, with the CPU:
 * equal results for an equal order, sums within a bound, and a Partial as one node of equal bits.
 */
#include "device.h"

enum { ROWS = 70, SEQUENCES = 3 };

/* Sequences of 33, 2 and 35 tokens, in units of 32. */
static const struct tess_tree tokens[SEQUENCES] = { { 2, 0, 2, 0, 1 },
	                                            { 1, 0, 1, 1, 1 },
	                                            { 2, 0, 2, 2, 1 } };
static const struct tess_term token_terms[SEQUENCES] = { { 0, 0, (int64_t[]){ 0, 32, 33 } },
	                                                 { 0, 0, (int64_t[]){ 33, 35 } },
	                                                 { 0, 0, (int64_t[]){ 35, 67, 70 } } };

static void set_tokens(struct tess_op *op)
{
	op->tree = tokens;
	op->ntree = SEQUENCES;
	op->term = token_terms;
	op->nterm = SEQUENCES;
}

/* Sets one sequence of `rows` rows. */
static void set_sequence(struct tess_op *op, int64_t rows)
{
	static int64_t bound[200];
	static struct tess_tree tree;
	static const struct tess_term term = { 0, 0, bound };

	tree = (struct tess_tree){ tess_up(rows, 32), 0, tess_up(rows, 32), 0, 1 };
	for (int64_t u = 0; u <= tree.n; u++)
		bound[u] = u < tree.n ? 32 * u : rows;
	op->tree = &tree;
	op->term = &term;
	op->ntree = op->nterm = 1;
}

/* Expects an output within `bound` of its largest element; bytes between its rows are unchanged. */
static void expect_bound(const char *what, const struct tess_op *op, float *y, int64_t n,
                         float bound)
{
	uint64_t bytes = sizeof *y * (uint64_t)n;
	float *before = memcpy(malloc(bytes), y, bytes), max = 0;
	float *want = run_on_both(cpu, op, y, bytes, before);

	for (int64_t i = 0; i < n; i++)
		if (!isnan(want[i]))
			max = fmaxf(max, fabsf(want[i]));
	for (int64_t i = 0; i < n; i++)
		if (isnan(want[i]) ? !cpu_is_same(y[i], before[i])
		                   : !(fabsf(y[i] - want[i]) <= bound * max))
			ck_abort_msg("%s: element %lld is %g, not %g", what, (long long)i,
			             (double)y[i], (double)want[i]);
	free(want);
	free(before);
}

/* Compares the op as the one node of a Partial, with all operands here; then without tokens. */
static void expect_node(const char *what, struct tess_op op, float *y, int64_t n, bool empty)
{
	uint64_t bytes = sizeof *y * (uint64_t)n;
	float *want = memcpy(malloc(bytes), y, bytes);
	struct tess_view node = *op.out, none[2] = { op.in[0], op.in[op.nin - 1] };

	memmove(node.shape + 1, node.shape, sizeof *node.shape * (size_t)node.ndim);
	memmove(node.stride + 1, node.stride, sizeof *node.stride * (size_t)node.ndim);
	node.shape[0] = 1;
	node.ndim++;
	op.out = &node;
	memset(y, 0x7f, bytes);
	ck_assert_msg(run_on_gpu(&op) == TESS_OK, "%s: %s", what, cpu_sentence);
	for (int64_t i = 0; i < n; i++)
		MUST(isnan(want[i]) || cpu_is_same(y[i], want[i]));
	if (empty) {
		none[0].shape[0] = none[1].shape[0] = 0;
		op.in = none;
		op.ntree = op.kind == TESS_OP_NORM_DW;
		ck_assert_msg(run_on_gpu(&op) == TESS_OK, "%s: %s", what, cpu_sentence);
		for (int64_t i = 0; i < n; i++)
			MUST(isnan(want[i]) || y[i] == 0);
	}
	free(want);
}

/* ---- elementwise ----------------------------------------------------------------------------- */

static void test_glu_d(int32_t activation, bool gated, bool in_place)
{
	int64_t rows = 3, n = in_place ? 40 : 37, pitch = in_place ? 40 : 41, size = rows * pitch;
	float *x = make_buffer(3 * size, true), *d = make_buffer(2 * size, false);
	struct tess_view in[] = { cpu_make_rows(x, rows, n, pitch),
		                  cpu_make_rows(x + size, rows, n, pitch),
		                  cpu_make_rows(x + 2 * size, rows, n, pitch) };
	struct tess_view out[] = { cpu_make_rows(in_place ? x : d, rows, n, pitch),
		                   cpu_make_rows(in_place ? x + 2 * size : d + size, rows, n,
		                                 pitch) };
	double num = activation;
	struct tess_op op = cpu_make_op(TESS_OP_GLU_D, in, 3, out, &num, 1);

	op.nout = 2;
	if (!gated)
		in[1].ndim = out[1].ndim = 0;
	expect_same("glu_d", &op, in_place ? x : d,
	            sizeof *d * (uint64_t)((in_place ? 3 : 2) * size));
	free_host_buffers();
}

static void test_dropout_op(int64_t first, int64_t n)
{
	int64_t rows = 5;
	float *x = make_buffer(rows * n, true);
	int32_t *list = malloc(64);
	struct tess_view in[] = { cpu_make_rows(x, rows, n, n),
		                  cpu_make_list(add_buffer(list, 64), TESS_I32, rows),
		                  cpu_make_list(list + 5, TESS_I32, rows),
		                  cpu_make_list(list + 10, TESS_I32, 4) };
	double num[] = { 0.4, 7, (double)first };
	struct tess_op op = cpu_make_op(TESS_OP_DROPOUT, in, 4, in, num, TESS_DROPOUT_NUMS);

	for (int i = 0; i < 14; i++)
		list[i] = (int32_t)(cpu_draw_random() >> 8);
	expect_same("dropout", &op, x, sizeof *x * (uint64_t)(rows * n));
	free_host_buffers();
}

START_TEST(elements)
{
	set_up_devices("auto");
	for (int32_t act = TESS_SILU; act <= TESS_TANH; act++)
		for (int i = 0; i < 4; i++)
			test_glu_d(act, i % 2, i / 2);
	for (int64_t first = 0; first < 5; first++)
		test_dropout_op(first, 30 + first);
	tear_down_devices();
}
END_TEST

/* Compares sums of products of rows. */
static void test_row_dot(int64_t columns)
{
	int64_t rows = 7, pitch = columns + 3;
	float *x = make_buffer(2 * rows * pitch, true), *y = make_buffer(rows * 2, false);
	struct tess_view in[] = { cpu_make_rows(x, rows, columns, pitch),
		                  cpu_make_rows(x + rows * pitch, rows, columns, pitch) };
	struct tess_view out = cpu_make_rows(y, rows, 1, 2);
	int64_t bound[] = { 0, columns / 2, columns };
	struct tess_tree tree = { .n = 2, .hi = 2, .terms = 1 };
	struct tess_term term = { 0, 0, bound };
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_ROW_DOT, in, 2, &out, NULL, 0, &tree, 1, &term, 1);

	expect_bound("row_dot", &op, y, rows * 2, 0x1p-18f);
	free_host_buffers();
}

START_TEST(products_of_rows)
{
	set_up_devices("auto");
	for (int64_t columns = 2; columns < 3000; columns = 3 * columns + 1)
		test_row_dot(columns);
	tear_down_devices();
}
END_TEST

/* ---- norms ----------------------------------------------------------------------------------- */

/* Compares NORM_D, or NORM_DW, over runs of `each` elements. gap: elements between rows. */
static void test_norm_gradient(bool weight, int32_t kind, int offset, int64_t each, int64_t runs,
                               int64_t gap)
{
	int64_t n = each * runs, pitch = n + gap, rows = ROWS;
	double num[2 + TESS_NORM_NUMS] = { SEQUENCES, 0, kind, 1e-5, (double)(runs > 1 ? each : 0),
		                           offset };
	struct tess_tree tree[1 + SEQUENCES] = { { 1, 0, 1, SEQUENCES, 1 } };
	struct tess_term term[SEQUENCES + 1];
	float *x = make_buffer(rows * pitch, true), *g = make_buffer(rows * pitch, true);
	float *y = weight ? make_buffer(n, false) : g;
	struct tess_view in[] = {
		cpu_make_rows(x, rows, n, pitch),
		weight ? cpu_make_rows(g, rows, n, pitch)
		       : cpu_make_list(make_weight_buffer(TESS_BF16, each, NULL), TESS_BF16, each),
		cpu_make_rows(g, rows, n, pitch),
	};
	struct tess_view out = cpu_make_rows(y, weight ? 1 : rows, n, weight ? n : pitch);
	struct tess_op op = cpu_make_sum_op(weight ? TESS_OP_NORM_DW : TESS_OP_NORM_D, in,
	                                    weight ? 2 : 3, &out, weight ? num : num + 2,
	                                    weight ? 2 + TESS_NORM_NUMS : TESS_NORM_NUMS, tree,
	                                    weight ? 1 + SEQUENCES : 1, term, SEQUENCES + 1);

	memcpy(tree + 1, tokens, sizeof tokens);
	memcpy(term, token_terms, sizeof token_terms);
	term[SEQUENCES] = (struct tess_term){ 0, 0, (int64_t[]){ 0, each } };
	expect_bound(weight ? "norm_dw" : "norm_d", &op, y, weight ? n : rows * pitch,
	             2e-6f + 1e-9f * (float)each);
	if (weight)
		expect_node("norm_dw", op, y, n, true);
	free_host_buffers();
}

START_TEST(norms)
{
	set_up_devices("auto");
	for (int i = 0; i < 24;
	     i++) { /* runs of one warp, of several; too many for the registers */
		static const int64_t each[] = { 70, 6, 1301, 72, 1300, 8400 },
				     runs[] = { 1, 5, 1, 5, 1, 1 };

		test_norm_gradient(i % 2, i / 2 % 2 ? TESS_LAYER : TESS_RMS, i < 3 || i == 12,
		                   each[i / 4], runs[i / 4], i < 12 ? 3 : 4);
	}
	tear_down_devices();
}
END_TEST

/* ---- sums ------------------------------------------------------------------------------------ */

static void test_bias_dw(void)
{
	int64_t n = 37;
	float *g = make_buffer(ROWS * n, true), *y = make_buffer(n, false);
	struct tess_view in = cpu_make_rows(g, ROWS, n, n), out = cpu_make_rows(y, 1, n, n);
	double num[] = { SEQUENCES, 0 };
	struct tess_op op = cpu_make_op(TESS_OP_BIAS_DW, &in, 1, &out, num, 2);

	set_tokens(&op);
	expect_bound("bias_dw", &op, y, n, 2e-6f);
	expect_node("bias_dw", op, y, n, true);
	op = cpu_make_op(TESS_OP_SEQUENCE_SUM, &in, 1, &out, (double[]){ ROWS, 0 }, 2);
	expect_bound("sequence_sum", &op, y, n, 2e-6f);
	expect_node("sequence_sum", op, y, n, false);
	free_host_buffers();
}

/* Compares sums of sums. */
static void test_long_sum(void)
{
	int64_t n = 3, rows = 4200;
	float *g = make_buffer(rows * n, true), *y = make_buffer(n, false);
	struct tess_view in = cpu_make_rows(g, rows, n, n), out = cpu_make_rows(y, 1, n, n);
	double num[] = { 1, 0 };
	struct tess_op op = cpu_make_op(TESS_OP_BIAS_DW, &in, 1, &out, num, 2);

	set_sequence(&op, rows);
	expect_bound("bias_dw", &op, y, n, 4e-6f);
	free_host_buffers();
}

/* Compares gradients of a table. Ids are repeated, missing, or in the tables of other ranks. */
static void test_embed_dw(int64_t rows)
{
	int64_t n = 21, entries = 19;
	int32_t *id = malloc(4 * (size_t)rows);
	float *g = make_buffer(rows * n, true), *y = make_buffer(entries * n, false);
	struct tess_view in[] = { cpu_make_list(add_buffer(id, 4 * (uint64_t)rows), TESS_I32, rows),
		                  cpu_make_rows(g, rows, n, n) };
	struct tess_view out = cpu_make_rows(y, entries, n, n);
	double num[] = { rows == ROWS ? SEQUENCES : 1, 0, 5 };
	struct tess_op op = cpu_make_op(TESS_OP_EMBED_DW, in, 2, &out, num, 3);

	for (int64_t t = 0; t < rows; t++)
		id[t] = t % 3 ? (int32_t)(cpu_draw_random() % 28) : 9;
	set_sequence(&op, rows);
	if (rows == ROWS)
		set_tokens(&op);
	expect_bound("embed_dw", &op, y, entries * n, 2e-6f);
	expect_node("embed_dw", op, y, entries * n, true);
	free_host_buffers();
}

/* Compares runs of 3 heads, and one run as a node, whose first head is another rank's. */
static void test_head_sum(void)
{
	int64_t rows = 4, width = 5, n = 30;
	float *x = make_buffer(rows * n, true), *y = make_buffer(rows * 10, false);
	struct tess_view in = cpu_make_rows(x, rows, n, n), out = cpu_make_rows(y, rows, 10, 10);
	double num[] = { (double)width, 3 };
	struct tess_tree tree = { 3, 0, 3, 0, 1 };
	struct tess_term term = { 0, 0, (int64_t[]){ 0, 1, 2, 3 } };
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_HEAD_SUM, &in, 1, &out, num, 2, &tree, 1, &term, 1);
	struct tess_view node = cpu_make_partial(y, 1, rows, width, width);

	expect_bound("head_sum", &op, y, rows * 10, 1e-6f);
	in = cpu_make_rows(x, rows, 15, n);
	op.out = &node;
	tree = (struct tess_tree){ 4, 2, 4, 0, 1 };
	term.bound = (int64_t[]){ 1, 2, 3 };
	ck_assert_msg(run_on_gpu(&op) == TESS_OK, "%s", cpu_sentence);
	for (int64_t t = 0; t < rows; t++)
		for (int64_t i = 0; i < width; i++)
			MUST(y[t * width + i] == x[t * n + 5 + i] + x[t * n + 10 + i]);
	term.bound = (int64_t[]){ 0, 1, 3 };
	tree.terms = 2;
	op.term = (struct tess_term[]){ { 0, 0, (int64_t[]){ 0, 0, 1 } },
		                        { 0, 0, (int64_t[]){ 2, 2, 3 } } };
	op.nterm = 2;
	ck_assert_int_eq(run_on_gpu(&op), TESS_ENOTSUP);
	expect_part(cpu_sentence, "cuda: a sum over elements that are not adjacent");
	free_host_buffers();
}

START_TEST(sums)
{
	set_up_devices("auto");
	test_bias_dw();
	test_long_sum();
	test_embed_dw(ROWS);
	test_embed_dw(600);
	test_head_sum();
	tear_down_devices();
}
END_TEST

/* ---- products -------------------------------------------------------------------------------- */

/* Compares gradients of two weights, one stored transposed; the units of one tree are of both. */
static void test_linear_dx(int64_t rows, int32_t dtype, float bound)
{
	enum { N0 = 24, N1 = 9, K = 40 };
	float *g = make_buffer(rows * (N0 + N1), true), *y = make_buffer(rows * (K + 1), false);
	struct tess_view in[] = {
		cpu_make_rows(g, rows, N0, N0 + N1),
		cpu_make_rows(g + N0, rows, N1, N0 + N1),
		cpu_make_view(make_weight_buffer(dtype, N0 * K, NULL), dtype, N0, K, K, 1),
		cpu_make_view(make_weight_buffer(dtype, N1 * K, NULL), dtype, N1, K, 1, N1),
	};
	struct tess_view out = cpu_make_rows(y, rows, K, K + 1);
	struct tess_tree tree = { 3, 0, 3, 0, 2 };
	struct tess_term term[] = { { 0, 0, (int64_t[]){ 0, 8, 16, 24 } },
		                    { 1, 0, (int64_t[]){ 0, 3, 6, 9 } } };
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_LINEAR_DX, in, 4, &out, NULL, 0, &tree, 1, term, 2);

	expect_bound("linear_dx", &op, y, rows * (K + 1), bound);
	expect_node("linear_dx", op, y, rows * (K + 1), false);
	/* no unit is this rank's */
	out = cpu_make_partial(y, 1, rows, K, K + 1);
	tree = (struct tess_tree){ 3, 3, 3, 0, 2 };
	ck_assert_msg(run_on_gpu(&op) == TESS_OK, "%s", cpu_sentence);
	MUST(y[0] == 0 && y[rows * (K + 1) - 2] == 0);
	free_host_buffers();
}

/* Compares rows and columns; a single column is not multiplied by cuBLASLt. */
static void test_linear_dw(int64_t n, int64_t k, bool turned, int32_t dtype, float bound)
{
	float *x = make_buffer(ROWS * (k + 2), true), *g = make_buffer(ROWS * n, true);
	float *y = make_buffer(n * k, false);
	struct tess_view in[] = { cpu_make_rows(x, ROWS, k, k + 2), cpu_make_rows(g, ROWS, n, n) };
	struct tess_view out = cpu_make_view(y, TESS_F32, n, k, turned ? 1 : k, turned ? n : 1);
	double num[] = { SEQUENCES, 0, dtype, 0 };
	struct tess_op op = cpu_make_op(TESS_OP_LINEAR_DW, in, 2, &out, num,
	                                dtype ? TESS_LINEAR_DW_NUMS : TESS_TOKENS_NUMS);

	set_tokens(&op);
	expect_bound("linear_dw", &op, y, n * k, bound);
	expect_node("linear_dw", op, y, n * k, true);
	free_host_buffers();
}

/* Products are rounded as in docs/devices.md: bf16 of a bf16 weight, TF32. */
START_TEST(products)
{
	static const char *const maths[] = { "auto", "f32", "tf32" };
	static const float rounded[] = { 4e-3f, 2e-6f, 2e-3f };

	set_up_devices(maths[_i]);
	for (int32_t dtype = 0; dtype < 3; dtype++)
		for (int64_t rows = 3; rows < ROWS; rows += 30)
			test_linear_dx(rows, cpu_choose_dtype(dtype), rounded[_i]);
	test_linear_dw(24, 40, false, TESS_F32, _i == 2 ? 2e-3f : 2e-6f);
	test_linear_dw(9, 33, true, 0, _i == 2 ? 2e-3f : 2e-6f);
	test_linear_dw(9, 33, true, TESS_BF16, rounded[_i]);
	test_linear_dw(24, 40, false, TESS_BF16, rounded[_i]);
	test_linear_dw(9, 33, false, TESS_F16, _i == 1 ? 2e-6f : 2e-3f);
	test_linear_dw(1, 7, false, TESS_F32, 2e-6f);
	tear_down_devices();
	if (!strstr(gpu_file, "cuda_emulated")) /* a GPU's cuBLASLt supports all of them */
		return;
	setenv("FAKE_CUDA_FAILS", "heuristic", 1);
	set_up_devices(maths[_i]);
	test_linear_dx(40, TESS_F32, 2e-6f);
	test_linear_dw(9, 33, true, TESS_BF16, 2e-6f);
	tear_down_devices();
	unsetenv("FAKE_CUDA_FAILS");
}
END_TEST

/* ---- the loss -------------------------------------------------------------------------------- */

/* Columns from `first` on; all but the first and the last two are this rank's. */
START_TEST(losses)
{
	enum { T = 9, V = 300, PITCH = 301, FIRST = 20 };
	struct tess_tree tree = { 2, 0, 2, 0, 1 };
	struct tess_term term = { 0, 0, (int64_t[]){ 0, 128, V } };
	int32_t *label = malloc(4 * T);
	float *z, *row, *count = malloc(4);
	struct tess_view in[5], out;
	double num = FIRST;
	struct tess_op op;

	set_up_devices("auto");
	z = make_buffer(T * PITCH, true);
	row = make_buffer(4 * T, true);
	in[0] = cpu_make_rows(z, T, V, PITCH);
	in[3] = cpu_make_list(add_buffer(label, 4 * T), TESS_I32, T);
	in[4] = cpu_make_list(add_buffer(count, 4), TESS_F32, 1);
	*count = 5;
	for (int t = 0; t < T; t++)
		label[t] = t % 4 == 3 ? -100 : (int32_t)(cpu_draw_random() % (V + 2 * FIRST));
	z[PITCH + 7] = -60; /* its exponential, or quotients, are small */
	z[2 * PITCH + 9] = -200;
	z[5] = NAN;
	op = cpu_make_op(TESS_OP_LOSS_MAX, in, 1, &out, NULL, 0);
	out = in[1] = cpu_make_rows(row, T, 1, 1);
	expect_same("loss_max", &op, row, 4 * T);
	z[5] = 2;
	expect_same("loss_max", &op, row, 4 * T);
	op = cpu_make_sum_op(TESS_OP_LOSS_SUM, in, 2, &out, NULL, 0, &tree, 1, &term, 1);
	out = in[2] = cpu_make_rows(row + T, T, 1, 1);
	expect_bound("loss_sum", &op, row + T, T, 2e-6f);
	expect_node("loss_sum", op, row + T, T, false);
	op = cpu_make_op(TESS_OP_LOSS_PICK, (struct tess_view[]){ in[0], in[3] }, 2, &out, &num, 1);
	out.data = row + 2 * T;
	expect_same("loss_pick", &op, row + 2 * T, 4 * T);
	op = cpu_make_op(TESS_OP_LOSS, (struct tess_view[]){ in[1], in[2], out, in[3] }, 4, &out,
	                 NULL, 0);
	out.data = row + 3 * T;
	expect_same("loss", &op, row + 3 * T, 4 * T);
	op = cpu_make_op(TESS_OP_LOSS_D, in, 5, in, &num, 1);
	expect_same("loss_d", &op, z, 4 * T * PITCH);
	free_host_buffers();
	tear_down_devices();
}
END_TEST

/* ---- after the gradients --------------------------------------------------------------------- */

static void test_update(bool adamw, bool momentum, int32_t dtype, int64_t n)
{
	float *g = make_buffer(n, true), *w = make_buffer(4 * n, true);
	double decimals[] = { 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.19, 0.0975, 0.7 };
	double sgd[] = { 1e-2, momentum ? 0.9 : 0, 0.1, 0.7 };
	struct tess_view in = cpu_make_list(g, TESS_F32, n), out[4];
	struct tess_op op =
		cpu_make_op(adamw ? TESS_OP_ADAMW : TESS_OP_SGD, &in, 1, out,
	                    adamw ? decimals : sgd, adamw ? TESS_ADAMW_NUMS : TESS_SGD_NUMS);

	op.nout = adamw ? 4 : 3;
	for (int i = 0; i < 3; i++)
		out[i] = cpu_make_list(w + i * n, TESS_F32, n);
	for (int64_t i = 0; i < n; i++)
		w[2 * n + i] = fabsf(w[2 * n + i]);
	if (!adamw && !momentum)
		out[1].ndim = 0;
	out[op.nout - 1] = cpu_make_list(w + 3 * n, dtype, n);
	if (dtype == TESS_F32)
		out[op.nout - 1].ndim = 0;
	expect_same("update", &op, w, sizeof *w * 4 * (uint64_t)n);
	free_host_buffers();
}

/* Compares all digits, of numbers of all sizes. */
static void test_squares(int64_t n)
{
	float *x = make_buffer(n, true);
	int64_t *sum = add_buffer(calloc(19, 8), 19 * 8), want[19];
	struct tess_view in = cpu_make_list(x, TESS_F32, n), out = cpu_make_list(sum, TESS_I64, 19);
	struct tess_op op = cpu_make_op(TESS_OP_SQUARES, &in, 1, &out, NULL, 0);

	for (int64_t i = 0; i < n; i++) {
		uint32_t bits = i % 7 ? cpu_draw_random() : 0x7f7fffff;

		memcpy(&x[i], &bits, 4);
	}
	for (int again = 0; again < 2; again++)
		cpu_run_op(cpu, &op);
	memcpy(want, sum, sizeof want);
	memset(sum, 0, sizeof want);
	for (int again = 0; again < 2; again++)
		ck_assert_msg(run_on_gpu(&op) == TESS_OK, "%s", cpu_sentence);
	for (int i = 0; i < 19; i++)
		ck_assert_msg(sum[i] == want[i], "digit %d: %llx, not %llx", i, (long long)sum[i],
		              (long long)want[i]);
	free_host_buffers();
}

START_TEST(updates)
{
	set_up_devices("auto");
	for (int32_t d = 0; d < 3; d++) {
		test_update(true, true, cpu_choose_dtype(d), 300 + d);
		test_update(false, d % 2, cpu_choose_dtype(d), 31);
	}
	test_squares(1);
	test_squares(5);
	test_squares(20001);
	tear_down_devices();
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_training", 300, &r);

	tcase_add_test(t, elements);
	tcase_add_test(t, norms);
	tcase_add_test(t, products_of_rows);
	tcase_add_test(t, sums);
	tcase_add_loop_test(t, products, 0, 3);
	tcase_add_test(t, losses);
	tcase_add_test(t, updates);
	return suite_end(r);
}

/*
 * test_ops PLUGIN - compares the ops of the CUDA device, on a GPU or an emulated one, with the CPU.
 * Results with one order of rounding are equal; sums in another order differ within the bounds of
 * docs/devices.md.
 */
#include "device.h"

/* ---- rows ------------------------------------------------------------------------------------ */

static void test_map_op(int32_t kind, int32_t dtype, const double *num, int32_t nnum, int32_t nin,
                        int64_t rows, bool in_place)
{
	int64_t n = rows > 1 ? 299 : 300, pitch = in_place ? n + 8 - n % 4 : n + 7;
	float *x = make_buffer(rows * pitch, true);
	float *y = in_place ? x : make_buffer(rows * pitch, false);
	void *b = kind == TESS_OP_BIAS ? make_weight_buffer(dtype, n, NULL)
	                               : make_buffer(rows * pitch, true);
	struct tess_view in[] = { cpu_make_rows(x, rows, n, pitch),
		                  kind == TESS_OP_BIAS ? cpu_make_list(b, dtype, n)
		                                       : cpu_make_rows(b, rows, n, pitch) };
	struct tess_view out = cpu_make_rows(y, rows, n, pitch);
	struct tess_op op = cpu_make_op(kind, in, nin, &out, num, nnum);

	for (int i = 0; i < 4 && kind == TESS_OP_GLU; i++) /* SiLU of them has other instructions */
		x[i] = (float[]){ 88, -95, 120, -200 }[i];
	expect_same("map", &op, y, sizeof *y * (uint64_t)(rows * pitch));
	free_host_buffers();
}

/* Compares a product of rows with a factor for each. */
static void test_factor_op(int64_t rows)
{
	int64_t n = 300, pitch = 305;
	float *x = make_buffer(rows * pitch, true), *b = make_buffer(rows * 3, true);
	float *y = make_buffer(rows * pitch, false);
	struct tess_view in[] = { cpu_make_rows(x, rows, n, pitch), cpu_make_rows(b, rows, 1, 3) };
	struct tess_view out = cpu_make_rows(y, rows, n, pitch);
	struct tess_op op = cpu_make_op(TESS_OP_MUL, in, 2, &out, NULL, 0);

	expect_same("factors", &op, y, sizeof *y * (uint64_t)(rows * pitch));
	free_host_buffers();
}

START_TEST(maps)
{
	static const int64_t row_counts[] = { 1, 3, 40 };

	set_up_devices("auto");
	for (int i = 0; i < 6; i++) {
		int64_t rows = row_counts[i / 2];

		for (int32_t d = 0; d < 3; d++)
			test_map_op(TESS_OP_BIAS, cpu_choose_dtype(d), NULL, 0, 2, rows, i % 2);
		test_map_op(TESS_OP_ADD, 0, NULL, 0, 2, rows, i % 2);
		test_map_op(TESS_OP_SCALE, 0, (double[]){ 1.7 }, 1, 1, rows, i % 2);
		test_map_op(TESS_OP_SIGMOID, 0, NULL, 0, 1, rows, i % 2);
		test_map_op(TESS_OP_SIGMOID_D, 0, NULL, 0, 2, rows, i % 2);
		test_map_op(TESS_OP_MUL, 0, NULL, 0, 2, rows, i % 2);
		test_factor_op(rows);
		test_map_op(TESS_OP_CLAMP, 0, (double[]){ -0.2, 0.4 }, 2, 1, rows, i % 2);
		test_map_op(TESS_OP_CLAMP_D, 0, (double[]){ -0.2, 0.4 }, 2, 2, rows, i % 2);
		for (int32_t act = TESS_SILU; act <= TESS_TANH; act++)
			for (int32_t nin = 1; nin <= 2; nin++)
				test_map_op(TESS_OP_GLU, 0, (double[]){ act }, 1, nin, rows, i % 2);
	}
	tear_down_devices();
}
END_TEST

static void test_rope_op(int64_t each, int64_t first, int64_t width, int how, bool in_place)
{
	int64_t rows = 5, n = 3 * each, positions = 40;
	float *x = make_buffer(rows * n, true), *table = make_buffer(positions * width, true);
	float *y = in_place ? x : make_buffer(rows * n, false);
	int32_t *position = malloc(4 * (size_t)rows);
	struct tess_view in[] = {
		cpu_make_rows(x, rows, n, n),
		cpu_make_list(add_buffer(position, 4 * (uint64_t)rows), TESS_I32, rows),
		cpu_make_rows(table, positions, width, width),
	};
	struct tess_view out = cpu_make_rows(y, rows, n, n);
	double num[TESS_ROPE_NUMS] = { (double)each, (double)first, (double)width, how & 1,
		                       how / 2 };
	struct tess_op op = cpu_make_op(TESS_OP_ROPE, in, 3, &out, num, TESS_ROPE_NUMS);

	for (int64_t t = 0; t < rows; t++)
		position[t] = (int32_t)(cpu_draw_random() % (uint32_t)positions);
	expect_same("rope", &op, y, sizeof *y * (uint64_t)(rows * n));
	position[rows - 1] = (int32_t)positions;
	ck_assert_int_eq(run_on_gpu(&op), TESS_EINVAL);
	expect_part(cpu_sentence, "rope: a position is outside the table");
	free_host_buffers();
}

START_TEST(ropes)
{
	set_up_devices("auto");
	for (int i = 0; i < 4; i++) {
		test_rope_op(64, 0, 64, i, i / 2);
		test_rope_op(20, 0, 6, i, i / 2);
		test_rope_op(27, 11, 16, i, i / 2);
		test_rope_op(24, 4, 16, i, i / 2);
	}
	tear_down_devices();
}
END_TEST

/* Compares norms: the CPU adds a run element by element. gap: elements between rows. */
static void test_norm_op(int32_t kind, int32_t dtype, int offset, int64_t each, int64_t runs,
                         int64_t gap)
{
	const int64_t rows = 3, n = each * runs, pitch = n + gap;
	double num[] = { kind, 1e-5, (double)(runs > 1 ? each : 0), offset };
	struct tess_tree tree = { 1, 0, 1, 0, 1 };
	struct tess_term term = { 0, 0, (int64_t[]){ 0, each } };
	float *x = make_buffer(rows * pitch, true), *y = make_buffer(rows * pitch, false), *before,
	      *want, max = 0;
	struct tess_view in[] = {
		cpu_make_rows(x, rows, n, pitch),
		cpu_make_list(make_weight_buffer(dtype, each, NULL), dtype, each),
		cpu_make_list(make_weight_buffer(dtype, each, NULL), dtype, each),
	};
	struct tess_view out = cpu_make_rows(y, rows, n, pitch);
	struct tess_op op = cpu_make_sum_op(TESS_OP_NORM, in, kind == TESS_LAYER ? 3 : 2, &out, num,
	                                    TESS_NORM_NUMS, &tree, 1, &term, 1);

	if (offset < 0) { /* no weight */
		num[TESS_NORM_OFFSET] = 0;
		in[1] = (struct tess_view){ 0 };
	}
	before = memcpy(malloc(sizeof *y * (size_t)(rows * pitch)), y,
	                sizeof *y * (size_t)(rows * pitch));
	want = run_on_both(cpu, &op, y, sizeof *y * (uint64_t)(rows * pitch), before);
	for (int64_t i = 0; i < rows * pitch; i++)
		if (i % pitch < n)
			max = fmaxf(max, fabsf(want[i]));
	for (int64_t i = 0; i < rows * pitch; i++)
		if (i % pitch >= n)
			MUST(cpu_is_same(y[i], want[i]));
		else
			MUST(fabsf(y[i] - want[i]) <= (2e-6f + 1e-9f * (float)each) * max);
	free(before);
	free(want);
	free_host_buffers();
}

START_TEST(norms)
{
	set_up_devices("auto");
	for (int i = 0; i < 12; i++) { /* first in registers, then long or unaligned runs */
		int32_t dtype = cpu_choose_dtype(i), kind = i % 2 ? TESS_LAYER : TESS_RMS;
		int64_t gap = i < 6 ? 4 : 5;

		test_norm_op(kind, dtype, i == 2 || i == 5, i < 6 ? 5000 : 8400, 1, gap);
		test_norm_op(kind, dtype, i == 4, 300, 1, gap);
		test_norm_op(kind, dtype, 0, 64, 5, gap);
		test_norm_op(kind, dtype, 0, 6, 2, gap);
		if (kind == TESS_RMS)
			test_norm_op(kind, dtype, -1, 300, 1, gap);
	}
	tear_down_devices();
}
END_TEST

/*
 * Compares lookups of a table, plain or stored [H, V]; Partial: only entries [lo, hi) are this
 * rank's.
 */
static void test_embed_op(int32_t dtype, int64_t n, bool turned, bool partial)
{
	int64_t rows = 9, entries = 50;
	struct tess_tree tree = { 4, 1, 3, 0, 1 };
	struct tess_term term = { 0, 0, (int64_t[]){ 8, 20, 33 } };
	int32_t *id = malloc(4 * (size_t)rows);
	float *y = make_buffer(rows * n, false), *value;
	struct tess_view in[] = {
		cpu_make_list(add_buffer(id, 4 * (uint64_t)rows), TESS_I32, rows),
		cpu_make_view(make_weight_buffer(dtype, entries * n, &value), dtype, entries, n,
		              turned ? 1 : n, turned ? entries : 1),
	};
	struct tess_view out =
		partial ? cpu_make_partial(y, 1, rows, n, n) : cpu_make_rows(y, rows, n, n);
	double first = 100;
	struct tess_op op = cpu_make_op(TESS_OP_EMBED, in, 2, &out, &first, 1);

	op.tree = &tree;
	op.term = &term;
	op.ntree = op.nterm = partial;
	for (int64_t t = 0; t < rows; t++)
		id[t] = 98 + (int32_t)(cpu_draw_random() % 55);
	ck_assert_msg(run_on_gpu(&op) == TESS_OK, "%s", cpu_sentence);
	for (int64_t i = 0; i < rows * n; i++) {
		int64_t at = id[i / n] - 100;
		bool here = at >= (partial ? 8 : 0) && at < (partial ? 33 : entries);
		float want = here ? value[turned ? i % n * entries + at : at * n + i % n] : 0.0f;

		MUST(y[i] == want);
	}
	free(value);
	free_host_buffers();
}

START_TEST(embeddings)
{
	set_up_devices("auto");
	for (int i = 0; i < 12; i++)
		test_embed_op(cpu_choose_dtype(i), i % 2 ? 72 : 70, i & 4, i & 8);
	tear_down_devices();
}
END_TEST

START_TEST(copies)
{
	static const int32_t dtypes[] = { TESS_U8, TESS_BF16, TESS_F32, TESS_I64 };
	int64_t bytes = 6 * 40 * 50 * 8;

	set_up_devices("auto");
	for (int i = 0; i < 24; i++) {
		int32_t dtype = dtypes[i % 4], ndim = i % 3 + 1;
		float *x = make_buffer(bytes / 4, true), *y = make_buffer(bytes / 4, false);
		struct tess_view in = { .data = x, .dtype = dtype, .ndim = ndim };
		struct tess_view out = { .data = y, .dtype = dtype, .ndim = ndim };
		struct tess_op op = cpu_make_op(TESS_OP_COPY, &in, 1, &out, NULL, 0);

		for (int32_t a = 0; a < ndim; a++) { /* every second output is transposed */
			in.shape[a] = out.shape[a] = 1 + cpu_draw_random() % 5;
			in.stride[a] = a == 0 ? 2000 : a == 1 ? 50 : 1 + i % 2;
			out.stride[a] = i & 8 ? (a == 0 ? 1 : a == 1 ? 40 : 2000) : in.stride[a];
		}
		expect_same("copy", &op, y, (uint64_t)bytes);
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

START_TEST(selected_rows)
{
	static int32_t row[] = { 3, 0, 3, 6 };
	float *x, *y;
	struct tess_view in[2], out;
	struct tess_op op = cpu_make_op(TESS_OP_SELECT_ROWS, in, 2, &out, NULL, 0);

	set_up_devices("auto");
	x = make_buffer(7 * 300, true);
	y = make_buffer(4 * 310, false);
	in[0] = cpu_make_rows(x, 7, 299, 300);
	in[1] = cpu_make_list(add_buffer(row, sizeof row), TESS_I32, 4);
	out = cpu_make_rows(y, 4, 299, 310);
	expect_same("select_rows", &op, y, sizeof *y * 4 * 310);
	row[1] = 7;
	ck_assert_int_eq(run_on_gpu(&op), TESS_EINVAL);
	expect_part(cpu_sentence, "there is no such row");
	free_buffers();
	tear_down_devices();
}
END_TEST

/* ---- linear ---------------------------------------------------------------------------------- */

struct linear_case {
	int32_t dtype, nweights;
	int64_t rows, k, n[5];
	bool turned; /* weights are stored [in, out], */
	bool dense; /* with nothing between their rows */
	int64_t skip; /* columns of x and of W before the first; odd ones are not aligned */
	const int64_t *bound; /* two terms, four numbers; NULL: all of K */
	double math; /* math of the op; 0: the device's */
	bool twice; /* a second run gives the same bits */
};

static void run_again(const struct tess_op *op)
{
	for (int32_t i = 0; i < op->nout; i++) {
		const struct tess_view *v = &op->out[i];
		size_t bytes = sizeof(float) * (size_t)(v->shape[0] * v->stride[0]);
		void *first = malloc(bytes);

		memcpy(first, v->data, bytes);
		ck_assert_msg(run_on_gpu(op) == TESS_OK, "%s", cpu_sentence);
		ck_assert(!memcmp(first, v->data, bytes));
		free(first);
	}
}

/* Checks |got - want| <= rounding * the sum of |x * w|, plus a bound for the order of additions. */
static void test_linear_op(const struct linear_case *c, double rounding)
{
	int64_t pitch = c->k + 8, xn = c->rows * pitch + 8;
	int64_t whole[] = { 0, c->k };
	struct tess_tree tree = { 1, 0, 1, 0, c->bound ? 2 : 1 };
	struct tess_term term[] = { { 0, 0, c->bound ? c->bound : whole },
		                    { 0, 0, c->bound ? c->bound + 2 : NULL } };
	float *x = make_buffer(xn, true), *y[5], *w[5];
	struct tess_view in[6], out[5];
	struct tess_op op = cpu_make_sum_op(TESS_OP_LINEAR, in, c->nweights + 1, out, &c->math, 1,
	                                    &tree, 1, term, c->bound ? 2 : 1);
	double bound;

	op.nout = c->nweights;
	in[0] = cpu_make_rows(x + c->skip, c->rows, c->k, pitch);
	for (int32_t i = 0; i < c->nweights; i++) {
		int64_t n = c->n[i], wide = c->turned ? n + (c->dense ? 0 : 3) : pitch;
		char *data =
			make_weight_buffer(c->dtype, wide * (c->turned ? pitch : n) + 8, &w[i]);

		data += c->skip * (c->turned ? wide : 1) * cpu_get_width(c->dtype);
		in[1 + i] = cpu_make_view(data, c->dtype, n, c->k, c->turned ? 1 : wide,
		                          c->turned ? wide : 1);
		y[i] = make_buffer(c->rows * (n + 5), false);
		out[i] = c->bound ? cpu_make_partial(y[i], 1, c->rows, n, n + 5)
		                  : cpu_make_rows(y[i], c->rows, n, n + 5);
	}
	ck_assert_msg(run_on_gpu(&op) == TESS_OK, "%s", cpu_sentence);
	if (c->twice)
		run_again(&op);
	bound = rounding + (double)c->k * 0x1p-24;
	for (int32_t i = 0; i < c->nweights; i++) {
		for (int64_t at = 0; at < c->rows * c->n[i]; at++) {
			int64_t t = at / c->n[i], j = at % c->n[i],
				wide = c->turned ? c->n[i] + (c->dense ? 0 : 3) : pitch;
			double sum = 0, all = 0;

			for (int64_t k = 0; k < c->k; k++) {
				int64_t m = k + c->skip;
				double p = (double)x[t * pitch + m] *
				           (double)w[i][c->turned ? m * wide + j : j * wide + m];
				bool here = !c->bound || (k >= c->bound[0] && k < c->bound[1]) ||
				            (k >= c->bound[2] && k < c->bound[3]);

				sum += here ? p : 0;
				all += here ? fabs(p) : 0;
			}
			if (!(fabs((double)y[i][t * (c->n[i] + 5) + j] - sum) <= bound * all))
				ck_abort_msg("%d rows, k %d, weight %d [%d, %d]: %g, not %g +- %g",
				             (int)c->rows, (int)c->k, (int)i, (int)t, (int)j,
				             (double)y[i][t * (c->n[i] + 5) + j], sum, bound * all);
		}
		for (int64_t t = 0; t < c->rows; t++) /* bytes after a row are not written */
			MUST(isnan(y[i][t * (c->n[i] + 5) + c->n[i]]));
		free(w[i]);
	}
	free_host_buffers();
}

/* Returns the rounding: none with at most 8 rows; with more as in docs/devices.md. */
static double find_rounding(int32_t dtype, int64_t rows, const char *math)
{
	if (rows <= 8 || !strcmp(math, "f32") || (!strcmp(math, "auto") && dtype == TESS_F32))
		return 0;
	return !strcmp(math, "auto") && dtype == TESS_BF16 ? 0x1p-8
	       : dtype == TESS_F32                         ? 0x1p-9
	                                                   : 0x1p-10;
}

static void check_linears(const char *math)
{
	static const int64_t rows[] = { 1, 2, 3, 5, 8, 9, 40 };

	set_up_devices(math);
	for (int i = 0; i < 7 * 3; i += THIN) {
		int32_t dtype = cpu_choose_dtype(i);
		double rounding = find_rounding(dtype, rows[i / 3], math);
		struct linear_case c = {
			.dtype = dtype, .nweights = 1, .rows = rows[i / 3], .k = 1288, .n = { 37 }
		};

		/* 16 bytes at a time; up to 32 rows for f32 are computed as few rows */
		test_linear_op(&c, rounding < 0x1p-9 && c.rows <= 32 ? 0 : rounding);
		c.skip = 1;
		test_linear_op(&c, rounding);
		c.turned = true;
		test_linear_op(&c, rounding);
		c = (struct linear_case){ .dtype = dtype,
			                  .nweights = 2,
			                  .rows = rows[i / 3],
			                  .k = 24,
			                  .n = { 1, 2 },
			                  .turned = true,
			                  .dense = true };
		test_linear_op(&c, rounding);
		c = (struct linear_case){ .dtype = dtype,
			                  .nweights = 5,
			                  .rows = rows[i / 3],
			                  .k = 24,
			                  .n = { 40, 40, 1, 33, 7 } };
		test_linear_op(&c, rounding);
		c.bound = (int64_t[]){ 0, 8, 8, 24 };
		test_linear_op(&c, rounding);
		c.bound = (int64_t[]){ 1, 6, 8, 23 };
		test_linear_op(&c, rounding);
		c.bound = (int64_t[]){ 3, 3, 5, 5 };
		test_linear_op(&c, rounding);
	}
	tear_down_devices();
}

/* Checks that a router's products are f32, with any math of the device. */
static void check_router(const char *math)
{
	set_up_devices(math);
	for (int i = 0; i < 3; i++)
		test_linear_op(&(struct linear_case){ .dtype = cpu_choose_dtype(i),
		                                      .nweights = 1,
		                                      .rows = 21,
		                                      .k = 136,
		                                      .n = { 37 },
		                                      .math = TESS_F32 },
		               0);
	tear_down_devices();
}

START_TEST(linear_of_routers)
{
	check_router("auto");
	check_router("tf32");
}
END_TEST

/*
 * Products of 9 to 64 rows on tensor cores: by 64 columns, and parts of K that the last block adds;
 * or by 128 columns, if they fill the GPU.
 */
START_TEST(linear_tensor)
{
	static const int64_t rows[] = { 9, 16, 17, 33, 64, 65 };

	set_up_devices("auto");
	for (int i = 0; i < 6; i++) {
		struct linear_case c = { .dtype = TESS_BF16,
			                 .nweights = 4,
			                 .rows = rows[i],
			                 .k = 72,
			                 .n = { 59, 64, 123, 2 } };

		test_linear_op(&c, 0x1p-8);
		if (i % 2)
			continue;
		c = (struct linear_case){ .dtype = TESS_BF16,
			                  .nweights = 2,
			                  .rows = rows[i],
			                  .k = 1096,
			                  .n = { 59, 2 },
			                  .bound = (int64_t[]){ 8, 1040, 1048, 1096 } };
		test_linear_op(&c, 0x1p-8);
	}
	test_linear_op(&(struct linear_case){ .dtype = TESS_BF16,
	                                      .nweights = 3,
	                                      .rows = 61,
	                                      .k = 328,
	                                      .n = { 59, 16384, 131 } },
	               0x1p-8);
	tear_down_devices();
}
END_TEST

/*
 * Products whose parts clusters of 7, 5, 6 and 4 blocks add, on 8 multiprocessors: those of 5 with
 * two blocks on each. 4: these have no clusters.
 */
START_TEST(linear_clusters)
{
	static const struct linear_case c[] = {
		{ TESS_BF16, 1, .rows = 40, .k = 2104, .n = { 123 } },
		{ TESS_BF16, 2, .rows = 64, .k = 1224, .n = { 131, 128 } },
		{ TESS_BF16, 1, .rows = 33, .k = 1528, .n = { 100 }, .twice = true },
		/* parts of more stages than shared memory has */
		{ TESS_BF16, 2, .rows = 61, .k = 2504, .n = { 19, 128 } },
		{ TESS_BF16, 1, .rows = 40, .k = 1096, .n = { 123 } },
		/* 16 clusters of 6 on an H100 */
		{ TESS_BF16, 2, .rows = 57, .k = 3800, .n = { 1500, 400 }, .twice = true },
	};

	if (_i == 4)
		ck_assert_int_eq(setenv("FAKE_CUDA_FAILS", "clusters", 1), 0);
	if (_i == 5 && strstr(gpu_file, "cuda_emulated"))
		return;
	set_up_devices("auto");
	test_linear_op(&c[_i], 0x1p-8);
	tear_down_devices();
}
END_TEST

/* Products of one row with more elements than the threads of a block load at once. */
START_TEST(linear_long)
{
	set_up_devices("auto");
	for (int i = 0; i < 3; i++) {
		struct linear_case c = { .dtype = cpu_choose_dtype(i),
			                 .nweights = 3,
			                 .rows = 1,
			                 .k = 4104,
			                 .n = { 6, 1, 8 } };

		test_linear_op(&c, 0);
		c.bound = (int64_t[]){ 8, 2048, 2056, 4104 };
		test_linear_op(&c, 0);
	}
	tear_down_devices();
}
END_TEST

START_TEST(linear_auto)
{
	check_linears("auto");
}
END_TEST

START_TEST(linear_f32)
{
	check_linears("f32");
}
END_TEST

START_TEST(linear_tf32)
{
	check_linears("tf32");
}
END_TEST

/* ---- attention ------------------------------------------------------------------------------- */

struct attention_case {
	int64_t heads, lo, group, d, window; /* window < 0: chunks */
	int32_t dtype;
	double softcap;
	int64_t value; /* elements; 0: d; negative: the first ones of their key */
	int64_t slots, before; /* before: initial positions of a slot */
	const int *rows; /* rows of each slot in turn, 0: the end */
	double spread; /* spread of scores; 0: 3 */
};

/* The step of a case: rows[i] more rows of slot i % slots, in turn. */
struct attention_step {
	const struct attention_case *c;
	int64_t kv, value, tokens, blocks; /* blocks: of each slot */
	int64_t keys, values, page; /* bytes of a page: its keys, its values, each after a gap */
	int64_t *table;
	int32_t *position, *slot;
	char *pages;
	uint64_t bytes; /* bytes of all pages */
};

enum { GAP = 16 };

static struct attention_step make_attention_step(const struct attention_case *c)
{
	struct attention_step s = { .c = c, .value = c->value ? labs(c->value) : c->d };
	int64_t length[8], at = 0, width = cpu_get_width(c->dtype);

	s.kv = (c->lo + c->heads - 1) / c->group - c->lo / c->group + 1;
	for (int i = 0; c->rows[i]; i++)
		s.tokens += c->rows[i];
	s.blocks = (c->before + s.tokens) / 64 + 1;
	s.keys = s.kv * c->d * 64 * width;
	s.values = c->value < 0 ? 0 : s.kv * s.value * 64 * width;
	s.page = GAP + s.keys + s.values;
	s.bytes = (uint64_t)(c->slots * s.blocks * s.page);
	s.position = malloc(4 * (size_t)s.tokens);
	s.slot = malloc(4 * (size_t)s.tokens);
	for (int64_t i = 0; i < c->slots; i++)
		length[i] = c->before;
	for (int i = 0; c->rows[i]; i++)
		for (int j = 0; j < c->rows[i]; j++, at++) {
			s.slot[at] = (int32_t)(i % c->slots);
			s.position[at] = (int32_t)length[i % c->slots]++;
		}
	return s;
}

static void store_random(char *to, int32_t dtype)
{
	float x = cpu_draw_float();
	uint16_t h = tess_bf16_round(x);

	memcpy(to, dtype == TESS_F32 ? (void *)&x : (void *)&h, (size_t)cpu_get_width(dtype));
}

/* Fills keys and values of `before` positions; later ones, and those before a window, are NaN. */
static void fill_pages(struct attention_step *s)
{
	const struct attention_case *c = s->c;
	int64_t width = cpu_get_width(c->dtype), passed = 0;

	if (c->window && c->before > llabs(c->window))
		passed = (c->before - llabs(c->window) + 1) / 64;
	s->table = calloc((size_t)(c->slots * s->blocks), sizeof *s->table);
	s->pages = malloc(s->bytes);
	memset(s->pages, 0xff, s->bytes);
	for (int64_t i = 0; i < c->slots * s->blocks; i++) {
		char *page = s->pages + i * s->page, *keys = page + GAP, *values = keys + s->keys;
		int64_t left = c->before - i % s->blocks * 64;

		if (i % s->blocks < passed)
			continue;
		s->table[i] = (int64_t)(uintptr_t)page;
		for (int64_t e = 0; e < s->keys / width; e++)
			if ((c->value < 0 ? e / c->d % 64 : e % 64) < left)
				store_random(keys + e * width, c->dtype);
		for (int64_t e = 0; e < s->values / width; e++)
			if (e / s->value % 64 < left)
				store_random(values + e * width, c->dtype);
	}
}

/*
 * Runs the op on the CPU and twice on the device. Caches and second outputs are equal; outputs are
 * within 1e-5 of the largest, or within 2^-8 if tensor cores have rounded the weights, whose sum is
 * 1.
 */
static void compare_attention_runs(const struct attention_step *s, const struct tess_op *op,
                                   bool tensor, float *y)
{
	int64_t n = s->tokens * s->c->heads * s->value;
	size_t bytes = sizeof *y * (size_t)n;
	char *before = memcpy(malloc(s->bytes), s->pages, s->bytes), *cache = malloc(s->bytes);
	float *want = malloc(bytes), *first = malloc(bytes), max = 0;

	cpu_run_op(cpu, op);
	memcpy(want, y, bytes);
	memcpy(cache, s->pages, s->bytes);
	for (int again = 0; again < 2; again++) {
		memset(y, 0xff, bytes);
		memcpy(s->pages, before, s->bytes);
		ck_assert_msg(run_on_gpu(op) == TESS_OK, "%s", cpu_sentence);
		ck_assert_msg(!memcmp(s->pages, cache, s->bytes), "the cache differs");
		ck_assert_msg(!again || !memcmp(first, y, bytes), "a second run has other bits");
		memcpy(first, y, bytes);
	}
	for (int64_t i = 0; i < n; i++)
		max = fmaxf(max, fabsf(want[i]));
	for (int64_t i = 0; i < n; i++)
		if (!(fabsf(y[i] - want[i]) <= (tensor ? 0x1p-8f : 1e-5f * max)))
			ck_abort_msg("row %d of %d, element %d: %g, not %g",
			             (int)(i / (n / s->tokens)), (int)s->tokens,
			             (int)(i % (n / s->tokens)), (double)y[i], (double)want[i]);
	free(before);
	free(cache);
	free(want);
	free(first);
}

/* Makes sinks of heads: small, as large as scores, the only large score of their row, or none. */
static struct tess_view make_sinks(int64_t heads, int32_t dtype)
{
	static const float some[] = { -4, 2.5, 60, -INFINITY };
	char *sinks = calloc((size_t)heads, 8);

	for (int64_t h = 0; h < heads; h++) {
		float x = some[h % 4];
		uint16_t rounded = tess_bf16_round(x);

		if (dtype == TESS_F32)
			memcpy(sinks + h * 8, &x, sizeof x);
		else
			memcpy(sinks + h * 4, &rounded, sizeof rounded);
	}
	return (struct tess_view){ .data = add_buffer(sinks, 8 * (uint64_t)heads),
		                   .dtype = dtype,
		                   .ndim = 1,
		                   .shape = { heads },
		                   .stride = { 2 } };
}

/*
 * Compares attention; queries are bf16, as are keys and values in such a cache; values are below 1.
 */
static void test_attention_op(const struct attention_case *c, bool tensor, bool sinks)
{
	struct attention_step s = make_attention_step(c);
	int64_t n = s.tokens, nq = c->heads * c->d, nk = s.kv * c->d, nv = s.kv * s.value;
	int64_t slots = c->slots * s.blocks;
	double num[] = { (c->spread > 0 ? c->spread : 3) / sqrt((double)c->d),
		         (double)llabs(c->window),
		         (double)c->d,
		         (double)c->lo,
		         (double)c->group,
		         GAP,
		         (double)(GAP + s.keys),
		         c->dtype,
		         c->softcap,
		         (double)s.value,
		         0,
		         0,
		         c->window < 0 };
	struct tess_view in[8], out;
	struct tess_op op =
		cpu_make_op(TESS_OP_ATTENTION, in, sinks ? 8 : 6, &out, num, TESS_ATTENTION_NUMS);
	float *y;

	fill_pages(&s);
	add_buffer(s.pages, s.bytes);
	add_buffer(s.table, 8 * (uint64_t)slots);
	buffers[nbuffers - 1].pages = true;
	in[0] = cpu_make_rows(make_buffer(n * nq, true), n, nq, nq);
	in[1] = cpu_make_rows(make_buffer(n * nk, true), n, nk, nk);
	in[2] = cpu_make_rows(make_buffer(n * nv, true), n, nv, nv);
	if (c->value < 0)
		in[2] = (struct tess_view){ 0 };
	in[3] = cpu_make_list(add_buffer(s.position, 4 * (uint64_t)n), TESS_I32, n);
	in[4] = cpu_make_list(add_buffer(s.slot, 4 * (uint64_t)n), TESS_I32, n);
	in[5] = cpu_make_view(s.table, TESS_I64, c->slots, s.blocks, s.blocks, 1);
	in[6] = (struct tess_view){ 0 };
	in[7] = make_sinks(c->heads, c->dtype);
	y = make_buffer(n * c->heads * s.value, false);
	out = cpu_make_rows(y, n, c->heads * s.value, c->heads * s.value);
	for (int64_t i = 0; i < n * nq; i++)
		((float *)in[0].data)[i] =
			tess_bf16_load(tess_bf16_round(((float *)in[0].data)[i]));
	compare_attention_runs(&s, &op, tensor, y);
	free_host_buffers();
}

static const int one_row[] = { 1, 0 }, some_rows[] = { 1, 3, 1, 7, 2, 0 }, prompt[] = { 70, 0 },
		 long_prompt[] = { 200, 0 }, mixed[] = { 1, 45, 1, 17, 3, 20, 0 },
		 prompts[] = { 70, 1, 90, 130, 40, 0 }, batch[] = { 1, 1, 1, 1, 1, 0 };

enum { ATTENTION_CASES = 33 };

START_TEST(attention)
{
	static const struct attention_case cases[] = {
		{ 4, 0, 2, 64, 0, TESS_F32, 0, 0, 1, 0, one_row, 0 },
		{ 4, 0, 2, 64, 0, TESS_BF16, 0, 0, 1, 500, one_row, 0 },
		{ 8, 0, 8, 128, 0, TESS_BF16, 0, 0, 1, 700, one_row, 0 },
		{ 3, 1, 2, 6, 0, TESS_F32, 0, 0, 5, 70, some_rows, 0 },
		{ 5, 2, 3, 20, 33, TESS_BF16, 0, 28, 5, 200, some_rows, 0 },
		{ 4, 0, 4, 80, 100, TESS_F32, 3, 0, 5, 300, batch, 0 },
		{ 2, 0, 1, 256, 0, TESS_BF16, 0, 0, 1, 130, some_rows, 0 },
		{ 2, 0, 2, 512, 0, TESS_F32, 0, 0, 1, 63, one_row, 0 },
		{ 4, 0, 2, 64, 0, TESS_F32, 0, 0, 1, 0, prompt, 0 },
		{ 4, 0, 2, 64, 0, TESS_BF16, 2, 0, 1, 90, prompt, 0 },
		{ 3, 1, 2, 20, 50, TESS_F32, 0, 76, 1, 150, prompt, 0 },
		{ 2, 0, 1, 128, 0, TESS_BF16, 0, 0, 6, 40, mixed, 0 },
		{ 2, 0, 2, 160, 70, TESS_F32, 0, 100, 6, 100, mixed, 0 },
		{ 1, 0, 1, 320, 0, TESS_F32, 0, 0, 1, 10, prompt, 0 },
		{ 6, 0, 6, 40, 0, TESS_F32, 0, -32, 2, 100, some_rows, 0 },
		{ 5, 0, 5, 576, 0, TESS_BF16, 0, -512, 1, 200, some_rows, 0 },
		{ 3, 0, 3, 27, 60, TESS_BF16, 0, -19, 1, 140, prompt, 0 },
		{ 3, 1, 2, 64, 40, TESS_BF16, 0, 32, 1, 200, prompt, 0 },
		{ 2, 0, 2, 96, 0, TESS_BF16, 3, 48, 1, 70, long_prompt, 0 },
		{ 2, 0, 1, 48, 50, TESS_BF16, 0, 0, 6, 100, mixed, 0 },
		{ 2, 0, 2, 64, 0, TESS_BF16, 0, 0, 1, 62, prompt, 0 },
		{ 2, 0, 2, 64, 160, TESS_BF16, 0, 0, 1, 222, long_prompt, 0 },
		{ 8, 4, 4, 64, 0, TESS_BF16, 0, 0, 6, 100, mixed, 400 },
		{ 4, 0, 4, 128, 90, TESS_BF16, 0, 0, 1, 130, long_prompt, 400 },
		{ 4, 0, 2, 64, -50, TESS_BF16, 0, 0, 1, 90, prompt, 0 },
		{ 3, 1, 2, 20, -33, TESS_F32, 0, 0, 5, 200, some_rows, 0 },
		{ 2, 0, 2, 64, -160, TESS_BF16, 0, 0, 1, 222, long_prompt, 0 },
		{ 2, 0, 2, 160, -70, TESS_F32, 0, 100, 6, 100, mixed, 0 },
		{ 4, 0, 4, 64, 0, TESS_BF16, 0, 0, 1, 700, long_prompt, 0 },
		{ 1, 0, 1, 64, 0, TESS_BF16, 0, 0, 3, 90, prompts, 0 },
		{ 8, 0, 4, 128, -120, TESS_BF16, 0, 0, 2, 300, prompts, 400 },
		{ 2, 0, 1, 128, 200, TESS_BF16, 3, 0, 1, 400, long_prompt, 0 },
		{ 2, 0, 2, 128, 0, TESS_BF16, 0, 0, 1, 60, prompt, 0 },
	};

	const struct attention_case *c = &cases[_i * THIN % ATTENTION_CASES];
	bool exact = _i * THIN / ATTENTION_CASES == 1, older = _i * THIN / ATTENTION_CASES == 2;

	ck_assert_int_eq(sizeof cases / sizeof *cases, ATTENTION_CASES);
	if (older && (c->dtype != TESS_BF16 || (c->d != 64 && c->d != 128)))
		return; /* the same kernels */
	if (older)
		ck_assert_int_eq(setenv("FAKE_CUDA_COMPUTE", "80", 1), 0);
	if (exact) /* less shared memory than tiles of large heads need */
		ck_assert_int_eq(setenv("FAKE_CUDA_SHARED", "101376", 1), 0);
	set_up_devices(exact ? "f32" : "auto");
	test_attention_op(c, !exact && c->dtype == TESS_BF16 && c->d % 16 == 0 && c->d <= 128,
	                  (c - cases) % 2 == exact);
	tear_down_devices();
}
END_TEST

/* A position without a page is reported after the op has run. */
START_TEST(attention_without_page)
{
	float *x;
	int64_t none[2] = { 0, 0 };
	int32_t position[] = { 3 }, slot[] = { 0 };
	double num[TESS_ATTENTION_NUMS] = { 1, 0, 8, 0, 1, 0, 2048, TESS_F32, 0, 8 };
	struct tess_view in[6], out;
	struct tess_op op = cpu_make_op(TESS_OP_ATTENTION, in, 6, &out, num, TESS_ATTENTION_NUMS);

	set_up_devices("auto");
	x = make_buffer(4 * 8, true);
	for (int i = 0; i < 3; i++)
		in[i] = cpu_make_rows(x + 8 * i, 1, 8, 8);
	out = cpu_make_rows(x + 24, 1, 8, 8);
	in[3] = cpu_make_list(add_buffer(position, 4), TESS_I32, 1);
	in[4] = cpu_make_list(add_buffer(slot, 4), TESS_I32, 1);
	in[5] = (struct tess_view){ .data = add_buffer(none, sizeof none),
		                    .dtype = TESS_I64,
		                    .ndim = 2,
		                    .shape = { 1, 2 },
		                    .stride = { 2, 1 } };
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(run_on_gpu(&op), TESS_EINVAL);
		expect_part(cpu_sentence,
		            "layers.0.mlp or before: cuda: attention: a row has no slot");
		position[0] = i ? 128 : -1; /* then outside the pages */
	}
	free_buffers();
	tear_down_devices();
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_ops", 300, &r);

	tcase_add_test(t, maps);
	tcase_add_test(t, ropes);
	tcase_add_test(t, norms);
	tcase_add_test(t, embeddings);
	tcase_add_test(t, copies);
	tcase_add_test(t, selected_rows);
	tcase_add_test(t, linear_tensor);
	tcase_add_loop_test(t, linear_clusters, 0, 6);
	tcase_add_test(t, linear_long);
	tcase_add_test(t, linear_auto);
	tcase_add_test(t, linear_f32);
	tcase_add_test(t, linear_tf32);
	tcase_add_test(t, linear_of_routers);
	tcase_add_loop_test(t, attention, 0, 3 * ATTENTION_CASES / THIN);
	tcase_add_test(t, attention_without_page);
	return suite_end(r);
}

/*
 * cpu_ops.c - NORM, EMBED, BIAS, ROPE, GLU, ADD, SCALE, COPY, SELECT_ROWS and pack, bit for bit
 * against their definitions.
 */
#include "compare.h"

/* ---- NORM */

static void compare_norm(int kind, int64_t tokens, int64_t runs, int64_t each, int64_t units,
                         bool in_place, int dtype)
{
	int64_t columns = runs * each, bound[65];
	double num[] = { kind, 1e-5, runs > 1 ? (double)each : 0, dtype % 2 };
	struct tess_tree tree = { .n = units, .hi = units, .terms = 1 };
	struct tess_term term = { .bound = bound };
	struct cpu_weights w = cpu_make_weights(cpu_choose_dtype(dtype), each),
			   b = cpu_make_weights(cpu_choose_dtype(dtype + 1), each);
	float *x = cpu_make_floats(tokens * columns), *y = cpu_make_floats(tokens * columns);
	struct tess_view in[3] = { cpu_make_rows(in_place ? y : x, tokens, columns, columns),
		                   cpu_make_list(w.data, w.dtype, each),
		                   cpu_make_list(b.data, b.dtype, each) };
	struct tess_view out = cpu_make_rows(y, tokens, columns, columns);
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_NORM, in, kind + 1, &out, num, 4, &tree, 1, &term, 1);

	for (int64_t u = 0; u <= units; u++)
		bound[u] = tess_edge(each, units, u);
	compare_op(&op);
	if (kind == TESS_RMS) {
		num[TESS_NORM_OFFSET] = 0;
		in[1] = (struct tess_view){ 0 };
		compare_op(&op);
	}
	cpu_free_weights(&w);
	cpu_free_weights(&b);
	free(x);
	free(y);
}

START_TEST(norms)
{
	for (int t = 0; t < NTOKENS; t++) {
		for (int kind = 1; kind <= 2; kind++) {
			compare_norm(kind, tokens_of[t], 1, 288, 8, t % 2, t);
			compare_norm(kind, tokens_of[t], 1, 100, 8, false, t);
			compare_norm(kind, tokens_of[t], 1, 5, 5, false, t);
			compare_norm(kind, tokens_of[t], 3, 64, 1, t % 2, t);
			compare_norm(kind, tokens_of[t], 1, 700, 28, false, t);
		}
	}
}
END_TEST

/* ---- BIAS, ADD, SCALE, GLU, ROPE */

enum { N = 50, PITCH = 53, TOKENS_MAX = 48 };

/* Compares the op out of place, and in place on operand 0, which has `tokens` rows of x. */
static void compare_rows_op(struct tess_op *op, struct tess_view *in, struct tess_view *out,
                            const float *x, int64_t tokens)
{
	float y[TOKENS_MAX * PITCH] = { 0 };

	for (int in_place = 0; in_place < 2; in_place++) {
		for (int64_t t = 0; t < tokens && in_place; t++)
			memcpy(y + t * PITCH, x + t * N, sizeof *y * N);
		in[0] = in_place ? cpu_make_rows(y, tokens, N, PITCH)
		                 : cpu_make_rows((void *)x, tokens, N, N);
		*out = cpu_make_rows(y, tokens, N, PITCH);
		compare_op(op);
	}
}

START_TEST(bias_add_and_scale)
{
	float *x = cpu_make_floats(TOKENS_MAX * N), *z = cpu_make_floats(TOKENS_MAX * N);
	double factor = 0.1; /* rounded to f32 */
	struct tess_view in[2], out;

	for (int t = 0; t < NTOKENS; t++) {
		struct tess_op bias = cpu_make_op(TESS_OP_BIAS, in, 2, &out, NULL, 0),
			       scale = cpu_make_op(TESS_OP_SCALE, in, 1, &out, &factor, 1),
			       add = cpu_make_op(TESS_OP_ADD, in, 2, &out, NULL, 0);
		struct cpu_weights b = cpu_make_weights(cpu_choose_dtype(t), N);

		in[1] = cpu_make_list(b.data, b.dtype, N);
		compare_rows_op(&bias, in, &out, x, tokens_of[t]);
		in[1] = cpu_make_rows(z, tokens_of[t], N, N);
		compare_rows_op(&add, in, &out, x, tokens_of[t]);
		compare_rows_op(&scale, in, &out, x, tokens_of[t]);
		cpu_free_weights(&b);
	}
	free(x);
	free(z);
}
END_TEST

START_TEST(gates)
{
	static const float special[] = { 0.0f,   -0.0f,    100.0f,    -100.0f, 1e30f,
		                         -1e30f, INFINITY, -INFINITY, NAN,     1e-40f };
	float *x = cpu_make_floats(TOKENS_MAX * N), *b = cpu_make_floats(TOKENS_MAX * N);
	struct tess_view in[2], out;

	for (int64_t i = 0; i < TOKENS_MAX * N; i++)
		x[i] *= 20;
	memcpy(x, special, sizeof special);
	for (int t = 0; t < NTOKENS; t++) {
		for (int kind = 1; kind <= 5; kind++) {
			double num = kind;
			struct tess_op alone = cpu_make_op(TESS_OP_GLU, in, 1, &out, &num, 1);
			struct tess_op pair = cpu_make_op(TESS_OP_GLU, in, 2, &out, &num, 1);

			compare_rows_op(&alone, in, &out, x, tokens_of[t]);
			in[1] = cpu_make_rows(b, tokens_of[t], N, N);
			compare_rows_op(&pair, in, &out, x, tokens_of[t]);
		}
		struct tess_op sigmoid = cpu_make_op(TESS_OP_SIGMOID, in, 1, &out, NULL, 0);
		struct tess_op derive = cpu_make_op(TESS_OP_SIGMOID_D, in, 2, &out, NULL, 0);

		compare_rows_op(&sigmoid, in, &out, x, tokens_of[t]);
		compare_rows_op(&derive, in, &out, x, tokens_of[t]);
	}
	free(x);
	free(b);
}
END_TEST

/* Compares ROW_DOT over `columns` elements in `units` units. */
static void compare_row_dot(int64_t tokens, int64_t columns, int64_t units)
{
	struct tess_tree tree = { .n = units, .hi = units, .terms = 1 };
	float *a = cpu_make_floats(tokens * columns), *b = cpu_make_floats(tokens * columns);
	float y[TOKENS_MAX * 3];
	int64_t bound[64];
	struct tess_term term = { 0, 0, bound };
	struct tess_view in[2] = { cpu_make_rows(a, tokens, columns, columns),
		                   cpu_make_rows(b, tokens, columns, columns) };
	struct tess_view out = cpu_make_rows(y, tokens, 1, 3);
	struct tess_op op =
		cpu_make_sum_op(TESS_OP_ROW_DOT, in, 2, &out, NULL, 0, &tree, 1, &term, 1);

	for (int64_t u = 0; u <= units; u++)
		bound[u] = tess_edge(columns, units, u);
	compare_op(&op);
	free(a);
	free(b);
}

START_TEST(products_and_limits)
{
	static const double limits[] = { -0.25, 0.3 };
	float *x = cpu_make_floats(TOKENS_MAX * N), *b = cpu_make_floats(TOKENS_MAX * N);
	struct tess_view in[2], out;

	x[0] = NAN;
	x[1] = -0.25f;
	x[2] = 0.3f;
	for (int t = 0; t < NTOKENS; t++) {
		struct tess_op multiply = cpu_make_op(TESS_OP_MUL, in, 2, &out, NULL, 0),
			       clamp = cpu_make_op(TESS_OP_CLAMP, in, 1, &out, limits, 2),
			       derive = cpu_make_op(TESS_OP_CLAMP_D, in, 2, &out, limits, 2);

		in[1] = cpu_make_rows(b, tokens_of[t], N, N);
		compare_rows_op(&multiply, in, &out, x, tokens_of[t]);
		compare_rows_op(&clamp, in, &out, x, tokens_of[t]);
		compare_rows_op(&derive, in, &out, x, tokens_of[t]);
		in[1] = cpu_make_rows(b, tokens_of[t], 1, 7);
		compare_rows_op(&multiply, in, &out, x, tokens_of[t]);
		compare_row_dot(tokens_of[t], 100, 8);
		compare_row_dot(tokens_of[t], 288, 36);
		compare_row_dot(tokens_of[t], 1, 1);
	}
	free(x);
	free(b);
}
END_TEST

START_TEST(ropes)
{
	enum { EACH = 10, P = 70 };
	static const int part[][2] = { { 0, EACH }, { 0, 4 }, { 6, 4 }, { 3, 6 }, { 8, 2 } };
	float *x = cpu_make_floats(TOKENS_MAX * N), *table = cpu_make_floats(P * EACH);
	int32_t position[TOKENS_MAX];
	struct tess_view in[3], out;

	for (int i = 0; i < 20 * NTOKENS; i++) {
		int first = part[i / 2 % 5][0], width = part[i / 2 % 5][1];
		int64_t tokens = tokens_of[i / 20];
		double num[TESS_ROPE_NUMS] = { EACH, first, width, i % 2, i / 10 % 2 };
		struct tess_op op = cpu_make_op(TESS_OP_ROPE, in, 3, &out, num, TESS_ROPE_NUMS);

		for (int64_t r = 0; r < tokens; r++)
			position[r] = (int32_t)(r + 7 * (i / 20));
		in[1] = cpu_make_list(position, TESS_I32, tokens);
		in[2] = cpu_make_rows(table, P, width, width);
		compare_rows_op(&op, in, &out, x, tokens);
	}
	free(x);
	free(table);
}
END_TEST

/* Checks that the rotated part is inside a head, and as wide as the table. */
START_TEST(ropes_within_the_heads)
{
	static const double good[TESS_ROPE_NUMS] = { 10, 2, 8 };
	static const struct {
		int at;
		double value;
	} wrong[] = { { 0, 12 }, { 0, 8 }, { 1, 3 }, { 1, -1 }, { 2, 7 },
		      { 2, 10 }, { 2, 6 }, { 3, 2 }, { 4, 2 } };
	float x[20] = { 0 };
	int32_t position = 0;
	struct tess_view in[3] = { cpu_make_rows(x, 1, 20, 20),
		                   cpu_make_list(&position, TESS_I32, 1),
		                   cpu_make_rows(x, 2, 8, 8) };
	double num[TESS_ROPE_NUMS];
	struct tess_op op = cpu_make_op(TESS_OP_ROPE, in, 3, in, num, TESS_ROPE_NUMS);
	void *device = cpu_open_device("auto", 1);

	memcpy(num, good, sizeof num);
	ck_assert_int_eq(cpu_check_op(&op), TESS_OK);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		memcpy(num, good, sizeof num);
		num[wrong[i].at] = wrong[i].value;
		ck_assert_msg(cpu_check_op(&op) == TESS_ENOTSUP, "number %zu", i);
	}
	cpu_device->close(device);
}
END_TEST

/* ---- EMBED */

enum { V = 37, H = 20, T = 6, FIRST = 100, UNITS = 9 };
static const int32_t ids[T] = { 100, 136, 117, 99, 137, 117 }; /* two ids are not in the table */

START_TEST(embeddings)
{
	int64_t bound[UNITS + 1];
	struct tess_tree tree = { 2 * UNITS, UNITS - 2, 2 * UNITS - 2, 0, 1 };
	struct tess_term term = { .bound = bound };
	double first = FIRST;
	float y[8 * T * H] = { 0 };

	for (int64_t u = 0; u <= UNITS; u++)
		bound[u] = u * 4; /* the last row is outside all units */
	for (int dtype = 0; dtype < 3; dtype++) {
		struct cpu_weights w = cpu_make_weights(cpu_choose_dtype(dtype), V * H);
		struct tess_view in[2] = { cpu_make_list((void *)ids, TESS_I32, T),
			                   cpu_make_matrix(&w, V, H, H, 1) };
		struct tess_view out = cpu_make_rows(y, T, H, H);
		struct tess_op whole = cpu_make_op(TESS_OP_EMBED, in, 2, &out, &first, 1),
			       nodes = cpu_make_sum_op(TESS_OP_EMBED, in, 2, &out, &first, 1, &tree,
		                                       1, &term, 1);

		memset(w.data, 0, (size_t)cpu_get_width(w.dtype));
		w.data[cpu_get_width(w.dtype) - 1] = (char)0x80; /* -0, which becomes +0 */
		compare_op(&whole);
		out = cpu_make_partial(y, tess_node_count(tree.n, tree.lo, tree.hi), T, H, H);
		compare_op(&nodes);
		cpu_free_weights(&w);
	}
}
END_TEST

/* ---- COPY and pack */

START_TEST(copies)
{
	static const int32_t types[] = { TESS_F32, TESS_BF16, TESS_I64, TESS_U8 };
	static const int64_t width[] = { 4, 2, 8, 1 };
	enum { A = 3, B = 4, C = 5, ALL = A * B * C };
	unsigned char from[ALL * 8 * 2], to[ALL * 8 * 2];
	void *device = cpu_open_device("auto", 2);

	for (size_t i = 0; i < sizeof from; i++)
		from[i] = (unsigned char)(i * 7 + 1);
	for (int d = 0; d < 4; d++) {
		for (int ndim = 0; ndim <= 3; ndim++) {
			struct tess_view x = { .data = from,
				               .dtype = types[d],
				               .ndim = ndim,
				               .shape = { A, B, C },
				               .stride = { B * C, C, 1 } };
			struct tess_view y = { .data = to,
				               .dtype = types[d],
				               .ndim = ndim,
				               .shape = { A, B, C },
				               .stride = { 1, A, A * B } };
			struct tess_op op = cpu_make_op(TESS_OP_COPY, &x, 1, &y, NULL, 0);

			memset(to, 0, sizeof to);
			cpu_run_op(device, &op);
			for (int64_t a = 0; a < (ndim > 0 ? A : 1); a++)
				for (int64_t b = 0; b < (ndim > 1 ? B : 1); b++)
					for (int64_t c = 0; c < (ndim > 2 ? C : 1); c++)
						MUST(!memcmp(
							to + (a + A * b + A * B * c) * width[d],
							from + (B * C * a + C * b + c) * width[d],
							(size_t)width[d]));
		}
	}
	cpu_device->close(device);
}
END_TEST

START_TEST(packs)
{
	enum { ROWS = 35, K = 21 };

	for (int i = 0; i < 6; i++) {
		struct cpu_weights w = cpu_make_weights(cpu_choose_dtype(i), ROWS * K);
		struct tess_view rows =
			cpu_make_matrix(&w, ROWS, K, i < 3 ? K : 1, i < 3 ? 1 : ROWS);
		struct tess_view panels;
		int64_t bytes = cpu_get_width(w.dtype);
		void *device = cpu_open_device("auto", 1 + i % 3);

		panels = cpu_pack_weight(device, &rows);
		ck_assert_int_eq(panels.dtype, w.dtype);
		ck_assert_int_eq(panels.shape[0], ROWS);
		ck_assert_int_eq(panels.shape[1], K);
		for (int64_t j = 0; j < 48; j++) {
			for (int64_t k = 0; k < K; k++) {
				int64_t at = j / 16 * panels.stride[0] + k * 16 + j % 16;
				int64_t from = j * rows.stride[0] + k * rows.stride[1];
				const char *want = j < ROWS ? w.data + from * bytes : "\0\0\0\0";

				MUST(!memcmp((char *)panels.data + at * bytes, want,
				             (size_t)bytes));
			}
		}
		MUST(((unsigned char *)panels.data)[48 * K * bytes] == 0x7f);
		free(panels.data);
		cpu_device->close(device);
		cpu_free_weights(&w);
	}
}
END_TEST

/* ---- views with gaps, and what lies outside them */

/* Checks a vector of weights with gaps: a column of a table. */
START_TEST(strided_vectors)
{
	enum { ROWS = 3, APART = 5 };
	static const double num[] = { 2, 1e-5, 0, 0 };
	float *x = cpu_make_floats(ROWS * N), *table = cpu_make_floats(N * APART), y[ROWS * N],
	      want[ROWS * N];
	float w[N], b[N];
	int64_t bound[] = { 0, N };
	struct tess_tree tree = { .n = 1, .hi = 1, .terms = 1 };
	struct tess_term term = { .bound = bound };
	struct cpu_devices d = { 0 };

	for (int i = 0; i < N; i++) {
		w[i] = table[i * APART];
		b[i] = table[i * APART + 1];
	}
	/* each device twice: NORM, and BIAS */
	for (int i = 0; i % 2 || cpu_open_next(&d); i++) {
		struct tess_view in[3] = { cpu_make_rows(x, ROWS, N, N) },
				 out = cpu_make_rows(want, ROWS, N, N);
		struct tess_op op = i % 2 ? cpu_make_op(TESS_OP_BIAS, in, 2, &out, NULL, 0)
		                          : cpu_make_sum_op(TESS_OP_NORM, in, 3, &out, num, 4,
		                                            &tree, 1, &term, 1);

		in[1] = cpu_make_list(w, TESS_F32, N);
		in[2] = cpu_make_list(b, TESS_F32, N);
		cpu_run_op(d.now, &op);
		in[1] = cpu_make_list(table, TESS_F32, N);
		in[2] = cpu_make_list(table + 1, TESS_F32, N);
		in[1].stride[0] = in[2].stride[0] = APART;
		out.data = y;
		cpu_run_op(d.now, &op);
		cpu_expect_equal(d.variant->isa, y, want, ROWS * N);
	}
	free(x);
	free(table);
}
END_TEST

/* Checks that a table of 3 positions has 0 to 2. */
START_TEST(ropes_within_the_table)
{
	static const int32_t tries[] = { 0, 2, 3, -1 };
	static const double num[TESS_ROPE_NUMS] = { 4, 0, 4 };
	float x[8] = { 0 }, y[8], table[3 * 4] = { 0 };
	void *device = cpu_open_device("auto", 1);

	for (int i = 0; i < 8; i++) {
		int32_t position[2] = { tries[i % 4], tries[i % 4] };
		struct tess_view in[3] = { cpu_make_rows(x, 2, 4, 4),
			                   cpu_make_list(position, TESS_I32, 2),
			                   cpu_make_rows(table, 3, 4, 4) };
		struct tess_view out = cpu_make_rows(y, 2, 4, 4);
		struct tess_op op = cpu_make_op(TESS_OP_ROPE, in, 3, &out, num, TESS_ROPE_NUMS);

		position[i / 4] = 1;
		ck_assert_int_eq(cpu_device->run(device, &op), i % 4 < 2 ? TESS_OK : TESS_EINVAL);
	}
	cpu_device->close(device);
}
END_TEST

/* Selects any rows in any order, from rows with gaps; rows outside x are refused. */
START_TEST(selects_rows)
{
	enum { ROWS = 5, COLUMNS = 7, APART = 9 };
	static const int32_t list[] = { 4, 0, 0, 3 }, wrong[] = { -1, ROWS };
	float *x = cpu_make_floats(ROWS * APART), y[4 * COLUMNS];
	int32_t row[4];
	struct tess_view in[2] = { cpu_make_rows(x, ROWS, COLUMNS, APART),
		                   cpu_make_list(row, TESS_I32, 4) };
	struct tess_view out = cpu_make_rows(y, 4, COLUMNS, COLUMNS);
	struct tess_op op = cpu_make_op(TESS_OP_SELECT_ROWS, in, 2, &out, NULL, 0);
	void *device = cpu_open_device("auto", 2);

	memcpy(row, list, sizeof row);
	cpu_run_op(device, &op);
	for (int i = 0; i < 4; i++)
		cpu_expect_equal("row", y + i * COLUMNS, x + list[i] * APART, COLUMNS);
	for (int i = 0; i < 2; i++) {
		row[3] = wrong[i];
		ck_assert_int_eq(cpu_device->run(device, &op), TESS_EINVAL);
	}
	in[1].shape[0] = 3;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	in[1].shape[0] = 4;
	out.shape[1] = COLUMNS - 1;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	cpu_device->close(device);
	free(x);
}
END_TEST

SUITE_MAIN("cpu_ops", norms, bias_add_and_scale, gates, products_and_limits, ropes, embeddings,
           copies, packs, strided_vectors, ropes_within_the_table, ropes_within_the_heads,
           selects_rows)

/* cpu_head_linear.c - HEAD_LINEAR on the CPU device, bit for bit against its definition. */
#include "compare.h"

struct head_shape {
	int64_t heads, n, k, rest;
};

/* Compares heads of a weight with K or N contiguous. */
static void compare_heads(const struct head_shape *m, int64_t tokens, int32_t dtype, bool columns)
{
	int64_t xs = (m->k + m->rest) * m->heads, ys = (m->n + m->rest) * m->heads;
	struct cpu_weights w = cpu_make_weights(dtype, m->heads * m->n * m->k);
	float *x = cpu_make_floats(tokens * (xs + 3)), *y = cpu_make_floats(tokens * ys);
	struct tess_view in[2] = {
		cpu_make_rows(x, tokens, xs, xs + 3),
		{ .data = w.data,
		  .dtype = w.dtype,
		  .ndim = 3,
		  .shape = { m->heads, m->n, m->k },
		  .stride = { m->n * m->k, columns ? 1 : m->k, columns ? m->n : 1 } },
	};
	struct tess_view out = cpu_make_rows(y, tokens, ys, ys);
	struct tess_op op = cpu_make_op(TESS_OP_HEAD_LINEAR, in, 2, &out, NULL, 0);

	compare_op(&op);
	cpu_free_weights(&w);
	free(x);
	free(y);
}

START_TEST(every_head_has_its_weight)
{
	static const struct head_shape shapes[] = {
		{ 3, 16, 8, 0 }, { 4, 12, 8, 4 },    { 2, 64, 33, 1 },
		{ 1, 1, 1, 2 },  { 2, 130, 300, 0 },
	};
	static const int64_t tokens[] = { 1, 2, 7, 48 };

	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (size_t k = 0; k < 2 * sizeof tokens / sizeof *tokens; k++)
			compare_heads(&shapes[i], tokens[k / 2], cpu_choose_dtype((int)(i + k / 2)),
			              k % 2);
}
END_TEST

START_TEST(refuses_other_shapes)
{
	static float memory[64];
	void *device = cpu_open_device("auto", 1);
	static const struct {
		int64_t x, y, heads, n, k, tokens;
		int32_t dtype, ndim;
	} cases[] = {
		{ 6, 8, 2, 4, 3, 2, TESS_F32, 3 }, /* accepted: 2 heads of 3 become 2 of 4 */
		{ 8, 10, 2, 4, 3, 2, TESS_F32, 3 }, /* with a rest of 1 */
		{ 7, 8, 2, 4, 3, 2, TESS_F32, 3 },  { 6, 9, 2, 4, 3, 2, TESS_F32, 3 },
		{ 6, 10, 2, 4, 3, 2, TESS_F32, 3 }, { 4, 6, 2, 4, 3, 2, TESS_F32, 3 },
		{ 6, 8, 0, 4, 3, 2, TESS_F32, 3 },  { 6, 6, 2, 0, 3, 2, TESS_F32, 3 },
		{ 6, 8, 2, 4, 3, 3, TESS_F32, 3 },  { 6, 8, 2, 4, 3, 2, TESS_I32, 3 },
		{ 6, 8, 2, 4, 3, 2, TESS_F32, 2 },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct tess_view in[2] = {
			cpu_make_rows(memory, cases[i].tokens, cases[i].x, cases[i].x),
			{ .data = memory,
			  .dtype = cases[i].dtype,
			  .ndim = cases[i].ndim,
			  .shape = { cases[i].heads, cases[i].n, cases[i].k },
			  .stride = { cases[i].n * cases[i].k, cases[i].k, 1 } },
		};
		struct tess_view y = cpu_make_rows(memory, 2, cases[i].y, cases[i].y);
		struct tess_op op = cpu_make_op(TESS_OP_HEAD_LINEAR, in, 2, &y, NULL, 0);

		ck_assert_int_eq(cpu_check_op(&op), i < 2 ? TESS_OK : TESS_ENOTSUP);
	}
	cpu_device->close(device);
}
END_TEST

SUITE_MAIN("cpu_head_linear", every_head_has_its_weight, refuses_other_shapes)

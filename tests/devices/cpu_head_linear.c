/* HEAD_LINEAR on the CPU device, bit for bit against a chain of fmaf. */
#include "tests/support/cpu.h"

struct head_shape {
	int64_t heads, n, k, rest;
};

/* How the weight lies: K contiguous, N contiguous, or packed from either. */
enum { ROWS, COLUMNS, PACKED_ROWS, PACKED_COLUMNS, LAYOUTS };

static void compute_heads(const struct head_shape *m, const float *x, int64_t tokens,
                          const float *w, bool columns, float *y)
{
	int64_t xs = m->k + m->rest, ys = m->n + m->rest;

	for (int64_t i = 0; i < tokens * m->heads; i++) {
		const float *from = x + i * xs, *head = w + i % m->heads * m->n * m->k;

		for (int64_t j = 0; j < m->n; j++) {
			float acc = 0.0f;

			for (int64_t k = 0; k < m->k; k++)
				acc = fmaf(from[k], head[columns ? k * m->n + j : j * m->k + k],
				           acc);
			y[i * ys + j] = acc + 0.0f;
		}
		memcpy(y + i * ys + m->n, from + m->k, sizeof *y * (size_t)m->rest);
	}
}

/* A view [heads, N, K] of the weights: panels of each head are in new memory, free(view.data). */
static struct tess_view make_heads(void *device, const struct head_shape *m,
                                   const struct cpu_weights *w, int layout)
{
	bool columns = layout == COLUMNS || layout == PACKED_COLUMNS;
	struct tess_view v = { .data = w->data,
		               .dtype = w->dtype,
		               .ndim = 3,
		               .shape = { m->heads, m->n, m->k },
		               .stride = { m->n * m->k, columns ? 1 : m->k, columns ? m->n : 1 } };

	return layout < PACKED_ROWS ? v : cpu_pack_matrices(device, &v);
}

static void compare_heads(const struct head_shape *m, int64_t tokens, int32_t dtype)
{
	int64_t xs = (m->k + m->rest) * m->heads, ys = (m->n + m->rest) * m->heads;
	struct cpu_weights w = cpu_make_weights(dtype, m->heads * m->n * m->k);
	float *x = cpu_make_floats(tokens * (xs + 3)), *dense = calloc((size_t)(tokens * xs), 4),
	      *want = calloc((size_t)(tokens * ys), 4), *got = calloc((size_t)(tokens * ys), 4);
	struct cpu_devices d = { 0 };
	char what[128];

	for (int64_t t = 0; t < tokens; t++)
		memcpy(dense + t * xs, x + t * (xs + 3), sizeof *x * (size_t)xs);
	while (cpu_open_next(&d)) {
		for (int layout = 0; layout < LAYOUTS; layout++) {
			struct tess_view in[2] = { cpu_make_rows(x, tokens, xs, xs + 3),
				                   make_heads(d.now, m, &w, layout) };
			struct tess_view y = cpu_make_rows(got, tokens, ys, ys);
			struct tess_op op = cpu_make_op(TESS_OP_HEAD_LINEAR, in, 2, &y, NULL, 0);

			compute_heads(m, dense, tokens, w.value,
			              layout == COLUMNS || layout == PACKED_COLUMNS, want);
			memset(got, 0x7f, sizeof *got * (size_t)(tokens * ys));
			cpu_run_op(d.now, &op);
			snprintf(what, sizeof what, "%s, %d threads, layout %d, %lld rows",
			         d.variant->isa, (int)d.variant->nthreads, layout,
			         (long long)tokens);
			cpu_expect_equal(what, got, want, tokens * ys);
			if (layout >= PACKED_ROWS)
				free(in[1].data);
		}
	}
	cpu_free_weights(&w);
	free(x);
	free(dense);
	free(want);
	free(got);
}

START_TEST(every_head_has_its_weight)
{
	static const struct head_shape shapes[] = {
		{ 3, 16, 8, 0 }, { 4, 12, 8, 4 },    { 2, 64, 33, 1 },
		{ 1, 1, 1, 2 },  { 2, 130, 300, 0 },
	};
	static const int64_t tokens[] = { 1, 2, 7, 48 };

	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++)
			compare_heads(&shapes[i], tokens[k], cpu_choose_dtype((int)(i + k)));
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
		{ 6, 8, 2, 4, 3, 2, TESS_F32, 3 }, /* right: 2 heads of 3 become 2 of 4 */
		{ 8, 10, 2, 4, 3, 2, TESS_F32, 3 }, /* and with a rest of 1 */
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

/*
 * cpu_bf12.c - TESS_BF12 on the CPU device: panels that decode to the bits of bf16 by the
 * definition in docs/ops.md, and sums bit for bit as with rows.
 */
#include "tests/support/cpu.h"

enum { UNITS = 4, N_MAX = 150, K_MAX = 600, NODES = 3 };

/* Returns the bytes from the start of a panel to its blocks. */
static int64_t count_start(int64_t k)
{
	return 64 + 64 * ((k + 255) / 256);
}

static int64_t count_panel(int64_t k)
{
	return count_start(k) + 192 * ((k + 7) / 8);
}

/*
 * Draws elements with one of 15 exponents, besides 0 in missing rows of a panel; one of `apart` has
 * any.
 */
static uint16_t *draw_bf16(int64_t n, int64_t k, int apart)
{
	uint16_t *w = malloc(sizeof *w * (size_t)(n * k));

	for (int64_t i = 0; i < n * k; i++) {
		uint32_t r = cpu_draw_random();
		uint32_t exponent = r % (uint32_t)apart ? 100 + r / 8192 % 15 : r / 8192 % 200;

		w[i] = (uint16_t)((r & 0x80) << 8 | exponent << 7 | (r >> 24 & 0x7f));
	}
	return w;
}

/* Makes a weight; free(view.data). */
static struct tess_view make_bf12(void *device, const struct tess_view *rows)
{
	int64_t n = rows->shape[0], k = rows->shape[1], bytes = (n + 15) / 16 * count_panel(k);
	struct tess_view v = { .data = malloc((size_t)bytes),
		               .dtype = TESS_BF12,
		               .ndim = 2,
		               .layout = TESS_PANELS,
		               .shape = { n, k },
		               .stride = { count_panel(k), 16 } },
			 to = v;

	memset(v.data, 0x7f, (size_t)bytes);
	ck_assert_msg(!cpu_device->pack(device, rows, &to), "%s", cpu_sentence);
	return v;
}

/* Decodes element (j, k) of panels by the definition. */
static uint16_t read_element(const struct tess_view *v, int64_t j, int64_t k)
{
	const char *panel = (const char *)v->data + j / 16 * v->stride[0];
	const uint8_t *exponent = (const uint8_t *)panel;
	const uint32_t *count = (const uint32_t *)(panel + 16), *exception = count + 12;
	const uint16_t *word = (const uint16_t *)(panel + count_start(v->shape[1]) + k / 8 * 192);
	int64_t at = 2 * (j % 16) + k % 2, pair = k % 8 / 2;
	uint16_t rest = word[32 + pair / 2 * 32 + at];

	for (uint32_t i = 0; i < *count; i++)
		if (exception[2 * i] == k * 16 + j % 16)
			return (uint16_t)(exception[2 * i + 1] >> 16);
	rest = pair % 2 ? (uint16_t)(rest << 8 | rest >> 8) : rest;
	return (uint16_t)(exponent[word[at] >> (4 * pair) & 15] << 7 | (rest & 0x807f));
}

START_TEST(panels_have_the_bits_of_the_rows)
{
	static const int64_t sizes[][2] = { { 16, 8 }, { 1, 1 }, { 70, 258 }, { 33, 257 } };
	struct cpu_devices d = { 0 };

	while (cpu_open_next(&d)) {
		for (int i = 0; i < 4; i++) {
			int64_t n = sizes[i][0], k = sizes[i][1];
			uint16_t *w = draw_bf16(n, k, 2000);
			/* as [N, K], and as the transpose of [K, N] */
			struct tess_view rows = i % 2 ? cpu_make_view(w, TESS_BF16, n, k, 1, n)
			                              : cpu_make_view(w, TESS_BF16, n, k, k, 1);
			struct tess_view v = make_bf12(d.now, &rows);

			for (int64_t j = 0; j < n; j++)
				for (int64_t l = 0; l < k; l++)
					MUST(read_element(&v, j, l) ==
					     w[j * rows.stride[0] + l * rows.stride[1]]);
			free(v.data);
			free(w);
		}
	}
}
END_TEST

/* units of complete blocks, and units that begin inside one */
static const int64_t units[] = { 8, 64, 150, 3 };
static const int64_t rows_of[] = { 1, 2, 3, 4, 5, 6, 7, 30 };
enum { SIZES = sizeof units / sizeof *units, ROWS = sizeof rows_of / sizeof *rows_of };

static struct tess_op make_bf12_sum(const struct tess_view *in, const struct tess_view *out,
                                    const double *math, const struct tess_tree *tree,
                                    const struct tess_term *term)
{
	return cpu_make_sum_op(TESS_OP_LINEAR, in, 2, out, math, TESS_LINEAR_NUMS, tree, 1, term,
	                       1);
}

START_TEST(sums_of_the_rows)
{
	size_t most = sizeof(float) * NODES * 30 * N_MAX;
	float *x = cpu_make_floats(30 * K_MAX), *want = malloc(most), *got = malloc(most);
	struct cpu_devices d = { 0 };

	for (int i = 0; cpu_open_next(&d); i++) {
		for (int c = 0; c < SIZES * ROWS; c++) {
			int64_t unit = units[c % SIZES], k = UNITS * unit, t = rows_of[c / SIZES];
			int64_t n = N_MAX - c % 9, bound[UNITS + 1] = { 0 };
			/* finished; or all units but the last of a rank; products of f32 or bf16 */
			bool partial = (c + i) % 2;
			const double math = (c + i) % 3 ? TESS_F32 : TESS_BF16;
			uint16_t *w = draw_bf16(n, k, 1500);
			struct tess_tree tree = { UNITS + partial, 0, UNITS, 0, 1 };
			struct tess_term term = { .bound = bound };
			int64_t nodes = tess_node_count(tree.n, tree.lo, tree.hi);
			struct tess_view in[2] = { cpu_make_rows(x, t, k, K_MAX),
				                   cpu_make_view(w, TESS_BF16, n, k, k, 1) };
			struct tess_view out = partial ? cpu_make_partial(want, nodes, t, n, n)
			                               : cpu_make_rows(want, t, n, n);
			struct tess_op op = make_bf12_sum(in, &out, &math, &tree, &term);

			for (int u = 0; u < UNITS; u++)
				bound[u + 1] = bound[u] + unit;
			ck_assert_int_le(nodes, NODES);
			cpu_run_op(d.now, &op);
			in[1] = make_bf12(d.now, &in[1]);
			out.data = got;
			cpu_run_op(d.now, &op);
			cpu_expect_equal(d.variant->isa, got, want, (partial ? nodes : 1) * t * n);
			free(in[1].data);
			free(w);
		}
	}
	free(x);
	free(want);
	free(got);
}
END_TEST

START_TEST(sums_of_experts)
{
	enum { T = 20, K = 72, F = 24, H = 50 };
	double num[TESS_EXPERTS_NUMS] = { TESS_SILU, 0 };
	int64_t experts[] = { 0, 1, 2 }, up[] = { 0, 40, K }, down[] = { 0, 8, F };
	struct tess_tree tree[3] = { { 2, 0, 2, 0, 1 }, { 2, 0, 2, 1, 1 }, { 2, 0, 2, 2, 1 } };
	struct tess_term term[3] = { { 0, 0, up }, { 3, 0, down }, { 1, 0, experts } };
	uint16_t *w[2] = { draw_bf16(4 * F, K, 1000), draw_bf16(2 * H, F, 1000) };
	float *x = cpu_make_floats(T * K), *weights = cpu_make_floats(T * 2);
	float want[T * H], got[T * H];
	struct cpu_devices d = { 0 };

	for (int64_t i = 0; i < T * 2; i += 3) /* some rows use one expert, some none */
		weights[i] = 0;
	while (cpu_open_next(&d)) {
		struct tess_view in[4] = { cpu_make_rows(x, T, K, K),
			                   cpu_make_rows(weights, T, 2, 2) };
		struct tess_view out = cpu_make_rows(want, T, H, H);
		struct tess_op op = cpu_make_sum_op(TESS_OP_EXPERTS, in, 4, &out, num,
		                                    TESS_EXPERTS_NUMS, tree, 3, term, 3);

		for (int i = 0; i < 2; i++) {
			in[2 + i] = cpu_make_partial((float *)w[i], 2, i ? H : 2 * F, i ? F : K,
			                             i ? F : K);
			in[2 + i].dtype = TESS_BF16;
		}
		cpu_run_op(d.now, &op);
		for (int i = 0; i < 2; i++) { /* one matrix after another */
			struct tess_view rows =
				cpu_make_view(w[i], TESS_BF16, 2 * in[2 + i].shape[1],
			                      in[2 + i].shape[2], in[2 + i].shape[2], 1);
			int64_t n = in[2 + i].shape[1],
				bytes = (n + 15) / 16 * count_panel(rows.shape[1]);
			char *all = malloc((size_t)(2 * bytes));

			rows.shape[0] = n;
			for (int e = 0; e < 2; e++) {
				struct tess_view one;

				rows.data = w[i] + e * n * rows.shape[1];
				one = make_bf12(d.now, &rows);
				memcpy(all + e * bytes, one.data, (size_t)bytes);
				free(one.data);
			}
			in[2 + i] =
				(struct tess_view){ .data = all,
				                    .dtype = TESS_BF12,
				                    .ndim = 3,
				                    .layout = TESS_PANELS,
				                    .shape = { 2, n, rows.shape[1] },
				                    .stride = { bytes, count_panel(rows.shape[1]),
				                                16 } };
		}
		out.data = got;
		cpu_run_op(d.now, &op);
		cpu_expect_equal(d.variant->isa, got, want, T * H);
		free(in[2].data);
		free(in[3].data);
	}
	free(w[0]);
	free(w[1]);
	free(x);
	free(weights);
}
END_TEST

/* Checks more exceptions than a panel has room for: 8 for each 256 inputs. */
START_TEST(refuses_what_it_cannot_hold)
{
	enum { K = 256, N = 16 };
	uint16_t *w = calloc(N * K, sizeof *w);
	struct tess_view rows = cpu_make_view(w, TESS_BF16, N, K, K, 1), v, to;
	void *device = cpu_open_device("auto", 1);

	for (int i = 0; i < 16; i++) /* each exponent twice, and 8 others once */
		w[i] = w[16 + i] = (uint16_t)(i << 7);
	for (int i = 0; i < 8; i++)
		w[32 + i] = (uint16_t)((100 + i) << 7);
	v = make_bf12(device, &rows);
	ck_assert_uint_eq(((uint32_t *)v.data)[4], 8);
	to = v;
	w[40] = 200 << 7;
	ck_assert_int_eq(cpu_device->pack(device, &rows, &to), TESS_ENOTSUP);
	ck_assert_msg(strstr(cpu_sentence, "16 most frequent"), "%s", cpu_sentence);
	rows.dtype = TESS_F16;
	ck_assert_int_eq(cpu_device->pack(device, &rows, &to), TESS_EINVAL);
	cpu_device->close(device);
	free(v.data);
	free(w);
}
END_TEST

START_TEST(refuses_other_panels)
{
	const double math = TESS_F32;
	int64_t bound[] = { 0, 8, 16 };
	float x[16] = { 0 }, y[16];
	struct tess_tree tree = { 2, 0, 2, 0, 1 };
	struct tess_term term = { .bound = bound };
	struct tess_view in[2] = { cpu_make_rows(x, 1, 16, 16) }, out = cpu_make_rows(y, 1, 16, 16);
	struct tess_op op = make_bf12_sum(in, &out, &math, &tree, &term);
	uint16_t *w = draw_bf16(16, 16, 1000);
	struct tess_view rows = cpu_make_view(w, TESS_BF16, 16, 16, 16, 1);
	void *device = cpu_open_device("auto", 1);

	in[1] = make_bf12(device, &rows);
	cpu_run_op(device, &op);
	in[1].stride[0] += 64;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	ck_assert_msg(strstr(cpu_sentence, "bytes of their elements"), "%s", cpu_sentence);
	in[1].stride[0] -= 64;
	bound[2] = 15;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	ck_assert_msg(strstr(cpu_sentence, "by one term"), "%s", cpu_sentence);
	cpu_device->close(device);
	free(in[1].data);
	free(w);
}
END_TEST

SUITE_MAIN("cpu_bf12", panels_have_the_bits_of_the_rows, sums_of_the_rows, sums_of_experts,
           refuses_what_it_cannot_hold, refuses_other_panels)

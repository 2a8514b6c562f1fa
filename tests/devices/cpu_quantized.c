/*
 * cpu_quantized.c - TESS_Q8 and TESS_MXFP4 on the CPU device: panels byte for byte by the
 * definition in docs/ops.md, and sums bit for bit as with the widened weights in f32.
 */
#include "tests/support/cpu.h"

#include <tessera/reduce.h>

enum { UNITS = 8, N_MAX = 70, K_MAX = 1024, GROUP = 32, LEAF = 256 };

static const int32_t formats[] = { TESS_Q8, TESS_MXFP4 };
enum { FORMATS = sizeof formats / sizeof *formats };

/* A weight [n, k] over units, the second of which may be empty, and its values in 8 or 4 bits. */
struct quantized {
	int32_t format;
	int64_t n, k, bound[UNITS + 1];
	struct cpu_weights data; /* rows */
	char panels[(N_MAX + 15) / 16 * 16 * (K_MAX + 2 * K_MAX)];
	int64_t panel; /* bytes */
	float wide[N_MAX * K_MAX];
};

/* Counts the bytes of the elements of a unit, or of a group. */
static int64_t count_unit_bytes(const struct quantized *w, int64_t len)
{
	int64_t groups = (len + GROUP - 1) / GROUP;

	return w->format == TESS_Q8 ? 16 * (len + 2 * groups) : 16 * (4 * ((len + 7) / 8) + groups);
}

static int64_t count_test_bytes(const struct quantized *w)
{
	int64_t bytes = 0;

	for (int u = 0; u < UNITS; u++)
		bytes += count_unit_bytes(w, w->bound[u + 1] - w->bound[u]);
	return bytes;
}

static float find_maximum(const struct quantized *w, int64_t j, int64_t from, int64_t end)
{
	float most = 0;

	for (int64_t k = from; k < end && j < w->n; k++)
		most = fmaxf(most, fabsf(w->data.value[j * w->k + k]));
	return most;
}

/* Returns the code of the nearest value of 4 bits; of two that are as near, the even code. */
static int find_nearest_code(double x)
{
	static const double value[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
	int best = 0;

	for (int c = 1; c < 8; c++) {
		double d = fabs(fabs(x) - value[c]) - fabs(fabs(x) - value[best]);

		if (d < 0 || (d == 0 && c % 2 == 0))
			best = c;
	}
	return best;
}

/* Quantizes the elements [from, end) of a group of row j to 4 bits by the definition. */
static void make_mxfp4(struct quantized *w, int64_t j, int64_t from, int64_t end, char *group)
{
	static const float value[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	float most = find_maximum(w, j, from, end);
	int exponent = 2;

	if (most != 0) {
		frexpf(most, &exponent); /* one more than the floor of the logarithm */
		exponent = exponent - 1 < -125 ? -125 : exponent - 1;
	}
	group[j % 16] = (char)(127 + exponent - 2);
	for (int64_t k = from; k < end; k++) {
		char *pair = &group[16 + (k - from) / 8 * 64 + j % 16 * 4 + (k - from) % 8 / 2];
		float x = j < w->n ? w->data.value[j * w->k + k] : 0;
		int code = find_nearest_code(ldexp(x, 2 - exponent)),
		    all = code | (signbit(x) ? 8 : 0);

		*pair = (char)((k - from) % 2 ? (*pair & 15) | all << 4 : all);
		if (j < w->n)
			w->wide[j * w->k + k] = copysignf(ldexpf(value[code], exponent - 2), x);
	}
}

/*
 * Quantizes by the definition, one element at a time: the elements [from, end) of a group of row j.
 */
static void quantize_by_definition(struct quantized *w, int64_t j, int64_t from, int64_t end,
                                   char *group)
{
	float most = find_maximum(w, j, from, end), q;
	uint16_t scale;
	int8_t value;

	if (w->format == TESS_MXFP4) {
		make_mxfp4(w, j, from, end, group);
		return;
	}
	scale = tess_f16_round(most / 127.0f);
	memcpy(group + j % 16 * 2, &scale, 2);
	for (int64_t k = from; k < end; k++) {
		q = scale && j < w->n
		            ? nearbyintf(w->data.value[j * w->k + k] / tess_f16_load(scale))
		            : 0;
		value = (int8_t)fminf(fmaxf(q, -127), 127);
		group[32 + (k - from) * 16 + j % 16] = (char)value;
		if (j < w->n)
			w->wide[j * w->k + k] = (float)value * tess_f16_load(scale);
	}
}

/*
 * Returns the exponent by which element k of row j of n grows. Of 4 bits, groups of some weights
 * have very different scales, those of others moderate or small ones.
 */
static int choose_exponent(const struct quantized *w, int64_t j, int64_t k)
{
	static const int others[] = { -100, -16 };

	if (w->format != TESS_MXFP4)
		return 0;
	if (w->n % 3 == 2)
		return j / 16 % 2 ? -118 : -32;
	if (j % 3 == 1)
		return k / 32 % 2 ? 22 : others[w->n % 3];
	return j % 3 ? 20 : 0;
}

static struct quantized *make_quantized(int32_t format, int64_t n, int64_t unit, int32_t dtype)
{
	struct quantized *w = calloc(1, sizeof *w);
	int64_t rows = (n + 15) / 16 * 16;

	w->format = format;
	w->n = n;
	for (int u = 0; u < UNITS; u++)
		w->bound[u + 1] = w->bound[u] + (u && unit > LEAF ? GROUP
		                                 : u == 1         ? unit / 2
		                                 : unit % 64      ? unit + u % 2
		                                                  : unit);
	w->k = w->bound[UNITS];
	ck_assert(w->n <= N_MAX && w->k <= K_MAX);
	w->data = cpu_make_weights(dtype, n * w->k);
	for (int64_t i = 0; i < n * w->k && dtype == TESS_F32; i++) {
		int64_t j = i / w->k, k = i % w->k;
		float x = ldexpf(w->data.value[i], choose_exponent(w, j, k));

		if (j == 0 && k < 40)
			x = 0;
		else if (j == 0 && format == TESS_Q8)
			x *= 1e-7f; /* a scale of 0 */
		else if (j == 0 && n % 3 == 0)
			x *= 1e-38f;
		w->data.value[i] = x;
		memcpy(w->data.data + 4 * i, &x, 4);
	}
	w->panel = count_test_bytes(w);
	for (int64_t j = 0; j < rows; j++) {
		char *to = w->panels + j / 16 * w->panel;

		for (int u = 0; u < UNITS; u++) {
			int64_t end = w->bound[u + 1], to_end;

			for (int64_t k = w->bound[u]; k < end; k = to_end) {
				to_end = end - k < GROUP ? end : k + GROUP;
				quantize_by_definition(w, j, k, to_end, to);
				to += count_unit_bytes(w, to_end - k);
			}
		}
	}
	return w;
}

static void free_quantized(struct quantized *w)
{
	cpu_free_weights(&w->data);
	free(w);
}

/* Packs the weight on `device`, unit by unit; free(view.data). */
static struct tess_view pack_units(void *device, const struct quantized *w)
{
	struct tess_view all = { .dtype = w->format,
		                 .ndim = 2,
		                 .layout = TESS_PANELS,
		                 .shape = { w->n, w->k },
		                 .stride = { w->panel, 16 } };
	struct tess_view to = all, rows;
	size_t bytes = (size_t)((w->n + 15) / 16 * w->panel);
	int64_t len, at = 0;

	all.data = malloc(bytes);
	memset(all.data, 0x7f, bytes);
	for (int u = 0; u < UNITS; u++) {
		len = w->bound[u + 1] - w->bound[u];
		rows = cpu_make_matrix(&w->data, w->n, len, w->k, 1);
		rows.data = w->data.data + w->bound[u] * cpu_get_width(w->data.dtype);
		to.data = (char *)all.data + at;
		ck_assert_msg(!cpu_device->pack(device, &rows, &to), "%s", cpu_sentence);
		at += count_unit_bytes(w, len);
	}
	return all;
}

static const int64_t units[] = { 1, 8, 31, 32, 40, 96, 110, 330 };
enum { SIZES = sizeof units / sizeof *units };

START_TEST(panels_by_the_definition)
{
	struct cpu_devices d = { 0 };

	while (cpu_open_next(&d)) {
		for (int i = 0; i < SIZES * 3 * FORMATS; i++) {
			struct quantized *w = make_quantized(
				formats[i % FORMATS], (const int64_t[]){ 16, 70, 5 }[i % 3],
				units[i / 3 % SIZES], cpu_choose_dtype(i));
			struct tess_view got;

			got = pack_units(d.now, w);
			ck_assert_mem_eq(got.data, w->panels,
			                 (size_t)((w->n + 15) / 16 * w->panel));
			free(got.data);
			free_quantized(w);
		}
	}
}
END_TEST

/* Makes rows of blocks of the panels of w; `apart`: elements from row to row. */
static uint8_t *make_blocks(const struct quantized *w, int64_t apart)
{
	int64_t row = apart / GROUP * TESS_MXFP4_BYTES;
	uint8_t *blocks = malloc((size_t)(w->n * row));

	memset(blocks, 0xff, (size_t)(w->n * row));
	for (int64_t i = 0; i < w->n * w->k / GROUP; i++) {
		int64_t j = i / (w->k / GROUP), at = i % (w->k / GROUP) * TESS_MXFP4_BYTES;
		const char *group = w->panels + j / 16 * w->panel + at * 16;

		blocks[j * row + at] = (uint8_t)group[j % 16];
		for (int64_t word = 0; word < GROUP / 8; word++)
			memcpy(blocks + j * row + at + 1 + 4 * word,
			       group + 16 + 64 * word + 4 * (j % 16), 4);
	}
	return blocks;
}

/* Packs rows in MXFP4: the bytes of the panels that quantizing makes. */
START_TEST(panels_of_stored_blocks)
{
	struct cpu_devices d = { 0 };

	for (int i = 0; cpu_open_next(&d); i++) {
		for (int c = 0; c < 3; c++) {
			struct quantized *w = make_quantized(
				TESS_MXFP4, (const int64_t[]){ 16, 70, 5 }[c], 64, TESS_BF16);
			int64_t apart = w->k + (i + c) % 3 * GROUP;
			size_t bytes = (size_t)((w->n + 15) / 16 * w->panel);
			uint8_t *blocks = make_blocks(w, apart);
			struct tess_view rows = { .data = blocks,
				                  .dtype = TESS_MXFP4,
				                  .ndim = 2,
				                  .shape = { w->n, w->k },
				                  .stride = { apart, 1 } };
			struct tess_view to = { .data = malloc(bytes),
				                .dtype = TESS_MXFP4,
				                .ndim = 2,
				                .layout = TESS_PANELS,
				                .shape = { w->n, w->k },
				                .stride = { w->panel, 16 } };

			memset(to.data, 0x7f, bytes);
			ck_assert_msg(!cpu_device->pack(d.now, &rows, &to), "%s", cpu_sentence);
			ck_assert_mem_eq(to.data, w->panels, bytes);
			to.dtype = TESS_Q8;
			ck_assert_int_eq(cpu_device->pack(d.now, &rows, &to), TESS_ENOTSUP);
			free(to.data);
			free(blocks);
			free_quantized(w);
		}
	}
}
END_TEST

static struct tess_op make_linear_sum(const struct tess_view *in, const struct tess_view *out,
                                      const struct tess_tree *tree, const struct tess_term *term)
{
	return cpu_make_sum_op(TESS_OP_LINEAR, in, 2, out, NULL, 0, tree, 1, term, 1);
}

/* every number of rows of a tile, packed rows, and more than one block of them */
static const int64_t rows_of[] = { 1, 2, 3, 4, 5, 6, 7, 48, 197 };
enum { ROWS = sizeof rows_of / sizeof *rows_of, ROWS_MAX = 197, NODES = 5 };

START_TEST(sums_of_the_widened_weights)
{
	float *x = cpu_make_floats((ROWS_MAX + 4) * K_MAX);
	size_t n = (size_t)NODES * ROWS_MAX * N_MAX;
	float *want = malloc(sizeof *want * n), *got = malloc(sizeof *got * n);
	struct cpu_devices d = { 0 };

	/* zeros where row 1 of a weight has large scales, and rows whose products may be tiny; in
	 * the last one only those of the first step of a long unit */
	for (int64_t k = 0; k < K_MAX; k++) {
		x[k] = k / 32 % 2 ? 0 : ldexpf(x[k], -14);
		x[K_MAX + k] = ldexpf(x[K_MAX + k], -125);
		x[2 * K_MAX + k] = ldexpf(x[2 * K_MAX + k], -112);
		x[3 * K_MAX + k] = k / 32 % 2 || k >= LEAF ? 0 : ldexpf(x[3 * K_MAX + k], -100);
	}
	for (int i = 0; cpu_open_next(&d); i++) {
		for (int c = 0; c < SIZES * ROWS * FORMATS; c++) {
			struct quantized *w = make_quantized(formats[c / SIZES / ROWS], 70 - c % 9,
			                                     units[c % SIZES], TESS_F32);
			/* finished; or several nodes: units [1, 9) of 10 of a rank */
			bool partial = (c + i) % 2;
			struct tess_tree tree = { partial ? 10 : UNITS, partial,
				                  partial ? 9 : UNITS, 0, 1 };
			struct tess_term term = { .bound = w->bound };
			int64_t t = rows_of[c / SIZES % ROWS],
				nodes = tess_node_count(tree.n, tree.lo, tree.hi);
			struct tess_view in[2] = { cpu_make_rows(x + (c + i) % 4 * K_MAX, t, w->k,
				                                 K_MAX),
				                   cpu_make_rows(w->wide, w->n, w->k, w->k) };
			struct tess_view out = cpu_make_rows(want, t, w->n, w->n);
			struct tess_op op = make_linear_sum(in, &out, &tree, &term);

			if (partial)
				out = cpu_make_partial(want, nodes, t, w->n, w->n);
			ck_assert_int_le(nodes, NODES);
			cpu_run_op(d.now, &op);
			in[1] = pack_units(d.now, w);
			out.data = got;
			cpu_run_op(d.now, &op);
			cpu_expect_equal(d.variant->isa, got, want,
			                 (partial ? nodes : 1) * t * w->n);
			free(in[1].data);
			free_quantized(w);
		}
	}
	free(x);
	free(want);
	free(got);
}
END_TEST

/* Packs two experts: one matrix after another, each with panels of its own. */
static struct tess_view pack_experts(void *device, struct quantized *const w[2], float *wide,
                                     struct tess_view *rows)
{
	int64_t bytes = (w[0]->n + 15) / 16 * w[0]->panel, each = w[0]->n * w[0]->k;
	struct tess_view all = { .data = malloc((size_t)(2 * bytes)),
		                 .dtype = w[0]->format,
		                 .ndim = 3,
		                 .layout = TESS_PANELS,
		                 .shape = { 2, w[0]->n, w[0]->k },
		                 .stride = { bytes, w[0]->panel, 16 } };

	for (int e = 0; e < 2; e++) {
		struct tess_view one = pack_units(device, w[e]);

		memcpy((char *)all.data + e * bytes, one.data, (size_t)bytes);
		memcpy(wide + e * each, w[e]->wide, sizeof *wide * (size_t)each);
		free(one.data);
	}
	*rows = cpu_make_partial(wide, 2, w[0]->n, w[0]->k, w[0]->k);
	return all;
}

START_TEST(experts_of_the_widened_weights)
{
	enum { T = 20, F = 33, H = 50 };
	double num[TESS_EXPERTS_NUMS] = { TESS_SILU, 0 };
	int64_t experts[] = { 0, 1, 2 };
	struct quantized *up[2], *down[2];
	float *x = cpu_make_floats(T * K_MAX), *weights = cpu_make_floats(T * 2);
	float want[T * H], got[T * H], *wide[2];
	struct cpu_devices d = { 0 };

	for (int e = 0; e < 2; e++) {
		up[e] = make_quantized(formats[_i], 2 * F, 40, TESS_BF16);
		down[e] = make_quantized(formats[_i], H, 4, TESS_F32);
		wide[e] = malloc(2 * sizeof up[e]->wide);
	}
	ck_assert_int_eq(down[0]->k, F);
	for (int64_t i = 0; i < T * 2; i += 3) /* some rows use one expert, some none */
		weights[i] = 0;
	while (cpu_open_next(&d)) {
		struct tess_tree tree[3] = { { UNITS, 0, UNITS, 0, 1 },
			                     { UNITS, 0, UNITS, 1, 1 },
			                     { 2, 0, 2, 2, 1 } };
		struct tess_term term[3] = { { 0, 0, up[0]->bound },
			                     { 3, 0, down[0]->bound },
			                     { 1, 0, experts } };
		struct tess_view in[4] = { cpu_make_rows(x, T, up[0]->k, K_MAX),
			                   cpu_make_rows(weights, T, 2, 2) };
		struct tess_view out = cpu_make_rows(want, T, H, H), packed[2];
		struct tess_op op = cpu_make_sum_op(TESS_OP_EXPERTS, in, 4, &out, num,
		                                    TESS_EXPERTS_NUMS, tree, 3, term, 3);

		packed[0] = pack_experts(d.now, up, wide[0], &in[2]);
		packed[1] = pack_experts(d.now, down, wide[1], &in[3]);
		cpu_run_op(d.now, &op);
		memcpy(&in[2], packed, sizeof packed);
		out.data = got;
		cpu_run_op(d.now, &op);
		cpu_expect_equal(d.variant->isa, got, want, T * H);
		free(packed[0].data);
		free(packed[1].data);
	}
	for (int e = 0; e < 2; e++) {
		free_quantized(up[e]);
		free_quantized(down[e]);
		free(wide[e]);
	}
	free(x);
	free(weights);
}
END_TEST

START_TEST(refuses_what_it_cannot_hold)
{
	static const float bad[] = { NAN, -INFINITY, 8.4e6f };
	float w[2 * 40] = { 0 };
	char panels[16 * 44];
	void *device = cpu_open_device("auto", 2);

	for (int i = 0; i < 3; i++) {
		struct tess_view rows = cpu_make_rows(w, 2, 40, 40);
		struct tess_view to = { .data = panels, .dtype = TESS_Q8, .stride = { 16 * 44 } };
		int rc;

		w[79] = 8.3e6f;
		ck_assert_int_eq(cpu_device->pack(device, &rows, &to), TESS_OK);
		w[79] = bad[i];
		ck_assert_int_eq(cpu_device->pack(device, &rows, &to), TESS_EINVAL);
		ck_assert_msg(strstr(cpu_sentence, "NaN, infinite or above 8.3e6"), "%s",
		              cpu_sentence);
		to = (struct tess_view){ .data = panels,
			                 .dtype = TESS_MXFP4,
			                 .stride = { 16 * 22 } };
		rc = cpu_device->pack(device, &rows, &to); /* the largest f32 fits 4 bits */
		ck_assert_int_eq(rc, isfinite(bad[i]) ? TESS_OK : TESS_EINVAL);
		ck_assert_msg(!rc || strstr(cpu_sentence, "NaN or infinite, which 4-bit"), "%s",
		              cpu_sentence);
	}
	cpu_device->close(device);
}
END_TEST

START_TEST(refuses_other_groups_than_those_of_the_sum)
{
	struct quantized *w = make_quantized(formats[_i], 16, 40, TESS_F32);
	float x[K_MAX] = { 0 }, y[16];
	struct tess_tree tree[2] = { { UNITS, 0, UNITS, 0, 1 }, { UNITS, 0, UNITS, 0, 1 } };
	struct tess_term term[2] = { { .bound = w->bound }, { .bound = w->bound } };
	struct tess_view in[2] = { cpu_make_rows(x, 1, w->k, w->k) };
	struct tess_view out = cpu_make_rows(y, 1, 16, 16);
	struct tess_op op = make_linear_sum(in, &out, tree, term);
	void *device = cpu_open_device("auto", 1);

	in[1] = pack_units(device, w);
	cpu_run_op(device, &op);
	in[1].stride[0] += 16;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	ck_assert_msg(strstr(cpu_sentence, "the groups of the units"), "%s", cpu_sentence);
	in[1].stride[0] -= 16;
	op.ntree = op.nterm = 2;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	ck_assert_msg(strstr(cpu_sentence, "by one term"), "%s", cpu_sentence);
	op.ntree = op.nterm = 1;
	w->bound[0] = 1;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	w->bound[0] = 0;
	in[1].layout = TESS_ROWS;
	ck_assert_int_eq(cpu_check_op(&op), TESS_ENOTSUP);
	cpu_device->close(device);
	free(in[1].data);
	free_quantized(w);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("cpu_quantized", 60, &r);

	tcase_add_test(t, panels_by_the_definition);
	tcase_add_test(t, panels_of_stored_blocks);
	tcase_add_test(t, sums_of_the_widened_weights);
	tcase_add_loop_test(t, experts_of_the_widened_weights, 0, FORMATS);
	tcase_add_test(t, refuses_what_it_cannot_hold);
	tcase_add_loop_test(t, refuses_other_groups_than_those_of_the_sum, 0, FORMATS);
	return suite_end(r);
}

/*
 * test_sample PLUGIN - compares the ids that the CUDA device draws with those of sample.c, up to
 * the rounding that tessera/device.h allows a device.
 */
#include "device.h"
#include "nn/generate/sample.h"
#include "tests/support/logits.h"

#include <float.h>

enum { ROWS = 16, PITCH = 800, HOW = 8 };

struct rows {
	float *x;
	double *how; /* [n][TESS_SAMPLE_NUMS] */
	int32_t *y; /* [n][TESS_SAMPLE_OUTS] */
	uint32_t *seen, *before; /* [n][words]; the initial contents */
	int64_t words;
	struct tess_view in[2], out[2];
	struct tess_op op;
};

static void make_rows(struct rows *r, int64_t n, int64_t columns, int64_t pitch)
{
	r->x = make_buffer(n * pitch, true);
	r->how = add_buffer(calloc((size_t)(n * HOW), 8), (uint64_t)n * HOW * 8);
	r->y = add_buffer(malloc((size_t)n * 20), (uint64_t)n * 20);
	r->words = columns / 32 + 2;
	r->seen = add_buffer(calloc((size_t)(n * r->words), 4), (uint64_t)(n * r->words) * 4);
	r->before = add_buffer(calloc((size_t)(n * r->words), 4), (uint64_t)(n * r->words) * 4);
	r->in[0] = cpu_make_rows(r->x, n, columns, pitch);
	r->in[1] = cpu_make_view(r->how, TESS_F64, n, TESS_SAMPLE_NUMS, HOW, 1);
	r->out[0] = cpu_make_view(r->y, TESS_I32, n, TESS_SAMPLE_OUTS, 5, 1);
	r->out[1] = cpu_make_view(r->seen, TESS_I32, n, (columns + 31) / 32, r->words, 1);
	r->op = cpu_make_op(TESS_OP_SAMPLE, r->in, 2, r->out, NULL, 0);
	r->op.nout = 2;
}

/* Returns the set of a row. */
static uint32_t *get_set(const struct rows *r, int64_t row)
{
	return r->seen + (int64_t)r->how[row * HOW + TESS_SAMPLE_SET] * r->words;
}

static void run_rows(const struct rows *r)
{
	memcpy(r->before, r->seen, (size_t)(r->op.in[0].shape[0] * r->words) * 4);
	ck_assert_msg(run_on_gpu(&r->op) == TESS_OK, "%s", cpu_sentence);
}

static void set_sampling(const struct rows *r, int64_t row, const struct tess_sampling *s,
                         uint64_t step)
{
	struct tess_draw d = tess_sampling_get_draw(s, step);

	d.set = tess_sampling_has_penalty(s) ? (double)((row + 3) % r->op.in[0].shape[0]) : -1;
	memcpy(r->how + row * HOW, &d, sizeof d);
}

/* ---- temperature 0, and non-finite logits ---------------------------------------------------- */

/* Finds the expected ids by definition. */
static void find_expected(const float *x, int n, int32_t *want)
{
	want[0] = want[1] = want[3] = 0;
	want[2] = -1;
	for (int i = n - 1; i >= 0; i--) {
		if (isfinite(x[i])) {
			if (!isfinite(x[want[0]]) || want[0] < i || x[i] >= x[want[0]])
				want[0] = i;
			continue;
		}
		want[1]++;
		want[2] = i;
		want[3] = isnan(x[i]) != 0;
	}
}

START_TEST(largest_elements)
{
	enum { CASES = 5, ENDS = 5003 };
	static const int columns[] = { 1, 31, 512, 1025, 5000 };

	set_up_devices("auto");
	for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
		int n = columns[c], last = n - 1;
		struct rows r;
		int32_t want[4];

		make_rows(&r, CASES, n, ENDS);
		/* a temperature, which has no effect there */
		r.how[3 * HOW] = r.how[4 * HOW] = 1;
		r.x[ENDS + last] = r.x[ENDS + last / 2] = 90; /* equal ones */
		for (int i = 0; i < n; i++) /* all are 0, some -0 */
			r.x[2 * ENDS + i] = i % 3 ? 0.0f : -0.0f;
		r.x[3 * ENDS + last] = NAN;
		r.x[3 * ENDS + last / 3] = n > 1 ? INFINITY : NAN;
		r.x[4 * ENDS + last / 2] = -INFINITY;
		run_rows(&r);
		for (int t = 0; t < CASES; t++) {
			find_expected(r.x + t * ENDS, n, want);
			for (int i = 0; i < 4; i++)
				ck_assert_msg(r.y[5 * t + i] == want[i], "row %d of %d, %d: %d", t,
				              n, i, (int)r.y[5 * t + i]);
		}
		if (c == 0) {
			r.out[0].shape[1] = 3;
			ck_assert_int_eq(cpu_check_op_for(gpu_table, &r.op), TESS_ENOTSUP);
			expect_part(cpu_sentence, "sample: operands must be f32 rows");
		}
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

/* ---- the rule -------------------------------------------------------------------------------- */

/* Lists the ids in the set of a row before the op; returns their number. */
static int64_t list_seen(const struct rows *r, int64_t row, int64_t columns, int32_t *ids)
{
	const uint32_t *set = r->before + (get_set(r, row) - r->seen);
	int64_t n = 0;

	for (int32_t i = 0; i < columns; i++)
		if (set[i / 32] >> i % 32 & 1)
			ids[n++] = i;
	return n;
}

/* Copies a row, with the penalty of a set of ids, rounded to finite f32. */
static float *penalize_row(const float *x, int64_t n, const int32_t *seen, int64_t nseen,
                           double penalty)
{
	float *copy = malloc((size_t)n * sizeof *copy);

	memcpy(copy, x, (size_t)n * sizeof *copy);
	for (int64_t i = 0; i < nseen; i++) {
		double y = x[seen[i]] < 0 ? x[seen[i]] * penalty : x[seen[i]] / penalty;

		copy[seen[i]] = (float)fmax(fmin(y, FLT_MAX), -FLT_MAX);
	}
	return copy;
}

/*
 * Returns true if the CPU draws the id with the number u and the top-p of `how`, or with ones that
 * differ by 2^-28. The device's weights are integers, each rounded by up to half of 1. So n of them
 * may move the end of a probability interval by n^2 / 2^63, which is 2^-29 for 128k ids.
 */
static bool is_drawn_near(struct tess_sampler *s, const struct tess_sampling *how, const float *x,
                          double u, int32_t id)
{
	static const double moves[] = { 0, -0x1p-28, 0x1p-28 };
	struct tess_sampling h = *how;

	h.repetition_penalty = 1;
	for (int i = 0; i < 9; i++) {
		h.top_p = how->top_p < 1 ? how->top_p + moves[i / 3] : 1;
		if (tess_sampler_draw_number(s, &h, x, NULL, 0, u + moves[i % 3]) == id)
			return true;
	}
	return false;
}

static void compare_with_cpu(const struct rows *r, int64_t columns, int64_t pitch,
                             const struct tess_sampling *how)
{
	int32_t *seen = malloc((size_t)columns * sizeof *seen);
	struct tess_sampler *s;

	ck_assert(!tess_sampler_new(columns, &s));
	for (int64_t t = 0; t < r->op.in[0].shape[0]; t++) {
		const int32_t *y = r->y + 5 * t;
		const struct tess_sampling *h = &how[t];
		bool has = tess_sampling_has_penalty(h);
		int64_t nseen = has ? list_seen(r, t, columns, seen) : 0;
		float *x =
			penalize_row(r->x + t * pitch, columns, seen, nseen, h->repetition_penalty);

		MUST(y[TESS_SAMPLE_ODD] == 0 && y[TESS_SAMPLE_FIRST_ODD] == -1);
		MUST(y[TESS_SAMPLE_NAN] == 0);
		MUST(y[TESS_SAMPLE_ID] >= 0 && y[TESS_SAMPLE_ID] < columns);
		ck_assert_msg(is_drawn_near(s, h, x, r->how[t * HOW + TESS_SAMPLE_NUMBER],
		                            y[TESS_SAMPLE_ID]),
		              "row %d of %d: %d: temperature %g, top-p %.17g, min-p %g, top-k %d, "
		              "penalty %.17g",
		              (int)t, (int)columns, (int)y[0], h->temperature, h->top_p, h->min_p,
		              (int)h->top_k, h->repetition_penalty);
		free(x);
		if (has) /* nothing else in it changes */
			r->before[get_set(r, t) - r->seen + y[0] / 32] |= 1u << y[0] % 32;
	}
	ck_assert_mem_eq(r->seen, r->before, (size_t)(r->op.in[0].shape[0] * r->words) * 4);
	free(seen);
	tess_sampler_free(s);
}

static struct tess_sampling draw_settings(uint64_t *seed)
{
	static const double temperatures[] = { 1, 0.3, 4, 1e-3, 1e6, 0 },
			    ps[] = { 1, 0.9, 0, 0.5, 0.999999 }, mins[] = { 0, 0, 0.05, 1, 1e-9 };
	/* the last two make other scores with equal nearest floats */
	static const double penalties[] = { 1, 0, 1.1, 0.6, 1 + 1e-9, 1 - 1e-9 };
	static const int64_t ks[] = { 0, 0, 1, 50, 400, 5000 };

	return (struct tess_sampling){ .temperature = temperatures[draw_below(seed, 6)],
		                       .top_p = ps[draw_below(seed, 5)],
		                       .min_p = mins[draw_below(seed, 5)],
		                       .top_k = ks[draw_below(seed, 6)],
		                       .repetition_penalty = penalties[draw_below(seed, 6)],
		                       .seed = draw_below(seed, UINT64_MAX) };
}

/* Adds some or almost all ids to the set of each row. */
static void draw_seen(const struct rows *r, uint64_t *seed, int64_t columns)
{
	for (int64_t t = 0; t < r->op.in[0].shape[0]; t++)
		for (int64_t i = 0; i < columns; i++)
			r->seen[t * r->words + i / 32] |=
				(uint32_t)(draw_below(seed, 8) < (t % 2 ? 1 : 7)) << i % 32;
}

/* Rows of one kind with different sampling options have the ids of the CPU. */
START_TEST(ids_of_the_cpu)
{
	enum { ROUNDS = THIN > 1 ? 2 : 5 };
	struct tess_sampling how[ROWS];
	uint64_t seed = (uint64_t)_i + 1;

	set_up_devices("auto");
	for (uint64_t round = 0; round < ROUNDS; round++) {
		int64_t n = 1 + (int64_t)draw_below(&seed, round ? PITCH : 5);
		struct rows r;

		make_rows(&r, ROWS, n, PITCH);
		for (int64_t t = 0; t < ROWS; t++) {
			make_logits(_i, &seed, r.x + t * PITCH, n);
			how[t] = draw_settings(&seed);
			set_sampling(&r, t, &how[t], round << 33);
		}
		draw_seen(&r, &seed, n);
		run_rows(&r);
		compare_with_cpu(&r, n, PITCH, how);
		free_host_buffers();
	}
	tear_down_devices();
}
END_TEST

/* A vocabulary of a current model: more candidates than are sorted, and distant logits. */
START_TEST(large_vocabulary)
{
	enum { VOCAB = 128256, CASES = 9 };
	static const struct tess_sampling settings[CASES] = {
		{ .temperature = 1, .top_p = 1, .seed = 3 },
		{ .temperature = 1, .top_p = 1, .seed = 1ull << 40 },
		{ .temperature = 0.7, .top_p = 0.95, .seed = 5 },
		{ .temperature = 2, .top_p = 1, .top_k = 9000, .seed = 6 },
		{ .temperature = 1e6, .top_p = 0.9, .min_p = 1e-7, .seed = 7 },
		{ .temperature = 1, .top_p = 1, .min_p = 0.001, .seed = 8 },
		{ .temperature = 0.7, .top_p = 0.8, .repetition_penalty = 1.05, .seed = 9 },
		{ .temperature = 1, .top_p = 1, .repetition_penalty = 1 + 1e-9, .seed = 10 },
		{ .temperature = 0, .repetition_penalty = 1.3 },
	};
	uint64_t seed = 1;
	struct rows r;

	set_up_devices("auto");
	make_rows(&r, CASES, VOCAB, VOCAB);
	for (int64_t i = 0; i < CASES * VOCAB; i++) {
		r.x[i] = -6;
		for (int j = 0; j < 12; j++) /* nearly normal */
			r.x[i] += (float)draw_below(&seed, 1 << 20) / (1 << 20);
		r.x[i] = i % 7 == 5 && i / VOCAB % 2 ? -1e30f : 3 * r.x[i];
	}
	for (int64_t t = 0; t < CASES; t++)
		set_sampling(&r, t, &settings[t], 9);
	draw_seen(&r, &seed, VOCAB);
	run_rows(&r);
	compare_with_cpu(&r, VOCAB, VOCAB, settings);
	free_host_buffers();
	tear_down_devices();
}
END_TEST

/* A penalty makes logits larger than any float. */
START_TEST(penalties_beyond_floats)
{
	enum { COLUMNS = 3000, CASES = 4 };
	static const struct tess_sampling settings[CASES] = {
		{ .temperature = 0, .repetition_penalty = 1e-6 },
		{ .temperature = 1, .top_p = 1, .repetition_penalty = 1e-6, .seed = 1 },
		{ .temperature = 0, .repetition_penalty = 1e6 },
		{ .temperature = 1, .top_p = 1, .top_k = 3, .repetition_penalty = 1e6, .seed = 1 },
	};
	uint64_t seed = 1;
	struct rows r;

	set_up_devices("auto");
	make_rows(&r, CASES, COLUMNS, COLUMNS);
	for (int64_t i = 0; i < CASES * COLUMNS; i++) /* all are seen */
		r.x[i] = (i / COLUMNS < 2 ? 1e38f : -1e38f) *
		         (1 + (float)draw_below(&seed, 999) / 999);
	for (int64_t t = 0; t < CASES; t++)
		set_sampling(&r, t, &settings[t], 9);
	memset(r.seen, 0xff, (size_t)(CASES * r.words) * 4);
	run_rows(&r);
	compare_with_cpu(&r, COLUMNS, COLUMNS, settings);
	free_host_buffers();
	tear_down_devices();
}
END_TEST

/*
 * Tests a number at the start of a candidate or just before, a temperature that counts as 0, and
 * more equal candidates than the kernel sorts (10 logits are -1, 4990 are 1).
 */
START_TEST(edges)
{
	enum { COLUMNS = 5000, CASES = 8 };
	static const double how[CASES][HOW] = {
		{ 1, 1, 0, 4, 0.5 },   { 1, 1, 0, 4, 0.5 - 0x1p-54 }, { 1, 1, 0, 4, 0.6 },
		{ 1, 0.7, 0, 4, 0.9 }, { 1e-40, 1, 0, 0, 0.3 },       { 1, 1, 0, 0, 0.3 },
		{ 1, 1, 0, 7, 0.999 }, { 1, 0.5, 0, 0, 0.51 },
	};
	static const int32_t want[CASES] = { 97, 50, 97, 97, 3, 1507, 4995, 1282 };
	struct rows r;

	set_up_devices("auto");
	make_rows(&r, CASES, COLUMNS, COLUMNS);
	memcpy(r.how, how, sizeof how);
	for (int64_t i = 0; i < CASES * COLUMNS; i++)
		r.x[i] = i / COLUMNS > 4 ? (i % COLUMNS < 10 ? -1 : 1) : -(float)(i % COLUMNS);
	for (int64_t t = 0; t < CASES; t++) /* the best four are equal */
		for (int64_t i = 0; i < 4 && t < 5; i++)
			r.x[t * COLUMNS + 3 + 47 * i] = 1;
	run_rows(&r);
	for (int64_t t = 0; t < CASES; t++)
		ck_assert_int_eq(r.y[5 * t + TESS_SAMPLE_ID], want[t]);
	free_host_buffers();
	tear_down_devices();
}
END_TEST

int main(int argc, char **argv)
{
	SRunner *r;
	TCase *t = begin_gpu_suite(argc, argv, "gpu_sample", 300, &r);

	tcase_add_test(t, largest_elements);
	tcase_add_loop_test(t, ids_of_the_cpu, 0, KINDS);
	tcase_add_test(t, large_vocabulary);
	tcase_add_test(t, penalties_beyond_floats);
	tcase_add_test(t, edges);
	return suite_end(r);
}

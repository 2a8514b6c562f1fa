/*
 * test_sample PLUGIN: ids that the CUDA device draws against those of sample.c, which must be
 * equal in every row that is not in doubt.
 */
#include "device.h"
#include "nn/generate/sample.h"
#include "tests/support/logits.h"

enum { ROWS = 16, PITCH = 800, HOW = 8 };

struct rows {
	float *x;
	double *how; /* [n][TESS_SAMPLE_NUMS] */
	int32_t *y; /* [n][TESS_SAMPLE_OUTS] */
	uint32_t *seen, *before; /* [n][words]; what it was */
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

/* Of the row. */
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

/* ---- temperature 0, and what is not finite --------------------------------------------------- */

/* By their definition. */
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
		want[3] = isnan(x[i]) ? TESS_SAMPLE_NAN : 0;
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
		/* a temperature, which changes nothing there */
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

/* The ids in the set of a row before the op; returns how many there are. */
static int64_t list_seen(const struct rows *r, int64_t row, int64_t columns, int32_t *ids)
{
	const uint32_t *set = r->before + (get_set(r, row) - r->seen);
	int64_t n = 0;

	for (int32_t i = 0; i < columns; i++)
		if (set[i / 32] >> i % 32 & 1)
			ids[n++] = i;
	return n;
}

/* Returns how many rows are in doubt; the ids of the others must be those of the CPU. */
static int compare_with_cpu(const struct rows *r, int64_t columns, int64_t pitch,
                            const struct tess_sampling *how, uint64_t step)
{
	int32_t *seen = malloc((size_t)columns * sizeof *seen);
	struct tess_sampler *s;
	int doubts = 0;

	ck_assert(!tess_sampler_new(columns, &s));
	for (int64_t t = 0; t < r->op.in[0].shape[0]; t++) {
		const int32_t *y = r->y + 5 * t;
		const struct tess_sampling *h = &how[t];
		bool has = tess_sampling_has_penalty(h);
		int64_t nseen = has ? list_seen(r, t, columns, seen) : 0;
		int32_t id = tess_sampler_draw(s, h, r->x + t * pitch, seen, nseen, step);

		MUST(y[TESS_SAMPLE_ODD] == 0 && y[TESS_SAMPLE_FIRST_ODD] == -1);
		MUST(y[TESS_SAMPLE_ID] >= 0 && y[TESS_SAMPLE_ID] < columns);
		doubts += y[TESS_SAMPLE_FLAG] == TESS_SAMPLE_DOUBT;
		if (y[TESS_SAMPLE_FLAG])
			continue;
		ck_assert_msg(y[TESS_SAMPLE_ID] == id,
		              "row %d of %d: %d, not %d: temperature %g, top-p %.17g, min-p %g, "
		              "top-k %d, penalty %.17g",
		              (int)t, (int)columns, (int)y[0], (int)id, h->temperature, h->top_p,
		              h->min_p, (int)h->top_k, h->repetition_penalty);
		if (has) /* nothing else in it changes */
			r->before[get_set(r, t) - r->seen + id / 32] |= 1u << id % 32;
	}
	if (!doubts)
		ck_assert_mem_eq(r->seen, r->before, (size_t)(r->op.in[0].shape[0] * r->words) * 4);
	free(seen);
	tess_sampler_free(s);
	return doubts;
}

static struct tess_sampling draw_settings(uint64_t *seed)
{
	static const double temperatures[] = { 1, 0.3, 4, 1e-3, 1e6, 0 },
			    ps[] = { 1, 0.9, 0, 0.5, 0.999999 }, mins[] = { 0, 0, 0.05, 1, 1e-9 };
	/* the last two make other scores, whose nearest floats are the same */
	static const double penalties[] = { 1, 0, 1.1, 0.6, 1 + 1e-9, 1 - 1e-9 };
	static const int64_t ks[] = { 0, 0, 1, 50, 400, 5000 };

	return (struct tess_sampling){ .temperature = temperatures[draw_below(seed, 6)],
		                       .top_p = ps[draw_below(seed, 5)],
		                       .min_p = mins[draw_below(seed, 5)],
		                       .top_k = ks[draw_below(seed, 6)],
		                       .repetition_penalty = penalties[draw_below(seed, 6)],
		                       .seed = draw_below(seed, UINT64_MAX) };
}

/* Some ids in the set of each row, or most of them. */
static void draw_seen(const struct rows *r, uint64_t *seed, int64_t columns)
{
	for (int64_t t = 0; t < r->op.in[0].shape[0]; t++)
		for (int64_t i = 0; i < columns; i++)
			r->seen[t * r->words + i / 32] |=
				(uint32_t)(draw_below(seed, 8) < (t % 2 ? 1 : 7)) << i % 32;
}

/* Rows of one kind, each sampled in its own way. */
START_TEST(ids_of_the_cpu)
{
	enum { ROUNDS = THIN > 1 ? 2 : 5 };
	struct tess_sampling how[ROWS];
	uint64_t seed = (uint64_t)_i + 1;
	int doubts = 0;

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
		doubts += compare_with_cpu(&r, n, PITCH, how, round << 33);
		free_host_buffers();
	}
	/* equal weights, of which a simple share is asked for, end just there */
	ck_assert_int_le(doubts, _i == RANDOM || _i == SPIKE || _i == FAR ? 0 : ROUNDS * 3);
	tear_down_devices();
}
END_TEST

/* A vocabulary of today: more candidates than are sorted, and logits that are far away. */
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
	ck_assert_int_eq(compare_with_cpu(&r, VOCAB, VOCAB, settings, 9), 0);
	free_host_buffers();
	tear_down_devices();
}
END_TEST

/* Logits that a penalty makes larger than any float, of which none is in doubt. */
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
	ck_assert_int_eq(compare_with_cpu(&r, COLUMNS, COLUMNS, settings, 9), 0);
	free_host_buffers();
	tear_down_devices();
}
END_TEST

/*
 * Rows that are in doubt say so: a number where a candidate begins or ends, more equal candidates
 * than are sorted, and a temperature at which scores overflow. They name the largest.
 */
START_TEST(doubts)
{
	enum { COLUMNS = 5000, CASES = 6 };
	static const double how[CASES][HOW] = {
		{ 1, 1, 0, 4, 0.5 },     { 1, 0.75, 0, 4, 0.1 },        { 1, 1, 0, 0, 0.3 },
		{ 1e-40, 1, 0, 0, 0.3 }, { 1, 1, 0, 4, 0.5 - 0x1p-54 }, { 1, 1, 0, 4, 0.6 },
	};
	static const int32_t want[CASES] = { 3, 3, 10, 3, 3, 97 };
	struct rows r;

	set_up_devices("auto");
	make_rows(&r, CASES, COLUMNS, COLUMNS);
	memcpy(r.how, how, sizeof how);
	for (int64_t i = 0; i < CASES * COLUMNS; i++)
		r.x[i] = i / COLUMNS == 2 ? (i % COLUMNS < 10 ? -1 : 1) : -(float)(i % COLUMNS);
	for (int64_t t = 0; t < CASES; t++) /* the best four are alike */
		for (int64_t i = 0; i < 4 && t != 2; i++)
			r.x[t * COLUMNS + 3 + 47 * i] = 1;
	run_rows(&r);
	for (int64_t t = 0; t < CASES; t++) {
		ck_assert_int_eq(r.y[5 * t + TESS_SAMPLE_ID], want[t]);
		ck_assert_int_eq(r.y[5 * t + TESS_SAMPLE_FLAG], t < 5 ? TESS_SAMPLE_DOUBT : 0);
	}
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
	tcase_add_test(t, doubts);
	return suite_end(r);
}

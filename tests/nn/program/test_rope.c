/* test_rope.c - rotary settings in both spellings, refusals, and the table. */
#include "core/base/json.h"
#include "core/base/status.h"
#include "nn/program/rope.h"
#include "tests/support/suite.h"

#include <math.h>
#include <string.h>

/* Reads rotary settings; *out borrows from the text until the next call. */
static tess_status read_rope_text(const char *text, struct tess_rope *out)
{
	static json_t *root;

	json_decref(root);
	root = NULL;
	ck_assert_int_eq(tess_json_parse("test", text, strlen(text), &root), TESS_OK);
	return tess_rope_read("dir", root, NULL, 0, out);
}

#define LLAMA3 \
	"\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4, " \
	"\"original_max_position_embeddings\": 64, \"rope_type\": \"llama3\""

#define OLD "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, \"type\": \"llama3\""

#define YARN "\"factor\": 4.0, \"original_max_position_embeddings\": 64, \"rope_type\": \"yarn\""

START_TEST(both_spellings)
{
	static const char *const plain[] = {
		"{\"rope_theta\": 500000.0}",
		"{\"rope_theta\": 500000, \"rope_scaling\": null}",
		"{\"rope_theta\": 500000, \"rope_scaling\": {}}",
		"{\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}}",
		"{\"rope_parameters\": {\"rope_theta\": 5e5, \"partial_rotary_factor\": 1.0}}",
		"{\"rope_theta\": 1.0, \"rope_scaling\": {\"rope_theta\": 5e5, \"type\": "
		"\"default\"}}",
	};
	static const char *const llama3[] = {
		"{\"rope_theta\": 5e5, \"rope_scaling\": {" LLAMA3 "}}",
		"{\"rope_parameters\": {\"rope_theta\": 5e5, " LLAMA3 "}}",
		"{\"rope_theta\": 5e5, \"original_max_position_embeddings\": 64, "
		"\"rope_scaling\": {" OLD "}}",
	};
	struct tess_rope r;

	ck_assert_int_eq(read_rope_text("{}", &r), TESS_OK);
	ck_assert(r.type == TESS_ROPE_DEFAULT && r.theta == 10000);
	for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
		ck_assert_msg(read_rope_text(plain[i], &r) == TESS_OK, "%s", plain[i]);
		ck_assert_msg(r.type == TESS_ROPE_DEFAULT && r.theta == 5e5, "%s", plain[i]);
	}
	for (size_t i = 0; i < sizeof llama3 / sizeof *llama3; i++) {
		ck_assert_msg(read_rope_text(llama3[i], &r) == TESS_OK, "%s", llama3[i]);
		ck_assert(r.type == TESS_ROPE_LLAMA3 && r.theta == 5e5 && r.factor == 8 &&
		          r.low == 1 && r.high == 4);
		ck_assert_int_eq(r.original, 64);
	}
}
END_TEST

START_TEST(refuses_with_key_and_reason)
{
	static const struct {
		const char *text, *where, *why;
	} bad[] = {
		{ "{\"rope_theta\": \"10000\"}", "config.json: rope_theta", "not text" },
		{ "{\"rope_theta\": 0}", "config.json: rope_theta", "a number from 1" },
		{ "{\"rope_theta\": -5.5}", "config.json: rope_theta", "not -5.5" },
		{ "{\"rope_parameters\": [1]}", "config.json: rope_parameters",
		  "an object or null" },
		{ "{\"rope_scaling\": \"llama3\"}", "config.json: rope_scaling",
		  "an object or null" },
		{ "{\"rope_scaling\": {\"rope_type\": 3}}", "rope_scaling: rope_type",
		  "text is needed" },
		{ "{\"rope_scaling\": {\"type\": \"ntk\", \"factor\": 2}}",
		  "rope_scaling: rope_type \"ntk\"", "default, linear, dynamic, llama3, yarn and" },
		{ "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
		  "rope_scaling: rope_type dynamic", "needs max_position_embeddings" },
		{ "{\"rope_parameters\": {\"rope_type\": \"longrope\"}}",
		  "rope_parameters: rope_type longrope", "needs short_factor" },
		{ "{\"max_position_embeddings\": 64, \"rope_parameters\": {\"rope_type\": "
		  "\"longrope\", \"short_factor\": [1, 0]}}",
		  "rope_parameters: rope_type longrope", "needs short_factor" },
		{ "{\"rope_parameters\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 2]}}",
		  "rope_parameters: rope_type longrope", "and original_max" },
		{ "{\"rope_parameters\": {\"rope_type\": \"linear\"}}", "rope_parameters",
		  "linear needs factor" },
		{ "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4}}",
		  "rope_parameters", "yarn needs factor, and original_max" },
		{ "{\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"yarn\"}}",
		  "rope_scaling", "yarn needs factor, and original_max" },
		{ "{\"rope_scaling\": {" YARN ", \"beta_fast\": 1, \"beta_slow\": 1}}",
		  "rope_scaling", "a beta_slow (1) below beta_fast (1)" },
		{ "{\"rope_theta\": 1, \"rope_scaling\": {" YARN "}}", "rope_scaling",
		  "a rope_theta (1) above 1" },
		{ "{\"rope_scaling\": {" YARN ", \"attention_factor\": 0}}",
		  "rope_scaling: attention_factor", "not 0" },
		{ "{\"rope_scaling\": {" YARN ", \"truncate\": 1}}", "rope_scaling: truncate",
		  "true or false" },
		{ "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}}}",
		  "rope_parameters: full_attention", "per layer type" },
		{ "{\"rope_parameters\": {\"partial_rotary_factor\": 1.5}}",
		  "rope_parameters: partial_rotary_factor", "to 1" },
		{ "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}", "rope_scaling",
		  "needs factor, low_freq" },
		{ "{\"rope_scaling\": {\"factor\": 0.5, \"rope_type\": \"llama3\"}}",
		  "rope_scaling: factor", "from 1" },
		{ "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
		  "\"low_freq_factor\": 4, \"high_freq_factor\": 4, "
		  "\"original_max_position_embeddings\": 64}}",
		  "low_freq_factor 4", "not below high_freq_factor 4" },
		{ "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
		  "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
		  "\"original_max_position_embeddings\": 6.4}}",
		  "original_max_position_embeddings", "whole number" },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct tess_rope r = { .type = 99 };

		ck_assert_msg(read_rope_text(bad[i].text, &r) < 0 && r.type == 99, "%s",
		              bad[i].text);
		expect_part(tess_error(), bad[i].where);
		expect_part(tess_error(), bad[i].why);
	}
}
END_TEST

/* Returns the distance in ulps of b, the unit of powf's own error. */
static double compute_ulp_distance(float a, double b)
{
	return fabs(a - b) / (nextafterf(fabsf((float)b), INFINITY) - fabsf((float)b));
}

/*
 * Checks the frequencies f_i at position 1, where sin(f_i) is close to f_i; libm computes f_i in
 * double.
 */
START_TEST(frequencies)
{
	static const double thetas[] = { 10000, 500000, 1000000 };
	enum { EACH_MAX = 128, AT = 1 };
	float table[2 * EACH_MAX];

	for (size_t t = 0; t < 3; t++)
		for (int64_t each = 8; each <= EACH_MAX; each += 2) {
			struct tess_rope r = { .type = TESS_ROPE_DEFAULT,
				               .theta = thetas[t],
				               .scale = 1 };

			ck_assert_int_eq(tess_rope_fill_table(&r, each, 2, table), TESS_OK);
			for (int64_t i = 0; i < each / 2; i++) {
				double f = pow(r.theta, -2.0 * (double)i / (double)each);

				MUST(table[i] == 1 && table[each / 2 + i] == 0);
				MUST(compute_ulp_distance(table[AT * each + i], cos(f)) <= 8);
				MUST(compute_ulp_distance(table[AT * each + each / 2 + i],
				                          sin(f)) <= 16);
			}
		}
}
END_TEST

START_TEST(llama3_scaling)
{
	struct tess_rope r = { .type = TESS_ROPE_LLAMA3,
		               .theta = 500000,
		               .factor = 8,
		               .low = 1,
		               .high = 4,
		               .scale = 1,
		               .original = 64 },
			 plain = { .type = TESS_ROPE_DEFAULT, .theta = 500000, .scale = 1 };
	enum { EACH = 12, HALF = EACH / 2 };
	float scaled[2 * EACH], table[2 * EACH];
	double f[HALF], smooth;

	ck_assert_int_eq(tess_rope_fill_table(&r, EACH, 2, scaled), TESS_OK);
	ck_assert_int_eq(tess_rope_fill_table(&plain, EACH, 2, table), TESS_OK);
	for (int i = 0; i < HALF; i++) {
		double wave = 2 * M_PI * pow(r.theta, 2.0 * i / EACH);

		smooth = (64 / wave - 1) / 3;
		f[i] = 2 * M_PI / wave *
		       (wave < 16   ? 1
		        : wave > 64 ? 1 / 8.0
		                    : (1 - smooth) / 8 + smooth);
		ck_assert_float_eq_tol(scaled[EACH + HALF + i], (float)sin(f[i]),
		                       1e-6f * (float)f[i]);
	}
	/* All three kinds of wavelengths occur. */
	ck_assert_float_eq(scaled[EACH + HALF], table[EACH + HALF]);
	ck_assert(f[1] < pow(r.theta, -2.0 / EACH) && f[1] > pow(r.theta, -2.0 / EACH) / 8);
	ck_assert_float_eq(scaled[EACH + EACH - 1], table[EACH + EACH - 1] / 8);
}
END_TEST

/* Fills the first row of the table after position 0, for heads of `each`, from a config.json. */
static void fill_row(const char *config, int64_t each, float *row)
{
	float table[2 * 128];
	struct tess_rope r;

	ck_assert_msg(!read_rope_text(config, &r), "%s: %s", config, tess_error());
	ck_assert_int_eq(tess_rope_fill_table(&r, each, 2, table), TESS_OK);
	memcpy(row, table + each, sizeof *row * (size_t)each);
}

START_TEST(linear_scaling)
{
	enum { EACH = 12, HALF = EACH / 2 };
	float row[EACH];

	fill_row("{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}}", EACH, row);
	for (int i = 0; i < HALF; i++) {
		double f = pow(10000, -2.0 * i / EACH) / 2.5;

		ck_assert_float_eq_tol(row[i], (float)cos(f), 1e-7f);
		ck_assert_float_eq_tol(row[HALF + i], (float)sin(f), 1e-6f * (float)f);
	}
}
END_TEST

/* Checks HunYuan's form of scaling: theta is raised once. */
START_TEST(raised_theta)
{
	enum { EACH = 12, HALF = EACH / 2 };
	double theta = 10000 * pow(50, EACH / (EACH - 2.0));
	float row[EACH];

	fill_row("{\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 50, \"factor\": 3}}", EACH,
	         row);
	for (int i = 0; i < HALF; i++) {
		double f = pow(theta, -2.0 * i / EACH);

		ck_assert_float_eq_tol(row[i], (float)cos(f), 1e-7f);
		ck_assert_float_eq_tol(row[HALF + i], (float)sin(f), 2e-6f * (float)f);
	}
}
END_TEST

/* Checks that rows grow with their positions, by steps of a period. */
START_TEST(growing_rows)
{
	enum { EACH = 4, N = 40 };
	struct tess_rope plain = { .type = TESS_ROPE_DEFAULT, .theta = 10000, .scale = 1 },
			 grown = plain;
	float table[N * EACH], want[N * EACH];

	grown.growth = 0.25;
	grown.period = 8;
	ck_assert_int_eq(tess_rope_fill_table(&plain, EACH, N, want), TESS_OK);
	ck_assert_int_eq(tess_rope_fill_table(&grown, EACH, N, table), TESS_OK);
	for (int i = 0; i < N * EACH; i++) {
		double by = 1 + 0.25 * log(1 + (i / EACH) / 8); /* whole periods */

		ck_assert_float_eq_tol(table[i], (float)(by * (double)want[i]), 3e-7f);
	}
}
END_TEST

/* Checks settings by kind of layer, and a theta for a kind without settings of its own. */
START_TEST(kinds_of_layers)
{
	static const char both[] =
		"{\"rope_parameters\": {\"a\": {\"rope_theta\": 5}, \"b\": "
		"{\"rope_theta\": 7, \"rope_type\": \"linear\", \"factor\": 2}}}";
	static const char one[] = "{\"rope_theta\": 7, \"rope_scaling\": {\"type\": \"linear\", "
				  "\"factor\": 2}}";
	json_t *root = json_loads(both, 0, NULL);
	struct tess_rope r;

	ck_assert(!tess_rope_read("dir", root, "a", 3, &r));
	ck_assert(r.theta == 5 && r.type == TESS_ROPE_DEFAULT);
	ck_assert(!tess_rope_read("dir", root, "b", 0, &r));
	ck_assert(r.theta == 7 && r.type == TESS_ROPE_LINEAR && r.factor == 2);
	ck_assert_int_eq(tess_rope_read("dir", root, NULL, 0, &r), TESS_ENOTSUP);
	expect_part(tess_error(), "rope_parameters: a: settings per layer type are not supported");
	ck_assert_int_eq(tess_rope_read("dir", root, "c", 0, &r), TESS_EINVAL);
	expect_part(tess_error(), "rope_parameters: no settings of c layers are there");
	json_decref(root);
	root = json_loads(one, 0, NULL);
	ck_assert(!tess_rope_read("dir", root, "a", 3, &r));
	ck_assert(r.theta == 3 && r.type == TESS_ROPE_DEFAULT);
	ck_assert(!tess_rope_read("dir", root, "b", 0, &r));
	ck_assert(r.theta == 7 && r.type == TESS_ROPE_LINEAR && r.factor == 2);
	json_decref(root);
}
END_TEST

/*
 * YaRN in double, from the paper (YaRN: Efficient Context Window Extension, section 3). In the L
 * positions of training, angle i of a head makes L / wavelength turns. Above beta_fast turns it is
 * kept; below beta_slow it is divided by the factor. The ramp between them is linear in i;
 * transformers rounds its ends outwards. Cosine and sine grow by 0.1 ln(factor) + 1.
 */
static const struct yarn_case {
	const char *more;
	double fast, slow, scale;
	bool fractions;
} yarn_cases[] = {
	{ "", 32, 1, 1.1386294361119891, false },
	{ ", \"attention_factor\": 0.75", 32, 1, 0.75, false },
	{ ", \"beta_fast\": 8, \"beta_slow\": 0.25", 8, 0.25, 1.1386294361119891, false },
	{ ", \"truncate\": false", 32, 1, 1.1386294361119891, true },
	{ ", \"truncate\": true, \"mscale\": 0.5", 32, 1, 1.1386294361119891, false },
	{ ", \"mscale\": 0.707, \"mscale_all_dim\": 0.5", 32, 1,
	  (0.0707 * 1.3862943611198906 + 1) / (0.05 * 1.3862943611198906 + 1), false },
};

static void check_yarn_case(const struct yarn_case *c, const char *length)
{
	enum { EACH = 64, HALF = EACH / 2, LENGTH = 1024, THETA = 10000 };
	double end[2], turns[2] = { c->fast, c->slow };
	char config[512];
	float row[EACH];

	snprintf(config, sizeof config,
	         "{%s \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4%s}}", length,
	         c->more);
	fill_row(config, EACH, row);
	for (int k = 0; k < 2; k++) { /* THETA^(-2i / EACH) * LENGTH = 2 pi turns */
		end[k] = HALF * log(LENGTH / (2 * M_PI * turns[k])) / log(THETA);
		if (!c->fractions)
			end[k] = k ? ceil(end[k]) : floor(end[k]);
	}
	ck_assert(end[0] > 2 && end[1] < HALF - 2);
	for (int i = 0; i < HALF; i++) {
		double slow = fmin(fmax((i - end[0]) / (end[1] - end[0]), 0), 1),
		       f = pow(THETA, -2.0 * i / EACH) * (slow / 4 + 1 - slow);

		ck_assert_float_eq_tol(row[i], (float)(cos(f) * c->scale), 2e-7f);
		ck_assert_float_eq_tol(row[HALF + i], (float)(sin(f) * c->scale), 2e-6f * (float)f);
	}
}

START_TEST(yarn_scaling)
{
	for (size_t i = 0; i < sizeof yarn_cases / sizeof *yarn_cases; i++) {
		/* without a trained length, the model's length counts */
		check_yarn_case(&yarn_cases[i], "\"max_position_embeddings\": 1024,");
		check_yarn_case(&yarn_cases[i], "\"max_position_embeddings\": 99, "
		                                "\"original_max_position_embeddings\": 1024,");
	}
}
END_TEST

/* Added settings and attention factor, like yarn's cases. */
static const struct {
	const char *length, *more;
	double scale;
} longropes[] = {
	{ "\"max_position_embeddings\": 256", "\"original_max_position_embeddings\": 64", 0 },
	{ "\"max_position_embeddings\": 256, \"original_max_position_embeddings\": 64",
	  "\"original_max_position_embeddings\": 32", 0 },
	{ "\"max_position_embeddings\": 64", "\"factor\": 4", 0 },
	{ "\"max_position_embeddings\": 64", "\"attention_factor\": 0.75", 0.75 },
	{ "\"max_position_embeddings\": 64", "\"type\": \"yarn\"", 1 },
};

START_TEST(longrope_scaling)
{
	enum { EACH = 6, HALF = EACH / 2 };
	static const double factors[HALF] = { 1.25, 2, 3.5 };
	char config[512];
	float row[EACH];

	for (size_t i = 0; i < sizeof longropes / sizeof *longropes; i++) {
		double scale = longropes[i].scale;

		if (scale == 0)
			scale = sqrt(1 + log(4) / log(64));
		snprintf(config, sizeof config,
		         "{%s, \"rope_scaling\": {%s, \"short_factor\": [1.25, 2, 3.5]%s}}",
		         longropes[i].length, longropes[i].more,
		         strstr(longropes[i].more, "type") ? "" : ", \"type\": \"su\"");
		fill_row(config, EACH, row);
		for (int k = 0; k < HALF; k++) {
			double f = pow(10000, -2.0 * k / EACH) / factors[k];

			ck_assert_float_eq_tol(row[k], (float)(cos(f) * scale), 2e-7f);
			ck_assert_float_eq_tol(row[HALF + k], (float)(sin(f) * scale),
			                       2e-6f * (float)f);
		}
	}
}
END_TEST

/* Checks that a table that grows with the sequence serves the lengths below the first growth. */
START_TEST(lengths_that_fix_a_table)
{
	static const char *const growing[] = {
		"{\"max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"dynamic\", "
		"\"factor\": 2}}",
		"{\"max_position_embeddings\": 256, \"rope_parameters\": {\"rope_type\": "
		"\"longrope\", \"short_factor\": [1, 2, 3], "
		"\"original_max_position_embeddings\": 64}}",
	};
	struct tess_rope r;

	for (int i = 0; i < 2; i++) {
		ck_assert_msg(!read_rope_text(growing[i], &r), "%s", tess_error());
		ck_assert_int_eq(tess_rope_check("dir", &r, 6, 64), TESS_OK);
		ck_assert_int_eq(tess_rope_check("dir", &r, 6, 65), TESS_ENOTSUP);
		expect_part(tess_error(), i ? "longrope: beyond 64" : "dynamic: beyond 64");
		expect_part(tess_error(), "(--positions 64)");
		ck_assert_int_eq(tess_rope_check("dir", &r, 6, 0), TESS_ENOTSUP);
	}
	ck_assert_int_eq(tess_rope_check("dir", &r, 8, 64), TESS_EINVAL);
	expect_part(tess_error(), "short_factor has 3 numbers, and 4 angles");
	ck_assert_int_eq(read_rope_text("{}", &r), TESS_OK);
	ck_assert_int_eq(tess_rope_check("dir", &r, 6, 0), TESS_OK);
}
END_TEST

/* Checks large angles: the error is one float32 rounding at any position. */
START_TEST(far_positions)
{
	enum { EACH = 8, FAR = 100000 };
	struct tess_rope r = { .type = TESS_ROPE_DEFAULT, .theta = 10000, .scale = 1 };
	float *table = malloc(sizeof *table * EACH * FAR);

	ck_assert_ptr_nonnull(table);
	ck_assert_int_eq(tess_rope_fill_table(&r, EACH, FAR, table), TESS_OK);
	for (int at = 0; at < FAR; at += 7)
		MUST(table[(int64_t)at * EACH] == (float)cos(at) &&
		     table[(int64_t)at * EACH + EACH / 2] == (float)sin(at));
	free(table);
	ck_assert_int_eq(tess_rope_fill_table(&r, 7, 1, NULL), TESS_EINVAL);
	ck_assert_int_eq(tess_rope_fill_table(&r, 8, -1, NULL), TESS_EINVAL);
}
END_TEST

SUITE_MAIN("rope", both_spellings, refuses_with_key_and_reason, frequencies, llama3_scaling,
           linear_scaling, raised_theta, growing_rows, kinds_of_layers, yarn_scaling,
           longrope_scaling, lengths_that_fix_a_table, far_positions)

/*
 * test_latent.c - the attention of deepseek_v3 and its cache, against its definition in double,
 * which has keys and values of every head. Unlike the golden checkpoint: no latent of the queries,
 * halves rotated, and biases.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "nn/lower/lower.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/draw.h"
#include "tests/support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 23, HIDDEN = 20, HEADS = 5, NOPE = 6, ROTATED = 4, VALUE = 7, RANK = 9, FFN = 11 };
enum { QUERY = NOPE + ROTATED, LATENT = RANK + ROTATED, ROWS = NOPE + VALUE, TOKENS = 70 };

static const char config_text[] =
	"{\"hidden_size\": 20, \"num_attention_heads\": 5, \"num_key_value_heads\": 5, "
	"\"num_hidden_layers\": 1, "
	"\"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, \"v_head_dim\": 7, "
	"\"kv_lora_rank\": 9, \"q_lora_rank\": null, \"rope_interleave\": false, "
	"\"attention_bias\": true, \"intermediate_size\": 11, \"vocab_size\": 23, "
	"\"first_k_dense_replace\": 1, \"rms_norm_eps\": 0.01, \"rope_theta\": 100}";

static const struct tensor {
	const char *name;
	int64_t rows, cols; /* 0: a vector */
} tensors[] = {
	{ "model.embed_tokens.weight", WORDS, HIDDEN },
	{ "model.layers.0.input_layernorm.weight", HIDDEN, 0 },
	{ "model.layers.0.self_attn.q_proj.weight", HEADS *QUERY, HIDDEN },
	{ "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", LATENT, HIDDEN },
	{ "model.layers.0.self_attn.kv_a_proj_with_mqa.bias", LATENT, 0 },
	{ "model.layers.0.self_attn.kv_a_layernorm.weight", RANK, 0 },
	{ "model.layers.0.self_attn.kv_b_proj.weight", HEADS *ROWS, RANK },
	{ "model.layers.0.self_attn.o_proj.weight", HIDDEN, HEADS *VALUE },
	{ "model.layers.0.self_attn.o_proj.bias", HIDDEN, 0 },
	{ "model.layers.0.post_attention_layernorm.weight", HIDDEN, 0 },
	{ "model.layers.0.mlp.gate_proj.weight", FFN, HIDDEN },
	{ "model.layers.0.mlp.up_proj.weight", FFN, HIDDEN },
	{ "model.layers.0.mlp.down_proj.weight", HIDDEN, FFN },
	{ "model.norm.weight", HIDDEN, 0 },
	{ "lm_head.weight", WORDS, HIDDEN },
};
enum {
	EMBED,
	NORM_1,
	Q,
	KV_A,
	KV_A_BIAS,
	KV_NORM,
	KV_B,
	O,
	O_BIAS,
	NORM_2,
	GATE,
	UP,
	DOWN,
	NORM_3,
	HEAD,
	TENSORS
};

static float *get_latent_tensor(int i)
{
	static float *data[TENSORS];
	uint64_t seed = (uint64_t)i * 77 + 1;
	int64_t n = tensors[i].rows * (tensors[i].cols ? tensors[i].cols : 1);

	if (data[i])
		return data[i];
	data[i] = malloc(sizeof(float) * (size_t)n);
	for (int64_t e = 0; e < n; e++)
		data[i][e] = (float)draw_below(&seed, 2001) / 1000.0f - 1;
	return data[i];
}

static tess_status find_latent_tensor(void *self, const char *name, struct tess_view *out)
{
	(void)self;
	for (int i = 0; i < TENSORS; i++) {
		if (strcmp(tensors[i].name, name) != 0)
			continue;
		*out = (struct tess_view){ .data = get_latent_tensor(i),
			                   .dtype = TESS_F32,
			                   .ndim = tensors[i].cols ? 2 : 1,
			                   .shape = { tensors[i].rows, tensors[i].cols },
			                   .stride = { tensors[i].cols ? tensors[i].cols : 1, 1 } };
		return TESS_OK;
	}
	return tess_fail(TESS_ENOENT, "no %s", name);
}

/* ---- the definition -------------------------------------------------------------------------- */

static void multiply_row(const double *x, int w, int bias, double *y)
{
	for (int64_t j = 0; j < tensors[w].rows; j++) {
		y[j] = bias < 0 ? 0 : (double)get_latent_tensor(bias)[j];
		for (int64_t k = 0; k < tensors[w].cols; k++)
			y[j] += x[k] * (double)get_latent_tensor(w)[j * tensors[w].cols + k];
	}
}

static void normalize_row(const double *x, int w, double eps, double *y)
{
	int64_t n = tensors[w].rows;
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += x[i] * x[i];
	for (int64_t i = 0; i < n; i++)
		y[i] = x[i] / sqrt(sum / (double)n + eps) * (double)get_latent_tensor(w)[i];
}

static void rotate_end(double *x, int64_t position)
{
	for (int i = 0; i < ROTATED / 2; i++) {
		double angle = (double)position * pow(100, -2.0 * i / ROTATED), a = x[i],
		       b = x[i + ROTATED / 2];

		x[i] = a * cos(angle) - b * sin(angle);
		x[i + ROTATED / 2] = b * cos(angle) + a * sin(angle);
	}
}

struct cached { /* keys and values of the heads, and the key that they share */
	double heads[HEADS * ROWS], shared[ROTATED];
};

static double score_position(const double *q, const struct cached *c, int head)
{
	double sum = 0;

	for (int i = 0; i < NOPE; i++)
		sum += q[i] * c->heads[head * ROWS + i];
	for (int i = 0; i < ROTATED; i++)
		sum += q[NOPE + i] * c->shared[i];
	return sum / sqrt(QUERY);
}

static void attend_head(const double *q, const struct cached *c, int64_t last, int head,
                        double *out)
{
	double e[TOKENS], sum = 0;

	for (int64_t p = 0; p <= last; p++)
		sum += e[p] = exp(score_position(q, &c[p], head));
	for (int i = 0; i < VALUE; i++) {
		out[i] = 0;
		for (int64_t p = 0; p <= last; p++)
			out[i] += e[p] / sum * c[p].heads[head * ROWS + NOPE + i];
	}
}

static void compute_row(int32_t id, int64_t t, struct cached *cache, double *logits)
{
	double x[HIDDEN], y[HIDDEN], q[HEADS * QUERY], kv[LATENT], latent[RANK], o[HEADS * VALUE];
	double gate[FFN], up[FFN];

	for (int i = 0; i < HIDDEN; i++)
		x[i] = (double)get_latent_tensor(EMBED)[id * HIDDEN + i];
	normalize_row(x, NORM_1, 0.01, y);
	multiply_row(y, Q, -1, q);
	multiply_row(y, KV_A, KV_A_BIAS, kv);
	normalize_row(kv, KV_NORM, 1e-6, latent);
	multiply_row(latent, KV_B, -1, cache[t].heads);
	memcpy(cache[t].shared, kv + RANK, sizeof cache[t].shared);
	rotate_end(cache[t].shared, t);
	for (int h = 0; h < HEADS; h++) {
		rotate_end(q + h * QUERY + NOPE, t);
		attend_head(q + h * QUERY, cache, t, h, o + h * VALUE);
	}
	multiply_row(o, O, O_BIAS, y);
	for (int i = 0; i < HIDDEN; i++)
		x[i] += y[i];
	normalize_row(x, NORM_2, 0.01, y);
	multiply_row(y, GATE, -1, gate);
	multiply_row(y, UP, -1, up);
	for (int i = 0; i < FFN; i++)
		gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
	multiply_row(gate, DOWN, -1, y);
	for (int i = 0; i < HIDDEN; i++)
		x[i] += y[i];
	normalize_row(x, NORM_3, 0.01, y);
	multiply_row(y, HEAD, -1, logits);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static struct lockstep make_lockstep(const char *plan, int32_t nranks)
{
	static int32_t ids[TOKENS];
	static struct tess_source source = { .name = "random",
		                             .find = find_latent_tensor,
		                             .drop = lockstep_ignore_drop };
	const struct tess_model *model;

	if (!source.config)
		source.config = json_loads(config_text, 0, NULL);
	for (int i = 0; i < TOKENS; i++)
		ids[i] = i * 7 % WORDS;
	ck_assert_msg(!tess_plugin_find_model("deepseek_v3", &model), "%s", tess_error());
	return (struct lockstep){ model, &source, plan, nranks, ids, TOKENS, true, NULL };
}

START_TEST(as_defined)
{
	static const char *const plans[] = { "tp", "tp+sp", "ep", "hf", "none" };
	static struct cached cache[TOKENS];
	struct lockstep how = make_lockstep("none", 1);
	float *first, *have;
	int64_t count;

	ck_assert_msg(!lockstep_run(&how, &first, &count), "%s", tess_error());
	ck_assert_int_eq(count, TOKENS * WORDS);
	for (int64_t t = 0; t < TOKENS; t++) {
		double want[WORDS];

		compute_row(how.ids[t], t, cache, want);
		for (int i = 0; i < WORDS; i++)
			ck_assert_msg(fabs((double)first[t * WORDS + i] - want[i]) < 2e-5,
			              "row %d, logit %d: %g, not %g", (int)t, i,
			              (double)first[t * WORDS + i], want[i]);
	}
	for (int32_t n = 0; n < 5 * HEADS; n++) {
		how = make_lockstep(plans[n / HEADS], 1 + n % HEADS);
		ck_assert_msg(!lockstep_run(&how, &have, &count), "%s", tess_error());
		ck_assert_msg(!memcmp(first, have, 4 * (size_t)count), "%s, %d ranks", how.plan,
		              (int)how.nranks);
		free(have);
	}
	free(first);
}
END_TEST

/*
 * Checks that each rank caches the latent and the rotated key of a position, with any number of
 * heads.
 */
START_TEST(caches_the_latent)
{
	for (int32_t n = 1; n <= HEADS; n++) {
		struct lockstep how = make_lockstep("tp", n);
		struct tess_rank_program *l;
		struct tess_program *p;

		ck_assert_msg(!lockstep_record(&how, &p), "%s", tess_error());
		for (int32_t r = 0; r < n; r++) {
			ck_assert_msg(!tess_program_lower(p, r, NULL, &l), "%s", tess_error());
			ck_assert_int_eq(l->nclasses, 1);
			ck_assert_uint_eq(l->page_class[0].bytes, 64 * 4 * LATENT);
			tess_rank_program_free(l);
		}
		tess_program_free(p);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("latent", 120, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_test(t, as_defined);
	tcase_add_test(t, caches_the_latent);
	return suite_end(r);
}

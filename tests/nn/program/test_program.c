/*
 * test_program.c - the recorded program: plans and refusals. An interpreter that shares nothing
 * with groups, backends and devices gives equal bits for any number of ranks and any plan.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "hf/checkpoint.h"
#include "hf/safetensors.h"
#include "nn/compile/hash.h"
#include "nn/program/plan.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/suite.h"

#include <check.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define L "model.layers.*."
#define QKV(q, k, v) \
	"\"" L "self_attn.q_proj\":\"" q "\",\"" L "self_attn.k_proj\":\"" k "\",\"" L \
	"self_attn.v_proj\":\"" v "\","
#define ATTENTION QKV("colwise", "colwise", "colwise") "\"" L "self_attn.o_proj\":\"rowwise\","
#define MLP \
	"\"" L "mlp.gate_proj\":\"colwise\",\"" L "mlp.up_proj\":\"colwise\",\"" L \
	"mlp.down_proj\":\"rowwise\","
#define EMBED "\"model.embed_tokens\":\"embedding_rowwise\","
#define HEAD "\"lm_head\":\"colwise_rep\""
#define NORMS \
	"\"" L "input_layernorm\":\"sequence_parallel\",\"" L \
	"post_attention_layernorm\":\"sequence_parallel\"," \
	"\"model.norm\":\"sequence_parallel\","
#define SCATTER \
	"\"model.embed_tokens\":\"vocab_reduce_scatter\",\"" L \
	"self_attn.o_proj\":\"rowwise_reduce_scatter\"," \
	"\"" L "mlp.down_proj\":\"rowwise_reduce_scatter\","
#define GATHERS "\"" L "self_attn\":\"module_allgather\",\"" L "mlp\":\"module_allgather\","
#define GATE_UP "\"" L "mlp.gate_proj\":\"colwise\",\"" L "mlp.up_proj\":\"colwise\","

struct plan_case {
	const char *name, *json;
};

static const struct plan_case plans[] = {
	{ "preset", "{" EMBED ATTENTION MLP HEAD "}" },
	{ "sequence parallel",
	  "{" SCATTER NORMS GATHERS QKV("colwise", "colwise", "colwise") GATE_UP HEAD "}" },
	{ "all replicate", "{\"model.norm\":\"replicate\"}" },
	{ "q colwise, k v replicate",
	  "{" EMBED QKV("colwise", "replicate",
	                "replicate") "\"" L "self_attn.o_proj\":\"rowwise\"," MLP HEAD "}" },
	{ "k v colwise, q replicate",
	  "{" EMBED QKV("replicate", "colwise",
	                "colwise") "\"" L "self_attn.o_proj\":\"rowwise\"," MLP HEAD "}" },
	{ "sp without module_allgather",
	  "{" SCATTER NORMS QKV("colwise", "colwise", "colwise") GATE_UP HEAD "}" },
	{ "sp, k v not in plan",
	  "{" SCATTER NORMS GATHERS "\"" L "self_attn.q_proj\":\"colwise\"," GATE_UP HEAD "}" },
	{ "embedding_colwise", "{\"model.embed_tokens\":\"embedding_colwise\"," ATTENTION "\"" L
	                       "mlp.gate_proj\":\"colwise\",\"" L "mlp.up_proj\":\"colwise\",\"" L
	                       "mlp.down_proj\":\"rowwise\"}" },
	{ "isolated mlp", "{" EMBED ATTENTION "\"" L "mlp\":\"isolated\"," HEAD "}" },
	{ "gate missing (sliced freely)",
	  "{" EMBED ATTENTION "\"" L "mlp.up_proj\":\"colwise\",\"" L
	  "mlp.down_proj\":\"rowwise\"," HEAD "}" },
	{ "column half missing",
	  "{" EMBED ATTENTION "\"" L "mlp.down_proj\":\"rowwise\"," HEAD "}" },
	{ "lm_head cut, embed not in plan", "{" ATTENTION MLP HEAD "}" },
	{ "embed cut, lm_head not in plan",
	  "{" EMBED ATTENTION "\"" L "mlp.gate_proj\":\"colwise\",\"" L
	  "mlp.up_proj\":\"colwise\",\"" L "mlp.down_proj\":\"rowwise\"}" },
	{ "row cut on q",
	  "{" EMBED QKV("rowwise", "colwise",
	                "colwise") "\"" L "self_attn.o_proj\":\"rowwise\"," MLP HEAD "}" },
	{ "row cut on k",
	  "{" EMBED QKV("colwise", "rowwise",
	                "colwise") "\"" L "self_attn.o_proj\":\"rowwise\"," MLP HEAD "}" },
	{ "row cut on gate and up",
	  "{" EMBED ATTENTION "\"" L "mlp.gate_proj\":\"rowwise\",\"" L "mlp.up_proj\":\"rowwise\","
	  "\"" L "mlp.down_proj\":\"rowwise\"," HEAD "}" },
	{ "row cut on q, k v replicate",
	  "{" EMBED QKV("rowwise", "replicate",
	                "replicate") "\"" L "self_attn.o_proj\":\"rowwise\"," MLP HEAD "}" },
	{ "row cut on q k v",
	  "{" EMBED QKV("rowwise", "rowwise",
	                "rowwise") "\"" L "self_attn.o_proj\":\"rowwise\"," MLP HEAD "}" },
	{ "row cut on lm_head", "{" ATTENTION MLP "\"lm_head\":\"rowwise\"}" },
	{ "row cut on lm_head, embedding_colwise",
	  "{\"model.embed_tokens\":\"embedding_colwise\"," ATTENTION MLP
	  "\"lm_head\":\"rowwise\"}" },
	{ "rules that may match nothing",
	  "{\"?" L "mlp.gate_proj\":\"colwise_rep\",\"?" L "self_attn.q_b_proj\":\"colwise\"}" },
	{ "packed of one part",
	  "{" EMBED ATTENTION "\"" L "mlp.gate_proj\":\"packed_colwise:parts=1\",\"" L
	  "mlp.up_proj\":\"colwise\","
	  "\"" L "mlp.down_proj\":\"rowwise\"," HEAD "}" },
};
/* only if no bias would be added to an unfinished sum */
static const struct plan_case local_plan = { "down local_rowwise, mlp gather",
	                                     "{" EMBED ATTENTION "\"" L
	                                     "mlp.gate_proj\":\"colwise\","
	                                     "\"" L "mlp.up_proj\":\"colwise\",\"" L
	                                     "mlp.down_proj\":\"local_rowwise\",\"" L
	                                     "mlp\":\"gather\"," HEAD "}" };

struct refused_plan {
	const char *name, *json, *says;
};

static const struct refused_plan refusals[] = {
	{ "down missing", "{" EMBED ATTENTION GATE_UP HEAD "}", "its style should be rowwise" },
	{ "o missing", "{" EMBED QKV("colwise", "colwise", "colwise") MLP HEAD "}",
	  "its style should be rowwise" },
	{ "local_rowwise, never summed",
	  "{" EMBED ATTENTION GATE_UP "\"" L "mlp.down_proj\":\"local_rowwise\"," HEAD "}",
	  "unfinished sum" },
	{ "embedding_colwise, no gather",
	  "{\"model.embed_tokens\":\"embedding_colwise:keep\"," ATTENTION MLP HEAD "}",
	  "use embedding_colwise there" },
	{ "norm sequence only",
	  "{\"" L "input_layernorm\":\"sequence_parallel\",\"model.norm\":\"sequence_parallel\"}",
	  "needs" },
	{ "matches nothing", "{\"model.layers.*.q\":\"colwise\"}", "matches no module" },
	{ "a part of a component", "{\"" L "self_attn.*_proj\":\"replicate\"}",
	  "* stands for a whole component" },
	{ "an internal record is no suggestion", "{\"want\":\"replicate\"}", "(nearest: model)" },
	{ "equally specific",
	  "{\"model.layers.1.*.down_proj\":\"replicate\",\"" L "mlp.down_proj\":\"rowwise\"}",
	  "model.layers.1.mlp.down_proj: the rules \"model.layers.1.*.down_proj\": \"replicate\" "
	  "and "
	  "\"model.layers.*.mlp.down_proj\": \"rowwise\" of the plan match it equally well" },
	{ "unknown style", "{\"lm_head\":\"colwize\"}", "colwise" },
};

struct model_fixture {
	struct tess_checkpoint *checkpoint;
	struct tess_source source;
	const struct tess_model *model;
};

static void open_model_fixture(const char *dir, struct model_fixture *f)
{
	char path[512];

	snprintf(path, sizeof path, "%s/%s", SOURCE_ROOT, dir);
	ck_assert_msg(!tess_checkpoint_open(path, TESS_CHECKPOINT_WHOLE, &f->checkpoint), "%s",
	              tess_error());
	f->source = tess_checkpoint_make_source(f->checkpoint);
	ck_assert_msg(!tess_plugin_find_model("llama", &f->model), "%s", tess_error());
}

static tess_status run_plan(const struct model_fixture *f, const char *json, int32_t nranks,
                            const int32_t *ids, int64_t n, bool all, float **logits, int64_t *count)
{
	struct lockstep how = { f->model, &f->source, json, nranks, ids, n, all, NULL };

	return lockstep_run(&how, logits, count);
}

static const int32_t some_ids[] = { 1, 5, 90, 33, 5, 71, 2, 64, 17, 3, 100, 42 };

/*
 * Checks all numbers of ranks: those that the plan accepts give the bits of one replicated rank;
 * the others are refused by units. n: the number of ids.
 */
static void check_all_rank_counts(const char *dir, const struct plan_case *p, int64_t n)
{
	struct model_fixture f;
	float *want, *have;
	int64_t count, other;
	int32_t done = 0;

	open_model_fixture(dir, &f);
	ck_assert_msg(!run_plan(&f, "{\"model.norm\":\"replicate\"}", 1, some_ids, n, true, &want,
	                        &count),
	              "%s", tess_error());
	for (int32_t ranks = 1; ranks <= 8; ranks += 1 + THIN / 4) {
		tess_status st = run_plan(&f, p->json, ranks, some_ids, n, true, &have, &other);

		if (st == TESS_EINVAL && strstr(tess_error(), "units cannot be cut"))
			continue;
		ck_assert_msg(!st, "%s, %d ranks: %s", p->name, ranks, tess_error());
		ck_assert_int_eq(count, other);
		ck_assert_msg(!memcmp(want, have, 4 * (size_t)count),
		              "%s: other bits with %d ranks", p->name, ranks);
		free(have);
		done++;
	}
	free(want);
	ck_assert_msg(done > 1, "%s: refused for every number of ranks: %s", p->name, tess_error());
	tess_checkpoint_close(f.checkpoint);
}

START_TEST(same_bits)
{
	check_all_rank_counts("tests/data/goldens/llama-odd", &plans[_i], 12);
	check_all_rank_counts("data", &plans[_i], 5);
}
END_TEST

START_TEST(local_without_bias)
{
	check_all_rank_counts("data", &local_plan, 5);
}
END_TEST

static void expect_plan_refused(const char *dir, const char *json, int32_t ranks, const char *says)
{
	struct model_fixture f;
	float *logits;
	int64_t count;
	tess_status st;

	open_model_fixture(dir, &f);
	st = run_plan(&f, json, ranks, some_ids, 3, true, &logits, &count);
	ck_assert_msg(st < 0, "not refused: %s", json);
	expect_part(tess_error(), says);
	tess_checkpoint_close(f.checkpoint);
}

START_TEST(refuses)
{
	expect_plan_refused("tests/data/goldens/llama-odd", refusals[_i].json, 2,
	                    refusals[_i].says);
	expect_plan_refused("data", refusals[_i].json, 2, refusals[_i].says);
}
END_TEST

START_TEST(refuses_more)
{
	/* an unfinished sum; a bias before it; a table cut two ways; more ranks than heads */
	expect_plan_refused("data", refusals[2].json, 2,
	                    "model.layers.0: an addition of an unfinished sum of");
	expect_plan_refused("tests/data/goldens/llama-odd", local_plan.json, 2, "bias");
	expect_plan_refused("tests/data/goldens/llama-odd",
	                    "{" EMBED ATTENTION MLP "\"lm_head\":\"rowwise\"}", 2,
	                    "cut both alike");
	expect_plan_refused("tests/data/goldens/llama-odd", plans[0].json, 7,
	                    "heads: 6 units cannot be cut for 7 ranks; use 1 to 6");
	expect_plan_refused("data", plans[0].json, 12, "use 1 to 8");
}
END_TEST

struct precedence {
	const char *json, *over[3], *path, *style; /* style: the style of the path */
};

#define DOWN "model.layers.1.mlp.down_proj"
static const struct precedence precedences[] = {
	{ "{}", { 0 }, DOWN, "" },
	/* fewer * win, in any order */
	{ "{\"" DOWN "\":\"a\",\"model.layers.*.mlp.down_proj\":\"b\"}", { 0 }, DOWN, "a" },
	{ "{\"model.layers.*.mlp.down_proj\":\"b\",\"" DOWN "\":\"a\"}", { 0 }, DOWN, "a" },
	{ "{\"model.layers.*.mlp.*\":\"b\",\"*.layers.1.mlp.down_proj\":\"a\"}", { 0 }, DOWN, "a" },
	{ "{\"*.*.*.mlp.*\":\"c\",\"layers.*.mlp.down_proj\":\"a\"}", { 0 }, DOWN, "a" },
	{ "{\"layers.*.mlp.down_proj\":\"b\",\"layers.1.mlp.down_proj\":\"a\"}", { 0 }, DOWN, "a" },
	/* equally specific, and equal */
	{ "{\"model.layers.1.*.down_proj\":\"a\",\"model.layers.*.mlp.down_proj\":\"a\"}",
	  { 0 },
	  DOWN,
	  "a" },
	/* contradictions do not matter where a more specific rule decides */
	{ "{\"model.*.1.mlp.down_proj\":\"b\",\"model.layers.*.mlp.down_proj\":\"c\",\"" DOWN
	  "\":\"a\"}",
	  { 0 },
	  DOWN,
	  "a" },
	/* an override wins over the plan */
	{ "{\"" DOWN "\":\"b\"}", { "*.*.*.mlp.*=a" }, DOWN, "a" },
	{ "{\"" DOWN "\":\"b\"}", { DOWN "=a", "*.*.*.mlp.*=c" }, DOWN, "a" },
	/* overrides of a strategy win over its plan, and those of the caller over both */
	{ "{\"plan\":{\"" DOWN "\":\"b\"},\"plan_overrides\":[\"*.*.*.mlp.*=a\"]}",
	  { 0 },
	  DOWN,
	  "a" },
	{ "{\"plan\":{\"" DOWN "\":\"b\"},\"plan_overrides\":[\"" DOWN "=c\"]}",
	  { "*.*.*.mlp.*=a" },
	  DOWN,
	  "a" },
	{ "{\"plan\":\"none\"}", { 0 }, DOWN, "" },
	/* modules of the name plan, among rules and in a strategy */
	{ "{\"tp:plan\":\"a\"}", { 0 }, "plan", "a" },
	{ "{\"plan\":{\"plan\":\"a\"}}", { 0 }, "plan", "a" },
	/* refused */
	{ "{\"model.*.1.mlp.down_proj\":\"b\",\"model.layers.*.mlp.down_proj\":\"c\"}",
	  { 0 },
	  DOWN,
	  NULL },
	{ "{\"layers.*.mlp.down_proj\":\"b\",\"model.layers.*.mlp.down_proj\":\"c\"}",
	  { 0 },
	  DOWN,
	  NULL },
	{ "{}", { DOWN "=a", DOWN "=b" }, DOWN, NULL },
	{ "{\"layers.1.mlp.down_proj\":\"b\",\"" DOWN "\":\"a\"}", { 0 }, DOWN, NULL },
};

START_TEST(precedence)
{
	const struct precedence *c = &precedences[_i];
	static const struct tess_model model = { .name = "none" };
	const struct tess_mesh_shape mesh = tess_mesh_shape_make("tp", 2);
	bool used[4] = { false };
	struct tess_plan plan;
	int32_t n = 0, rule;
	tess_status st;

	while (c->over[n])
		n++;
	ck_assert_msg(!tess_plan_open(&model, c->json, c->over, n, &plan), "%s", tess_error());
	st = tess_plan_find(&plan, &mesh, 0, c->path, NULL, used, &rule);
	if (!c->style)
		ck_assert_msg(st == TESS_EINVAL && strstr(tess_error(), "equally well"), "%s: %d",
		              c->json, (int)st);
	else
		ck_assert_msg(!st && !strcmp(rule < 0 ? "" : plan.rule[rule].style, c->style),
		              "%s: %s", c->json, st ? tess_error() : plan.rule[rule].style);
	for (int32_t i = 0; i < plan.nrules; i++)
		ck_assert(used[i]);
	tess_plan_free(&plan);
}
END_TEST

static const struct refused_plan bad_plans[] = {
	{ "a name", "tpsp", "auto, none, tp, tp+sp, hf; did you mean tp+sp?" },
	{ "a dimension twice", "{\"tp\":{\"dp:lm_head\":\"colwise\"}}",
	  "\"dp:lm_head\" names a mesh dimension among the rules of tp" },
	{ "a dimension in a dimension", "{\"tp\":{\"dp\":{}}}", "the style must be a string" },
	{ "no pattern", "{\"tp:\":\"colwise\"}", "needs a pattern and a style" },
	{ "no strategy", "{\"micro_batches\":4}", "a string; a strategy needs the key \"plan\"" },
	{ "a name in a strategy", "{\"plan\":\"tpsp\"}",
	  "the strategy: plan \"tpsp\": no plan of model llama, which has auto, none, tp, tp+sp" },
	{ "a file in a strategy", "{\"plan\":\"data/config.json\"}",
	  "plan \"data/config.json\": no plan of model llama" },
	{ "a number for a plan", "{\"plan\":8}", "plan: must be the name of a plan, such as " },
	{ "no text", "{\"plan\":\"\"}", "plan: must be the name of a plan, such as " },
	{ "an unknown key", "{\"plan\":\"tp\",\"lr\":1}",
	  "the strategy: \"lr\" is no key of a strategy, which has plan, mesh, plan_overrides, "
	  "micro_batches, pipeline_schedule, recompute, bucket, threads, "
	  "offload_optimizer, offload_weights, tile, predicted; among" },
	{ "a misspelt key", "{\"plan\":\"tp\",\"microbatches\":1}",
	  "predicted; did you mean micro_batches?" },
	{ "no mesh", "{\"plan\":\"tp\",\"mesh\":8}", "mesh: must be text, such as \"dp=2,tp=4\"" },
	{ "a mesh of another form", "{\"plan\":\"tp\",\"mesh\":\"dp=2,\"}",
	  "the strategy: mesh: the mesh \"dp=2,\" is not of the form dp=2,tp=4" },
	{ "no list", "{\"plan\":\"tp\",\"plan_overrides\":\"dp:**=zero3\"}",
	  "plan_overrides: must be a list of rules" },
	{ "no rule", "{\"plan\":\"tp\",\"plan_overrides\":[\"lm_head\"]}",
	  "the strategy \"lm_head\": use PATTERN=STYLE" },
	{ "no pattern of recomputation", "{\"plan\":\"tp\",\"recompute\":[1]}",
	  "recompute: must be a list of patterns" },
	{ "no micro-batch", "{\"plan\":\"tp\",\"micro_batches\":0}",
	  "the strategy: micro_batches: a whole number from 1 to " },
	{ "too many threads", "{\"plan\":\"tp\",\"threads\":1025}", "threads: a whole number" },
	{ "no bucket", "{\"plan\":\"tp\",\"bucket\":0.5}", "bucket: a whole number" },
	{ "no prediction", "{\"plan\":\"tp\",\"predicted\":1}", "predicted: must be an object" },
	{ "no schedule", "{\"plan\":\"tp\",\"pipeline_schedule\":1}",
	  "pipeline_schedule: must be text" },
};

START_TEST(refuses_to_open)
{
	struct tess_plan plan;
	struct model_fixture f;

	open_model_fixture("data", &f);
	for (size_t i = 0; i < sizeof bad_plans / sizeof *bad_plans; i++) {
		ck_assert(tess_plan_open(f.model, bad_plans[i].json, NULL, 0, &plan) < 0);
		ck_assert_msg(strstr(tess_error(), bad_plans[i].says) != NULL, "%s: %s",
		              bad_plans[i].name, tess_error());
	}
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

static size_t measure_heap_bytes(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

/* Checks that a long plan is stored once, not once for each of its rules. */
START_TEST(long_plan)
{
	enum { RULES = 20000, ONE = 64 };
	char *json = malloc(RULES * ONE);
	size_t len = 0, before;
	static const struct tess_model model = { .name = "none" };
	struct tess_plan plan;

	for (int i = 0; i < RULES; i++)
		len += (size_t)snprintf(json + len, ONE, "%s\"layers.%d\":\"colwise\"",
		                        i ? "," : "{", i);
	strcpy(json + len, "}");
	before = measure_heap_bytes();
	ck_assert_msg(!tess_plan_open(&model, json, NULL, 0, &plan), "%s", tess_error());
	ck_assert_int_eq(plan.nrules, RULES);
	ck_assert_msg(measure_heap_bytes() - before < 16 << 20, "%zu bytes",
	              measure_heap_bytes() - before);
	tess_plan_free(&plan);
	free(json);
}
END_TEST

/*
 * Checks that the last row alone, and a prefix, have the bits that they have in the full sequence.
 */
START_TEST(rows_are_independent)
{
	struct model_fixture f;
	float *whole, *part;
	int64_t count, rows;

	open_model_fixture("tests/data/goldens/llama-odd", &f);
	ck_assert(!run_plan(&f, plans[0].json, 3, some_ids, 12, true, &whole, &count));
	for (int64_t n = 1; n <= 12; n += 3) {
		for (int32_t p = 0; p < 2; p++) {
			ck_assert(!run_plan(&f, plans[p].json, 2 + p, some_ids, n, false, &part,
			                    &rows));
			ck_assert(!memcmp(part, whole + (n - 1) * rows, 4 * (size_t)rows));
			free(part);
		}
	}
	free(whole);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- gate and up fused in one weight, as phi3 has them --------------------------------------- */

struct fused_source {
	struct tess_source *base;
	float *made[64]; /* memory to free */
	int32_t n;
};

/* Finds gate_up_proj, which has gate_proj's rows, then up_proj's. */
static tess_status find_fused_tensor(void *self, const char *name, struct tess_view *out)
{
	struct fused_source *f = self;
	const char *at = strstr(name, "gate_up_proj");
	struct tess_view half[2];
	char other[256];
	int64_t n[2];

	if (!at)
		return f->base->find(f->base->self, name, out);
	for (int i = 0; i < 2; i++) {
		snprintf(other, sizeof other, "%.*s%s%s", (int)(at - name), name,
		         i ? "up_proj" : "gate_proj", at + strlen("gate_up_proj"));
		if (f->base->find(f->base->self, other, &half[i]))
			return TESS_ENOENT;
		n[i] = half[i].shape[0] * (half[i].ndim > 1 ? half[i].shape[1] : 1);
	}
	ck_assert(f->n < 64);
	f->made[f->n] = malloc(4 * (size_t)(n[0] + n[1]));
	memcpy(f->made[f->n], half[0].data, 4 * (size_t)n[0]);
	memcpy(f->made[f->n] + n[0], half[1].data, 4 * (size_t)n[1]);
	*out = half[0];
	out->shape[0] += half[1].shape[0];
	out->data = f->made[f->n++];
	return TESS_OK;
}

/* One layer's mlp between embedding and head: everything that fusing changes. */
static bool fuse;

static struct tess_tensor *record_mlp(struct tess_nn *nn, struct tess_tensor *ids)
{
	int32_t bias = nn->integer(nn, "mlp_bias", 0) ? TESS_BIAS : 0;
	struct tess_dim *vocab = nn->dim(nn, "vocabulary", nn->integer(nn, "vocab_size", 0), 0);
	struct tess_dim *hidden =
		nn->dim(nn, "hidden", nn->integer(nn, "hidden_size", 0), TESS_HIDDEN);
	struct tess_dim *ffn = nn->dim(nn, "ffn", nn->integer(nn, "intermediate_size", 0), 0);
	struct tess_tensor *x, *h[2], *y;

	x = nn->embed(nn, "model.embed_tokens", ids, vocab, hidden);
	x = nn->enter(nn, nn->norm(nn, "model.norm", x, TESS_RMS, 1e-5), "model.layers.0.mlp");
	if (fuse) {
		struct tess_dim *both = nn->fused(nn, (struct tess_dim *[]){ ffn, ffn, NULL });

		nn->linear(nn, x,
		           (struct tess_linear[]){ { "gate_up_proj", both, bias, 0 }, { 0 } }, &y);
		nn->split(nn, y, h);
	} else {
		nn->linear(nn, x,
		           (struct tess_linear[]){ { "gate_proj", ffn, bias, 0 },
		                                   { "up_proj", ffn, bias, 0 },
		                                   { 0 } },
		           h);
	}
	nn->linear(nn, nn->glu(nn, h[0], h[1], TESS_SILU),
	           (struct tess_linear[]){ { "down_proj", hidden, bias, 0 }, { 0 } }, &y);
	return nn->tied(nn, "lm_head", nn->select_rows(nn, nn->leave(nn, y)), "model.embed_tokens");
}

static tess_status run_mlp(const struct model_fixture *f, const char *json, int32_t ranks,
                           float **logits, int64_t *count)
{
	static const struct tess_model model = { .size = sizeof model,
		                                 .name = "mlp",
		                                 .forward = record_mlp };
	struct fused_source fused = { .base = (struct tess_source *)&f->source };
	struct tess_source source = { .self = &fused,
		                      .name = "fused",
		                      .config = f->source.config,
		                      .find = find_fused_tensor,
		                      .drop = lockstep_ignore_drop };
	struct lockstep how = { &model, &source, json, ranks, some_ids, 7, true, NULL };
	tess_status st = lockstep_run(&how, logits, count);

	for (int32_t i = 0; i < fused.n; i++)
		free(fused.made[i]);
	return st;
}

static const char *const fused_styles[] = { "packed_colwise", "packed_colwise:parts=1,1", "colwise",
	                                    "rowwise", "replicate" };

START_TEST(fused_gate_and_up)
{
	struct model_fixture f;
	float *want, *have;
	int64_t count;
	char json[256];

	open_model_fixture(_i % 2 ? "data" : "tests/data/goldens/llama-odd", &f);
	fuse = false;
	ck_assert_msg(!run_mlp(&f, "none", 1, &want, &count), "%s", tess_error());
	fuse = true;
	snprintf(json, sizeof json,
	         "{\"*.*.*.mlp.gate_up_proj\":\"%s\",\"*.*.*.mlp.down_proj\":\"rowwise\"}",
	         fused_styles[_i / 2]);
	for (int32_t ranks = 1; ranks <= 8; ranks++) {
		ck_assert_msg(!run_mlp(&f, json, ranks, &have, &count), "%s, %d ranks: %s", json,
		              ranks, tess_error());
		ck_assert_msg(!memcmp(want, have, 4 * (size_t)count),
		              "%s: other bits with %d ranks", json, ranks);
		free(have);
	}
	free(want);
	ck_assert(run_mlp(&f, "{\"*.*.*.mlp.gate_up_proj\":\"packed_colwise:parts=2,1\"}", 2, &have,
	                  &count) < 0);
	expect_part(tess_error(), "parts");
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

static int64_t hash_program(const struct model_fixture *f, const char *json, int32_t ranks,
                            uint64_t *hash)
{
	struct lockstep how = { f->model, &f->source, json, ranks, NULL, 3, true, NULL };
	struct tess_program *p;
	int64_t n;

	ck_assert_msg(!lockstep_record(&how, &p), "%s", tess_error());
	ck_assert(!tess_program_hash(p));
	*hash = p->hash[p->nrecords - 1];
	n = p->nrecords;
	tess_program_free(p);
	return n;
}

/* Checks that biases of attention and of the mlp are independent settings. */
START_TEST(biases_are_asked_for_apart)
{
	struct model_fixture f;
	struct tess_program *p;
	json_t *config;
	int found[2] = { 0 };

	open_model_fixture("tests/data/goldens/llama-odd", &f);
	config = json_copy((json_t *)f.source.config);
	json_object_set_new(config, _i ? "mlp_bias" : "attention_bias", json_false());
	f.source.config = config;
	f.source.count = 0; /* tensors that no module requires do not matter here */
	ck_assert_msg(
		!lockstep_record(
			&(struct lockstep){ f.model, &f.source, NULL, 1, NULL, 3, true, NULL }, &p),
		"%s", tess_error());
	for (int32_t i = 0; i < p->nweights; i++)
		if (strstr(p->weight[i]->name, "_proj.bias"))
			found[!!strstr(p->weight[i]->name, "mlp.")]++;
	ck_assert_msg(found[_i] == 0 && found[!_i] > 0, "%d and %d biases", found[0], found[1]);
	tess_program_free(p);
	json_decref(config);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

struct wrong_size {
	const char *key, *says;
	int value;
};

static const struct wrong_size sizes[] = {
	{ "num_key_value_heads", "3 key-value heads do not divide 8 heads", 3 },
	{ "vocab_size", "shape [512, 64], but config.json makes it [500, 64]", 500 },
	{ "intermediate_size", "shape [172, 64], but config.json makes it [171, 64]", 171 },
	{ "intermediate_size", "shape [172, 64], but config.json makes it [173, 64]", 173 },
};

START_TEST(sizes_must_fit)
{
	struct model_fixture f;
	json_t *config;
	float *logits;
	int64_t count;

	open_model_fixture("data", &f);
	config = json_copy((json_t *)f.source.config);
	json_object_set_new(config, sizes[_i].key, json_integer(sizes[_i].value));
	f.source.config = config;
	ck_assert_int_eq(run_plan(&f, NULL, 1, some_ids, 3, true, &logits, &count), TESS_EINVAL);
	expect_part(tess_error(), sizes[_i].says);
	json_decref(config);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

START_TEST(program_is_the_same_for_all)
{
	struct model_fixture f;
	uint64_t one, other;

	open_model_fixture("tests/data/goldens/llama-odd", &f);
	for (int32_t i = 0; i < 4; i++) {
		int64_t n = hash_program(&f, plans[i].json, 1, &one);

		for (int32_t ranks = 2; ranks <= 6; ranks++) {
			ck_assert_int_eq(n, hash_program(&f, plans[i].json, ranks, &other));
			ck_assert_msg(one == other, "%s: another program for %d ranks",
			              plans[i].name, ranks);
		}
	}
	hash_program(&f, plans[0].json, 1, &one);
	hash_program(&f, plans[3].json, 1, &other);
	ck_assert_msg(one != other, "two plans, one hash");
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* Checks that the largest error against float64 is at most three times torch's error in float32. */
static void check_golden_logits(const char *name)
{
	struct model_fixture f;
	struct tess_safetensors *g;
	char path[512], key[64];
	json_t *about;

	snprintf(path, sizeof path, "tests/data/goldens/%s", name);
	open_model_fixture(path, &f);
	snprintf(path, sizeof path, "%s/tests/data/goldens/%s/golden.safetensors", SOURCE_ROOT,
	         name);
	ck_assert_msg(!tess_safetensors_open(path, false, &g), "%s", tess_error());
	snprintf(path, sizeof path, "%s/tests/data/goldens/%s/golden.json", SOURCE_ROOT, name);
	about = json_load_file(path, 0, NULL);
	for (int p = 0; p < 3; p++) {
		const struct tess_slice *ids, *want;
		int32_t list[64];
		float *have, error = 0;
		int64_t count;
		double torch;

		snprintf(key, sizeof key, "prompt%d.ids", p);
		ids = tess_safetensors_find(g, key);
		snprintf(key, sizeof key, "prompt%d.logits_f64", p);
		want = tess_safetensors_find(g, key);
		ck_assert(ids && want);
		for (int64_t i = 0; i < ids->shape[0]; i++)
			list[i] = (int32_t)((const int64_t *)ids->data)[i];
		ck_assert_msg(!run_plan(&f, NULL, 2, list, ids->shape[0], true, &have, &count),
		              "%s", tess_error());
		for (int64_t i = 0; i < count; i++)
			error = fmaxf(error, fabsf(have[i] - ((const float *)want->data)[i]));
		snprintf(key, sizeof key, "prompt%d.logits", p);
		torch = json_real_value(json_array_get(
			json_object_get(
				json_object_get(about, "float32_torch_error_max_abs_and_relative"),
				key),
			0));
		ck_assert_msg(error <= 3 * torch, "%s prompt %d: error %g, torch float32 %g", name,
		              p, (double)error, torch);
		free(have);
	}
	json_decref(about);
	tess_safetensors_close(g);
	tess_checkpoint_close(f.checkpoint);
}

START_TEST(goldens)
{
	static const char *const names[] = { "llama", "llama-odd", "llama-bf16" };

	check_golden_logits(names[_i]);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("program", 120, &r);
	int n = (int)(sizeof plans / sizeof *plans);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_loop_test(t, same_bits, 0, n);
	tcase_add_test(t, local_without_bias);
	tcase_add_loop_test(t, refuses, 0, (int)(sizeof refusals / sizeof *refusals));
	tcase_add_test(t, refuses_more);
	tcase_add_loop_test(t, precedence, 0, (int)(sizeof precedences / sizeof *precedences));
	tcase_add_test(t, refuses_to_open);
	tcase_add_test(t, long_plan);
	tcase_add_loop_test(t, fused_gate_and_up, 0, 10);
	tcase_add_test(t, rows_are_independent);
	tcase_add_loop_test(t, biases_are_asked_for_apart, 0, 2);
	tcase_add_loop_test(t, sizes_must_fit, 0, (int)(sizeof sizes / sizeof *sizes));
	tcase_add_test(t, program_is_the_same_for_all);
	tcase_add_loop_test(t, goldens, 0, 3);
	return suite_end(r);
}

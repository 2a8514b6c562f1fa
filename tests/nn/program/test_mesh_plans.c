/*
 * test_mesh_plans.c - plans of several mesh dimensions: the bits of one rank, on all ranks in lock
 * step, for written plans and for random ones; and refusals that name a dimension. Strategies: what
 * is written is read, and completes options.
 */
#include "core/base/option.h"
#include "nn/program/strategy.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/draw.h"
#include "tests/support/suite.h"

#define L "model.layers.*."
#define ATTENTION \
	"\"" L "self_attn.q_proj\":\"colwise\",\"" L "self_attn.k_proj\":\"colwise\",\"" L \
	"self_attn.v_proj\":\"colwise\",\"" L "self_attn.o_proj\":\"rowwise\""
#define QKV(style) \
	"\"**.q_proj\":\"" style "\",\"**.k_proj\":\"" style "\",\"**.v_proj\":\"" style "\""
#define MLP \
	"\"" L "mlp.gate_proj\":\"colwise\",\"" L "mlp.up_proj\":\"colwise\",\"" L \
	"mlp.down_proj\":\"rowwise\""
#define EMBED "\"model.embed_tokens\":\"embedding_rowwise\""
#define HIDDEN "\"model.embed_tokens\":\"embedding_colwise\""
#define HEAD "\"lm_head\":\"colwise_rep\""
/* partitions the tokens everywhere, except inside attention and mlp */
#define SEQUENCE \
	"\"model.embed_tokens\":\"prepare_output:out=shard(0)\",\"" L \
	"input_layernorm\":\"sequence_parallel\",\"" L \
	"post_attention_layernorm\":\"sequence_parallel\"," \
	"\"model.norm\":\"sequence_parallel\",\"" L "self_attn\":\"module_allgather_split\",\"" L \
	"mlp\":\"module_allgather_split\""

struct mesh_plan {
	const char *checkpoint, *json;
	const char *mesh[6];
};

#define ODD "tests/data/goldens/llama-odd"
#define UNTIED "tests/data/goldens/llama"
static const struct mesh_plan mesh_plans[] = {
	{ ODD,
	  "{\"tp\":{" ATTENTION "," EMBED "},\"xp\":{" MLP "}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=2", "tp=5,xp=3", "tp=1,xp=7" } },
	{ "data",
	  "{\"tp\":{" ATTENTION "},\"xp\":{" MLP "," EMBED "," HEAD "}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=4" } },
	/* the embedding over one dimension, the head over another; one part of each */
	{ UNTIED,
	  "{\"tp\":{" EMBED "," MLP "},\"xp\":{" HEAD "," ATTENTION "}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=5" } },
	{ UNTIED,
	  "{\"tp\":{" HIDDEN "},\"xp\":{" HEAD "},\"yp\":{" ATTENTION "," MLP "}}",
	  { "tp=2,xp=2,yp=2", "yp=3,xp=2,tp=2", "tp=1,xp=5,yp=3" } },
	/* a tied table cut by hidden for both, and by vocabulary for the head */
	{ ODD,
	  "{\"tp\":{" HIDDEN "," ATTENTION "},\"xp\":{\"lm_head\":\"colwise\"," MLP "}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=5" } },
	/* tokens over one, columns and rows over the other */
	{ UNTIED,
	  "{\"tp\":{" SEQUENCE "},\"xp\":{" ATTENTION "," MLP "," HEAD "}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=5", "tp=8,xp=2" } },
	{ ODD,
	  "{\"tp\":{" ATTENTION "," MLP "},\"sp\":{" SEQUENCE "}}",
	  { "tp=2,sp=2", "sp=3,tp=2", "tp=3,sp=5" } },
	/* weights cut both ways */
	{ ODD,
	  "{\"tp\":{" ATTENTION "," MLP "},\"xp\":{\"" L "self_attn.q_proj\":\"rowwise\",\"" L
	  "self_attn.k_proj\":\"rowwise\",\"" L "self_attn.o_proj\":\"colwise_rep\",\"" L
	  "mlp.up_proj\":\"rowwise\",\"" L "mlp.down_proj\":\"colwise_rep\"}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=5" } },
	/* the weights of one op cut along two dimensions */
	{ UNTIED,
	  "{\"tp\":{\"" L "mlp.gate_proj\":\"rowwise\",\"" L "self_attn.q_proj\":\"rowwise\"},"
	  "\"xp\":{\"" L "mlp.up_proj\":\"rowwise\",\"" L "self_attn.v_proj\":\"rowwise\"}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=5" } },
	/* rules of ep, over those of tp where the mesh has no ep */
	{ ODD,
	  "{" ATTENTION "," MLP ",\"ep:" L "mlp\":\"isolated\",\"ep:" L
	  "self_attn.q_proj\":\"rowwise\"}",
	  { "tp=2", "tp=3", "tp=2,ep=2", "ep=3,tp=2" } },
	/* styles with hooks, which see one dimension each */
	{ UNTIED,
	  "{\"tp\":{" ATTENTION ",\"**.gate_proj\":\"negated_twice\"},\"xp\":{"
	  "\"**.v_proj\":\"negated_twice\",\"**.down_proj\":\"rowsplit_by_hand\"}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=5" } },
	/* two dimensions exchange the axes that they cut */
	{ UNTIED,
	  "{\"tp\":{\"**.self_attn\":\"prepare_input:in=shard(0)\"," QKV(
		  "rowwise") "},"
	                     "\"xp\":{\"**.self_attn\":\"prepare_input:in=shard(1)\"," QKV(
				     "prepare_input_output:in=shard(0),out=replicate") "}}",
	  { "tp=2,xp=2", "tp=3,xp=2", "xp=3,tp=2" } },
	/* a plan above in other words */
	{ UNTIED,
	  "{\"tp:**.self_attn.q_proj\":\"colwise\",\"model.**.o_proj\":\"rowwise\",\"xp\":{"
	  "\"**.mlp.down_proj\":\"rowwise\",\"model.**.norm\":\"isolated\",\"**\":\"replicate\"}}",
	  { "tp=2,xp=2", "tp=3,xp=2" } },
};

static const int32_t mesh_ids[] = { 1, 5, 90, 33, 5, 71, 2 };
enum { IDS = sizeof mesh_ids / sizeof *mesh_ids };

static tess_status run_on_mesh(const struct checkpoint_fixture *f, const char *json,
                               const char *mesh, float **logits, int64_t *count)
{
	struct lockstep how = { f->model, &f->source, json, 1, mesh_ids, IDS, true, mesh };

	return lockstep_run(&how, logits, count);
}

/* Runs a training step of two sequences. */
static tess_status train_on_mesh(const struct checkpoint_fixture *f, const char *json,
                                 const char *mesh, struct lockstep_gradients *out)
{
	static const int64_t lengths[] = { 35, 3 };
	int32_t ids[38], labels[38];
	struct lockstep how = { f->model, &f->source, json, 1, ids, 38, true, mesh };
	struct lockstep_step step = {
		.how = &how, .lengths = lengths, .nsequences = 2, .labels = labels
	};

	for (int i = 0; i < 38; i++) {
		ids[i] = i * i % 97;
		labels[i] = i % 7 ? i * 5 % 89 : -100;
	}
	return lockstep_train(&step, out);
}

/* Checks that training gives the gradients of one rank, also with replicas, or is refused. */
static bool check_training_on_mesh(const struct checkpoint_fixture *f, const char *json,
                                   const char *mesh, const struct lockstep_gradients *want)
{
	struct lockstep_gradients have;
	char replicas[64], what[4096];

	snprintf(replicas, sizeof replicas, "dp=2,%s", mesh);
	if (train_on_mesh(f, json, replicas, &have)) {
		ck_assert_msg(strstr(tess_error(), "cannot train") != NULL, "%s on %s: %s", json,
		              replicas, tess_error());
		return false;
	}
	snprintf(what, sizeof what, "%s on %s", json, replicas);
	lockstep_compare_gradients(what, want, &have);
	lockstep_free_gradients(&have);
	return true;
}

START_TEST(same_bits_on_a_mesh)
{
	const struct mesh_plan *p = &mesh_plans[_i];
	struct lockstep_gradients gradients;
	struct checkpoint_fixture f;
	char one[64], *at;
	float *want, *have;
	int64_t count, other;

	open_checkpoint_fixture(p->checkpoint, &f);
	ck_assert_msg(!run_on_mesh(&f, "none", "tp=1", &want, &count), "%s", tess_error());
	/*
	 * on one rank with the plan unchanged: a weight whose style has hooks is an op of its own
	 */
	for (snprintf(one, sizeof one, "%s", p->mesh[0]), at = one; *at; at++)
		*at = *at >= '0' && *at <= '9' ? '1' : *at;
	if (!train_on_mesh(&f, p->json, one, &gradients)) {
		check_training_on_mesh(&f, p->json, p->mesh[THIN > 1 ? 0 : _i % 2], &gradients);
		lockstep_free_gradients(&gradients);
	} else {
		expect_part(tess_error(), "cannot train");
	}
	for (int i = THIN > 1 ? _i % 2 : 0; p->mesh[i] && (i < 2 || THIN == 1); i += 1 + THIN / 5) {
		ck_assert_msg(!run_on_mesh(&f, p->json, p->mesh[i], &have, &other), "%s on %s: %s",
		              p->json, p->mesh[i], tess_error());
		ck_assert_int_eq(count, other);
		ck_assert_msg(!memcmp(want, have, 4 * (size_t)count), "%s: other bits on %s",
		              p->json, p->mesh[i]);
		free(have);
	}
	free(want);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- random plans ---------------------------------------------------------------------------- */

static const struct random_module {
	const char *name;
	int block; /* with modules that are mostly cut along one dimension */
	const char *style, *others[4]; /* the style of those modules; others that may fit */
} random_modules[] = {
	{ "model.embed_tokens",
	  0,
	  "embedding_rowwise",
	  { "embedding_colwise", "vocab_reduce_scatter", "prepare_output:out=shard(0)", "" } },
	{ L "input_layernorm", 1, "", { "sequence_parallel", "isolated", "", "" } },
	{ L "self_attn", 1, "", { "isolated", "gather", "module_allgather_split", "" } },
	{ L "self_attn.q_proj", 1, "colwise", { "rowwise", "colwise_rep", "", "" } },
	{ L "self_attn.k_proj", 1, "colwise", { "rowwise", "colwise_rep", "", "" } },
	{ L "self_attn.v_proj", 1, "colwise", { "rowwise", "colwise_rep", "", "" } },
	{ L "self_attn.o_proj", 1, "rowwise", { "colwise_rep", "rowwise_reduce_scatter", "", "" } },
	{ L "mlp", 2, "", { "isolated", "gather", "module_allgather_split", "" } },
	{ L "mlp.gate_proj", 2, "colwise", { "rowwise", "rowwise_reduce_scatter", "", "" } },
	{ L "mlp.up_proj", 2, "colwise", { "rowwise", "colwise_rep", "", "" } },
	{ L "mlp.down_proj", 2, "rowwise", { "colwise_rep", "rowwise_reduce_scatter", "", "" } },
	{ "lm_head", 3, "colwise_rep", { "rowwise", "colwise", "prepare_input:in=shard(0)", "" } },
};

static void draw_plan(uint64_t *seed, char *json, size_t size)
{
	size_t n = (size_t)snprintf(json, size, "{\"xp:model.norm\":\"replicate\"");
	uint64_t along[4]; /* ranks along each dimension, by block */

	for (int i = 0; i < 4; i++)
		along[i] = draw_below(seed, 2);
	for (size_t i = 0; i < sizeof random_modules / sizeof *random_modules; i++)
		for (uint64_t d = 0; d < 2; d++) {
			const struct random_module *m = &random_modules[i];
			const char *style = draw_below(seed, 12)
			                            ? along[m->block] == d ? m->style : ""
			                            : m->others[draw_below(seed, 4)];

			if (*style)
				n += (size_t)snprintf(json + n, size - n, ",\"%s:%s\":\"%s\"",
				                      d ? "xp" : "tp", m->name, style);
		}
	snprintf(json + n, size - n, "}");
}

/* Checks that a plan is refused, or gives the bits of one rank. */
START_TEST(random_plans)
{
	static const char *const meshes[] = { "tp=2,xp=2", "tp=3,xp=2", "tp=2,xp=3" };
	struct checkpoint_fixture f;
	float *want, *have;
	int64_t count, other;
	struct lockstep_gradients gradients;
	uint64_t seed = 7;
	int accepted = 0, trained = 0;
	char json[4096];

	open_checkpoint_fixture(UNTIED, &f);
	ck_assert_msg(!run_on_mesh(&f, "none", "tp=1", &want, &count), "%s", tess_error());
	ck_assert_msg(!train_on_mesh(&f, "none", "tp=1", &gradients), "%s", tess_error());
	for (int i = 0; i < 600 / (2 * THIN - 1); i++) {
		const char *mesh = meshes[i % 3];

		draw_plan(&seed, json, sizeof json);
		if (run_on_mesh(&f, json, mesh, &have, &other) == TESS_EINVAL)
			continue;
		ck_assert_msg(!memcmp(want, have, 4 * (size_t)count), "%s: other bits on %s", json,
		              mesh);
		free(have);
		accepted++;
		if (accepted % 40 == 0)
			trained += check_training_on_mesh(&f, json, mesh, &gradients);
	}
	lockstep_free_gradients(&gradients);
	ck_assert_int_gt(trained, 0);
	ck_assert_msg(accepted > 100 / (2 * THIN - 1), "only %d plans were not refused", accepted);
	free(want);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct mesh_refusal {
	const char *json, *mesh, *says;
} mesh_refusals[] = {
	{ "{\"xp\":{" MLP "}}", "tp=2", "is for mesh dimension xp, and the program runs on tp=2" },
	{ "auto", "xp=2", "is for mesh dimension tp, and the program runs on xp=2" },
	{ "{\"dp\":{" MLP "}}", "tp=2", "replicas along dp compute apart" },
	{ "{\"ep\":{" MLP "}}", "xp=2",
	  "is for mesh dimension ep, and the program runs on xp=2; add ep to the mesh" },
	{ "{\"tp\":{" ATTENTION "},\"ep\":{" ATTENTION "}}", "tp=2,ep=2",
	  "heads of model.layers.0.self_attn.q_proj.weight cannot be cut along both tp and ep" },
	{ "auto", "tp=2,xp=2", "no rule for mesh dimension xp, along which all ranks" },
	{ "{\"tp:lm_head\":\"colwise_rep\",\"xp:lm_head\":\"colwise_rep\"}", "tp=2,xp=2",
	  "lm_head: vocabulary of lm_head.weight cannot be cut along both tp and xp" },
	{ "{\"tp:" L "self_attn.q_proj\":\"colwise\",\"xp:" L "self_attn.k_proj\":\"colwise\"}",
	  "tp=2,xp=2", "heads of model.layers.0.self_attn.q_proj cannot be cut along both" },
	{ "{\"tp\":{" SEQUENCE "},\"xp\":{" SEQUENCE "}}", "tp=2,xp=2",
	  "model.embed_tokens: tokens of model.embed_tokens cannot be cut along both tp and xp" },
	{ "{\"tp:lm_head\":\"local_rowwise\",\"xp:lm_head\":\"colwise_rep\"}", "tp=2,xp=2",
	  "lm_head: lm_head gives an unfinished sum along tp, which cannot become Replicate along "
	  "xp" },
	{ "{\"tp\":{" ATTENTION "},\"xp:**.down_proj\":\"local_rowwise\"}", "tp=2,xp=2",
	  "model.layers.0: an addition of an unfinished sum of model.layers.0.mlp.down_proj "
	  "along xp" },
	{ "{\"tp\":{" ATTENTION "},\"xp:" L "mlp.up_proj\":\"colwise\"}", "tp=2,xp=2",
	  "is Replicate along xp cannot take Shard(1) from model.layers.0.mlp.up_proj" },
	{ "{\"tp\":{" ATTENTION "},\"xp\":{" MLP "}}", "tp=9,xp=2",
	  "heads: 8 units cannot be cut for 9 ranks along tp; use 1 to 8" },
	{ "{\"xp:" L "mlp\":\"prepare_input:in=replicate,in1=shard(0)\"}", "tp=1,xp=2",
	  "model.layers.0.mlp: style prepare_input:in=replicate,in1=shard(0) places input 1, but a "
	  "module has one" },
	{ "{\"lm_head\":\"prepare_output:out3=replicate\"}", "tp=2", "places output 3" },
};

START_TEST(refuses_on_a_mesh)
{
	const struct mesh_refusal *r = &mesh_refusals[_i];
	struct checkpoint_fixture f;
	float *logits;
	int64_t count;

	open_checkpoint_fixture(UNTIED, &f);
	ck_assert_msg(run_on_mesh(&f, r->json, r->mesh, &logits, &count) == TESS_EINVAL,
	              "not refused: %s on %s", r->json, r->mesh);
	ck_assert_msg(strstr(tess_error(), r->says) != NULL, "\"%s\" is not in: %s", r->says,
	              tess_error());
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- patterns -------------------------------------------------------------------------------- */

#define GATE "model.layers.1.mlp.gate_proj"
static const struct pattern_case { /* along the first dimension; style NULL: refused */
	const char *over[4], *mesh, *path, *style;
} patterns[] = {
	{ { "**=a" }, "tp", GATE, "a" },
	{ { "**.gate_proj=a" }, "tp", GATE, "a" },
	{ { "model.**=a" }, "tp", GATE, "a" },
	{ { "model.**=a" }, "tp", "model", "a" },
	{ { "model.**.mlp.**.gate_proj=a" }, "tp", GATE, "a" },
	{ { "model.**.layers.**.*.gate_proj=a" }, "tp", GATE, "a" },
	{ { "**.mlp.*.gate_proj=a" }, "tp", GATE, "" },
	{ { "**.mlp=a" }, "tp", GATE, "" },
	{ { "**.1.**.1.**=a" }, "tp", GATE, "" },
	{ { "**.1.**.1.**=a" }, "tp", "x.1.1.1.y", "a" },
	{ { "mod**.gate_proj=a" }, "tp", GATE, "" },
	/* fewer ** win, regardless of the number of * */
	{ { "*.*.*.*.*=a", "**.mlp.gate_proj=b" }, "tp", GATE, "a" },
	{ { "**.mlp.*=a", "**.mlp.**=b" }, "tp", GATE, "a" },
	{ { "**.mlp.*=a", "model.**.gate_proj=b" }, "tp", GATE, "b" },
	{ { "**.mlp.gate_proj=a", "model.**.gate_proj=b" }, "tp", GATE, NULL },
	{ { "**=a", "**.gate_proj=b" }, "tp", GATE, "b" }, /* then the longer pattern */
	/* rules that contradict each other, before one that decides */
	{ { "model.*.*.mlp.gate_proj=b", "model.*.1.*.gate_proj=c", "model.*.1.mlp.gate_proj=a" },
	  "tp",
	  GATE,
	  "a" },
	/* rules of another dimension do not count */
	{ { "xp:" GATE "=a", "**=b" }, "tp", GATE, "b" },
	{ { "xp:" GATE "=a", "**=b" }, "xp", GATE, "a" },
	{ { "tp:" GATE "=a", "xp:" GATE "=b" }, "tp", GATE, "a" },
	/* rules of ep use tp's ranks, and win on a module and its descendants */
	{ { "ep:" GATE "=a", GATE "=b" }, "tp", GATE, "a" },
	{ { "ep:**=a", GATE "=b" }, "tp", GATE, "a" },
	{ { "ep:**.mlp=a", GATE "=b" }, "tp", GATE, "" },
	{ { "ep:layers.*=a", GATE "=b" }, "tp", GATE, "" },
	{ { "ep:**.mlp=a", GATE "=b" }, "xp", GATE, "" },
	{ { "ep:**.self_attn=a", GATE "=b" }, "tp", GATE, "b" },
	{ { "ep:" GATE ".weight=a", GATE "=b" }, "tp", GATE, "b" },
	{ { "ep:" GATE "=a", GATE "=b", GATE "=c" }, "tp", GATE, "a" },
	{ { "ep:" GATE "=a", "ep:" GATE "=c", GATE "=b" }, "tp", GATE, NULL },
	{ { "ep:**.mlp=a", "ep:**.mlp=c", GATE "=b" }, "tp", GATE, NULL },
	/* ep has its own ranks if the mesh has ep */
	{ { "ep:**.mlp=a", GATE "=b" }, "tp=2,ep=2", GATE, "b" },
	{ { "ep:**.mlp=a", GATE "=b" }, "ep=2,tp=2", GATE, "" },
	{ { "ep:" GATE "=a", GATE "=b" }, "ep=2,tp=2", GATE, "a" },
};

START_TEST(pattern_of_any_path)
{
	const struct pattern_case *c = &patterns[_i];
	static const struct tess_model model = { .name = "none" };
	struct tess_mesh_shape mesh;
	struct tess_plan plan;
	bool used[3];
	int32_t n = 0, rule;
	tess_status st;

	while (c->over[n])
		n++;
	ck_assert_msg(!tess_plan_open(&model, "none", c->over, n, &plan), "%s", tess_error());
	ck_assert(!tess_mesh_shape_parse(c->mesh, 0, &mesh) ||
	          !tess_mesh_shape_parse(c->mesh, 2, &mesh));
	st = tess_plan_find(&plan, &mesh, 0, c->path, NULL, used, &rule);
	ck_assert_msg(!st == !!c->style, "%s: %d", c->over[0], (int)st);
	if (!st)
		ck_assert_str_eq(rule < 0 ? "" : plan.rule[rule].style, c->style);
	tess_plan_free(&plan);
}
END_TEST

/* ---- strategies ------------------------------------------------------------------------------ */

static const char *const zero[] = { "dp:**=zero3", NULL }, *const layers[] = { L "mlp", NULL };
static const struct tess_strategy written = { .size = sizeof written,
	                                      .threads = 3,
	                                      .plan = "tp+sp",
	                                      .mesh = "dp=2,pp=2",
	                                      .overrides = zero,
	                                      .micro_batches = 8,
	                                      .pipeline_schedule = "zb-h1",
	                                      .recompute = layers,
	                                      .bucket = UINT64_C(1) << 33,
	                                      .offload_optimizer = "disk",
	                                      .offload_weights = "host",
	                                      .tile = 1 << 20,
	                                      .predicted = "{\"seconds\":0.5}" };

START_TEST(strategy_is_read_as_written)
{
	struct tess_strategy *read = NULL, only = { .size = sizeof only, .plan = "{\"a\":\"b\"}" };
	char *text = NULL;

	ck_assert_msg(!tess_strategy_format(&written, &text), "%s", tess_error());
	ck_assert_msg(!tess_strategy_read(text, &read) && read, "%s", tess_error());
	ck_assert(read->threads == 3 && read->micro_batches == 8 && read->bucket == 1L << 33);
	ck_assert_str_eq(read->plan, "tp+sp");
	ck_assert_str_eq(read->mesh, "dp=2,pp=2");
	ck_assert_str_eq(read->overrides[0], "dp:**=zero3");
	ck_assert_str_eq(read->pipeline_schedule, "zb-h1");
	ck_assert_str_eq(read->recompute[0], L "mlp");
	ck_assert_str_eq(read->predicted, "{\"seconds\":0.5}");
	ck_assert_str_eq(read->offload_optimizer, "disk");
	ck_assert_str_eq(read->offload_weights, "host");
	ck_assert_uint_eq(read->tile, 1 << 20);
	ck_assert(!read->overrides[1] && !read->recompute[1]);
	ck_assert(!tess_strategy_check_ranks(read, 4));
	ck_assert_int_eq(tess_strategy_check_ranks(read, 8), TESS_EINVAL);
	ck_assert_str_eq(tess_error(), "the strategy is for the mesh dp=2,pp=2 of 4 ranks, not for "
	                               "8; use 4 ranks, or another mesh, as in --mesh tp=8");
	tess_strategy_free(read);
	free(text);
	ck_assert(!tess_strategy_format(&only, &text) && !tess_strategy_read(text, &read));
	ck_assert_str_eq(read->plan, only.plan);
	ck_assert(!tess_strategy_check_ranks(read, 7) && !read->mesh && !read->recompute);
	tess_strategy_free(read);
	free(text);
	only.mesh = "dp=";
	ck_assert_int_eq(tess_strategy_format(&only, &text), TESS_EINVAL);
}
END_TEST

/* Checks that options which are given stay, and that a mesh without stages has no schedule. */
START_TEST(strategy_completes_options)
{
	const struct tess_mesh_shape stages = tess_mesh_shape_make("pp", 2),
				     one = tess_mesh_shape_make("pp", 1);
	const char *const given[] = { "a", NULL };
	struct tess_trainer_options o = { .size = sizeof o }, all = { .size = sizeof all };
	struct tess_strategy *s;
	char *text = NULL;

	ck_assert_msg(!tess_strategy_format(&written, &text), "%s", tess_error());
	o.plan = all.plan = text;
	all.threads = 1;
	all.bucket = 2;
	all.micro_batches = 3;
	all.recompute = given;
	all.pipeline_schedule = "gpipe";
	all.offload_optimizer = "folder";
	ck_assert(!tess_strategy_complete(&all, &stages, &s) && s);
	ck_assert(all.threads == 1 && all.bucket == 2 && all.micro_batches == 3);
	ck_assert_str_eq(all.offload_optimizer, "folder");
	ck_assert(all.recompute == given && !strcmp(all.pipeline_schedule, "gpipe"));
	tess_strategy_free(s);
	ck_assert(!tess_strategy_complete(&o, &one, &s) && !o.pipeline_schedule);
	tess_strategy_free(s);
	o.recompute = NULL; /* of the strategy that is freed */
	o.offload_optimizer = o.offload_weights = NULL;
	ck_assert(!tess_strategy_complete(&o, &stages, &s));
	ck_assert(o.threads == 3 && o.bucket == 1L << 33 && o.micro_batches == 8);
	ck_assert(!strcmp(o.offload_optimizer, "disk") && !strcmp(o.offload_weights, "host"));
	ck_assert_uint_eq(o.tile, 1 << 20);
	ck_assert(!strcmp(o.recompute[0], L "mlp") && !strcmp(o.pipeline_schedule, "zb-h1"));
	tess_strategy_free(s);
	o.plan = "tp";
	ck_assert(!tess_strategy_complete(&o, &stages, &s) && !s);
	free(text);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("mesh_plans", 120, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_loop_test(t, same_bits_on_a_mesh, 0,
	                    (int)(sizeof mesh_plans / sizeof *mesh_plans));
	tcase_add_test(t, random_plans);
	tcase_add_loop_test(t, refuses_on_a_mesh, 0,
	                    (int)(sizeof mesh_refusals / sizeof *mesh_refusals));
	tcase_add_test(t, strategy_is_read_as_written);
	tcase_add_test(t, strategy_completes_options);
	tcase_add_loop_test(t, pattern_of_any_path, 0, (int)(sizeof patterns / sizeof *patterns));
	return suite_end(r);
}

/*
 * test_backward.c - the backward of full models, in lockstep. Gradients differ from torch's in
 * float64 by at most three times the error of torch's float32. Any number of ranks, any plan and
 * any replicas give the bits of one rank.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "hf/checkpoint.h"
#include "hf/safetensors.h"
#include "nn/compile/hash.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/suite.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a checkpoint and its data --------------------------------------------------------------- */

struct opened { /* a golden checkpoint */
	char path[512];
	struct tess_checkpoint *checkpoint;
	struct tess_source source;
	const struct tess_model *model;
};

static void open_golden(const char *name, struct opened *o)
{
	char family[16];

	snprintf(o->path, sizeof o->path, "%s/tests/data/goldens/%s", SOURCE_ROOT, name);
	ck_assert_msg(!tess_checkpoint_open(o->path, TESS_CHECKPOINT_WHOLE, &o->checkpoint), "%s",
	              tess_error());
	snprintf(family, sizeof family, "%.*s", (int)strcspn(name, "-"), name);
	ck_assert_msg(!tess_plugin_find_model(family, &o->model), "%s", tess_error());
	o->source = tess_checkpoint_make_source(o->checkpoint);
}

static const struct tess_slice *require_tensor(const struct tess_safetensors *f, const char *name)
{
	const struct tess_slice *s = tess_safetensors_find(f, name);

	ck_assert_msg(s != NULL, "%s: no %s", tess_safetensors_path(f), name);
	return s;
}

/* Reads the largest error of torch's float32 for `name` from golden.json. */
static double read_torch_error(const struct opened *o, const char *name)
{
	char path[600];
	json_t *about;
	double error;

	snprintf(path, sizeof path, "%s/golden.json", o->path);
	about = json_load_file(path, 0, NULL);
	error = json_number_value(json_array_get(
		json_object_get(json_object_get(about, "float32_torch_error_max_abs_and_relative"),
	                        name),
		0));
	json_decref(about);
	return error;
}

/* ---- against torch --------------------------------------------------------------------------- */

static const char *const families[] = { "llama",       "llama-odd",   "gpt2",        "qwen2",
	                                "qwen3",       "mistral",     "phi3",        "phi3-partial",
	                                "gemma2",      "olmo2",       "mixtral",     "qwen3_moe",
	                                "deepseek_v3", "cohere2",     "gemma3_text", "glm4_moe",
	                                "gpt_neox",    "llama4_text", "olmoe",       "opt",
	                                "qwen2_moe" };
enum { FAMILIES = sizeof families / sizeof *families };

/*
 * Returns whether the golden has the file; of gradients with the balancing loss, only the routers'
 * are stored.
 */
static bool check_gradient_file(const struct opened *o, const struct tess_safetensors *golden,
                                const char *kind, const char *name, const float *have, int64_t n)
{
	char key[600];
	const struct tess_slice *want;
	double most = 0, allowed;

	snprintf(key, sizeof key, "grad.%s", name);
	allowed = 3 * read_torch_error(o, key);
	snprintf(key, sizeof key, "%s.%s", kind, name);
	want = tess_safetensors_find(golden, key);
	if (!want && strcmp(kind, "grad") != 0)
		return false;
	want = require_tensor(golden, key);
	ck_assert_msg(want->bytes == 4 * (uint64_t)n, "%s: %lld elements", key, (long long)n);
	for (int64_t i = 0; i < n; i++) {
		float x;

		memcpy(&x, (const char *)want->data + 4 * i, 4);
		most = fmax(most, fabs((double)x - (double)have[i]));
		ck_assert_msg(isfinite(have[i]), "%s: element %lld is %g", key, (long long)i,
		              (double)have[i]);
	}
	ck_assert_msg(most <= allowed, "%s: %s: an error of %g, but at most %g", o->path, key, most,
	              allowed);
	return true;
}

/*
 * Checks a weight, whose files are stored one after another: experts, and the fused parts of each.
 */
static int64_t check_weight(const struct opened *o, const struct tess_safetensors *golden,
                            const char *kind, const struct tess_weight *w, const float *have)
{
	int64_t experts = w->files.by_expert ? w->dim[0]->size : 1, nfiles = 0;
	int64_t rest = 1, at = 0;
	char text[TESS_FILE_NAME];

	for (int32_t a = w->files.by_expert ? 2 : 1; a < w->ndim; a++)
		rest *= w->dim[a]->size;
	for (int64_t e = 0; e < experts; e++)
		for (int32_t i = 0; i < w->files.nparts; i++) {
			const struct tess_dim *d = w->dim[w->files.by_expert];
			int64_t n = rest * (w->files.nparts > 1 ? d->parts[i]->size : d->size);

			nfiles += check_gradient_file(o, golden, kind,
			                              tess_files_format(&w->files, e, i, text),
			                              have + at, n);
			at += n;
		}
	return nfiles;
}

struct golden { /* the data of a checkpoint */
	struct opened o;
	struct tess_safetensors *file;
	int32_t *ids, *labels; /* shifted */
	int64_t n, lengths[8], nsequences;
};

static int32_t *read_ids(const struct tess_safetensors *f, const char *name, int64_t n)
{
	int32_t *out = malloc(4 * (size_t)n);
	int64_t wide;

	for (int64_t i = 0; i < n; i++) {
		memcpy(&wide, (const char *)require_tensor(f, name)->data + 8 * i, 8);
		out[i] = (int32_t)wide;
	}
	return out;
}

static void read_golden(const char *name, struct golden *g)
{
	const struct tess_slice *ids;
	char path[600];

	open_golden(name, &g->o);
	snprintf(path, sizeof path, "%s/golden.safetensors", g->o.path);
	ck_assert_msg(!tess_safetensors_open(path, false, &g->file), "%s", tess_error());
	ids = require_tensor(g->file, "train.ids");
	g->nsequences = ids->shape[0];
	g->n = ids->shape[0] * ids->shape[1];
	g->ids = read_ids(g->file, "train.ids", g->n);
	g->labels = read_ids(g->file, "train.labels", g->n);
	for (int64_t i = 0; i < g->n; i++) /* labels of a golden are not shifted */
		g->labels[i] = (i + 1) % ids->shape[1] ? g->labels[i + 1] : -100;
	for (int64_t i = 0; i < ids->shape[0]; i++)
		g->lengths[i] = ids->shape[1];
}

static void close_golden(struct golden *g)
{
	free(g->ids);
	free(g->labels);
	tess_safetensors_close(g->file);
	tess_checkpoint_close(g->o.checkpoint);
}

static void compare_loss(const struct golden *golden, const char *name,
                         const struct lockstep_gradients *g)
{
	double sum = 0, count = 0, want;

	for (int64_t i = 0; i < g->nloss; i++) {
		sum += (double)g->loss[i];
		count += golden->labels[i] != -100;
		ck_assert(golden->labels[i] != -100 || g->loss[i] == 0);
	}
	memcpy(&want, require_tensor(golden->file, name)->data, 8);
	ck_assert_msg(fabs(sum / count + g->balance - want) <=
	                      3 * read_torch_error(&golden->o, "train.loss"),
	              "%s: %s: %.9g, not %.9g", golden->o.path, name, sum / count + g->balance,
	              want);
}

/* Checks a step whose loss is `loss`, and whose gradients are `kind`.NAME. */
static void check_step(const struct golden *golden, double balance, const char *loss,
                       const char *kind)
{
	struct lockstep how = { golden->o.model, &golden->o.source, "none", 1,
		                golden->ids,     golden->n,         true,   NULL };
	struct lockstep_step step = { .how = &how,
		                      .lengths = golden->lengths,
		                      .nsequences = golden->nsequences,
		                      .labels = golden->labels,
		                      .balance = balance };
	struct lockstep_gradients g;
	int64_t nfiles = 0, ngolden = 0;
	size_t dot = strlen(kind);

	ck_assert_msg(!lockstep_train(&step, &g), "%s", tess_error());
	compare_loss(golden, loss, &g);
	for (int32_t i = 0; i < g.program->nweights; i++)
		if (!g.program->weight[i]->table && g.data[i])
			nfiles += check_weight(&golden->o, golden->file, kind, g.program->weight[i],
			                       g.data[i]);
	for (size_t i = 0; i < tess_safetensors_count(golden->file); i++) {
		const char *name = tess_safetensors_at(golden->file, i)->name;

		ngolden += !strncmp(name, kind, dot) && name[dot] == '.';
	}
	ck_assert_int_eq(nfiles, ngolden);
	lockstep_free_gradients(&g);
}

START_TEST(gradients_are_those_of_torch)
{
	struct golden golden;

	read_golden(families[_i * THIN], &golden);
	check_step(&golden, 0, "train.loss_f64", "grad");
	if (tess_safetensors_find(golden.file, "train.loss_with_aux_f64"))
		check_step(&golden, 0.02, "train.loss_with_aux_f64", "grad_with_aux");
	close_golden(&golden);
}
END_TEST

/* ---- against one rank ------------------------------------------------------------------------ */

#define LAYER "model.layers.*."
#define STYLE(module, style) ",\"" module "\":\"" style "\""
#define EMBED STYLE("model.embed_tokens", "embedding_rowwise")
#define HEAD STYLE("lm_head", "colwise_rep")
#define ATTENTION(style) STYLE(LAYER "self_attn." style)
#define Q STYLE(LAYER "self_attn.q_proj", "colwise")
#define KV STYLE(LAYER "self_attn.k_proj", "colwise") STYLE(LAYER "self_attn.v_proj", "colwise")
#define O STYLE(LAYER "self_attn.o_proj", "rowwise")
#define GATE STYLE(LAYER "mlp.gate_proj", "colwise")
#define UP STYLE(LAYER "mlp.up_proj", "colwise")
#define DOWN STYLE(LAYER "mlp.down_proj", "rowwise")
#define MLP GATE UP DOWN
#define NORMS \
	STYLE(LAYER "input_layernorm", "sequence_parallel") \
	STYLE(LAYER "post_attention_layernorm", "sequence_parallel") \
	STYLE("model.norm", "sequence_parallel")
#define SCATTERS \
	STYLE("model.embed_tokens", "vocab_reduce_scatter") \
	STYLE(LAYER "self_attn.o_proj", "rowwise_reduce_scatter") \
	STYLE(LAYER "mlp.down_proj", "rowwise_reduce_scatter")
#define GATHERS \
	STYLE(LAYER "self_attn", "module_allgather") \
	STYLE(LAYER "mlp", "module_allgather")
#define NO_SPLIT_KV \
	STYLE(LAYER "self_attn.k_proj", "replicate") \
	STYLE(LAYER "self_attn.v_proj", "replicate")
#define ROWS_QKV \
	STYLE(LAYER "self_attn.q_proj", "rowwise") \
	STYLE(LAYER "self_attn.k_proj", "rowwise") \
	STYLE(LAYER "self_attn.v_proj", "rowwise")
#define WHOLE "prepare_input_output:in=replicate,out=replicate"
#define PLAN(styles) "{\"?none\":\"replicate\"" styles "}"
#define SEQUENCE_PARALLEL PLAN(Q KV GATE UP HEAD NORMS SCATTERS GATHERS)

static const struct {
	const char *mesh, *plan;
} plans[] = {
	{ "tp", PLAN(EMBED HEAD Q KV O MLP) },
	{ "tp", PLAN(EMBED HEAD Q NO_SPLIT_KV O MLP) },
	{ "tp", PLAN(EMBED HEAD KV O MLP) },
	{ "tp", SEQUENCE_PARALLEL },
	{ "tp", PLAN(Q KV GATE UP HEAD NORMS SCATTERS) },
	{ "tp", PLAN(Q GATE UP HEAD NORMS SCATTERS GATHERS) },
	{ "tp", PLAN(EMBED HEAD Q KV O STYLE(LAYER "mlp", "isolated")) },
	{ "tp", PLAN() },
	{ "tp", PLAN(STYLE("model.embed_tokens", "embedding_colwise:gather") Q KV O MLP) },
	{ "tp", PLAN(HEAD Q KV O MLP) },
	{ "tp", PLAN(EMBED HEAD Q KV O STYLE(LAYER "mlp.gate_proj", "rowwise")
	                     STYLE(LAYER "mlp.up_proj", "rowwise") DOWN) },
	{ "tp", PLAN(EMBED HEAD ROWS_QKV O MLP) },
	{ "tp", PLAN(EMBED HEAD STYLE(LAYER "self_attn.q_proj", "rowwise") O MLP) },
	{ "tp", PLAN(EMBED HEAD Q KV O UP DOWN) },
	{ "tp", PLAN(STYLE("lm_head", "rowwise") Q KV O MLP) },
	{ "tp", PLAN(EMBED STYLE("lm_head", "loss_parallel") Q KV O MLP) },
	{ "tp", PLAN(EMBED HEAD Q KV O MLP STYLE(LAYER "mlp", "negated_twice")) },
	{ "tp=1,dp", PLAN() },
	{ "dp=2,tp", PLAN(EMBED STYLE("lm_head", "loss_parallel") Q KV O MLP) },
	{ "dp=3,tp", SEQUENCE_PARALLEL },
	{ "tp=2,dp", SEQUENCE_PARALLEL },
};
enum { PLANS = sizeof plans / sizeof *plans };

/* several on a replica, and one that ranks share between unshared ones */
enum { SEQUENCES = 5, TOKENS = 3 + 34 + 1 + 4 + 2 };
static const int64_t some_lengths[SEQUENCES] = { 3, 34, 1, 4, 2 };

static tess_status train_some(const struct opened *o, const char *plan, const char *mesh,
                              int32_t times, double dropout, struct lockstep_gradients *out)
{
	const char *name = json_object_get(o->source.config, "n_vocab") ? "n_vocab" : "vocab_size";
	int64_t vocab = json_integer_value(json_object_get(o->source.config, name));
	int32_t ids[TOKENS], labels[TOKENS];
	struct lockstep how = { o->model, &o->source, plan, 1, ids, TOKENS, true, mesh };
	uint32_t state = 1;

	for (int i = 0; i < TOKENS; i++) {
		state = state * 1664525 + 1013904223;
		ids[i] = (int32_t)((state >> 8) % (uint32_t)vocab);
		labels[i] = state >> 28 ? (int32_t)((state >> 5) % (uint32_t)vocab) : -100;
	}
	return lockstep_train(&(struct lockstep_step){ .how = &how,
	                                               .lengths = some_lengths,
	                                               .nsequences = SEQUENCES,
	                                               .labels = labels,
	                                               .times = times,
	                                               .dropout = dropout },
	                      out);
}

static struct opened odd; /* the checkpoint llama-odd */
static struct lockstep_gradients want; /* its gradients on one rank */

static void train_on_one_rank(void)
{
	open_golden("llama-odd", &odd);
	ck_assert_msg(!train_some(&odd, "none", NULL, 0, 0, &want), "%s", tess_error());
}

static void close_one_rank(void)
{
	lockstep_free_gradients(&want);
	tess_checkpoint_close(odd.checkpoint);
}

/* Checks a geometry with 6 heads, 3 key-value heads, and sizes that no number of ranks divides. */
START_TEST(ranks_give_the_bits_of_one)
{
	static const int32_t ranks[] = { 3, 4, 2, 5, 6 };
	uint64_t hash = 0;
	struct lockstep_gradients have;
	char mesh[64], what[2048];

	for (int i = 0; i < (THIN > 1 ? 1 : _i < 4 ? 5 : 1 + _i % 2); i++) {
		snprintf(mesh, sizeof mesh, "%s=%d", plans[_i].mesh, (int)ranks[i]);
		snprintf(what, sizeof what, "%s on %s", plans[_i].plan, mesh);
		if (train_some(&odd, plans[_i].plan, mesh, 0, 0, &have)) {
			ck_assert_msg(i > 0, "%s: %s", what, tess_error());
			expect_part(tess_error(), "cannot be cut for");
			continue;
		}
		lockstep_compare_gradients(what, &want, &have);
		ck_assert(!tess_program_hash(have.program));
		ck_assert_msg(!hash || hash == have.program->hash[have.program->nrecords - 1],
		              "%s: other records than with %d ranks", what, (int)ranks[0]);
		hash = have.program->hash[have.program->nrecords - 1];
		lockstep_free_gradients(&have);
	}
}
END_TEST

START_TEST(families_give_the_bits_of_one)
{
	struct lockstep_gradients one, have;
	struct opened o;

	open_golden(families[_i * THIN], &o);
	ck_assert_msg(!train_some(&o, "none", NULL, 0, 0, &one), "%s", tess_error());
	ck_assert_msg(!train_some(&o, "tp+sp", "dp=2,tp=2", 0, 0, &have), "%s: %s", o.path,
	              tess_error());
	lockstep_compare_gradients(o.path, &one, &have);
	lockstep_free_gradients(&have);
	lockstep_free_gradients(&one);
	tess_checkpoint_close(o.checkpoint);
}
END_TEST

/*
 * Checks 8 query heads and 2 key-value heads: with 5 or 7 ranks, some ranks with equally many heads
 * exchange with fewer ranks, and so are not alike.
 */
START_TEST(ranks_share_a_head)
{
	struct lockstep_gradients one, have;
	struct opened o;

	open_golden("llama", &o);
	ck_assert_msg(!train_some(&o, "none", NULL, 0, 0, &one), "%s", tess_error());
	ck_assert_msg(!train_some(&o, "tp", _i ? "tp=7" : "tp=5", 0, 0, &have), "%s", tess_error());
	lockstep_compare_gradients("llama", &one, &have);
	lockstep_free_gradients(&have);
	lockstep_free_gradients(&one);
	tess_checkpoint_close(o.checkpoint);
}
END_TEST

/* Checks dropout of rows, tokens and heads that are partitioned; each site by itself. */
START_TEST(ranks_drop_the_same)
{
	static const struct {
		const char *mesh, *plan;
	} ways[] = {
		{ "tp=3", PLAN(STYLE("transformer.wte", "embedding_colwise:keep")
		                       STYLE("transformer.wpe", "embedding_colwise:keep")
		                               STYLE("transformer.h.*.ln_1", WHOLE)
		                                       STYLE("transformer.h.*.ln_2", WHOLE)
		                                               STYLE("transformer.ln_f", WHOLE)) },
		{ "dp=2,tp=2", "tp+sp" },
	};
	struct lockstep_gradients one, have;
	const struct tess_program *p;
	struct opened o;
	int nsame = 0, nsites = 0;

	open_golden("gpt2", &o);
	ck_assert_msg(!train_some(&o, "none", NULL, 0, 0.3, &one), "%s", tess_error());
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		ck_assert_msg(!train_some(&o, ways[i].plan, ways[i].mesh, 0, 0.3, &have), "%s",
		              tess_error());
		lockstep_compare_gradients(ways[i].plan, &one, &have);
		lockstep_free_gradients(&have);
	}
	p = one.program;
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *a = p->record[i];

		nsites += a->kind == TESS_OP_DROPOUT;
		for (int32_t k = 0; k < i && a->kind == TESS_OP_DROPOUT; k++)
			nsame += p->record[k]->kind == TESS_OP_DROPOUT &&
			         p->record[k]->num[TESS_DROPOUT_SITE] == a->num[TESS_DROPOUT_SITE];
	}
	ck_assert(nsites > 4 && nsame * 2 == nsites); /* each site in forward and backward */
	lockstep_free_gradients(&one);
	tess_checkpoint_close(o.checkpoint);
}
END_TEST

/* Checks that gradients of several steps are added in order, here to the gradients of one. */
START_TEST(steps_accumulate)
{
	static const char *const meshes[] = { "tp=1", "dp=2,tp=2" };
	struct lockstep_gradients one, have;
	struct opened o;

	open_golden("llama", &o);
	ck_assert_msg(!train_some(&o, "none", NULL, 0, 0, &one), "%s", tess_error());
	for (int32_t i = 0; i < one.program->nweights; i++)
		for (int64_t k = 0; k < tess_weight_count_elements(one.program->weight[i]); k++)
			one.data[i][k] += one.data[i][k];
	for (int i = 0; i < 2; i++) {
		ck_assert_msg(!train_some(&o, "tp", meshes[i], 2, 0, &have), "%s", tess_error());
		lockstep_compare_gradients(meshes[i], &one, &have);
		/* the head's layout requires full rows, which no rank needs here */
		ck_assert_int_ge(have.program->vocabulary_along, 0);
		lockstep_free_gradients(&have);
	}
	lockstep_free_gradients(&one);
	tess_checkpoint_close(o.checkpoint);
}
END_TEST

static const struct {
	const char *model, *mesh, *plan, *says;
} refused[] = {
	{ "llama", "tp=2", PLAN(EMBED HEAD KV O MLP STYLE(LAYER "self_attn.q_proj", "rowwise")),
	  "and both read one value" },
	{ "llama", "dp=6,tp=1", PLAN(), "5 sequences cannot be cut for 6 ranks along dp" },
	{ "qwen3", "tp=2",
	  PLAN(STYLE(LAYER "self_attn.q_norm", "prepare_input_output:in=shard(0),out=replicate")),
	  "a norm over heads of tokens that are cut" },
	{ "llama", "tp=2", PLAN(STYLE(LAYER "mlp", "negated_twice:inference")),
	  "style negated_twice calls a function that has no gradient" },
};

START_TEST(refuses)
{
	struct lockstep_gradients have;
	struct opened o;

	open_golden(refused[_i].model, &o);
	ck_assert_msg(train_some(&o, refused[_i].plan, refused[_i].mesh, 0, 0, &have) < 0,
	              "%s: not refused", refused[_i].plan);
	expect_part(tess_error(), refused[_i].says);
	tess_checkpoint_close(o.checkpoint);
}
END_TEST

/* Mixtures of experts, which have other records in training. */
static const char *const mixtures[] = { "mixtral", "qwen3_moe", "deepseek_v3" };
#define BY_EXPERT PLAN(STYLE(LAYER "mlp.experts", "grouped_gemm"))
/*
 * A plan in which the router and the shared experts read a slice of tokens, and the experts do not.
 */
#define BY_TOKENS "prepare_input_output:in=shard(0),out=replicate"
#define SLICE_FOR_TWO \
	PLAN(STYLE(LAYER "mlp.gate", BY_TOKENS) STYLE("?" LAYER "mlp.shared_experts", BY_TOKENS))
static const struct {
	const char *plan, *meshes[4];
} mixture_plans[] = {
	{ "tp", { "tp=2", "tp=3", "tp=4", "dp=2,tp=2" } },
	{ "tp+sp", { "tp=2", "tp=3", "tp=4", "dp=2,tp=2" } },
	{ "ep", { "tp=2", "tp=3", "tp=4", "dp=2,tp=2" } },
	{ BY_EXPERT, { "tp=6", "tp=8", "dp=3,tp=2" } },
	{ SLICE_FOR_TWO, { "tp=2", "tp=3", "tp=5", "dp=2,tp=2" } },
};
enum {
	MIXTURES = sizeof mixtures / sizeof *mixtures,
	MIXTURE_PLANS = sizeof mixture_plans / sizeof *mixture_plans
};

START_TEST(mixtures_give_the_bits_of_one_rank)
{
	struct lockstep_gradients one, have;
	struct opened o;
	char what[256];

	open_golden(mixtures[_i], &o);
	ck_assert_msg(!train_some(&o, "none", NULL, 0, 0, &one), "%s", tess_error());
	for (int i = 0; i < MIXTURE_PLANS; i++) {
		for (int k = (_i + i) % THIN; k < 4 && mixture_plans[i].meshes[k]; k += THIN) {
			const char *plan = mixture_plans[i].plan,
				   *mesh = mixture_plans[i].meshes[k];

			snprintf(what, sizeof what, "%s %s %s", mixtures[_i], plan, mesh);
			ck_assert_msg(!train_some(&o, plan, mesh, 0, 0, &have), "%s: %s", what,
			              tess_error());
			lockstep_compare_gradients(what, &one, &have);
			lockstep_free_gradients(&have);
		}
	}
	lockstep_free_gradients(&one);
	tess_checkpoint_close(o.checkpoint);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("backward", 120, &r);

	tess_option_add("weights", tess_weights_options);
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_unchecked_fixture(t, train_on_one_rank, close_one_rank);
	tcase_add_loop_test(t, gradients_are_those_of_torch, 0, (int)tess_up(FAMILIES, THIN));
	tcase_add_loop_test(t, ranks_give_the_bits_of_one, 0, PLANS);
	tcase_add_loop_test(t, families_give_the_bits_of_one, 0, (int)tess_up(FAMILIES, THIN));
	tcase_add_loop_test(t, ranks_share_a_head, 0, 2);
	tcase_add_test(t, ranks_drop_the_same);
	tcase_add_test(t, steps_accumulate);
	tcase_add_loop_test(t, refuses, 0, sizeof refused / sizeof *refused);
	tcase_add_loop_test(t, mixtures_give_the_bits_of_one_rank, 0, MIXTURES);
	return suite_end(r);
}

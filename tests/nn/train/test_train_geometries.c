/*
 * test_train_geometries.c - models of random sizes in training, in lockstep. The loss and all
 * gradients have the bits of one rank for any mesh, and for any plan: a preset, or one with other
 * styles for some modules; with dropout, and with weights gathered in tiles, too. The
 * gradients of norms over heads are also compared with differences of the loss.
 *
 * Environment: GEOMETRY_SEED (default 1), GEOMETRY_FIRST (0), GEOMETRIES (1) of each family.
 */
#include "tests/reference/lockstep.h"
#include "tests/support/draw.h"
#include "tests/support/geometry.h"
#include "tests/support/suite.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 4, LENGTH_MAX = 40, WAYS = THIN > 1 ? 1 : 2, RANKS = 8, REPLICAS = 3 };
enum { CHANGED_PLANS = 4, CHANGED_RANKS = 3, PLAN_TEXT = 1 << 16 };

struct step {
	int64_t lengths[SEQUENCES];
	int32_t ids[SEQUENCES * LENGTH_MAX], labels[SEQUENCES * LENGTH_MAX];
};

/* Draws sequences; returns the number of ids of the step. */
static int64_t draw_sequences(uint64_t *seed, int64_t vocabulary, struct step *s)
{
	int64_t n = 0;

	for (int i = 0; i < SEQUENCES; i++) {
		s->lengths[i] = 1 + (int64_t)draw_below(seed, i ? 12 : LENGTH_MAX);
		n += s->lengths[i];
	}
	for (int64_t i = 0; i < n; i++) {
		s->ids[i] = (int32_t)draw_below(seed, (uint64_t)vocabulary);
		s->labels[i] = draw_below(seed, 8) ? (int32_t)draw_below(seed, (uint64_t)vocabulary)
		                                   : -100;
	}
	return n;
}

/*
 * Draws a mesh, with as many ranks along tp as the model allows, and replicas; and a plan of the
 * model.
 */
static const char *draw_mesh_and_plan(uint64_t *seed, const struct geometry *g, char *mesh,
                                      size_t size)
{
	int32_t most = g->most_ranks < RANKS ? g->most_ranks : RANKS, n = 0;

	snprintf(mesh, size, "dp=%d,tp=%d", 1 + (int)draw_below(seed, REPLICAS),
	         1 + (int)draw_below(seed, (uint64_t)most));
	while (g->model->presets[n].name)
		n++;
	return g->model->presets[draw_below(seed, (uint64_t)n)].name;
}

/* Draws the bytes of weights that are gathered at once, from a row to a layer; 0: they stay. */
static uint64_t draw_tile(uint64_t *seed)
{
	uint64_t below = (uint64_t)1 << draw_below(seed, 16);

	return draw_below(seed, 4) ? 1 + draw_below(seed, below) : 0;
}

/* ---- plans ----------------------------------------------------------------------------------- */

#define BY_TOKENS "prepare_input_output:in=shard(0),out=replicate"
static const char *const linear_styles[] = { "colwise",     "rowwise", "replicate",
	                                     "colwise_rep", BY_TOKENS, "rowwise_reduce_scatter" };
static const char *const norm_styles[] = { "sequence_parallel", "replicate" };
static const char *const block_styles[] = { "isolated", "module_allgather", BY_TOKENS };

#define DRAW(seed, list) list[draw_below(seed, sizeof(list) / sizeof *(list))]

struct drawn_plan { /* a plan {pattern: style} */
	char text[PLAN_TEXT];
	size_t len;
};

static void append_plan_rule(struct drawn_plan *p, const char *module, size_t len,
                             const char *style)
{
	p->len += (size_t)snprintf(p->text + p->len, sizeof p->text - p->len, "%s\"%.*s\":\"%s\"",
	                           p->len > 1 ? "," : "", (int)len, module, style);
	ck_assert_uint_lt(p->len, sizeof p->text - 1);
}

static bool has_rule(const struct drawn_plan *p, const char *module, size_t len)
{
	char key[256];

	snprintf(key, sizeof key, "\"%.*s\":", (int)len, module);
	return strstr(p->text, key) != NULL;
}

/* Draws a style for about one in `rarely` of the modules that multiply or norm. */
static void draw_module_rules(uint64_t *seed, const struct tess_program *program, uint64_t rarely,
                              struct drawn_plan *p)
{
	for (int32_t i = 0; i < program->nweights; i++) {
		const struct tess_weight *w = program->weight[i];
		const char *dot = strrchr(w->name, '.'), *block = dot;
		size_t len = dot ? (size_t)(dot - w->name) : strlen(w->name);

		while (block && block > w->name && block[-1] != '.')
			block--;
		if (!has_rule(p, w->name, len) && !draw_below(seed, rarely))
			append_plan_rule(p, w->name, len,
			                 w->ndim > 1 ? DRAW(seed, linear_styles)
			                             : DRAW(seed, norm_styles));
		if (!block || block == w->name)
			continue;
		len = (size_t)(block - 1 - w->name);
		if (strstr(block, "proj") && !has_rule(p, w->name, len) &&
		    !draw_below(seed, 4 * rarely))
			append_plan_rule(p, w->name, len, DRAW(seed, block_styles));
	}
}

/* Draws rules of modules, and a preset without dimensions of its own for all others. */
static void draw_changed_plan(uint64_t *seed, const struct geometry *g,
                              const struct tess_program *program, struct drawn_plan *p)
{
	uint64_t n = 0;

	*p = (struct drawn_plan){ .text = "{", .len = 1 };
	draw_module_rules(seed, program, 2 + draw_below(seed, 12), p);
	while (g->model->presets[n].name)
		n++;
	for (const struct tess_rule *rule = g->model->presets[draw_below(seed, n)].rules;
	     rule->pattern; rule++)
		if (!strchr(rule->pattern, ':') &&
		    !has_rule(p, rule->pattern, strlen(rule->pattern)))
			append_plan_rule(p, rule->pattern, strlen(rule->pattern), rule->style);
	p->text[p->len++] = '}';
	p->text[p->len] = 0;
}

/* Returns the number of plans that are accepted; a plan with two mismatched modules is refused. */
static int compare_changed_plans(uint64_t *seed, const char *family, const struct geometry *g,
                                 const struct lockstep_step *step,
                                 const struct lockstep_gradients *want)
{
	static struct drawn_plan plan;
	struct lockstep how = *step->how;
	struct lockstep_step changed = *step;
	struct lockstep_gradients have;
	char mesh[32], what[PLAN_TEXT + 128];
	int ran = 0;

	how.plan = plan.text;
	how.mesh = mesh;
	changed.how = &how;
	changed.tile = draw_tile(seed);
	for (int i = 0; i < CHANGED_PLANS; i++) {
		draw_changed_plan(seed, g, want->program, &plan);
		snprintf(mesh, sizeof mesh, "dp=%d,tp=%d", 1 + (int)draw_below(seed, 2),
		         2 + (int)draw_below(seed, CHANGED_RANKS - 1));
		snprintf(what, sizeof what, "%s, plan %s on %s, tiles of %" PRIu64 " bytes", family,
		         plan.text, mesh, changed.tile);
		if (lockstep_train(&changed, &have))
			continue;
		lockstep_compare_gradients(what, want, &have);
		lockstep_free_gradients(&have);
		ran++;
	}
	return ran;
}

/* ---- a model ------------------------------------------------------------------------------ */

static void compare_gradients_of_ways(const char *family, uint64_t seed)
{
	struct lockstep_gradients want, have;
	struct geometry g;
	struct step s;
	char mesh[32], what[160];
	int64_t n;

	ck_assert_msg(!geometry_open(family, seed, false, &g), "%s", tess_error());
	n = draw_sequences(&seed, g.vocabulary, &s);

	struct lockstep how = { g.model, &g.source, "none", 1, s.ids, n, true, NULL };
	struct lockstep_step step = { .how = &how,
		                      .lengths = s.lengths,
		                      .nsequences = SEQUENCES,
		                      .labels = s.labels,
		                      .dropout = draw_below(&seed, 2) ? 0.2 : -1 };

	ck_assert_msg(!lockstep_train(&step, &want), "%s", tess_error());
	for (int i = 0; i < WAYS; i++) {
		how.plan = draw_mesh_and_plan(&seed, &g, mesh, sizeof mesh);
		how.mesh = mesh;
		step.tile = draw_tile(&seed);
		snprintf(what, sizeof what, "%s, plan %s on %s, tiles of %" PRIu64 " bytes", family,
		         how.plan, mesh, step.tile);
		if (lockstep_train(&step, &have)) {
			expect_part(tess_error(), "cannot be cut for");
			continue;
		}
		lockstep_compare_gradients(what, &want, &have);
		lockstep_free_gradients(&have);
	}
	printf("%s: %d of %d changed plans fit together\n", family,
	       compare_changed_plans(&seed, family, &g, &step, &want), CHANGED_PLANS);
	lockstep_free_gradients(&want);
	geometry_close(&g);
}

/* ---- norms over heads, with weights and biases ----------------------------------------------- */

/* Returns whether a small model norms heads; those of a few elements are normed to near -1 or 1. */
static bool has_normed_heads(const struct geometry *g)
{
	int64_t heads = json_integer_value(json_object_get(g->config, "num_attention_heads"));
	int64_t hidden = json_integer_value(json_object_get(g->config, "hidden_size"));

	return json_is_true(json_object_get(g->config, "qk_layernorm")) && g->dtype == TESS_F32 &&
	       heads > 2 && hidden / heads > 5 && hidden < 50;
}

static void open_normed_phi(struct geometry *g)
{
	uint64_t seed = 1;

	ck_assert_msg(!geometry_open("phi", seed, false, g), "%s", tess_error());
	while (!has_normed_heads(g)) {
		geometry_close(g);
		ck_assert_msg(!geometry_open("phi", ++seed, false, g), "%s", tess_error());
	}
}

static double compute_mean_loss(const struct lockstep_step *step)
{
	struct lockstep_gradients g;
	double sum = 0, count = 0;

	ck_assert_msg(!lockstep_train(step, &g), "%s", tess_error());
	for (int64_t i = 0; i < g.nloss; i++) {
		sum += (double)g.loss[i];
		count += step->labels[i] != -100;
	}
	lockstep_free_gradients(&g);
	return sum / count;
}

/*
 * Returns the loss after every second element of `of` grows by h and every other one shrinks.
 * Leaves the elements rounded.
 */
static double compute_shifted_loss(const struct lockstep_step *step, struct geometry *g,
                                   const struct tess_weight *of, float h)
{
	struct tess_view v;
	double loss;

	ck_assert(!g->source.find(g, of->name, &v));
	for (int64_t i = 0; i < v.shape[0]; i++)
		((float *)v.data)[i] += i % 2 ? -h : h;
	loss = compute_mean_loss(step);
	for (int64_t i = 0; i < v.shape[0]; i++)
		((float *)v.data)[i] -= i % 2 ? -h : h;
	return loss;
}

/* Compares the derivative of the loss in one direction with that by the gradient. */
static void compare_with_differences(const struct lockstep_step *step, struct geometry *g,
                                     const struct tess_weight *of, const float *gradient)
{
	static const float h = 0.02f;
	double want = (compute_shifted_loss(step, g, of, h) -
	               compute_shifted_loss(step, g, of, -h)) /
	              (2 * (double)h),
	       have = 0, sum = 0;

	for (int64_t i = 0; i < tess_weight_count_elements(of); i++) {
		have += (double)(i % 2 ? -gradient[i] : gradient[i]);
		sum += fabs((double)gradient[i]);
	}
	ck_assert_msg(sum > 0 && fabs(have - want) < 0.01 * sum, "%s: %g, not %g", of->name, have,
	              want);
}

START_TEST(norms_over_heads_with_biases)
{
	struct lockstep_gradients one, have;
	struct geometry g;
	struct step s;
	uint64_t seed = 1;
	int nnorms = 0;

	open_normed_phi(&g);

	int64_t n = draw_sequences(&seed, g.vocabulary, &s);
	struct lockstep how = { g.model, &g.source, "none", 1, s.ids, n, true, NULL };
	struct lockstep_step step = {
		.how = &how, .lengths = s.lengths, .nsequences = SEQUENCES, .labels = s.labels
	};

	ck_assert_msg(!lockstep_train(&step, &one), "%s", tess_error());
	how.plan = "tp+sp";
	how.mesh = "dp=2,tp=3";
	ck_assert_msg(!lockstep_train(&step, &have), "%s", tess_error());
	lockstep_compare_gradients("phi with norms of heads", &one, &have);
	lockstep_free_gradients(&have);
	how.plan = "none";
	how.mesh = NULL;
	for (int32_t i = 0; i < one.program->nweights; i++)
		if (strstr(one.program->weight[i]->name, "self_attn.") &&
		    strstr(one.program->weight[i]->name, "_layernorm.")) {
			compare_with_differences(&step, &g, one.program->weight[i], one.data[i]);
			nnorms++;
		}
	ck_assert_int_gt(nnorms, 0);
	lockstep_free_gradients(&one);
	geometry_close(&g);
}
END_TEST

static uint64_t read_environment(const char *name, uint64_t preset)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : preset;
}

START_TEST(ways_give_the_bits_of_one_rank)
{
	uint64_t seed = read_environment("GEOMETRY_SEED", 1),
		 first = read_environment("GEOMETRY_FIRST", 0);
	uint64_t count = read_environment("GEOMETRIES", 1);

	for (uint64_t i = first; i < first + count; i++)
		compare_gradients_of_ways(geometry_get_family(_i),
		                          seed * 1000003 + i * 101 + (uint64_t)_i);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("train_geometries", 120, &r);

	tcase_add_loop_test(t, ways_give_the_bits_of_one_rank, 0, geometry_count_families());
	tcase_add_test(t, norms_over_heads_with_biases);
	return suite_end(r);
}

/* parts.c - the parts of a style's test: each module alone, and modules of decoders. */
#include "style.h"

#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

#define N(n) (UINT32_C(1) << (n))
#define ALL (N(1) | N(2) | N(3) | N(4) | N(5) | N(6) | N(7) | N(8))

static conform_run run_style_forward, run_style_gradients, run_style_decoders;

const struct conform_part conform_style_parts[] = {
	{ "functions", "layouts are valid, repeatable, and refused with a reason",
	  conform_run_style_functions, .ranks = ALL, .quick_ranks = N(1) | N(2) | N(3) | N(8) },
	{ "refusals", "odd configurations and parameters", conform_run_style_refusals,
	  .ranks = N(1) | N(2) | N(5), .quick_ranks = N(2) },
	{ "forward", "each kind of module, each placement of its input, to the bit",
	  run_style_forward, .ranks = ALL, .quick_ranks = N(1) | N(2) | N(3) | N(8) },
	{ "gradients", "losses and gradients, to the bit", run_style_gradients, .ranks = ALL,
	  .quick_ranks = N(2) | N(3) },
	{ "decoders", "grouped heads, tied embeddings, fused parts", run_style_decoders,
	  .ranks = ALL, .quick_ranks = N(2) | N(3) },
	{ "life", "open and close, two thousand times", conform_run_style_life, .ranks = N(1),
	  .quick_ranks = N(1) },
};
const int32_t conform_nstyle_parts = sizeof conform_style_parts / sizeof *conform_style_parts;

/* ---- one program ----------------------------------------------------------------------------- */

struct trials { /* of one rank */
	struct conform_rank *me;
	struct conform_style style;
	struct conform_mesh mesh, alone; /* alone: a group of this rank */
	enum conform_role role;
	bool training;
	int32_t nsequences;
	struct conform_values want; /* of one rank without a plan; on rank 0 */
	unsigned nran, nrefused; /* programs of the current kind of module */
	char refusal[CONFORM_TEXT]; /* the first message */
};

static const char *get_mesh_name(enum conform_role role)
{
	return role == CONFORM_DATA ? "dp" : role == CONFORM_STAGE ? "pp" : "tp";
}

static tess_status open_trials(struct trials *t, struct conform_rank *me, bool training)
{
	tess_status st;

	*t = (struct trials){ .me = me, .training = training, .nsequences = 3 };
	st = conform_style_find(me->job->style, &t->style);
	if (!st)
		st = tess_group_split(me->group, me->rank, 0, "alone", &t->alone.group);
	if (st)
		return st;
	conform_set_activity(me, "layout() of modules of all kinds");
	t->role = conform_style_find_role(&t->style, me->n);
	t->alone.shape = tess_mesh_shape_make("tp", 1);
	t->alone.along[0] = t->alone.group;
	t->mesh.group = me->group;
	t->mesh.shape = tess_mesh_shape_make(get_mesh_name(t->role), me->n);
	t->mesh.shape = tess_mesh_shape_complete(&t->mesh.shape);
	t->mesh.along[0] = me->group;
	t->mesh.along[1] = t->alone.group;
	if (t->role == CONFORM_DATA)
		t->nsequences = CONFORM_RANKS;
	return TESS_OK;
}

static void close_trials(struct trials *t)
{
	conform_values_free(&t->want);
	tess_group_close(t->alone.group);
}

static tess_status compute_values(const struct trials *t, const struct conform_mesh *mesh,
                                  const struct conform_model *m, const char *plan, bool *began,
                                  struct conform_values *out)
{
	return t->training ? conform_compute_gradients(mesh, m, plan, t->nsequences, began, out)
	                   : conform_compute_logits(mesh, m, plan, began, out);
}

/* Computes what is expected, on every rank by itself. */
static tess_status compute_expected(struct trials *t, const struct conform_model *m)
{
	bool began;

	conform_values_free(&t->want);
	t->nran = t->nrefused = 0;
	conform_set_activity(t->me, "one rank without a plan");
	return compute_values(t, &t->alone, m, "none", &began, &t->want);
}

/* Adds a refusal that has another status than it may have. */
static void add_bad_refusal(const struct trials *t, tess_status st, const char *text)
{
	const char *rule = "a module that a style is not for is refused with TESS_EINVAL or "
			   "TESS_ENOTSUP";

	if (st == TESS_EMISMATCH)
		rule = "layout(), partition_param(), prepare_input() and prepare_output() give the "
		       "same on every rank";
	if (st == TESS_EABI)
		rule = "a function of a style returns a status, and leaves values that calls of "
		       "the host made";
	conform_add_fault(t->me, "%s: %s. The rule: %s", tess_status_name(st), text, rule);
}

/* Checks a refusal; the message of the first is kept. */
static void check_refusal(struct trials *t, const char *module, tess_status st)
{
	const char *text = tess_error();

	if (!t->nrefused++)
		snprintf(t->refusal, sizeof t->refusal, "%s", text);
	if (t->me->rank)
		return;
	if (st != TESS_EINVAL && st != TESS_ENOTSUP)
		add_bad_refusal(t, st, text);
	else if (!strstr(text, module) && !strstr(text, "source"))
		conform_add_fault(
			t->me, "\"%s\". The rule: the message of a refusal names the module", text);
}

/* Returns the functions of the style that may have changed a value. */
static const char *get_computing_functions(const struct tess_style *s)
{
	return s->prepare_input && s->prepare_output ? "prepare_input() and prepare_output() keep"
	       : s->prepare_input                    ? "prepare_input() keeps"
	       : s->prepare_output                   ? "prepare_output() keeps"
	                                             : "layout() and partition_param() keep";
}

/* Runs a plan, and compares its values with the expected ones. */
static tess_status try_plan(struct trials *t, const struct conform_model *m, const char *module,
                            const char *plan)
{
	struct conform_values have = { 0 };
	char text[CONFORM_TEXT];
	bool began;
	tess_status st = compute_values(t, &t->mesh, m, plan, &began, &have);

	t->me->state->ncases++;
	t->nran += began;
	if (st && !began) {
		check_refusal(t, module, st);
		return TESS_OK;
	}
	if (!st && !t->me->rank &&
	    !conform_values_are_equal(&t->want, &have, t->me->job->tolerance, text))
		conform_add_fault(t->me,
		                  "%s. The rule: %s values: they are those of one rank without "
		                  "a plan%s",
		                  text, get_computing_functions(t->style.table),
		                  t->me->job->tolerance > 0 ? "" : ", to the bit");
	conform_values_free(&have);
	return st;
}

/* ---- one module ------------------------------------------------------------------------------ */

static const struct {
	const char *name, *kind; /* kind: as in struct tess_site */
	int32_t module;
	int32_t op; /* of CONFORM_BLOCK */
	const char *param; /* the style is for this parameter only; NULL: for the module */
} modules[] = {
	{ "a linear module", "linear", CONFORM_LINEAR, CONFORM_GLU, NULL },
	{ "a linear module with a bias", "linear", CONFORM_BIASED, CONFORM_GLU, NULL },
	{ "a linear module of two fused halves", "linear", CONFORM_FUSED, CONFORM_GLU, NULL },
	{ "a norm", "norm", CONFORM_NORM, CONFORM_GLU, NULL },
	{ "an embedding", "embedding", CONFORM_EMBEDDING, CONFORM_GLU, NULL },
	{ "a module with a GLU", "module", CONFORM_BLOCK, CONFORM_GLU, NULL },
	{ "a module with a sigmoid", "module", CONFORM_BLOCK, CONFORM_SIGMOID, NULL },
	{ "experts", "experts", CONFORM_EXPERTS, CONFORM_GLU, NULL },
	{ "gate_up_proj of experts", "experts", CONFORM_EXPERTS, CONFORM_GLU, "gate_up_proj" },
	{ "down_proj of experts", "experts", CONFORM_EXPERTS, CONFORM_GLU, "down_proj" },
};
enum { MODULES = sizeof modules / sizeof *modules, TURNS = 5 };

static const char *get_place_name(char place)
{
	return place == 'R'   ? "replicated"
	       : place == '0' ? "cut by tokens"
	       : place == '1' ? "cut by columns"
	                      : "partial";
}

/* Formats the plan that gives a parameter of experts the style, and the other one what fits it. */
static void format_experts_plan(const struct trials *t, const char *param, const char *source,
                                size_t size, char *out)
{
	bool first = !strcmp(param, "gate_up_proj");

	snprintf(out, size,
	         "{\"source\":\"%s\",\"gate\":\"local\",\"mod\":\"moe_tp_experts\","
	         "\"mod.gate_up_proj\":\"%s\",\"mod.down_proj\":\"%s\"}",
	         source, first ? t->style.spec : "moe_tp_gate_up_colwise",
	         first ? "moe_tp_down_rowwise" : t->style.spec);
}

/* Formats the plan that gives "mod" the style and its input a place. */
static void format_plan(const struct trials *t, int32_t i, const struct conform_model *m,
                        char place, size_t size, char *out)
{
	const char *source = conform_model_get_source_style(m->module, place);

	if (modules[i].param)
		format_experts_plan(t, modules[i].param, source, size, out);
	else if (t->role == CONFORM_TENSOR)
		snprintf(out, size, "{\"source\":\"%s\",\"mod\":\"%s\"%s}", source, t->style.spec,
		         m->module == CONFORM_EXPERTS ? ",\"gate\":\"local\"" : "");
	else
		snprintf(out, size, "{\"%s\":{\"mod\":\"%s\"}}", get_mesh_name(t->role),
		         t->style.spec);
}

static tess_status try_module(struct trials *t, int32_t i, const struct conform_model *m,
                              char place)
{
	char plan[1024];
	const int64_t *size = m->size;

	format_plan(t, i, m, place, sizeof plan, plan);
	conform_set_activity(t->me, "%s, input %s, %lld token%s, vocabulary %lld, %lld x %lld",
	                     modules[i].name, get_place_name(place),
	                     (long long)size[CONFORM_TOKENS], size[CONFORM_TOKENS] == 1 ? "" : "s",
	                     (long long)size[CONFORM_VOCABULARY], (long long)size[CONFORM_IN],
	                     (long long)size[CONFORM_OUT]);
	return try_plan(t, m, "mod", plan);
}

/* Sets sizes below, at and above the number of ranks, in one of the orders of a rotation. */
static void set_sizes(int32_t nranks, int turn, int64_t size[CONFORM_SIZES])
{
	const int64_t sizes[TURNS] = { nranks > 1 ? nranks - 1 : 1, nranks, 2 * nranks,
		                       2 * nranks + 1, 13 };

	for (int i = 0; i < CONFORM_SIZES; i++)
		size[i] = sizes[(turn + i * (turn % 2 ? 1 : 2)) % TURNS];
}

/* Tries a module of these sizes with every place of its input. */
static tess_status try_places(struct trials *t, int32_t i, int turn)
{
	const char *at = modules[i].module == CONFORM_EMBEDDING ? "R0" : "R01P";
	int64_t size[CONFORM_SIZES];
	struct conform_model m;
	tess_status st;

	set_sizes(t->me->n, turn, size);
	st = conform_model_open(modules[i].module, modules[i].op, size, &m);
	if (!st)
		st = compute_expected(t, &m);
	for (; *at && !st; at++)
		if (t->role == CONFORM_TENSOR || *at == 'R')
			st = try_module(t, i, &m, *at);
	conform_model_close(&m);
	return st;
}

struct usefulness { /* programs of a job that ran, and the first refusal */
	bool ran, cuts, ran_cut; /* cuts: a parameter of a kind of module; ran_cut: such modules */
	bool cuts_other; /* a parameter of modules other than experts */
	char module[64], refusal[CONFORM_TEXT];
};

/* A style that cuts other modules, too, need not fit a single parameter of experts. */
static void note_runs(const struct trials *t, int32_t i, struct usefulness *u)
{
	bool cuts = conform_style_cuts(&t->style, t->me->n, modules[i].kind);

	u->ran = u->ran || t->nran;
	u->cuts_other = u->cuts_other || (cuts && strcmp(modules[i].kind, "experts") != 0);
	u->ran_cut = u->ran_cut || (cuts && t->nran && !(modules[i].param && u->cuts_other));
	if (t->nrefused && (!*u->refusal || (cuts && !u->cuts))) {
		snprintf(u->module, sizeof u->module, "%s", modules[i].name);
		snprintf(u->refusal, sizeof u->refusal, "%s", t->refusal);
	}
	u->cuts = u->cuts || cuts;
}

/* Notes that a kind of module, whose training is refused, runs forward: that is no fault. */
static tess_status note_untrained(struct trials *t, int32_t i, int turn)
{
	char refusal[CONFORM_TEXT];
	tess_status st;

	snprintf(refusal, sizeof refusal, "%s", t->refusal);
	t->training = false;
	st = try_places(t, i, turn);
	t->training = true;
	if (!st && t->nran && !*t->me->state->note)
		snprintf(t->me->state->note, sizeof t->me->state->note,
		         "%s does not train: %.1700s", modules[i].name, refusal);
	return st;
}

/* Checks that the style runs on a module whose parameters it cuts, or on any if it cuts none. */
static void check_usefulness(const struct trials *t, const struct usefulness *u)
{
	if (t->me->rank || (u->cuts ? u->ran_cut : u->ran))
		return;
	conform_set_activity(t->me, "%s", u->module);
	conform_add_fault(t->me,
	                  "every program is refused: %s. The rule: layout() and "
	                  "partition_param() agree, and some module that the style %s runs with "
	                  "it",
	                  u->refusal, u->cuts ? "cuts" : "accepts");
}

/*
 * Returns whether programs of this kind of module exist. Logits of fused parts have no loss; a
 * decoder has fused weights. Styles for replicas are not tried on single parameters.
 */
static bool has_programs(const struct trials *t, int32_t i)
{
	return (!t->training || modules[i].module != CONFORM_FUSED) &&
	       (t->role == CONFORM_TENSOR || !modules[i].param);
}

static tess_status run_modules(struct conform_rank *me, bool training)
{
	int turns = me->job->quick || training ? 2 : TURNS;
	struct usefulness u = { 0 };
	struct trials t;
	tess_status st = open_trials(&t, me, training);
	bool runs = t.role == CONFORM_TENSOR || (t.role == CONFORM_DATA && training);

	for (int32_t i = 0; i < MODULES && runs && !st; i++)
		for (int turn = 0; turn < turns && !st && has_programs(&t, i); turn++) {
			int sizes = turn ? 2 * turn + 1 : 0;

			st = try_places(&t, i, sizes);
			if (!st)
				note_runs(&t, i, &u);
			if (!st && training && !t.nran && t.nrefused)
				st = note_untrained(&t, i, sizes);
		}
	if (!st && runs && training == (t.role == CONFORM_DATA)) /* else it may be for one */
		check_usefulness(&t, &u);
	close_trials(&t);
	return st;
}

static tess_status run_style_forward(struct conform_rank *me)
{
	return run_modules(me, false);
}

static tess_status run_style_gradients(struct conform_rank *me)
{
	return run_modules(me, true);
}

/* ---- decoders -------------------------------------------------------------------------------- */

/* Modules that have the style; several share it, as q, k and v must. */
static const char *const patterns[][4] = {
	{ "model.embed_tokens" },
	{ "lm_head" },
	{ "model.embed_tokens", "lm_head" },
	{ "model.norm" },
	{ "model.layers.*.input_layernorm" },
	{ "model.layers.*.self_attn" },
	{ "model.layers.*.self_attn.q_proj", "model.layers.*.self_attn.k_proj",
	  "model.layers.*.self_attn.v_proj" },
	{ "model.layers.*.self_attn.qkv_proj" },
	{ "model.layers.*.self_attn.o_proj" },
	{ "model.layers.*.mlp" },
	{ "model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj" },
	{ "model.layers.*.mlp.gate_up_proj" },
	{ "model.layers.*.mlp.down_proj" },
	{ "model.layers.1" },
};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

static tess_status try_pattern(struct trials *t, const struct conform_model *m, int32_t decoder,
                               int32_t i)
{
	char plan[1024];
	size_t n;

	n = (size_t)snprintf(plan, sizeof plan, "{\"%s\":{", get_mesh_name(t->role));
	for (int k = 0; k < 4 && patterns[i][k] && n < sizeof plan; k++)
		n += (size_t)snprintf(plan + n, sizeof plan - n, "%s\"?%s\":\"%s\"", k ? "," : "",
		                      patterns[i][k], t->style.spec);
	if (n >= sizeof plan - 3)
		return tess_fail(TESS_EINVAL, "%s: the configuration is too long", t->style.spec);
	strcpy(plan + n, "}}");
	conform_set_activity(t->me, "%s, %s%s%s%s", conform_decoder_get_family(decoder),
	                     patterns[i][0], patterns[i][1] ? " and " : "",
	                     patterns[i][1] ? patterns[i][1] : "", t->training ? ", training" : "");
	return try_plan(t, m, "", plan);
}

/*
 * Returns whether the bits of a pattern are those of one rank. In training they are not, if hooks
 * turn one op of several weights into several: gradients are added in another order (docs/ops.md).
 */
static bool is_comparable(const struct trials *t, int32_t i)
{
	const struct tess_style *s = t->style.table;

	return !t->training || !patterns[i][1] || (!s->prepare_input && !s->prepare_output);
}

/* Tries the style on the modules of a decoder that has them. */
static tess_status try_decoder(struct trials *t, int32_t decoder)
{
	struct conform_model m;
	tess_status st = conform_decoder_open(decoder, &m);
	bool stages = t->role == CONFORM_STAGE;

	if (!st)
		st = compute_expected(t, &m);
	for (int32_t i = 0; i < PATTERNS && !st; i++) {
		bool stage = !strcmp(patterns[i][0], "model.layers.1");

		if (stage == stages && is_comparable(t, i))
			st = try_pattern(t, &m, decoder, i);
	}
	conform_model_close(&m);
	return st;
}

static tess_status run_style_decoders(struct conform_rank *me)
{
	tess_status st = TESS_OK;

	for (int training = 0; training < 2 && !st; training++) {
		struct trials t;

		st = open_trials(&t, me, training);
		if (st)
			return st;
		for (int32_t i = 0; i < CONFORM_DECODERS && !st; i++)
			if (t.role == CONFORM_TENSOR || (t.role == CONFORM_DATA && training) ||
			    (t.role == CONFORM_STAGE && me->n == 2))
				st = try_decoder(&t, i);
		close_trials(&t);
	}
	return st;
}

/*
 * test_layers.c - what families compute: a model of one layer in training, as an expression. Other
 * families and settings have a golden checkpoint in tests/data/goldens.
 */
#include "core/registry/registry.h"
#include "nn/compile/compile.h"
#include "nn/program/plan.h"
#include "tests/reference/lockstep.h"
#include "tests/support/suite.h"

#include <check.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { VALUES = 64, TOKENS = 3 };

/* Finds no tensor: the shapes are the model's. */
static tess_status find_shape_of_model(void *self, const char *name, struct tess_view *out)
{
	(void)self, (void)name;
	*out = (struct tess_view){ .dtype = TESS_F32, .ndim = -1 };
	return TESS_OK;
}

/* ---- expressions ----------------------------------------------------------------------------- */

struct expression {
	const struct tess_program *p;
	int32_t nrecords; /* those that the logits need */
	const struct tess_tensor
		*named[VALUES]; /* values with several readers, in order: a, b, ... */
	int nnamed;
	char text[2048];
	size_t len;
};

__attribute__((format(printf, 2, 3))) static void print_text(struct expression *e, const char *fmt,
                                                             ...)
{
	va_list list;

	va_start(list, fmt);
	e->len += (size_t)vsnprintf(e->text + e->len, sizeof e->text - e->len, fmt, list);
	va_end(list);
	ck_assert_uint_lt(e->len, sizeof e->text);
}

/* Finds the record that computes x and which of its outs x is; NULL: an input of the program. */
static const struct tess_record *find_origin(const struct expression *e,
                                             const struct tess_tensor *x, int32_t *out)
{
	for (int32_t i = 0; i < e->nrecords; i++)
		for (*out = 0; *out < e->p->record[i]->nout; ++*out)
			if (e->p->record[i]->out[*out] == x)
				return e->p->record[i];
	return NULL;
}

/* Counts the values that are computed from x. */
static int count_value_readers(const struct expression *e, const struct tess_tensor *x)
{
	int n = 0;

	for (int32_t i = 0; i < e->nrecords; i++)
		for (int32_t k = 0; k < e->p->record[i]->nin; k++)
			n += e->p->record[i]->in[k] == x ? e->p->record[i]->nout : 0;
	return n;
}

/* Writes the module of a parameter, without those around it. */
static void print_module(struct expression *e, const struct tess_weight *w)
{
	const char *end = strrchr(w->name, '.'), *from = end;

	while (from > w->name && from[-1] != '.')
		from--;
	print_text(e, "%.*s", (int)(end - from), from);
}

static void print_operator(struct expression *e, const struct tess_record *rec, int32_t out)
{
	static const char *const names[TESS_REC_KINDS] = {
		[TESS_OP_ADD] = "add",         [TESS_OP_BIAS] = "bias",
		[TESS_OP_ROPE] = "rope",       [TESS_OP_ATTENTION] = "attend",
		[TESS_OP_GLU] = "glu",         [TESS_OP_DROPOUT] = "dropout",
		[TESS_OP_ROUTE] = "route",     [TESS_OP_EXPERTS] = "experts",
		[TESS_OP_COMBINE] = "combine", [TESS_OP_MUL] = "multiply",
		[TESS_OP_ROW_DOT] = "dot",     [TESS_OP_CLAMP] = "clamp",
		[TESS_REC_JOIN] = "join",
	};
	double rate = rec->kind == TESS_OP_ATTENTION ? rec->num[TESS_ATTENTION_RATE]
	              : rec->kind == TESS_OP_DROPOUT ? rec->num[TESS_DROPOUT_RATE]
	                                             : 0;

	if (rec->kind == TESS_OP_NORM) /* of the elements of a head, if it has a run */
		print_text(e, "%s%s:", rec->num[TESS_NORM_RUN] > 0 ? "heads_" : "",
		           rec->num[TESS_NORM_KIND] == TESS_LAYER ? "layer" : "rms");
	if (rec->kind == TESS_OP_SCALE)
		print_text(e, "%g", rec->num[TESS_SCALE_FACTOR]);
	else if (rec->kind == TESS_REC_SPLIT || rec->kind == TESS_REC_SPLIT_HEADS)
		print_text(e, "part%d", (int)out);
	else if (names[rec->kind])
		print_text(e, "%s", names[rec->kind]);
	else if (out < rec->nweight)
		print_module(e, rec->weight[out]);
	else
		ck_assert_msg(rec->kind == TESS_OP_NORM, "%s: kind %d has no name here",
		              rec->module, (int)rec->kind);
	if (rate > 0)
		print_text(e, "[%g]", rate);
}

static void print_value(struct expression *e, const struct tess_tensor *x)
{
	const struct tess_record *rec;
	const char *before = "(";
	int32_t out, other;

	for (int i = 0; i < e->nnamed; i++)
		if (e->named[i] == x) {
			print_text(e, "%c", 'a' + i);
			return;
		}
	rec = find_origin(e, x, &out);
	print_operator(e, rec, out);
	for (int32_t k = 0; k < rec->nin; k++) {
		if (!find_origin(e, rec->in[k], &other))
			continue;
		print_text(e, "%s", before);
		print_value(e, rec->in[k]);
		before = ", ";
	}
	print_text(e, "%s", *before == '(' ? "" : ")");
}

/* Writes the values with several readers, then the logits. */
static void write_expression(struct expression *e)
{
	int32_t out;

	for (e->nrecords = e->p->nrecords; e->nrecords; e->nrecords--)
		if (find_origin(e, e->p->logits, &out) == e->p->record[e->nrecords - 1])
			break;
	for (int32_t i = 0; i < e->nrecords; i++)
		for (int32_t k = 0; k < e->p->record[i]->nout; k++) {
			const struct tess_tensor *x = e->p->record[i]->out[k];

			if (count_value_readers(e, x) < 2)
				continue;
			print_text(e, "%c = ", 'a' + e->nnamed);
			print_value(e, x);
			print_text(e, "; ");
			e->named[e->nnamed++] = x;
		}
	print_value(e, e->p->logits);
}

/* ---- families -------------------------------------------------------------------------------- */

static const struct {
	const char *family, *change, *want;
} layers[] = {
	{ "granite",
	  "{\"embedding_multiplier\": 3, \"residual_multiplier\": 0.5, \"logits_scaling\": 8}",
	  "a = 3(embed_tokens); b = rms:input_layernorm(a); c = add(a, 0.5(o_proj(attend("
	  "rope(q_proj(b)), rope(k_proj(b)), v_proj(b))))); d = rms:post_attention_layernorm("
	  "c); 0.125(lm_head(rms:norm(add(c, 0.5(down_proj(glu(gate_proj(d), up_proj("
	  "d))))))))" },
	{ "seed_oss", "{}",
	  "a = embed_tokens; b = rms:input_layernorm(a); c = add(a, dropout[0.1](o_proj("
	  "attend[0.1](rope(bias(q_proj(b))), rope(bias(k_proj(b))), bias(v_proj(b)))))); "
	  "d = rms:post_attention_layernorm(c); lm_head(rms:norm(add(c, dropout[0.1]("
	  "down_proj(glu(gate_proj(d), up_proj(d)))))))" },
	{ "hunyuan_v1_dense", "{}",
	  "a = embed_tokens; b = rms:input_layernorm(a); c = add(a, o_proj(attend("
	  "heads_rms:query_layernorm(rope(q_proj(b))), heads_rms:key_layernorm(rope(k_proj("
	  "b))), v_proj(b)))); d = rms:post_attention_layernorm(c); lm_head(rms:norm(add(c, "
	  "down_proj(glu(gate_proj(d), up_proj(d))))))" },
	{ "exaone4", "{}",
	  "a = embed_tokens; b = add(a, rms:post_attention_layernorm(o_proj(attend(rope("
	  "heads_rms:q_norm(q_proj(a))), rope(heads_rms:k_norm(k_proj(a))), v_proj(a))))); "
	  "lm_head(rms:norm(add(b, rms:post_feedforward_layernorm(down_proj(glu(gate_proj("
	  "b), up_proj(b)))))))" },
	{ "exaone4", "{\"layer_types\": [\"full_attention\"]}",
	  "a = embed_tokens; b = add(a, rms:post_attention_layernorm(o_proj(attend("
	  "heads_rms:q_norm(q_proj(a)), heads_rms:k_norm(k_proj(a)), v_proj(a))))); lm_head("
	  "rms:norm(add(b, rms:post_feedforward_layernorm(down_proj(glu(gate_proj(b), "
	  "up_proj(b)))))))" },
	{ "olmo3", "{}",
	  "a = embed_tokens; b = add(a, rms:post_attention_layernorm(o_proj(attend(rope("
	  "rms:q_norm(q_proj(a))), rope(rms:k_norm(k_proj(a))), v_proj(a))))); lm_head("
	  "rms:norm(add(b, rms:post_feedforward_layernorm(down_proj(glu(gate_proj(b), "
	  "up_proj(b)))))))" },
	{ "glm4", "{}",
	  "a = embed_tokens; b = rms:input_layernorm(a); c = add(a, "
	  "rms:post_self_attn_layernorm(o_proj(attend(rope(bias(q_proj(b))), rope(bias("
	  "k_proj(b))), bias(v_proj(b)))))); d = gate_up_proj(rms:post_attention_layernorm("
	  "c)); lm_head(rms:norm(add(c, rms:post_mlp_layernorm(down_proj(glu(part0(d), part1("
	  "d)))))))" },
	{ "starcoder2", "{\"residual_dropout\": 0.1, \"embedding_dropout\": 0.2}",
	  "a = dropout[0.2](embed_tokens); b = layer:input_layernorm(a); c = add(a, "
	  "dropout[0.1](bias(o_proj(attend(rope(bias(q_proj(b))), rope(bias(k_proj(b))), "
	  "bias(v_proj(b))))))); embed_tokens(layer:norm(add(c, dropout[0.1](bias(c_proj(glu("
	  "bias(c_fc(layer:post_attention_layernorm(c))))))))))" },
	{ "stablelm", "{\"hidden_dropout\": 0.1}",
	  "a = embed_tokens; b = layer:input_layernorm(a); c = add(a, o_proj(attend(rope("
	  "q_proj(b)), rope(k_proj(b)), v_proj(b)))); d = layer:post_attention_layernorm(c); "
	  "lm_head(layer:norm(add(c, dropout[0.1](down_proj(glu(gate_proj(d), up_proj("
	  "d)))))))" },
	{ "stablelm", "{\"use_parallel_residual\": true}",
	  "a = embed_tokens; b = layer:input_layernorm(a); lm_head(layer:norm(add(a, add("
	  "o_proj(attend(rope(q_proj(b)), rope(k_proj(b)), v_proj(b))), down_proj(glu("
	  "gate_proj(b), up_proj(b)))))))" },
	{ "phi", "{\"qk_layernorm\": true, \"resid_pdrop\": 0.1, \"embd_pdrop\": 0.2}",
	  "a = dropout[0.2](embed_tokens); b = layer:input_layernorm(a); bias(lm_head("
	  "layer:final_layernorm(add(a, add(dropout[0.1](bias(dense(attend(rope("
	  "heads_layer:q_layernorm(bias(q_proj(b)))), rope(heads_layer:k_layernorm(bias("
	  "k_proj(b)))), bias(v_proj(b)))))), dropout[0.1](bias(fc2(glu(bias(fc1(b)))))))))))" },
	{ "gpt_neox", "{\"hidden_dropout\": 0.1}",
	  "a = dropout[0.1](embed_in); b = bias(query_key_value(layer:input_layernorm(a))); "
	  "lm_head(layer:final_layer_norm(add(a, add(dropout[0.1](bias(dense(attend(rope("
	  "part0(b)), rope(part1(b)), part2(b))))), dropout[0.1](bias(dense_4h_to_h(glu(bias("
	  "dense_h_to_4h(layer:post_attention_layernorm(a)))))))))))" },
	{ "gpt_neox", "{\"use_parallel_residual\": false}",
	  "a = embed_in; b = bias(query_key_value(layer:input_layernorm(a))); c = add(a, "
	  "bias(dense(attend(rope(part0(b)), rope(part1(b)), part2(b))))); lm_head("
	  "layer:final_layer_norm(add(c, bias(dense_4h_to_h(glu(bias(dense_h_to_4h("
	  "layer:post_attention_layernorm(c)))))))))" },
	{ "opt", "{\"do_layer_norm_before\": false, \"word_embed_proj_dim\": 512}",
	  "a = add(project_in(embed_tokens), embed_positions); b = "
	  "layer:self_attn_layer_norm(add(a, dropout[0.1](bias(out_proj(attend(bias(q_proj("
	  "a)), bias(k_proj(a)), bias(v_proj(a)))))))); embed_tokens(project_out("
	  "layer:final_layer_norm(add(b, dropout[0.1](bias(fc2(glu(bias(fc1(b))))))))))" },
	{ "deepseek_v2",
	  "{\"num_experts_per_tok\": 6, \"q_lora_rank\": null, \"n_shared_experts\": null, "
	  "\"attention_dropout\": 0.2}",
	  "a = embed_tokens; b = rms:input_layernorm(a); c = kv_a_proj_with_mqa(b); d = add("
	  "a, o_proj(kv_b_proj(attend[0.2](kv_b_proj(rope(q_proj(b))), join("
	  "rms:kv_a_layernorm(part0(c)), rope(part1(c))))))); e = "
	  "rms:post_attention_layernorm(d); f = route(gate(e)); lm_head(rms:norm(add(d, "
	  "combine(experts(e, f), f))))" },
	{ "olmoe", "{\"clip_qkv\": 8}",
	  "a = embed_tokens; b = rms:input_layernorm(a); c = add(a, o_proj(attend(rope(clamp("
	  "rms:q_norm(q_proj(b)))), rope(clamp(rms:k_norm(k_proj(b)))), clamp(v_proj(b))))); "
	  "d = rms:post_attention_layernorm(c); e = route(gate(d)); lm_head(rms:norm(add(c, "
	  "combine(experts(d, e), e))))" },
	{ "opt", "{\"_remove_final_layer_norm\": true, \"dropout\": 0.3}",
	  "a = add(embed_tokens, embed_positions); b = layer:self_attn_layer_norm(a); c = "
	  "add(a, dropout[0.3](bias(out_proj(attend(bias(q_proj(b)), bias(k_proj(b)), bias("
	  "v_proj(b))))))); embed_tokens(add(c, dropout[0.3](bias(fc2(glu(bias(fc1("
	  "layer:final_layer_norm(c)))))))))" },
	{ "llama4_text",
	  "{\"attention_dropout\": 0.2, \"moe_layers\": [5, 0], \"interleave_moe_layer_step\": 2}",
	  "a = embed_tokens; b = rms:input_layernorm(a); c = add(a, o_proj(attend[0.2]("
	  "heads_rms:(rope(q_proj(b))), heads_rms:(rope(k_proj(b))), v_proj(b)))); d = "
	  "rms:post_attention_layernorm(c); e = router(d); f = route(e); lm_head(rms:norm("
	  "add(c, add(combine(experts(multiply(d, dot(route(e), f)), f), f), down_proj(glu("
	  "gate_proj(d), up_proj(d)))))))" },
	{ "gpt_oss", "{\"attention_dropout\": 0.2}",
	  "a = embed_tokens; b = rms:input_layernorm(a); c = add(a, bias(o_proj(attend[0.2]("
	  "rope(bias(q_proj(b))), rope(bias(k_proj(b))), bias(v_proj(b)))))); d = "
	  "rms:post_attention_layernorm(c); e = route(bias(router(d))); lm_head(rms:norm(add("
	  "c, add(combine(experts(d, e), e), experts(e)))))" },
};

static tess_status record_one_layer(const char *family, const char *change,
                                    struct tess_program **out)
{
	json_t *config = json_loads(change, 0, NULL);
	struct tess_source source = { .name = family,
		                      .config = config,
		                      .find = find_shape_of_model,
		                      .drop = lockstep_ignore_drop };
	const int64_t tokens = TOKENS;
	const struct tess_training training = { .lengths = &tokens,
		                                .nsequences = 1,
		                                .all_sequences = 1 };
	struct tess_plan plan;
	struct tess_record_options options = { .plan = &plan,
		                               .source = &source,
		                               .mesh = tess_mesh_shape_make("tp", 1),
		                               .ntokens = TOKENS,
		                               .nselected = TOKENS,
		                               .logits_root = -1,
		                               .training = &training };
	tess_status st = tess_plugin_find_model(family, &options.model);

	json_object_set_new(config, "num_hidden_layers", json_integer(1));
	if (!st)
		st = tess_plan_open(options.model, "none", NULL, 0, &plan);
	if (!st) {
		st = tess_program_compile(&options, out);
		tess_plan_free(&plan);
	}
	json_decref(config);
	return st;
}

START_TEST(layers_by_their_definition)
{
	struct expression e = { 0 };
	struct tess_program *p;

	ck_assert_msg(!record_one_layer(layers[_i].family, layers[_i].change, &p), "%s",
	              tess_error());
	e.p = p;
	write_expression(&e);
	ck_assert_msg(!strcmp(e.text, layers[_i].want), "%s: %s", layers[_i].family, e.text);
	tess_program_free(p);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("layers", 60, &r);

	tcase_add_loop_test(t, layers_by_their_definition, 0,
	                    (int)(sizeof layers / sizeof *layers));
	return suite_end(r);
}

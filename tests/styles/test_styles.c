/* test_styles.c - results and refusals of every built-in style. */
#include "tests/support/suite.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tessera/style.h>

static char sentence[512];

static tess_status keep_sentence(tess_status why, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(sentence, sizeof sentence, fmt, ap);
	va_end(ap);
	return why;
}

static const struct tess_host host = { .size = sizeof host,
	                               .abi = TESS_ABI,
	                               .fail = keep_sentence };

static const struct tess_plugin *open_style_plugin(const char *family)
{
	char path[4096];
	const struct tess_plugin *p;
	void *file;

	snprintf(path, sizeof path, "%s/tess-style-%s.so", getenv("STYLE_DIR"), family);
	file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!file)
		ck_abort_msg("%s", dlerror());
	p = dlsym(file, "tess_plugin_v2");
	MUST(p && !strcmp(p->name, family));
	return p;
}

static const struct tess_style *find_style(const char *family, const char *name)
{
	for (const struct tess_style *const *s = open_style_plugin(family)->styles; *s; s++) {
		if (!strcmp((*s)->name, name))
			return *s;
		for (const char *const *a = (*s)->aliases; a && *a; a++)
			if (!strcmp(*a, name))
				return *s;
	}
	ck_abort_msg("%s: no style %s", family, name);
	return NULL;
}

/* Formats a place as "R", "P", "S0", "S-1" or "as is". */
static const char *format_place(struct tess_place p, char text[24])
{
	if (p.kind == TESS_SHARD)
		snprintf(text, 24, "S%d", (int)p.dim);
	return p.kind == TESS_SHARD       ? text
	       : p.kind == TESS_REPLICATE ? "R"
	       : p.kind == TESS_PARTIAL   ? "P"
	                                  : "as is";
}

static void expect_place(const char *style_name, const char *what, struct tess_place got,
                         const char *want)
{
	char text[24];

	if (strcmp(format_place(got, text), want))
		ck_abort_msg("%s: %s is %s, not %s", style_name, what, format_place(got, text),
		             want);
}

static struct tess_site make_site(const char *style, const char *kind, const char *config)
{
	return (struct tess_site){ .size = sizeof(struct tess_site),
		                   .nranks = 2,
		                   .host = &host,
		                   .module = "a.b",
		                   .kind = kind,
		                   .config = config,
		                   .style = style };
}

static const int64_t fused[] = { 8, 2, 2, 0 }, halves[] = { 6, 6, 0 }, three[] = { 4, 4, 4, 0 };
static const int64_t thirteen[] = { 6, 6, 1, 0 }, seven[] = { 3, 4, 0 };

/*
 * Makes a weight with these parts in both dimensions, or 12 elements; stored [in, out] if `turned`.
 */
static struct tess_param make_weight_param(const int64_t *parts, int turned)
{
	static int64_t shape[2];
	static const int64_t units[] = { 12, 12 }, *both[2];

	shape[0] = parts ? 0 : 12;
	for (int i = 0; parts && parts[i]; i++)
		shape[0] += parts[i];
	shape[1] = shape[0];
	both[0] = both[1] = parts;
	return (struct tess_param){ .size = sizeof(struct tess_param),
		                    .dtype = TESS_F32,
		                    .ndim = 2,
		                    .out_dim = turned,
		                    .in_dim = !turned,
		                    .expert_dim = -1,
		                    .name = "weight",
		                    .shape = shape,
		                    .units = units,
		                    .parts = both };
}

static struct tess_param make_bias_param(const int64_t *parts)
{
	struct tess_param p = make_weight_param(parts, 0);

	p.ndim = 1;
	p.in_dim = -1;
	p.name = "bias";
	return p;
}

static const struct row {
	const char *family, *name, *config, *kind; /* kind: the module's */
	const char *in, *out; /* layout */
	const char *weight, *bias; /* weight [out, in]; bias NULL: none */
} table[] = {
	{ "colwise", "colwise", "", "linear", "R", "S-1", "S0", "S0" },
	{ "colwise", "local_colwise", "", "linear", "R", "S-1", "S0", "S0" },
	{ "colwise", "colwise_rep", "", "linear", "R", "R", "S0", "S0" },
	{ "colwise", "colwise_gather_output", "", "linear", "R", "R", "S0", "S0" },
	{ "colwise", "colwise_allgather", "", "linear", "R", "R", "S0", "S0" },
	{ "rowwise", "rowwise", "", "linear", "S-1", "R", "S1", "R" },
	{ "rowwise", "rowwise_rep", "", "linear", "S-1", "R", "S1", "R" },
	{ "rowwise", "rowwise_split_input", "", "linear", "S-1", "R", "S1", "R" },
	{ "rowwise", "rowwise_allreduce", "", "linear", "S-1", "R", "S1", "R" },
	{ "rowwise", "rowwise", "", "embedding", "R", "R", "S1", NULL },
	{ "rowwise", "rowwise_reduce_scatter", "", "linear", "S-1", "S0", "S1", "R" },
	{ "rowwise", "local_rowwise", "", "linear", "S-1", "as is", "S1", "R" },
	{ "packed", "packed_colwise", "", "linear", "R", "S-1", "S0", "S0" },
	{ "packed", "packed_colwise", "parts=7,7", "linear", "R", "S-1", "S0", "S0" },
	{ "packed", "packed_rowwise", "", "linear", "S-1", "R", "S1", "R" },
	{ "packed", "local_packed_rowwise", "", "linear", "S-1", "as is", "S1", "R" },
	{ "embedding", "embedding_rowwise", "", "embedding", "R", "R", "S1", NULL },
	{ "embedding", "vocab_allreduce", "", "embedding", "R", "R", "S1", NULL },
	{ "embedding", "vocab_reduce_scatter", "", "embedding", "R", "S0", "S1", NULL },
	{ "embedding", "embedding_colwise", "", "embedding", "R", "R", "S0", NULL },
	{ "embedding", "embedding_colwise", "gather", "embedding", "R", "R", "S0", NULL },
	{ "embedding", "embedding_colwise", "keep", "embedding", "R", "S-1", "S0", NULL },
	{ "loss", "loss_parallel", "", "linear", "R", "S-1", "S0", "S0" },
	{ "loss", "colwise_loss_parallel", "", "linear", "R", "S-1", "S0", "S0" },
	{ "replicate", "replicate", "", "norm", "as is", "as is", "R", "R" },
	{ "replicate", "replicated_with_grad_allreduce", "", "norm", "as is", "as is", "R", "R" },
	{ "replicate", "mla_kv_a_proj", "", "linear", "as is", "as is", "R", "R" },
	{ "replicate", "ep_router", "", "linear", "as is", "as is", "R", "R" },
	{ "replicate", "local_params", "", "module", "as is", "as is", "R", "R" },
	{ "sequence", "sequence_parallel", "", "norm", "S0", "S0", "R", "R" },
	{ "sequence", "activation", "", "norm", "S0", "S0", "R", "R" },
	{ "gather", "gather", "", "module", "as is", "R", "R", "R" },
	{ "gather", "all_reduce", "", "module", "as is", "R", "R", "R" },
	{ "gather", "all_gather", "", "module", "as is", "R", "R", "R" },
	{ "experts", "moe_tp_experts", "", "experts", "R", "R", "R", "R" },
	{ "experts", "moe_experts_allreduce", "", "module", "R", "R", "R", "R" },
	{ "experts", "moe_experts_reduce_scatter", "", "experts", "R", "S0", "R", "R" },
	{ "experts", "ep_dispatch_experts", "", "experts", "R", "R", "R", "R" },
	{ "experts", "moe_identity_expert", "", "module", "R", "R", "R", "R" },
	{ "isolated", "local", "", "module", "R", "R", "R", "R" },
	{ "isolated", "isolated", "", "module", "R", "R", "R", "R" },
	{ "prepare", "prepare_input", "in=replicate", "module", "R", "as is", "R", "R" },
	{ "prepare", "prepare_input", "in0=shard(-1),in1=replicate", "module", "S-1", "as is", "R",
	  "R" },
	{ "prepare", "prepare_output", "out=shard(0)", "module", "as is", "S0", "R", "R" },
	{ "prepare", "prepare_output", "out=partial", "module", "as is", "P", "R", "R" },
	{ "prepare", "prepare_input_output", "in=replicate,out=shard(0)", "module", "R", "S0", "R",
	  "R" },
	{ "prepare", "prepare_input_output", "out=asis,in=shard(-1)", "module", "S-1", "as is", "R",
	  "R" },
	{ "prepare", "module_allgather", "", "module", "R", "as is", "R", "R" },
	{ "prepare", "module_allgather_hidden_states", "", "module", "R", "as is", "R", "R" },
	{ "prepare", "module_allgather_split", "", "module", "R", "S0", "R", "R" },
};

START_TEST(places_what_the_table_says)
{
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		const struct row *r = table + i;
		const struct tess_style *st = find_style(r->family, r->name);
		struct tess_site s = make_site(r->name, r->kind, r->config);
		struct tess_param w = make_weight_param(halves, 0), b = make_bias_param(halves);
		struct tess_io io = { 0 };
		struct tess_param_place hw = { 0 }, hb = { 0 };

		sentence[0] = 0;
		if (st->layout(&s, &io) || st->partition_param(&s, &w, &hw))
			ck_abort_msg("%s:%s: %s", r->name, r->config, sentence);
		if (r->bias && st->partition_param(&s, &b, &hb))
			ck_abort_msg("%s:%s: %s", r->name, r->config, sentence);
		expect_place(r->name, "in", io.in[0], r->in);
		expect_place(r->name, "out", io.out[0], r->out);
		expect_place(r->name, "weight", hw.use, r->weight);
		expect_place(r->name, "bias", hb.use, r->bias ? r->bias : "as is");
		MUST(!hw.rest.kind && !hw.state.kind); /* like `use` */
	}
}
END_TEST

START_TEST(cuts_a_weight_that_is_stored_in_out)
{
	static const char *const want[][3] = { { "colwise", "colwise", "S1" },
		                               { "rowwise", "rowwise", "S0" },
		                               { "packed", "packed_colwise", "S1" } };
	struct tess_param w = make_weight_param(halves, 1);

	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		const struct tess_style *st = find_style(want[i][0], want[i][1]);
		struct tess_site s = make_site(want[i][1], "linear", "");
		struct tess_param_place place = { 0 };

		ck_assert_int_eq(st->partition_param(&s, &w, &place), TESS_OK);
		expect_place(st->name, "weight [in, out]", place.use, want[i][2]);
	}
}
END_TEST

/* Makes a stack [experts, gate | up, in], or [experts, in, gate | up] if `turned`. */
static struct tess_param make_stack_param(int turned)
{
	static const int64_t shape[2][3] = { { 4, 12, 12 }, { 4, 12, 12 } }, units[] = { 4, 6, 6 };
	static const int64_t *const parts[2][3] = { { NULL, halves, NULL },
		                                    { NULL, NULL, halves } };

	return (struct tess_param){ .size = sizeof(struct tess_param),
		                    .dtype = TESS_F32,
		                    .ndim = 3,
		                    .out_dim = 1 + turned,
		                    .in_dim = 2 - turned,
		                    .expert_dim = 0,
		                    .name = "gate_up_proj",
		                    .shape = shape[turned],
		                    .units = units,
		                    .parts = parts[turned] };
}

START_TEST(cuts_stacked_experts)
{
	static const char *const want[][4] = {
		{ "experts", "grouped_gemm", "S0", "S0" },
		{ "experts", "moe_tp_gate_up_colwise", "S1", "S2" },
		{ "experts", "moe_tp_down_rowwise", "S2", "S1" },
		{ "experts", "moe_tp_experts", "R", "R" },
		{ "experts", "ep_all_to_all", "S0", "S0" },
		{ "experts", "ep_dispatch_experts", "R", "R" },
		{ "packed", "packed_colwise", "S1", "S2" },
		{ "colwise", "colwise", "S1", "S2" },
		{ "rowwise", "rowwise", "S2", "S1" },
	};
	struct tess_param flat = make_weight_param(halves, 0);

	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		const struct tess_style *st = find_style(want[i][0], want[i][1]);
		struct tess_site s = make_site(want[i][1], "experts", "");
		struct tess_io io = { 0 };

		ck_assert_int_eq(st->layout(&s, &io), TESS_OK);
		for (int turned = 0; turned < 2; turned++) {
			struct tess_param w = make_stack_param(turned);
			struct tess_param_place place = { 0 };

			ck_assert_int_eq(st->partition_param(&s, &w, &place), TESS_OK);
			expect_place(st->name, "experts", place.use, want[i][2 + turned]);
		}
		if (i > 2)
			continue;
		expect_place(st->name, "in", io.in[0], "R");
		expect_place(st->name, "out", io.out[0], "R");
		ck_assert_int_eq(st->partition_param(&s, &flat, &(struct tess_param_place){ 0 }),
		                 TESS_EINVAL);
		expect_part(sentence, "a.b.weight: not a weight of several experts");
	}
}
END_TEST

START_TEST(asserts_the_parts)
{
	static const struct {
		const char *config;
		const int64_t *parts;
		int fits;
	} tries[] = {
		{ "parts=4,1,1", fused, 1 },
		{ "parts=8,2,2", fused, 1 },
		{ "", fused, 0 },
		{ "", NULL, 0 },
		{ "parts=1", NULL, 1 },
		{ "parts=1,1,4", fused, 0 },
		{ "parts=4,2", fused, 0 },
		{ "parts=4,1,1,6", fused, 0 },
		{ "parts=1,1,1", three, 1 },
		{ "parts=1,1", three, 0 },
		{ "parts=2,1", halves, 0 },
		{ "parts=5,5", halves, 1 },
		{ "parts=5,1,1", fused, 0 },
		{ "parts=1,1", thirteen, 0 }, /* fewer than the model's */
		{ "parts=1", thirteen, 0 },
		{ "parts=6,6,1", thirteen, 1 },
		{ "", seven, 0 },
		{ "parts=3,4", seven, 1 },
		{ "parts=1,2,1", seven, 0 },
	};

	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
		for (int row = 0; row < 2; row++) {
			const struct tess_style *st =
				find_style("packed", row ? "packed_rowwise" : "packed_colwise");
			struct tess_site s = make_site(st->name, "linear", tries[i].config);
			struct tess_param w = make_weight_param(tries[i].parts, 0);
			struct tess_param_place place = { 0 };
			tess_status got = st->partition_param(&s, &w, &place);

			if (got != (tries[i].fits ? TESS_OK : TESS_EINVAL))
				ck_abort_msg("try %zu, %s: %d", i, st->name, got);
			MUST(!got || (!place.use.kind && strstr(sentence, "a.b.weight")));
		}
}
END_TEST

/* Expects a refusal: TESS_EINVAL, unchanged outputs, and a message with these words. */
static void expect_style_refused(const char *family, const char *name, const char *kind,
                                 const char *config, const char *word)
{
	const struct tess_style *st = find_style(family, name);
	struct tess_site s = make_site(name, kind, config);
	struct tess_io io = { 0 };

	sentence[0] = 0;
	io.in[0].kind = io.out[0].kind = -1;
	if (st->layout(&s, &io) != TESS_EINVAL || io.in[0].kind != -1 || io.out[0].kind != -1)
		ck_abort_msg("%s accepted \"%s\" on a %s", name, config, kind);
	if (strncmp(sentence, "a.b: ", 5) || !strstr(sentence, word))
		ck_abort_msg("%s: \"%s\" does not contain %s", name, sentence, word);
}

START_TEST(refuses_what_it_does_not_know)
{
	static const char *const parts[] = { "parts=",
		                             "parts=0,1",
		                             "parts=1,",
		                             "parts=,1",
		                             "parts=1;1",
		                             "parts=-1,2",
		                             "parts=1,99999999999999999999",
		                             "1,1",
		                             "parts=1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1" };
	static const char *const moves[] = { "",
		                             "in",
		                             "in=",
		                             "in=whole",
		                             "in=shard",
		                             "in=shard()",
		                             "in=shard(x)",
		                             "in=shard(9)",
		                             "in4=replicate",
		                             "in=replicate,",
		                             "in=replicated",
		                             "out=replicate",
		                             "in=replicate;in1=asis" };

	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!table[i].config[0])
			expect_style_refused(table[i].family, table[i].name, table[i].kind,
			                     "nonsense", "\"nonsense\"");
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		expect_style_refused("packed", "packed_rowwise", "linear", parts[i], "parts=4,1,1");
	for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
		expect_style_refused("prepare", "prepare_input", "module", moves[i],
		                     "prepare_input:in=replicate");
	expect_style_refused("prepare", "prepare_output", "module", "in=replicate",
	                     "prepare_output:out=shard(0)");
	expect_style_refused("experts", "grouped_gemm", "linear", "", "is for experts");
	expect_style_refused("experts", "ep_all_to_all", "module", "", "is for experts");
	expect_style_refused("experts", "moe_tp_experts", "norm", "", "is for experts");
	expect_style_refused("loss", "loss_parallel", "embedding", "", "lm_head, not for a module");
	expect_style_refused("embedding", "embedding_rowwise", "linear", "", "use rowwise");
	expect_style_refused("embedding", "embedding_colwise", "linear", "", "use colwise_rep");
}
END_TEST

START_TEST(refuses_a_parameter_without_the_dimension)
{
	static const char *const names[][2] = { { "colwise", "colwise" },
		                                { "rowwise", "rowwise" },
		                                { "packed", "packed_colwise" },
		                                { "packed", "packed_rowwise" } };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct tess_site s = make_site(names[i][1], "norm", "");
		struct tess_param p = make_bias_param(NULL);
		struct tess_param_place place = { 0 };

		p.out_dim = -1;
		ck_assert_int_eq(
			find_style(names[i][0], names[i][1])->partition_param(&s, &p, &place),
			TESS_EINVAL);
		MUST(strstr(sentence, "a.b.bias") && strstr(sentence, "replicate") &&
		     !place.use.kind);
	}
}
END_TEST

SUITE_MAIN("styles", places_what_the_table_says, cuts_a_weight_that_is_stored_in_out,
           cuts_stacked_experts, asserts_the_parts, refuses_what_it_does_not_know,
           refuses_a_parameter_without_the_dimension)

/*
 * Mixtures of experts: the same bits for every way to cut and to store them; a rank reads its own
 * experts and parts only; what is recorded and loaded takes time in proportion, however many there
 * are; and the refusals.
 */
#include "../unit/draw.h"
#include "../unit/suite.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "lockstep.h"
#include "nn/plan.h"
#include "nn/unexpected.h"
#include "nn/weights.h"
#include "scalar.h"

#include <stdio.h>

enum { VOCABULARY = 17, IDS = 9, FILES_MAX = 1024, NAME_MAX_BYTES = 96 };

/* ---- a model of one layer, and its checkpoint ------------------------------------------------ */

struct mixture_shape {
	int64_t hidden, ffn, experts;
	struct tess_route route;
	int32_t flags; /* TESS_IN_OUT */
};

static const struct mixture_shape *shape; /* of the model and of its checkpoint */

static struct tess_tensor *record_mixture(struct tess_nn *nn, struct tess_tensor *ids)
{
	struct tess_dim *vocabulary = nn->dim(nn, "vocabulary", VOCABULARY, 0);
	struct tess_dim *hidden = nn->dim(nn, "hidden", shape->hidden, TESS_HIDDEN);
	struct tess_dim *experts = nn->dim(nn, "experts", shape->experts, 1);
	const struct tess_linear gate[] = { { "gate", experts, 0, 0 }, { 0 } };
	const struct tess_linear head[] = { { "head", vocabulary, 0, 0 }, { 0 } };
	const struct tess_experts how = { sizeof how, shape->flags, TESS_SILU, 0,
		                          nn->dim(nn, "ffn", shape->ffn, 0) };
	struct tess_tensor *x = nn->embed(nn, "table", ids, vocabulary, hidden), *y = NULL;

	x = nn->enter(nn, x, "mlp");
	nn->linear(nn, x, gate, &y);
	y = nn->leave(nn, nn->experts(nn, "experts", x, nn->route(nn, y, &shape->route), &how));
	nn->linear(nn, y, head, &y);
	return y;
}

static const struct tess_stored stored[] = {
	{ "mlp.experts.gate_up_proj", (const char *const[]){ "x.#.w1", "x.#.w3", NULL } },
	{ "mlp.experts.down_proj", (const char *const[]){ "x.#.w2", NULL } },
	{ "*.weight", (const char *const[]){ "renamed.*", NULL } },
	{ 0 }
};
static const struct tess_model mixture_model = {
	.size = sizeof mixture_model, .name = "mixture", .forward = record_mixture, .stored = stored
};

struct stored_file {
	char name[NAME_MAX_BYTES];
	int32_t ndim;
	int64_t shape[3];
	float *data;
};

struct store {
	struct stored_file file[FILES_MAX];
	size_t n;
	uint64_t bytes_read;
	int64_t finds;
	char read_names[4096]; /* of what was read, each once */
};

static struct stored_file *add_file(struct store *s, const char *name, int32_t ndim, int64_t a,
                                    int64_t b, int64_t c)
{
	struct stored_file *f = &s->file[s->n++];
	int64_t n = a * (ndim > 1 ? b : 1) * (ndim > 2 ? c : 1);

	snprintf(f->name, sizeof f->name, "%s", name);
	f->ndim = ndim;
	f->shape[0] = a;
	f->shape[1] = b;
	f->shape[2] = c;
	f->data = calloc((size_t)n, sizeof *f->data);
	return f;
}

/* Element (e, out, in) of gate_up (1) or down (2), whatever file it is in. */
static float get_expert_element(int which, int64_t e, int64_t out, int64_t in)
{
	uint64_t seed = (uint64_t)(((which * 64 + e) * 512 + out) * 512 + in) + 1;

	return (float)draw_below(&seed, 1 << 16) / (1 << 15) - 1;
}

static void fill_file(struct stored_file *f)
{
	uint64_t seed = 7 + (uint64_t)f->name[0];

	for (int64_t i = 0; i < f->shape[0] * (f->ndim > 1 ? f->shape[1] : 1); i++)
		f->data[i] = (float)draw_below(&seed, 1 << 16) / (1 << 15) - 1;
}

/* One matrix [out, in] of expert e, of outs from `first` on, or turned, into `to`. */
static void fill_expert(float *to, int which, int64_t e, int64_t first, int64_t outs, int64_t ins)
{
	for (int64_t o = 0; o < outs; o++)
		for (int64_t i = 0; i < ins; i++)
			to[shape->flags & TESS_IN_OUT ? i * outs + o : o * ins + i] =
				get_expert_element(which, e, first + o, i);
}

static void add_expert_files(struct store *s)
{
	int64_t f = shape->ffn, h = shape->hidden;
	bool turned = shape->flags & TESS_IN_OUT;
	char name[NAME_MAX_BYTES];

	for (int64_t e = 0; e < shape->experts; e++) {
		for (int w = 1; w <= 3; w++) {
			int64_t outs = w == 2 ? h : f, ins = w == 2 ? f : h;
			struct stored_file *file;

			snprintf(name, sizeof name, "x.%d.w%d", (int)e, w);
			file = add_file(s, name, 2, turned ? ins : outs, turned ? outs : ins, 1);
			fill_expert(file->data, w == 2 ? 2 : 1, e, w == 3 ? f : 0, outs, ins);
		}
	}
}

static void add_stacked_files(struct store *s)
{
	int64_t f = shape->ffn, h = shape->hidden, n = shape->experts;
	bool turned = shape->flags & TESS_IN_OUT;
	struct stored_file *up = add_file(s, "mlp.experts.gate_up_proj", 3, n, turned ? h : 2 * f,
	                                  turned ? 2 * f : h),
			   *down = add_file(s, "mlp.experts.down_proj", 3, n, turned ? f : h,
	                                    turned ? h : f);

	for (int64_t e = 0; e < n; e++) {
		fill_expert(up->data + e * 2 * f * h, 1, e, 0, 2 * f, h);
		fill_expert(down->data + e * f * h, 2, e, 0, h, f);
	}
}

static int compare_file_names(const void *a, const void *b)
{
	return strcmp(((const struct stored_file *)a)->name, ((const struct stored_file *)b)->name);
}

static const struct stored_file *find_in_store(const struct store *s, const char *name)
{
	struct stored_file key;

	snprintf(key.name, sizeof key.name, "%s", name);
	return bsearch(&key, s->file, s->n, sizeof *s->file, compare_file_names);
}

static bool has_stored(void *self, const char *name)
{
	((struct store *)self)->finds++;
	return find_in_store(self, name) != NULL;
}

static tess_status find_stored(void *self, const char *name, struct tess_view *out)
{
	const struct stored_file *f = find_in_store(self, name);
	int64_t stride = 1;

	((struct store *)self)->finds++;
	if (!f)
		return tess_fail(TESS_ENOENT, "store: tensor %s is not there", name);
	*out = (struct tess_view){ .dtype = TESS_F32, .ndim = f->ndim };
	for (int32_t i = f->ndim - 1; i >= 0; i--) {
		out->shape[i] = f->shape[i];
		out->stride[i] = stride;
		stride *= f->shape[i];
	}
	return TESS_OK;
}

static tess_status read_stored(void *self, const char *name, uint64_t at, uint64_t bytes, void *out)
{
	const struct stored_file *f = find_in_store(self, name);
	struct store *s = self;
	char quoted[NAME_MAX_BYTES + 2];

	memcpy(out, (const char *)f->data + at, bytes);
	s->bytes_read += bytes;
	snprintf(quoted, sizeof quoted, "[%s]", name);
	if (!strstr(s->read_names, quoted))
		strncat(s->read_names, quoted, sizeof s->read_names - strlen(s->read_names) - 1);
	return TESS_OK;
}

static const char *get_stored_name(void *self, size_t i)
{
	return ((struct store *)self)->file[i].name;
}

static struct tess_source make_source(struct store *s)
{
	return (struct tess_source){ .self = s,
		                     .name = "store",
		                     .find = find_stored,
		                     .has = has_stored,
		                     .read = read_stored,
		                     .drop = lockstep_ignore_drop,
		                     .count = s->n,
		                     .at = get_stored_name };
}

static struct store *make_store(bool stacked)
{
	struct store *s = calloc(1, sizeof *s);

	fill_file(add_file(s, "renamed.table", 2, VOCABULARY, shape->hidden, 1));
	fill_file(add_file(s, "renamed.head", 2, VOCABULARY, shape->hidden, 1));
	fill_file(add_file(s, "mlp.gate.weight", 2, shape->experts, shape->hidden, 1));
	if (shape->route.correction)
		fill_file(add_file(s, "mlp.gate.bias", 1, shape->experts, 1, 1));
	if (stacked)
		add_stacked_files(s);
	else
		add_expert_files(s);
	qsort(s->file, s->n, sizeof *s->file, compare_file_names);
	return s;
}

static void free_store(struct store *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->file[i].data);
	free(s);
}

/* ---- the same bits --------------------------------------------------------------------------- */

static const struct mixture_shape shapes[] = {
	{ 12, 13, 5, { .size = sizeof(struct tess_route), .flags = TESS_NORMALIZE, .top = 2 }, 0 },
	{ 8,
	  6,
	  12,
	  { sizeof(struct tess_route), TESS_SIGMOID | TESS_NORMALIZE, 5, 3, 2, 1e-20, 2.5,
	    "gate.bias" },
	  TESS_IN_OUT },
	{ 7, 33, 3, { .size = sizeof(struct tess_route), .top = 3 }, 0 },
	{ 16, 3, 7, { .size = sizeof(struct tess_route), .top = 1 }, TESS_IN_OUT },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

#define R(pattern, style) "\"" pattern "\":\"" style "\""
#define EXPERT(dim, up, down, module) \
	R(dim "mlp.experts.gate_up_proj", up) \
	"," R(dim "mlp.experts.down_proj", down) "," R(dim "mlp.experts", module)
#define BY_EXPERT(dim, module) EXPERT(dim, "grouped_gemm", "grouped_gemm", module)
#define INSIDE(dim, module) EXPERT(dim, "packed_colwise", "rowwise", module)
#define TOKENS(dim) R(dim "table", "vocab_reduce_scatter") "," R(dim "mlp", "module_allgather")

static const struct {
	const char *plan, *mesh[4];
} ways[] = {
	{ "none", { "tp=2" } },
	{ "{" BY_EXPERT("", "ep_dispatch_experts") "}", { "tp=2", "tp=3" } },
	{ "{" R("mlp.experts", "grouped_gemm") "}", { "tp=3" } },
	{ "{" INSIDE("", "moe_tp_experts") "}", { "tp=2", "tp=3" } },
	{ "{" TOKENS("") "," BY_EXPERT("", "moe_experts_reduce_scatter") "," R(
		  "head", "prepare_input:in=replicate") "}",
	  { "tp=3", "tp=2" } },
	{ "{" TOKENS("") "," INSIDE("", "moe_experts_reduce_scatter") "," R(
		  "head", "prepare_input:in=replicate") "}",
	  { "tp=2", "tp=3" } },
	{ "{" BY_EXPERT("ep:", "ep_dispatch_experts") "," INSIDE("", "moe_tp_experts") "}",
	  { "ep=2,tp=2", "tp=3,ep=2", "ep=3,tp=3" } },
	{ "{" BY_EXPERT("ep:", "moe_experts_reduce_scatter") "," INSIDE("", "moe_tp_experts") "," R(
		  "ep:head", "prepare_input:in=replicate") "}",
	  { "ep=3,tp=2", "tp=2,ep=2" } },
	/* rows cut over one dimension, experts over another */
	{ "{" R("sp:mlp", "prepare_input_output:in=shard(0),out=replicate") "," BY_EXPERT(
		  "ep:", "ep_dispatch_experts") "," INSIDE("", "moe_tp_experts") "}",
	  { "sp=2,ep=2,tp=2", "tp=3,sp=5,ep=2" } },
	{ "{" R("mlp", "prepare_input_output:in=shard(0),out=replicate") "}", { "tp=4" } },
};

static const int32_t mixture_ids[IDS] = { 3, 0, 16, 5, 5, 9, 11, 2, 7 };

static tess_status run_mixture(struct store *s, const char *plan, const char *mesh, float **logits)
{
	struct tess_source source = make_source(s);
	struct lockstep how = { &mixture_model, &source, plan, 1, mixture_ids, IDS, true, mesh };
	int64_t count;

	return lockstep_run(&how, logits, &count);
}

START_TEST(every_way)
{
	struct store *apart, *stacked;
	float *want, *have;

	shape = &shapes[_i];
	apart = make_store(false);
	stacked = make_store(true);
	ck_assert_msg(!run_mixture(stacked, "none", "tp=1", &want), "%s", tess_error());
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		for (int k = 0; k < 4 && ways[i].mesh[k]; k++) {
			ck_assert_msg(!run_mixture(k % 2 ? stacked : apart, ways[i].plan,
			                           ways[i].mesh[k], &have),
			              "%s on %s: %s", ways[i].plan, ways[i].mesh[k], tess_error());
			ck_assert_msg(!memcmp(want, have, sizeof *want * IDS * VOCABULARY),
			              "%s on %s: other bits", ways[i].plan, ways[i].mesh[k]);
			free(have);
		}
	}
	free(want);
	free_store(apart);
	free_store(stacked);
}
END_TEST

/* ---- what moves ------------------------------------------------------------------------------ */

/* The collectives of the experts, and the columns of each that rank 0 has. */
static void list_moves(const struct tess_program *p, char *out, size_t size)
{
	size_t at = 0;

	out[0] = 0;
	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		struct tess_cut cut;

		if (rec->kind != TESS_REC_MOVE || !tess_move_kind(p, rec) ||
		    strcmp(rec->module, "mlp.experts") != 0)
			continue;
		cut = tess_program_find_cut(p, 0, rec->in[0]->place, 1);
		at += (size_t)snprintf(
			out + at, size - at, "%s %s %d;", p->mesh.dim[rec->along].name,
			tess_move_name(p, rec),
			(int)tess_dim_get_local_size(rec->in[0]->dim[1], cut.nranks, cut.rank));
	}
}

/* Inside, k times the rows; but not more than the experts of the rank. */
START_TEST(what_moves)
{
	static const struct {
		int shape;
		const char *plan, *mesh, *moves;
	} cases[] = {
		{ 0, "{" BY_EXPERT("", "ep_dispatch_experts") "}", "tp=3", "tp all_reduce 12;" },
		{ 0, "{" BY_EXPERT("", "moe_experts_reduce_scatter") "}", "tp=3",
		  "tp reduce_scatter 12;" },
		{ 0, "{" INSIDE("", "moe_tp_experts") "}", "tp=3", "tp all_reduce 24;" },
		{ 0, "{" INSIDE("", "moe_experts_reduce_scatter") "}", "tp=3",
		  "tp reduce_scatter 24;" },
		{ 1,
		  "{" BY_EXPERT("ep:", "ep_dispatch_experts") "," INSIDE("", "moe_tp_experts") "}",
		  "ep=3,tp=2", "tp all_reduce 32;ep all_reduce 8;" },
		{ 1,
		  "{" BY_EXPERT("ep:", "ep_dispatch_experts") "," INSIDE("", "moe_tp_experts") "}",
		  "ep=2,tp=2", "tp all_reduce 40;ep all_reduce 8;" },
	};
	struct tess_source source;
	struct tess_program *p;
	char moves[128];
	struct store *s;

	shape = &shapes[cases[_i].shape];
	s = make_store(false);
	source = make_source(s);
	ck_assert_msg(!lockstep_record(&(struct lockstep){ &mixture_model, &source, cases[_i].plan,
	                                                   1, NULL, 7, true, cases[_i].mesh },
	                               &p),
	              "%s", tess_error());
	list_moves(p, moves, sizeof moves);
	ck_assert_str_eq(moves, cases[_i].moves);
	tess_program_free(p);
	free_store(s);
}
END_TEST

/* ---- what a rank reads ----------------------------------------------------------------------- */

static struct tess_program *record_on(struct store *s, const char *plan, const char *mesh)
{
	struct tess_source source = make_source(s);
	struct tess_program *p;

	ck_assert_msg(!lockstep_record(&(struct lockstep){ &mixture_model, &source, plan, 1, NULL,
	                                                   1, false, mesh },
	                               &p),
	              "%s", tess_error());
	return p;
}

/* Element (out, in) of a matrix in rows or panels. */
static float get_loaded(const struct tess_view *v, int64_t e, int64_t o, int64_t i)
{
	const float *data = (const float *)v->data + e * v->stride[0];

	return v->layout == TESS_PANELS ? data[o / 16 * v->stride[1] + i * 16 + o % 16]
	                                : data[o * v->stride[1] + i * v->stride[2]];
}

/* gate_up: the rank has experts from `first` on, and of each part outs from `from` on. */
static void check_gate_up(const struct tess_view *v, int64_t first, int64_t from)
{
	int64_t each = v->shape[1] / 2;

	for (int64_t e = 0; e < v->shape[0]; e++)
		for (int64_t o = 0; o < 2 * each; o++)
			for (int64_t i = 0; i < v->shape[2]; i++)
				MUST(get_loaded(v, e, o, i) ==
				     get_expert_element(
					     1, first + e,
					     from + o % each + (o < each ? 0 : shape->ffn), i));
}

static void check_down(const struct tess_view *v, int64_t first, int64_t from)
{
	for (int64_t e = 0; e < v->shape[0]; e++)
		for (int64_t o = 0; o < v->shape[1]; o++)
			for (int64_t i = 0; i < v->shape[2]; i++)
				MUST(get_loaded(v, e, o, i) ==
				     get_expert_element(2, first + e, o, from + i));
}

/* Rank 1 of ep=3,tp=2 has experts [2, 4) of 5, and the second half of their ffn; 3: [4, 5). */
START_TEST(a_rank_reads_its_own)
{
	static const char plan[] =
		"{" BY_EXPERT("ep:", "ep_dispatch_experts") "," INSIDE("", "moe_tp_experts") "}";
	struct tess_opened_device cpu = { 0 };
	struct tess_rank_weights held;
	struct tess_source source;
	struct tess_program *p;
	uint64_t others;
	struct store *s;

	shape = &shapes[_i / 4 ? 3 : 0];
	s = make_store(_i & 2);
	source = make_source(s);
	ck_assert_msg(!tess_plugin_find_device("cpu", &cpu.table) &&
	                      !cpu.table->open(0, 1, &cpu.self),
	              "%s", tess_error());
	tess_option_set("layout", _i & 1 ? "rows" : "panels");
	p = record_on(s, plan, "ep=3,tp=2");
	for (int32_t rank = 0; rank < 6; rank++) {
		int32_t ep = rank / 2, tp = rank % 2;
		int64_t first = tess_edge(shape->experts, 3, ep),
			n = tess_edge(shape->experts, 3, ep + 1) - first,
			half = tess_edge(shape->ffn, 2, 1), f = tp ? shape->ffn - half : half;

		s->bytes_read = 0;
		memset(s->read_names, 0, sizeof s->read_names);
		ck_assert_msg(!tess_rank_weights_load(p, &source, rank, &cpu, &held), "%s",
		              tess_error());
		ck_assert_int_eq(held.view[2].shape[0], n);
		ck_assert_int_eq(held.view[2].shape[1], 2 * f);
		ck_assert_int_eq(held.view[3].shape[2], f);
		check_gate_up(&held.view[2], first, tp ? half : 0);
		check_down(&held.view[3], first, tp ? half : 0);
		others = 4 * (uint64_t)(shape->hidden * (2 * VOCABULARY + shape->experts));
		ck_assert_uint_eq(s->bytes_read,
		                  others + 4 * (uint64_t)(n * 3 * f * shape->hidden));
		for (int64_t e = 0; e < shape->experts && !(_i & 2); e++) {
			char name[NAME_MAX_BYTES];

			snprintf(name, sizeof name, "[x.%d.w3]", (int)e);
			ck_assert_int_eq(strstr(s->read_names, name) != NULL,
			                 e >= first && e < first + n);
		}
		tess_rank_weights_free(&held);
	}
	tess_option_set("layout", "rows");
	cpu.table->close(cpu.self);
	tess_program_free(p);
	free_store(s);
}
END_TEST

/* ---- many experts ---------------------------------------------------------------------------- */

enum { LAYERS = 48, EXPERTS = 128, MANY = LAYERS * (EXPERTS * 3 + 9) + 3 };

static char (*many_names)[NAME_MAX_BYTES];
static int64_t many_finds;

static int compare_many_names(const void *a, const void *b)
{
	return strcmp(a, b);
}

static bool has_one_of_many(void *self, const char *name)
{
	(void)self;
	many_finds++;
	return bsearch(name, many_names, MANY, sizeof *many_names, compare_many_names) != NULL;
}

static tess_status find_one_of_many(void *self, const char *name, struct tess_view *out)
{
	*out = (struct tess_view){ .dtype = TESS_F32, .ndim = -1 };
	return has_one_of_many(self, name) ? TESS_OK : tess_fail(TESS_ENOENT, "no %s", name);
}

static const char *get_one_of_many(void *self, size_t i)
{
	(void)self;
	return many_names[i];
}

static void make_many_names(void)
{
	static const char *const own[] = { "input_layernorm",  "post_attention_layernorm",
		                           "self_attn.q_proj", "self_attn.k_proj",
		                           "self_attn.v_proj", "self_attn.o_proj",
		                           "self_attn.q_norm", "self_attn.k_norm",
		                           "mlp.gate" };
	static const char *const parts[] = { "gate_proj", "up_proj", "down_proj" };
	static const char *const others[] = { "model.embed_tokens", "model.norm", "lm_head" };
	size_t n = 0;

	many_names = calloc(MANY, sizeof *many_names);
	for (int i = 0; i < LAYERS; i++) {
		for (int k = 0; k < 9; k++)
			snprintf(many_names[n++], NAME_MAX_BYTES, "model.layers.%d.%s.weight", i,
			         own[k]);
		for (int k = 0; k < EXPERTS * 3; k++)
			snprintf(many_names[n++], NAME_MAX_BYTES,
			         "model.layers.%d.mlp.experts.%d.%s.weight", i, k / 3,
			         parts[k % 3]);
	}
	for (int k = 0; k < 3; k++)
		snprintf(many_names[n++], NAME_MAX_BYTES, "%s.weight", others[k]);
	ck_assert_uint_eq(n, MANY);
	qsort(many_names, MANY, sizeof *many_names, compare_many_names);
}

/* 18435 tensors: each is looked up once while recording, and listed once as expected. */
START_TEST(many_experts)
{
	json_t *config = json_pack("{si si si si si si si si si si}", "hidden_size", 16,
	                           "num_attention_heads", 2, "num_key_value_heads", 2,
	                           "num_hidden_layers", LAYERS, "intermediate_size", 32,
	                           "moe_intermediate_size", 8, "num_experts", EXPERTS,
	                           "num_experts_per_tok", 8, "vocab_size", 32, "head_dim", 8);
	struct tess_source source = { .name = "many",
		                      .config = config,
		                      .find = find_one_of_many,
		                      .has = has_one_of_many,
		                      .drop = lockstep_ignore_drop,
		                      .count = MANY,
		                      .at = get_one_of_many };
	const struct tess_model *model;
	struct tess_program *p;

	make_many_names();
	ck_assert_msg(!tess_plugin_find_model("qwen3_moe", &model), "%s", tess_error());
	many_finds = 0;
	ck_assert_msg(
		!lockstep_record(
			&(struct lockstep){ model, &source, "ep", 2, NULL, 1, false, NULL }, &p),
		"%s", tess_error());
	/* and one question for each weight of experts: is its first file there? */
	ck_assert_int_le(many_finds, MANY + 2 * LAYERS);
	many_finds = 0;
	ck_assert_msg(!tess_unexpected_check(p, model, &source, true), "%s", tess_error());
	ck_assert_int_eq(many_finds, 0);
	tess_program_free(p);
	json_decref(config);
	free(many_names);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
	const char *plan, *mesh, *says;
} wrong_plans[] = {
	{ "{" R("mlp.experts.gate_up_proj", "packed_colwise") "}", "tp=2",
	  "mlp.experts: gate_up_proj is Shard(1) (style packed_colwise) and down_proj Replicate "
	  "(style replicate); cut both by expert (grouped_gemm), or inside" },
	{ "{" R("mlp.experts.down_proj", "rowwise") "}", "tp=2", "cut both by expert" },
	{ "{" EXPERT("", "grouped_gemm", "rowwise", "moe_tp_experts") "}", "tp=2",
	  "gate_up_proj is Shard(0) (style grouped_gemm) and down_proj Shard(2) (style rowwise)" },
	{ "{" EXPERT("", "rowwise", "colwise", "moe_tp_experts") "}", "tp=2",
	  "cut both by expert" },
	{ "{" BY_EXPERT("", "ep_dispatch_experts") "}", "tp=6",
	  "mlp.experts: experts: 5 units cannot be cut for 6 ranks; use 1 to 5" },
	{ "{" BY_EXPERT("ep:", "ep_dispatch_experts") "," BY_EXPERT("xp:", "moe_tp_experts") "}",
	  "ep=2,xp=2",
	  "mlp.experts: experts of mlp.experts.gate_up_proj cannot be cut along both ep and xp" },
	{ "{" R("mlp.gate", "colwise") "}", "tp=2",
	  "mlp.gate: routing needs the logits of all experts, but they are cut" },
	{ "{" R("mlp.gate", "local_rowwise") "}", "tp=2",
	  "routing of an unfinished sum of mlp.gate" },
	{ "{" R("table", "vocab_reduce_scatter") "," R(
		  "mlp.experts.gate_up_proj", "grouped_gemm") "," R("mlp.experts.down_proj",
	                                                            "grouped_gemm") "}",
	  "tp=2",
	  "mlp.experts: style replicate: experts that are cut need whole rows, but table gives "
	  "Shard(0); let a layout replicate them (module_allgather on the mlp)" },
	{ "{" R("mlp.gate", "grouped_gemm") "}", "tp=2",
	  "mlp.gate: grouped_gemm is for experts, not for a module of kind linear" },
	{ "{" R("mlp.experts.gate_up_proj", "packed_colwise:parts=2,1") "}", "tp=2",
	  "mlp.experts.gate_up_proj: dimension 1 consists of the parts 13,13" },
};

START_TEST(refuses_plans)
{
	struct store *s;
	struct tess_source source;
	struct tess_program *p;

	shape = &shapes[0];
	s = make_store(false);
	source = make_source(s);
	ck_assert(lockstep_record(&(struct lockstep){ &mixture_model, &source, wrong_plans[_i].plan,
	                                              1, NULL, 4, true, wrong_plans[_i].mesh },
	                          &p) < 0);
	expect_part(tess_error(), wrong_plans[_i].says);
	free_store(s);
}
END_TEST

static void expect_refused(struct store *s, const char *says)
{
	struct tess_source source = make_source(s);
	struct tess_program *p;

	ck_assert(lockstep_record(&(struct lockstep){ &mixture_model, &source, "none", 1, NULL, 1,
	                                              false, NULL },
	                          &p) < 0);
	expect_part(tess_error(), says);
}

static struct stored_file *get_file(struct store *s, const char *name)
{
	return (struct stored_file *)find_in_store(s, name);
}

/* A file that is missing, or does not fit, is named as in the plan and as in the files. */
START_TEST(refuses_files)
{
	struct tess_source source;
	struct tess_program *p;
	struct store *s;

	shape = &shapes[0];
	s = make_store(false);
	p = record_on(s, "none", "tp=1");
	strcpy(get_file(s, "x.3.w3")->name, "x.3.w4"); /* still in its place */
	expect_refused(s, "mlp.experts.gate_up_proj: store: tensor x.3.w3 is not there");
	source = make_source(s);
	ck_assert_int_lt(tess_unexpected_check(p, &mixture_model, &source, true), 0);
	expect_part(tess_error(), "no module of model mixture asks for x.3.w4 (the nearest is ");
	strcpy(get_file(s, "x.3.w4")->name, "x.3.w3");
	get_file(s, "x.4.w2")->shape[1] = 14;
	expect_refused(s, "store: mlp.experts.down_proj (x.4.w2 in files): shape [12, 14], but "
	                  "config.json makes it [12, 13]");
	get_file(s, "x.4.w2")->shape[1] = 13;
	get_file(s, "renamed.head")->shape[0] = 3;
	expect_refused(s, "store: head.weight (renamed.head in files): shape [3, 12]");
	tess_program_free(p);
	free_store(s);
	s = make_store(true);
	get_file(s, "mlp.experts.down_proj")->shape[0] = 6;
	expect_refused(s, "store: mlp.experts.down_proj: shape [6, 12, 13], but config.json makes "
	                  "it [5, 12, 13]");
	free_store(s);
}
END_TEST

START_TEST(refuses_routes)
{
	static const struct tess_route wrong[] = {
		{ .size = sizeof wrong[0], .top = 0 },
		{ .size = sizeof wrong[0], .top = 6 },
		{ .size = sizeof wrong[0], .top = 2, .groups = 2, .groups_kept = 1 },
		{ .size = sizeof wrong[0], .top = 1, .groups = 5, .groups_kept = 1 },
		{ .size = sizeof wrong[0], .top = 1, .correction = "gat.bias" },
	};
	static const char *const says[] = { "0 experts for each token, of 5",
		                            "6 experts for each token, of 5",
		                            "groups must be equal, of two or more",
		                            "groups must be equal, of two or more",
		                            "mlp.gat.bias: no module has such a parameter" };
	struct mixture_shape changed = shapes[0];
	struct store *s;

	shape = &changed;
	s = make_store(false);
	changed.route = wrong[_i];
	expect_refused(s, says[_i]);
	free_store(s);
}
END_TEST

/* ---- names ----------------------------------------------------------------------------------- */

START_TEST(names_in_files)
{
	const struct tess_stored table[] = {
		{ "a.*.b", (const char *const[]){ "one.*", NULL } },
		{ "a.*.*", (const char *const[]){ "*.#.*", "*.#.second.*", NULL } },
		{ "p.**", (const char *const[]){ "**", NULL } },
		{ "a.**", (const char *const[]){ "q.**", NULL } },
		{ 0 }
	};
	static const struct {
		const char *stored, *name, *first, *last; /* last: of expert 12 */
		int32_t nparts;
	} cases[] = {
		{ "one.x", "a.x.b", "one.x", "one.x", 1 },
		{ "x.0.b", "a.x.b", "x.0.b", "x.12.second.b", 2 }, /* the second alternative */
		{ "x.0.y", "a.x.y", "x.0.y", "x.12.second.y", 2 },
		{ "w.1.z", "p.w.1.z", "w.1.z", "w.1.z", 1 },
		{ "q.x.y.z", "a.x.y.z", "q.x.y.z", "q.x.y.z", 1 },
		{ "other", "a.x.b", "a.x.b", "a.x.b", 1 }, /* none: its own */
		{ "one.x", "a.x.bb", "a.x.bb", "a.x.bb", 1 },
		{ "one.x.y", "a.x.y.b", "a.x.y.b", "a.x.y.b", 1 },
	};
	struct tess_arena arena = { 0 };
	char text[TESS_FILE_NAME];

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct store s = { .n = 1 };
		struct tess_source source = make_source(&s);
		struct tess_files f;

		snprintf(s.file[0].name, sizeof s.file[0].name, "%s", cases[i].stored);
		ck_assert(!tess_files_find(&arena, table, &source, cases[i].name, &f));
		ck_assert_int_eq(f.nparts, cases[i].nparts);
		ck_assert_str_eq(tess_files_format(&f, 0, 0, text), cases[i].first);
		ck_assert_str_eq(tess_files_format(&f, 12, f.nparts - 1, text), cases[i].last);
	}
	tess_arena_free(&arena);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("experts", 120, &r);

	setenv("TESSERA_LAYOUT", "rows", 1);
	tcase_add_loop_test(t, every_way, 0, SHAPES);
	tcase_add_loop_test(t, what_moves, 0, 6);
	tcase_add_loop_test(t, a_rank_reads_its_own, 0, 8);
	tcase_add_test(t, many_experts);
	tcase_add_loop_test(t, refuses_plans, 0, (int)(sizeof wrong_plans / sizeof *wrong_plans));
	tcase_add_test(t, refuses_files);
	tcase_add_loop_test(t, refuses_routes, 0, 5);
	tcase_add_test(t, names_in_files);
	return suite_end(r);
}

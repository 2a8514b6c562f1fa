/*
 * test_pipeline.c - stages of a pipeline: the bits of one rank for every family, forward and
 * backward; the first modules of stages; the messages between them; and refusals.
 */
#include "core/base/option.h"
#include "nn/lower/lower.h"
#include "nn/program/storage.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/suite.h"

#include <jansson.h>
#include <tessera/coll.h>

#define GOLDENS "tests/data/goldens/"
enum { IDS = 42 };

static const struct {
	const char *checkpoint, *plan;
	const char *mesh[3]; /* for inference, for training, and for training with recomputing */
} pipelines[] = {
	{ "data", NULL, { "pp=3,tp=2", "pp=5,tp=1", "dp=2,pp=2,tp=2" } },
	{ "data", "tp+sp", { "pp=2,tp=3", "pp=3,tp=2", "tp=2,pp=2" } },
	{ GOLDENS "llama", NULL, { "pp=2,tp=3", "tp=3,pp=2", "dp=3,pp=2,tp=1" } },
	{ GOLDENS "llama-odd", NULL, { "tp=2,pp=2", "pp=2,tp=3", "pp=2,tp=1" } },
	{ GOLDENS "llama-bf16", NULL, { "pp=2,tp=2", "dp=2,pp=2,tp=1", "pp=2,tp=2" } },
	{ GOLDENS "gemma2", NULL, { "pp=2,tp=2", "pp=2,tp=2", "pp=2,tp=1" } },
	{ GOLDENS "gpt2", NULL, { "pp=2,tp=2", "pp=2,tp=2", NULL } },
	{ GOLDENS "mistral", NULL, { "pp=2,tp=1", "pp=2,tp=2", NULL } },
	{ GOLDENS "mixtral", NULL, { "pp=2,tp=2", "pp=2,tp=2", "pp=2,tp=1" } },
	{ GOLDENS "mixtral", "ep", { "pp=2,tp=2", "pp=2,tp=2", NULL } },
	{ GOLDENS "olmo2", NULL, { "pp=2,tp=2", "pp=2,tp=2", NULL } },
	{ GOLDENS "phi3", NULL, { "pp=2,tp=2", "pp=2,tp=2", NULL } },
	{ GOLDENS "qwen2", NULL, { "pp=2,tp=2", "pp=2,tp=2", NULL } },
	{ GOLDENS "qwen3", NULL, { "pp=2,tp=2", "pp=2,tp=2", NULL } },
	{ GOLDENS "qwen3_moe", NULL, { "pp=3,tp=2", "pp=3,tp=1", "pp=2,tp=1" } },
	{ GOLDENS "deepseek_v3", NULL, { "pp=3,tp=2", "pp=2,tp=2", "pp=3,tp=1" } },
	{ GOLDENS "gpt_neox", "tp+sp", { "pp=2,tp=2", "tp=2,pp=2", NULL } },
	{ GOLDENS "mixtral", "tp+sp", { "pp=2,tp=3", "dp=2,pp=2,tp=2", "pp=2,tp=2" } },
	{ GOLDENS "qwen2_moe", "tp+sp", { "pp=3,tp=2", "pp=3,tp=2", NULL } },
	/* only a part of the columns of a value is sent */
	{ GOLDENS "deepseek_v3",
	  "{\"pp:model.layers.1.self_attn.kv_a_layernorm\":\"stage\"}",
	  { "pp=2,tp=2", "pp=2,tp=1", NULL } },
	/* a sum is sent before it is finished, as several nodes */
	{ GOLDENS "olmo2",
	  "{\"**.mlp.gate_proj\":\"colwise\",\"**.mlp.up_proj\":\"colwise\","
	  "\"**.mlp.down_proj\":\"local_rowwise\","
	  "\"**.post_feedforward_layernorm\":\"prepare_input:in=replicate\","
	  "\"pp:layers.0.post_feedforward_layernorm\":\"stage\"}",
	  { "pp=2,tp=3", "pp=2,tp=3", "tp=5,pp=2" } },
};

static tess_status run_once(const struct checkpoint_fixture *f, const char *plan, const char *mesh,
                            float **logits, int64_t *count)
{
	int32_t ids[IDS];
	struct lockstep how = { f->model, &f->source, plan, 1, ids, IDS, true, mesh };

	for (int32_t i = 0; i < IDS; i++)
		ids[i] = (i * 31 + 7) % 90;
	return lockstep_run(&how, logits, count);
}

/* Trains on three sequences; mixtures of experts have the load balancing loss. */
static tess_status train_on_stages(const struct checkpoint_fixture *f, const char *plan,
                                   const char *mesh, const char *const *recompute,
                                   struct lockstep_gradients *out)
{
	static const int64_t lengths[] = { 35, 3, 4 };
	int32_t ids[IDS], labels[IDS];
	struct lockstep how = { f->model, &f->source, plan, 1, ids, IDS, true, mesh };
	struct lockstep_step step = {
		.how = &how,
		.lengths = lengths,
		.nsequences = 3,
		.labels = labels,
		.balance = strstr(f->model->name, "mixtral") || !strcmp(f->model->name, "qwen2_moe")
		                   ? 0.02
		                   : 0
	};

	for (int32_t i = 0; i < IDS; i++) {
		ids[i] = (i * 31 + 7) % 90;
		labels[i] = i % 7 ? i * 5 % 89 : -100;
	}
	return lockstep_train_again(&step, recompute, out);
}

static const char *const layers[] = { "**.layers.*", NULL }, *const mlps[] = { "**.mlp", NULL };

START_TEST(gives_the_bits_of_one_rank)
{
	const char *plan = pipelines[_i].plan, *whole = plan && strstr(plan, "pp:") ? "none" : plan;
	struct checkpoint_fixture f;
	struct lockstep_gradients want, have;
	float *logits[2];
	int64_t n[2];

	open_checkpoint_fixture(pipelines[_i].checkpoint, &f);
	ck_assert_msg(!run_once(&f, whole, "tp=1", &logits[0], &n[0]), "%s", tess_error());
	ck_assert_msg(!run_once(&f, plan, pipelines[_i].mesh[0], &logits[1], &n[1]), "%s",
	              tess_error());
	ck_assert_int_eq(n[0], n[1]);
	ck_assert(!memcmp(logits[0], logits[1], 4 * (size_t)n[0]));
	free(logits[0]);
	free(logits[1]);
	ck_assert_msg(!train_on_stages(&f, whole, "tp=1", NULL, &want), "%s", tess_error());
	for (int i = 1; i < 3 && pipelines[_i].mesh[i]; i++) {
		const char *mesh = pipelines[_i].mesh[i];

		ck_assert_msg(!train_on_stages(&f, plan, mesh, i > 1 ? mlps : NULL, &have),
		              "%s: %s", mesh, tess_error());
		lockstep_compare_gradients(mesh, &want, &have);
		lockstep_free_gradients(&have);
	}
	lockstep_free_gradients(&want);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- where stages begin, and what is sent ---------------------------------------------------- */

/* Records a step of IDS tokens; overrides of the plan end with NULL; t: of training, else NULL. */
static tess_status record_pipeline_step(const struct checkpoint_fixture *f, const char *plan,
                                        const char *const *overrides, const char *mesh,
                                        const struct tess_training *t,
                                        const struct tess_pipeline *pipeline,
                                        struct tess_program **out)
{
	struct tess_plan opened;
	struct tess_record_options options = { .model = f->model,
		                               .plan = &opened,
		                               .source = &f->source,
		                               .ntokens = IDS,
		                               .nselected = t ? IDS : 1,
		                               .pipeline = pipeline,
		                               .training = t };
	tess_status st;
	int32_t n = 0;

	while (overrides[n])
		n++;
	st = tess_plan_open(f->model, plan, overrides, n, &opened);
	if (st)
		return st;
	st = tess_mesh_shape_parse(mesh, 0, &options.mesh);
	if (!st)
		st = tess_program_compile(&options, out);
	tess_plan_free(&opened);
	return st;
}

static tess_status record_pipeline(const struct checkpoint_fixture *f, const char *plan,
                                   const char *mesh, bool training,
                                   const struct tess_pipeline *pipeline, struct tess_program **out)
{
	static const int64_t length = IDS;
	struct tess_training t = { .lengths = &length, .nsequences = 1, .all_sequences = 1 };

	return record_pipeline_step(f, plan, (const char *[]){ NULL }, mesh, training ? &t : NULL,
	                            pipeline, out);
}

static const struct stage_case {
	const char *checkpoint, *plan, *mesh;
	const char *stages; /* stages of the weights of norms, in order */
	const char *sends; /* "from:to:module" of each forward send */
	int backward; /* number of later sends, except the loss */
} stage_cases[] = {
	/* five layers, and a tied head in the last stage, from where the logits are sent */
	{ "data", "none", "pp=2", "00000011111",
	  "0:1:model.layers.3.input_layernorm 1:0:the model's output ", 1 },
	{ "data", "none", "pp=3", "00001111222",
	  "0:1:model.layers.2.input_layernorm 1:2:model.layers.4.input_layernorm "
	  "2:0:the model's output ",
	  2 },
	/* each stage has a module, though fewer stages would suffice */
	{ "data", "none", "pp=4", "00112222333",
	  "0:1:model.layers.1.input_layernorm 1:2:model.layers.2.input_layernorm "
	  "2:3:model.layers.4.input_layernorm 3:0:the model's output ",
	  3 },
	{ "data", "none", "pp=5", "00112233444",
	  "0:1:model.layers.1.input_layernorm 1:2:model.layers.2.input_layernorm "
	  "2:3:model.layers.3.input_layernorm 3:4:model.layers.4.input_layernorm "
	  "4:0:the model's output ",
	  4 },
	{ "data", "{\"pp:model.layers.1\":\"stage\"}", "pp=2,tp=1", "00111111111",
	  "0:1:model.layers.1.input_layernorm 1:0:the model's output ", 1 },
	{ "data", "{\"pp\":{\"model.layers.0\":\"stage\",\"layers.4\":\"stage\"}}", "pp=3,tp=1",
	  "11111111222",
	  "0:1:model.layers.0.input_layernorm 1:2:model.layers.4.input_layernorm "
	  "2:0:the model's output ",
	  2 },
	/* a stage may begin inside a layer: the residual is sent, too */
	{ "data", "{\"pp:model.layers.2.mlp\":\"stage\"}", "pp=2,tp=1", "00000011111",
	  "0:1:model.layers.2.mlp.gate_proj 0:1:model.layers.2 1:0:the model's output ", 2 },
	/* modules after the layers are in the last stage */
	{ GOLDENS "gemma2", "none", "pp=2", "000011111",
	  "0:1:model.layers.1.input_layernorm 1:0:the model's output ", 1 },
	/* so is an untied head */
	{ GOLDENS "llama", "none", "pp=2", "00111",
	  "0:1:model.layers.1.input_layernorm 1:0:the model's output ", 1 },
};

static void list_sends(const struct tess_program *p, int32_t from, char *out, size_t size, int *n)
{
	*out = 0;
	*n = 0;
	for (int32_t i = from; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];
		size_t len = strlen(out);

		if (rec->kind != TESS_REC_SEND)
			continue;
		snprintf(out + len, size - len, "%d:%d:%s ", (int)rec->stage,
		         (int)rec->num[TESS_REC_SEND_TO], rec->module);
		++*n;
	}
}

static tess_status find_absent(void *self, const char *name, struct tess_view *out)
{
	(void)self;
	(void)name;
	*out = (struct tess_view){ .dtype = TESS_F32, .ndim = -1 };
	return TESS_OK;
}

/* Checks a table that is larger than all layers: each stage still gets a layer. */
START_TEST(gives_each_stage_a_module)
{
	struct checkpoint_fixture f;
	struct tess_program *p;

	open_checkpoint_fixture("data", &f);
	f.source.find = find_absent;
	f.source.config =
		json_pack("{s:i, s:i, s:i, s:i, s:i, s:b}", "hidden_size", 64,
	                  "num_attention_heads", 8, "num_hidden_layers", 4, "intermediate_size", 64,
	                  "vocab_size", 9000, "tie_word_embeddings", 1);
	ck_assert_msg(!record_pipeline(&f, "none", "pp=4", false, NULL, &p), "%s", tess_error());
	for (int32_t i = 0; i < p->nweights; i++) {
		int layer;

		if (sscanf(p->weight[i]->name, "model.layers.%d.", &layer) == 1)
			ck_assert_int_eq(p->weight[i]->stage, layer);
	}
	tess_program_free(p);
	json_decref((json_t *)f.source.config);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

static void expect_stages(const struct stage_case *c, const struct tess_program *p)
{
	char stages[64] = "";

	for (int32_t i = 0; i < p->nweights; i++)
		if (strstr(p->weight[i]->name, "norm"))
			snprintf(stages + strlen(stages), sizeof stages - strlen(stages), "%d",
			         (int)p->weight[i]->stage);
	ck_assert_str_eq(stages, c->stages);
}

START_TEST(begins_stages)
{
	const struct stage_case *c = &stage_cases[_i];
	struct checkpoint_fixture f;
	struct tess_program *p;
	char sends[1024];
	int32_t loss = 0;
	int n;

	open_checkpoint_fixture(c->checkpoint, &f);
	ck_assert_msg(!record_pipeline(&f, c->plan, c->mesh, false, NULL, &p), "%s", tess_error());
	expect_stages(c, p);
	list_sends(p, 0, sends, sizeof sends, &n);
	ck_assert_str_eq(sends, c->sends);
	tess_program_free(p);

	ck_assert_msg(!record_pipeline(&f, c->plan, c->mesh, true, NULL, &p), "%s", tess_error());
	expect_stages(c, p);
	while (p->record[loss]->kind != TESS_OP_LOSS_MAX)
		loss++;
	list_sends(p, loss, sends, sizeof sends, &n);
	ck_assert_msg(n == c->backward, "%d sends of gradients: %s", n, sends);
	tess_program_free(p);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* Checks that the ranks of a stage have only its weights, and steps of its records only. */
START_TEST(holds_the_weights_of_a_stage)
{
	struct checkpoint_fixture f;
	struct tess_program *p;
	int32_t nsteps = 0;

	open_checkpoint_fixture("data", &f);
	ck_assert_msg(!record_pipeline(&f, NULL, "pp=2,tp=2", false, NULL, &p), "%s", tess_error());
	for (int32_t r = 0; r < 4; r++) {
		struct tess_rank_program *l;

		ck_assert(!tess_program_lower(p, r, NULL, &l));
		for (int32_t i = 0; i < l->nsteps; i++)
			if (l->step[i]->kind == TESS_STEP_OP)
				ck_assert_int_eq(p->record[l->step[i]->record]->stage, r / 2);
		for (int32_t i = 0; i < p->nweights; i++)
			ck_assert_int_eq(tess_weight_count_local(p, p->weight[i], r) > 0,
			                 p->weight[i]->stage == r / 2);
		nsteps += l->nsteps;
		tess_rank_program_free(l);
	}
	ck_assert_int_gt(nsteps, 40);
	tess_program_free(p);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- bytes at boundaries --------------------------------------------------------------------- */

/* The ranks of a stage together send each hidden value once, in a step of IDS tokens. */
static const struct boundary_case {
	const char *checkpoint, *plan, *mesh;
	int hidden, crossings; /* crossings: 2 for two values or ranks */
	const char *const *recompute;
	double balance; /* factor of the load balancing loss, of which only sums are sent */
	const char *overrides[3];
} boundary_cases[] = {
	{ "data", "tp+sp", "pp=2,tp=3", 64, 1, NULL, 0, { NULL } },
	{ GOLDENS "llama", "tp+sp", "pp=2,tp=3", 48, 1, NULL, 0, { NULL } },
	{ GOLDENS "llama", "tp+sp", "tp=2,pp=2", 48, 1, layers, 0, { NULL } },
	{ GOLDENS "gpt2", "tp+sp", "pp=2,tp=2", 48, 1, NULL, 0, { NULL } },
	{ GOLDENS "gpt_neox", "tp+sp", "pp=2,tp=2", 40, 1, mlps, 0, { NULL } },
	{ GOLDENS "gemma3_text", "tp+sp", "pp=2,tp=2", 36, 1, layers, 0, { NULL } },
	{ GOLDENS "mixtral", "tp+sp", "pp=2,tp=2", 32, 1, NULL, 0.02, { NULL } },
	{ GOLDENS "qwen2_moe", "tp+sp", "pp=3,tp=2", 32, 1, mlps, 0.02, { NULL } },
	{ GOLDENS "qwen3_moe", "tp+sp", "pp=3,tp=2", 32, 1, layers, 0.02, { NULL } },
	{ GOLDENS "deepseek_v3", "tp+sp", "pp=3,tp=2", 32, 1, mlps, 0, { NULL } },
	/* embeddings alone */
	{ GOLDENS "llama", "tp+sp", "pp=2,tp=2", 48, 1, NULL, 0, { "pp:model.layers.0=stage" } },
	/* a sum is finished before it is sent, and the residual is sent, too */
	{ GOLDENS "olmo2",
	  "tp+sp",
	  "pp=2,tp=2",
	  48,
	  2,
	  NULL,
	  0,
	  { "**.mlp.down_proj=local_rowwise",
	    "pp:model.layers.0.post_feedforward_layernorm=stage" } },
	/* a replicated value is sent by both ranks, and not once more after its slice */
	{ GOLDENS "llama",
	  "tp",
	  "pp=2,tp=2",
	  48,
	  2,
	  NULL,
	  0,
	  { "model.layers.1.input_layernorm=sequence_parallel",
	    "model.layers.1.self_attn=prepare_input:in=replicate" } },
};

/* Adds the bytes of values of tokens that a rank sends to each other stage. */
static void add_sent_bytes(const struct tess_program *p, int32_t rank, uint64_t *bytes)
{
	struct tess_rank_program *l;

	ck_assert(!tess_program_lower(p, rank, NULL, &l));
	for (int32_t i = 0; i < l->nsteps; i++) {
		const struct tess_record *rec = p->record[l->step[i]->record];

		if (l->step[i]->kind == TESS_STEP_COLL && l->step[i]->coll.kind == TESS_SEND &&
		    rec->kind == TESS_REC_SEND && rec->in[0]->dim[0] == p->tokens)
			bytes[(int)rec->num[TESS_REC_SEND_TO]] +=
				l->step[i]->coll.count * tess_width(l->step[i]->coll.dtype);
	}
	tess_rank_program_free(l);
}

START_TEST(sends_each_hidden_value_once)
{
	static const int64_t length = IDS;
	const struct boundary_case *k = &boundary_cases[_i];
	struct tess_training t = { .lengths = &length,
		                   .nsequences = 1,
		                   .all_sequences = 1,
		                   .recompute = k->recompute,
		                   .balance = k->balance };
	struct checkpoint_fixture f;
	struct tess_program *p;
	uint64_t sent[3][3] = { 0 };

	open_checkpoint_fixture(k->checkpoint, &f);
	ck_assert_msg(!record_pipeline_step(&f, k->plan, k->overrides, k->mesh, &t, NULL, &p), "%s",
	              tess_error());
	for (int32_t r = 0; r < p->mesh.nranks; r++)
		add_sent_bytes(p, r,
		               sent[tess_mesh_shape_coordinate(&p->mesh, p->pipeline_along, r)]);
	for (int32_t s = 0; s + 1 < p->nstages; s++) {
		uint64_t once = IDS * sizeof(float) * (uint64_t)(k->hidden * k->crossings);

		ck_assert_uint_eq(sent[s][s + 1], once);
		ck_assert_uint_eq(sent[s + 1][s], once);
	}
	ck_assert_uint_eq(sent[0][2] + sent[2][0], 0);
	tess_program_free(p);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* Checks a gathered value that two later stages read: the first of them gathers it. */
START_TEST(gathers_in_the_first_stage_that_reads)
{
	static const char *const overrides[] = { "pp:model.layers.1.self_attn=stage",
		                                 "pp:model.layers.1.mlp=stage", NULL };
	struct checkpoint_fixture f;
	struct tess_program *p;
	int32_t i = 0;

	open_checkpoint_fixture(GOLDENS "cohere2", &f);
	ck_assert_msg(!record_pipeline_step(&f, "tp+sp", overrides, "pp=3,tp=2", NULL, NULL, &p),
	              "%s", tess_error());
	while (p->record[i]->kind != TESS_REC_MOVE ||
	       strcmp(p->record[i]->module, "model.layers.1.self_attn") != 0)
		i++;
	ck_assert_int_eq(tess_move_kind(p, p->record[i]), TESS_ALL_GATHER);
	ck_assert_int_eq(p->record[i]->stage, 1);
	tess_program_free(p);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- schedules ------------------------------------------------------------------------------- */

static const struct schedule_case {
	const char *checkpoint, *plan, *mesh, *schedule;
	int32_t n; /* micro-batches */
} schedule_cases[] = {
	{ GOLDENS "llama", "none", "pp=2", "1f1b", 1 },
	{ GOLDENS "deepseek_v3", "none", "pp=3", "zb-h1", 7 },
	{ GOLDENS "qwen3_moe", "none", "pp=3", "gpipe", 4 },
	{ GOLDENS "qwen3_moe", "tp+sp", "pp=2,tp=2", "1f1b", 5 },
	{ "data", "none", "pp=2", "interleaved:2", 3 },
	{ "data", "tp+sp", "pp=2,tp=2", "zb-v", 5 },
};

struct message_queue { /* records sent from one rank to another, in order */
	int32_t n, taken;
	struct {
		int32_t micro, record;
	} sent[1024];
};

struct scheduled_rank {
	const struct tess_pipeline *pipeline;
	struct tess_rank_program *l;
	int32_t rank, at; /* at: its next action */
	bool ran[64][TESS_PIPELINE_KINDS][8]; /* by segment: stage, kind; by micro-batch */
};

/* Runs the messages of a segment; false: one that it receives has not been sent. */
static bool run_messages(struct scheduled_rank *r, const struct tess_segment *segment,
                         int32_t micro, struct message_queue *queue)
{
	int32_t nranks = r->pipeline->nranks, wanted = 0;

	for (int32_t i = segment->first; i < segment->end; i++) {
		const struct tess_coll *c = &r->l->step[i]->coll;
		bool sends = c->kind == TESS_SEND;
		struct message_queue *q;

		if (r->l->step[i]->kind != TESS_STEP_COLL || !tess_kind_is_p2p(c->kind))
			continue;
		q = &queue[sends ? r->rank * nranks + c->peer : c->peer * nranks + r->rank];
		if (!sends && q->taken + ++wanted > q->n)
			return false;
	}
	for (int32_t i = segment->first; i < segment->end; i++) {
		const struct tess_coll *c = &r->l->step[i]->coll;
		struct message_queue *q;

		if (r->l->step[i]->kind != TESS_STEP_COLL || !tess_kind_is_p2p(c->kind))
			continue;
		if (c->kind == TESS_SEND) {
			q = &queue[r->rank * nranks + c->peer];
			q->sent[q->n].micro = micro;
			q->sent[q->n++].record = r->l->step[i]->record;
			continue;
		}
		q = &queue[c->peer * nranks + r->rank];
		ck_assert_int_eq(q->sent[q->taken].micro, micro);
		ck_assert_int_eq(q->sent[q->taken++].record, r->l->step[i]->record);
	}
	return true;
}

/* Runs the next action of a rank; false: it waits, or there is none. */
static bool run_scheduled(struct scheduled_rank *r, struct message_queue *queue)
{
	const struct tess_pipeline_action *a = &r->pipeline->actions[r->rank][r->at];
	bool full = a->kind == TESS_PIPELINE_BACKWARD;

	if (r->at == r->pipeline->nactions[r->rank])
		return false;
	for (int32_t k = 0; k < TESS_PIPELINE_KINDS; k++) {
		const struct tess_segment *segment =
			tess_rank_program_find_segment(r->l, a->stage, k);
		bool part = full && (k == TESS_PIPELINE_BACKWARD_INPUTS ||
		                     k == TESS_PIPELINE_BACKWARD_WEIGHTS);

		if (!segment || (k != a->kind && !part))
			continue;
		if (!run_messages(r, segment, a->micro, queue))
			return false;
		ck_assert(!r->ran[a->stage][k][a->micro]);
		r->ran[a->stage][k][a->micro] = true;
	}
	r->at++;
	return true;
}

/* Checks that a rank has run each of its segments for each micro-batch, and all have steps. */
static void expect_all_ran(const struct scheduled_rank *r, int32_t n)
{
	int32_t steps = 0;

	for (int32_t i = 0; i < r->l->nsegments; i++) {
		const struct tess_segment *s = &r->l->segment[i];

		for (int32_t k = 0; k < n; k++)
			ck_assert_msg(r->ran[s->stage][s->kind][k],
			              "rank %d: stage %d, kind %d, "
			              "micro-batch %d has not run",
			              (int)r->rank, (int)s->stage, (int)s->kind, (int)k);
		ck_assert_int_eq(s->first, steps);
		steps = s->end;
	}
	ck_assert_int_eq(steps, r->l->nsteps);
}

/* Checks that a schedule runs all steps of a program, with matching messages. */
START_TEST(runs_all_segments)
{
	const struct schedule_case *k = &schedule_cases[_i];
	static struct message_queue queue[9];
	static struct scheduled_rank rank[3];
	struct checkpoint_fixture f;
	struct tess_pipeline *pipeline;
	struct tess_program *p;
	int32_t nranks = k->mesh[3] - '0';
	bool moved = true;

	memset(queue, 0, sizeof queue);
	memset(rank, 0, sizeof rank);
	open_checkpoint_fixture(k->checkpoint, &f);
	ck_assert(!tess_pipeline_open(k->schedule, nranks, k->n, &pipeline));
	ck_assert_msg(!record_pipeline(&f, k->plan, k->mesh, true, pipeline, &p), "%s",
	              tess_error());
	for (int32_t i = 0; i < nranks; i++) {
		rank[i].pipeline = pipeline;
		rank[i].rank = i;
		ck_assert(!tess_program_lower(p, i * p->mesh.dim[p->pipeline_along].stride, NULL,
		                              &rank[i].l));
	}
	while (moved) {
		moved = false;
		for (int32_t i = 0; i < nranks; i++)
			while (run_scheduled(&rank[i], queue))
				moved = true;
	}
	for (int32_t i = 0; i < nranks; i++) {
		ck_assert_int_eq(rank[i].at, pipeline->nactions[i]);
		expect_all_ran(&rank[i], k->n);
		tess_rank_program_free(rank[i].l);
	}
	for (int32_t i = 0; i < nranks * nranks; i++)
		ck_assert_int_eq(queue[i].n, queue[i].taken);
	tess_program_free(p);
	tess_pipeline_close(pipeline);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
	const char *plan, *mesh, *says;
} refusals[] = {
	{ "none", "pp=6",
	  "model llama: 5 numbered modules cannot be cut for 6 stages along pp; "
	  "use 1 to 5" },
	{ "{\"pp:model.layers.1\":\"stage\"}", "pp=3",
	  "model.layers.1: the plan begins 1 stage after the first, and there are 3 along "
	  "pp; use 2" },
	{ "{\"pp:model.layers.*\":\"stage\"}", "pp=1",
	  "model.layers.0: the plan begins 5 stages after the first, and there is 1 along "
	  "pp; use 6" },
	{ "{\"model.layers.1\":\"stage\"}", "pp=2,tp=2",
	  "model.layers.1: style stage begins a stage of a pipeline, which is for mesh dimension "
	  "pp" },
	{ "{\"pp:model.norm\":\"isolated\"}", "pp=2",
	  "model.norm: style isolated along pp, where each rank runs modules of its own" },
	{ "{\"pp:model.layers.1\":\"stage:2\"}", "pp=2",
	  "stage takes no configuration, not \"2\"" },
};

START_TEST(refuses)
{
	struct checkpoint_fixture f;
	struct tess_program *p;

	open_checkpoint_fixture("data", &f);
	ck_assert_int_eq(record_pipeline(&f, refusals[_i].plan, refusals[_i].mesh, false, NULL, &p),
	                 TESS_EINVAL);
	expect_part(tess_error(), refusals[_i].says);
	tess_checkpoint_close(f.checkpoint);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("pipeline", 120, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_loop_test(t, gives_the_bits_of_one_rank, 0,
	                    (int)(sizeof pipelines / sizeof *pipelines));
	tcase_add_loop_test(t, begins_stages, 0, (int)(sizeof stage_cases / sizeof *stage_cases));
	tcase_add_loop_test(t, sends_each_hidden_value_once, 0,
	                    (int)(sizeof boundary_cases / sizeof *boundary_cases));
	tcase_add_test(t, gathers_in_the_first_stage_that_reads);
	tcase_add_test(t, gives_each_stage_a_module);
	tcase_add_test(t, holds_the_weights_of_a_stage);
	tcase_add_loop_test(t, runs_all_segments, 0,
	                    (int)(sizeof schedule_cases / sizeof *schedule_cases));
	tcase_add_loop_test(t, refuses, 0, (int)(sizeof refusals / sizeof *refusals));
	return suite_end(r);
}

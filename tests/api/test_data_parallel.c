/*
 * test_data_parallel.c - data parallel in training: a rank's part of each parameter (ddp, zero1,
 * zero3), alone and with the other dimensions of a mesh, gathered at once or in tiles. Losses,
 * gradients, weights and the optimizer's state have the bits of one rank.
 */
#include "core/base/status.h"
#include "tests/support/hashed_training.h"
#include "tests/support/suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/split.h>
#include <tessera/train.h>

enum { SEQUENCES = 8, STEPS = 2, TEXT = 240, MICRO = 19 };

/* Lengths of sequences, from i on in batch i; 33 and 64 end after and at a unit of 32. */
static const int64_t lengths[SEQUENCES + 2 * STEPS] = { 33, 5, 40, 2, 64, 32, 1, 7, 9, 20, 3, 31 };

struct job { /* of all ranks */
	const char *model, *mesh, *plan;
	const char *const *overrides; /* ends with NULL */
	uint64_t bucket, tile;
	int64_t nsequences;
	int nmicro; /* micro-batches of the second step; 0: two */
	double dropout;
	const char *const *recompute; /* ends with NULL */
	uint64_t hash; /* of gradients, weights, masters, moments, losses and norms */
	struct tess_trainer_info info; /* of rank 0 */
};

static void make_batch(int64_t nsequences, int index, int32_t *ids, struct tess_batch *batch)
{
	int64_t n = 0;

	for (int64_t i = 0; i < nsequences; i++)
		n += lengths[index + i];
	for (int64_t i = 0; i < n; i++)
		ids[i] = (int32_t)((i * 37 + i / 7 * 11 + index * 29) % 90);
	*batch = (struct tess_batch){ nsequences, lengths + index, ids, NULL };
}

/* Trains on batches; the second step has two micro-batches, or more. */
static tess_status train_on_batches(struct tess_trainer *t, const void *job, uint64_t *hash)
{
	const struct job *j = job;
	static const int most = SEQUENCES + 2 * STEPS;
	int32_t ids[MICRO][TEXT];
	struct tess_batch micro[MICRO];
	struct tess_training_result r = { .size = sizeof r };
	tess_status st = TESS_OK;

	for (int step = 0; step < STEPS && !st; step++) {
		int n = !step ? 1 : j->nmicro ? j->nmicro : 2;

		for (int i = 0; i < n; i++)
			make_batch(j->nsequences, (2 * step + i) % (most - (int)j->nsequences + 1),
			           ids[i], &micro[i]);
		st = tess_trainer_step(t, micro, n, 1e-2, &r);
		hash_add_bytes(hash, &r.loss, sizeof r.loss);
		hash_add_bytes(hash, &r.norm, sizeof r.norm);
		if (!st)
			st = hash_trained_tensors(t, TESS_GRADIENT, TESS_GRADIENT, hash);
	}
	return st ? st : hash_trained_tensors(t, TESS_WEIGHT, TESS_MOMENT2, hash);
}

static tess_status run_training_job(struct job *j)
{
	struct tess_trainer_options options = { .size = sizeof options,
		                                .threads = 1,
		                                .plan = j->plan,
		                                .overrides = j->overrides,
		                                .bucket = j->bucket,
		                                .tile = j->tile,
		                                .dropout = j->dropout,
		                                .recompute = j->recompute,
		                                .weight_decay = 0.1,
		                                .clip = 1 };
	struct hashed_training h = { .model = j->model,
		                     .mesh = j->mesh,
		                     .options = &options,
		                     .train = train_on_batches,
		                     .job = j };
	tess_status st = hashed_training_run(&h);

	j->hash = h.hash;
	j->info = h.info;
	return st;
}

#define OVER(...) \
	(const char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}

#define TIED "../../../data"
#define TIED_BF16 "../stories260K-bf16"

static const struct layout {
	const char *mesh;
	const char *const *overrides;
	int64_t nsequences;
	uint64_t bucket; /* bytes; 0: all gradients at once */
	bool every; /* for every model, not only for those that differ most */
	const char *plan; /* NULL: the model's */
} layouts[] = {
	{ "dp=2,tp=1", NULL, 3, 0, false, NULL },
	{ "dp=3", NULL, 8, 9000, true, NULL },
	{ "dp=2,tp=1", OVER("dp:**=zero1"), 3, 9000, false, NULL },
	{ "dp=2,tp=1", OVER("dp:**=zero3"), 3, 0, false, NULL },
	{ "dp=2,tp=1", OVER("dp:**=fsdp"), 3, 9000, false, NULL },
	{ "dp=3,tp=1", OVER("dp:**=zero3"), 3, 1, false, NULL },
	{ "dp=2,tp=1", OVER("dp:**=zero2", "dp:**.mlp.**=zero3", "dp:?**.norm=ddp"), 3, 20000,
	  false, NULL },
	{ "dp=2,tp=2", OVER("dp:**=zero3"), 3, 9000, true, NULL },
	{ "dp=2,tp=2", OVER("dp:**=zero3"), 3, 9000, true, "tp+sp" },
	{ "ddp=2,dp=2", OVER("dp:**=zero1"), 8, 0, true, NULL },
	{ "dp=2,pp=2", OVER("dp:**=zero3"), 3, 9000, true, NULL },
	{ "pp=2,dp=2,tp=2", OVER("dp:**=zero1"), 8, 9000, false, "tp+sp" },
	{ "ddp=2,dp=2,tp=1", OVER("dp:**=zero3"), 8, 9000, false, NULL },
	/* a head that reads a part of a full table */
	{ "dp=2,tp=2", OVER("dp:**=zero3", "tp:?transformer.wte=replicate"), 3, 9000, false, NULL },
	{ "dp=3,tp=2", OVER("dp:**=zero1"), 8, 9000, false, NULL },
	{ "dp=6,tp=1", OVER("dp:**=zero3"), 8, 9000, false, NULL },
	{ "ddp=2,dp=2,tp=2", OVER("dp:**=zero3"), 8, 9000, false, NULL },
	{ "dp=8,tp=1", OVER("dp:**=zero3"), 8, 9000, false, NULL },
	{ "dp=8,tp=1", NULL, 8, 0, false, NULL },
	{ NULL, NULL, 0, 0, false, NULL },
};

/*
 * Returns whether a layout is tested with a model. The largest have no style that smaller ones
 * lack: they are tested with one model over loopback, without a sanitizer. With TSan no other sizes
 * with equal threads are tested.
 */
static bool is_layout_taken(const struct layout *l, const char *model, bool all_layouts)
{
	bool large = !strncmp(l->mesh, "dp=6", 4) || !strncmp(l->mesh, "dp=8", 4);
	bool small_only = THIN > 1 || getenv("ONE_MODEL") || strcmp(model, "llama");

	return l->every || (all_layouts && !TSAN && !(small_only && large));
}

static void check_model(const char *model, bool all_layouts)
{
	uint64_t want[SEQUENCES + 1] = { 0 };

	for (const struct layout *l = layouts; l->mesh; l++) {
		if (!is_layout_taken(l, model, all_layouts))
			continue;
		struct job one = { .model = model, .mesh = "tp=1", .nsequences = l->nsequences };
		struct job j = { .model = model,
			         .mesh = l->mesh,
			         .plan = l->plan,
			         .overrides = l->overrides,
			         .bucket = l->bucket,
			         .nsequences = l->nsequences };

		if (!want[l->nsequences] && !TSAN)
			ck_assert_msg(!run_training_job(&one), "%s: %s", model, tess_error());
		if (!want[l->nsequences])
			want[l->nsequences] = one.hash;
		ck_assert_msg(!run_training_job(&j), "%s on %s: %s", model, l->mesh, tess_error());
		if (!want[l->nsequences])
			want[l->nsequences] = j.hash;
		ck_assert_msg(j.hash == want[l->nsequences],
		              "%s on %s (%s, %s): other bits than one rank", model, l->mesh,
		              l->plan ? l->plan : "auto",
		              l->overrides ? l->overrides[0] : "no rule");
	}
}

/* Checks the memory of a rank, except for padding to full lines of each weight's state. */
START_TEST(memory_of_each_style)
{
	static const char *const styles[] = { "ddp", "zero1", "zero3" };
	struct tess_trainer_info info[3];

	for (int i = 0; i < 3; i++) {
		char rule[32];
		const char *const overrides[] = { rule, NULL };
		struct job j = { .model = "llama",
			         .mesh = "dp=4",
			         .overrides = overrides,
			         .bucket = 20000,
			         .nsequences = 4 };

		snprintf(rule, sizeof rule, "dp:**=%s", styles[i]);
		ck_assert_msg(!run_training_job(&j), "%s: %s", styles[i], tess_error());
		info[i] = j.info;
	}
	ck_assert_uint_eq(info[0].weight_bytes, info[0].gradient_bytes);
	ck_assert_uint_eq(info[0].state_bytes, 2 * info[0].weight_bytes);
	ck_assert_uint_eq(info[1].weight_bytes, info[0].weight_bytes);
	ck_assert_uint_le(4 * info[1].gradient_bytes, 21 * info[0].gradient_bytes / 20);
	ck_assert_uint_le(4 * info[1].state_bytes, 11 * info[0].state_bytes / 10);
	ck_assert_uint_eq(4 * info[2].weight_bytes, info[0].weight_bytes);
	ck_assert_uint_eq(info[2].gradient_bytes, info[1].gradient_bytes);
	ck_assert_uint_eq(info[2].state_bytes, info[1].state_bytes);
	/* gathered at a time: two buckets, not all weights */
	ck_assert_uint_lt(info[2].step_bytes, info[1].step_bytes + info[0].weight_bytes / 2);
}
END_TEST

/* Jobs whose weights are gathered in tiles: each record and its gradients in parts. */
static const struct {
	const char *model, *mesh;
	uint64_t tile;
	int nmicro;
	const char *plan;
	const char *const *overrides, *const *recompute;
} tiled[] = {
	/* a row of each weight at a time; a part of a layer; more than the model */
	{ "llama", "dp=2,tp=1", 1, 2, NULL, OVER("dp:**=zero3"), NULL },
	{ "gpt2", "dp=2,tp=2", 5001, 3, NULL, OVER("dp:**=zero3"), OVER("**.mlp") },
	{ TIED, "dp=3,tp=1", 40000, 2, NULL, OVER("dp:**=zero3"), NULL },
	{ TIED, "dp=2,tp=1", 1 << 30, 1, NULL, OVER("dp:**=zero3"), NULL },
	{ "gpt2", "dp=3,tp=1", 1, 1, NULL, OVER("dp:**=zero3"), NULL },
	/* the head reads a part of a full table, and a copy in another stage */
	{ TIED_BF16, "dp=2,tp=2", 3000, 2, NULL,
	  OVER("dp:**=zero3", "tp:model.embed_tokens=replicate"), NULL },
	{ TIED_BF16, "dp=2,pp=2,tp=1", 9000, 3, NULL, OVER("dp:**=zero3"), NULL },
	/* fused weights; shares along one of two dimensions; some modules only */
	{ "phi3", "dp=2,tp=2", 3333, 2, "tp+sp", OVER("dp:**=zero3"), OVER("**.mlp") },
	{ "llama-odd", "ddp=2,dp=2,tp=1", 700, 1, NULL, OVER("dp:**=zero3"), NULL },
	{ "deepseek_v3", "dp=2,tp=2", 2500, 1, NULL, OVER("dp:**=zero3"), NULL },
	{ "llama-bf16", "dp=4", 2000, 3, NULL, OVER("dp:**.mlp.**=zero3"), NULL },
};

START_TEST(tiles)
{
	for (size_t i = 0; i<sizeof tiled / sizeof *tiled; i += THIN> 1 ? 3 : 1) {
		struct job one = { .model = tiled[i].model,
			           .mesh = "tp=1",
			           .nsequences = 4,
			           .nmicro = tiled[i].nmicro };
		struct job j = one;

		j.mesh = tiled[i].mesh;
		j.tile = tiled[i].tile;
		j.plan = tiled[i].plan;
		j.overrides = tiled[i].overrides;
		j.recompute = tiled[i].recompute;
		ck_assert_msg(!run_training_job(&one), "%s: %s", one.model, tess_error());
		ck_assert_msg(!run_training_job(&j), "%s on %s: %s", j.model, j.mesh, tess_error());
		ck_assert_msg(j.hash == one.hash,
		              "%s on %s, tiles of %" PRIu64 " bytes: other bits than one rank",
		              j.model, j.mesh, j.tile);
	}
}
END_TEST

START_TEST(refusals)
{
	static const struct {
		const char *mesh, *rule, *part;
		int64_t nsequences;
	} cases[] = {
		{ "dp=4", "dp:**=zero1", "3 sequences cannot be cut for 4 ranks along dp", 3 },
		{ "tp=2", "tp:model.layers.*.mlp.up_proj=zero3",
		  "up_proj: zero3 is for ranks that train on different sequences", 3 },
		{ "tp=2", "dp:**=zero3", "is for mesh dimension dp", 3 },
		{ "dp=2", "dp:**=zero3:bf16",
		  "zero3 takes state=disk, state=host, weights=disk or weights=host, "
		  "or two with a comma, not \"bf16\"",
		  3 },
		{ "dp=2", "dp:**=zero4", "did you mean zero1?", 3 },
		{ "dp=2", "dp:model.layers.*.mlp.up_proj=colwise",
		  "style colwise cuts along dp, where each rank has sequences of its own", 3 },
		/* by_hand.c */
		{ "dp=2", "dp:**.up_proj=stored:rest", "keeps a share of it, and the state of all",
		  3 },
		{ "dp=2,ddp=2", "dp:**=zero1", "comes directly before dp", 8 },
		{ "ddp=2,dp=1", "ddp:**=zero1", "is for mesh dimension ddp", 8 },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct job j = { .model = "llama",
			         .mesh = cases[i].mesh,
			         .overrides = (const char *const[]){ cases[i].rule, NULL },
			         .nsequences = cases[i].nsequences };

		ck_assert_msg(run_training_job(&j), "%s on %s", cases[i].rule, cases[i].mesh);
		ck_assert_msg(strstr(tess_error(), cases[i].part) != NULL, "%s on %s: %s",
		              cases[i].rule, cases[i].mesh, tess_error());
	}
}
END_TEST

/* The first: plain, tied with [in, out] weights, 16 bits, norms of heads, experts. */
static const char *const models[] = {
	"llama",     "gpt2",    "llama-bf16", "qwen3", "mixtral", "gemma2",    "deepseek_v3",
	"llama-odd", "mistral", "olmo2",      "phi3",  "qwen2",   "qwen3_moe",
};
enum { FEW = 5, MODELS = sizeof models / sizeof *models };

static const struct {
	const char *model, *mesh;
	int nmicro;
	const char *plan;
	const char *const *overrides, *const *recompute;
} pipelines[] = {
	{ "llama", "pp=2", 5, NULL, NULL, NULL },
	/* more than fit in a schedule */
	{ "llama", "dp=2,pp=2,tp=1", MICRO, NULL, NULL, NULL },
	{ "qwen3_moe", "pp=3,tp=1", 7, NULL, NULL, NULL },
	{ "deepseek_v3", "pp=3,tp=2", 4, NULL, NULL, NULL },
	/* tied embeddings: the last stage has a copy of the table */
	{ TIED, "pp=3,tp=1", 5, NULL, NULL, OVER("**.mlp") },
	{ "gpt2", "pp=2,tp=2", 2, "tp+sp", NULL, NULL },
	{ TIED, "dp=2,pp=2,tp=1", 3, NULL, OVER("dp:**=zero1"), NULL },
	{ TIED_BF16, "dp=2,pp=2,tp=1", 2, NULL, OVER("dp:**=zero3"), NULL },
	/* the head reads a part of the copy */
	{ TIED, "pp=2,tp=3", 2, NULL, OVER("tp:model.embed_tokens=replicate"), NULL },
	{ TIED_BF16, "dp=2,pp=2,tp=2", 3, NULL,
	  OVER("tp:model.embed_tokens=replicate", "dp:**=zero3"), NULL },
};

/*
 * Checks that stages of a pipeline, which compute several micro-batches at a time, add them in
 * order.
 */
START_TEST(pipelines_of_micro_batches)
{
	/* with buckets, stages send gradients of tied heads in parts */
	for (size_t i = 0; i<sizeof pipelines / sizeof *pipelines; i += THIN> 1 ? 2 : 1) {
		struct job one = { .model = pipelines[i].model,
			           .mesh = "tp=1",
			           .nsequences = 2,
			           .nmicro = pipelines[i].nmicro,
			           .bucket = i % 3 ? 9000 : 0,
			           .dropout = i % 5 ? 0 : 0.1 };
		struct job j = one;

		j.mesh = pipelines[i].mesh;
		j.plan = pipelines[i].plan;
		j.overrides = pipelines[i].overrides;
		j.recompute = pipelines[i].recompute;
		ck_assert_msg(!run_training_job(&one), "%s: %s", one.model, tess_error());
		ck_assert_msg(!run_training_job(&j), "%s on %s: %s", j.model, j.mesh, tess_error());
		ck_assert_msg(j.hash == one.hash, "%s on %s: other bits than one rank", j.model,
		              j.mesh);
	}
}
END_TEST

/*
 * Checks styles of tests/fixtures/exchanges.c, whose hooks communicate. Those that add in order
 * have the bits of one rank; others those of the same sum with another collective.
 */
START_TEST(communication_by_hand)
{
	static const struct {
		const char *mesh, *plan, *rule;
	} cases[] = { { "tp=1", NULL, NULL },
		      { "tp=3", NULL, "**.down_proj=exchange_sum:nodes" },
		      { "tp=3", NULL, "**.down_proj=exchange_over:rowwise" },
		      { "tp=3", "none", "**.down_proj=exchange_kept:rows" },
		      { "tp=4", "none", "**.down_proj=exchange_kept:broadcast" },
		      { "dp=2,tp=2", "none", "**.down_proj=exchange_kept:send" },
		      { "tp=3", NULL, "**.down_proj=exchange_sum:scatter" },
		      { "tp=3", NULL, "**.down_proj=exchange_sum:exchange" } };
	uint64_t want = 0;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct job j = { .model = "llama",
			         .mesh = cases[i].mesh,
			         .plan = cases[i].plan,
			         .overrides = (const char *const[]){ cases[i].rule, NULL },
			         .nsequences = 3 };

		ck_assert_msg(!run_training_job(&j), "%s: %s", cases[i].rule, tess_error());
		if (!i || strstr(cases[i].rule, ":scatter"))
			want = j.hash;
		ck_assert_msg(j.hash == want, "%s on %s: other bits", cases[i].rule, j.mesh);
	}
}
END_TEST

/* Checks that all ranks end with the failure, while sums and gathers are in flight. */
START_TEST(failure_in_backward)
{
	struct job j = { .model = "llama",
		         .mesh = "dp=3",
		         .overrides = OVER("dp:**=zero3",
		                           "model.layers.0.mlp.up_proj=negated_twice:fails"),
		         .bucket = 9000,
		         .nsequences = 3 };

	for (int i = 0; i < (THIN > 1 ? 4 : 12); i++) {
		j.mesh = i % 4 ? "dp=3" : "dp=2,pp=2,tp=1"; /* while messages are in flight, too */
		ck_assert_msg(run_training_job(&j) == TESS_EDEVICE, "%s", tess_error());
		ck_assert_msg(strstr(tess_error(), "model.layers.0.mlp.up_proj") != NULL, "%s",
		              tess_error());
	}
}
END_TEST

START_TEST(same_bits)
{
	check_model(models[_i * THIN], _i * THIN < FEW && !(THIN > 1 && getenv("ONE_MODEL")));
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("data_parallel", 120, &r);

	/* other backends run these sums and gathers, too: one model covers them */
	tcase_add_loop_test(t, same_bits, 0,
	                    getenv("ONE_MODEL") || TSAN ? 1 : (int)tess_up(MODELS, THIN));
	tcase_add_test(t, communication_by_hand);
	if (!getenv("ONE_MODEL")) {
		if (!TSAN)
			tcase_add_test(t, memory_of_each_style);
		tcase_add_test(t, tiles);
		tcase_add_test(t, refusals);
		tcase_add_test(t, pipelines_of_micro_batches);
		tcase_add_test(t, failure_in_backward);
	}
	return suite_end(r);
}

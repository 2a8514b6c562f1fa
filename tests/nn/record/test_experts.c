/*
 * test_experts.c - mixtures of experts: equal bits for every way to cut and to store them, their
 * moves, and refused plans and routes. test_stored.c tests how they are stored.
 */
#include "tests/support/mixture.h"

#include <stdio.h>

enum { IDS = 9 };
/* Cuts rows in the mixture, without a gather before the experts. */
#define ROWS(dim) R(dim "mlp", "prepare_input_output:in=shard(0),out=replicate")

/* ---- the same bits --------------------------------------------------------------------------- */

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
	/* rows go to the ranks of their experts: replicated rows, and cut ones */
	{ "{" R("mlp.experts", "ep_all_to_all") "}", { "tp=2", "tp=3" } },
	{ "{" ROWS("") "," R("mlp.experts", "ep_all_to_all") "}", { "tp=2", "tp=3" } },
	{ "{" ROWS("ep:") "," R("ep:mlp.experts", "ep_all_to_all") "," INSIDE("",
	                                                                      "moe_tp_experts") "}",
	  { "ep=2,tp=2", "tp=3,ep=2", "ep=3,tp=3" } },
	{ "{" BY_EXPERT("ep:", "ep_all_to_all") "," INSIDE("", "moe_tp_experts") "}",
	  { "ep=2,tp=2", "tp=3,ep=2", "ep=3,tp=3" } },
	{ "{" ROWS("") "," R("mlp.experts", "ep_fewer_bytes") "}", { "tp=2", "tp=3" } },
	/* rows cut over one dimension, experts over another */
	{ "{" R("sp:mlp", "prepare_input_output:in=shard(0),out=replicate") "," BY_EXPERT(
		  "ep:", "ep_dispatch_experts") "," INSIDE("", "moe_tp_experts") "}",
	  { "sp=2,ep=2,tp=2", "tp=3,sp=5,ep=2" } },
	{ "{" R("mlp", "prepare_input_output:in=shard(0),out=replicate") "}", { "tp=4" } },
};

static const int32_t mixture_ids[IDS] = { 3, 0, 16, 5, 5, 9, 11, 2, 7 };

static tess_status run_mixture(struct store *s, const char *plan, const char *mesh, float **logits)
{
	struct tess_source source = store_make_source(s);
	struct lockstep how = { &mixture_model, &source, plan, 1, mixture_ids, IDS, true, mesh };
	int64_t count;

	return lockstep_run(&how, logits, &count);
}

START_TEST(every_way)
{
	struct store *apart, *stacked;
	float *want, *have;

	mixture = &mixtures[_i];
	apart = store_make(false);
	stacked = store_make(true);
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
	store_free(apart);
	store_free(stacked);
}
END_TEST

/* ---- training -------------------------------------------------------------------------------- */

/* Several units, one unit, and an incomplete one. */
static const int64_t lengths[] = { 70, 3, 33 };
enum { SEQUENCES = 3, TOKENS_OF_ALL = 106 };

/* Trains with the balancing loss; again: the backward recomputes the mixture. */
static tess_status train_balanced(struct store *s, const char *plan, const char *mesh,
                                  double balance, bool again, struct lockstep_gradients *out)
{
	struct tess_source source = store_make_source(s);
	int32_t ids[TOKENS_OF_ALL], labels[TOKENS_OF_ALL];
	struct lockstep how = { &mixture_model, &source, plan, 1, ids, TOKENS_OF_ALL, true, mesh };
	struct lockstep_step step = { .how = &how,
		                      .lengths = lengths,
		                      .nsequences = SEQUENCES,
		                      .labels = labels,
		                      .balance = balance };

	for (int32_t i = 0; i < TOKENS_OF_ALL; i++) {
		ids[i] = i * i % VOCABULARY;
		labels[i] = i % 7 ? i * 5 % VOCABULARY : -100;
	}
	return lockstep_train_again(&step, (const char *const[]){ again ? "mlp" : NULL, NULL },
	                            out);
}

static tess_status train_mixture(struct store *s, const char *plan, const char *mesh, bool again,
                                 struct lockstep_gradients *out)
{
	return train_balanced(s, plan, mesh, mixture->route.flags & TESS_SIGMOID ? 0 : 0.3, again,
	                      out);
}

static void expect_gradients(struct store *s, const char *plan, const char *mesh, bool again,
                             const struct lockstep_gradients *want)
{
	struct lockstep_gradients have;
	char what[512];

	snprintf(what, sizeof what, "%s on %s", plan, mesh);
	ck_assert_msg(!train_mixture(s, plan, mesh, again, &have), "%s: %s", what, tess_error());
	lockstep_compare_gradients(what, want, &have);
	lockstep_free_gradients(&have);
}

START_TEST(every_way_to_train)
{
	struct lockstep_gradients want;
	struct store *s;
	char mesh[64];

	mixture = &mixtures[_i];
	s = store_make(false);
	ck_assert_msg(!train_mixture(s, "none", "tp=1", false, &want), "%s", tess_error());
	ck_assert(want.balance > 0 || mixture->route.flags & TESS_SIGMOID);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		for (int k = 0; k < 4 && ways[i].mesh[k]; k++)
			expect_gradients(s, ways[i].plan, ways[i].mesh[k], k == 0, &want);
		snprintf(mesh, sizeof mesh, "dp=%d,%s", (int)(2 + i % 2), ways[i].mesh[0]);
		expect_gradients(s, ways[i].plan, mesh, false, &want);
	}
	lockstep_free_gradients(&want);
	store_free(s);
}
END_TEST

/* ---- what moves ------------------------------------------------------------------------------ */

/* Lists the collectives of the experts, and the columns of each that rank 0 has. */
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

/* Checks the moves: inside, k times the rows, but no more than the experts of the rank. */
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
	struct tess_program *p;
	char moves[128];
	struct store *s;

	mixture = &mixtures[cases[_i].shape];
	s = store_make(false);
	ck_assert_msg(!mixture_record(s, cases[_i].plan, cases[_i].mesh, 7, &p), "%s",
	              tess_error());
	list_moves(p, moves, sizeof moves);
	ck_assert_str_eq(moves, cases[_i].moves);
	tess_program_free(p);
	store_free(s);
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

	mixture = &mixtures[0];
	s = store_make(false);
	mixture_expect_refused(s, wrong_plans[_i].plan, wrong_plans[_i].mesh, wrong_plans[_i].says);
	store_free(s);
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
	struct mixture_shape changed = mixtures[0];
	struct store *s;

	mixture = &changed;
	s = store_make(false);
	changed.route = wrong[_i];
	mixture_expect_refused(s, "none", "tp=1", says[_i]);
	store_free(s);
}
END_TEST

/* Checks that the load balancing loss requires mixtures whose experts softmax chooses. */
START_TEST(refuses_to_balance)
{
	struct lockstep_gradients none;
	struct mixture_shape changed = mixtures[0];
	struct store *s;

	mixture = &changed;
	s = store_make(false);
	changed.route.flags |= TESS_SIGMOID;
	ck_assert(train_balanced(s, "none", "tp=1", 0.3, false, &none) == TESS_ENOTSUP);
	expect_part(tess_error(), "mlp.gate: the load balancing loss is of experts that softmax "
	                          "chooses, but sigmoid does here; train without --aux-loss");
	store_free(s);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("experts", 120, &r);

	setenv("TESSERA_LAYOUT", "rows", 1);
	tcase_add_loop_test(t, every_way, 0, MIXTURES);
	tcase_add_loop_test(t, every_way_to_train, 0, MIXTURES);
	tcase_add_loop_test(t, what_moves, 0, 6);
	tcase_add_loop_test(t, refuses_plans, 0, (int)(sizeof wrong_plans / sizeof *wrong_plans));
	tcase_add_loop_test(t, refuses_routes, 0, 5);
	tcase_add_test(t, refuses_to_balance);
	return suite_end(r);
}

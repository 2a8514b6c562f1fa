/*
 * test_style_matrix.c - every style by each of its names, alone: on each kind of module, for each
 * placement of its input, on 1 to 8 ranks. Sizes are smaller than, equal to, a multiple of, and
 * prime to the ranks. A style gives the bits of one replicated rank, and in training of its
 * gradients, or is refused as the table requires, with a message that names the module and the
 * style.
 */
#include "core/base/option.h"
#include "core/base/status.h"
#include "nn/weights/weights.h"
#include "tests/reference/lockstep.h"
#include "tests/support/suite.h"
#include "tools/conform/style/model.h"

#include <check.h>
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODULES = CONFORM_MODULES, EXPERTS = CONFORM_EXPERTS, EMBEDDING = CONFORM_EMBEDDING };

/*
 * accepts: by kind, the accepted places of the input: R, 0 and 1 (cut by tokens, by columns), P;
 * for an embedding, places of ids. cuts: the dimensions of linear kinds of which each rank must
 * have a unit, like i and o; for an embedding v and i; x, y: the columns of the input, of the
 * output; e: the experts.
 */
static const struct matrix_row {
	const char *style, *config;
	const char *accepts[MODULES], *cuts, *embedding_cuts;
} rows[] = {
	{ "colwise", "", { "R01P", "R01P", "R01P", "", "R0", "", "" }, "o", "i" },
	{ "colwise_rep", "", { "R01P", "R01P", "R01P", "", "R0", "", "" }, "o", "i" },
	{ "loss_parallel", "", { "R01P", "R01P", "R01P", "", "", "", "" }, "o", "" },
	{ "rowwise", "", { "R01P", "R01P", "R01P", "", "R0", "", "" }, "i", "v" },
	{ "rowwise_reduce_scatter", "", { "R01P", "R01P", "R01P", "", "R0", "", "" }, "i", "v" },
	{ "local_rowwise", "", { "R01P", "", "R01P", "", "R0", "", "" }, "i", "v" },
	{ "packed_colwise", "", { "", "", "R01P", "", "", "", "" }, "o", "" },
	{ "packed_colwise", "parts=1", { "R01P", "R01P", "", "", "R0", "", "" }, "o", "i" },
	{ "packed_rowwise", "", { "", "", "R01P", "", "", "", "" }, "i", "" },
	{ "packed_rowwise", "parts=1", { "R01P", "R01P", "", "", "", "", "" }, "i", "" },
	{ "local_packed_rowwise", "", { "", "", "R01P", "", "", "", "" }, "i", "" },
	{ "embedding_rowwise", "", { "", "", "", "", "R0", "", "" }, "", "v" },
	{ "vocab_reduce_scatter", "", { "", "", "", "", "R0", "", "" }, "", "v" },
	{ "embedding_colwise", "", { "", "", "", "", "R0", "", "" }, "", "i" },
	{ "embedding_colwise", "gather", { "", "", "", "", "R0", "", "" }, "", "i" },
	{ "embedding_colwise", "keep", { "", "", "", "", "R0", "", "" }, "", "i" },
	{ "replicate", "", { "R0", "R0", "R0", "R0", "R0", "R01", "R0" }, "", "" },
	{ "sequence_parallel",
	  "",
	  { "R01P", "R01P", "R01P", "R01P", "R0", "R01P", "R01P" },
	  "",
	  "" },
	{ "gather", "", { "R0", "R0", "R0", "R0", "R0", "R01", "R0" }, "", "" },
	{ "local", "", { "R01P", "R01P", "R01P", "R01P", "R0", "R01P", "R01P" }, "", "" },
	{ "module_allgather",
	  "",
	  { "R01P", "R01P", "R01P", "R01P", "R0", "R01P", "R01P" },
	  "",
	  "" },
	{ "module_allgather_split",
	  "",
	  { "R01P", "R01P", "R01P", "R01P", "R0", "R01P", "R01P" },
	  "",
	  "" },
	{ "prepare_input",
	  "in=replicate",
	  { "R01P", "R01P", "R01P", "R01P", "R0", "R01P", "R01P" },
	  "",
	  "" },
	{ "prepare_input",
	  "in=shard(0)",
	  { "R01P", "R01P", "R01P", "R01P", "R0", "R01P", "R01P" },
	  "",
	  "" },
	{ "prepare_input", "in=shard(1)", { "", "", "", "", "", "R01P", "" }, "x", "" },
	{ "prepare_input", "in=shard(-1)", { "", "", "", "", "R0", "R01P", "" }, "x", "" },
	{ "prepare_input", "in=partial", { "", "", "", "", "", "", "" }, "", "" },
	{ "prepare_input", "in=asis", { "R0", "R0", "R0", "R0", "R0", "R01", "R0" }, "", "" },
	{ "prepare_output",
	  "out=replicate",
	  { "R0", "R0", "R0", "R0", "R0", "R01", "R0" },
	  "",
	  "" },
	{ "prepare_output", "out=shard(0)", { "R0", "R0", "R0", "R0", "R0", "R01", "R0" }, "", "" },
	{ "prepare_output",
	  "out=shard(-1)",
	  { "R0", "R0", "R0", "R0", "R0", "R01", "R0" },
	  "y",
	  "y" },
	{ "prepare_output", "out=partial", { "R", "R", "R", "R", "R", "R", "R" }, "", "" },
	{ "prepare_output", "out=asis", { "R0", "R0", "R0", "R0", "R0", "R01", "R0" }, "", "" },
	{ "prepare_input_output",
	  "in=shard(0),out=shard(1)",
	  { "R01P", "R01P", "R01P", "R01P", "R0", "R01P", "R01P" },
	  "y",
	  "y" },
	{ "prepare_input_output",
	  "in=replicate,out=partial",
	  { "R01P", "R01P", "R01P", "R01P", "R0", "R01P", "R01P" },
	  "",
	  "" },
	{ "grouped_gemm", "", { "", "", "", "", "", "R01P", "R01P" }, "e", "" },
	{ "ep_all_to_all", "", { "", "", "", "", "", "", "R01P" }, "e", "" },
	{ "ep_fewer_bytes", "", { "", "", "", "", "", "", "R01P" }, "e", "" },
	{ "ep_dispatch_experts", "", { "", "", "", "", "", "R01P", "R01P" }, "", "" },
	{ "moe_tp_experts", "", { "", "", "", "", "", "R01P", "R01P" }, "", "" },
	{ "moe_experts_reduce_scatter", "", { "", "", "", "", "", "R01P", "R01P" }, "", "" },
	{ "moe_identity_expert", "", { "", "", "", "", "", "R01P", "R01P" }, "", "" },
	/* for mesh dimension dp in training, see test_data_parallel.c */
	{ "ddp", "", { "", "", "", "", "", "", "" }, "", "" },
	{ "zero1", "", { "", "", "", "", "", "", "" }, "", "" },
	{ "zero3", "", { "", "", "", "", "", "", "" }, "", "" },
	/* for mesh dimension pp, see test_pipeline.c */
	{ "stage", "", { "", "", "", "", "", "", "" }, "", "" },
	/* for one of the two parameters: the other must follow by a rule of its own */
	{ "moe_tp_gate_up_colwise", "", { "", "", "", "", "", "R01P", "" }, "", "" },
	{ "moe_tp_down_rowwise", "", { "", "", "", "", "", "R01P", "" }, "", "" },
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- the program ----------------------------------------------------------------------------- */

static int kind;
static int32_t op; /* of a block: CONFORM_GLU, ...; of experts: CONFORM_PLAIN, ... */
static struct conform_model model;

static tess_status run_one_module(const char *plan, int32_t nranks, float **y, int64_t *count)
{
	int32_t ids[32];
	struct lockstep how = { .model = model.model,
		                .source = &model.source,
		                .plan = plan,
		                .nranks = nranks,
		                .ids = ids,
		                .nids = model.size[CONFORM_TOKENS],
		                .all_rows = true };

	for (int32_t i = 0; i < 32; i++)
		ids[i] = i * 7 % (int32_t)model.size[CONFORM_VOCABULARY];
	return lockstep_run(&how, y, count);
}

/* Trains on three sequences, of which ranks that cut tokens have several units, one, or none. */
static tess_status train_one_module(const char *plan, int32_t nranks,
                                    struct lockstep_gradients *out)
{
	const int64_t lengths[] = { 75, model.size[CONFORM_TOKENS], 33 };
	int64_t n = lengths[0] + lengths[1] + lengths[2];
	int32_t ids[128], labels[128];
	struct lockstep how = { .model = model.model,
		                .source = &model.source,
		                .plan = plan,
		                .nranks = nranks,
		                .ids = ids,
		                .nids = n,
		                .all_rows = true };
	struct lockstep_step step = {
		.how = &how, .lengths = lengths, .nsequences = 3, .labels = labels
	};

	for (int32_t i = 0; i < n; i++) {
		ids[i] = i * 7 % (int32_t)model.size[CONFORM_VOCABULARY];
		labels[i] = i % 5 ? i * 11 % (int32_t)model.width : -100;
	}
	return lockstep_train(&step, out);
}

/* ---- what is expected ------------------------------------------------------------------------ */

/* Returns the number of ranks that can cut the letter's dimension; ids have no columns. */
static int64_t count_cut_units(char letter)
{
	const int64_t *size = model.size;

	if ((letter == 'x' && kind == EMBEDDING) || (letter == 'e' && kind != EXPERTS))
		return INT64_MAX;
	return letter == 'v'                    ? size[CONFORM_VOCABULARY]
	       : letter == 'o' || letter == 'e' ? size[CONFORM_OUT]
	       : letter == 'y' ? size[kind < CONFORM_NORM ? CONFORM_OUT : CONFORM_IN]
	                       : size[CONFORM_IN];
}

/* Returns whether each rank gets a unit of every dimension cut, by the style and before it. */
static bool has_units(const struct matrix_row *r, char place, int32_t nranks)
{
	const char *cuts = kind == EMBEDDING ? r->embedding_cuts : r->cuts;
	bool enough = true;

	for (; *cuts; cuts++)
		enough = enough && count_cut_units(*cuts) >= nranks;
	return enough && (place != '1' || model.size[CONFORM_IN] >= nranks) &&
	       (place != 'P' || model.size[CONFORM_VOCABULARY] >= nranks);
}

/* Checks one case; returns whether it ran. */
static bool check_one(const struct matrix_row *r, const char *name, char place, int32_t nranks,
                      const float *want, int64_t nwant)
{
	char plan[256], spec[128], what[512];
	/* biases of down are added to finished rows */
	bool refused = kind == EXPERTS && op == CONFORM_LIMITED && strstr(r->config, "out=partial");
	bool accepts = !refused && strchr(r->accepts[kind], place) && has_units(r, place, nranks);
	int64_t count;
	float *have;
	tess_status st;

	snprintf(spec, sizeof spec, "%s%s%s", name, *r->config ? ":" : "", r->config);
	snprintf(plan, sizeof plan, "{\"source\":\"%s\",\"mod\":\"%s\"%s}",
	         conform_model_get_source_style(kind, place), spec,
	         kind == EXPERTS ? ",\"gate\":\"local\"" : "");
	snprintf(what, sizeof what, "%s: kind %d, %d ranks, %lld tokens, %lld x %lld x %lld", plan,
	         kind, (int)nranks, (long long)model.size[CONFORM_TOKENS],
	         (long long)model.size[CONFORM_VOCABULARY], (long long)model.size[CONFORM_IN],
	         (long long)model.size[CONFORM_OUT]);
	st = run_one_module(plan, nranks, &have, &count);
	ck_assert_msg(accepts == !st, "%s: %s", what, st ? tess_error() : "not refused");
	if (st) {
		bool source = !strncmp(tess_error(), "source: ", 8);

		ck_assert_msg(st == TESS_EINVAL && (source || (strstr(tess_error(), "mod") &&
		                                               strstr(tess_error(), spec))),
		              "%s: %s", what, tess_error());
		ck_assert_msg(!source || strstr(tess_error(), "use 1 to"), "%s: %s", what,
		              tess_error());
		return false;
	}
	ck_assert_msg(count == nwant && !memcmp(have, want, 4 * (size_t)count), "%s: other bits",
	              what);
	free(have);
	return true;
}

/*
 * Checks that training gives the loss and the gradients of one replicated rank, wherever the style
 * runs.
 */
static void check_gradients(const struct matrix_row *r, char place, int32_t nranks,
                            const struct lockstep_gradients *want)
{
	struct lockstep_gradients have;
	char plan[256];

	snprintf(plan, sizeof plan, "{\"source\":\"%s\",\"mod\":\"%s%s%s\"%s}",
	         conform_model_get_source_style(kind, place), r->style, *r->config ? ":" : "",
	         r->config, kind == EXPERTS ? ",\"gate\":\"local\"" : "");
	ck_assert_msg(!train_one_module(plan, nranks, &have), "%s: kind %d, %d ranks: %s", plan,
	              kind, (int)nranks, tess_error());
	lockstep_compare_gradients(plan, want, &have);
	lockstep_free_gradients(&have);
}

/* Checks the styles of a file, by all of their names; returns the number that ran. */
static int check_style_file(const char *path, int32_t nranks, const float *want, int64_t nwant,
                            const struct lockstep_gradients *gradients, bool *seen)
{
	void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct tess_plugin *p = file ? dlsym(file, "tess_plugin_v2") : NULL;
	int nran = 0;

	ck_assert_msg(p != NULL, "%s", path);
	for (const struct tess_style *const *s = p->styles; *s; s++)
		for (size_t i = 0; i < ROWS; i++) {
			if (strcmp(rows[i].style, (*s)->name) != 0)
				continue;
			seen[i] = true;
			for (const char *at = kind == EMBEDDING ? "R0" : "R01P"; *at; at++) {
				bool ran =
					check_one(&rows[i], (*s)->name, *at, nranks, want, nwant);

				nran += ran;
				if (ran && gradients->program)
					check_gradients(&rows[i], *at, nranks, gradients);
				for (const char *const *a = (*s)->aliases; a && *a; a++)
					nran += check_one(&rows[i], *a, *at, nranks, want, nwant);
			}
		}
	dlclose(file);
	return nran;
}

/* Opens the model with sizes in one of the orders that a rotation gives. */
static void open_small_model(int32_t nranks, int turn)
{
	const int64_t sizes[] = { nranks > 1 ? nranks - 1 : 1, nranks, 2 * nranks, 2 * nranks + 1,
		                  13 };
	int64_t size[CONFORM_SIZES];

	for (int i = 0; i < CONFORM_SIZES; i++)
		size[i] = sizes[(turn + i * (turn % 2 ? 1 : 2)) % 5];
	ck_assert(!conform_model_open(kind, op, size, &model));
}

/*
 * Checks that the gradient of a sigmoid is computed from its output, which equal results of all
 * ranks do not show.
 */
static void check_sigmoid_records(const struct tess_program *p)
{
	const struct tess_tensor *y = NULL;
	int found = 0;

	for (int32_t i = 0; i < p->nrecords; i++) {
		const struct tess_record *rec = p->record[i];

		if (rec->kind == TESS_OP_SIGMOID)
			y = rec->out[0];
		found += rec->kind == TESS_OP_SIGMOID_D && rec->in[0] == y;
	}
	ck_assert_int_eq(found, 1);
}

START_TEST(alone)
{
	static const int32_t all_ranks[] = { 1, 2, 3, 4, 5, 8 };
	char pattern[512];
	glob_t files;

	snprintf(pattern, sizeof pattern, "%s/tess-style-*.so", getenv("STYLE_DIR"));
	ck_assert(!glob(pattern, 0, NULL, &files));
	for (size_t n = 0; n < sizeof all_ranks / sizeof *all_ranks; n += 1 + THIN / 4)
		for (int turn = 0; turn < 5; turn += 1 + THIN / 2) {
			bool seen[ROWS] = { false };
			struct lockstep_gradients gradients = { 0 };
			int64_t count;
			float *want;
			int nran = 0;

			op = _i < MODULES ? CONFORM_GLU : _i - MODULES + 1;
			kind = op ? CONFORM_BLOCK : _i;
			if (op == CONFORM_BLOCK_OPS) {
				kind = EXPERTS;
				op = CONFORM_LIMITED;
			}
			open_small_model(all_ranks[n], turn);
			ck_assert_msg(!run_one_module("none", 1, &want, &count), "%s",
			              tess_error());
			if (turn % 3 == 0 && all_ranks[n] < 4)
				ck_assert_msg(!train_one_module("none", 1, &gradients), "%s",
				              tess_error());
			if (kind == CONFORM_BLOCK && op == CONFORM_SIGMOID && gradients.program)
				check_sigmoid_records(gradients.program);
			for (size_t i = 0; i < files.gl_pathc; i++)
				nran += check_style_file(files.gl_pathv[i], all_ranks[n], want,
				                         count, &gradients, seen);
			lockstep_free_gradients(&gradients);
			for (size_t i = 0; i < ROWS; i++)
				ck_assert_msg(seen[i], "no file has %s", rows[i].style);
			ck_assert_int_gt(nran, 10);
			free(want);
			conform_model_close(&model);
		}
	globfree(&files);
}
END_TEST

static bool is_tested(const char *style)
{
	for (size_t i = 0; i < ROWS; i++)
		if (!strcmp(rows[i].style, style))
			return true;
	return false;
}

START_TEST(has_all_styles)
{
	char pattern[512];
	glob_t files;

	snprintf(pattern, sizeof pattern, "%s/tess-style-*.so", getenv("STYLE_DIR"));
	ck_assert(!glob(pattern, 0, NULL, &files));
	for (size_t i = 0; i < files.gl_pathc; i++) {
		void *file = dlopen(files.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
		const struct tess_plugin *p = dlsym(file, "tess_plugin_v2");

		ck_assert(p != NULL);
		for (const struct tess_style *const *s = p->styles; *s; s++)
			ck_assert_msg(is_tested((*s)->name), "%s has no row", (*s)->name);
		dlclose(file);
	}
	globfree(&files);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("style_matrix", 120, &r);

	tess_option_add("weights", tess_weights_options);
	tess_option_set("layout", "rows");
	srunner_set_fork_status(r, CK_NOFORK);
	tcase_add_loop_test(t, alone, 0, MODULES + CONFORM_BLOCK_OPS);
	tcase_add_test(t, has_all_styles);
	return suite_end(r);
}

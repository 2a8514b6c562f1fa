/*
 * test_plans.c - plans in tess_explain of libtessera.so, for directories with only a config.json:
 * the plans that Transformers ships, and wrong plans, whose messages are in refusals.md.
 */
#include "tests/support/scratch.h"

#include <jansson.h>
#include <stdbool.h>
#include <tessera/tessera.h>
#include <tessera/train.h>

static json_t *load_plans(const char *name)
{
	const char *path = format_path_in(getenv("PLANS_DIR"), name);
	json_error_t why;
	json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, &why);

	ck_assert_msg(o != NULL, "%s: %s", path, why.text);
	return o;
}

/* Makes a directory with the config.json of that golden. */
static const char *make_config_folder(const char *name)
{
	char file[256];
	json_t *config;

	snprintf(file, sizeof file, "%s/config.json", name);
	config = json_load_file(format_path_in(getenv("GOLDENS_DIR"), file), 0, NULL);
	ck_assert_msg(config != NULL, "%s", file);
	mkdir(scratch_format_path(name), 0700);
	ck_assert(!json_dump_file(config, scratch_format_path(file), 0));
	json_decref(config);
	return scratch_format_path(name);
}

static struct tess_explanation *explain_for_two_ranks(const char *dir, const char *plan)
{
	struct tess_session_options options = { .size = sizeof options, .plan = plan };
	struct tess_explanation *e = NULL;

	ck_assert_msg(!tess_explain(dir, "tp=2", 0, 1, &options, &e), "%s, plan %s: %s", dir, plan,
	              tess_error());
	return e;
}

/*
 * Checks that hf.json has the rules of Transformers' configuration files, and the one that it adds
 * itself.
 */
START_TEST(hf_is_what_transformers_ships)
{
	json_t *plans = load_plans("hf.json"), *plan;
	const char *family;

	json_object_foreach(plans, family, plan) {
		const char *dir = make_config_folder(family);
		char *text = json_dumps(plan, 0);
		struct tess_explanation *hf = explain_for_two_ranks(dir, "hf"),
					*want = explain_for_two_ranks(dir, text);

		ck_assert_int_eq(hf->nparameters, want->nparameters);
		for (int32_t i = 0; i < hf->nparameters; i++) {
			ck_assert_str_eq(hf->parameters[i]->name, want->parameters[i]->name);
			ck_assert_msg(!strcmp(hf->parameters[i]->styles[0],
			                      want->parameters[i]->styles[0]),
			              "%s: %s is %s, not %s", family, hf->parameters[i]->name,
			              hf->parameters[i]->styles[0], want->parameters[i]->styles[0]);
		}
		ck_assert(hf->ncollectives == want->ncollectives && hf->total.sent &&
		          hf->total.sent == want->total.sent &&
		          hf->total.weights == want->total.weights);
		tess_explanation_free(hf);
		tess_explanation_free(want);
		free(text);
	}
	json_decref(plans);
}
END_TEST

/* Checks the savings and costs of any plan against hf. */
START_TEST(compared_with_hf)
{
	const char *dir = make_config_folder("llama");
	struct tess_explanation *tp = explain_for_two_ranks(dir, "tp"),
				*none = explain_for_two_ranks(dir, "{}");

	ck_assert(tp->hf.sent == tp->total.sent && tp->hf.weights == tp->total.weights);
	ck_assert(none->hf.sent == tp->hf.sent && none->hf.weights == tp->hf.weights);
	ck_assert(!none->total.sent && none->total.weights > tp->total.weights);
	ck_assert(tp->total.weights == tp->ranks[0]->weights ||
	          tp->total.weights == tp->ranks[1]->weights);
	tess_explanation_free(tp);
	tess_explanation_free(none);
}
END_TEST

/* Checks that partitioned logits move as candidates, or a row on demand. */
START_TEST(logits_stay_cut)
{
	static const char *const styles[] = { "loss_parallel", "colwise_loss_parallel", "colwise" };
	const char *dir = make_config_folder("llama");
	struct tess_explanation *tp = explain_for_two_ranks(dir, "tp"), *cut;
	char plan[64];

	ck_assert(tp->logits_dim == -1 && !tp->greedy_bytes && !tp->row_bytes);
	ck_assert_str_eq(tp->collectives[tp->ncollectives - 1]->module, "lm_head");
	for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
		snprintf(plan, sizeof plan, "{\"lm_head\":\"%s\"}", styles[i]);
		cut = explain_for_two_ranks(dir, plan);
		ck_assert(cut->logits_dim == 0 && !cut->ncollectives && cut->greedy_bytes &&
		          cut->greedy_bytes < cut->row_bytes);
		/* a vocabulary of 211 in 32 units */
		ck_assert_uint_eq(cut->row_bytes, tp->collectives[tp->ncollectives - 1]->sent);
		ck_assert_uint_eq(cut->total.sent, cut->greedy_bytes);
		tess_explanation_free(cut);
	}
	tess_explanation_free(tp);
}
END_TEST

/* ---- wrong plans ----------------------------------------------------------------------------- */

static const char *get_row_text(const json_t *row, const char *key, const char *preset)
{
	const char *text = json_string_value(json_object_get(row, key));

	return text ? text : preset;
}

/* Returns the refusal without folders of plugins: " in /a, /b; did you" -> " in ...; did you". */
static const char *refuse_plan(const json_t *row, const char *family, char *out, size_t size)
{
	const char *overrides[4] = { NULL }, *at;
	const json_t *list = json_object_get(row, "over");
	struct tess_session_options options = { .size = sizeof options,
		                                .plan = get_row_text(row, "plan", "tp"),
		                                .overrides = overrides };
	struct tess_trainer_options training = { .size = sizeof training,
		                                 .plan = options.plan,
		                                 .overrides = overrides };
	const char *mesh = get_row_text(row, "mesh", "tp=2"), *dir = make_config_folder(family);
	int64_t sequences = json_integer_value(json_object_get(row, "train"));
	struct tess_explanation *e;

	for (size_t i = 0; i < json_array_size(list) && i < 3; i++)
		overrides[i] = json_string_value(json_array_get(list, i));
	ck_assert_msg((sequences ? tess_explain_training(dir, mesh, 0, sequences, 8, &training, &e)
	                         : tess_explain(dir, mesh, 0, 1, &options, &e)) < 0,
	              "%s: not refused: %s", family, get_row_text(row, "what", ""));
	at = strstr(tess_error(), " in /");
	if (at)
		snprintf(out, size, "%.*s in ...%s", (int)(at - tess_error()), tess_error(),
		         at + strcspn(at, ";"));
	else
		snprintf(out, size, "%s", tess_error());
	return out;
}

/* Expects the module, its fault, and a way out. */
static void expect_names(const json_t *row, const char *family, const char *sentence)
{
	const json_t *names = json_object_get(row, "names");

	ck_assert_msg(json_array_size(names) > 0, "%s", get_row_text(row, "what", ""));
	for (size_t i = 0; i < json_array_size(names); i++) {
		const char *name = json_string_value(json_array_get(names, i));

		ck_assert_msg(strstr(sentence, name) != NULL, "%s: %s: \"%s\" is not in: %s",
		              family, get_row_text(row, "what", ""), name, sentence);
	}
}

static void print_row(FILE *out, const json_t *row, const char *family, const char *sentence)
{
	const char *mark = strchr(sentence, '`') ? "``" : "`";
	const json_t *list = json_object_get(row, "over");

	fprintf(out, "| %s: ", get_row_text(row, "what", ""));
	if (!list || json_object_get(row, "plan"))
		fprintf(out, "`%s`%s", get_row_text(row, "plan", "tp"), list ? ", " : "");
	for (size_t i = 0; i < json_array_size(list); i++)
		fprintf(out, "%s`%s`", i ? ", " : "", json_string_value(json_array_get(list, i)));
	fprintf(out, " (%.*s, %s%s) | %s%s%s |\n", (int)strcspn(family, "-"), family,
	        get_row_text(row, "mesh", "tp=2"),
	        json_object_get(row, "train") ? ", in training" : "", mark, sentence, mark);
}

/* Returns 1 if the file has other contents; `write` replaces them. */
static bool update_file(const char *path, const char *contents, bool write)
{
	static char text[1 << 20];
	FILE *f = fopen(path, "r");

	ck_assert_msg(f != NULL, "%s", path);
	text[fread(text, 1, sizeof text - 1, f)] = 0;
	fclose(f);
	if (!strcmp(text, contents))
		return false;
	ck_assert(!write || ((f = fopen(path, "w")) && fputs(contents, f) >= 0 && !fclose(f)));
	return true;
}

/* Checks that each plan is refused without reading a weight, with the message in refusals.md. */
START_TEST(wrong_plans)
{
	json_t *rows = load_plans("wrong.json"), *also;
	bool write = getenv("REWRITE") != NULL;
	char sentence[2048], *table;
	size_t size, i, k;
	FILE *out = open_memstream(&table, &size);
	json_t *row;

	fprintf(out, "| plan | is refused with |\n|---|---|\n");
	json_array_foreach(rows, i, row) {
		const char *family = get_row_text(row, "model", "llama");

		refuse_plan(row, family, sentence, sizeof sentence);
		expect_names(row, family, sentence);
		print_row(out, row, family, sentence);
		json_array_foreach(json_object_get(row, "also"), k, also) {
			family = json_string_value(also);
			refuse_plan(row, family, sentence, sizeof sentence);
			expect_names(row, family, sentence);
		}
	}
	ck_assert_uint_ge(i, 60);
	ck_assert(!fclose(out));
	ck_assert_msg(
		!update_file(format_path_in(getenv("PLANS_DIR"), "refusals.md"), table, write) ||
			write,
		"tests/data/plans/refusals.md has other messages; "
		"REWRITE=1 meson test -C BUILD plans writes these");
	free(table);
	json_decref(rows);
}
END_TEST

SCRATCH_MAIN("plans", hf_is_what_transformers_ships, compared_with_hf, logits_stay_cut, wrong_plans)

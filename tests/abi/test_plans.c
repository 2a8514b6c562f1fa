/*
 * Plans by what explain says of them, of libtessera.so, for directories that have a config.json
 * only: the plans that Transformers ships.
 */
#include "../unit/scratch.h"

#include <jansson.h>
#include <tessera/tessera.h>

static json_t *load_plans(const char *name)
{
	const char *path = format_path_in(getenv("PLANS_DIR"), name);
	json_error_t why;
	json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, &why);

	ck_assert_msg(o != NULL, "%s: %s", path, why.text);
	return o;
}

/* A directory with the config.json of that golden. */
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

/* hf.json has Transformers' configuration files' rules, and the one that it adds by itself. */
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

/* What any plan would save or cost against it. */
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

/* Logits that stay cut move as candidates, or a row on demand. */
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

SCRATCH_MAIN("plans", hf_is_what_transformers_ships, compared_with_hf, logits_stay_cut)

/*
 * test_plan_styles.c - styles of modules that a search finds: other styles are not faster, and one
 * that a program registers is found where it is the fastest.
 */
#include "tests/support/scratch.h"

#include <jansson.h>
#include <stdbool.h>
#include <tessera/style.h>
#include <tessera/tessera.h>

static const char *data;

/* Machines of slow and of fast links; in the last, sums that all ranks get are slow. */
static const char *const links[] = {
	"\"default\":[[2,1e-6,1e9],[8,4e-6,1e9]]",
	"\"default\":[[2,1e-6,1e11],[8,4e-6,1e11]]",
	"\"default\":[[2,1e-6,1e11]],\"sum\":[[2,1e-2,1e11]]",
};
enum { SLOW_SUM = 2 };

/* Opens a planner of steps of a batch, for the i-th machine. */
static struct tess_planner *open_styled(int i, int64_t batch, int64_t length)
{
	struct tess_planner_options o = {
		.size = sizeof o, .train = 1, .batch = batch, .sequence = length, .styles = 1
	};
	struct tess_planner *p;
	char text[1024];

	snprintf(text, sizeof text,
	         "{\"name\":\"host\",\"device\":{\"memory\":1e9,\"latency\":1e-7,\"rates\":{"
	         "\"product\":[[1,1e6,1e9],[64,1e6,4e9]],\"attention\":[[1,1e5,1e9]],"
	         "\"memory\":[[1,1e3,1e10]]}},\"links\":{\"within\":{%s}}}",
	         links[i]);
	o.machine = scratch_write_text("machine.json", text);
	ck_assert_msg(!tess_planner_open(data, &o, &p), "%s", tess_error());
	return p;
}

/* Predicts a plan along tp alone; returns its seconds, or 0 if it is refused. */
static double predict_plan(struct tess_planner *p, int32_t tp, const char *plan)
{
	char mesh[16];
	const struct tess_strategy s = { .size = sizeof s, .plan = plan, .mesh = mesh };
	const struct tess_forecast *f;

	snprintf(mesh, sizeof mesh, "tp=%d", (int)tp);
	return tess_planner_forecast(p, &s, &f) ? 0 : f->seconds;
}

/* Returns the fastest plan with rules of its own along tp alone. */
static const char *find_styled(struct tess_planner *p, int32_t tp, double *seconds)
{
	const struct tess_forecast *const *best;
	const char *plan = NULL;
	int32_t n;

	ck_assert_msg(!tess_planner_search(p, tp, 1000, &best, &n), "%s", tess_error());
	for (int32_t i = 0; i < n; i++) {
		const char *rules = best[i]->strategy.plan;
		double s = *rules == '{' ? predict_plan(p, tp, rules) : 0;

		if (s > 0 && (!plan || s < *seconds)) {
			*seconds = s;
			plan = rules;
		}
	}
	ck_assert_msg(plan != NULL, "no plan has rules of its own");
	return plan;
}

static const char *const modules[] = {
	"input_layernorm",
	"self_attn",
	"self_attn.q_proj",
	"self_attn.k_proj",
	"self_attn.v_proj",
	"self_attn.o_proj",
	"post_attention_layernorm",
	"mlp",
	"mlp.gate_proj",
	"mlp.up_proj",
	"mlp.down_proj",
};
static const char *const styles[] = {
	"replicate", "colwise", "colwise_rep",       "rowwise",         "rowwise_reduce_scatter",
	"gather",    "local",   "sequence_parallel", "module_allgather"
};

/* Gives one to three modules of a plan other styles. */
static char *change_styles(const char *plan, unsigned *seed)
{
	json_t *rules = json_loads(plan, 0, NULL);
	char *text, pattern[64];

	for (int k = 1 + rand_r(seed) % 3; k; k--) {
		int m = rand_r(seed) % (int)(sizeof modules / sizeof *modules);
		int s = rand_r(seed) % (int)(sizeof styles / sizeof *styles);

		snprintf(pattern, sizeof pattern, "model.layers.*.%s", modules[m]);
		json_object_set_new(rules, pattern, json_string(styles[s]));
	}
	text = json_dumps(rules, 0);
	json_decref(rules);
	return text;
}

/*
 * 150 plans with other styles for up to three modules. The cost of a module is measured by itself,
 * and its ops may share a step with those of another one: 1 percent.
 */
START_TEST(other_styles_are_not_faster)
{
	int32_t tp = _i % 2 ? 4 : 2;
	struct tess_planner *p = open_styled(_i / 2, 4, 128);
	unsigned seed = (unsigned)_i + 1;
	double best;
	const char *plan = find_styled(p, tp, &best);
	int valid = 0;

	ck_assert(best <= predict_plan(p, tp, "tp") && best <= predict_plan(p, tp, "tp+sp"));
	for (int i = 0; i < 150; i++) {
		char *other = change_styles(plan, &seed);
		double s = predict_plan(p, tp, other);

		ck_assert_msg(s == 0 || s >= 0.99 * best, "%g s instead of %g: %s, not %s", s, best,
		              other, plan);
		valid += s > 0;
		free(other);
	}
	ck_assert_int_ge(valid, 25);
	tess_planner_close(p);
}
END_TEST

/* ---- a style of the program ------------------------------------------------------------------ */

static tess_status layout_columns(const struct tess_site *s, struct tess_io *io)
{
	(void)s;
	io->in[0] = io->out[0] = (struct tess_place){ .kind = TESS_SHARD, .dim = -1 };
	return TESS_OK;
}

static tess_status partition_inputs(const struct tess_site *s, const struct tess_param *p,
                                    struct tess_param_place *out)
{
	if (p->in_dim < 0 || p->out_dim < 0)
		return (s->host->fail)(TESS_EINVAL, "%s: no inputs", s->module);
	out->use = (struct tess_place){ .kind = TESS_SHARD, .dim = p->in_dim };
	return TESS_OK;
}

static const struct tess_style columns = {
	.size = sizeof columns,
	.name = "rowwise_columns",
	.summary = "cut by input; y is summed and cut by features",
	.layout = layout_columns,
	.partition_param = partition_inputs,
};
static const struct tess_plugin plugin = {
	.abi = TESS_ABI,
	.size = sizeof plugin,
	.name = "columns",
	.version = "1.0",
	.license = "Apache-2.0",
	.styles = TESS_LIST(tess_style, &columns),
};

/* 32 ids of one sequence cannot be cut by tokens, and sums that all ranks get are slow. */
START_TEST(registered_styles_are_found)
{
	struct tess_planner *p;
	double seconds;
	const char *plan;

	ck_assert_msg(!tess_registry_add(&plugin), "%s", tess_error());
	p = open_styled(SLOW_SUM, 1, 32);
	plan = find_styled(p, 2, &seconds);
	expect_part(plan, "\"rowwise_columns\"");
	ck_assert(seconds < predict_plan(p, 2, "tp") / 2);
	tess_planner_close(p);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("plan styles", 120, &r);
	int failed;

	scratch_make();
	data = getenv("DATA_DIR");
	tcase_add_loop_test(t, other_styles_are_not_faster, 0, 4);
	tcase_add_test(t, registered_styles_are_found);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

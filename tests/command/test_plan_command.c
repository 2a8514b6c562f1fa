/*
 * test_plan_command.c - tessera plan by its command line: what it writes runs, with the results of
 * one rank, also with values in files; and what it says of options that are wrong and of strategies
 * that do not fit.
 */
#include "train_command.h"

#include <jansson.h>

#define PLANNED "--machine h100 --train " SIZES
#define FORECAST "--machine h100 --train --batch 4 --sequence 40"

/* Runs it in the scratch directory; returns the exit status. `text`: what it prints. */
static int plan_model(char text[TEXT], const char *model, const char *args)
{
	return command_run(text, TEXT, "cd '%s' && '%s' plan '%s' %s 2>&1", scratch, TESSERA, model,
	                   args);
}

static void plan_data(char text[TEXT], const char *args)
{
	ck_assert_msg(!plan_model(text, format_data_path(""), args), "%s: %s", args, text);
}

/* Reads each line as JSON; returns their number. */
static int read_lines(char *text, json_t *lines[8])
{
	int n = 0;

	for (char *line = strtok(text, "\n"); line && n < 8; line = strtok(NULL, "\n")) {
		json_error_t why;

		lines[n] = json_loads(line, 0, &why);
		ck_assert_msg(lines[n] != NULL, "%s: %s", line, why.text);
		n++;
	}
	return n;
}

static double get_forecast_number(const json_t *o, const char *key)
{
	ck_assert_msg(json_is_number(json_object_get(o, key)), "%s", key);
	return json_number_value(json_object_get(o, key));
}

START_TEST(table_and_json)
{
	char text[TEXT];
	json_t *line[8];

	plan_data(text, "-n 4 --top 3 " PLANNED);
	expect_part(text, "tokens/s");
	ck_assert_int_eq(count_occurrences(text, "--mesh "), 3);
	plan_data(text, "-n 4 --top 3 --json " PLANNED);
	ck_assert_int_eq(read_lines(text, line), 3);
	for (int i = 0; i < 3; i++) {
		ck_assert(json_is_true(json_object_get(line[i], "fits")));
		ck_assert(get_forecast_number(line[i], "seconds") > 0 &&
		          get_forecast_number(line[i], "ranks") == 4);
		ck_assert(!i || get_forecast_number(line[i - 1], "seconds") <=
		                        get_forecast_number(line[i], "seconds"));
		ck_assert(get_forecast_number(json_object_get(line[i], "terms"), "products") > 0);
		ck_assert(json_is_array(json_object_get(line[i], "calls")) &&
		          get_forecast_number(line[i], "mean_error") == 0.12 &&
		          get_forecast_number(line[i], "limit") == 80e9);
	}
	for (int i = 0; i < 3; i++)
		json_decref(line[i]);
	plan_data(text, "-n 4 --machine h100 --prompt-tokens 64 --max-tokens 16 --batch 4");
	expect_part(text, "--mesh ");
}
END_TEST

START_TEST(explores)
{
	char text[TEXT];
	json_t *line[8];
	int n;

	plan_data(text, "-n 8 --explore --top 8 --json " PLANNED);
	n = read_lines(text, line);
	ck_assert_int_ge(n, 2);
	for (int i = 0; i < n; i++)
		ck_assert(!i || (get_forecast_number(line[i - 1], "seconds") <
		                         get_forecast_number(line[i], "seconds") &&
		                 get_forecast_number(line[i - 1], "memory") >
		                         get_forecast_number(line[i], "memory")));
	for (int i = 0; i < n; i++)
		json_decref(line[i]);
	plan_data(text, "-n 8 --explore --top 2 " PLANNED);
	ck_assert_int_eq(count_occurrences(text, "--mesh "), 2);
}
END_TEST

/* Trains by the strategy in a file, and expects the losses of one rank. */
static void expect_one_rank(const char *strategy, int64_t micro)
{
	char text[TEXT], one[TEXT], args[256], alone[256];

	snprintf(args, sizeof args, STEPPED " --steps 2 --digest --plan %s --backend loopback",
	         strategy);
	snprintf(alone, sizeof alone,
	         STEPPED " --steps 2 --digest --threads 1 --micro-batches %lld", (long long)micro);
	ck_assert_msg(!train_model(one, format_data_path(""), "", alone), "%s", one);
	ck_assert_msg(!train_model(text, format_data_path(""), "", args), "%s", text);
	ck_assert_msg(strstr(text, "losses  ") && strstr(one, "losses  ") &&
	                      !strncmp(strstr(text, "losses  "), strstr(one, "losses  "), 145),
	              "%s\ninstead of\n%s", text, one);
}

/* The best strategy runs, and trains the weights of one rank. */
START_TEST(what_it_writes_runs)
{
	char text[TEXT];

	plan_data(text, "-n 4 --out best.json " PLANNED);
	ck_assert(is_there("best.json"));
	expect_one_rank("best.json", 1);
}
END_TEST

/* Writes the description of a host with a disk; returns its path. */
static const char *write_host(void)
{
	return scratch_write_text(
		"disk.json",
		"{\"name\":\"host\",\"device\":{\"memory\":1e9,\"latency\":1e-6,\"rates\":{"
		"\"product\":[[1,1e6,1e10]],\"attention\":[[1,1e5,5e9]],"
		"\"memory\":[[1,1e3,1e10]]}},"
		"\"links\":{\"within\":{\"default\":[[2,1e-6,1e10]]}},"
		"\"disk\":{\"read\":1e7,\"write\":1e7}}");
}

/* If only values in files fit, the best strategy has them, and runs with folders. */
START_TEST(plans_with_files)
{
	char text[TEXT], args[512], host[256];
	json_t *line[8], *strategy;
	double memory;
	int64_t micro;
	int n;

	/* eight buckets of a whole weight would be more than the state of this model */
	ck_assert(!setenv("TESSERA_OFFLOAD_MIN", "256", 1));
	ck_assert(!setenv("TESSERA_OFFLOAD_BUCKET", "4000", 1));
	snprintf(host, sizeof host, "-n 2 --train " SIZES " --machine %s", write_host());
	snprintf(args, sizeof args, "--explore --top 8 --json %s", host);
	plan_data(text, args);
	n = read_lines(text, line);
	/* estimates choose what is explored: another one in memory may need a little less */
	memory = 0.95 * get_forecast_number(line[n - 1], "memory");
	for (int i = 0; i < n; i++)
		json_decref(line[i]);
	snprintf(args, sizeof args,
	         "--offload-optimizer --offload-weights --memory %.0f --out files.json --consider "
	         "'--mesh tp=2 --offload-optimizer x --tile 4KiB' %s",
	         memory, host);
	plan_data(text, args);
	expect_part(text, " --offload-optimizer DIR");
	expect_part(text, "\nread a step ");
	expect_part(text, "\ndisk  ");
	ck_assert_msg(!command_run(text, TEXT,
	                           "cd '%s' && '%s' explain '%s' --train " SIZES
	                           " --plan files.json 2>&1",
	                           scratch, TESSERA, format_data_path("")),
	              "%s", text);
	expect_part(text, "\nfiles of a rank, at most: ");
	expect_part(text, "   on disk\n");
	strategy = json_load_file(scratch_format_path("files.json"), 0, NULL);
	micro = json_integer_value(json_object_get(strategy, "micro_batches"));
	expect_one_rank("files.json --offload-optimizer . --offload-weights .", micro ? micro : 1);
	json_decref(strategy);
	ck_assert(!unsetenv("TESSERA_OFFLOAD_MIN") && !unsetenv("TESSERA_OFFLOAD_BUCKET"));
}
END_TEST

/* A plan of styles runs, and trains the weights of one rank. Its machine computes slowly. */
START_TEST(styles_that_it_finds_run)
{
	char text[TEXT];
	const json_t *found = NULL;
	json_t *line[8];
	int n;

	scratch_write_text("slow.json",
	                   "{\"name\":\"slow\",\"device\":{\"memory\":1e9,\"latency\":1e-7,"
	                   "\"rates\":{\"product\":[[1,1e6,1e9]],\"attention\":[[1,1e5,1e9]],"
	                   "\"memory\":[[1,1e3,1e10]]}},"
	                   "\"links\":{\"within\":{\"default\":[[2,1e-6,1e11]]}}}");
	plan_data(text, "-n 2 --styles --machine slow.json --top 8 --train " SIZES);
	expect_part(text, "\n\nPLAN");
	ck_assert_ptr_null(strstr(text, "are assumed"));
	plan_data(text, "-n 2 --math bf16 --styles --machine slow.json --top 1 --train " SIZES);
	expect_part(text, "\nproducts of bf16 are assumed to take the time of those in f32: ");
	plan_data(text, "-n 2 --styles --machine slow.json --top 8 --json --train " SIZES);
	n = read_lines(text, line);
	for (int i = 0; i < n; i++) {
		const json_t *s = json_object_get(line[i], "strategy");

		found = json_is_object(json_object_get(s, "plan")) ? s : found;
	}
	ck_assert(found != NULL);
	json_dump_file(found, scratch_format_path("styles.json"), 0);
	for (int i = 0; i < n; i++)
		json_decref(line[i]);
	expect_one_rank("styles.json", 1);
}
END_TEST

/* Hosts of 2 ranks with slow sums, slower gathers between hosts, and slow stages. */
static const char slow_gathers[] =
	"{\"name\":\"m\",\"device\":{\"memory\":1e9,\"latency\":1e-6,\"rates\":{"
	"\"product\":[[1,1e6,1e10],[64,1e6,4e10]],\"attention\":[[1,1e5,5e9]],"
	"\"memory\":[[1,1e3,1e10]]}},\"links\":{\"ranks_per_host\":2,"
	"\"within\":{\"default\":[[2,1e-3,1e10]],\"all_gather\":[[2,1e-6,1e10]],"
	"\"send\":[[2,1,1e10]]},"
	"\"between\":{\"default\":[[2,1e-3,1e10]],\"all_gather\":[[2,1,1e10]],"
	"\"send\":[[2,1,1e10]]}}}";

/* Weights that are shared within a host, of which other hosts have copies. */
START_TEST(finds_shares_within_hosts)
{
	char text[TEXT];

	scratch_write_text("slow.json", slow_gathers);
	plan_data(text, "-n 4 --train --batch 8 --sequence 32 --machine ./slow.json "
	                "--memory 6.5M --top 1 --out shares.json");
	expect_part(text, "--mesh ddp=2,dp=2,tp=1 --plan auto --plan-override 'dp:**=zero1'\n");
	expect_part(text, "the error of times with ./slow.json was not measured");
	ck_assert_msg(!train_model(text, format_data_path(""), "",
	                           "--batch 8 --sequence 32 --lr 2e-4 --steps 1 --plan shares.json "
	                           "--backend loopback"),
	              "%s", text);
}
END_TEST

/* Experts along ranks of their own: a strategy that generates the ids of one rank. */
START_TEST(finds_ranks_of_experts)
{
	static const char model[] = SOURCE_ROOT "/tests/data/goldens/qwen3_moe";
	static const char generate[] = "cd '%s' && '%s' generate '%s' --ids 1,2,3 --max-tokens 4 "
				       "--digest %s 2>&1";
	char text[TEXT], one[TEXT];

	scratch_write_text("slow.json", slow_gathers);
	ck_assert_msg(!plan_model(text, model,
	                          "-n 8 --prompt-tokens 32 --machine ./slow.json --out ep.json"),
	              "%s", text);
	expect_part(text, "--mesh ep=8,tp=1 --plan ep\n");
	expect_part(text, "--mesh ep=4,tp=2 --plan ep\n");
	expect_part(text, " sum along ep ");
	ck_assert(!command_run(one, TEXT, generate, scratch, TESSERA, model, ""));
	ck_assert_msg(!command_run(text, TEXT, generate, scratch, TESSERA, model,
	                           "--plan ep.json --backend loopback"),
	              "%s", text);
	ck_assert_str_eq(text, one);
}
END_TEST

START_TEST(considers_a_strategy)
{
	char text[TEXT];
	json_t *line[8];

	plan_data(text, "-n 4 --top 1 --consider '--mesh tp=4 --plan tp+sp' " FORECAST);
	expect_part(text, "best   considered");
	expect_part(text, "times the time of the best, bound by all_gather along tp\n  more: ");
	expect_part(text, "\n  all_gather tp ");
	expect_part(text, "times with h100 had a mean error of 12 %, on 9 runs of ");
	plan_data(text, "-n 4 --memory 5M --top 1 --consider '--mesh dp=4 --plan none' " FORECAST);
	expect_part(text, "considered: does not fit, a rank holds ");
	expect_part(text, " of 5 MB, most of it activations; ");
	plan_data(text, "-n 4 --top 1 --machine h100-megatron --train --batch 64 --consider "
	                "'--mesh dp=2,tp=2 --plan tp'");
	expect_part(text, " for all_reduce along tp\n  less: ");
	plan_data(text, "-n 4 --top 1 --json --consider '--mesh dp=2,tp=2 --plan tp --recompute "
	                "**.mlp --plan-override dp:**=zero1' " FORECAST);
	ck_assert_int_eq(read_lines(text, line), 2);
	ck_assert(get_forecast_number(line[0], "seconds") <=
	          get_forecast_number(line[1], "seconds"));
	ck_assert_str_eq(
		json_string_value(json_object_get(json_object_get(line[1], "strategy"), "mesh")),
		"dp=2,tp=2");
	json_decref(line[0]);
	json_decref(line[1]);
}
END_TEST

/* Each line of a file gets its forecast, or the message with which the run refuses it. */
START_TEST(predicts_a_file)
{
	char text[TEXT];
	json_t *line[8];

	scratch_write_text("lines.jsonl", "{\"plan\":\"none\",\"mesh\":\"dp=2\"}\n"
	                                  "{\"plan\":\"tq\",\"mesh\":\"tp=2\"}\n"
	                                  "{\"plan\":\"tp\",\"mesh\":\"tp=2\",\"lr\":1}\n"
	                                  "{\"plan\":\"tp\",\"mesh\":\"tp=2\"}\n");
	plan_data(text, "--strategies lines.jsonl " FORECAST);
	ck_assert_int_eq(read_lines(text, line), 4);
	ck_assert(get_forecast_number(line[0], "ranks") == 2 &&
	          get_forecast_number(line[3], "seconds") > 0);
	expect_part(json_string_value(json_object_get(line[1], "error")), "tq");
	expect_part(json_string_value(json_object_get(line[2], "error")), "\"lr\"");
	for (int i = 0; i < 4; i++)
		json_decref(line[i]);
}
END_TEST

static const struct {
	const char *args;
	int status;
	const char *says;
} refusals[] = {
	{ "-n 2 --train", 2, "--machine is missing: a100, h100, h200, or a file of" },
	{ "--machine h100 --train", 2, "-n is missing: the number of ranks" },
	{ "-n 2 --machine b300 --train", 1, "there is no machine \"b300\"; use a100, h100" },
	{ "-n 2 --machine ./none.json --train", 1, "none.json" },
	{ "-n 2 --machine h100 --sequence 8", 2, "--sequence, --optimizer, --clip, --math, " },
	{ "-n 2 --machine h100 --math bf16", 2,
	  "--math, --offload-optimizer and --offload-weights" },
	{ "-n 2 --machine h100 --train --math f16", 2, "--math f16: must be f32 or bf16; f16 has" },
	{ "-n 2 --machine h100 --train --math bf16", 1,
	  "machine h100: products of bf16 are for the cpu device; on a GPU TESSERA_CUDA_MATH" },
	{ "-n 2 --machine h100 --train --max-tokens 8", 2, "leave out --train" },
	{ "-n 2 --memory 1MB " FORECAST, 1,
	  "nothing fits in 0.001 GB;\n  2 ranks need at least 0.00" },
	{ "-n 2 --memory 1MB " FORECAST, 1, "ranks would fit in 0.00" },
	{ "-n 1 --memory 1K " FORECAST, 1,
	  ";\n  more ranks would not help, up to 256;\n  a smaller batch or shorter sequences "
	  "would not help\n" },
	{ "-n 2 --memory 4MB --machine h100 --batch 64", 1, ";\n  a batch of " },
	{ "-n 7919 " FORECAST, 1, "no strategy runs on 7919 ranks: dp is at most the batch of 4" },
	{ "-n 2 --consider '--plan tp' " FORECAST, 1, "--consider: --mesh is missing" },
	{ "-n 2 --consider '--mesh' " FORECAST, 1, "--consider: --mesh needs a value" },
	{ "-n 2 --consider '--mesh tp=2 --lr 1' " FORECAST, 1, "--consider: --lr is unknown" },
	{ "-n 2 --consider '--mesh pp=99 --plan none' " FORECAST, 1, "99" },
	{ "-n 97 --machine h100", 1,
	  "at most the 5 layers, and tp what plans can cut; try -n 5, or" },
	{ "-n 2 --consider '--mesh tp=2 --plan-override model.layers.0.mlp.down_proj="
	  "packed_rowwise:parts=3,1' " FORECAST,
	  1, "--consider: model.layers.0.mlp.down_proj.weight: dimension 1 consists of one part" },
	{ "-n 2 --consider '--mesh tp=4' " FORECAST, 1,
	  "--consider: the strategy is for the mesh tp=4 of 4 ranks, not for 2" },
	{ "--strategies none.jsonl " FORECAST, 1, "none.jsonl: cannot be read" },
	{ "-n 2 --out no/such/best.json " FORECAST, 1, "no/such/best.json" },
};

START_TEST(refuses_with_one_message)
{
	char text[TEXT];

	ck_assert_msg(plan_model(text, format_data_path(""), refusals[_i].args) ==
	                      refusals[_i].status,
	              "%s: %s", refusals[_i].args, text);
	expect_part(text, refusals[_i].says);
	ck_assert_int_eq(count_occurrences(text, "tessera plan: "), 1);
	/* before a search, and each part of the message once */
	if (strstr(refusals[_i].args, "--consider"))
		ck_assert_ptr_null(strstr(text, "tokens/s"));
	ck_assert_int_le(count_occurrences(text, "--consider: "), 1);
	ck_assert_int_le(count_occurrences(text, "tessera plan --help"), 1);
}
END_TEST

/* Families with experts, latent attention, sinks and windows, with one layer or few. */
START_TEST(families_are_planned)
{
	static const char *const names[] = { "gpt2",    "qwen3_moe",   "deepseek_v3", "gpt_oss",
		                             "mixtral", "gemma3_text", "llama4_text", "opt" };
	char text[TEXT], model[512];

	for (size_t i = 0; i<sizeof names / sizeof *names; i += THIN> 1 ? 4 : 1) {
		snprintf(model, sizeof model, SOURCE_ROOT "/tests/data/goldens/%s", names[i]);
		ck_assert_msg(!plan_model(text, model,
		                          "-n 2 --train --machine h100 --batch 4 --sequence 16"),
		              "%s: %s", names[i], text);
		ck_assert_msg(!plan_model(text, model,
		                          "-n 2 --machine h100 --prompt-tokens 16 --max-tokens 8"),
		              "%s: %s", names[i], text);
	}
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("plan_command", 120, &r);
	int failed;

	scratch_make();
	tcase_add_test(t, table_and_json);
	tcase_add_test(t, explores);
	tcase_add_test(t, what_it_writes_runs);
	tcase_add_test(t, plans_with_files);
	tcase_add_test(t, finds_shares_within_hosts);
	tcase_add_test(t, finds_ranks_of_experts);
	tcase_add_test(t, styles_that_it_finds_run);
	tcase_add_test(t, considers_a_strategy);
	tcase_add_test(t, predicts_a_file);
	tcase_add_loop_test(t, refuses_with_one_message, 0, sizeof refusals / sizeof *refusals);
	tcase_add_test(t, families_are_planned);
	failed = suite_end(r);
	scratch_remove();
	return failed;
}

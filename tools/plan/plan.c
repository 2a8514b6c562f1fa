/* plan.c - `tessera plan`: finds the fastest strategy that fits, by the programs that would run. */
#include "tools/plan/plan.h"

#include "core/base/json.h"
#include "core/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *name_planned_optimizer(int32_t kind)
{
	return kind == TESS_ADAMW ? "adamw" : "sgd";
}

#define AT(member) TESS_TOOL_AT(struct plan_options, member)

static const struct tess_tool_option rank_options[] = {
	{ "n", "N", "number of ranks", AT(ranks), .lo = 1, .hi = 1 << 20 },
	{ "machine", "NAME|FILE",
	  "machine: a100, h100, h200, or a file of `tessera bench machine` (required)",
	  AT(machine) },
	{ "memory", "SIZE",
	  "memory of a rank, as in 80G (80 * 10^9) or 24GiB (default: that of the machine)",
	  .at = offsetof(struct plan_options, memory), .parse = tess_tool_parse_memory },
	{ "styles", NULL, "search a style for each module, too", AT(styles) },
	{ 0 },
};
static const struct tess_tool_option training_options[] = {
	{ "train", NULL, "plan steps of training", AT(train) },
	{ "batch", "N", "sequences of a step, or that are generated at once (default: 8, or 1)",
	  AT(batch), .lo = 1, .hi = 1 << 24 },
	{ "sequence", "N", "ids of a sequence (default: 1024, or the checkpoint's maximum length)",
	  AT(sequence), .lo = 1, .hi = 1 << 24 },
	{ "optimizer", NULL, "optimizer (default: adamw)", AT(optimizer), .lo = TESS_ADAMW,
	  .hi = TESS_SGD, .get_name = name_planned_optimizer },
	{ "clip", "X",
	  "limit of the gradient norm, as in tessera train; 0: off, and values in files are "
	  "updated during the backward",
	  AT(clip), .hi = 1e30 },
	{ "offload-optimizer", NULL,
	  "search also strategies with the optimizer's state in files (default: if nothing fits)",
	  AT(offload_optimizer) },
	{ "offload-weights", NULL,
	  "search also strategies with weights, gradients and state in files",
	  AT(offload_weights) },
	{ 0 },
};
static const struct tess_tool_option generation_options[] = {
	{ "prompt-tokens", "N", "ids of a prompt (default: 512)", AT(prompt), .lo = 1,
	  .hi = 1 << 24 },
	{ "max-tokens", "N", "ids of a continuation (default: 128)", AT(tokens), .lo = 1,
	  .hi = 1 << 24 },
	{ 0 },
};
static const struct tess_tool_option output_options[] = {
	{ "top", "N", "print the N best strategies (default: 5, or all of --explore)", AT(most),
	  .lo = 1, .hi = 1000 },
	{ "explore", NULL, "print the strategies that no other beats in both time and memory",
	  AT(explore) },
	{ "consider", "OPTIONS",
	  "compare with a strategy of your own: '--mesh dp=2,tp=4 --plan tp+sp'", AT(consider) },
	{ "strategies", "FILE",
	  "predict each line of FILE, a strategy as --out writes it, instead of searching",
	  AT(strategies) },
	{ "out", "FILE", "write the best strategy, for --plan of train and generate", AT(out) },
	{ "json", NULL, "print one JSON object a line", AT(json) },
	{ 0 },
};

static tess_status parse_plan_options(int argc, char **argv, struct plan_options *a)
{
	const struct tess_tool_section sections[] = {
		{ "Ranks", rank_options, .to = a },
		{ "Training", training_options, .to = a },
		{ "", tess_tool_math_options, .to = &a->session },
		{ "Generation", generation_options, .to = a },
		{ "Output", output_options, .to = a },
		{ 0 },
	};
	tess_status st = tess_tool_parse_model(argc, argv, &tess_tool_plan, sections, &a->model);

	if (st)
		return st;
	if (!a->machine)
		return tess_fail(TESS_EINVAL,
		                 "--machine is missing: a100, h100, h200, or a file of "
		                 "`tessera bench machine --out FILE`");
	if (!a->ranks && !a->strategies)
		return tess_fail(TESS_EINVAL, "-n is missing: the number of ranks");
	if (!a->train && (a->sequence || a->optimizer || a->session.math || a->clip != 1 ||
	                  a->offload_optimizer || a->offload_weights))
		return tess_fail(TESS_EINVAL,
		                 "--sequence, --optimizer, --clip, --math, --offload-optimizer and "
		                 "--offload-weights are of training; add --train");
	if (a->train && (a->prompt || a->tokens))
		return tess_fail(TESS_EINVAL, "--prompt-tokens and --max-tokens are of "
		                              "generation; leave out --train");
	return TESS_OK;
}

static tess_status open_planner_of(const struct plan_options *a, struct tess_planner **out)
{
	const struct tess_planner_options o = { .size = sizeof o,
		                                .train = a->train,
		                                .machine = a->machine,
		                                .memory = a->memory,
		                                .batch = a->batch,
		                                .sequence = a->sequence,
		                                .prompt = a->prompt,
		                                .tokens = a->tokens,
		                                .optimizer = a->optimizer,
		                                .math = a->session.math,
		                                .styles = a->styles,
		                                .offload_optimizer = a->offload_optimizer,
		                                .offload_weights = a->offload_weights,
		                                .clip = a->clip };

	return tess_planner_open(a->model, &o, out);
}

/* Predicts one line, and prints its forecast, or why it cannot run. */
static tess_status predict_line(struct tess_planner *p, const char *line)
{
	struct tess_strategy *s = NULL;
	const struct tess_forecast *f;
	tess_status st = tess_strategy_read(line, &s);

	if (!st && !s)
		st = tess_fail(TESS_EINVAL, "a line has no key \"plan\"");
	if (!st)
		st = tess_planner_forecast(p, s, &f);
	tess_strategy_free(s);
	return st ? st : plan_print_json(f);
}

/* Prints {"error": ...} for a strategy that cannot run. */
static tess_status print_refusal(void)
{
	json_t *o = json_pack("{s:s}", "error", tess_error());
	char *text = o ? json_dumps(o, 0) : NULL;

	if (text)
		puts(text);
	free(text);
	json_decref(o);
	return text ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

static tess_status predict_lines(struct tess_planner *p, const char *path)
{
	FILE *f = fopen(path, "r");
	char *line = NULL;
	size_t room = 0;
	ssize_t len;
	tess_status st = f ? TESS_OK : tess_fail(TESS_ENOENT, "%s: cannot be read", path);

	while (!st && (len = getline(&line, &room, f)) > 0) {
		st = predict_line(p, line);
		if (st == TESS_EINVAL || st == TESS_ENOENT || st == TESS_ENOTSUP)
			st = print_refusal();
	}
	free(line);
	if (f)
		fclose(f);
	return st;
}

/* Predicts the strategy of --consider; *out: NULL without the option. */
static tess_status forecast_considered(struct tess_planner *p, const struct plan_options *a,
                                       const struct tess_forecast **out)
{
	struct tess_strategy s = { 0 };
	char *text = NULL;
	tess_status st;

	*out = NULL;
	if (!a->consider)
		return TESS_OK;
	st = plan_read_words(a->consider, &s, &text);
	if (!st)
		st = tess_strategy_check_ranks(&s, a->ranks);
	if (!st)
		st = tess_planner_forecast(p, &s, out);
	if (st)
		tess_fail_in(st, "--consider");
	free(text);
	return st;
}

/* Prints a message; what would fit instead has a line each. */
static void print_plan_failure(const char *message)
{
	bool lines = !strncmp(message, "nothing fits", strlen("nothing fits"));
	const char *end;

	fputs("tessera plan: ", stderr);
	for (; lines && (end = strstr(message, "; ")) != NULL; message = end + 2)
		fprintf(stderr, "%.*s;\n  ", (int)(end - message), message);
	fprintf(stderr, "%s\n", message);
}

static tess_status search_and_print(struct tess_planner *p, const struct plan_options *a)
{
	const struct tess_forecast *const *best, *considered;
	int32_t n;
	tess_status st = forecast_considered(p, a, &considered);

	if (!st)
		st = a->explore
		             ? tess_planner_explore(p, a->ranks, a->most ? a->most : 1000, &best,
		                                    &n)
		             : tess_planner_search(p, a->ranks, a->most ? a->most : 5, &best, &n);
	if (st)
		return st;
	if (!a->json)
		plan_print_table(a, best, n);
	for (int32_t i = 0; i < n && a->json && !st; i++)
		st = plan_print_json(best[i]);
	if (!st && a->out)
		st = tess_strategy_write(&best[0]->strategy, a->out);
	if (!st && considered && a->json)
		st = plan_print_json(considered);
	else if (!st && considered)
		plan_print_comparison(best[0], considered);
	return st;
}

static int run_plan_command(int argc, char **argv)
{
	struct plan_options a = { .clip = 1 };
	struct tess_planner *p = NULL;
	tess_status st = parse_plan_options(argc, argv, &a);

	if (st == TESS_PENDING)
		return 0;
	if (st) {
		tess_tool_print_error("plan");
		return 2;
	}
	st = open_planner_of(&a, &p);
	if (!st)
		st = a.strategies ? predict_lines(p, a.strategies) : search_and_print(p, &a);
	tess_planner_close(p);
	if (st)
		print_plan_failure(tess_error());
	return st ? 1 : 0;
}

const struct tess_tool_command tess_tool_plan = {
	.name = "plan",
	.summary = "find the fastest strategy that fits N ranks of a machine",
	.usage = "MODEL -n N --machine NAME|FILE [options]",
	.about = "Searches meshes, plans, ZeRO stages, recomputation, micro-batches and\n"
		 "schedules. The program of each is lowered for its ranks, and simulated by the\n"
		 "rates of the machine; memory is that of the run. Starts no rank and reads no\n"
		 "weight: config.json is enough.\n",
	.examples = "  tessera plan data -n 8 --machine h100 --train --batch 64\n"
		    "  tessera plan data -n 8 --machine h100 --train --batch 64 --out best.json\n"
		    "  tessera plan data -n 4 --machine h100 --batch 32 --prompt-tokens 256\n"
		    "  tessera plan data -n 4 --machine h100 --train --consider '--mesh dp=4'\n",
	.run = run_plan_command,
};

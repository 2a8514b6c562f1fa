/* compare.c - `tessera compare`: finds the first module whose value differs between two runs. */
#include "compare.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_OPTIONS_MAX = 32, DIFFERENT = 1, TROUBLE = 2 };

#define AT(member) TESS_TOOL_AT(struct compare_options, member)

static const struct tess_tool_option own_options[] = {
	{ "against", "OPTIONS",
	  "options of run B in quotes, after TESSERA_NAME=VALUE of its environment (default: -n 1 "
	  "--plan none)",
	  AT(against) },
	{ "ids", "1,2,3", "token ids of both runs (default: 1 to 16)", AT(ids) },
	{ "prompt", "TEXT", "text of both runs, in place of ids", AT(prompt) },
	{ "train", NULL, "compare a training step: outputs of modules, then gradients (NAME.grad)",
	  AT(train) },
	{ "ids-file", "FILE",
	  "batch of --train, as in tessera grad (default: 8 sequences, the ids rotated by 0 to 7)",
	  AT(ids_file) },
	{ "values-of", "PATTERN",
	  "compare these modules, as in plans: model.layers.*.mlp (default: *, all modules)",
	  AT(values_of) },
	{ 0 },
};

static const struct tess_tool_option result_options[] = {
	{ "tolerance", "X",
	  "allow differences up to X times the largest element of a value (default: 0, if both "
	  "runs are exact and of equal types, else 1e-5)",
	  AT(tolerance), .hi = 1 },
	{ "exact", NULL, "compare bits", AT(exact) },
	{ "json", NULL, "print a JSON object", AT(json) },
	{ "svg", "FILE", "draw all values as SVG", AT(svg) },
	{ 0 },
};

/* ---- the options of a run -------------------------------------------------------------------- */

/* Keeps an option of a run, which its command reads. */
static tess_status keep_option(const char *name, const char *text, void *to)
{
	struct compare_run *run = to;
	tess_status st = compare_add_word(&run->options, name);

	return st || !text ? st : compare_add_word(&run->options, text);
}

/* Copies the options of sessions, which are kept as words. */
static void list_run_options(struct tess_tool_option out[RUN_OPTIONS_MAX])
{
	static const struct tess_tool_option *const tables[] = {
		tess_tool_mesh_options,   tess_tool_job_options,     tess_tool_plan_options,
		tess_tool_memory_options, tess_tool_compute_options, tess_tool_math_options,
	};
	int n = 0;

	for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
		for (const struct tess_tool_option *o = tables[t]; o->name; o++) {
			out[n] = *o;
			out[n].at = 0;
			out[n++].parse = keep_option;
		}
	out[n] = (struct tess_tool_option){ 0 };
}

static bool is_variable(const char *word)
{
	size_t n = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");

	return !strncmp(word, "TESSERA_", 8) && word[n] == '=';
}

/* Reads the words of --against after their variables. */
static tess_status read_run_words(struct compare_run *run, const struct compare_words *words,
                                  int32_t first)
{
	struct tess_tool_option options[RUN_OPTIONS_MAX];
	const struct tess_tool_section sections[] = { { "Run", options, .to = run }, { 0 } };
	char **argv = calloc((size_t)words->n + 2, sizeof *argv);
	int argc = words->n - first + 1;
	tess_status st;

	if (!argv)
		return tess_fail(TESS_ENOMEM, "out of memory");
	argv[0] = words->word[0];
	for (int32_t i = 1; i < argc; i++)
		argv[i] = words->word[first + i - 1];
	list_run_options(options);
	st = tess_tool_parse_options(argc, argv, &tess_tool_compare, false, sections);
	if (st && st != TESS_PENDING)
		st = tess_fail(st, "--against: %s", tess_error());
	if (!st && optind < argc)
		st = tess_fail(TESS_EINVAL, "--against: %s is no option; both runs have one MODEL",
		               argv[optind]);
	free(argv);
	return st;
}

static tess_status read_against(struct compare_options *o)
{
	struct compare_words words = { 0 };
	int32_t first = 0;
	tess_status st = compare_split_words(o->against ? o->against : "-n 1 --plan none", &words);

	while (!st && first < words.n && is_variable(words.word[first]))
		st = compare_add_word(&o->b.variables, words.word[first++]);
	if (!st && first < words.n)
		st = read_run_words(&o->b, &words, first);
	compare_free_words(&words);
	return st;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status check_files(const struct compare_options *o)
{
	const char *option = o->a.options.n ? o->a.options.word[0]
	                     : o->against   ? "--against"
	                     : o->ids       ? "--ids"
	                     : o->prompt    ? "--prompt"
	                     : o->ids_file  ? "--ids-file"
	                     : o->values_of ? "--values-of"
	                     : o->train     ? "--train"
	                                    : NULL;

	return option ? tess_fail(TESS_EINVAL,
	                          "%s is an option of runs, and two files are compared", option)
	              : TESS_OK;
}

static tess_status check_compare_options(struct compare_options *o)
{
	bool launched;
	tess_status st = tess_tool_is_launched(&launched);

	if (st || launched)
		return st ? st
		          : tess_fail(TESS_EINVAL, "tessera compare starts the ranks of its runs; "
		                                   "start it once, not as a rank of a job");
	if (o->exact && o->tolerance >= 0)
		return tess_fail(TESS_EINVAL, "--exact and --tolerance: give one of them");
	if (!o->model)
		return check_files(o);
	if (o->ids && o->prompt)
		return tess_fail(TESS_EINVAL, "--ids and --prompt: give one of them");
	if (o->ids_file && (o->ids || o->prompt || !o->train))
		return tess_fail(TESS_EINVAL,
		                 "--ids-file is a batch of --train, without --ids or --prompt");
	return read_against(o);
}

/* TESS_PENDING: --help was printed. */
static tess_status parse_compare_options(int argc, char **argv, struct compare_options *o)
{
	struct tess_tool_option options[RUN_OPTIONS_MAX];
	const struct tess_tool_section sections[] = {
		{ "Runs", own_options, .to = o },
		{ "Result", result_options, .to = o },
		{ "Run A, and in --against run B", options, .to = &o->a },
		{ 0 },
	};
	tess_status st;

	list_run_options(options);
	st = tess_tool_parse_options(argc, argv, &tess_tool_compare, false, sections);
	if (st)
		return st;
	if (argc - optind < 1 || argc - optind > 2)
		return tess_fail(
			TESS_EINVAL,
			"give a MODEL, a checkpoint directory, or two files of values; see "
			"tessera compare --help");
	if (argc - optind == 1)
		o->model = argv[optind];
	o->file[0] = o->model ? NULL : argv[optind];
	o->file[1] = o->model ? NULL : argv[optind + 1];
	return check_compare_options(o);
}

static tess_status check_compare_output(const struct compare_options *o)
{
	const struct tess_tool_output outputs[] = { { "--svg", o->svg }, { 0 } };
	const char *const files[] = { o->model ? o->ids_file : o->file[0], o->file[1], NULL };

	return tess_tool_check_outputs(
		outputs, &(struct tess_tool_inputs){ .model = o->model, .files = { files } });
}

/* ---- comparing ------------------------------------------------------------------------------- */

static tess_status load_both(const struct compare_options *o, struct tess_values *values[2])
{
	tess_status st = TESS_OK;

	if (o->model)
		return compare_run_both(o, values);
	for (int i = 0; i < 2 && !st; i++)
		st = tess_values_load(o->file[i], &values[i]);
	return st;
}

static tess_status compare_values(const struct compare_options *o, bool *different)
{
	double tolerance = o->exact ? 0 : o->tolerance >= 0 ? o->tolerance : TESS_TOLERANCE_AUTO;
	struct tess_values *values[2] = { NULL, NULL };
	struct tess_comparison *c = NULL;
	bool failed[2] = { false, false }; /* by --check */
	tess_status st = load_both(o, values);

	if (!st)
		st = tess_values_compare(values[0], values[1], tolerance, &c);
	if (!st && o->model && c->ndifferent)
		st = compare_check_both(o, failed);
	if (!st)
		st = o->json ? compare_print_json(o, c, failed) : compare_print_table(o, c, failed);
	if (!st && o->svg)
		st = compare_draw(o, c);
	*different = !st && c->ndifferent > 0;
	tess_comparison_free(c);
	tess_values_free(values[0]);
	tess_values_free(values[1]);
	return st;
}

static int execute_compare(int argc, char **argv)
{
	struct compare_options o = { .a = { .name = "A" }, .b = { .name = "B" }, .tolerance = -1 };
	tess_status st = parse_compare_options(argc, argv, &o);
	bool different = false;

	if (!st)
		st = check_compare_output(&o);
	if (!st)
		st = compare_values(&o, &different);
	if (st < 0 && !tess_tool_is_interrupted())
		tess_tool_print_error("compare");
	compare_free_words(&o.a.options);
	compare_free_words(&o.b.options);
	compare_free_words(&o.b.variables);
	if (tess_tool_is_interrupted())
		return tess_tool_get_interrupt_status();
	return st < 0 ? TROUBLE : different ? DIFFERENT : 0;
}

const struct tess_tool_command tess_tool_compare = {
	"compare",
	"find the first module whose value differs between two runs",
	"MODEL [options] [--against 'options of run B']\n"
	"       tessera compare A.safetensors B.safetensors [options]",
	"Runs a checkpoint with the options of run A, then with those of run B, and names the\n"
	"first module whose output differs: row, column, both elements, and the rank that holds\n"
	"it. Also compares two files of generate --values, grad --values or python -m\n"
	"tessera.record. Exit status: 0: equal; 1: different; 2: the comparison failed.\n",
	"  tessera compare data -n 4 --plan tp+sp\n"
	"  tessera compare data -n 2 --plan-override 'model.layers.*.mlp.down_proj=rowwise'\n"
	"  tessera compare llama --math bf16 --tolerance 0.02\n"
	"  tessera compare data -n 4 --mesh dp=2,tp=2 --train --against '--mesh tp=4'\n"
	"  tessera compare ours.safetensors transformers.safetensors\n",
	execute_compare,
};

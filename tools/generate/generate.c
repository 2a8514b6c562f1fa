/* generate.c - `tessera generate`: arguments, checks of prompt and plan, start of the ranks. */
#include "generate.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const help =
	"usage: tessera generate MODEL [-n N] [--mesh M] [--backend B] [--threads T]\n"
	"       [--device D] [--plan P] [--plan-override PATTERN=STYLE] [--ignore-unexpected]\n"
	"       [--prompt TEXT | --prompt-file FILE | --ids 1,2,3 | --prompts FILE]\n"
	"       [--prefill-chunk N] [--batch N] [--positions L] [--kv DTYPE] [--kv-memory SIZE]\n"
	"       [--weights HOW] [--math DTYPE]\n"
	"       [--max-tokens N] [--ignore-eos] [--temperature X] [--top-k N] [--top-p X]\n"
	"       [--min-p X] [--repetition-penalty X] [--seed S]\n"
	"       [--json] [--stats] [--digest] [--check] [--logits FILE] [--flight DIR] [--help]\n"
	"\n"
	"Generates text from a checkpoint directory on N ranks. The text streams to stdout; the\n"
	"rest goes to stderr. On CPUs no bit depends on the number of ranks or threads, the\n"
	"backend, or what else is generated at the same time.\n"
	"\n"
	"ranks\n"
	"  -n N                  number of ranks: threads over loopback, else processes\n"
	"  --mesh M              named dimensions of the ranks: tp=4 (default tp=N), dp=2,tp=2;\n"
	"                        along dp replicas share the prompts; along pp are stages\n"
	"  --backend B           loopback, gloo, ... (TESSERA_BACKEND; default auto)\n"
	"  --threads T           compute threads per rank (default: CPUs / ranks)\n"
	"  --device D            NAME[:INDEX] (TESSERA_DEVICE; default cpu)\n"
	"plan\n"
	"  --plan P              auto, none, a plan of the model (tp, tp+sp, ep, hf), file, JSON\n"
	"                        {\"pattern\": \"style\"} or {\"tp\": {\"pattern\": \"style\"}}\n"
	"  --plan-override PATTERN=STYLE   replaces one rule; may be repeated; DIMENSION:PATTERN\n"
	"                        for another dimension of the mesh than tp\n"
	"  --ignore-unexpected   skips tensors that no module uses, with a warning\n"
	"prompts; all of them run at once, as far as memory allows\n"
	"  --prompt TEXT         default: stdin if a pipe or a file, else empty; may be repeated\n"
	"  --prompt-file FILE    the bytes of a file; - is stdin; may be repeated\n"
	"  --ids 1,2,3           token ids; needs no tokenizer; may be repeated\n"
	"  --prompts FILE        JSON lines {\"prompt\": TEXT} or {\"ids\": [1,2,3]}, with\n"
	"                        max_tokens, temperature, top_k, top_p, min_p,\n"
	"                        repetition_penalty and seed of their own; - is stdin. Prints\n"
	"                        the object of --json as each text ends, with its index\n"
	"  --prefill-chunk N     at most N tokens of prompts a step (512; cuda 2048)\n"
	"  --batch N             at most N texts at once (1024), as the KV cache has room\n"
	"  --positions L         of a text, at most (default: the checkpoint's)\n"
	"  --kv DTYPE            keys and values in the cache: auto, f32 or bf16\n"
	"  --kv-memory SIZE      bytes of KV cache per rank, as in 512M or 4G\n"
	"  --weights HOW         file: as stored; q8: linear weights of 8 bits; bf12: bf16 in\n"
	"                        12, without loss\n"
	"  --math DTYPE          f32 or bf16: linear products of inputs that are rounded to bf16\n"
	"sampling\n"
	"  --max-tokens N        at most N tokens (default: the checkpoint's, else 256)\n"
	"  --ignore-eos          continues where the model would stop\n"
	"  --temperature X       0: the most likely token (default: the checkpoint's)\n"
	"  --top-k N             most likely tokens; 0: all (default: the checkpoint's, else 50)\n"
	"  --top-p X  --min-p X  --repetition-penalty X  --seed S\n"
	"output\n"
	"  --check               compares weights and values of ranks; searches for NaN and Inf\n"
	"                        (TESSERA_CHECK)\n"
	"  --json                a JSON object instead of each text\n"
	"  --stats               times, tokens per second, memory per rank\n"
	"  --digest              SHA-256 over the logits that chose each token of a text\n"
	"  --logits FILE         the logits of every position of one prompt, as safetensors\n"
	"  --flight DIR          after a failure, the last calls of all ranks (TESSERA_FLIGHT)\n"
	"  --help                this text\n"
	"\n"
	"examples:\n"
	"  tessera generate data --prompt 'Once upon a time' --temperature 0\n"
	"  tessera generate data -n 4 --backend gloo --digest --prompt 'Once upon a time'\n"
	"  tessera generate data -n 4 --mesh dp=2,tp=2 --prompts prompts.jsonl\n"
	"  tessera generate data -n 2 --plan-override 'model.layers.*.mlp.down_proj=rowwise'\n";

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status parse_temperature(const char *name, const char *text, void *to)
{
	return tess_tool_parse_real(name, text, 0, 1e6, to);
}

static tess_status parse_share(const char *name, const char *text, void *to)
{
	return tess_tool_parse_real(name, text, 0, 1, to);
}

static tess_status parse_penalty(const char *name, const char *text, void *to)
{
	return tess_tool_parse_real(name, text, 1e-6, 1e6, to);
}

static tess_status parse_prompt(const char *name, const char *text, void *to)
{
	struct prompts *p = to;

	if (p->lines || (p->n && !strcmp(name, "--prompts")))
		return tess_fail(TESS_EINVAL, "--prompts holds all prompts: give it alone, once");
	if (!strcmp(name, "--prompt-file"))
		return prompts_add_file(p, text);
	if (!strcmp(name, "--prompts"))
		return prompts_add_lines(p, text);
	if (!strcmp(name, "--ids"))
		return prompts_add_ids(p, text);
	return prompts_add_text(p, text, strlen(text));
}

static tess_status check_logits_option(const struct generate_options *a)
{
	if (!*a->logits)
		return tess_fail(TESS_EINVAL, "--logits: the name of a file is empty; give one");
	if (a->prompts.lines)
		return tess_fail(TESS_EINVAL,
		                 "--logits is of one prompt: give --prompt, --prompt-file or "
		                 "--ids, not --prompts");
	if (a->prompts.n > 1)
		return tess_fail(TESS_EINVAL,
		                 "--logits is of one prompt, and %lld are given; run the command "
		                 "for each",
		                 (long long)a->prompts.n);
	return TESS_OK;
}

/* TESS_PENDING: --help was printed. */
static tess_status parse_generate_options(int argc, char **argv, struct generate_options *a)
{
	bool check = false;
	const struct tess_tool_option table[] = {
		{ "prompt", .parse = parse_prompt, .to = &a->prompts },
		{ "prompt-file", .parse = parse_prompt, .to = &a->prompts },
		{ "ids", .parse = parse_prompt, .to = &a->prompts },
		{ "prompts", .parse = parse_prompt, .to = &a->prompts },
		{ "prefill-chunk", .number = &a->chunk, .lo = 1, .hi = INT32_MAX },
		{ "batch", .number = &a->batch, .lo = 1, .hi = INT32_MAX },
		{ "max-tokens", .number = &a->max_tokens, .lo = 0, .hi = INT32_MAX },
		{ "ignore-eos", .flag = &a->ignore_eos },
		{ "temperature", .parse = parse_temperature, .to = &a->temperature },
		{ "top-k", .number = &a->top_k, .lo = 0, .hi = INT32_MAX },
		{ "top-p", .parse = parse_share, .to = &a->top_p },
		{ "min-p", .parse = parse_share, .to = &a->min_p },
		{ "repetition-penalty", .parse = parse_penalty, .to = &a->penalty },
		{ "seed", .parse = tess_tool_parse_seed, .to = &a->seed },
		{ "check", .flag = &check },
		{ "json", .flag = &a->json },
		{ "stats", .flag = &a->stats },
		{ "digest", .flag = &a->digest },
		{ "logits", .text = &a->logits, .local = true },
		{ "flight", .text = &a->flight, .local = true },
		{ 0 },
	};
	tess_status st = tess_tool_parse_session(argc, argv, help, table, &a->session);

	if (st)
		return st;
	if (check)
		st = tess_option_set("check", "1");
	return st || !a->logits ? st : check_logits_option(a);
}

/* ---- running --------------------------------------------------------------------------------- */

/* A single prompt, as rank 0 will encode it, before weights are read. */
static tess_status check_prompt(const struct generate_options *a,
                                const struct tess_session_info *info)
{
	const struct prompt *p = a->prompts.list;
	struct tess_tokenizer *t = NULL;
	int32_t *made = NULL;
	size_t n = (size_t)p->nids;
	tess_status st = TESS_OK;

	if (!p->ids)
		st = tess_tokenizer_open(a->session.model, &t);
	if (st == TESS_ENOENT)
		st = tess_fail(st, "%s; a prompt of text needs it: give ids with --ids",
		               tess_error());
	if (t)
		st = tess_tokenizer_encode(t, p->text, p->len, true, &made, &n);
	if (t && st)
		st = tess_fail(st, "%s%s: %s", p->file ? "--prompt-file " : "the prompt",
		               p->file ? p->file : "", tess_error());
	if (!st)
		st = tess_session_check_prompt(info, made ? made : p->ids, (int64_t)n);
	tess_tokenizer_close(t);
	free(made);
	return st;
}

/* Prompts are read already: their files are named by the options. */
static tess_status check_generate_outputs(const struct generate_options *a)
{
	const struct tess_tool_output outputs[] = { { "--logits", a->logits }, { 0 } };
	const char **files = calloc((size_t)a->prompts.n + 2, sizeof *files);
	struct tess_tool_inputs in = { .model = a->session.model, .plan = a->session.plan };
	size_t n = 0;
	tess_status st;

	if (!files)
		return tess_fail(TESS_ENOMEM, "no memory for the names of prompt files");
	for (int64_t i = 0; i < a->prompts.n; i++)
		if (a->prompts.list[i].file)
			files[n++] = a->prompts.list[i].file;
	if (a->prompts.file)
		files[n++] = a->prompts.file;
	if (a->from_stdin)
		files[n++] = "/dev/stdin";
	in.files[0] = files;
	st = tess_tool_check_outputs(outputs, &in);
	free(files);
	return st;
}

/* Whatever all ranks would refuse, before a rank starts and before a weight is read. */
static tess_status check_generate_options(struct generate_options *a)
{
	struct tess_session_info info = { .size = sizeof info };
	tess_status st = tess_tool_check_session(&a->session, &info);

	char ranks[32];

	snprintf(ranks, sizeof ranks, " %d ranks", a->session.ranks);
	if (st && strstr(tess_error(), ranks))
		st = tess_tool_explain_ranks(st);
	if (!st && a->logits)
		st = tess_logits_check_writable(a->logits);
	if (!st && a->from_stdin)
		st = prompts_add_stdin(&a->prompts);
	if (!st && a->prompts.n == 1 && !a->prompts.lines)
		st = check_prompt(a, &info);
	return st;
}

/* Chooses the prompt that no option gives. The stdin of a launched rank may be anything. */
static tess_status choose_default_prompt(struct generate_options *a, bool launched)
{
	if (a->prompts.n || a->prompts.lines)
		return TESS_OK;
	a->from_stdin = !launched && prompts_are_on_stdin();
	return a->from_stdin ? TESS_OK : prompts_add_text(&a->prompts, "", 0);
}

/* Ranks that are processes read again what rank 0 finds on stdin; the others find nothing. */
static tess_status run_with_stdin(struct generate_options *a, char **argv, int *exit_status)
{
	static char option[] = "--prompt-file", dash[] = "-";
	size_t n = 1;
	char **list;
	tess_status st;

	while (argv[n])
		n++;
	list = calloc(n + 3, sizeof *list);
	if (!list)
		return tess_fail(TESS_ENOMEM, "out of memory");
	list[0] = argv[0];
	list[1] = option;
	list[2] = dash;
	memcpy(list + 3, argv + 1, (n - 1) * sizeof *list);
	st = tess_tool_run_ranks(a->session.ranks, list, generate_run_rank, a, exit_status);
	free(list);
	return st;
}

static tess_status run_generate(struct generate_options *a, char **argv, int *exit_status)
{
	bool launched;
	tess_status st = tess_tool_is_launched(&launched);

	if (!st)
		st = tess_tool_set_flight(a->flight, launched);
	if (!st)
		st = choose_default_prompt(a, launched);
	if (!st)
		st = check_generate_outputs(a);
	if (!st && launched)
		return tess_tool_join_job(a->session.ranks, generate_run_rank, a);
	if (!st)
		st = check_generate_options(a);
	if (st)
		return st;
	if (a->from_stdin)
		return run_with_stdin(a, argv, exit_status);
	return tess_tool_run_ranks(a->session.ranks, argv, generate_run_rank, a, exit_status);
}

int tess_tool_generate(int argc, char **argv)
{
	struct generate_options a = { .max_tokens = -1,
		                      .top_k = -1,
		                      .temperature = NAN,
		                      .top_p = NAN,
		                      .min_p = NAN,
		                      .penalty = NAN };
	tess_status st = parse_generate_options(argc, argv, &a);
	int exit_status = 0;
	bool usage = st < 0;

	if (!st)
		st = run_generate(&a, argv, &exit_status);
	if (st < 0)
		tess_tool_print_error("generate");
	prompts_free(&a.prompts);
	if (st < 0)
		return usage ? 2 : 1;
	if (exit_status || tess_tool_is_interrupted())
		return exit_status ? exit_status : tess_tool_get_interrupt_status();
	return tess_tool_share_status(generate_has_failed());
}

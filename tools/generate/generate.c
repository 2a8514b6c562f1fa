/* generate.c - `tessera generate`: reads options, checks prompt and plan, starts the ranks. */
#include "generate.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) TESS_TOOL_AT(struct generate_options, member)

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status parse_prompt(const char *name, const char *text, void *to)
{
	struct prompts *p = to;
	bool lines = !strcmp(name, "--prompts") || !strcmp(name, "--messages");

	if (p->lines || (p->n && lines))
		return tess_fail(TESS_EINVAL,
		                 "%s: contains all prompts; give it once, without other prompts",
		                 p->lines ? prompts_get_option(p) : name);
	if (!strcmp(name, "--prompt-file"))
		return prompts_add_file(p, text);
	if (!strcmp(name, "--prompts"))
		return prompts_add_lines(p, text);
	if (!strcmp(name, "--messages"))
		return prompts_add_messages(p, text);
	if (!strcmp(name, "--ids"))
		return prompts_add_ids(p, text);
	return prompts_add_text(p, text, strlen(text));
}

/* Checks an option that writes data of one prompt to the file `path`; NULL: not given. */
static tess_status check_file_option(const struct generate_options *a, const char *option,
                                     const char *path)
{
	if (!path)
		return TESS_OK;
	if (!*path)
		return tess_fail(TESS_EINVAL, "%s: the file name is empty", option);
	if (a->prompts.lines)
		return tess_fail(TESS_EINVAL,
		                 "%s: requires one prompt; give --prompt, --prompt-file or "
		                 "--ids, not %s",
		                 option, prompts_get_option(&a->prompts));
	if (a->prompts.n > 1)
		return tess_fail(TESS_EINVAL,
		                 "%s: requires one prompt, and %lld are given; run the command "
		                 "for each",
		                 option, (long long)a->prompts.n);
	return TESS_OK;
}

static tess_status check_stop_options(const struct generate_options *a)
{
	for (int32_t i = 0; i < a->stop.n; i++)
		if (!*a->stop.text[i])
			return tess_fail(TESS_EINVAL, "--stop: the text is empty");
	return TESS_OK;
}

/* Refuses options of conversations without --messages, which they may precede. */
static tess_status check_chat_options(const struct generate_options *a)
{
	const char *option = a->system ? "--system" : a->template_name ? "--chat-template" : NULL;

	if (a->prompts.chats || !option)
		return TESS_OK;
	return tess_fail(TESS_EINVAL, "%s: applies to conversations; give --messages FILE, too",
	                 option);
}

static tess_status check_file_options(const struct generate_options *a)
{
	tess_status st = check_file_option(a, "--logits", a->logits);

	if (!st)
		st = check_file_option(a, "--values", a->values);
	if (!st && a->values_of && !a->values)
		st = tess_fail(TESS_EINVAL, "--values-of: give --values FILE, too");
	return st;
}

static const struct tess_tool_option prompt_options[] = {
	{ "prompt", "TEXT", "prompt; repeatable (default: stdin, if a pipe or a file)",
	  .parse = parse_prompt, AT(prompts) },
	{ "prompt-file", "FILE", "prompt from a file, - for stdin; repeatable",
	  .parse = parse_prompt, AT(prompts) },
	{ "ids", "1,2,3", "prompt as token ids, without a tokenizer; repeatable",
	  .parse = parse_prompt, AT(prompts) },
	{ "prompts", "FILE",
	  "prompts as JSON lines {\"prompt\": TEXT} or {\"ids\": [1,2,3]}, - for stdin",
	  .parse = parse_prompt, AT(prompts) },
	{ "messages", "FILE",
	  "chats as JSON lines: [{\"role\": \"user\", \"content\": TEXT}], - for stdin",
	  .parse = parse_prompt, AT(prompts) },
	{ "system", "TEXT", "system message of chats without one", AT(system) },
	{ "chat-template", "NAME", "template of chats (default: checkpoint's, by its SHA-256)",
	  AT(template_name) },
	{ "prefill-chunk", "N",
	  "maximum prompt tokens per step (default: 512; cuda, offloaded weights: 2048)", AT(chunk),
	  .lo = 1, .hi = INT32_MAX },
	{ "batch", "N", "maximum number of concurrent sequences (default: 1024)", AT(batch),
	  .lo = 1, .hi = INT32_MAX },
	{ 0 },
};

static const struct tess_tool_option sampling_options[] = {
	{ "max-tokens", "N", "maximum number of new tokens (default: checkpoint's, else 256)",
	  AT(max_tokens), .hi = INT32_MAX },
	{ "stop", "TEXT", "end a sequence before TEXT, which is not printed; repeatable",
	  AT(stop) },
	{ "ignore-eos", NULL, "continue where the model would stop", AT(ignore_eos) },
	{ "temperature", "X", "0: take the most likely token (default: checkpoint's)",
	  AT(temperature), .hi = 1e6 },
	{ "top-k", "N", "keep the N most likely tokens; 0: all (default: checkpoint's, else 50)",
	  AT(top_k), .hi = INT32_MAX },
	{ "top-p", "X",
	  "keep the fewest tokens of total probability X (default: checkpoint's, else 1)",
	  AT(top_p), .hi = 1 },
	{ "min-p", "X",
	  "drop tokens below X times the highest probability (default: checkpoint's, else 0)",
	  AT(min_p), .hi = 1 },
	{ "repetition-penalty", "X",
	  "penalize tokens of the sequence; 1: off (default: checkpoint's, else 1)", AT(penalty),
	  .lo = 1e-6, .hi = 1e6 },
	{ "seed", "S", "seed of the random numbers", AT(seed) },
	{ 0 },
};

static const struct tess_tool_option output_options[] = {
	{ "json", NULL, "print one JSON object per sequence", AT(json) },
	{ "stats", NULL, "print times, tokens per second and memory per rank", AT(stats) },
	{ "digest", NULL, "print the SHA-256 of the logits that chose each token", AT(digest) },
	{ "check", NULL,
	  "compare weights and values across ranks, find NaN and Inf (TESSERA_CHECK)",
	  .parse = tess_tool_set_option },
	{ "logits", "FILE", "write the logits of every position of one prompt as safetensors",
	  AT(logits), .local = true },
	{ "values", "FILE", "write outputs of modules for one prompt as safetensors", AT(values) },
	{ "values-of", "PATTERN",
	  "modules of --values, as in plans: model.layers.*.mlp (default: *, all modules)",
	  AT(values_of) },
	{ "flight", "DIR", "record the last calls of all ranks (default: TESSERA_FLIGHT)",
	  AT(flight), .local = true },
	{ 0 },
};

/* TESS_PENDING: --help was printed. */
static tess_status parse_generate_options(int argc, char **argv, struct generate_options *a)
{
	const struct tess_tool_section sections[] = {
		{ "Ranks", tess_tool_mesh_options, .to = &a->session },
		{ "", tess_tool_job_options, .to = &a->session },
		{ "Plan", tess_tool_plan_options, .to = &a->session },
		{ "Prompts", prompt_options, .to = a },
		{ "Memory and precision", tess_tool_memory_options, .to = &a->session },
		{ "", tess_tool_compute_options, .to = &a->session },
		{ "", tess_tool_math_options, .to = &a->session },
		{ "Sampling", sampling_options, .to = a },
		{ "Output", output_options, .to = a },
		{ 0 },
	};
	tess_status st =
		tess_tool_parse_model(argc, argv, &tess_tool_generate, sections, &a->session.model);

	if (!st)
		st = tess_tool_take_strategy(&a->session);
	if (!st)
		st = check_chat_options(a);
	if (!st)
		st = check_stop_options(a);
	return st ? st : check_file_options(a);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Checks a single prompt as rank 0 will encode it, before weights are read. */
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

/* Checks --logits and --values against the inputs; prompts are already read. */
static tess_status check_generate_outputs(const struct generate_options *a)
{
	const struct tess_tool_output outputs[] = { { "--logits", a->logits },
		                                    { "--values", a->values },
		                                    { 0 } };
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

/* Checks what all ranks would refuse, before ranks start and weights are read. */
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
	if (!st && a->values)
		st = tess_logits_check_writable(a->values);
	if (!st && a->from_stdin)
		st = prompts_add_stdin(&a->prompts);
	if (!st && a->prompts.n == 1 && !a->prompts.lines)
		st = check_prompt(a, &info);
	return st;
}

/* Chooses a prompt if no option gives one; never stdin in a launched rank. */
static tess_status choose_default_prompt(struct generate_options *a, bool launched)
{
	if (a->prompts.n || a->prompts.lines)
		return TESS_OK;
	a->from_stdin = !launched && prompts_are_on_stdin();
	return a->from_stdin ? TESS_OK : prompts_add_text(&a->prompts, "", 0);
}

/* Runs ranks that are processes with --prompt-file -, which rank 0 reads from stdin again. */
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

/* Opens the chat template, and renders the conversations. */
static tess_status render_chats(struct generate_options *a)
{
	tess_status st = tess_chat_open(a->session.model, a->template_name, &a->chat);

	if (st)
		return tess_fail(st, "%s%s",
		                 a->template_name ? "--chat-template: "
		                                  : "--messages without --chat-template NAME: ",
		                 tess_error());
	return prompts_render(&a->prompts, a->chat, a->system);
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
	if (!st && a->prompts.chats)
		st = render_chats(a);
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

static int execute_generate(int argc, char **argv)
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
	tess_chat_close(a.chat);
	if (st < 0)
		return usage ? 2 : 1;
	if (exit_status || tess_tool_is_interrupted())
		return exit_status ? exit_status : tess_tool_get_interrupt_status();
	return tess_tool_share_status(generate_has_failed());
}

const struct tess_tool_command tess_tool_generate = {
	"generate",
	"generate text from a checkpoint on N ranks",
	"MODEL [options]",
	"Generates text from a checkpoint directory on N ranks. The text streams to stdout, all\n"
	"else goes to stderr. On CPUs no bit depends on the number of ranks or threads, the\n"
	"backend, or what else is generated at the same time.\n",
	"  tessera generate data --prompt 'Once upon a time' --temperature 0\n"
	"  tessera generate data -n 4 --backend gloo --digest --prompt 'Once upon a time'\n"
	"  tessera generate data -n 4 --mesh dp=2,tp=2 --prompts prompts.jsonl\n"
	"  tessera generate data -n 2 --plan-override 'model.layers.*.mlp.down_proj=rowwise'\n"
	"  torchrun --nproc-per-node 4 --no-python tessera generate data --prompt 'One day'\n",
	execute_generate,
};

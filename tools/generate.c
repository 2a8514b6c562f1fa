/* generate.c - `tessera generate`: arguments, checks of prompt and plan, start of the ranks. */
#include "generate.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "core/rendezvous/rank_env.h"
#include "hf/safetensors.h"
#include "hf/session.h"
#include "tool.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const help =
	"usage: tessera generate MODEL [-n N] [--mesh M] [--backend B] [--threads T]\n"
	"       [--plan P] [--plan-override PATTERN=STYLE] [--ignore-unexpected]\n"
	"       [--prompt TEXT | --prompt-file FILE | --ids 1,2,3] [--prefill-chunk N]\n"
	"       [--max-tokens N] [--ignore-eos] [--temperature X] [--top-k N] [--top-p X]\n"
	"       [--min-p X] [--repetition-penalty X] [--seed S]\n"
	"       [--json] [--stats] [--digest] [--check] [--logits FILE] [--flight DIR] [--help]\n"
	"\n"
	"Generates text from a checkpoint directory on N ranks. The text streams to stdout; the\n"
	"rest goes to stderr. The bits are the same for any number of ranks or threads and any\n"
	"backend.\n"
	"\n"
	"ranks\n"
	"  -n N                  number of ranks: threads over loopback, else processes\n"
	"  --mesh M              named dimensions of the ranks: tp=4 (default tp=N), dp=2,tp=2;\n"
	"                        along dp the ranks hold replicas of the model\n"
	"  --backend B           loopback, gloo, ... (TESSERA_BACKEND; default auto)\n"
	"  --threads T           compute threads per rank (default: CPUs / ranks)\n"
	"plan\n"
	"  --plan P              auto, none, a plan of the model (tp, tp+sp), a file, or JSON\n"
	"                        {\"pattern\": \"style\"} or {\"tp\": {\"pattern\": \"style\"}}\n"
	"  --plan-override PATTERN=STYLE   replaces one rule; may be repeated; DIMENSION:PATTERN\n"
	"                        for another dimension of the mesh than tp\n"
	"  --ignore-unexpected   skips tensors that no module uses, with a warning\n"
	"prompt\n"
	"  --prompt TEXT         default: empty\n"
	"  --prompt-file FILE    the bytes of a file; - is stdin\n"
	"  --ids 1,2,3           token ids; needs no tokenizer\n"
	"  --prefill-chunk N     computes the prompt in chunks of N tokens (default 512)\n"
	"sampling\n"
	"  --max-tokens N        at most N tokens (default: that of the checkpoint, else 256)\n"
	"  --ignore-eos          continues where the model would stop\n"
	"  --temperature X       0: the most likely token (default: that of the checkpoint)\n"
	"  --top-k N  --top-p X  --min-p X  --repetition-penalty X  --seed S\n"
	"output\n"
	"  --check               after each module, compares ranks and searches for NaN and Inf\n"
	"                        (TESSERA_CHECK)\n"
	"  --json                prints one JSON object instead of text\n"
	"  --stats               times, tokens per second, memory per rank\n"
	"  --digest              SHA-256 over the logits that chose each token\n"
	"  --logits FILE         the logits of every position, as safetensors\n"
	"  --flight DIR          after a failure, writes the last calls of all ranks to\n"
	"                        DIR/flight.json (TESSERA_FLIGHT)\n"
	"  --help                this text\n"
	"\n"
	"examples:\n"
	"  tessera generate data --prompt 'Once upon a time' --temperature 0\n"
	"  tessera generate data -n 4 --backend gloo --digest --prompt 'Once upon a time'\n"
	"  tessera generate data -n 2 --plan-override 'model.layers.*.mlp.down_proj=rowwise'\n";

enum {
	OPT_MESH = 256,
	OPT_BACKEND,
	OPT_THREADS,
	OPT_PLAN,
	OPT_OVERRIDE,
	OPT_IGNORE_UNEXPECTED,
	OPT_PROMPT,
	OPT_PROMPT_FILE,
	OPT_IDS,
	OPT_CHUNK,
	OPT_MAX,
	OPT_IGNORE_EOS,
	OPT_TEMPERATURE,
	OPT_TOP_K,
	OPT_TOP_P,
	OPT_MIN_P,
	OPT_PENALTY,
	OPT_SEED,
	OPT_CHECK,
	OPT_JSON,
	OPT_STATS,
	OPT_DIGEST,
	OPT_LOGITS,
	OPT_FLIGHT,
	OPT_HELP
};

static const struct option options[] = {
	{ "mesh", required_argument, NULL, OPT_MESH },
	{ "backend", required_argument, NULL, OPT_BACKEND },
	{ "threads", required_argument, NULL, OPT_THREADS },
	{ "plan", required_argument, NULL, OPT_PLAN },
	{ "plan-override", required_argument, NULL, OPT_OVERRIDE },
	{ "ignore-unexpected", no_argument, NULL, OPT_IGNORE_UNEXPECTED },
	{ "prompt", required_argument, NULL, OPT_PROMPT },
	{ "prompt-file", required_argument, NULL, OPT_PROMPT_FILE },
	{ "ids", required_argument, NULL, OPT_IDS },
	{ "prefill-chunk", required_argument, NULL, OPT_CHUNK },
	{ "max-tokens", required_argument, NULL, OPT_MAX },
	{ "ignore-eos", no_argument, NULL, OPT_IGNORE_EOS },
	{ "temperature", required_argument, NULL, OPT_TEMPERATURE },
	{ "top-k", required_argument, NULL, OPT_TOP_K },
	{ "top-p", required_argument, NULL, OPT_TOP_P },
	{ "min-p", required_argument, NULL, OPT_MIN_P },
	{ "repetition-penalty", required_argument, NULL, OPT_PENALTY },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "check", no_argument, NULL, OPT_CHECK },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "stats", no_argument, NULL, OPT_STATS },
	{ "digest", no_argument, NULL, OPT_DIGEST },
	{ "logits", required_argument, NULL, OPT_LOGITS },
	{ "flight", required_argument, NULL, OPT_FLIGHT },
	{ "help", no_argument, NULL, OPT_HELP },
	{ 0 },
};

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status read_prompt_file(struct generate_options *a, const char *path)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
	size_t capacity = 0, n = 1;
	int again;
	tess_status st =
		f ? TESS_OK : tess_fail(TESS_ENOENT, "--prompt-file %s: %s", path, strerror(errno));

	while (!st && n) {
		char *more = capacity - a->len < 65536
		                     ? realloc(a->prompt, capacity += 65536 + capacity)
		                     : a->prompt;

		if (!more)
			st = tess_fail(TESS_ENOMEM, "--prompt-file %s: out of memory", path);
		else
			a->prompt = more;
		n = st ? 0 : fread(a->prompt + a->len, 1, capacity - a->len, f);
		a->len += n;
	}
	if (!st && ferror(f))
		st = tess_fail(TESS_EIO, "--prompt-file %s: %s", path, strerror(errno));
	if (f && f != stdin)
		fclose(f);
	if (st || f != stdin)
		return st;
	/* rank 0 may be another process, which reads stdin again */
	again = memfd_create("prompt", 0);
	if (again < 0 || write(again, a->prompt, a->len) != (ssize_t)a->len ||
	    lseek(again, 0, SEEK_SET) || dup2(again, STDIN_FILENO) < 0)
		st = tess_fail(TESS_EIO, "--prompt-file -: stdin cannot be kept for rank 0: %s",
		               strerror(errno));
	if (again > STDIN_FILENO)
		close(again);
	return st;
}

static tess_status read_ids(struct generate_options *a, const char *text)
{
	const char *at = text;
	int64_t n = 1;

	for (const char *c = text; *c; c++)
		n += *c == ',';
	free(a->ids);
	a->nids = 0;
	a->ids = malloc((size_t)n * sizeof *a->ids);
	if (!a->ids)
		return tess_fail(TESS_ENOMEM, "--ids: out of memory");
	for (;;) {
		char *end;
		long v;

		errno = 0;
		v = strtol(at, &end, 10);
		if (end == at || errno || v < 0 || v > INT32_MAX || (*end && *end != ','))
			return tess_fail(TESS_EINVAL,
			                 "--ids %s: ids are numbers from 0 on, separated by commas",
			                 text);
		a->ids[a->nids++] = (int32_t)v;
		if (!*end)
			return TESS_OK;
		at = end + 1;
	}
}

static tess_status set_prompt_option(struct generate_options *a, int opt, const char *text)
{
	if (a->prompt || a->ids)
		return tess_fail(TESS_EINVAL,
		                 "give one of --prompt, --prompt-file and --ids, once");
	if (opt == OPT_PROMPT_FILE)
		return read_prompt_file(a, text);
	if (opt == OPT_IDS)
		return read_ids(a, text);
	a->prompt = strdup(text);
	a->len = strlen(text);
	return a->prompt ? TESS_OK : tess_fail(TESS_ENOMEM, "--prompt: out of memory");
}

static tess_status parse_real_option(const char *name, const char *text, double lo, double hi,
                                     double *out)
{
	char *end;
	double v;

	v = strtod(text, &end);
	if (end == text || *end || !(v >= lo && v <= hi)) /* false for NaN */
		return tess_fail(TESS_EINVAL, "%s %s: must be a number from %g to %g", name, text,
		                 lo, hi);
	*out = v;
	return TESS_OK;
}

static tess_status set_number_option(struct generate_options *a, int opt, const char *text)
{
	int64_t v = 0;
	tess_status st;

	switch (opt) {
	case 'n':
		st = tess_tool_parse_integer("-n", text, 1, 1024, &v);
		a->ranks = (int32_t)v;
		return st;
	case OPT_THREADS:
		st = tess_tool_parse_integer("--threads", text, 1, 1024, &v);
		a->threads = (int32_t)v;
		return st;
	case OPT_SEED:
		st = tess_tool_parse_integer("--seed", text, 0, INT64_MAX, &v);
		a->seed = (uint64_t)v;
		return st;
	case OPT_CHUNK:
		return tess_tool_parse_integer("--prefill-chunk", text, 1, INT32_MAX, &a->chunk);
	case OPT_MAX:
		return tess_tool_parse_integer("--max-tokens", text, 0, INT32_MAX, &a->max_tokens);
	case OPT_TOP_K:
		return tess_tool_parse_integer("--top-k", text, 0, INT32_MAX, &a->top_k);
	case OPT_TEMPERATURE:
		return parse_real_option("--temperature", text, 0, 1e6, &a->temperature);
	case OPT_TOP_P:
		return parse_real_option("--top-p", text, 0, 1, &a->top_p);
	case OPT_MIN_P:
		return parse_real_option("--min-p", text, 0, 1, &a->min_p);
	default:
		return parse_real_option("--repetition-penalty", text, 1e-6, 1e6, &a->penalty);
	}
}

static tess_status set_generate_option(struct generate_options *a, int opt, char *text)
{
	switch (opt) {
	case OPT_MESH:
		a->mesh = text;
		return TESS_OK;
	case OPT_BACKEND:
		a->backend = text;
		return TESS_OK;
	case OPT_PLAN:
		a->plan = text;
		return TESS_OK;
	case OPT_LOGITS:
		a->logits = text;
		return TESS_OK;
	case OPT_FLIGHT:
		a->flight = text;
		return TESS_OK;
	case OPT_IGNORE_UNEXPECTED:
		a->ignore_unexpected = true;
		return TESS_OK;
	case OPT_IGNORE_EOS:
		a->ignore_eos = true;
		return TESS_OK;
	case OPT_CHECK:
		return tess_option_set("check", "1");
	case OPT_JSON:
		a->json = true;
		return TESS_OK;
	case OPT_STATS:
		a->stats = true;
		return TESS_OK;
	case OPT_DIGEST:
		a->digest = true;
		return TESS_OK;
	case OPT_PROMPT:
	case OPT_PROMPT_FILE:
	case OPT_IDS:
		return set_prompt_option(a, opt, text);
	case OPT_OVERRIDE:
		if (a->noverrides == OVERRIDES_MAX)
			return tess_fail(TESS_EINVAL,
			                 "--plan-override: at most %d; put them into a plan file",
			                 OVERRIDES_MAX);
		a->overrides[a->noverrides++] = text;
		return TESS_OK;
	default:
		return set_number_option(a, opt, text);
	}
}

/* TESS_PENDING: --help was printed. */
static tess_status parse_generate_options(int argc, char **argv, struct generate_options *a)
{
	tess_status st = TESS_OK;
	int opt;

	while (!st && (opt = getopt_long(argc, argv, ":n:h", options, NULL)) != -1) {
		if (opt == 'h' || opt == OPT_HELP)
			return fputs(help, stdout) < 0 ? TESS_EIO : TESS_PENDING;
		st = opt == '?' || opt == ':'
		             ? tess_tool_fail_option("generate", opt, argv[optind - 1])
		             : set_generate_option(a, opt, optarg);
	}
	if (!st && optind + 1 != argc)
		st = tess_fail(TESS_EINVAL, "%s",
		               optind < argc
		                       ? "give one MODEL: a checkpoint directory"
		                       : "no MODEL is given, a checkpoint directory; see --help");
	if (!st)
		a->model = argv[optind];
	if (!st && a->backend)
		st = tess_option_set("backend", a->backend);
	return st;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Encodes the prompt as rank 0 will, and checks its ids. */
static tess_status check_prompt_options(const struct generate_options *a,
                                        const struct tess_planned_model *p, int64_t vocab)
{
	struct tess_tokenizer *t = NULL;
	int32_t *made = NULL;
	size_t n = (size_t)a->nids;
	tess_status st = TESS_OK;

	if (!a->ids)
		st = tess_tokenizer_open(tess_checkpoint_dir(p->checkpoint), &t);
	if (t)
		st = tess_tokenizer_encode(t, a->prompt, a->len, true, &made, &n);
	if (t && st)
		st = tess_fail_in(st, "the prompt");
	if (!st)
		st = tess_ids_check(made ? made : a->ids, (int64_t)n, 0, vocab);
	if (!st)
		st = generate_check_length(p, (int64_t)n);
	tess_tokenizer_close(t);
	free(made);
	return st;
}

/*
 * The whole plan, before a rank starts and before a weight is read. Where ranks are processes, also
 * the options and the prompt: each rank would report the same fault.
 */
static tess_status check_generate_plan(const struct generate_options *a,
                                       const struct tess_mesh_shape *mesh)
{
	struct tess_session_options session_options = { .size = sizeof session_options,
		                                        .plan = a->plan,
		                                        .overrides = a->overrides,
		                                        .ignore_unexpected = a->ignore_unexpected };
	struct tess_program *program = NULL;
	struct tess_planned_model p;
	tess_status st =
		tess_planned_model_open(a->model, &session_options, TESS_CHECKPOINT_HEADERS, &p);

	if (st)
		return st;
	st = tess_planned_model_record(&p, mesh, 1, &program);
	if (!st && !tess_tool_has_threads(a->ranks)) {
		st = tess_runner_check_options(NULL, a->threads);
		if (!st)
			st = check_prompt_options(a, &p, program->logits->dim[1]->size);
	}
	tess_program_free(program);
	tess_planned_model_close(&p);
	return st;
}

static tess_status run_generate(struct generate_options *a, char **argv, int *exit_status)
{
	struct tess_mesh_shape mesh;
	struct tess_rank_env env;
	tess_status st = tess_rank_env_read(&env);

	/* a launcher has set the directory of this rank's record */
	if (!st && a->flight && (env.alone || !*tess_option("flight")))
		st = tess_option_set("flight", a->flight);
	if (!st && !env.alone)
		return tess_tool_join_job(a->ranks, &env, generate_run_rank, a);
	if (!st)
		st = tess_mesh_shape_parse(a->mesh ? a->mesh : "tp", a->ranks, &mesh);
	if (st)
		return st;
	a->ranks = mesh.nranks;
	if (a->logits)
		st = tess_safetensors_check_writable(a->logits);
	if (!st)
		st = check_generate_plan(a, &mesh);
	if (st)
		return st;
	return tess_tool_run_ranks(a->ranks, argv, generate_run_rank, a, exit_status);
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
	free(a.prompt);
	free(a.ids);
	if (st < 0)
		return usage ? 2 : 1;
	return exit_status ? exit_status : generate_is_interrupted() ? 130 : 0;
}

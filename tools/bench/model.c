/* model.c - `tessera bench decode|prefill|batch|load`: reads options and starts the ranks. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t find_kind(const char *name)
{
	for (int32_t i = 0; i < MODEL_KINDS; i++)
		if (!strcmp(name, model_kinds[i].name))
			return i;
	return -1;
}

bool model_has_kind(const char *name)
{
	return find_kind(name) >= 0;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static tess_status parse_batches(const char *name, const char *text, void *to)
{
	struct model_options *a = to;
	char *copy = strdup(text), *rest = copy, *word;
	tess_status st = copy ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
	int64_t n;

	a->ncases = 0;
	while (!st && (word = strsep(&rest, ","))) {
		st = tess_tool_parse_integer(name, word, 1, 4096, &n);
		if (!st && a->ncases == MODEL_CASES)
			st = tess_fail(TESS_EINVAL, "%s: at most %d sizes", name, MODEL_CASES);
		if (!st)
			a->batch[a->ncases++] = (int32_t)n;
	}
	free(copy);
	return st;
}

/* Sets the options that are not given to the defaults of the kind. */
static tess_status complete_options(struct model_options *a)
{
	bool load = a->kind == MODEL_LOAD;

	if (load && a->ncases)
		return tess_fail(TESS_EINVAL, "--batch: load runs one text");
	if (load && a->breakdown)
		return tess_fail(TESS_EINVAL, "--breakdown: load runs too little; use decode");
	if (a->context < 0)
		a->context = model_kinds[a->kind].context;
	if (a->tokens < 0)
		a->tokens = model_kinds[a->kind].tokens;
	if (a->rounds < 0)
		a->rounds = model_kinds[a->kind].rounds;
	for (int32_t i = 0; !a->ncases && i < model_kinds[a->kind].ncases; i++)
		a->batch[i] = model_kinds[a->kind].batch[i];
	if (!a->ncases)
		a->ncases = model_kinds[a->kind].ncases;
	if (load && !a->context)
		return tess_fail(TESS_EINVAL, "--context 0: load needs a prompt of 1 id or more");
	return TESS_OK;
}

#define AT(member) TESS_TOOL_AT(struct model_options, member)

const struct tess_tool_option model_options[] = {
	{ "context", "N", "positions computed before a round (default: 16; prefill: 0)",
	  AT(context), .hi = 1 << 24 },
	{ "tokens", "N", "tokens per sequence and round (default: 64; prefill: 512; load: 2)",
	  AT(tokens), .lo = 1, .hi = 1 << 24 },
	{ "rounds", "N", "rounds of each case (default: 5; load: 3)", AT(rounds), .lo = 1,
	  .hi = MODEL_ROUNDS },
	{ "batch", "N,...", "concurrent sequences, one case per N (default: 1; batch: 1,8,32)",
	  .parse = parse_batches },
	{ "prefill-chunk", "N", "maximum prompt tokens per step (default: 512; cuda: 2048)",
	  AT(chunk), .lo = 1, .hi = INT32_MAX },
	{ "breakdown", NULL, "print where the time of rank 0 went in the median round",
	  AT(breakdown) },
	{ "json", NULL, "print one JSON object per case", AT(json) },
	{ "once", NULL, NULL, AT(once) }, /* marks a process that load starts */
	{ 0 },
};

/* ---- running --------------------------------------------------------------------------------- */

/* Checks what all ranks would refuse, before ranks start and weights are read. */
static tess_status check_model_options(struct model_options *a)
{
	struct tess_session_info info = { .size = sizeof info };
	tess_status st = tess_tool_check_session(&a->session, &info);
	int64_t positions = a->session.positions ? a->session.positions : info.positions;
	const char *mesh = a->session.mesh;

	if (!st && mesh && (!strncmp(mesh, "dp", 2) || strstr(mesh, ",dp")))
		st = tess_fail(TESS_EINVAL,
		               "--mesh %s: replicas along dp run apart; measure one of them", mesh);
	if (!st && positions && a->context + a->tokens > positions)
		st = tess_fail(
			TESS_EINVAL,
			"--context %d and --tokens %d: a sequence has at most %lld positions",
			(int)a->context, (int)a->tokens, (long long)positions);
	return st;
}

static tess_status run_model_bench(struct model_options *a, char **argv, int *exit_status)
{
	tess_status (*run)(struct tess_world * w, void *arg) =
		a->kind == MODEL_LOAD ? model_load_rank : model_run_rank;
	bool launched;
	tess_status st = tess_tool_is_launched(&launched);

	if (st)
		return st;
	if (launched && a->kind == MODEL_LOAD && !a->once)
		return tess_fail(TESS_EINVAL, "load starts its ranks itself; give -n, and run it "
		                              "without a launcher");
	if (launched)
		return tess_tool_join_job(a->session.ranks, run, a);
	st = check_model_options(a);
	if (st)
		return st;
	if (a->kind == MODEL_LOAD && !a->once)
		return model_time_loads(a, argv, exit_status);
	return tess_tool_run_ranks(a->session.ranks, argv, run, a, exit_status);
}

int model_run_command(int argc, char **argv, const struct tess_tool_section *sections,
                      struct model_options *a)
{
	/* argv without the kind; the ranks get all of argv */
	char **args = calloc((size_t)argc, sizeof *args);
	int exit_status = 0;
	bool usage;
	tess_status st = args ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st) {
		memcpy(args, argv + 1, (size_t)(argc - 1) * sizeof *args);
		args[0] = argv[0];
		a->kind = find_kind(argv[1]);
		st = tess_tool_parse_model(argc - 1, args, &tess_tool_bench, sections,
		                           &a->session.model);
	}
	if (!st)
		st = complete_options(a);
	if (!st)
		st = tess_tool_take_strategy(&a->session);
	usage = st < 0;
	if (!st)
		st = run_model_bench(a, argv, &exit_status);
	if (st < 0)
		tess_tool_print_error("bench");
	free(args);
	if (st < 0)
		return usage ? 2 : 1;
	return exit_status ? exit_status : tess_tool_get_interrupt_status();
}

/* explain.c - `tessera explain`: what each rank of a plan would hold and send; starts no rank. */
#include "tool.h"

#include "core/base/option.h"
#include "core/base/status.h"
#include "hf/session.h"
#include "nn/lower.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/reduce.h>

static const char *const help =
	"usage: tessera explain MODEL [-n N] [--plan P] [--plan-override PATTERN=STYLE]\n"
	"       [--ignore-unexpected] [--tokens T] [--positions L] [--program] [--json] [--help]\n"
	"\n"
	"Records the program of a checkpoint under a plan, checks it, and prints what each of N\n"
	"ranks would hold and send. Starts no rank and reads no weight. Lines that are the same\n"
	"in each layer are printed once, with * and with their number.\n"
	"\n"
	"  -n N            number of ranks (default 1)\n"
	"  --plan P        auto, none, a plan of the model (tp, tp+sp), a file, or JSON\n"
	"  --plan-override PATTERN=STYLE   replaces one rule; may be repeated\n"
	"  --ignore-unexpected   skips tensors that no module uses, with a warning\n"
	"  --tokens T      rows of a step (default 1: decoding one sequence)\n"
	"  --positions L   size of the KV cache (default 2048, at most that of the checkpoint)\n"
	"  --program       prints the records with their placements instead; with --json: also\n"
	"  --json          prints one JSON object\n"
	"  --help          this text\n"
	"\n"
	"examples:\n"
	"  tessera explain data -n 8\n"
	"  tessera explain data -n 3 --plan tp+sp --tokens 128\n"
	"  tessera explain data -n 2 --program --plan-override 'model.layers.*.mlp=isolated'\n";

enum { OVERRIDES_MAX = 64, RANKS_MAX = 1024, NAME = 160 };

struct explain_options {
	const char *model, *plan, *overrides[OVERRIDES_MAX + 1];
	int32_t ranks, noverrides;
	int64_t tokens, positions;
	bool program, json, ignore_unexpected;
};

struct report {
	const struct explain_options *options;
	struct tess_planned_model model;
	struct tess_program *p;
	struct tess_rank_program **lowered; /* per rank */
};

/* ---- numbers --------------------------------------------------------------------------------- */

static int64_t get_shard_size(const struct tess_weight *w, int32_t axis, int32_t nranks,
                              int32_t rank)
{
	bool cut = tess_place_is(w->place.use, TESS_SHARD, axis);

	return cut ? tess_dim_get_local_size(w->dim[axis], nranks, rank) : w->dim[axis]->size;
}

static int64_t count_shard_bytes(const struct tess_weight *w, int32_t nranks, int32_t rank)
{
	int64_t n = (int64_t)tess_width(w->dtype);

	for (int32_t a = 0; a < w->ndim; a++)
		n *= get_shard_size(w, a, nranks, rank);
	return n;
}

static int64_t count_weight_bytes(const struct report *r, int32_t rank)
{
	int64_t sum = 0;

	for (int32_t i = 0; i < r->p->nweights; i++)
		if (!r->p->weight[i]->table)
			sum += count_shard_bytes(r->p->weight[i], r->options->ranks, rank);
	return sum;
}

static int64_t count_cache_bytes(const struct report *r, int32_t rank)
{
	int64_t sum = 0;

	for (int32_t i = 0; i < r->lowered[rank]->ncache; i++)
		sum += 8 * r->lowered[rank]->cache[i].heads * r->lowered[rank]->cache[i].head_size *
		       r->options->positions;
	return sum;
}

/*
 * Bytes that a rank sends in one step: nodes to the ranks that add them and sums to all, or blocks.
 */
static int64_t count_sent_bytes(const struct report *r, const struct tess_step *s, int32_t rank)
{
	int64_t n = r->options->ranks, sum = 0;

	if (s->kind == TESS_STEP_SUM) {
		int64_t nodes = tess_sum_nodes(&s->sum, (int32_t)n, rank);

		return 4 * (int64_t)s->sum.count * (nodes + !s->sum.share) * (n - 1) / n;
	}
	if (s->coll.kind == TESS_ALL_GATHER)
		return 4 * (int64_t)s->coll.count * (n - 1);
	for (int32_t q = 0; q < n; q++)
		sum += q == rank ? 0 : 4 * (int64_t)s->coll.send_counts[q];
	return sum;
}

/* The first step of `record` or of a later one: steps are in the order of records. */
static int32_t find_step(const struct tess_rank_program *l, int32_t record)
{
	int32_t lo = 0, hi = l->nsteps;

	while (lo < hi) {
		int32_t middle = lo + (hi - lo) / 2;

		if (l->step[middle]->record < record)
			lo = middle + 1;
		else
			hi = middle;
	}
	return lo;
}

/* The most that a rank sends for `record`. */
static int64_t find_max_sent(const struct report *r, int32_t record)
{
	int64_t max = 0;

	for (int32_t k = 0; k < r->options->ranks; k++) {
		const struct tess_rank_program *l = r->lowered[k];
		int64_t sum = 0;

		for (int32_t i = find_step(l, record);
		     i < l->nsteps && l->step[i]->record == record; i++)
			if (l->step[i]->kind == TESS_STEP_SUM || l->step[i]->kind == TESS_STEP_COLL)
				sum += count_sent_bytes(r, l->step[i], k);
		max = sum > max ? sum : max;
	}
	return max;
}

static bool is_collective(const struct tess_record *rec)
{
	return rec->kind == TESS_REC_MOVE && rec->in[0]->place.kind != TESS_REPLICATE;
}

static int64_t count_value_bytes(const struct tess_tensor *t)
{
	return (int64_t)tess_width(t->dtype) * t->dim[0]->size *
	       (t->ndim > 1 ? t->dim[1]->size : 1);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* "layers.3.mlp" -> "layers.*.mlp", so that a line is the same in each layer. */
static const char *make_pattern(const char *name, char out[NAME])
{
	size_t n = 0;
	bool start = true;

	for (const char *c = name; *c && n < NAME - 2; start = *c == '.', c++) {
		if (start && *c >= '0' && *c <= '9') {
			out[n++] = '*';
			c += strspn(c, "0123456789") - 1;
		} else {
			out[n++] = *c;
		}
	}
	out[n] = 0;
	return out;
}

struct text_lines { /* distinct lines, and how many times each was added */
	char **text;
	int64_t *times;
	size_t n;
};

static void add_text_line(struct text_lines *l, const char *text)
{
	size_t i = 0;

	while (i < l->n && strcmp(l->text[i], text))
		i++;
	if (i == l->n) {
		l->text = realloc(l->text, (l->n + 1) * sizeof *l->text);
		l->times = realloc(l->times, (l->n + 1) * sizeof *l->times);
		if (!l->text || !l->times)
			abort(); /* a command that has nothing to save */
		l->text[l->n] = strdup(text);
		l->times[l->n++] = 0;
	}
	l->times[i]++;
}

static void print_lines(struct text_lines *l)
{
	for (size_t i = 0; i < l->n; i++) {
		printf("%s %6lld\n", l->text[i], (long long)l->times[i]);
		free(l->text[i]);
	}
	free(l->text);
	free(l->times);
	*l = (struct text_lines){ 0 };
}

/* "344x64", or "86..87x64" where the ranks' shards differ. */
static void format_shard_shape(const struct tess_weight *w, int32_t nranks, char *out, size_t size)
{
	size_t n = 0;

	*out = 0;
	for (int32_t a = 0; a < w->ndim && n < size; a++) {
		int64_t lo = INT64_MAX, hi = 0;

		for (int32_t r = 0; r < nranks; r++) {
			int64_t k = get_shard_size(w, a, nranks, r);

			lo = k < lo ? k : lo;
			hi = k > hi ? k : hi;
		}
		n += (size_t)snprintf(out + n, size - n, lo == hi ? "%s%lld" : "%s%lld..%lld",
		                      a ? "x" : "", (long long)lo, (long long)hi);
	}
}

static void print_weights(const struct report *r)
{
	char name[NAME], shape[64], place[TESS_PLACE_SIZE], text[512];
	struct text_lines l = { 0 };

	printf("%-46s %-24s %-12s %-16s %12s %6s\n", "parameter", "style", "placement",
	       "shard of a rank", "bytes of it", "times");
	for (int32_t i = 0; i < r->p->nweights; i++) {
		const struct tess_weight *w = r->p->weight[i];
		int64_t max = 0;

		for (int32_t k = 0; k < r->options->ranks; k++)
			max = count_shard_bytes(w, r->options->ranks, k) > max
			              ? count_shard_bytes(w, r->options->ranks, k)
			              : max;
		format_shard_shape(w, r->options->ranks, shape, sizeof shape);
		snprintf(text, sizeof text, "%-46s %-24s %-12s %s %-*s %12lld",
		         w->table ? "  (read again by a tied head)" : make_pattern(w->name, name),
		         w->style, tess_place_format(w->place.use, place),
		         tess_dtype_name(w->dtype), 15 - (int)strlen(tess_dtype_name(w->dtype)),
		         shape, (long long)(w->table ? 0 : max));
		add_text_line(&l, text);
	}
	print_lines(&l);
}

static void print_moves(const struct report *r)
{
	char name[NAME], a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE], text[512];
	struct text_lines l = { 0 };
	bool sums = false;

	printf("\n%-46s %-15s %-24s %14s %14s %6s\n", "module", "collective", "from -> to",
	       "bytes of value", "bytes a rank", "times");
	printf("%-46s %-15s %-24s %14s %14s\n", "", "", "", "", "sends, at most");
	for (int32_t i = 0; i < r->p->nrecords; i++) {
		const struct tess_record *rec = r->p->record[i];
		char how[2 * TESS_PLACE_SIZE + 8];

		if (!is_collective(rec))
			continue;
		snprintf(how, sizeof how, "%s -> %s", tess_place_format(rec->in[0]->place, a),
		         tess_place_format(rec->out[0]->place, b));
		sums = sums || rec->in[0]->place.kind == TESS_PARTIAL;
		snprintf(text, sizeof text, "%-46s %-15s %-24s %14lld %14lld",
		         make_pattern(rec->module, name),
		         tess_move_name(rec->in[0]->place, rec->out[0]->place), how,
		         (long long)count_value_bytes(rec->in[0]), (long long)find_max_sent(r, i));
		add_text_line(&l, text);
	}
	if (!l.n)
		printf("(nothing moves)\n");
	print_lines(&l);
	if (sums)
		printf("(sums keep their order: for the all_reduce or reduce_scatter of a Partial, "
		       "ranks may exchange its\nnodes by all_gather or all_to_all, which is then "
		       "the call that a failure names)\n");
}

static void print_memory(const struct report *r)
{
	printf("\nbytes that a rank holds (KV cache for %lld positions, step of %lld token%s)\n\n"
	       "%-8s %16s %16s %16s\n",
	       (long long)r->options->positions, (long long)r->options->tokens,
	       r->options->tokens == 1 ? "" : "s", "rank", "weights", "KV cache", "step");
	for (int32_t k = 0; k < r->options->ranks; k++)
		printf("%-8d %16lld %16lld %16llu\n", (int)k, (long long)count_weight_bytes(r, k),
		       (long long)count_cache_bytes(r, k),
		       (unsigned long long)r->lowered[k]->bytes);
}

static void print_program(const struct report *r)
{
	char place[TESS_PLACE_SIZE];

	for (int32_t i = 0; i < r->p->nrecords; i++) {
		const struct tess_record *rec = r->p->record[i];

		printf("%4d %-10s %-14s %-44s", (int)i, tess_record_kind_name(rec->kind),
		       rec->kind == TESS_REC_MOVE
		               ? tess_move_name(rec->in[0]->place, rec->out[0]->place)
		               : "",
		       rec->module);
		for (int32_t k = 0; k < rec->nin; k++)
			printf(" v%d:%s", (int)rec->in[k]->id,
			       tess_place_format(rec->in[k]->place, place));
		for (int32_t k = 0; k < rec->nweight; k++)
			printf(" W:%s", tess_place_format(rec->weight[k]->place.use, place));
		printf(" ->");
		for (int32_t k = 0; k < rec->nout; k++)
			printf(" v%d:%s", (int)rec->out[k]->id,
			       tess_place_format(rec->out[k]->place, place));
		printf("\n");
	}
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *make_weights_json(const struct report *r)
{
	char place[TESS_PLACE_SIZE];
	json_t *all = json_array();

	for (int32_t i = 0; i < r->p->nweights; i++) {
		const struct tess_weight *w = r->p->weight[i];
		json_t *ranks = json_array();

		if (w->table) {
			json_decref(ranks);
			continue;
		}
		for (int32_t k = 0; k < r->options->ranks; k++) {
			json_t *shape = json_array();

			for (int32_t a = 0; a < w->ndim; a++)
				json_array_append_new(shape, json_integer(get_shard_size(
								     w, a, r->options->ranks, k)));
			json_array_append_new(
				ranks,
				json_pack("{s:o, s:I}", "shape", shape, "bytes",
			                  (json_int_t)count_shard_bytes(w, r->options->ranks, k)));
		}
		json_array_append_new(
			all, json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", w->name, "style",
		                       w->style, "dtype", tess_dtype_name(w->dtype), "placement",
		                       tess_place_format(w->place.use, place), "ranks", ranks));
	}
	return all;
}

static json_t *make_collectives_json(const struct report *r)
{
	char a[TESS_PLACE_SIZE], b[TESS_PLACE_SIZE];
	json_t *all = json_array();

	for (int32_t i = 0; i < r->p->nrecords; i++) {
		const struct tess_record *rec = r->p->record[i];

		if (!is_collective(rec))
			continue;
		json_array_append_new(
			all, json_pack("{s:i, s:s, s:s, s:s, s:s, s:I, s:I}", "record", (int)i,
		                       "module", rec->module, "kind",
		                       tess_move_name(rec->in[0]->place, rec->out[0]->place),
		                       "from", tess_place_format(rec->in[0]->place, a), "to",
		                       tess_place_format(rec->out[0]->place, b), "bytes",
		                       (json_int_t)count_value_bytes(rec->in[0]), "sent",
		                       (json_int_t)find_max_sent(r, i)));
	}
	return all;
}

static json_t *make_values_json(struct tess_tensor *const *v, int32_t n)
{
	char place[TESS_PLACE_SIZE];
	json_t *all = json_array();

	for (int32_t i = 0; i < n; i++)
		json_array_append_new(all,
		                      json_pack("{s:i, s:s}", "value", (int)v[i]->id, "placement",
		                                tess_place_format(v[i]->place, place)));
	return all;
}

static json_t *make_program_json(const struct report *r)
{
	json_t *all = json_array();

	for (int32_t i = 0; i < r->p->nrecords; i++) {
		const struct tess_record *rec = r->p->record[i];
		bool move = rec->kind == TESS_REC_MOVE;
		json_t *weights = json_array();

		for (int32_t k = 0; k < rec->nweight; k++)
			json_array_append_new(weights, json_string(rec->weight[k]->name));
		json_array_append_new(
			all, json_pack("{s:i, s:s, s:s, s:o, s:o, s:o}", "record", (int)i, "module",
		                       rec->module, "kind",
		                       move ? tess_move_name(rec->in[0]->place, rec->out[0]->place)
		                            : tess_record_kind_name(rec->kind),
		                       "in", make_values_json(rec->in, rec->nin), "parameters",
		                       weights, "out", make_values_json(rec->out, rec->nout)));
	}
	return all;
}

static void print_explain_json(const struct report *r)
{
	json_t *memory = json_array(), *o;

	for (int32_t k = 0; k < r->options->ranks; k++)
		json_array_append_new(memory,
		                      json_pack("{s:I, s:I, s:I}", "weights",
		                                (json_int_t)count_weight_bytes(r, k), "cache",
		                                (json_int_t)count_cache_bytes(r, k), "step",
		                                (json_int_t)r->lowered[k]->bytes));
	o = json_pack("{s:s, s:s, s:i, s:I, s:I, s:o, s:o, s:o}", "model", r->model.model->name,
	              "plan", r->model.plan.name, "ranks", (int)r->options->ranks, "tokens",
	              (json_int_t)r->options->tokens, "positions",
	              (json_int_t)r->options->positions, "parameters", make_weights_json(r),
	              "collectives", make_collectives_json(r), "memory", memory);
	if (r->options->program)
		json_object_set_new(o, "program", make_program_json(r));
	json_dumpf(o, stdout, JSON_INDENT(1));
	printf("\n");
	json_decref(o);
}

/* ---- the command ----------------------------------------------------------------------------- */

static tess_status parse_explain_options(int argc, char **argv, struct explain_options *a)
{
	static const struct option options[] = {
		{ "plan", required_argument, NULL, 'p' },
		{ "plan-override", required_argument, NULL, 'o' },
		{ "ignore-unexpected", no_argument, NULL, 'i' },
		{ "tokens", required_argument, NULL, 't' },
		{ "positions", required_argument, NULL, 'l' },
		{ "program", no_argument, NULL, 'r' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	tess_status st = TESS_OK;
	int64_t ranks = 1;
	int opt;

	while (!st && (opt = getopt_long(argc, argv, ":n:h", options, NULL)) != -1) {
		switch (opt) {
		case 'n':
			st = tess_tool_parse_integer("-n", optarg, 1, RANKS_MAX, &ranks);
			break;
		case 't':
			st = tess_tool_parse_integer("--tokens", optarg, 1, 1 << 20, &a->tokens);
			break;
		case 'l':
			st = tess_tool_parse_integer("--positions", optarg, 1, 1 << 30,
			                             &a->positions);
			break;
		case 'p':
			a->plan = optarg;
			break;
		case 'i':
			a->ignore_unexpected = true;
			break;
		case 'r':
			a->program = true;
			break;
		case 'j':
			a->json = true;
			break;
		case 'h':
			return fputs(help, stdout) < 0 ? TESS_EIO : TESS_PENDING;
		case 'o':
			if (a->noverrides == OVERRIDES_MAX)
				st = tess_fail(
					TESS_EINVAL,
					"--plan-override: at most %d; put them into a plan file",
					OVERRIDES_MAX);
			else
				a->overrides[a->noverrides++] = optarg;
			break;
		default:
			st = tess_tool_fail_option("explain", opt, argv[optind - 1]);
		}
	}
	if (!st && optind + 1 != argc)
		st = tess_fail(TESS_EINVAL, "give one MODEL: a checkpoint directory");
	if (!st)
		a->model = argv[optind];
	a->ranks = (int32_t)ranks;
	return st;
}

static tess_status lower_for_ranks(struct report *r)
{
	tess_status st = TESS_OK;

	r->lowered = calloc((size_t)r->options->ranks, sizeof *r->lowered);
	if (!r->lowered)
		return tess_fail(TESS_ENOMEM, "out of memory");
	for (int32_t k = 0; k < r->options->ranks && !st; k++)
		st = tess_program_lower(r->p, r->options->ranks, k, NULL, &r->lowered[k]);
	return st;
}

static tess_status explain_plan(struct explain_options *a, bool *usage)
{
	struct tess_session_options session_options = { .size = sizeof session_options,
		                                        .plan = a->plan,
		                                        .overrides = a->overrides,
		                                        .ignore_unexpected = a->ignore_unexpected };
	struct report r = { .options = a };
	int64_t positions;
	tess_status st = tess_planned_model_open(a->model, &session_options, true, &r.model);

	if (st)
		return st;
	positions = tess_planned_model_positions(&r.model);
	if (positions && a->positions > positions) {
		*usage = true;
		st = tess_fail(TESS_EINVAL,
		               "--positions %lld: the checkpoint was made for %lld positions",
		               (long long)a->positions, (long long)positions);
	}
	if (!a->positions)
		a->positions = positions && positions < 2048 ? positions : 2048;
	if (!st)
		st = tess_planned_model_record(&r.model, a->ranks, a->tokens, false, &r.p);
	if (!st) {
		tess_planned_model_warn_unused(&r.model, r.p);
		st = lower_for_ranks(&r);
	}
	if (!st && a->json) {
		print_explain_json(&r);
	} else if (!st && a->program) {
		print_program(&r);
	} else if (!st) {
		printf("%s, model %s, plan %s, %d rank%s\n\n", a->model, r.model.model->name,
		       r.model.plan.name, (int)a->ranks, a->ranks > 1 ? "s" : "");
		print_weights(&r);
		print_moves(&r);
		print_memory(&r);
	}
	for (int32_t k = 0; k < a->ranks && r.lowered; k++)
		tess_rank_program_free(r.lowered[k]);
	free(r.lowered);
	tess_program_free(r.p);
	tess_planned_model_close(&r.model);
	return st;
}

int tess_tool_explain(int argc, char **argv)
{
	struct explain_options a = { .tokens = 1 };
	tess_status st = parse_explain_options(argc, argv, &a);
	bool usage = st < 0;

	if (st == TESS_PENDING)
		return 0;
	if (!st)
		st = explain_plan(&a, &usage);
	if (st)
		fprintf(stderr, "tessera explain: %s\n", tess_error());
	return st ? usage ? 2 : 1 : 0;
}

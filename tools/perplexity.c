/* perplexity.c - `tessera perplexity`: measures how well a model predicts texts. */
#include "api/session.h"
#include "core/base/json.h"
#include "core/base/line.h"
#include "core/base/status.h"
#include "core/world/world.h"
#include "nn/generate/runner.h"
#include "tool.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512, ROWS = 64 }; /* ROWS: logits per step */
enum { TEXT_BYTES_MAX = 1 << 24 }; /* limit of a file with one text */

struct perplexity_options {
	struct tess_tool_session session;
	struct tess_tool_list texts;
	const char *text; /* the file being read */
	int32_t window;
	bool json;
	/* on rank 0: the concatenated ids of all windows */
	int32_t *ids;
	int64_t nids, *ends, nwindows;
};

/* ---- texts ----------------------------------------------------------------------------------- */

/* Adds the windows of a text, except one of a single id, which predicts nothing. */
static tess_status add_windows(struct perplexity_options *a, const int32_t *ids, int64_t n)
{
	int32_t *more = realloc(a->ids, (size_t)(a->nids + n + 1) * sizeof *more);
	int64_t *ends = realloc(a->ends, (size_t)(a->nwindows + n / a->window + 1) * sizeof *ends);

	a->ids = more ? more : a->ids;
	a->ends = ends ? ends : a->ends;
	if (!more || !ends)
		return tess_fail(TESS_ENOMEM, "--text %s: out of memory", a->text);
	for (int64_t at = 0, len; n - at > 1; at += len) {
		len = n - at < a->window ? n - at : a->window;
		memcpy(a->ids + a->nids, ids + at, (size_t)len * sizeof *ids);
		a->nids += len;
		a->ends[a->nwindows++] = a->nids;
	}
	return TESS_OK;
}

static tess_status add_text(struct perplexity_options *a, const struct tess_tokenizer *t,
                            const char *text, size_t len)
{
	int32_t *ids = NULL;
	size_t n;
	tess_status st = tess_tokenizer_encode(t, text, len, true, &ids, &n);

	if (st)
		st = tess_fail(st, "--text %s: %s", a->text, tess_error());
	else
		st = add_windows(a, ids, (int64_t)n);
	free(ids);
	return st;
}

static tess_status add_json_line(struct perplexity_options *a, const struct tess_tokenizer *t,
                                 const char *line, size_t len, int64_t number)
{
	char name[4200];
	const json_t *text;
	json_t *o = NULL;
	tess_status st;

	snprintf(name, sizeof name, "--text %.4096s: line %lld", a->text, (long long)number);
	st = tess_json_parse_line(name, line, len, &o);
	text = json_object_get(o, "text");
	if (!st && !json_is_string(text))
		st = tess_fail(TESS_EINVAL, "%s: must be an object with a \"text\", a string",
		               name);
	else if (!st)
		st = add_text(a, t, json_string_value(text), json_string_length(text));
	json_decref(o);
	return st;
}

static tess_status add_text_file(struct perplexity_options *a, const struct tess_tokenizer *t)
{
	size_t name = strlen(a->text);
	bool lines = name > 6 && !strcmp(a->text + name - 6, ".jsonl");
	size_t max = lines ? TESS_LINE_MAX : TEXT_BYTES_MAX;
	int64_t before = a->nwindows;
	struct tess_line line = { 0 };
	FILE *f = fopen(a->text, "rb");
	tess_status st = TESS_OK;

	if (!f)
		return tess_fail(TESS_ENOENT, "--text %s: %s", a->text, strerror(errno));
	for (int64_t i = 1; !st; i++) {
		size_t at;

		st = tess_line_read(f, lines ? '\n' : EOF, max, &line);
		if (st)
			tess_fail_in(st, lines ? "--text %s: line %lld" : "--text %s", a->text,
			             (long long)i);
		if (st || !line.len)
			break;
		at = i == 1 ? tess_tool_measure_mark(line.text) : 0;
		st = lines ? add_json_line(a, t, line.text + at, line.len - at, i)
		           : add_text(a, t, line.text + at, line.len - at);
	}
	if (!st && a->nwindows == before)
		st = tess_fail(TESS_EINVAL, "--text %s: no text of two ids or more", a->text);
	free(line.text);
	fclose(f);
	return st;
}

/* positions: maximum length of a sequence; 0: unlimited */
static tess_status read_texts(struct perplexity_options *a, int64_t positions)
{
	struct tess_tokenizer *t = NULL;
	tess_status st = TESS_OK;

	if (positions && a->window > positions)
		st = tess_fail(TESS_EINVAL, "--window %d: a sequence has at most %lld positions",
		               (int)a->window, (long long)positions);
	if (!a->window)
		a->window = positions && positions < WINDOW ? (int32_t)positions : WINDOW;
	if (!st)
		st = tess_tokenizer_open(a->session.model, &t);
	for (int32_t i = 0; i < a->texts.n && !st; i++) {
		a->text = a->texts.text[i];
		st = add_text_file(a, t);
	}
	tess_tokenizer_close(t);
	return st;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct scores { /* the scores of one rank */
	struct tess_session *session;
	int64_t vocabulary, nwindows, nids, *ends;
	int32_t *ids;
	double *sum; /* sum of each window on the rank that computes it, else 0 */
};

/* Returns -log p of an id. */
static double compute_loss(const float *logits, int64_t n, int32_t id)
{
	double most = (double)logits[0], sum = 0;

	for (int64_t i = 1; i < n; i++)
		most = (double)logits[i] > most ? (double)logits[i] : most;
	for (int64_t i = 0; i < n; i++)
		sum += exp((double)logits[i] - most);
	return log(sum) - ((double)logits[id] - most);
}

static tess_status score_window(struct scores *s, int64_t w)
{
	int64_t at = w ? s->ends[w - 1] : 0, end = s->ends[w];
	struct tess_sequence *text;
	const float *logits;
	tess_status st = tess_sequence_open(s->session, &text);

	if (st)
		return st;
	for (; at < end - 1 && !st; at += ROWS) {
		int64_t n = end - 1 - at < ROWS ? end - 1 - at : ROWS;
		struct tess_input in = { text, s->ids + at, n, n };

		st = tess_session_step(s->session, &in, 1, 0, &logits);
		for (int64_t i = 0; i < n && !st && logits; i++)
			s->sum[w] += compute_loss(logits + i * s->vocabulary, s->vocabulary,
			                          s->ids[at + i + 1]);
	}
	tess_sequence_close(text);
	return st;
}

/* Fails if the longest window does not fit the KV cache; all ranks decide alike. */
static tess_status check_window_room(const struct scores *s, struct tess_group *g)
{
	const struct tess_runner *runner = tess_session_runner(s->session);
	uint64_t limit = tess_runner_get_room(runner).limit, room;
	int64_t longest = 0;

	for (int64_t w = 0, at = 0; w < s->nwindows; at = s->ends[w++])
		longest = s->ends[w] - at > longest ? s->ends[w] - at : longest;
	room = tess_runner_count_room(runner, longest - 1, ROWS); /* the last id is not an input */
	if (room <= limit)
		return TESS_OK;
	tess_fail(TESS_ENOMEM,
	          "a window of %lld ids needs %.2f MiB of KV cache, and %.2f MiB are free; use a "
	          "smaller --window, or a larger --kv-memory",
	          (long long)longest, (double)room / 1048576, (double)limit / 1048576);
	return tess_group_fail_together(g, TESS_ENOMEM);
}

/* Sends the windows from rank 0, which has read the files. */
static tess_status share_texts(struct tess_group *g, const struct perplexity_options *a,
                               struct scores *s)
{
	bool first = tess_group_rank(g) == 0;
	int64_t n[2] = { a->nids, a->nwindows };
	tess_status st = tess_broadcast(g, n, 2, TESS_I64, 0, "texts:sizes");

	s->nids = n[0];
	s->nwindows = n[1];
	s->ids = malloc((size_t)n[0] * sizeof *s->ids + 1);
	s->ends = malloc((size_t)n[1] * sizeof *s->ends + 1);
	s->sum = calloc((size_t)n[1] + 1, sizeof *s->sum);
	if (!st && (!s->ids || !s->ends || !s->sum))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	if (!st && first) {
		memcpy(s->ids, a->ids, (size_t)n[0] * sizeof *s->ids);
		memcpy(s->ends, a->ends, (size_t)n[1] * sizeof *s->ends);
	}
	if (!st)
		st = tess_broadcast(g, s->ids, (uint64_t)n[0], TESS_I32, 0, "texts:ids");
	return st ? st : tess_broadcast(g, s->ends, (uint64_t)n[1], TESS_I64, 0, "texts:ends");
}

static tess_status print_perplexity(const struct perplexity_options *a, const struct scores *s)
{
	long long counted = (long long)(s->nids - s->nwindows), windows = (long long)s->nwindows;
	double sum = 0, mean;
	char line[512];
	int n;

	for (int64_t w = 0; w < s->nwindows; w++)
		sum += s->sum[w];
	mean = sum / (double)counted;
	if (!isfinite(mean))
		return tess_fail(
			TESS_EINVAL,
			"%s: some logits are not finite; a weight of the checkpoint is not finite, "
			"or a value overflows: TESSERA_CHECK=1, or tessera generate --check, names "
			"the first module where that happens",
			a->session.model);
	n = snprintf(line, sizeof line,
	             a->json ? "{\"perplexity\":%.9g,\"loss\":%.9g,\"tokens\":%lld,"
	                       "\"windows\":%lld,\"weights\":\"%s\",\"math\":\"%s\"}\n"
	                     : "perplexity %.9g  (loss %.9g, %lld tokens in %lld windows, "
	                       "weights %s, products of %s)\n",
	             exp(mean), mean, counted, windows, tess_tool_get_weights(&a->session),
	             tess_tool_get_math(&a->session));
	tess_tool_print_lines(line, (size_t)n);
	return TESS_OK;
}

static tess_status score_texts(struct tess_world *world, struct tess_mesh *mesh,
                               struct perplexity_options *a, struct scores *s)
{
	struct tess_session_options options = tess_tool_get_session_options(&a->session);
	struct tess_group *g = tess_world_group(world);
	struct tess_session_info info = { .size = sizeof info };
	bool first = tess_world_rank(world) == 0;
	tess_status st = tess_session_open(mesh, a->session.model, &options, &s->session);

	if (st)
		return st;
	tess_session_get_info(s->session, &info);
	s->vocabulary = info.vocabulary;
	if (first && !a->nwindows) /* this rank is a process */
		st = read_texts(a, info.positions);
	if (!st)
		st = share_texts(g, a, s);
	if (!st)
		st = check_window_room(s, g);
	for (int64_t w = 0; w < s->nwindows && !st; w++)
		st = score_window(s, w);
	if (!st) /* the sum of a window is nonzero on one rank only */
		st = tess_all_reduce(g, s->sum, s->sum, (uint64_t)s->nwindows, TESS_F64, TESS_SUM,
		                     "perplexity");
	return st || !first ? st : print_perplexity(a, s);
}

static tess_status run_perplexity_rank(struct tess_world *world, void *options)
{
	struct perplexity_options *a = options;
	struct tess_mesh *mesh = NULL;
	struct scores s = { 0 };
	tess_status st = tess_mesh_open(world, a->session.mesh ? a->session.mesh : "tp", &mesh);

	if (!st)
		st = score_texts(world, mesh, a, &s);
	if (st)
		tess_world_fail(world, st, tess_error());
	tess_session_close(s.session);
	tess_mesh_close(mesh);
	free(s.ids);
	free(s.ends);
	free(s.sum);
	return st;
}

/* ---- the command ----------------------------------------------------------------------------- */

#define AT(member) TESS_TOOL_AT(struct perplexity_options, member)

static const struct tess_tool_option text_options[] = {
	{ "text", "FILE",
	  "text to predict; .jsonl: one per line, {\"text\": TEXT}; repeatable, required",
	  AT(texts) },
	{ "window", "N",
	  "maximum ids of a window (default: 512, or the checkpoint's maximum length)", AT(window),
	  .lo = 2, .hi = 1 << 20 },
	{ "json", NULL, "print one JSON object", AT(json) },
	{ 0 },
};

/* TESS_PENDING: --help was printed. */
static tess_status parse_perplexity_options(int argc, char **argv, struct perplexity_options *a)
{
	const struct tess_tool_section sections[] = {
		{ "Texts", text_options, .to = a },
		{ "Ranks", tess_tool_mesh_options, .to = &a->session },
		{ "", tess_tool_job_options, .to = &a->session },
		{ "Plan", tess_tool_plan_options, .to = &a->session },
		{ "Memory and precision", tess_tool_memory_options, .to = &a->session },
		{ "", tess_tool_compute_options, .to = &a->session },
		{ "", tess_tool_math_options, .to = &a->session },
		{ 0 },
	};
	tess_status st = tess_tool_parse_model(argc, argv, &tess_tool_perplexity, sections,
	                                       &a->session.model);

	if (!st)
		st = tess_tool_take_strategy(&a->session);
	return st || a->texts.n ? st : tess_fail(TESS_EINVAL, "give --text FILE; see --help");
}

/* Checks what all ranks would refuse, and reads the texts, before ranks start. */
static tess_status prepare_perplexity(struct perplexity_options *a)
{
	struct tess_session_info info = { .size = sizeof info };
	tess_status st = tess_tool_check_session(&a->session, &info);

	return st ? st
	          : read_texts(a, a->session.positions ? a->session.positions : info.positions);
}

static tess_status start_perplexity(struct perplexity_options *a, char **argv, int *exit_status)
{
	const struct tess_tool_inputs in = { .model = a->session.model,
		                             .plan = a->session.plan,
		                             .files = { a->texts.text } };
	bool launched;
	tess_status st = tess_tool_is_launched(&launched);

	if (!st)
		st = tess_tool_check_outputs(NULL, &in);
	if (!st)
		st = launched ? TESS_OK : prepare_perplexity(a);
	if (st)
		return st;
	return launched ? tess_tool_join_job(a->session.ranks, run_perplexity_rank, a)
	                : tess_tool_run_ranks(a->session.ranks, argv, run_perplexity_rank, a,
	                                      exit_status);
}

static int execute_perplexity(int argc, char **argv)
{
	struct perplexity_options a = { 0 };
	tess_status st = parse_perplexity_options(argc, argv, &a);
	int exit_status = 0;
	bool usage = st < 0;

	if (!st)
		st = start_perplexity(&a, argv, &exit_status);
	if (st < 0)
		tess_tool_print_error("perplexity");
	free(a.ids);
	free(a.ends);
	if (st < 0)
		return usage ? 2 : 1;
	return exit_status ? exit_status : tess_tool_share_status(0);
}

const struct tess_tool_command tess_tool_perplexity = {
	"perplexity",
	"measure how well a checkpoint predicts texts",
	"MODEL --text FILE [options]",
	"Prints the perplexity of texts: exp of the mean negative log-likelihood per token. A\n"
	"text is cut in windows; the first id of a window is not counted. The number is the same\n"
	"for any number of ranks or threads and any backend.\n",
	"  tessera perplexity data --text data/texts/stories.jsonl\n"
	"  tessera perplexity data --text data/texts/stories.jsonl -n 2 --weights q8\n",
	execute_perplexity,
};

/* generate_rank.c - one rank of `tessera generate`. */
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "hf/session.h"
#include "tools/generate.h"
#include "tools/tool.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct printing { /* rank 0's */
	const struct ask *ask;
	struct tess_decoding *decoding; /* NULL: no tokenizer, ids are printed */
	FILE *text; /* stdout, or memory for --json */
	char *kept;
	size_t kept_len;
	crypto_hash_sha256_state digest;
	json_t *ids;
	float *rows; /* of --logits */
	int64_t nrows, room, vocab;
	tess_status failed;
};

struct rank {
	struct tess_world *world;
	const struct ask *ask;
	struct tess_session *session;
	struct tess_generate how;
	struct tess_generated done;
	int32_t *prompt, stop[TESS_EOS_MOST];
	double start, loaded;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Ctrl-C ----------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
	signal(SIGINT, SIG_DFL); /* the second one ends the process */
}

bool generate_interrupted(void)
{
	return interrupted != 0;
}

/* Rank 0 ends the text, the others hear it from rank 0; threads share rank 0's handler. */
static void catch_interrupt(const struct rank *r)
{
	const struct tess_backend *b;

	if (tess_world_rank(r->world) == 0)
		signal(SIGINT, on_interrupt);
	else if (!tess_plugin_backend(tess_world_backend(r->world), &b) &&
	         b->reach != TESS_REACH_PROCESS)
		signal(SIGINT, SIG_IGN);
}

/* ---- what rank 0 prints ------------------------------------------------------------------------------------ */

static int chosen(void *self, int32_t id, const float *logits)
{
	struct printing *p = self;
	const char *bytes = NULL;
	size_t n = 0;

	if (p->ask->digest || p->ask->json)
		crypto_hash_sha256_update(&p->digest, (const unsigned char *)logits,
		                          (uint64_t)p->vocab * sizeof *logits);
	json_array_append_new(p->ids, json_integer(id));
	if (p->decoding)
		p->failed = tess_decoding_push(p->decoding, id, &bytes, &n);
	else
		fprintf(p->text, "%s%d", json_array_size(p->ids) > 1 ? "," : "", (int)id);
	if (n)
		fwrite(bytes, 1, n, p->text);
	if (p->failed)
		return p->failed;
	return generate_interrupted() || (p->text == stdout && !tess_tool_flush());
}

static tess_status keep_rows(void *self, const float *rows, int64_t n)
{
	struct printing *p = self;
	int64_t room = p->room;
	float *more;

	while (room < p->nrows + n)
		room = room ? 2 * room : 64;
	if (room != p->room) {
		more = realloc(p->rows, (size_t)(room * p->vocab) * sizeof *more);
		if (!more)
			return tess_fail(TESS_ENOMEM, "--logits: out of memory for %lld rows",
			                 (long long)room);
		p->rows = more;
		p->room = room;
	}
	memcpy(p->rows + p->nrows * p->vocab, rows, (size_t)(n * p->vocab) * sizeof *rows);
	p->nrows += n;
	return TESS_OK;
}

static tess_status printing_open(struct rank *r, struct printing *p)
{
	const struct tess_tokenizer *t;
	tess_status st = tess_session_tokenizer(r->session, &t);

	if (!st)
		st = tess_decoding_open(t, true, &p->decoding);
	else if (st == TESS_ENOENT && r->ask->ids)
		st = TESS_OK; /* ids in, ids out */
	p->ask = r->ask;
	p->vocab = tess_runner_vocabulary(tess_session_runner(r->session));
	p->ids = json_array();
	p->text = r->ask->json ? open_memstream(&p->kept, &p->kept_len) : stdout;
	if (!st && (!p->ids || !p->text))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	crypto_hash_sha256_init(&p->digest);
	r->how.self = p;
	r->how.chosen = chosen;
	r->how.logits = keep_rows;
	return st;
}

static void printing_close(struct printing *p)
{
	if (p->text && p->text != stdout)
		fclose(p->text);
	tess_decoding_close(p->decoding);
	json_decref(p->ids);
	free(p->kept);
	free(p->rows);
}

static const char *finish_name(int32_t finish)
{
	return finish == TESS_FINISH_STOP     ? "stop"
	       : finish == TESS_FINISH_LENGTH ? "length"
	                                      : "interrupt";
}

static double per_second(int64_t n, double seconds)
{
	return seconds > 0 ? (double)n / seconds : 0;
}

/* Memory that each rank holds, on every rank: weights, cache, step. */
static tess_status memory_of_all(struct rank *r, int64_t **out)
{
	struct tess_runner_memory m = tess_runner_used(tess_session_runner(r->session));
	uint64_t copied = tess_checkpoint_memory(tess_session_planned(r->session)->checkpoint);
	int64_t mine[3] = { (int64_t)(m.weights + copied), (int64_t)m.cache, (int64_t)m.step };

	*out = malloc((size_t)tess_world_size(r->world) * sizeof mine);
	if (!*out)
		return tess_fail(TESS_ENOMEM, "out of memory");
	return tess_all_gather(tess_world_group(r->world), mine, *out, 3, TESS_I64, "stats:memory");
}

static void print_stats(const struct rank *r, const int64_t *memory)
{
	const struct tess_generated *d = &r->done;

	fprintf(stderr, "load    %8.3f s\n", r->loaded - r->start);
	fprintf(stderr, "prefill %8.3f s  %9.1f tok/s  (%lld tokens)\n", d->prefill,
	        per_second(r->how.nprompt, d->prefill), (long long)r->how.nprompt);
	fprintf(stderr, "decode  %8.3f s  %9.1f tok/s  (%lld tokens)\n", d->decode,
	        per_second(d->ntokens, d->decode), (long long)d->ntokens);
	for (int32_t i = 0; i < tess_world_size(r->world); i++)
		fprintf(stderr, "rank %d  %10.2f MiB weights  %8.2f MiB KV cache  %8.2f MiB step\n",
		        (int)i, (double)memory[3 * i] / 1048576,
		        (double)memory[3 * i + 1] / 1048576, (double)memory[3 * i + 2] / 1048576);
}

static json_t *numbers(const int32_t *list, int64_t n)
{
	json_t *a = json_array();

	for (int64_t i = 0; i < n; i++)
		json_array_append_new(a, json_integer(list[i]));
	return a;
}

static tess_status print_json(const struct rank *r, struct printing *p, const char *digest)
{
	const struct tess_generated *d = &r->done;
	json_t *o;

	fflush(p->text);
	o = json_pack("{s:o, s:O, s:s#, s:s, s:i, s:s, s:s, s:{s:f, s:f, s:f, s:f, s:f}}",
	              "prompt_ids", numbers(r->prompt, r->how.nprompt), "ids", p->ids, "text",
	              p->kept, (int)p->kept_len, "finish_reason", finish_name(d->finish), "ranks",
	              (int)tess_world_size(r->world), "backend", tess_world_backend(r->world),
	              "digest", digest, "timings", "load", r->loaded - r->start, "prefill",
	              d->prefill, "decode", d->decode, "prefill_tokens_per_second",
	              per_second(r->how.nprompt, d->prefill), "decode_tokens_per_second",
	              per_second(d->ntokens, d->decode));
	if (!o)
		return tess_fail(TESS_ENOMEM, "--json: out of memory");
	json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
	putchar('\n');
	tess_tool_flush();
	json_decref(o);
	return TESS_OK;
}

static tess_status save_logits(const struct printing *p)
{
	int64_t shape[2] = { p->nrows, p->vocab };
	struct tess_slice logits = { .name = "logits",
		                     .dtype = TESS_F32,
		                     .ndim = 2,
		                     .shape = shape,
		                     .data = p->rows,
		                     .bytes = (uint64_t)(p->nrows * p->vocab) * sizeof *p->rows };

	return tess_safetensors_write(p->ask->logits, 1, &logits);
}

static tess_status print_end(const struct rank *r, struct printing *p, const int64_t *memory)
{
	unsigned char hash[crypto_hash_sha256_BYTES];
	char digest[2 * sizeof hash + 1];
	const char *bytes;
	size_t n = 0;
	tess_status st = p->failed;

	if (!st && p->decoding)
		st = tess_decoding_end(p->decoding, &bytes, &n);
	if (st)
		return st;
	fwrite(n ? bytes : "", 1, n, p->text);
	if (!r->ask->json) {
		putchar('\n');
		tess_tool_flush();
	}
	crypto_hash_sha256_final(&p->digest, hash);
	sodium_bin2hex(digest, sizeof digest, hash, sizeof hash);
	if (r->ask->stats)
		print_stats(r, memory);
	if (r->ask->digest)
		fprintf(stderr, "digest %s\n", digest);
	if (r->ask->logits)
		st = save_logits(p);
	return !st && r->ask->json ? print_json(r, p, digest) : st;
}

/* ---- what is generated -------------------------------------------------------------------------------------- */

static double given(double said, double preset)
{
	return isnan(said) ? preset : said;
}

/* What the command says, else what the checkpoint says; a checkpoint that does not sample is greedy. */
static struct tess_sampling sampling(const struct ask *a, const struct tess_generation *g)
{
	return (struct tess_sampling){
		.temperature = given(a->temperature, g->sample ? g->temperature : 0),
		.top_p = given(a->top_p, g->top_p),
		.min_p = given(a->min_p, g->min_p),
		.repetition_penalty = given(a->penalty, g->repetition_penalty),
		.top_k = a->top_k < 0 ? g->top_k : a->top_k,
		.seed = a->seed
	};
}

tess_status generate_check_length(const struct tess_planned *p, int64_t n)
{
	int64_t room = tess_planned_positions(p);

	if (!room || n <= room)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "the prompt has %lld ids, and the checkpoint was made for %lld positions",
	                 (long long)n, (long long)room);
}

/* Within the positions that the checkpoint was made for: the last id needs none of its own. */
static tess_status limit(struct rank *r, const struct tess_generation *g)
{
	const struct tess_planned *planned = tess_session_planned(r->session);
	int64_t room = tess_planned_positions(planned), n = r->ask->max_tokens;
	tess_status st = generate_check_length(planned, r->how.nprompt);

	if (st)
		return st;
	if (n < 0)
		n = g->max_new_tokens ? g->max_new_tokens : 256;
	if (room && n > room - r->how.nprompt + 1) {
		n = room - r->how.nprompt + 1;
		if (r->ask->max_tokens >= 0 && tess_world_rank(r->world) == 0)
			tess_log(
				TESS_WARN, "generate",
				"the checkpoint was made for %lld positions: at most %lld tokens after "
				"this prompt",
				(long long)room, (long long)n);
	}
	r->how.max_tokens = n;
	return TESS_OK;
}

static tess_status prepare(struct rank *r)
{
	const struct tess_generation *g =
		tess_checkpoint_generation(tess_session_planned(r->session)->checkpoint);
	tess_status st = tess_session_prompt(r->session, r->ask->prompt, r->ask->len, r->ask->ids,
	                                     r->ask->nids, &r->prompt, &r->how.nprompt);

	if (st)
		return st;
	for (int32_t i = 0; i < g->neos && !r->ask->ignore_eos; i++)
		r->stop[r->how.nstop++] = (int32_t)g->eos[i];
	r->how.prompt = r->prompt;
	r->how.stop = r->stop;
	r->how.chunk = r->ask->chunk;
	r->how.all = r->ask->logits != NULL;
	r->how.sampling = sampling(r->ask, g);
	return limit(r, g);
}

static tess_status run(struct rank *r)
{
	struct tess_session_how how = { .size = sizeof how,
		                        .threads = r->ask->threads,
		                        .plan = r->ask->plan,
		                        .overrides = r->ask->overrides,
		                        .ignore_unexpected = r->ask->ignore_unexpected };
	bool first = tess_world_rank(r->world) == 0;
	struct printing p = { 0 };
	int64_t *memory = NULL;
	tess_status st =
		tess_session_open(tess_world_group(r->world), r->ask->model, &how, &r->session);

	r->loaded = now();
	if (!st && first)
		tess_option_check_environment(tess_registry_may_read);
	if (!st)
		st = prepare(r);
	if (!st && first)
		st = printing_open(r, &p);
	if (!st)
		st = tess_generate_run(tess_session_runner(r->session), &r->how, &r->done);
	if (!st)
		st = memory_of_all(r, &memory);
	if (!st && first)
		st = print_end(r, &p, memory);
	if (first)
		printing_close(&p);
	free(memory);
	return st;
}

tess_status generate_rank(struct tess_world *world, void *ask)
{
	struct rank r = { .world = world, .ask = ask, .start = now() };
	tess_status st;

	catch_interrupt(&r);
	st = run(&r);
	if (st)
		tess_world_fail(world, st, tess_error());
	free(r.prompt);
	tess_session_close(r.session);
	return st;
}

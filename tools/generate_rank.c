/* generate_rank.c - one rank of `tessera generate`. */
#include "generate.h"

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/registry/registry.h"
#include "hf/session.h"
#include "tool.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct printing { /* rank 0's */
	const struct generate_options *options;
	struct tess_decode_stream *decoder; /* NULL: no tokenizer, ids are printed */
	FILE *text; /* stdout, or memory for --json */
	char *json_text;
	size_t json_text_len;
	crypto_hash_sha256_state digest;
	json_t *ids;
	float *rows; /* of --logits */
	int64_t nrows, capacity, vocab;
	tess_status failed;
};

struct generate_state {
	struct tess_world *world;
	const struct generate_options *options;
	struct tess_mesh *mesh;
	struct tess_session *session;
	struct tess_generate_request request;
	struct tess_generate_result result;
	int32_t *prompt, stop[TESS_EOS_MAX];
	int64_t start, loaded;
};

/* ---- Ctrl-C ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void handle_interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
	signal(SIGINT, SIG_DFL); /* a second one ends the process */
}

bool generate_is_interrupted(void)
{
	return interrupted != 0;
}

/* Rank 0 ends the text for all ranks, which ignore the signal; threads share rank 0's handler. */
static void catch_interrupt(const struct generate_state *r)
{
	const struct tess_backend *b;

	if (tess_world_rank(r->world) == 0)
		signal(SIGINT, handle_interrupt);
	else if (!tess_plugin_find_backend(tess_world_backend(r->world), &b) &&
	         b->reach != TESS_REACH_PROCESS)
		signal(SIGINT, SIG_IGN);
}

/* ---- output of rank 0 ------------------------------------------------------------------------ */

static int print_token(void *self, int32_t id, const float *logits)
{
	struct printing *p = self;
	const char *bytes = NULL;
	size_t n = 0;

	if (p->options->digest || p->options->json)
		crypto_hash_sha256_update(&p->digest, (const unsigned char *)logits,
		                          (uint64_t)p->vocab * sizeof *logits);
	json_array_append_new(p->ids, json_integer(id));
	if (p->decoder)
		p->failed = tess_decode_stream_push(p->decoder, id, &bytes, &n);
	else
		fprintf(p->text, "%s%d", json_array_size(p->ids) > 1 ? "," : "", (int)id);
	if (n)
		fwrite(bytes, 1, n, p->text);
	if (p->failed)
		return p->failed;
	return generate_is_interrupted() || (p->text == stdout && !tess_tool_flush_output());
}

static tess_status store_logit_rows(void *self, const float *rows, int64_t n)
{
	struct printing *p = self;
	int64_t capacity = p->capacity;
	float *more;

	while (capacity < p->nrows + n)
		capacity = capacity ? 2 * capacity : 64;
	if (capacity != p->capacity) {
		more = realloc(p->rows, (size_t)(capacity * p->vocab) * sizeof *more);
		if (!more)
			return tess_fail(TESS_ENOMEM, "--logits: out of memory for %lld rows",
			                 (long long)capacity);
		p->rows = more;
		p->capacity = capacity;
	}
	memcpy(p->rows + p->nrows * p->vocab, rows, (size_t)(n * p->vocab) * sizeof *rows);
	p->nrows += n;
	return TESS_OK;
}

static tess_status open_printing(struct generate_state *r, struct printing *p)
{
	const struct tess_tokenizer *t;
	tess_status st = tess_session_tokenizer(r->session, &t);

	if (!st)
		st = tess_decode_stream_open(t, true, &p->decoder);
	else if (st == TESS_ENOENT && r->options->ids)
		st = TESS_OK; /* it prints ids */
	p->options = r->options;
	p->vocab = tess_runner_vocabulary(tess_session_runner(r->session));
	p->ids = json_array();
	p->text = r->options->json ? open_memstream(&p->json_text, &p->json_text_len) : stdout;
	if (!st && (!p->ids || !p->text))
		st = tess_fail(TESS_ENOMEM, "out of memory");
	crypto_hash_sha256_init(&p->digest);
	r->request.self = p;
	r->request.on_token = print_token;
	r->request.on_logits = store_logit_rows;
	return st;
}

static void close_printing(struct printing *p)
{
	if (p->text && p->text != stdout)
		fclose(p->text);
	tess_decode_stream_close(p->decoder);
	json_decref(p->ids);
	free(p->json_text);
	free(p->rows);
}

static const char *get_finish_name(int32_t finish)
{
	return finish == TESS_FINISH_STOP     ? "stop"
	       : finish == TESS_FINISH_LENGTH ? "length"
	                                      : "interrupt";
}

static double compute_load_seconds(const struct generate_state *r)
{
	return 1e-9 * (double)(r->loaded - r->start);
}

static double compute_rate(int64_t n, double seconds)
{
	return seconds > 0 ? (double)n / seconds : 0;
}

/* The bytes of weights, cache and step of each rank, on every rank. */
static tess_status gather_memory(struct generate_state *r, int64_t **out)
{
	struct tess_runner_memory m = tess_runner_get_memory(tess_session_runner(r->session));
	int64_t mine[3] = { (int64_t)m.weights, (int64_t)m.cache, (int64_t)m.step };

	*out = malloc((size_t)tess_world_size(r->world) * sizeof mine);
	if (!*out)
		return tess_fail(TESS_ENOMEM, "out of memory");
	return tess_all_gather(tess_world_group(r->world), mine, *out, 3, TESS_I64, "stats:memory");
}

static void print_stats(const struct generate_state *r, const int64_t *memory)
{
	const struct tess_generate_result *d = &r->result;

	fprintf(stderr, "load    %8.3f s\n", compute_load_seconds(r));
	fprintf(stderr, "prefill %8.3f s  %9.1f tok/s  (%lld tokens)\n", d->prefill,
	        compute_rate(r->request.nprompt, d->prefill), (long long)r->request.nprompt);
	fprintf(stderr, "decode  %8.3f s  %9.1f tok/s  (%lld tokens)\n", d->decode,
	        compute_rate(d->ntokens, d->decode), (long long)d->ntokens);
	for (int32_t i = 0; i < tess_world_size(r->world); i++)
		fprintf(stderr, "rank %d  %10.2f MiB weights  %8.2f MiB KV cache  %8.2f MiB step\n",
		        (int)i, (double)memory[3 * i] / 1048576,
		        (double)memory[3 * i + 1] / 1048576, (double)memory[3 * i + 2] / 1048576);
}

static json_t *make_id_list(const int32_t *list, int64_t n)
{
	json_t *a = json_array();

	for (int64_t i = 0; i < n; i++)
		json_array_append_new(a, json_integer(list[i]));
	return a;
}

static tess_status print_generate_json(const struct generate_state *r, struct printing *p,
                                       const char *digest)
{
	const struct tess_generate_result *d = &r->result;
	json_t *o;

	fflush(p->text);
	o = json_pack("{s:o, s:O, s:s#, s:s, s:i, s:s, s:s, s:{s:f, s:f, s:f, s:f, s:f}}",
	              "prompt_ids", make_id_list(r->prompt, r->request.nprompt), "ids", p->ids,
	              "text", p->json_text, (int)p->json_text_len, "finish_reason",
	              get_finish_name(d->finish), "ranks", (int)tess_world_size(r->world),
	              "backend", tess_world_backend(r->world), "digest", digest, "timings", "load",
	              compute_load_seconds(r), "prefill", d->prefill, "decode", d->decode,
	              "prefill_tokens_per_second", compute_rate(r->request.nprompt, d->prefill),
	              "decode_tokens_per_second", compute_rate(d->ntokens, d->decode));
	if (!o)
		return tess_fail(TESS_ENOMEM, "--json: out of memory");
	json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
	putchar('\n');
	tess_tool_flush_output();
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

	return tess_safetensors_write(p->options->logits, 1, &logits);
}

static tess_status print_end(const struct generate_state *r, struct printing *p,
                             const int64_t *memory)
{
	unsigned char hash[crypto_hash_sha256_BYTES];
	char digest[2 * sizeof hash + 1];
	const char *bytes;
	size_t n = 0;
	tess_status st = p->failed;

	if (!st && p->decoder)
		st = tess_decode_stream_finish(p->decoder, &bytes, &n);
	if (st)
		return st;
	fwrite(n ? bytes : "", 1, n, p->text);
	if (!r->options->json) {
		putchar('\n');
		tess_tool_flush_output();
	}
	crypto_hash_sha256_final(&p->digest, hash);
	sodium_bin2hex(digest, sizeof digest, hash, sizeof hash);
	if (r->options->stats)
		print_stats(r, memory);
	if (r->options->digest)
		fprintf(stderr, "digest %s\n", digest);
	if (r->options->logits)
		st = save_logits(p);
	return !st && r->options->json ? print_generate_json(r, p, digest) : st;
}

/* ---- the request ----------------------------------------------------------------------------- */

static double choose_value(double value, double preset)
{
	return isnan(value) ? preset : value;
}

/* Options, else the values of the checkpoint; a checkpoint without do_sample is greedy. */
static struct tess_sampling make_sampling(const struct generate_options *a,
                                          const struct tess_generation *g)
{
	return (struct tess_sampling){
		.temperature = choose_value(a->temperature, g->sample ? g->temperature : 0),
		.top_p = choose_value(a->top_p, g->top_p),
		.min_p = choose_value(a->min_p, g->min_p),
		.repetition_penalty = choose_value(a->penalty, g->repetition_penalty),
		.top_k = a->top_k < 0 ? g->top_k : a->top_k,
		.seed = a->seed
	};
}

tess_status generate_check_length(const struct tess_planned_model *p, int64_t n)
{
	int64_t positions = tess_planned_model_positions(p);

	if (!positions || n <= positions)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "the prompt has %lld ids, and the checkpoint was made for %lld positions",
	                 (long long)n, (long long)positions);
}

/* Within the positions of the checkpoint: the last id is not fed back, and needs none. */
static tess_status limit_tokens(struct generate_state *r, const struct tess_generation *g)
{
	const struct tess_planned_model *planned = tess_session_model(r->session);
	int64_t positions = tess_planned_model_positions(planned), n = r->options->max_tokens;
	tess_status st = generate_check_length(planned, r->request.nprompt);

	if (st)
		return st;
	if (n < 0)
		n = g->max_new_tokens ? g->max_new_tokens : 256;
	if (positions && n > positions - r->request.nprompt + 1) {
		n = positions - r->request.nprompt + 1;
		if (r->options->max_tokens >= 0 && tess_world_rank(r->world) == 0)
			tess_log(TESS_WARN, "generate",
			         "the checkpoint was made for %lld positions: at most %lld tokens "
			         "after this prompt",
			         (long long)positions, (long long)n);
	}
	r->request.max_tokens = n;
	return TESS_OK;
}

static tess_status prepare_request(struct generate_state *r)
{
	const struct tess_generation *g =
		tess_checkpoint_generation(tess_session_model(r->session)->checkpoint);
	tess_status st = tess_session_share_prompt(r->session, r->options->prompt, r->options->len,
	                                           r->options->ids, r->options->nids, &r->prompt,
	                                           &r->request.nprompt);

	if (st)
		return st;
	for (int32_t i = 0; i < g->neos && !r->options->ignore_eos; i++)
		r->stop[r->request.nstop++] = (int32_t)g->eos[i];
	r->request.prompt = r->prompt;
	r->request.stop = r->stop;
	r->request.chunk = r->options->chunk;
	r->request.all = r->options->logits != NULL;
	r->request.sampling = make_sampling(r->options, g);
	return limit_tokens(r, g);
}

static tess_status generate_on_rank(struct generate_state *r)
{
	struct tess_session_options session_options = { .size = sizeof session_options,
		                                        .threads = r->options->threads,
		                                        .plan = r->options->plan,
		                                        .overrides = r->options->overrides,
		                                        .ignore_unexpected =
		                                                r->options->ignore_unexpected };
	bool first = tess_world_rank(r->world) == 0;
	struct printing p = { 0 };
	int64_t *memory = NULL;
	tess_status st =
		tess_mesh_open(r->world, r->options->mesh ? r->options->mesh : "tp", &r->mesh);

	if (!st)
		st = tess_session_open(r->mesh, r->options->model, &session_options, &r->session);
	r->loaded = tess_now();
	if (!st && first)
		tess_option_check_environment(tess_registry_may_declare);
	if (!st)
		st = prepare_request(r);
	if (!st && first)
		st = open_printing(r, &p);
	if (!st)
		st = tess_generate_run(tess_session_runner(r->session), &r->request, &r->result);
	if (!st)
		st = gather_memory(r, &memory);
	if (!st && first)
		st = print_end(r, &p, memory);
	if (first)
		close_printing(&p);
	free(memory);
	return st;
}

tess_status generate_run_rank(struct tess_world *world, void *options)
{
	struct generate_state r = { .world = world, .options = options, .start = tess_now() };
	tess_status st;

	catch_interrupt(&r);
	st = generate_on_rank(&r);
	if (st)
		tess_world_fail(world, st, tess_error());
	free(r.prompt);
	tess_session_close(r.session);
	tess_mesh_close(r.mesh);
	return st;
}

/* rank.c - one rank of `tessera generate`: opens the session, runs the prompts, prints. */
#include "generate.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/names.h>
#include <tessera/util/clock.h>

enum { HEX = 2 * crypto_hash_sha256_BYTES };

enum { OFFLOADED_ROWS = 2048 }; /* of a step of prompts, by default */

struct text { /* a sequence, on the rank that prints it */
	FILE *out; /* stdout, or memory while it must wait */
	char *held;
	size_t nheld;
	crypto_hash_sha256_state digest;
	json_t *ids; /* NULL: not started */
	bool ended;
	bool decodes; /* prints text; without a tokenizer ids */
};

struct rank_stats { /* bytes; ids of the sequences that this rank printed */
	int64_t weights, mapped, offloaded, cache, step, nprompt, ntokens;
};

struct generate_state {
	struct tess_world *world;
	const struct generate_options *options;
	struct tess_mesh *mesh;
	struct tess_session *session;
	struct tess_session_info info;
	struct tess_request *requests; /* on rank 0: those that can be run */
	const struct tess_request **list;
	struct tess_sampling *sampling;
	int64_t *index; /* indices of the prompts, on all ranks */
	struct text *text;
	char (*digests)[HEX]; /* with replicas: of sequences that this rank printed, else 0 */
	int64_t n, next; /* requests; the next one to print */
	struct tess_result *results;
	float *rows; /* for --logits */
	int64_t nrows, capacity;
	int64_t start, loaded;
};

/* ---- Ctrl-C ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t failed;

bool generate_has_failed(void)
{
	return failed != 0;
}

/* Ends the sequences of a replica, on its rank 0; threads share the handler of rank 0. */
static void catch_interrupt(const struct generate_state *s)
{
	if (tess_world_rank(s->world) == 0 || !tess_tool_has_threads(tess_world_size(s->world)))
		tess_tool_catch_interrupt(NULL);
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* Starts a sequence: the next one streams to stdout; others, and JSON, are held back. */
static tess_status begin_text(struct generate_state *s, int64_t i)
{
	const struct tess_tokenizer *tokenizer;
	struct text *t = &s->text[i];
	bool streams;

	if (t->ids)
		return TESS_OK;
	t->decodes = !tess_session_get_tokenizer(s->session, &tokenizer);
	t->ids = json_array();
	crypto_hash_sha256_init(&t->digest);
	streams = s->info.nreplicas == 1 && !s->options->json && !s->options->prompts.lines;
	t->out = streams && i == s->next ? stdout : tess_tool_open_memory(&t->held, &t->nheld);
	return t->ids && t->out ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");
}

static void free_text(struct text *t)
{
	if (t->out && t->out != stdout)
		fclose(t->out);
	free(t->held);
	json_decref(t->ids);
	*t = (struct text){ .ended = t->ended };
}

static int print_token(void *self, int64_t i, int32_t id, const float *logits, const char *bytes,
                       uint64_t n)
{
	struct generate_state *s = self;
	struct text *t = &s->text[i];
	tess_status st = begin_text(s, i);

	if (st)
		return st;
	if (logits)
		crypto_hash_sha256_update(&t->digest, (const unsigned char *)logits,
		                          (uint64_t)s->info.vocabulary * sizeof *logits);
	json_array_append_new(t->ids, json_integer(id));
	if (!t->decodes)
		fprintf(t->out, "%s%d", json_array_size(t->ids) > 1 ? "," : "", (int)id);
	if (n)
		fwrite(bytes, 1, n, t->out);
	if (t->out != stdout && ferror(t->out))
		return tess_fail(TESS_ENOMEM, "out of memory for a text");
	if (t->out == stdout && !tess_tool_flush_output())
		return TESS_END_ALL;
	return tess_tool_is_interrupted() ? TESS_END_ALL : TESS_GO_ON;
}

static int check_interrupt(void *self)
{
	(void)self;
	return tess_tool_is_interrupted() ? TESS_END_ALL : TESS_GO_ON;
}

static int store_logits(void *self, int64_t i, const float *rows, int64_t n)
{
	struct generate_state *s = self;
	int64_t capacity = s->capacity, vocab = s->info.vocabulary;
	float *more;

	(void)i; /* --logits takes one prompt */
	while (capacity < s->nrows + n)
		capacity = capacity ? 2 * capacity : 64;
	if (capacity != s->capacity) {
		more = realloc(s->rows, (size_t)(capacity * vocab) * sizeof *more);
		if (!more)
			return tess_fail(TESS_ENOMEM, "--logits: out of memory for %lld rows",
			                 (long long)capacity);
		s->rows = more;
		s->capacity = capacity;
	}
	memcpy(s->rows + s->nrows * vocab, rows, (size_t)(n * vocab) * sizeof *rows);
	s->nrows += n;
	return TESS_GO_ON;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static const char *get_finish_name(int32_t finish)
{
	return finish == TESS_FINISH_STOP     ? "eos"
	       : finish == TESS_FINISH_TEXT   ? "stop"
	       : finish == TESS_FINISH_LENGTH ? "length"
	       : finish == TESS_FINISH_FAILED ? "error"
	                                      : "interrupt";
}

static double compute_rate(int64_t n, double seconds)
{
	return seconds > 0 ? (double)n / seconds : 0;
}

/* Returns prompt tokens per second up to the first id; 0 if there is no id. */
static double compute_prefill_rate(int64_t nprompt, int64_t ntokens, double prefill)
{
	return ntokens ? compute_rate(nprompt, prefill) : 0;
}

/* Returns tokens per second after the first id. */
static double compute_decode_rate(int64_t ntokens, double decode)
{
	return ntokens ? compute_rate(ntokens - 1, decode) : 0;
}

static double compute_load_seconds(const struct generate_state *s)
{
	return 1e-9 * (double)(s->loaded - s->start);
}

static json_t *make_id_list(const int32_t *list, int64_t n)
{
	json_t *a = json_array();

	for (int64_t i = 0; i < n; i++)
		json_array_append_new(a, json_integer(list[i]));
	return a;
}

static tess_status print_json_line(json_t *o)
{
	char *line = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
	size_t n = line ? strlen(line) : 0;

	json_decref(o);
	if (!line)
		return tess_fail(TESS_ENOMEM, "--json: out of memory");
	line[n] = '\n'; /* replaces its terminator */
	tess_tool_print_lines(line, n + 1);
	free(line);
	return TESS_OK;
}

static void format_digest(struct text *t, char out[HEX + 1])
{
	unsigned char hash[crypto_hash_sha256_BYTES];

	crypto_hash_sha256_final(&t->digest, hash);
	sodium_bin2hex(out, HEX + 1, hash, sizeof hash);
}

static void print_digest(const struct generate_state *s, int64_t i, const char digest[HEX])
{
	if (s->n > 1)
		fprintf(stderr, "digest %lld %.*s\n", (long long)s->index[i], (int)HEX, digest);
	else
		fprintf(stderr, "digest %.*s\n", (int)HEX, digest);
}

static tess_status print_result_json(const struct generate_state *s, int64_t i,
                                     const struct tess_result *r, const char *digest)
{
	struct text *t = &s->text[i];
	json_t *o;

	fflush(t->out);
	o = json_pack("{s:o, s:O, s:s#, s:s, s:i, s:s, s:s?, s:{s:f, s:f, s:f, s:f, s:f}}",
	              "prompt_ids", make_id_list(r->prompt, r->nprompt), "ids", t->ids, "text",
	              t->held ? t->held : "", (int)t->nheld, "finish_reason",
	              get_finish_name(r->finish), "ranks", (int)tess_world_size(s->world),
	              "backend", tess_world_backend(s->world), "digest",
	              r->sentence ? NULL : digest, "timings", "load", compute_load_seconds(s),
	              "prefill", r->prefill, "decode", r->decode, "prefill_tokens_per_second",
	              compute_prefill_rate(r->nprompt, r->ntokens, r->prefill),
	              "decode_tokens_per_second", compute_decode_rate(r->ntokens, r->decode));
	if (o && (s->options->prompts.lines || s->n > 1))
		json_object_set_new(o, "index", json_integer(s->index[i]));
	if (o && r->sentence)
		json_object_set_new(o, "error", json_string(r->sentence));
	return print_json_line(o);
}

/* ---- the end of a text ----------------------------------------------------------------------- */

static void report_failed_line(const struct prompts *p, int64_t line, const char *sentence)
{
	bool named = strcmp(p->file, "-") != 0;

	failed = 1;
	fprintf(stderr, "tessera generate: %s%s%s: line %lld: %s\n", prompts_get_option(p),
	        named ? " " : "", named ? p->file : "", (long long)line + 1, sentence);
}

static void report_failed_prompt(const struct generate_state *s, int64_t i, const char *sentence)
{
	const struct prompts *p = &s->options->prompts;
	int64_t at = s->index[i];

	failed = 1;
	if (p->lines)
		report_failed_line(p, at, sentence);
	else if (at < p->n && p->list[at].file)
		fprintf(stderr, "tessera generate: --prompt-file %s: %s\n", p->list[at].file,
		        sentence);
	else if (s->n > 1)
		fprintf(stderr, "tessera generate: prompt %lld: %s\n", (long long)s->index[i],
		        sentence);
	else
		fprintf(stderr, "tessera generate: %s\n", sentence);
}

/*
 * Prints held sequences that have ended, in the order of the prompts. The sequence after them
 * streams from then on.
 */
static void print_ended_texts(struct generate_state *s)
{
	struct text *t = &s->text[s->next];

	while (s->next < s->n && t->ended) {
		if (t->out != stdout) {
			fflush(t->out);
			tess_tool_print_lines(t->held, t->nheld);
		}
		free_text(t);
		t = &s->text[++s->next];
	}
	if (s->next < s->n && t->out && t->out != stdout) {
		fflush(t->out);
		tess_tool_print_lines(t->held, t->nheld);
		fclose(t->out);
		t->out = stdout;
	}
}

static int end_text(void *self, int64_t i, const struct tess_result *r, const char *bytes,
                    uint64_t n)
{
	struct generate_state *s = self;
	bool json = s->options->json || s->options->prompts.lines;
	char digest[HEX + 1];
	struct text *t = &s->text[i];
	tess_status st = begin_text(s, i);
	bool written;

	if (st)
		return st;
	s->results[i] = *r;
	t->ended = true;
	if (n)
		fwrite(bytes, 1, n, t->out);
	format_digest(t, digest);
	if (t->out != stdout && ferror(t->out)) {
		st = tess_fail(TESS_ENOMEM, "out of memory for a text");
	} else if (json) {
		st = print_result_json(s, i, r, digest);
		free_text(t);
	} else {
		fputc('\n', t->out);
		if (s->info.nreplicas == 1)
			print_ended_texts(s);
	}
	written = tess_tool_flush_output(); /* the text precedes its messages */
	if (r->sentence)
		report_failed_prompt(s, i, r->sentence);
	else if (s->info.nreplicas > 1)
		memcpy(s->digests[i], digest, HEX);
	else if (s->options->digest)
		print_digest(s, i, digest);
	return st ? st : written ? TESS_GO_ON : TESS_END_ALL;
}

/* With replicas: prints on rank 0 all sequences, in the order of the prompts. */
static tess_status print_texts_of_replicas(struct generate_state *s)
{
	struct tess_group *g = tess_world_group(s->world);
	int64_t *size = calloc((size_t)s->n, sizeof *size), total = 0, at = 0;
	char *all = NULL;
	tess_status st = size ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	for (int64_t i = 0; i < s->n && !st; i++) {
		if (s->text[i].ended && fflush(s->text[i].out))
			st = tess_fail(TESS_ENOMEM, "out of memory");
		size[i] = s->text[i].ended ? (int64_t)s->text[i].nheld : 0;
	}
	if (!st)
		st = tess_all_reduce(g, size, size, (uint64_t)s->n, TESS_I64, TESS_SUM,
		                     "generate:sizes");
	for (int64_t i = 0; i < s->n && !st; i++)
		total += size[i];
	if (!st)
		all = calloc((size_t)total + 1, 1);
	if (!st && !all)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	for (int64_t i = 0; i < s->n && !st; at += size[i++])
		if (s->text[i].ended)
			memcpy(all + at, s->text[i].held, s->text[i].nheld);
	if (!st) /* each byte is nonzero on one rank only */
		st = tess_all_reduce(g, all, all, (uint64_t)total, TESS_I8, TESS_SUM,
		                     "generate:texts");
	if (!st && tess_world_rank(s->world) == 0)
		tess_tool_print_lines(all, (size_t)total);
	free(size);
	free(all);
	return st;
}

/* With replicas: prints on rank 0 all digests, in the order of the prompts. */
static tess_status print_digests_of_replicas(struct generate_state *s)
{
	char *all = s->digests[0];
	tess_status st = tess_all_reduce(tess_world_group(s->world), all, all, (uint64_t)s->n * HEX,
	                                 TESS_I8, TESS_SUM, "generate:digests");

	for (int64_t i = 0; i < s->n && !st && tess_world_rank(s->world) == 0; i++)
		if (*s->digests[i]) /* else the sequence failed */
			print_digest(s, i, s->digests[i]);
	return st;
}

/* ---- the requests ---------------------------------------------------------------------------- */

static double choose_real(double own, double all, double preset)
{
	return !isnan(own) ? own : !isnan(all) ? all : preset;
}

static int64_t choose_integer(int64_t own, int64_t all, int64_t preset)
{
	return own >= 0 ? own : all >= 0 ? all : preset;
}

static void add_request(struct generate_state *s, const struct prompt *p)
{
	static const int32_t none = 0;
	const struct generate_options *a = s->options;
	int64_t i = s->n++;
	const struct tess_sampling *preset = &s->info.sampling;
	int64_t max_tokens = p->max_tokens >= 0 ? p->max_tokens : a->max_tokens;

	s->sampling[i] = (struct tess_sampling){
		.temperature = choose_real(p->temperature, a->temperature, preset->temperature),
		.top_p = choose_real(p->top_p, a->top_p, preset->top_p),
		.min_p = choose_real(p->min_p, a->min_p, preset->min_p),
		.repetition_penalty =
			choose_real(p->penalty, a->penalty, preset->repetition_penalty),
		.top_k = choose_integer(p->top_k, a->top_k, preset->top_k),
		.seed = (uint64_t)(p->seed >= 0 ? p->seed : a->seed),
	};
	s->requests[i] = (struct tess_request){
		.size = sizeof s->requests[i],
		.flags = (a->logits || a->values ? TESS_ALL_LOGITS : 0) |
		         (a->digest || a->json || a->prompts.lines ? TESS_TOKEN_LOGITS : 0),
		.text = p->text,
		.ntext = p->len,
		.ids = p->ids,
		.nids = p->nids,
		.sampling = &s->sampling[i],
		.stop = a->ignore_eos ? &none : NULL,
		.stop_texts = p->nstop < 0 ? a->stop.text : (const char *const *)p->stop,
		.nstop_texts = p->nstop < 0 ? a->stop.n : p->nstop,
		.chat = a->chat,
		.max_tokens = max_tokens < 0 ? 0
		              : max_tokens   ? max_tokens
		                             : -1,
	};
	s->list[i] = &s->requests[i];
	s->index[i] = p->index;
}

/* Prints the error of an invalid line of --prompts; the other lines run. */
static tess_status report_bad_line(const struct prompts *all, const struct prompt *p)
{
	report_failed_line(all, p->index, p->error);
	return print_json_line(
		json_pack("{s:I, s:s}", "index", (json_int_t)p->index, "error", p->error));
}

/* Builds the requests on rank 0; the other ranks, which may print results, get the indices. */
static tess_status make_requests(struct generate_state *s)
{
	const struct prompts *p = &s->options->prompts;
	struct tess_group *g = tess_world_group(s->world);
	bool first = tess_world_rank(s->world) == 0;
	int64_t count = p->n;
	tess_status st = tess_broadcast(g, &count, 1, TESS_I64, 0, "prompts:count");
	size_t n = (size_t)count + 1;

	s->index = calloc(n, sizeof *s->index);
	s->requests = calloc(n, sizeof *s->requests);
	s->list = calloc(n, sizeof *s->list);
	s->sampling = calloc(n, sizeof *s->sampling);
	s->text = calloc(n, sizeof *s->text);
	s->results = calloc(n, sizeof *s->results);
	s->digests = calloc(n, sizeof *s->digests);
	if (!s->index || !s->requests || !s->list || !s->sampling || !s->text || !s->results ||
	    !s->digests)
		return tess_fail(TESS_ENOMEM, "out of memory");
	for (int64_t i = 0; i < p->n && first && !st; i++) {
		if (!p->list[i].error)
			add_request(s, &p->list[i]);
		else
			st = report_bad_line(p, &p->list[i]);
	}
	if (!st)
		st = tess_broadcast(g, &s->n, 1, TESS_I64, 0, "prompts:count");
	return st ? st : tess_broadcast(g, s->index, n, TESS_I64, 0, "prompts:index");
}

/* ---- the whole run --------------------------------------------------------------------------- */

/* Gathers the numbers of --stats of each rank on every rank. */
static tess_status gather_stats(struct generate_state *s, struct rank_stats **out)
{
	struct rank_stats mine = { .weights = (int64_t)s->info.weight_bytes,
		                   .mapped = (int64_t)s->info.mapped_bytes,
		                   .offloaded = (int64_t)s->info.offloaded_bytes,
		                   .cache = (int64_t)s->info.kv_bytes,
		                   .step = (int64_t)s->info.step_bytes };

	for (int64_t i = 0; i < s->n; i++) {
		mine.nprompt += s->results[i].nprompt;
		mine.ntokens += s->results[i].ntokens;
	}
	*out = malloc((size_t)tess_world_size(s->world) * sizeof mine);
	if (!*out)
		return tess_fail(TESS_ENOMEM, "out of memory");
	return tess_all_gather(tess_world_group(s->world), &mine, *out,
	                       sizeof mine / sizeof(int64_t), TESS_I64, "stats");
}

/* Prints how this rank stores its weights, by kind, dtype and reason. */
static void print_storage_stats(const struct generate_state *s)
{
	int32_t n = tess_session_list_weights(s->session, NULL, 0);
	struct tess_weight_storage *w = calloc((size_t)n + 1, sizeof *w);

	if (w)
		tess_session_list_weights(s->session, w, n);
	for (int32_t i = 0; w && i < n; i++) {
		uint64_t mapped = 0, bytes = 0;
		int32_t times = 0, first = n;

		for (int32_t k = n - 1; k >= 0; k--) {
			if (strcmp(w[k].kind, w[i].kind) || w[k].dtype != w[i].dtype ||
			    strcmp(w[k].reason, w[i].reason))
				continue;
			first = k;
			times++;
			mapped += w[k].mapped;
			bytes += w[k].bytes;
		}
		if (first == i)
			fprintf(stderr,
			        "weights %5d  %-20s %-5s %10.2f MiB mapped %10.2f MiB  %s\n",
			        (int)times, w[i].kind, tess_dtype_name(w[i].dtype),
			        (double)mapped / 1048576, (double)bytes / 1048576, w[i].reason);
	}
	free(w);
}

static void print_stats(const struct generate_state *s, const struct rank_stats *stats)
{
	double prefill = s->n ? s->results[0].prefill : 0, decode = s->n ? s->results[0].decode : 0;
	int64_t nprompt = 0, ntokens = 0;

	for (int32_t i = 0; i < tess_world_size(s->world); i++) {
		nprompt += stats[i].nprompt;
		ntokens += stats[i].ntokens;
	}
	fprintf(stderr, "load    %8.3f s\n", compute_load_seconds(s));
	if (s->n == 1) {
		fprintf(stderr, "prefill %8.3f s  %9.1f tok/s  (%lld tokens)\n", prefill,
		        compute_prefill_rate(nprompt, ntokens, prefill), (long long)nprompt);
		fprintf(stderr, "decode  %8.3f s  %9.1f tok/s  (%lld tokens after the first)\n",
		        decode, compute_decode_rate(ntokens, decode),
		        (long long)(ntokens ? ntokens - 1 : 0));
	} else {
		double seconds = 1e-9 * (double)(tess_now() - s->loaded);

		fprintf(stderr,
		        "run     %8.3f s  %9.1f tok/s  (%lld texts; tokens: %lld of prompts, "
		        "%lld generated)\n",
		        seconds, compute_rate(ntokens, seconds), (long long)s->n,
		        (long long)nprompt, (long long)ntokens);
	}
	for (int32_t i = 0; i < tess_world_size(s->world); i++)
		fprintf(stderr,
		        "rank %d  %10.2f MiB weights  %8.2f MiB KV cache  %8.2f MiB step  "
		        "(%.2f MiB of weights are read in the files, %.2f MiB before each use)\n",
		        (int)i, (double)stats[i].weights / 1048576,
		        (double)stats[i].cache / 1048576, (double)stats[i].step / 1048576,
		        (double)stats[i].mapped / 1048576, (double)stats[i].offloaded / 1048576);
	print_storage_stats(s);
}

/* Prints the memory of rank 0, and what a token reads, if weights are offloaded. */
static tess_status announce_memory(const struct generate_state *s)
{
	int64_t rows = s->options->chunk ? s->options->chunk : OFFLOADED_ROWS;
	struct tess_explanation *e = NULL;
	const struct tess_explained_rank *r;
	tess_status st;

	rows = s->info.positions && rows > s->info.positions ? s->info.positions : rows;
	st = tess_session_explain(s->session, rows, &e);
	if (st)
		return st;
	r = e->ranks[0];
	fprintf(stderr,
	        "tessera generate: rank 0 holds at most %.1f MiB (weights %.1f, a step of %lld "
	        "tokens %.1f) and its KV cache; a step reads up to %.1f MiB of weights\n",
	        (double)r->total / 1048576, (double)r->weights / 1048576, (long long)rows,
	        (double)r->step / 1048576, (double)r->disk_read[0] / 1048576);
	tess_explanation_free(e);
	return TESS_OK;
}

/* Writes the values of modules on rank 0, unless the prompt has failed. Collective. */
static tess_status write_module_values(struct generate_state *s)
{
	struct tess_values *v = NULL;
	tess_status st = tess_session_take_values(s->session, &v);

	if (!st && v && s->results[0].finish != TESS_FINISH_FAILED)
		st = tess_values_save(v, s->options->values);
	tess_values_free(v);
	return st;
}

static tess_status generate_on_rank(struct generate_state *s)
{
	struct tess_session_options options = tess_tool_get_session_options(&s->options->session);
	struct tess_generation how = { .size = sizeof how,
		                       .batch = s->options->batch,
		                       .chunk = s->options->chunk,
		                       .self = s,
		                       .on_token = print_token,
		                       .on_logits = s->options->logits ? store_logits : NULL,
		                       .on_end = end_text,
		                       .on_step = check_interrupt };
	bool first = tess_world_rank(s->world) == 0;
	struct rank_stats *stats = NULL;
	tess_status st;

	if (s->options->values)
		options.values = s->options->values_of ? s->options->values_of : "*";
	st = tess_session_open(s->mesh, s->options->session.model, &options, &s->session);
	if (st)
		return st;
	s->loaded = tess_now();
	if (first)
		tess_tool_check_environment();
	s->info.size = sizeof s->info;
	tess_session_get_info(s->session, &s->info);
	st = first && s->options->session.offload ? announce_memory(s) : TESS_OK;
	if (!st)
		st = make_requests(s);
	if (!st)
		st = tess_session_generate(s->session, s->list, s->n, &how);
	tess_session_get_info(s->session, &s->info);
	if (!st && s->info.nreplicas > 1 && s->n && !s->options->json && !s->options->prompts.lines)
		st = print_texts_of_replicas(s);
	if (!st && s->info.nreplicas > 1 && s->n && s->options->digest)
		st = print_digests_of_replicas(s);
	if (!st)
		st = gather_stats(s, &stats);
	if (!st && first && s->options->stats)
		print_stats(s, stats);
	if (!st && first && s->nrows && s->results[0].finish != TESS_FINISH_FAILED)
		st = tess_logits_save(s->options->logits, s->rows, s->nrows, s->info.vocabulary);
	if (!st && s->options->values)
		st = write_module_values(s);
	free(stats);
	return st;
}

static void free_state(struct generate_state *s)
{
	for (int64_t i = 0; i < s->n; i++)
		free_text(&s->text[i]);
	free(s->index);
	free(s->requests);
	free(s->list);
	free(s->sampling);
	free(s->text);
	free(s->results);
	free(s->digests);
	free(s->rows);
	tess_session_close(s->session);
	tess_mesh_close(s->mesh);
}

tess_status generate_run_rank(struct tess_world *world, void *options)
{
	struct generate_state s = { .world = world, .options = options, .start = tess_now() };
	tess_status st;

	catch_interrupt(&s);
	st = tess_mesh_open(world, s.options->session.mesh ? s.options->session.mesh : "tp",
	                    &s.mesh);
	if (!st)
		st = generate_on_rank(&s);
	if (st)
		tess_world_fail(world, st, tess_error());
	free_state(&s);
	return st;
}

/* generate.c - sequences, steps and generation of a session, over the runner of nn. */
#include "api/request_text.h"
#include "api/requests.h"
#include "api/session.h"
#include "core/base/log.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/registry/plugin_call.h"
#include "core/world/mesh_shape.h"
#include "core/world/world.h"
#include "hf/tokenizer/tokenizer.h"
#include "nn/program/agree.h"

#include <stdlib.h>
#include <string.h>

/* ---- sequences ------------------------------------------------------------------------------- */

tess_status tess_sequence_open(struct tess_session *s, struct tess_sequence **out)
{
	struct tess_sequence **list, *q = NULL;
	int32_t replica;
	tess_status st = TESS_REQUIRE(s, out);

	if (st)
		return st;
	replica = (int32_t)(s->nsequences % s->nreplicas);
	list = realloc(s->sequences, (size_t)(s->nsequences + 1) * sizeof *list);
	if (list)
		s->sequences = list;
	else
		st = tess_fail(TESS_ENOMEM, "out of memory");
	if (!st)
		st = tess_sequence_new(s->runner, replica == s->replica, &q);
	st = tess_group_agree_status(s->all, st, "sequence");
	if (st) {
		tess_sequence_free(q);
		return st;
	}
	q->owner = s;
	q->number = s->nsequences;
	q->replica = replica;
	s->sequences[s->nsequences++] = q;
	*out = q;
	return TESS_OK;
}

void tess_sequence_close(struct tess_sequence *q)
{
	struct tess_session *s;

	if (!q)
		return;
	s = q->owner;
	if (tess_session_refuse_close(s))
		return;
	s->sequences[q->number] = NULL;
	tess_sequence_free(q);
}

const int32_t *tess_sequence_ids(const struct tess_sequence *q, int64_t *n)
{
	if (TESS_REQUIRE(q, n))
		return NULL;
	*n = q->nids;
	return q->ids;
}

static struct tess_sequence *find_sequence(struct tess_session *s, const struct tess_sequence *q)
{
	for (int64_t i = 0; i < s->nsequences; i++)
		if (s->sequences[i] == q)
			return s->sequences[i];
	return NULL;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Checks input i completely, before anything is changed. */
static tess_status check_input(struct tess_session *s, const struct tess_input *inputs, int32_t i)
{
	const struct tess_input *in = &inputs[i];
	struct tess_sequence *q = find_sequence(s, in->sequence);
	int64_t most;

	if (!q)
		return tess_fail(TESS_EINVAL, "the sequence is not open in this session");
	for (int32_t k = 0; k < i; k++)
		if (inputs[k].sequence == q)
			return tess_fail(TESS_EINVAL, "inputs %d and %d are of one sequence",
			                 (int)k, (int)i);
	if (in->n < 0 || in->n > INT32_MAX || (in->n && !in->ids))
		return tess_fail(TESS_EINVAL, "input %d: %lld ids%s; give a list and its length",
		                 (int)i, (long long)in->n, in->ids ? "" : " without a list");
	most = tess_runner_positions(s->runner);
	if (most && q->nids + in->n > most) /* before an id is read */
		return tess_fail(TESS_EINVAL,
		                 "%lld positions are too many; at most %lld are possible",
		                 (long long)(q->nids + in->n), (long long)most);
	if (in->nselected < 0 || (in->nselected && in->nselected != 1 && in->nselected != in->n) ||
	    in->nselected > in->n + q->nids - q->ncached)
		return tess_fail(TESS_EINVAL, "logits of %lld of %lld ids; use 0, 1 or all",
		                 (long long)in->nselected, (long long)in->n);
	return tess_ids_check(in->ids, in->n, q->nids, tess_runner_vocabulary(s->runner));
}

/* Checks the arguments that are equal on all ranks, so that no rank waits for another. */
static tess_status check_session_step(struct tess_session *s, const struct tess_input *inputs,
                                      int32_t n, int32_t root, const float **logits)
{
	if (!s || !logits)
		return tess_fail(TESS_EINVAL, "a step without %s", s ? "`logits`" : "a session");
	if (n < 0 || (n && !inputs))
		return tess_fail(TESS_EINVAL, "%d inputs%s; give a list and its length", (int)n,
		                 inputs ? "" : " without a list");
	if (root < -1 || root >= tess_group_size(tess_runner_group(s->runner)))
		return tess_fail(TESS_EINVAL, "logits on rank %d of %d; -1: on all", (int)root,
		                 (int)tess_group_size(tess_runner_group(s->runner)));
	return TESS_OK;
}

static tess_status run_session_step(struct tess_session *s, const struct tess_input *inputs,
                                    int32_t n, int32_t root, const float **logits)
{
	struct tess_rows *rows;
	int32_t nrows = 0, nappended = 0;
	tess_status st = TESS_OK;

	rows = calloc((size_t)n + 1, sizeof *rows);
	if (!rows)
		st = tess_fail(TESS_ENOMEM, "out of memory");

	for (int32_t i = 0; i < n && !st; i++)
		st = check_input(s, inputs, i);
	while (nappended < n && !st) {
		const struct tess_input *in = &inputs[nappended];
		struct tess_sequence *q = in->sequence;
		int64_t pending;

		st = tess_sequence_append(q, in->ids, in->n);
		pending = q->nids - q->ncached; /* the last id of a generation among them */
		if (st)
			break;
		nappended++;
		if (q->slot >= 0 && pending)
			rows[nrows++] = tess_sequence_get_rows(q, pending, in->nselected);
	}
	*logits = NULL;
	if (!st && nrows)
		st = tess_runner_step(s->runner, rows, nrows, root, logits);
	if (s->nreplicas > 1)
		st = tess_group_agree_status(s->all, st, "step");
	for (int32_t i = 0; i < nappended; i++) {
		struct tess_sequence *q = inputs[i].sequence;

		if (st)
			q->nids -= inputs[i].n;
		else
			q->ncached = q->nids;
	}
	free(rows);
	return st;
}

tess_status tess_session_step(struct tess_session *s, const struct tess_input *inputs, int32_t n,
                              int32_t root, const float **logits)
{
	struct tess_thread_state callers;
	tess_status st = check_session_step(s, inputs, n, root, logits);

	if (st)
		return st;
	tess_thread_state_begin(&callers);
	st = run_session_step(s, inputs, n, root, logits);
	tess_thread_state_restore(&callers);
	return st;
}

tess_status tess_logits_save(const char *path, const float *logits, int64_t n, int64_t vocabulary)
{
	int64_t shape[2] = { n, vocabulary };
	int64_t bytes;
	struct tess_slice slice = { .name = "logits",
		                    .dtype = TESS_F32,
		                    .ndim = 2,
		                    .shape = shape,
		                    .data = logits,
		                    .bytes = (uint64_t)n * (uint64_t)vocabulary * sizeof *logits };

	if (!path || (n && !logits) || n < 0 || vocabulary < 1 ||
	    __builtin_mul_overflow(n, vocabulary, &bytes) ||
	    __builtin_mul_overflow(bytes, (int64_t)sizeof *logits, &bytes))
		return tess_fail(TESS_EINVAL, "%s: %lld rows of %lld logits%s cannot be written",
		                 path ? path : "no path", (long long)n, (long long)vocabulary,
		                 logits ? "" : " at NULL");
	return tess_safetensors_write(path, 1, &slice);
}

tess_status tess_logits_check_writable(const char *path)
{
	tess_status st = TESS_REQUIRE(path);

	return st ? st : tess_safetensors_check_writable(path);
}

/* ---- generation ------------------------------------------------------------------------------ */

struct text { /* a request of this replica, on its rank 0 */
	int64_t request; /* its index in the caller's list */
	struct tess_request_text text;
};

struct session_generation {
	struct tess_session *s;
	struct tess_generation how;
	struct tess_shared_request *shared; /* [n] */
	int64_t n, nmine;
	struct text *text; /* [nmine] */
	struct tess_generate_request *mine;
	struct tess_generate_result *results;
};

/* Checks the answer of a callback, and whether it closed something that is running. */
static int check_callback_answer(const struct session_generation *g, const char *name, int answer)
{
	tess_status failed = tess_world_check(tess_mesh_world(g->s->mesh));

	if (failed) /* by an action of the callback */
		return failed;
	if (g->s->closed_inside)
		return tess_fail(TESS_EINVAL,
		                 "%s: a sequence or session was closed inside a callback; close it "
		                 "after tess_session_generate",
		                 name);
	if (answer > TESS_END_ALL || answer < TESS_EBUG)
		return tess_fail(TESS_EINVAL,
		                 "%s returned %d, which is no answer; return TESS_GO_ON, "
		                 "TESS_END_ONE, TESS_END_ALL or what tess_fail returns",
		                 name, answer);
	if (answer < 0 && !*tess_error())
		tess_fail(answer, "%s returned %d without a sentence; fail through tess_fail", name,
		          answer);
	return answer;
}

#define CALL_BACK(g, function, ...) \
	(tess_error_clear(), check_callback_answer((g), #function, \
	                                           TESS_CALLBACK_VALUE_QUICK((g)->how.function( \
							   (g)->how.self, __VA_ARGS__))))

/* Opens the text of a request, which continues its sequence. */
static tess_status open_request_text(const struct session_generation *g, struct text *t)
{
	const struct tess_shared_request *r = &g->shared[t->request];
	const struct tess_sequence *q = r->sequence < 0 ? NULL : g->s->sequences[r->sequence];

	return tess_request_text_open(g->s->tokenizer, r, q ? q->ids : r->ids,
	                              q ? q->nids : r->nids, &t->text);
}

static int push_token(void *self, int64_t i, int32_t id, const float *logits)
{
	struct session_generation *g = self;
	struct text *t = &g->text[i];
	const char *bytes = NULL;
	size_t n = 0;
	bool found = false;
	int answer = TESS_GO_ON;
	tess_status st = TESS_OK;

	if (g->s->tokenizer && !t->text.decoder)
		st = open_request_text(g, t);
	if (!st && t->text.decoder)
		st = tess_request_text_push(&t->text, id, &bytes, &n, &found);
	if (!st && g->how.on_token)
		answer = CALL_BACK(g, on_token, t->request, id, logits, bytes, n);
	return st ? st : found && answer == TESS_GO_ON ? TESS_END_AT_TEXT : answer;
}

static int push_logits(void *self, int64_t i, const float *logits, int64_t n)
{
	struct session_generation *g = self;

	return g->how.on_logits ? CALL_BACK(g, on_logits, g->text[i].request, logits, n)
	                        : TESS_GO_ON;
}

static int end_request_text(void *self, int64_t i, const struct tess_generate_result *r,
                            const char *sentence)
{
	struct session_generation *g = self;
	struct text *t = &g->text[i];
	const struct tess_shared_request *shared = &g->shared[t->request];
	const char *bytes = NULL;
	size_t n = 0;
	bool found = false;
	tess_status st =
		t->text.decoder ? tess_request_text_finish(&t->text, &bytes, &n, &found) : TESS_OK;
	struct tess_result result = { .size = sizeof result,
		                      .finish = r->finish,
		                      .status = shared->status ? shared->status : r->status,
		                      .sentence = shared->status ? shared->sentence : sentence,
		                      .prompt = shared->ids,
		                      .nprompt = shared->nids,
		                      .ntokens = r->ntokens,
		                      .prefill = r->prefill,
		                      .decode = r->decode };
	int answer = st;

	if (found && r->finish == TESS_FINISH_LENGTH) /* in the bytes that were held back */
		result.finish = TESS_FINISH_TEXT;
	if (!st && g->how.on_end)
		answer = CALL_BACK(g, on_end, t->request, &result, bytes, n);
	tess_request_text_close(&t->text);
	return answer;
}

static int end_step(void *self)
{
	struct session_generation *g = self;

	if (!g->how.on_step)
		return TESS_GO_ON;
	tess_error_clear();
	return check_callback_answer(g, "on_step",
	                             TESS_CALLBACK_VALUE_QUICK(g->how.on_step(g->how.self)));
}

static int64_t find_shared_sequence(void *self, const struct tess_sequence *q, int32_t *replica,
                                    int64_t *nids)
{
	const struct tess_sequence *open = find_sequence(self, q);

	if (!open)
		return -1;
	*replica = open->replica;
	*nids = open->nids;
	return open->number;
}

static bool have_all_ids(const struct tess_request *const *requests, int64_t n)
{
	bool all = true;

	for (int64_t i = 0; i < n && all; i++)
		all = requests[i] && TESS_HAS(requests[i], tess_request, ids) && requests[i]->ids;
	return all;
}

/* Completes the requests on rank 0, and opens the tokenizer on ranks that print text. */
static tess_status prepare_requests(struct session_generation *g, struct tess_arena *arena,
                                    const struct tess_request *const *requests)
{
	struct tess_session *s = g->s;
	const struct tess_tokenizer *tokenizer = NULL;
	struct tess_request_source source = {
		.generation = tess_checkpoint_generation(s->model.checkpoint),
		.positions = tess_runner_positions(s->runner),
		.vocabulary = tess_runner_vocabulary(s->runner),
		.nreplicas = s->nreplicas,
		.find_sequence = find_shared_sequence,
		.self = s,
	};
	tess_status st = TESS_OK;

	if (tess_group_rank(s->all) == 0 && (g->n < 0 || g->n > INT32_MAX || (g->n && !requests)))
		return tess_fail(TESS_EINVAL, "%lld requests%s; give a list and its length",
		                 (long long)g->n, requests ? "" : " without a list");
	if (tess_group_rank(tess_runner_group(s->runner)) == 0)
		st = tess_session_get_tokenizer(s, &tokenizer);
	if (st && st != TESS_ENOENT && (tess_group_rank(s->all) || have_all_ids(requests, g->n))) {
		tess_log(TESS_WARN, "hf", "%s; texts are ids, as without a tokenizer",
		         tess_error());
		st = TESS_OK;
	}
	if (st == TESS_ENOENT)
		st = TESS_OK; /* requests of ids need no tokenizer */
	source.tokenizer = tokenizer;
	if (!st && tess_group_rank(s->all) == 0)
		st = tess_requests_prepare(arena, &source, requests, g->n, &g->shared);
	return st;
}

/* Selects this replica's requests, in the form of nn. */
static tess_status select_requests(struct session_generation *g, struct tess_arena *arena)
{
	struct tess_session *s = g->s;

	g->text = TESS_NEW(arena, struct text, g->n + 1);
	g->mine = TESS_NEW(arena, struct tess_generate_request, g->n + 1);
	g->results = TESS_NEW(arena, struct tess_generate_result, g->n + 1);
	if (!g->text || !g->mine || !g->results)
		return TESS_ENOMEM;
	for (int64_t i = 0; i < g->n; i++) {
		const struct tess_shared_request *r = &g->shared[i];

		if (r->replica != s->replica)
			continue;
		g->text[g->nmine].request = i;
		g->mine[g->nmine++] = (struct tess_generate_request){
			.sequence = r->sequence < 0 ? NULL : s->sequences[r->sequence],
			.prompt = r->ids,
			.nprompt = r->nids,
			.stop = r->stop,
			.nstop = r->nstop,
			.max_tokens = r->max_tokens,
			.all = r->flags & TESS_ALL_LOGITS,
			.logits = r->flags & TESS_TOKEN_LOGITS,
			.status = r->status,
			.sampling = r->sampling,
		};
	}
	return TESS_OK;
}

/* Sends the new ids of a caller's sequences to the ranks of other replicas. */
static tess_status share_sequences(struct session_generation *g)
{
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < g->n && !st; i++) {
		struct tess_sequence *q;
		int64_t n[2];

		if (g->shared[i].sequence < 0)
			continue;
		q = g->s->sequences[g->shared[i].sequence];
		n[0] = q->nids;
		n[1] = q->ncached;
		st = tess_broadcast(g->s->dp_group, n, 2, TESS_I64, q->replica, "sequence:size");
		if (!st)
			st = tess_sequence_resize(q, n[0]);
		st = tess_group_agree_status(g->s->dp_group, st, "sequence");
		if (!st && n[0])
			st = tess_broadcast(g->s->dp_group, q->ids, (uint64_t)n[0], TESS_I32,
			                    q->replica, "sequence:ids");
		q->ncached = n[1];
	}
	return st;
}

static tess_status run_requests(struct session_generation *g)
{
	struct tess_generate_options options = {
		.chunk = g->how.chunk,
		.batch = g->how.batch,
		.callbacks = { g, push_token, push_logits, end_request_text, end_step },
	};
	tess_status st;

	g->s->ngenerating++;
	tess_mesh_world(g->s->mesh)->ngenerating++;
	st = tess_generate_run(g->s->runner, g->mine, g->nmine, &options, g->results);
	tess_mesh_world(g->s->mesh)->ngenerating--;
	if (!--g->s->ngenerating)
		g->s->closed_inside = false;

	for (int64_t i = 0; i < g->nmine; i++) /* after a failure */
		tess_request_text_close(&g->text[i].text);
	if (g->s->nreplicas == 1)
		return st;
	st = tess_group_agree_status(g->s->all, st, "generate");
	return st ? st : share_sequences(g);
}

tess_status tess_session_generate(struct tess_session *s,
                                  const struct tess_request *const *requests, int64_t n,
                                  const struct tess_generation *how)
{
	struct session_generation g = { .s = s, .n = n };
	struct tess_arena arena = { 0 };
	tess_status st;

	if (TESS_REQUIRE(s))
		return TESS_EINVAL;
	st = TESS_REQUIRE(how);
	if (!st)
		st = tess_sized_copy("tess_generation", how, &g.how, sizeof g.how);
	if (!st && (g.how.batch < 0 || g.how.chunk < 0))
		st = tess_fail(TESS_EINVAL, "batch %d, chunk %lld: use 0 or more", (int)g.how.batch,
		               (long long)g.how.chunk);
	if (!st)
		st = prepare_requests(&g, &arena, requests);
	st = tess_group_agree_status(s->all, st, "requests");
	if (!st)
		st = tess_requests_share(&arena, s->all, &g.n, &g.shared);
	if (!st)
		st = tess_group_agree_status(s->all, select_requests(&g, &arena), "requests");
	if (!st)
		st = run_requests(&g);
	tess_arena_free(&arena);
	return st;
}

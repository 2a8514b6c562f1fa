#include "api/requests.h"

#include "core/base/log.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/tokenizer/text.h"
#include "nn/program/agree.h"

#include <string.h>

enum { STOP_TEXTS_MAX = 256, STOP_BYTES_MAX = 1 << 16 };
enum { MAX_TOKENS = 256 }; /* default without a value of the caller or the checkpoint */
static const int64_t TOKENS_LIMIT = (int64_t)1 << 40; /* sums of limits do not overflow */

tess_status tess_prompt_check_length(int64_t n, int64_t positions)
{
	if (!positions || n <= positions)
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "the prompt has %lld ids, and a text has at most %lld positions, as the "
	                 "checkpoint was made or the session opened",
	                 (long long)n, (long long)positions);
}

/* ---- preparing, on rank 0 -------------------------------------------------------------------- */

static tess_status encode_request(struct tess_arena *arena,
                                  const struct tess_request_source *source,
                                  const struct tess_request *r, int64_t before,
                                  struct tess_shared_request *out)
{
	int32_t *made = NULL, *ids;
	size_t n = (size_t)r->nids;
	tess_status st = TESS_OK;

	if (r->nids < 0 || (r->nids && !r->ids))
		return tess_fail(TESS_EINVAL, "nids %lld%s; give a list and its length",
		                 (long long)r->nids, r->ids ? "" : " without ids");
	if ((r->ntext && !r->text) || r->ntext > INT32_MAX)
		return tess_fail(TESS_EINVAL, "ntext %llu%s; a text has at most %d bytes",
		                 (unsigned long long)r->ntext, r->text ? "" : " without text",
		                 INT32_MAX);
	if (tess_prompt_check_length(r->nids, source->positions ? source->positions : INT32_MAX))
		return TESS_EINVAL; /* before an id is read */
	if (r->ids && r->text)
		return tess_fail(TESS_EINVAL, "a prompt is a text or ids, not both");
	if (!r->ids && !source->tokenizer)
		return tess_fail(TESS_ENOENT, "the checkpoint has no tokenizer; give ids");
	if (!r->ids)
		st = tess_tokenizer_encode(source->tokenizer, r->text ? r->text : "", r->ntext,
		                           !before && !r->chat, &made, &n);
	if (st)
		return tess_fail_in(st, "the prompt");
	ids = TESS_NEW(arena, int32_t, n + 1);
	if (ids && n)
		memcpy(ids, made ? made : r->ids, n * sizeof *ids);
	free(made);
	out->ids = ids;
	out->nids = (int64_t)n;
	return ids ? TESS_OK : TESS_ENOMEM;
}

/* Returns the id of the token that ends a turn of the chat template, or -1. */
static int32_t find_turn_end(const struct tess_request_source *source, const struct tess_request *r)
{
	const char *token = r->chat ? tess_chat_get_end(r->chat) : "";

	return *token && source->tokenizer ? tess_tokenizer_token_to_id(source->tokenizer, token)
	                                   : -1;
}

static tess_status copy_stop_ids(struct tess_arena *arena, const struct tess_request_source *source,
                                 const struct tess_request *r, struct tess_shared_request *out)
{
	int64_t n = r->stop ? r->nstop : source->generation->neos;
	int32_t *stop, end = find_turn_end(source, r);

	if (r->nstop < 0 || (r->nstop && !r->stop) || r->nstop > source->vocabulary)
		return tess_fail(TESS_EINVAL,
		                 "nstop %lld%s; give a list and its length, at most the "
		                 "vocabulary of %lld",
		                 (long long)r->nstop, r->stop ? "" : " without stop",
		                 (long long)source->vocabulary);
	stop = TESS_NEW(arena, int32_t, n + 1);

	for (int64_t i = 0; i < n && stop; i++)
		stop[i] = r->stop ? r->stop[i] : (int32_t)source->generation->eos[i];
	if (stop && !r->stop && end >= 0)
		stop[n++] = end;
	out->stop = stop;
	out->nstop = n;
	return stop ? TESS_OK : TESS_ENOMEM;
}

static tess_status check_stop_text(const struct tess_request *r, int64_t i)
{
	const char *text = r->stop_texts[i];
	size_t n = text ? strnlen(text, STOP_BYTES_MAX + 1) : 0;

	if (!n)
		return tess_fail(TESS_EINVAL, "stop text %lld is %s; give 1 byte or more",
		                 (long long)i, text ? "empty" : "NULL");
	if (n > STOP_BYTES_MAX)
		return tess_fail(TESS_EINVAL, "stop text %lld has more than %d bytes, the limit",
		                 (long long)i, STOP_BYTES_MAX);
	if (tess_utf8_count_valid(text, n) < n)
		return tess_fail(TESS_EINVAL, "stop text %lld is not UTF-8 at its byte %zu",
		                 (long long)i, tess_utf8_count_valid(text, n));
	return TESS_OK;
}

static tess_status copy_stop_texts(struct tess_arena *arena,
                                   const struct tess_request_source *source,
                                   const struct tess_request *r, struct tess_shared_request *out)
{
	tess_status st = TESS_OK;
	char *to;

	if (r->nstop_texts < 0 || (r->nstop_texts && !r->stop_texts) ||
	    r->nstop_texts > STOP_TEXTS_MAX)
		return tess_fail(TESS_EINVAL,
		                 "nstop_texts %lld%s; give a list and its length, at most %d",
		                 (long long)r->nstop_texts,
		                 r->stop_texts ? "" : " without stop_texts", STOP_TEXTS_MAX);
	if (r->nstop_texts && !source->tokenizer)
		return tess_fail(TESS_ENOENT,
		                 "the checkpoint has no tokenizer; give ids to stop at, not texts");
	for (int64_t i = 0; i < r->nstop_texts && !st; i++) {
		st = check_stop_text(r, i);
		out->stop_bytes += st ? 0 : (int64_t)strlen(r->stop_texts[i]) + 1;
	}
	if (st)
		return st;
	to = TESS_NEW(arena, char, out->stop_bytes + 1);
	if (!to)
		return TESS_ENOMEM;
	out->stop_texts = to;
	out->nstop_texts = r->nstop_texts;
	for (int64_t i = 0; i < r->nstop_texts; i++)
		to = stpcpy(to, r->stop_texts[i]) + 1;
	return TESS_OK;
}

/* Chooses the checkpoint's token limit after `n` ids; at least 1, as in transformers. */
static int64_t choose_token_limit(const struct tess_generation_config *g, int64_t n)
{
	if (g->max_new_tokens || !g->max_length)
		return g->max_new_tokens ? g->max_new_tokens : MAX_TOKENS;
	if (n >= g->max_length)
		tess_log(TESS_WARN, "generate",
		         "max_length of generation_config.json is %lld, and the prompt has %lld "
		         "tokens: one token follows it; give --max-tokens",
		         (long long)g->max_length, (long long)n);
	return n < g->max_length ? g->max_length - n : 1;
}

/* Limits new tokens to the positions of a sequence; the last id needs no position. */
static tess_status limit_tokens(const struct tess_request_source *source,
                                const struct tess_request *r, int64_t before,
                                struct tess_shared_request *out)
{
	int64_t n = before + out->nids;
	int64_t want =
		r->max_tokens > 0 ? r->max_tokens : choose_token_limit(source->generation, n);

	want = want < TOKENS_LIMIT ? want : TOKENS_LIMIT;
	out->max_tokens = r->max_tokens < 0 ? 0 : want;
	if (!source->positions || n + out->max_tokens <= source->positions + 1)
		return TESS_OK;
	if (tess_prompt_check_length(n, source->positions))
		return TESS_EINVAL;
	out->max_tokens = source->positions - n + 1;
	if (r->max_tokens > 0)
		tess_log(TESS_WARN, "generate",
		         "a text has at most %lld positions: at most %lld tokens after this prompt",
		         (long long)source->positions, (long long)out->max_tokens);
	return TESS_OK;
}

static tess_status prepare_request(struct tess_arena *arena,
                                   const struct tess_request_source *source,
                                   const struct tess_request *r, struct tess_shared_request *out)
{
	int64_t before = 0;
	tess_status st;

	out->sampling = r->sampling ? *r->sampling
	                            : tess_generation_config_get_sampling(source->generation);
	out->flags = r->flags;
	if (r->sequence) {
		out->sequence =
			source->find_sequence(source->self, r->sequence, &out->replica, &before);
		if (out->sequence < 0)
			return tess_fail(TESS_EINVAL, "the sequence is not open in this session");
	}
	st = tess_sampling_check(&out->sampling);
	if (!st)
		st = encode_request(arena, source, r, before, out);
	if (!st)
		st = tess_ids_check(out->ids, out->nids, before, source->vocabulary);
	if (!st)
		st = copy_stop_ids(arena, source, r, out);
	if (!st)
		st = copy_stop_texts(arena, source, r, out);
	return st ? st : limit_tokens(source, r, before, out);
}

static tess_status check_sequence(const struct tess_shared_request *list, int64_t i)
{
	for (int64_t k = 0; k < i && list[i].sequence >= 0; k++)
		if (!list[k].status && list[k].sequence == list[i].sequence)
			return tess_fail(TESS_EINVAL,
			                 "requests %lld and %lld go on with one sequence; give the "
			                 "second after the first has ended",
			                 (long long)k, (long long)i);
	return TESS_OK;
}

/* Assigns a request to the replica with the fewest ids so far. */
static void deal_request(int64_t *load, int32_t nreplicas, struct tess_shared_request *r)
{
	int32_t least = 0;

	for (int32_t k = 1; k < nreplicas; k++)
		if (load[k] < load[least])
			least = k;
	if (r->replica < 0)
		r->replica = least;
	load[r->replica] += r->nids + r->max_tokens;
}

tess_status tess_requests_prepare(struct tess_arena *arena,
                                  const struct tess_request_source *source,
                                  const struct tess_request *const *requests, int64_t n,
                                  struct tess_shared_request **out)
{
	struct tess_shared_request *list = TESS_NEW(arena, struct tess_shared_request, n + 1);
	int64_t *load = TESS_NEW(arena, int64_t, source->nreplicas);

	if (!list || !load)
		return TESS_ENOMEM;
	for (int64_t i = 0; i < n; i++) {
		struct tess_request r = { 0 }; /* fields that an older caller lacks are 0 */

		list[i].sequence = list[i].replica = -1;
		list[i].status =
			requests[i] ? tess_sized_copy("tess_request", requests[i], &r, sizeof r)
				    : tess_fail(TESS_EINVAL, "request %lld is NULL", (long long)i);
		if (!list[i].status)
			list[i].status = prepare_request(arena, source, &r, &list[i]);
		if (!list[i].status)
			list[i].status = check_sequence(list, i);
		if (list[i].status) {
			list[i].nids = list[i].nstop = list[i].max_tokens = 0;
			list[i].nstop_texts = list[i].stop_bytes = 0;
			list[i].sentence = tess_arena_copy(arena, tess_error(), SIZE_MAX);
		}
		if (list[i].status && !list[i].sentence)
			return TESS_ENOMEM;
		deal_request(load, source->nreplicas, &list[i]);
	}
	*out = list;
	return TESS_OK;
}

/* ---- sharing --------------------------------------------------------------------------------- */

/* Writes requests; ids and stop ids of each; stop texts and message of each. */
static char *write_requests(struct tess_arena *arena, const struct tess_shared_request *list,
                            int64_t n, uint64_t *bytes)
{
	char *all, *at;

	*bytes = (uint64_t)n * sizeof *list;
	for (int64_t i = 0; i < n; i++)
		*bytes += (uint64_t)(list[i].nids + list[i].nstop) * 4 +
		          (uint64_t)list[i].stop_bytes +
		          (list[i].sentence ? strlen(list[i].sentence) + 1 : 0);
	all = TESS_NEW(arena, char, *bytes + 1);
	if (!all)
		return NULL;
	memcpy(all, list, (size_t)n * sizeof *list);
	at = all + (size_t)n * sizeof *list;
	for (int64_t i = 0; i < n; i++) {
		const struct tess_shared_request *r = &list[i];

		if (r->nids)
			memcpy(at, r->ids, (size_t)r->nids * 4);
		at += r->nids * 4;
		if (r->nstop)
			memcpy(at, r->stop, (size_t)r->nstop * 4);
		at += r->nstop * 4;
	}
	for (int64_t i = 0; i < n; i++) {
		if (list[i].stop_bytes)
			memcpy(at, list[i].stop_texts, (size_t)list[i].stop_bytes);
		at += list[i].stop_bytes;
		if (list[i].sentence)
			at = stpcpy(at, list[i].sentence) + 1;
	}
	return all;
}

/* Sets the pointers of requests that write_requests has written. */
static struct tess_shared_request *read_requests(char *all, int64_t n)
{
	struct tess_shared_request *list = (struct tess_shared_request *)(void *)all;
	int32_t *ids = (int32_t *)(void *)(list + n);
	const char *text;

	for (int64_t i = 0; i < n; i++) {
		list[i].ids = ids;
		list[i].stop = ids + list[i].nids;
		ids += list[i].nids + list[i].nstop;
	}
	text = (const char *)ids;
	for (int64_t i = 0; i < n; i++) {
		list[i].stop_texts = text;
		text += list[i].stop_bytes;
		if (!list[i].sentence)
			continue;
		list[i].sentence = text;
		text += strlen(text) + 1;
	}
	return list;
}

tess_status tess_requests_share(struct tess_arena *arena, struct tess_group *g, int64_t *n,
                                struct tess_shared_request **list)
{
	int64_t head[2] = { *n, 0 };
	char *all = NULL;
	tess_status st;

	if (tess_group_rank(g) == 0) {
		uint64_t bytes;

		all = write_requests(arena, *list, *n, &bytes);
		head[1] = (int64_t)bytes;
	}
	st = tess_broadcast(g, head, 2, TESS_I64, 0, "requests:size");
	if (st)
		return st;
	if (tess_group_rank(g) != 0)
		all = TESS_NEW(arena, char, head[1] + 1);
	st = tess_group_agree_status(g, all ? TESS_OK : TESS_ENOMEM, "requests");
	if (!st)
		st = tess_broadcast(g, all, (uint64_t)head[1], TESS_I8, 0, "requests");
	if (st)
		return st;
	*n = head[0];
	*list = read_requests(all, *n);
	return TESS_OK;
}

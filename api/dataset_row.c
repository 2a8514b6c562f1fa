/* dataset_row.c - encodes a row of a data set, and decides on which of its ids loss counts. */
#include "api/dataset.h"
#include "core/base/json.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- ids ------------------------------------------------------------------------------------- */

static tess_status open_row_tokenizer(const struct tess_dataset_options *o,
                                      struct tess_data_encoder *e)
{
	if (e->tokenizer)
		return TESS_OK;
	return o->tokenizer ? tess_tokenizer_open(o->tokenizer, &e->tokenizer)
	                    : tess_fail(TESS_EINVAL, "texts need a tokenizer");
}

static tess_status check_row_ids(const struct tess_dataset_options *o,
                                 const struct tess_data_row *r)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->ids[i] >= o->vocabulary)
			return tess_fail(TESS_EINVAL,
			                 "the tokenizer gives id %d, and the model has ids below "
			                 "%lld",
			                 (int)r->ids[i], (long long)o->vocabulary);
	return TESS_OK;
}

/* Appends the id that ends a text, unless the text ends with it. */
static tess_status append_end(const struct tess_dataset_options *o,
                              const struct tess_data_encoder *e, struct tess_data_row *r)
{
	int32_t end = tess_tokenizer_eos(e->tokenizer), *more;

	if (end < 0 || end >= o->vocabulary || (r->n && r->ids[r->n - 1] == end))
		return TESS_OK;
	more = realloc(r->ids, (r->n + 1) * sizeof *more);
	if (!more)
		return tess_fail(TESS_ENOMEM, "out of memory");
	r->ids = more;
	more[r->n++] = end;
	return TESS_OK;
}

/* Encodes a text, on all of whose ids loss counts. */
static tess_status encode_plain_text(const struct tess_dataset_options *o,
                                     struct tess_data_encoder *e, const char *text, size_t len,
                                     struct tess_data_row *r)
{
	tess_status st = open_row_tokenizer(o, e);

	r->kind = TESS_ROW_TEXT;
	if (!st)
		st = tess_tokenizer_encode(e->tokenizer, text, len, true, &r->ids, &r->n);
	return st ? st : append_end(o, e, r);
}

/* Counts loss on ids [from, to) in addition. */
static tess_status mark_ids(struct tess_data_row *r, size_t from, size_t to)
{
	if (!r->counts)
		r->counts = calloc(r->n + 1, 1);
	if (!r->counts)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (from < to)
		memset(r->counts + from, 1, to - from);
	return TESS_OK;
}

/* ---- prompt and completion ------------------------------------------------------------------- */

/*
 * Encodes a prompt with its completion to *r, and counts loss from where the ids differ from those
 * of the prompt alone, as `trl` does: an id may contain bytes of both. add_special: with the ids
 * around a text, and the id that ends it.
 */
static tess_status encode_completion(const struct tess_dataset_options *o,
                                     struct tess_data_encoder *e, const char *prompt,
                                     size_t nprompt, const char *all, size_t nall, bool add_special,
                                     struct tess_data_row *r)
{
	int32_t *ids = NULL;
	size_t n = 0, same = 0;
	tess_status st = open_row_tokenizer(o, e);

	if (!st)
		st = tess_tokenizer_encode(e->tokenizer, prompt, nprompt, add_special, &ids, &n);
	if (!st)
		st = tess_tokenizer_encode(e->tokenizer, all, nall, add_special, &r->ids, &r->n);
	while (!st && same < n && same < r->n && ids[same] == r->ids[same])
		same++;
	free(ids);
	if (!st && add_special)
		st = append_end(o, e, r);
	return st || o->loss == TESS_LOSS_ALL ? st : mark_ids(r, same, r->n);
}

static tess_status encode_text_completion(const struct tess_dataset_options *o,
                                          struct tess_data_encoder *e, const json_t *prompt,
                                          const json_t *completion, struct tess_data_row *r)
{
	size_t n = json_string_length(prompt), more = json_string_length(completion);
	char *all = malloc(n + more + 1);
	tess_status st;

	if (!all)
		return tess_fail(TESS_ENOMEM, "out of memory");
	memcpy(all, json_string_value(prompt), n);
	memcpy(all + n, json_string_value(completion), more);
	st = encode_completion(o, e, all, n, all, n + more, true, r);
	free(all);
	return st;
}

/* ---- conversations --------------------------------------------------------------------------- */

static tess_status open_chat(const struct tess_dataset_options *o, struct tess_data_encoder *e)
{
	if (e->chat)
		return TESS_OK;
	if (!o->tokenizer)
		return tess_fail(TESS_EINVAL, "conversations need a checkpoint with a template");
	return tess_chat_open(o->tokenizer, o->chat_template, &e->chat);
}

/* Renders a list of messages; another one, if not NULL, follows it. */
static tess_status render_messages(struct tess_data_encoder *e, const json_t *messages,
                                   const json_t *more, int32_t flags, struct tess_chat_text *out)
{
	const struct tess_chat_options options = { .size = sizeof options, .flags = flags };
	json_t *list = json_copy((json_t *)messages);
	bool complete = list && (!more || !json_array_extend(list, (json_t *)more));
	char *row = complete ? json_dumps(list, JSON_COMPACT) : NULL;
	tess_status st;

	json_decref(list);
	st = row ? tess_chat_render_row(e->chat, row, strlen(row), &options, out)
	         : tess_fail(TESS_ENOMEM, "out of memory");
	free(row);
	return st;
}

static tess_status encode_chat_completion(const struct tess_dataset_options *o,
                                          struct tess_data_encoder *e, const json_t *prompt,
                                          const json_t *completion, struct tess_data_row *r)
{
	struct tess_chat_text begin = { 0 }, all = { 0 };
	tess_status st = open_chat(o, e);

	if (!st)
		st = render_messages(e, prompt, NULL, TESS_CHAT_PROMPT, &begin);
	if (!st)
		st = render_messages(e, prompt, completion, 0, &all);
	if (!st)
		st = encode_completion(o, e, begin.text, begin.ntext, all.text, all.ntext, false,
		                       r);
	tess_chat_text_free(&begin);
	tess_chat_text_free(&all);
	return st;
}

/* Counts loss on each id that has a byte of an answer. */
static tess_status count_answers(const struct tess_chat_text *text,
                                 const struct tess_token_border *border, struct tess_data_row *r)
{
	tess_status st = mark_ids(r, 0, 0);

	for (int64_t i = 0; i < text->nanswers && !st; i++)
		if (text->answers[i].begin < text->answers[i].end)
			st = mark_ids(r, border[2 * i].ends_after, border[2 * i + 1].begins_at);
	return st;
}

static tess_status encode_answers(const struct tess_dataset_options *o, struct tess_data_encoder *e,
                                  const struct tess_chat_text *text, struct tess_data_row *r)
{
	int64_t n = o->loss == TESS_LOSS_ALL ? 0 : 2 * text->nanswers;
	struct tess_token_border *border = calloc((size_t)n + 1, sizeof *border);
	tess_status st =
		border ? open_row_tokenizer(o, e) : tess_fail(TESS_ENOMEM, "out of memory");

	for (int64_t i = 0; i < n && !st; i++)
		border[i].at = i % 2 ? text->answers[i / 2].end : text->answers[i / 2].begin;
	if (!st)
		st = tess_tokenizer_encode_borders(e->tokenizer, text->text, text->ntext, border,
		                                   (size_t)n, &r->ids, &r->n);
	if (!st && o->loss != TESS_LOSS_ALL)
		st = count_answers(text, border, r);
	free(border);
	return st;
}

static tess_status encode_chat(const struct tess_dataset_options *o, struct tess_data_encoder *e,
                               const char *line, size_t len, struct tess_data_row *r)
{
	const struct tess_chat_options options = {
		.size = sizeof options, .flags = o->loss == TESS_LOSS_ALL ? 0 : TESS_CHAT_TRAINING
	};
	struct tess_chat_text text = { 0 };
	tess_status st = open_chat(o, e);

	if (!st)
		st = tess_chat_render_row(e->chat, line, len, &options, &text);
	if (!st)
		st = encode_answers(o, e, &text, r);
	tess_chat_text_free(&text);
	return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Encodes a row by the keys that it has. */
static tess_status encode_by_keys(const struct tess_dataset_options *o, struct tess_data_encoder *e,
                                  const json_t *row, const char *line, size_t len,
                                  struct tess_data_row *r)
{
	const json_t *text = json_object_get(row, "text"), *prompt = json_object_get(row, "prompt"),
		     *completion = json_object_get(row, "completion");

	if (json_is_array(row) || json_is_array(json_object_get(row, "messages"))) {
		r->kind = TESS_ROW_CHAT;
		return encode_chat(o, e, line, len, r);
	}
	if (json_is_string(prompt) && json_is_string(completion)) {
		r->kind = TESS_ROW_COMPLETION;
		return encode_text_completion(o, e, prompt, completion, r);
	}
	if (json_is_array(prompt) && json_is_array(completion)) {
		r->kind = TESS_ROW_COMPLETION;
		return encode_chat_completion(o, e, prompt, completion, r);
	}
	if (json_is_string(text))
		return encode_plain_text(o, e, json_string_value(text), json_string_length(text),
		                         r);
	return tess_fail(TESS_EINVAL,
	                 "an object with a \"text\", with \"prompt\" and \"completion\", or with "
	                 "\"messages\" is needed");
}

tess_status tess_data_row_encode_json(const struct tess_dataset_options *o,
                                      struct tess_data_encoder *e, const char *name,
                                      const char *line, size_t len, struct tess_data_row *out)
{
	json_t *row = NULL;
	tess_status st = tess_json_parse_line(name, line, len, &row);

	*out = (struct tess_data_row){ 0 };
	if (st)
		return st;
	st = encode_by_keys(o, e, row, line, len, out);
	json_decref(row);
	if (!st)
		st = check_row_ids(o, out);
	return st ? tess_fail_in(st, "%s", name) : TESS_OK;
}

tess_status tess_data_row_encode_text(const struct tess_dataset_options *o,
                                      struct tess_data_encoder *e, const char *name,
                                      const char *text, size_t len, struct tess_data_row *out)
{
	tess_status st;

	*out = (struct tess_data_row){ 0 };
	st = encode_plain_text(o, e, text, len, out);
	if (!st)
		st = check_row_ids(o, out);
	return st ? tess_fail_in(st, "%s", name) : TESS_OK;
}

void tess_data_row_free(struct tess_data_row *r)
{
	free(r->ids);
	free(r->counts);
	*r = (struct tess_data_row){ 0 };
}

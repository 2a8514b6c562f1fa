#include "hf/chat/row.h"

#include "core/base/json.h"
#include "core/base/status.h"

#include <stdlib.h>
#include <string.h>

/* Returns whether a value is other than null, false and empty. */
static bool has_value(const json_t *v)
{
	return v && !json_is_null(v) && !json_is_false(v) &&
	       (json_is_string(v)  ? json_string_length(v) > 0
	        : json_is_array(v) ? json_array_size(v) > 0
	                           : !json_is_object(v) || json_object_size(v) > 0);
}

/* Fails if the object has a value at one of `keys`, which end with NULL: it would be lost. */
static tess_status refuse_keys(const json_t *o, const char *const keys[])
{
	for (int i = 0; keys[i]; i++)
		if (has_value(json_object_get(o, keys[i])))
			return tess_fail(TESS_EINVAL, "\"%s\" is not rendered; remove it", keys[i]);
	return TESS_OK;
}

/* ---- content --------------------------------------------------------------------------------- */

static tess_status check_part(const json_t *part)
{
	const char *type = json_string_value(json_object_get(part, "type"));

	if (type && !strcmp(type, "text") && json_is_string(json_object_get(part, "text")))
		return TESS_OK;
	return tess_fail(TESS_EINVAL,
	                 "\"content\" has a part that is no text; parts are as {\"type\": "
	                 "\"text\", \"text\": \"Hello\"}");
}

/* Appends the texts of the parts to `joined`, whose address may change until all are read. */
static tess_status join_parts(const struct tess_chat_form *form, const json_t *parts,
                              struct tess_text *joined)
{
	const json_t *part;
	size_t i;

	json_array_foreach(parts, i, part) {
		const json_t *text = json_object_get(part, "text");
		struct tess_chat_view v = { json_string_value(text), json_string_length(text) };
		tess_status st = check_part(part);

		if (!st && (form->flags & TESS_CHAT_PARTS_STRIPPED))
			v = tess_chat_strip(v, 3);
		if (!st && v.n)
			st = tess_text_add(joined, v.s, v.n);
		if (st)
			return st;
	}
	return TESS_OK;
}

static tess_status read_parts(const struct tess_chat_form *form, const json_t *parts,
                              struct tess_chat_row *r, struct tess_chat_message *m)
{
	size_t begin = r->joined.len;

	if (!(form->flags & TESS_CHAT_PARTS))
		return tess_fail(TESS_EINVAL,
		                 "\"content\" is a list, and the template %s takes only text; join "
		                 "its parts",
		                 form->name);
	if (tess_chat_has_role(m, "system") && json_array_size(parts) != 1)
		return tess_fail(TESS_EINVAL,
		                 "\"content\" of a system message is text or one part; join its "
		                 "parts");
	if (tess_chat_has_role(m, "system")) { /* never stripped */
		const json_t *text = json_object_get(json_array_get(parts, 0), "text");

		m->content = json_string_value(text);
		m->ncontent = json_string_length(text);
		return check_part(json_array_get(parts, 0));
	}
	m->content = NULL; /* until all are joined */
	m->ncontent = begin;
	return join_parts(form, parts, &r->joined);
}

/* Points the messages that have several parts to their contents in r->joined. */
static void place_joined(struct tess_chat_row *r)
{
	size_t end = r->joined.len;

	for (int64_t i = r->n - 1; i >= 0; i--) {
		struct tess_chat_message *m = &r->message[i];
		size_t begin = m->ncontent;

		if (m->content)
			continue;
		m->content = r->joined.data ? r->joined.data + begin : "";
		m->ncontent = end - begin;
		end = begin;
	}
}

/* ---- messages -------------------------------------------------------------------------------- */

static tess_status read_message(const struct tess_chat_form *form, const json_t *o,
                                struct tess_chat_row *r)
{
	static const char *const lost[] = { "tool_calls",
		                            "function_call",
		                            "tool_call_id",
		                            "reasoning_content",
		                            "reasoning",
		                            "thinking",
		                            NULL };
	struct tess_chat_message *m = &r->message[r->n];
	const json_t *role = json_object_get(o, "role"), *content = json_object_get(o, "content");
	tess_status st = json_is_object(o) ? refuse_keys(o, lost) : TESS_OK;

	if (st)
		return st;
	if (!json_is_string(role) || !content)
		return tess_fail(TESS_EINVAL,
		                 "an object with \"role\" and \"content\" was expected, as "
		                 "{\"role\": \"user\", \"content\": \"Hello\"}");
	m->role = json_string_value(role);
	r->n++;
	if (json_is_array(content))
		return read_parts(form, content, r, m);
	if (!json_is_string(content))
		return tess_fail(TESS_EINVAL, "\"content\" must be text");
	m->content = json_string_value(content);
	m->ncontent = json_string_length(content);
	return TESS_OK;
}

static tess_status get_messages(const json_t *root, const json_t **out)
{
	static const char *const lost[] = { "tools", "functions", "documents", NULL };

	*out = json_is_array(root) ? root : json_object_get(root, "messages");
	if (!json_is_array(*out))
		return tess_fail(TESS_EINVAL,
		                 "a row is a list of messages, or an object with such a list at "
		                 "\"messages\"");
	if (!json_array_size(*out))
		return tess_fail(TESS_EINVAL, "a row without messages");
	return json_is_object(root) ? refuse_keys(root, lost) : TESS_OK;
}

tess_status tess_chat_row_parse(const struct tess_chat_form *form, const char *row, uint64_t len,
                                struct tess_chat_row *out)
{
	const json_t *list = NULL, *o;
	tess_status st = tess_json_parse_line(NULL, row, len, &out->root);
	size_t i;

	if (!st)
		st = get_messages(out->root, &list);
	if (st)
		return st;
	out->message = calloc(json_array_size(list), sizeof *out->message);
	if (!out->message)
		return tess_fail(TESS_ENOMEM, "out of memory");
	json_array_foreach(list, i, o) {
		st = read_message(form, o, out);
		if (st)
			return tess_fail_in(st, "message %zu", i + 1);
	}
	place_joined(out);
	return TESS_OK;
}

void tess_chat_row_free(struct tess_chat_row *r)
{
	free(r->message);
	json_decref(r->root);
	tess_text_free(&r->joined);
	*r = (struct tess_chat_row){ 0 };
}

/*
 * tessera/chat.h - renders conversations to text by the chat template of a checkpoint.
 *
 * The template of a checkpoint is recognised by the SHA-256 of its text, among the published
 * templates that docs/chat.md lists. Text is that of apply_chat_template of Transformers, to the
 * byte, without tools or documents and with switches at their defaults. A message that the template
 * would drop is an error instead.
 *
 * Example:
 *     #include <string.h>
 *
 *     static tess_status print_prompt(const char *dir, const char *question)
 *     {
 *             const struct tess_chat_message ask = { "user", question, strlen(question) };
 *             const struct tess_chat_options options = { .size = sizeof options,
 *                                                        .flags = TESS_CHAT_PROMPT };
 *             struct tess_chat *chat = NULL;
 *             struct tess_chat_text text = { 0 };
 *             tess_status st = tess_chat_open(dir, NULL, &chat);
 *
 *             st = st ? st : tess_chat_render(chat, &ask, 1, &options, &text);
 *             if (!st)
 *                     puts(text.text);
 *             tess_chat_text_free(&text);
 *             tess_chat_close(chat);
 *             return st;
 *     }
 */
#ifndef TESSERA_CHAT_H
#define TESSERA_CHAT_H

#include <tessera/plugin.h>

TESS_BEGIN

/* The chat template of a checkpoint, immutable. Any number of threads may use it. */
struct tess_chat;

/* A message of a conversation. A value; its strings are borrowed for the call. */
struct tess_chat_message {
	/* "system", "user" or "assistant". */
	const char *role;
	/* UTF-8, which may contain zeros. */
	const char *content;
	/* Bytes of content. */
	uint64_t ncontent;
};

/* Flags of rendering: the text ends with the beginning of an answer; the text is for training, as
 * `trl` renders it with assistant_only_loss. */
enum { TESS_CHAT_PROMPT = 1, TESS_CHAT_TRAINING = 2 };

/* Options of rendering. Zeroed except for size: a text without the beginning of an answer. */
struct tess_chat_options {
	/* sizeof(struct tess_chat_options). */
	uint32_t size;
	/* TESS_CHAT_PROMPT or TESS_CHAT_TRAINING, not both. */
	int32_t flags;
	/* System message of conversations that do not begin with one; NULL: the template's. */
	const char *system;
	/* Date of templates that contain one, "2026-11-28"; NULL: today. */
	const char *date;
};
TESS_TIGHT(tess_chat_options, date);

/* A range of bytes, [begin, end). */
struct tess_chat_range {
	uint64_t begin;
	uint64_t end;
};

/* A rendered conversation. The caller frees it: tess_chat_text_free. */
struct tess_chat_text {
	/* UTF-8, followed by a 0. It contains all special tokens: encode it without adding any. */
	char *text;
	/* Bytes of text. */
	uint64_t ntext;
	/* Bytes that the assistant answers, with the end of each turn, in order: [nanswers]. In
	 * training, loss counts on their tokens. */
	struct tess_chat_range *answers;
	/* Number of ranges. */
	int64_t nanswers;
};

/*
 * Opens the chat template of a checkpoint: that in chat_template.jinja, in chat_template.json or in
 * tokenizer_config.json of `dir`, where a list's "default" is used. name: a template by its name,
 * instead of that of the checkpoint; NULL: that of the checkpoint. The caller owns *out:
 * tess_chat_close. TESS_ENOENT: the checkpoint has no template. TESS_ENOTSUP: the template is not
 * recognised. TESS_EINVAL: no template has this name. Messages list the names.
 */
tess_status tess_chat_open(const char *dir, const char *name, struct tess_chat **out);

/* Closes a template. NULL is accepted. */
void tess_chat_close(struct tess_chat *c);

/* Returns the name of a template, static; NULL for NULL. */
const char *tess_chat_get_name(const struct tess_chat *c);

/* Returns the number of templates; the first `most` of their names go to out[], static. */
int32_t tess_chat_list_names(const char **out, int32_t most);

/*
 * Returns the token that ends a turn of the assistant, "<|im_end|>", borrowed from c; "" if the
 * template has none.
 */
const char *tess_chat_get_end(const struct tess_chat *c);

/*
 * Renders n messages, 1 or more. options: NULL, or read during the call. TESS_EINVAL: the template
 * has no such role, demands that roles alternate, or would drop a message; the message of the error
 * has the number of the chat message, from 1.
 */
tess_status tess_chat_render(const struct tess_chat *c, const struct tess_chat_message *messages,
                             int64_t n, const struct tess_chat_options *options,
                             struct tess_chat_text *out);

/*
 * Renders a row of a JSON lines file, `len` bytes: a list of {"role": ..., "content": ...}, or an
 * object with such a list at "messages". Content is text, or a list of {"type": "text", "text":
 * ...} if the template accepts it. Other keys of the row are ignored, except for "tools",
 * "functions" and "documents", which must be null or empty. TESS_EINVAL: as for tess_chat_render,
 * or the row is no such JSON.
 */
tess_status tess_chat_render_row(const struct tess_chat *c, const char *row, uint64_t len,
                                 const struct tess_chat_options *options,
                                 struct tess_chat_text *out);

/* Frees what a text points to, and zeroes it. NULL is accepted. */
void tess_chat_text_free(struct tess_chat_text *t);

TESS_END
#endif

/* chat.c - the chat template of a checkpoint: opens it, and renders conversations. */
#include "core/base/sized.h"
#include "core/base/status.h"
#include "hf/chat/row.h"
#include "hf/chat/source.h"

#include <stdlib.h>
#include <string.h>

enum { NAMES_BYTES = 1024 };

struct tess_chat {
	const struct tess_chat_form *form;
	struct tess_chat_source source;
	const char *end; /* in the source, or static */
};

/* ---- open ------------------------------------------------------------------------------------ */

/* Writes "chatml, qwen2, ...". */
static void format_chat_names(char out[NAMES_BYTES])
{
	size_t n = 0;

	for (int32_t i = 0; i < tess_chat_nforms && n < NAMES_BYTES; i++)
		n += (size_t)snprintf(out + n, NAMES_BYTES - n, "%s%s", i ? ", " : "",
		                      tess_chat_forms[i].name);
}

static tess_status choose_form(const char *dir, const char *name, struct tess_chat *c)
{
	const struct tess_chat_source *s = &c->source;
	char names[NAMES_BYTES], sha256[65];

	format_chat_names(names);
	if (name) {
		c->form = tess_chat_find_form(name);
		return c->form ? TESS_OK
		               : tess_fail(TESS_EINVAL,
		                           "no chat template is named \"%.64s\"; use one of %s",
		                           name, names);
	}
	if (!s->file)
		return tess_fail(TESS_ENOENT,
		                 "%s: the checkpoint has no chat template, in chat_template.jinja "
		                 "or tokenizer_config.json; choose one by its name: %s",
		                 dir, names);
	c->form = tess_chat_recognise(s->text, s->len, sha256);
	return c->form ? TESS_OK
	               : tess_fail(TESS_ENOTSUP,
	                           "%s: the chat template (SHA-256 %.12s) is none of those that "
	                           "are rendered; choose one that renders alike by its name: %s",
	                           s->file, sha256, names);
}

static const char *get_end(const struct tess_chat *c)
{
	const char *end = c->form->end;

	return !end ? "" : !strcmp(end, TESS_CHAT_EOS) ? c->source.eos : end;
}

tess_status tess_chat_open(const char *dir, const char *name, struct tess_chat **out)
{
	struct tess_chat *c;
	tess_status st = TESS_REQUIRE(dir, out);

	if (st)
		return st;
	c = calloc(1, sizeof *c);
	if (!c)
		return tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_chat_source_read(dir, &c->source);
	if (!st)
		st = choose_form(dir, name, c);
	if (st) {
		tess_chat_close(c);
		return st;
	}
	c->end = get_end(c);
	*out = c;
	return TESS_OK;
}

void tess_chat_close(struct tess_chat *c)
{
	if (!c)
		return;
	tess_chat_source_free(&c->source);
	free(c);
}

const char *tess_chat_get_name(const struct tess_chat *c)
{
	return c ? c->form->name : NULL;
}

const char *tess_chat_get_end(const struct tess_chat *c)
{
	return TESS_REQUIRE(c) ? "" : c->end;
}

int32_t tess_chat_list_names(const char **out, int32_t most)
{
	if (most < 0 || (most && !out)) {
		tess_fail(TESS_EINVAL, "most %d%s; give a list and its length", (int)most,
		          out ? "" : " without a list");
		return 0;
	}
	for (int32_t i = 0; i < tess_chat_nforms && i < most; i++)
		out[i] = tess_chat_forms[i].name;
	return tess_chat_nforms;
}

/* ---- render ---------------------------------------------------------------------------------- */

static tess_status set_date(const char *text, struct tm *out)
{
	static const int days[] = { 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
	int year, month, day, n = 0;

	if (!text) {
		time_t now = time(NULL);

		return localtime_r(&now, out) ? TESS_OK
		                              : tess_fail(TESS_EIO, "the date is not known");
	}
	if (sscanf(text, "%4d-%2d-%2d%n", &year, &month, &day, &n) != 3 || n != 10 || text[n] ||
	    year < 1 || month < 1 || month > 12 || day < 1 || day > days[month - 1])
		return tess_fail(TESS_EINVAL, "date \"%.32s\": a date is as 2026-11-28", text);
	*out = (struct tm){ .tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day };
	return TESS_OK;
}

static tess_status check_chat_message(const struct tess_chat_message *m, int64_t number)
{
	size_t valid;

	if (!m->role || (m->ncontent && !m->content))
		return tess_fail(TESS_EINVAL, "message %lld has no %s", (long long)number,
		                 m->role ? "content" : "role");
	if (m->ncontent > TESS_TEXT_MAX)
		return tess_fail(TESS_EINVAL, "message %lld has %llu bytes; at most %d are encoded",
		                 (long long)number, (unsigned long long)m->ncontent, TESS_TEXT_MAX);
	valid = tess_utf8_count_valid(m->content ? m->content : "", m->ncontent);
	if (valid < m->ncontent)
		return tess_fail(TESS_EINVAL, "message %lld is not UTF-8 at its byte %zu",
		                 (long long)number, valid);
	return TESS_OK;
}

/* Copies the messages, behind the system message of the options if they do not begin with one. */
static tess_status copy_messages(const struct tess_chat_message *messages, int64_t n,
                                 const struct tess_chat_options *o, struct tess_chat_writer *w)
{
	bool add = o->system && !(messages[0].role && tess_chat_has_role(messages, "system"));
	struct tess_chat_message *all = calloc((size_t)n + 1, sizeof *all);
	tess_status st = TESS_OK;

	if (!all)
		return tess_fail(TESS_ENOMEM, "out of memory");
	if (add)
		all[0] = (struct tess_chat_message){ "system", o->system, strlen(o->system) };
	memcpy(all + add, messages, (size_t)n * sizeof *all);
	w->message = all;
	w->n = n + add;
	w->added = add;
	for (int64_t i = 0; i < w->n && !st; i++) {
		st = check_chat_message(&all[i], i + 1 - add);
		if (!all[i].content)
			all[i].content = "";
	}
	return st;
}

static tess_status read_chat_options(const struct tess_chat_options *options,
                                     struct tess_chat_options *o, struct tess_chat_writer *w)
{
	tess_status st = tess_sized_copy("tess_chat_options", options, o, sizeof *o);

	if (!st && (o->flags < 0 || o->flags > TESS_CHAT_TRAINING))
		st = tess_fail(TESS_EINVAL, "flags %d: give TESS_CHAT_PROMPT or TESS_CHAT_TRAINING",
		               (int)o->flags);
	if (!st)
		st = set_date(o->date, &w->date);
	w->prompt = o->flags == TESS_CHAT_PROMPT;
	w->training = o->flags == TESS_CHAT_TRAINING;
	return st;
}

tess_status tess_chat_render(const struct tess_chat *c, const struct tess_chat_message *messages,
                             int64_t n, const struct tess_chat_options *options,
                             struct tess_chat_text *out)
{
	struct tess_chat_writer w = { 0 };
	struct tess_chat_options o = { 0 };
	tess_status st = TESS_REQUIRE(c, messages, out);

	if (st)
		return st;
	if (n < 1 || n > INT32_MAX)
		return tess_fail(TESS_EINVAL, "%lld messages; a conversation has one or more",
		                 (long long)n);
	w.form = c->form;
	w.bos = c->source.bos;
	w.eos = c->source.eos;
	st = read_chat_options(options, &o, &w);
	if (!st)
		st = copy_messages(messages, n, &o, &w);
	if (!st)
		st = tess_chat_write(&w);
	if (!st)
		st = tess_text_add(&w.out, "", 1);
	free((void *)w.message);
	if (st) {
		tess_text_free(&w.out);
		free(w.answers);
		return st;
	}
	*out = (struct tess_chat_text){ w.out.data, w.out.len - 1, w.answers, w.nanswers };
	return TESS_OK;
}

tess_status tess_chat_render_row(const struct tess_chat *c, const char *row, uint64_t len,
                                 const struct tess_chat_options *options,
                                 struct tess_chat_text *out)
{
	struct tess_chat_row parsed = { 0 };
	tess_status st = TESS_REQUIRE(c, row, out);

	if (!st)
		st = tess_chat_row_parse(c->form, row, len, &parsed);
	if (!st)
		st = tess_chat_render(c, parsed.message, parsed.n, options, out);
	tess_chat_row_free(&parsed);
	return st;
}

void tess_chat_text_free(struct tess_chat_text *t)
{
	if (!t)
		return;
	free(t->text);
	free(t->answers);
	*t = (struct tess_chat_text){ 0 };
}

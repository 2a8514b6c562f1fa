/* render.c - renders a conversation by the fields of its template's form. */
#include "core/base/status.h"
#include "hf/chat/form.h"

#include <string.h>

static bool has_flag(const struct tess_chat_writer *w, uint32_t flag)
{
	return (w->form->flags & flag) != 0;
}

static bool is_system(const struct tess_chat_writer *w, int64_t i)
{
	return tess_chat_has_role(&w->message[i], "system");
}

/* Returns the index of the system message at the beginning, or -1. */
static int64_t find_system(const struct tess_chat_writer *w)
{
	int64_t last = has_flag(w, TESS_CHAT_SYSTEM_ANYWHERE | TESS_CHAT_SYSTEM_ONE) ? w->n : 1;

	for (int64_t i = 0; i < last; i++)
		if (is_system(w, i))
			return i;
	return -1;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static tess_status check_system(const struct tess_chat_writer *w, int64_t i, int64_t leading)
{
	if (has_flag(w, TESS_CHAT_NO_SYSTEM) &&
	    (w->message[i].ncontent || has_flag(w, TESS_CHAT_ALTERNATE)))
		return tess_chat_fail(w, i,
		                      "the template %s has no role \"system\"; put its "
		                      "text in the user's first message",
		                      w->form->name);
	if (i != leading &&
	    has_flag(w, TESS_CHAT_SYSTEM_FIRST | TESS_CHAT_SYSTEM_ONE | TESS_CHAT_SYSTEM_IN_USER |
	                        TESS_CHAT_SYSTEM_IN_LAST))
		return tess_chat_fail(w, i,
		                      "the template %s has one system message, the "
		                      "first; join them there",
		                      w->form->name);
	if (w->message[i].ncontent && has_flag(w, TESS_CHAT_SYSTEM_IN_LAST) &&
	    !tess_chat_has_role(&w->message[w->n - 1], "user"))
		return tess_chat_fail(w, i,
		                      "the template %s drops the system message unless "
		                      "the last message is the user's; put its text in the user's "
		                      "first message",
		                      w->form->name);
	if (w->message[i].ncontent && has_flag(w, TESS_CHAT_SYSTEM_IN_USER) && w->n == 1)
		return tess_chat_fail(w, i,
		                      "the template %s drops a system message alone; a "
		                      "message of the user must follow",
		                      w->form->name);
	return TESS_OK;
}

static tess_status check_role(const struct tess_chat_writer *w, int64_t i)
{
	const struct tess_chat_message *m = &w->message[i];

	if (tess_chat_has_role(m, "system") || tess_chat_has_role(m, "user") ||
	    tess_chat_has_role(m, "assistant"))
		return TESS_OK;
	return tess_chat_fail(w, i,
	                      "no role \"%.64s\" is rendered; roles are system, user and "
	                      "assistant",
	                      m->role);
}

static tess_status check_conversation(const struct tess_chat_writer *w)
{
	int64_t leading = find_system(w), turn = 0;
	tess_status st = TESS_OK;

	for (int64_t i = 0; i < w->n && !st; i++) {
		bool user = tess_chat_has_role(&w->message[i], "user");

		st = check_role(w, i);
		if (!st && is_system(w, i)) {
			st = check_system(w, i, leading);
			continue;
		}
		if (!st && has_flag(w, TESS_CHAT_ALTERNATE) && user != (turn++ % 2 == 0))
			st = tess_chat_fail(w, i,
			                    "role \"%s\" %s; the template %s demands that "
			                    "user and assistant alternate, from user on",
			                    w->message[i].role,
			                    turn == 1 ? "begins" : "follows itself", w->form->name);
		if (!st && !user && !w->message[i].ncontent &&
		    has_flag(w, TESS_CHAT_NO_EMPTY_ANSWER))
			st = tess_chat_fail(w, i,
			                    "the template %s refuses an answer without "
			                    "content",
			                    w->form->name);
	}
	return st;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void put_wrapped(struct tess_chat_writer *w, const struct tess_chat_wrap *wrap,
                        struct tess_chat_view content, uint32_t strip)
{
	tess_chat_put(w, wrap->before);
	tess_chat_put_view(w, has_flag(w, strip) ? tess_chat_strip(content, 3) : content);
	tess_chat_put(w, wrap->after);
}

void tess_chat_answer(struct tess_chat_writer *w, struct tess_chat_view content, int64_t i)
{
	const struct tess_chat_form *f = w->form;
	bool final = i == w->n - 1 && f->final &&
	             !(w->prompt && has_flag(w, TESS_CHAT_FINAL_UNPROMPTED));
	size_t begin = w->out.len;

	tess_chat_put(w, f->assistant.before);
	if (!w->training || !has_flag(w, TESS_CHAT_TRAIN_HEADER))
		begin = w->out.len - (w->training && has_flag(w, TESS_CHAT_TRAIN_LINE_FEED));
	tess_chat_put_view(w, has_flag(w, TESS_CHAT_STRIP_ASSISTANT) ? tess_chat_strip(content, 3)
	                                                             : content);
	tess_chat_put(w, final ? f->final : f->assistant.after);
	tess_chat_mark(w, begin);
}

static void put_answer(struct tess_chat_writer *w, int64_t i)
{
	struct tess_chat_view content = tess_chat_get_content(w, i), before, after;
	bool drop = has_flag(w, TESS_CHAT_DROP_THINKING) &&
	            !(w->training && has_flag(w, TESS_CHAT_TRAIN_THINKING));

	if (w->form->answer) {
		w->form->answer(w, i);
		return;
	}
	if (drop && tess_chat_split(content, "</think>", true, &before, &after))
		content = after;
	tess_chat_answer(w, content, i);
}

/* Renders a user message that contains the system message. */
static void put_user_with_system(struct tess_chat_writer *w, int64_t system, int64_t i)
{
	const struct tess_chat_form *f = w->form;
	struct tess_chat_view content = tess_chat_get_content(w, i);
	size_t begin;

	tess_chat_put(w, f->user.before);
	begin = w->out.len;
	put_wrapped(w, &f->first, tess_chat_get_content(w, system), TESS_CHAT_STRIP_SYSTEM);
	if (has_flag(w, TESS_CHAT_STRIP_WITH_SYSTEM)) {
		struct tess_chat_view both;

		tess_chat_put_view(w, content);
		both = (struct tess_chat_view){ w->out.data + begin, w->out.len - begin };
		w->out.len = begin + tess_chat_strip(both, 2).n;
	} else {
		tess_chat_put_view(w, has_flag(w, TESS_CHAT_STRIP_USER)
		                              ? tess_chat_strip(content, 3)
		                              : content);
	}
	tess_chat_put(w, f->user.after);
}

/* ---- the text -------------------------------------------------------------------------------- */

static bool is_same_system(const struct tess_chat_writer *w, int64_t a, int64_t b)
{
	const struct tess_chat_message *m = &w->message[a], *o = &w->message[b];

	return m->ncontent == o->ncontent && !memcmp(m->content, o->content, m->ncontent);
}

/* Joins the contents of all system messages by empty lines. */
static void put_joined_systems(struct tess_chat_writer *w)
{
	bool joins = false;

	for (int64_t i = 0; i < w->n; i++) {
		if (!is_system(w, i))
			continue;
		if (joins)
			tess_chat_put(w, "\n\n");
		tess_chat_put_view(w, tess_chat_get_content(w, i));
		joins = true;
	}
}

/* Renders what precedes the turns. Returns whether `system` is done, or part of a user message. */
static bool put_beginning(struct tess_chat_writer *w, int64_t system)
{
	const struct tess_chat_form *f = w->form;
	const struct tess_chat_wrap *wrap = f->first.before ? &f->first : &f->system;
	bool empty = system >= 0 && !w->message[system].ncontent;

	tess_chat_put(w, f->head);
	if (has_flag(w, TESS_CHAT_SYSTEM_JOINED)) {
		put_joined_systems(w);
		return true;
	}
	if (has_flag(w, TESS_CHAT_SYSTEM_IN_USER | TESS_CHAT_SYSTEM_IN_LAST))
		return true;
	if (system < 0 || (empty && has_flag(w, TESS_CHAT_EMPTY_IS_BARE)))
		tess_chat_put(w, f->bare);
	else if (!empty || !has_flag(w, TESS_CHAT_SKIP_EMPTY | TESS_CHAT_SKIP_EMPTY_SYSTEM))
		put_wrapped(w, wrap, tess_chat_get_content(w, system),
		            TESS_CHAT_STRIP_SYSTEM | TESS_CHAT_STRIP_FIRST);
	return !(empty && has_flag(w, TESS_CHAT_EMPTY_IS_LATER));
}

static void put_turn(struct tess_chat_writer *w, int64_t system, int64_t i)
{
	const struct tess_chat_form *f = w->form;
	int64_t turn = i - (system >= 0);

	if (!w->message[i].ncontent && has_flag(w, TESS_CHAT_SKIP_EMPTY))
		return;
	if (is_system(w, i)) {
		if (has_flag(w, TESS_CHAT_SYSTEM_JOINED) ||
		    (!w->message[i].ncontent && has_flag(w, TESS_CHAT_SKIP_EMPTY_SYSTEM)))
			return;
		put_wrapped(w, &f->system, tess_chat_get_content(w, i), TESS_CHAT_STRIP_SYSTEM);
	} else if (tess_chat_has_role(&w->message[i], "assistant")) {
		put_answer(w, i);
	} else if (system >= 0 && ((has_flag(w, TESS_CHAT_SYSTEM_IN_USER) && !turn) ||
	                           (has_flag(w, TESS_CHAT_SYSTEM_IN_LAST) && i == w->n - 1))) {
		put_user_with_system(w, system, i);
	} else {
		put_wrapped(w, &f->user, tess_chat_get_content(w, i), TESS_CHAT_STRIP_USER);
	}
}

/* Returns whether the text ends with the beginning of an answer. */
static bool needs_prompt(const struct tess_chat_writer *w, int64_t system)
{
	int64_t last = w->n - 1;

	if (!w->prompt && (w->training || !has_flag(w, TESS_CHAT_ALWAYS_PROMPT)))
		return false;
	if (has_flag(w, TESS_CHAT_PROMPT_AFTER_TURN) && w->n == 1 && system >= 0)
		return false;
	if (!has_flag(w, TESS_CHAT_PROMPT_AFTER_USER))
		return true;
	while (last >= 0 && is_system(w, last))
		last--;
	return last >= 0 && tess_chat_has_role(&w->message[last], "user");
}

static void put_conversation(struct tess_chat_writer *w)
{
	int64_t system = find_system(w);
	bool done = put_beginning(w, system);
	size_t begin;

	for (int64_t i = 0; i < w->n; i++) {
		bool same = has_flag(w, TESS_CHAT_SYSTEM_ANYWHERE) && system >= 0 &&
		            is_system(w, i) && is_same_system(w, i, system);

		if (!(done && (i == system || same)))
			put_turn(w, system, i);
	}
	begin = w->out.len;
	tess_chat_put(w, needs_prompt(w, system) ? w->form->prompt : w->form->tail);
	if (w->training && tess_chat_has_role(&w->message[w->n - 1], "assistant"))
		tess_chat_mark(w, begin);
}

tess_status tess_chat_write(struct tess_chat_writer *w)
{
	w->status = check_conversation(w);
	if (!w->status && w->form->render)
		w->form->render(w);
	else if (!w->status)
		put_conversation(w);
	return w->status;
}

/* special.c - templates with rules of their own: thinking, and turns that end with the next one. */
#include "core/base/status.h"
#include "hf/chat/form.h"

#include <string.h>

static bool has_edges(struct tess_chat_view v, const char *begin, const char *end)
{
	size_t n = strlen(begin), m = strlen(end);

	return v.n >= n && v.n >= m && !memcmp(v.s, begin, n) && !memcmp(v.s + v.n - m, end, m);
}

/* ---- Qwen ------------------------------------------------------------------------------------ */

/* Returns the index of the last question, which is no result of a tool; else the last index. */
static int64_t find_last_question(const struct tess_chat_writer *w)
{
	for (int64_t i = w->n - 1; i >= 0; i--)
		if (tess_chat_has_role(&w->message[i], "user") &&
		    !has_edges(tess_chat_get_content(w, i), "<tool_response>", "</tool_response>"))
			return i;
	return w->n - 1;
}

void tess_chat_answer_qwen3(struct tess_chat_writer *w, int64_t i)
{
	struct tess_chat_view thinking,
		content = tess_chat_take_thinking(tess_chat_get_content(w, i), &thinking);
	bool thinks =
		w->training || (i > find_last_question(w) && (i == w->n - 1 || thinking.n > 0));
	size_t begin;

	tess_chat_put(w, w->form->assistant.before);
	begin = w->out.len;
	if (thinks) {
		tess_chat_put(w, "<think>\n");
		tess_chat_put_view(w, tess_chat_strip_lines(thinking, 3));
		tess_chat_put(w, "\n</think>\n\n");
		content = tess_chat_strip_lines(content, 1);
	}
	tess_chat_put_view(w, content);
	tess_chat_put(w, w->form->assistant.after);
	tess_chat_mark(w, begin);
}

void tess_chat_answer_qwq(struct tess_chat_writer *w, int64_t i)
{
	struct tess_chat_view content = tess_chat_get_content(w, i), before, after;

	if (i < w->n - 1 && tess_chat_split(content, "</think>", true, &before, &after))
		content = after;
	tess_chat_answer(w, i < w->n - 1 ? tess_chat_strip_lines(content, 1) : content, i);
}

/* ---- Seed-OSS, EXAONE 4, DeepSeek V3.1, GPT-OSS ---------------------------------------------- */

/* An answer without text has no end. */
void tess_chat_answer_seed(struct tess_chat_writer *w, int64_t i)
{
	struct tess_chat_view content = tess_chat_strip(tess_chat_get_content(w, i), 3);

	if (content.n)
		tess_chat_answer(w, content, i);
	else
		tess_chat_put(w, "<seed:bos>assistant");
}

/* An answer without text has no block of thoughts. Thoughts are dropped in training, too. */
void tess_chat_answer_exaone(struct tess_chat_writer *w, int64_t i)
{
	struct tess_chat_view content = tess_chat_get_content(w, i), before, after;
	size_t begin;

	if (content.n) {
		if (tess_chat_split(content, "</think>", true, &before, &after))
			content = tess_chat_strip(after, 3);
		tess_chat_answer(w, content, i);
		return;
	}
	tess_chat_put(w, "[|assistant|]\n");
	begin = w->out.len;
	tess_chat_put(w, w->form->assistant.after);
	tess_chat_mark(w, begin);
}

/* Only the first answer after a question has a beginning. */
void tess_chat_answer_deepseek31(struct tess_chat_writer *w, int64_t i)
{
	struct tess_chat_view content = tess_chat_get_content(w, i), before, after;
	int64_t last = i - 1;
	size_t begin;

	while (last >= 0 && tess_chat_has_role(&w->message[last], "system"))
		last--;
	if (last >= 0 && tess_chat_has_role(&w->message[last], "user"))
		tess_chat_put(w, w->form->assistant.before);
	begin = w->out.len;
	if (tess_chat_split(content, "</think>", false, &before, &after))
		content = after;
	tess_chat_put_view(w, content);
	tess_chat_put(w, w->form->assistant.after);
	tess_chat_mark(w, begin);
}

void tess_chat_answer_gpt_oss(struct tess_chat_writer *w, int64_t i)
{
	struct tess_chat_view content = tess_chat_get_content(w, i), before, after;

	if (tess_chat_split(content, "<|channel|>analysis<|message|>", false, &before, &after) ||
	    tess_chat_split(content, "<|channel|>final<|message|>", false, &before, &after))
		w->status = tess_chat_fail(w, i,
		                           "the content has <|channel|> tags, which the "
		                           "template %s refuses; give the final answer alone",
		                           w->form->name);
	else
		tess_chat_answer(w, content, i);
}

/* ---- GLM 4.5 --------------------------------------------------------------------------------- */

static void put_glm_answer(struct tess_chat_writer *w, int64_t i, bool last)
{
	struct tess_chat_view thinking,
		content = tess_chat_take_thinking(tess_chat_get_content(w, i), &thinking);
	size_t begin = w->out.len;

	tess_chat_put(w, "\n<think>");
	if (last && thinking.n)
		tess_chat_put_view(w, tess_chat_strip(thinking, 3));
	tess_chat_put(w, "</think>");
	content = tess_chat_strip(content, 3);
	if (content.n)
		tess_chat_put(w, "\n");
	tess_chat_put_view(w, content);
	if (w->training)
		tess_chat_put(w, i + 1 < w->n && tess_chat_has_role(&w->message[i + 1], "system")
		                         ? "<|system|>"
		                         : "<|user|>");
	tess_chat_mark(w, begin);
}

/* In training the token that begins the next turn ends an answer, and its loss counts. */
void tess_chat_render_glm45(struct tess_chat_writer *w)
{
	int64_t question = -1;

	for (int64_t i = 0; i < w->n; i++)
		if (tess_chat_has_role(&w->message[i], "user"))
			question = i;
	tess_chat_put(w, "[gMASK]<sop>");
	for (int64_t i = 0; i < w->n; i++) {
		bool begun =
			w->training && i && tess_chat_has_role(&w->message[i - 1], "assistant");

		if (tess_chat_has_role(&w->message[i], "assistant")) {
			tess_chat_put(w, "<|assistant|>");
			put_glm_answer(w, i, i > question);
			continue;
		}
		if (!begun)
			tess_chat_put(w, tess_chat_has_role(&w->message[i], "user") ? "<|user|>"
			                                                            : "<|system|>");
		tess_chat_put(w, "\n");
		tess_chat_put_view(w, tess_chat_get_content(w, i));
	}
	if (w->prompt)
		tess_chat_put(w, "<|assistant|>");
}

/* ---- SmolLM 3 -------------------------------------------------------------------------------- */

/* Appends v without each `mark`. */
static tess_status remove_marks(struct tess_chat_view v, const char *mark, struct tess_text *out)
{
	struct tess_chat_view before, after;
	tess_status st = TESS_OK;

	while (v.n && !st) {
		tess_chat_split(v, mark, false, &before, &after);
		st = before.n ? tess_text_add(out, before.s, before.n) : TESS_OK;
		v = after;
	}
	return st;
}

/* Renders the system message. Returns whether the assistant thinks. */
static bool put_smollm_system(struct tess_chat_writer *w)
{
	struct tess_chat_view text = { "", 0 }, before, after;
	struct tess_text once = { 0 }, twice = { 0 };
	bool thinks = true;

	if (tess_chat_has_role(&w->message[0], "system")) {
		text = tess_chat_get_content(w, 0);
		thinks = !tess_chat_split(text, "/no_think", false, &before, &after);
		w->status = remove_marks(text, "/no_think", &once);
		if (!w->status)
			w->status = remove_marks((struct tess_chat_view){ once.data, once.len },
			                         "/think", &twice);
		text = tess_chat_strip((struct tess_chat_view){ twice.data, twice.len }, 2);
	}
	tess_chat_put(w, "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\n"
	                 "Reasoning Mode: ");
	tess_chat_put(w, thinks ? "/think" : "/no_think");
	tess_chat_put(w, "\n\n## Custom Instructions\n\n");
	tess_chat_put_view(w, text);
	if (!text.n)
		tess_chat_put(w, thinks ? tess_chat_smollm
		                        : "You are a helpful AI assistant named SmolLM, trained by "
		                          "Hugging Face.");
	tess_chat_put(w, "\n\n<|im_end|>\n");
	tess_text_free(&once);
	tess_text_free(&twice);
	return thinks;
}

/* A system message with /no_think or /think chooses whether answers think. */
void tess_chat_render_smollm3(struct tess_chat_writer *w)
{
	bool thinks = put_smollm_system(w);
	int64_t first = tess_chat_has_role(&w->message[0], "system");

	for (int64_t i = first; i < w->n; i++) {
		bool answer = tess_chat_has_role(&w->message[i], "assistant");
		struct tess_chat_view content = tess_chat_get_content(w, i);
		size_t begin;

		tess_chat_put(w, answer ? "<|im_start|>assistant\n" : "<|im_start|>user\n");
		begin = w->out.len;
		if (answer && !thinks)
			tess_chat_put(w, "<think>\n\n</think>\n");
		tess_chat_put_view(w, answer ? tess_chat_strip_lines(content, 1) : content);
		tess_chat_put(w, "<|im_end|>\n");
		if (answer)
			tess_chat_mark(w, begin);
	}
	if (w->prompt)
		tess_chat_put(w, thinks ? "<|im_start|>assistant\n"
		                        : "<|im_start|>assistant\n<think>\n\n</think>\n");
}

/* form.h - the form of a published chat template, as data, and what renders it. */
#ifndef TESS_HF_CHAT_FORM_H
#define TESS_HF_CHAT_FORM_H

#include "hf/tokenizer/text.h"

#include <tessera/chat.h>
#include <time.h>

/* Placeholders in the strings of forms: bos_token and eos_token of the checkpoint, and the date in
 * strftime's "%d %b %Y", "%Y-%m-%d" and "%B %d, %Y". */
#define TESS_CHAT_BOS "\1"
#define TESS_CHAT_EOS "\2"
#define TESS_CHAT_DATE_SHORT "\3"
#define TESS_CHAT_DATE_ISO "\4"
#define TESS_CHAT_DATE_LONG "\5"

enum tess_chat_flag {
	/* Contents are stripped as Python's str.strip does. */
	TESS_CHAT_STRIP_SYSTEM = 1 << 0,
	TESS_CHAT_STRIP_USER = 1 << 1,
	TESS_CHAT_STRIP_ASSISTANT = 1 << 2,
	TESS_CHAT_STRIP = 7,
	/* A leading system message is stripped, later ones are not. */
	TESS_CHAT_STRIP_FIRST = 1 << 27,
	/* After a leading system message, user and assistant alternate, from user on. */
	TESS_CHAT_ALTERNATE = 1 << 3,
	/* How system messages are rendered: refused; only as the first message; all joined by empty
	 * lines at the beginning; a single one, moved to the beginning; inside of the first user
	 * message; inside of the user message that is last. */
	TESS_CHAT_NO_SYSTEM = 1 << 4,
	TESS_CHAT_SYSTEM_FIRST = 1 << 5,
	TESS_CHAT_SYSTEM_JOINED = 1 << 6,
	TESS_CHAT_SYSTEM_ONE = 1 << 7,
	TESS_CHAT_SYSTEM_IN_USER = 1 << 8,
	TESS_CHAT_SYSTEM_IN_LAST = 1 << 9,
	/* The system message may be at any place, and is moved to the beginning. */
	TESS_CHAT_SYSTEM_ANYWHERE = 1 << 10,
	/* An empty system message at the beginning is replaced by `bare`; with the second flag it
	 * is also rendered like a later one. */
	TESS_CHAT_EMPTY_IS_BARE = 1 << 11,
	TESS_CHAT_EMPTY_IS_LATER = 1 << 12,
	/* Messages without content, or only system messages without content, are left out. */
	TESS_CHAT_SKIP_EMPTY = 1 << 13,
	TESS_CHAT_SKIP_EMPTY_SYSTEM = 1 << 14,
	/* An empty assistant message is refused. */
	TESS_CHAT_NO_EMPTY_ANSWER = 1 << 15,
	/* Only the text after the last "</think>" of an answer is rendered; with the second flag,
	 * all of it in training. */
	TESS_CHAT_DROP_THINKING = 1 << 16,
	TESS_CHAT_TRAIN_THINKING = 1 << 17,
	/* The text ends with the beginning of an answer: always, even if it is not requested; only
	 * if a message follows the system message; only if the last message, without system
	 * messages, is the user's. */
	TESS_CHAT_ALWAYS_PROMPT = 1 << 18,
	TESS_CHAT_PROMPT_AFTER_TURN = 1 << 19,
	TESS_CHAT_PROMPT_AFTER_USER = 1 << 20,
	/* `final` ends the last answer only if no beginning of another answer follows it. */
	TESS_CHAT_FINAL_UNPROMPTED = 1 << 21,
	/* In training, assistant.before counts as a part of the answer. */
	TESS_CHAT_TRAIN_HEADER = 1 << 22,
	/* In training, the line feed before an answer counts as a part of it. */
	TESS_CHAT_TRAIN_LINE_FEED = 1 << 26,
	/* The template accepts lists of parts as content, and joins them; with the second flag, it
	 * strips each part first. */
	TESS_CHAT_PARTS = 1 << 23,
	TESS_CHAT_PARTS_STRIPPED = 1 << 24,
	/* A user message that contains the system message is stripped together with it. */
	TESS_CHAT_STRIP_WITH_SYSTEM = 1 << 25,
};

/* Text around a content; before NULL: not set. */
struct tess_chat_wrap {
	const char *before, *after;
};

struct tess_chat_writer;

struct tess_chat_form {
	const char *name;
	const char *const *sha256; /* of normalised texts, ends with NULL */
	const char *head; /* begins all texts; NULL: none */
	const char *bare; /* in the place of a system message if there is none; NULL: nothing */
	/* a leading system message (not set: as `system`), later ones, others */
	struct tess_chat_wrap first, system, user, assistant;
	const char *final; /* instead of assistant.after for the last message; NULL: the same */
	const char *prompt; /* begins an answer; NULL: nothing */
	const char *tail; /* ends a text without such a beginning; NULL: nothing */
	const char *end; /* token that ends a turn; NULL: none */
	uint32_t flags; /* of enum tess_chat_flag */
	/* renders answer i; NULL: by the fields */
	void (*answer)(struct tess_chat_writer *w, int64_t i);
	/* renders the conversation; NULL: by the fields */
	void (*render)(struct tess_chat_writer *w);
};

/* The table of forms, in the order of docs/chat.md. */
extern const struct tess_chat_form tess_chat_forms[];
extern const int32_t tess_chat_nforms;

/* Long system messages of templates (preambles.c). */
extern const char tess_chat_tiny_aya[], tess_chat_mistral_small[], tess_chat_ministral[];
extern const char tess_chat_smollm[];

/* Bytes of a string. */
struct tess_chat_view {
	const char *s;
	size_t n;
};

struct tess_chat_writer { /* a text that is being rendered */
	const struct tess_chat_form *form;
	const char *bos, *eos;
	const struct tess_chat_message *message;
	int64_t n;
	int64_t added; /* 1: the first message is the system message of the options */
	bool prompt, training;
	struct tm date;
	struct tess_text out;
	struct tess_chat_range *answers;
	int64_t nanswers;
	tess_status status; /* the first failure; later calls do nothing */
};

/* Appends a string of a form, with the values of its placeholders. NULL: nothing. */
void tess_chat_put(struct tess_chat_writer *w, const char *s);
void tess_chat_put_view(struct tess_chat_writer *w, struct tess_chat_view v);
/* Marks [begin, end of the text) as an answer; adjacent ranges are joined. */
void tess_chat_mark(struct tess_chat_writer *w, size_t begin);
/* Fails because of message i, by its number in the conversation of the caller. */
tess_status tess_chat_fail(const struct tess_chat_writer *w, int64_t i, const char *fmt, ...)
	TESS_PRINTF(3, 4);
bool tess_chat_has_role(const struct tess_chat_message *m, const char *role);
struct tess_chat_view tess_chat_get_content(const struct tess_chat_writer *w, int64_t i);

/* Strip characters on the left (1), the right (2) or both sides (3): line feeds, or white space as
 * Python has it. */
struct tess_chat_view tess_chat_strip_lines(struct tess_chat_view v, int sides);
struct tess_chat_view tess_chat_strip(struct tess_chat_view v, int sides);

/*
 * Finds the first or last `mark` in v: *before and *after are around it; without one, *before is v
 * and *after is empty.
 */
bool tess_chat_split(struct tess_chat_view v, const char *mark, bool last,
                     struct tess_chat_view *before, struct tess_chat_view *after);

/* Returns what follows the last "</think>", without leading line feeds, and what it follows. */
struct tess_chat_view tess_chat_take_thinking(struct tess_chat_view content,
                                              struct tess_chat_view *thinking);

/* Renderers of forms with rules of their own (special.c). */
void tess_chat_answer_qwen3(struct tess_chat_writer *w, int64_t i);
void tess_chat_answer_qwq(struct tess_chat_writer *w, int64_t i);
void tess_chat_answer_seed(struct tess_chat_writer *w, int64_t i);
void tess_chat_answer_exaone(struct tess_chat_writer *w, int64_t i);
void tess_chat_answer_deepseek31(struct tess_chat_writer *w, int64_t i);
void tess_chat_answer_gpt_oss(struct tess_chat_writer *w, int64_t i);
void tess_chat_render_glm45(struct tess_chat_writer *w);
void tess_chat_render_smollm3(struct tess_chat_writer *w);

/* Renders answer i by the fields of the form. */
void tess_chat_answer(struct tess_chat_writer *w, struct tess_chat_view content, int64_t i);

/*
 * Renders w->message by w->form to w->out and w->answers, which the caller frees, also after a
 * failure.
 */
tess_status tess_chat_write(struct tess_chat_writer *w);

#endif

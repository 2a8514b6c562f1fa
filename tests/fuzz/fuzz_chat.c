/*
 * fuzz_chat.c - a byte that chooses a chat template, and a row of messages. Texts are UTF-8, and
 * answers are ranges of them, in order; a refusal has a message.
 */
#include "core/base/status.h"
#include "fuzz.h"
#include "hf/tokenizer/text.h"

#include <string.h>
#include <tessera/chat.h>

enum { FORMS_MAX = 256 };

static void check_rendered(const struct tess_chat_text *t)
{
	uint64_t at = 0;

	MUST(tess_utf8_count_valid(t->text, t->ntext) == t->ntext && !t->text[t->ntext]);
	for (int64_t i = 0; i < t->nanswers; i++) {
		MUST(t->answers[i].begin >= at && t->answers[i].begin < t->answers[i].end);
		at = t->answers[i].end;
		MUST(at <= t->ntext);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	const char *names[FORMS_MAX];
	int32_t n = tess_chat_list_names(names, FORMS_MAX);
	struct tess_chat *c = NULL;

	if (!len)
		return 0;
	MUST(!tess_chat_open("/nonexistent", names[bytes[0] % n], &c));
	for (int32_t flags = 0; flags <= TESS_CHAT_TRAINING; flags++) {
		const struct tess_chat_options options = { .size = sizeof options,
			                                   .flags = flags,
			                                   .date = "2026-03-07" };
		struct tess_chat_text text = { 0 };

		if (tess_chat_render_row(c, (const char *)bytes + 1, len - 1, &options, &text))
			MUST(!text.text && *tess_error());
		else
			check_rendered(&text);
		tess_chat_text_free(&text);
	}
	tess_chat_close(c);
	return 0;
}

/* row.h - the conversation in a row of a JSON lines file. */
#ifndef TESS_HF_CHAT_ROW_H
#define TESS_HF_CHAT_ROW_H

#include "hf/chat/form.h"

struct tess_chat_row {
	struct tess_chat_message *message;
	int64_t n;
	json_t *root; /* has the strings of the messages */
	struct tess_text joined; /* has contents of several parts */
};

/* Parses a row for a form. Free *out with tess_chat_row_free, also after a failure. */
tess_status tess_chat_row_parse(const struct tess_chat_form *form, const char *row, uint64_t len,
                                struct tess_chat_row *out);
void tess_chat_row_free(struct tess_chat_row *r);

#endif

/* source.h - where the chat template of a checkpoint is, and which published one it is. */
#ifndef TESS_HF_CHAT_SOURCE_H
#define TESS_HF_CHAT_SOURCE_H

#include "hf/chat/form.h"

struct tess_chat_source { /* what a checkpoint has; strings are its own */
	char *file; /* path of the file with the template; NULL: the checkpoint has no template */
	char *text;
	size_t len;
	char *bos, *eos; /* bos_token and eos_token; "" if not named */
};

/* Reads the files of a checkpoint. Free *out with tess_chat_source_free, also after a failure. */
tess_status tess_chat_source_read(const char *dir, struct tess_chat_source *out);
void tess_chat_source_free(struct tess_chat_source *s);

/*
 * Returns the form of a template's text, or NULL. Writes the SHA-256 of the normalised text in
 * hexadecimal. Like Jinja, it converts line ends to LF, and removes one at the end of the text.
 */
const struct tess_chat_form *tess_chat_recognise(const char *text, size_t len, char sha256[65]);

const struct tess_chat_form *tess_chat_find_form(const char *name);

#endif

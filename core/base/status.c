#include "core/base/sized.h"

#include "core/base/limit.h"

#include <stdio.h>
#include <string.h>

enum { SENTENCE_SIZE = 2048 };

static _Thread_local char sentence[SENTENCE_SIZE];

/* Stores a message without control characters: it may quote a hostile file on a terminal. */
static void store_sentence(char *text)
{
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	memcpy(sentence, text, strlen(text) + 1);
}

tess_status tess_fail(tess_status why, const char *fmt, ...)
{
	char text[SENTENCE_SIZE]; /* the arguments may be the old message */
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	tess_limit_append(text, sizeof text);
	store_sentence(text);
	return why;
}

tess_status tess_fail_in(tess_status why, const char *fmt, ...)
{
	char text[SENTENCE_SIZE];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (n >= 0 && n < SENTENCE_SIZE - 2) {
		memcpy(text + n, ": ", 2);
		text[SENTENCE_SIZE - 1] = '\0';
		memccpy(text + n + 2, sentence, '\0', (size_t)(SENTENCE_SIZE - n - 3));
	}
	store_sentence(text);
	return why;
}

tess_status tess_fail_null(const char *function, const char *arguments, size_t i)
{
	for (; i; i--)
		arguments += strcspn(arguments, ",") + strlen(", ");
	return tess_fail(TESS_EINVAL, "%s: %.*s is NULL", function, (int)strcspn(arguments, ","),
	                 arguments);
}

const char *tess_error(void)
{
	return sentence;
}

void tess_error_clear(void)
{
	*sentence = '\0';
}

const char *tess_status_name(tess_status st)
{
	static const char *const names[] = {
		"TESS_OK",       "TESS_EINVAL",  "TESS_ENOMEM",   "TESS_ENOTSUP",   "TESS_ENOENT",
		"TESS_EABI",     "TESS_EPERM",   "TESS_ETIMEOUT", "TESS_EMISMATCH", "TESS_EPEER",
		"TESS_EABORTED", "TESS_EDEVICE", "TESS_EIO",      "TESS_EBUG",
	};

	if (st == TESS_PENDING)
		return "TESS_PENDING";
	return st <= 0 && st >= TESS_EBUG ? names[-st] : "unknown status";
}

#include "lines.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void put(struct tess_lines *l, const char *text, size_t len)
{
	struct iovec piece[] = {
		{ l->prefix, strlen(l->prefix) },
		{ (void *)text, len },
		{ "\n", 1 },
	};

	while (writev(l->to, piece, 3) < 0 && errno == EINTR)
		;
	while (l->log >= 0 && writev(l->log, piece + 1, 2) < 0 && errno == EINTR)
		;
}

bool tess_lines_pump(struct tess_lines *l)
{
	for (;;) {
		ssize_t n = read(l->from, l->text + l->len, sizeof l->text - l->len);
		char *at = l->text, *end;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return true;
		if (n <= 0) {
			tess_lines_end(l);
			return false;
		}
		l->len += (size_t)n;
		while ((end = memchr(at, '\n', l->len))) {
			put(l, at, (size_t)(end - at));
			l->len -= (size_t)(end + 1 - at);
			at = end + 1;
		}
		memmove(l->text, at, l->len);
		if (l->len == sizeof l->text) {
			put(l, l->text, l->len);
			l->len = 0;
		}
	}
}

void tess_lines_end(struct tess_lines *l)
{
	if (l->len)
		put(l, l->text, l->len);
	l->len = 0;
	if (l->from >= 0)
		close(l->from);
	l->from = -1;
}

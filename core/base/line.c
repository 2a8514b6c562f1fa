#include "core/base/line.h"

#include "core/base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static tess_status grow_line(struct tess_line *line)
{
	size_t capacity = 2 * line->capacity + 4096;
	char *more = realloc(line->text, capacity);

	if (!more)
		return tess_fail(TESS_ENOMEM, "out of memory for a line of %zu bytes", capacity);
	line->text = more;
	line->capacity = capacity;
	return TESS_OK;
}

tess_status tess_line_read(FILE *f, int end, size_t max, struct tess_line *line)
{
	tess_status st;
	int c;

	line->len = 0;
	do {
		st = line->len + 1 < line->capacity ? TESS_OK : grow_line(line);
		if (st)
			return st;
		c = getc_unlocked(f);
		if (c != EOF && line->len == max)
			return tess_fail(TESS_EINVAL, "more than %zu bytes, the limit", max);
		if (c != EOF)
			line->text[line->len++] = (char)c;
	} while (c != EOF && c != end);
	line->text[line->len] = '\0';
	return c == EOF && ferror(f) ? tess_fail(TESS_EIO, "%s", strerror(errno)) : TESS_OK;
}

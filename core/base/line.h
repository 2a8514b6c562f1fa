/* line.h - lines and files of untrusted length. */
#ifndef TESS_BASE_LINE_H
#define TESS_BASE_LINE_H

#include <stdio.h>
#include <tessera/plugin.h>

/* A line; {0} is empty. Free `text`. */
struct tess_line {
	char *text; /* ends with a 0 that `len` does not count */
	size_t len, capacity;
};

enum {
	TESS_LINE_MAX = 1 << 27
}; /* bytes of a line of JSON: a text of 16 MiB in escapes, and more */

/*
 * Reads up to and including the byte `end`; with EOF to the end of the file. len 0: the end of the
 * file. TESS_EINVAL: more than `max` bytes.
 */
tess_status tess_line_read(FILE *f, int end, size_t max, struct tess_line *line);

#endif

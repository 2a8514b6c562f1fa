/*
 * lines.h - what several processes write, told apart: whole lines with a prefix, one write a line.
 */
#ifndef TESS_COMM_LINES_H
#define TESS_COMM_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct tess_lines {
	int from, to; /* from: non-blocking, -1 when it has ended */
	int log; /* a file that gets the lines without the prefix; -1: none */
	char prefix[16];
	char text[8192]; /* a line that has no end yet; a longer one is cut in pieces */
	size_t len;
};

/*
 * Passes on what is there. false: the end, after which what was left is passed on and `from` is
 * closed.
 */
bool tess_lines_pump(struct tess_lines *l);
/* What is left comes out as a line, and `from` is closed. */
void tess_lines_end(struct tess_lines *l);

#endif

/*
 * lines.h - what several processes write, told apart: whole lines with a prefix. Nothing here blocks: lines
 * that cannot be written wait in memory of a fixed size, and when that is full their writer is not read.
 */
#ifndef TESS_COMM_LINES_H
#define TESS_COMM_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct tess_sink { /* where lines go */
	int fd;
	bool own, socket; /* fd is to be closed; it is a socket */
	int error; /* errno of a write that failed, after which what comes is dropped; 0: none */
	size_t begin, end; /* what waits in: */
	char text[1 << 16];
};

struct tess_output_mux {
	int from; /* non-blocking, -1 when it has ended */
	struct tess_sink *to;
	int log; /* a file that gets the lines without the prefix; -1: none */
	int error; /* errno of a write to it that failed; 0: none */
	char prefix[16];
	char text[8192]; /* the last has no end yet; a longer one is cut in pieces */
	size_t len;
	size_t left; /* bytes that are read yet; SIZE_MAX: all that come */
	bool full; /* a line waits for room in `to` */
};

/* fd stays the caller's, and whether it blocks is left as it is. */
void tess_sink_open(struct tess_sink *s, int fd);
/* Writes what does not block, at most what waits now. */
void tess_sink_flush(struct tess_sink *s);
bool tess_sink_waits(const struct tess_sink *s);
void tess_sink_close(struct tess_sink *s);

/* Reads once, and passes on whole lines that have room. At the end of `from` the rest is a line too. */
void tess_output_mux_forward(struct tess_output_mux *l);
/* Whether there is room for more of `from`. */
bool tess_lines_hungry(const struct tess_output_mux *l);
/* `from` has ended, and all lines were passed on. */
bool tess_lines_over(const struct tess_output_mux *l);
/* What lies in `from` now is the last that is read of it, whoever holds it open. */
void tess_lines_last(struct tess_output_mux *l);
void tess_lines_close(struct tess_output_mux *l);

#endif

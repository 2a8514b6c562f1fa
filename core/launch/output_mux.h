/*
 * output_mux.h - merges the output of several processes as full lines with a prefix. Nothing
 * blocks: pending lines wait in a buffer of fixed size, and while it is full its writers are not
 * read.
 */
#ifndef TESS_LAUNCH_OUTPUT_MUX_H
#define TESS_LAUNCH_OUTPUT_MUX_H

#include <stdbool.h>
#include <stddef.h>

struct tess_sink { /* the destination of lines */
	int fd;
	bool owned, socket; /* fd is closed with the sink; fd is a socket */
	int error; /* errno of a failed write, after which output is dropped; 0: none */
	size_t begin, end; /* the range of pending bytes */
	char text[1 << 16];
};

struct tess_output_mux {
	int from; /* non-blocking; -1: ended */
	struct tess_sink *to;
	int log; /* a file for the lines without the prefix; -1: none */
	int error; /* errno of a failed write to `log`; 0: none */
	char prefix[16];
	char text[8192]; /* lines, the last one incomplete; longer ones are split */
	size_t len;
	size_t left; /* bytes left to read; SIZE_MAX: up to the end */
	bool full; /* a line waits for space in `to` */
};

/* Opens a sink on fd, which is borrowed and keeps its blocking mode. */
void tess_sink_open(struct tess_sink *s, int fd);
/* Writes pending bytes as far as that does not block. */
void tess_sink_flush(struct tess_sink *s);
bool tess_sink_waits(const struct tess_sink *s);
void tess_sink_close(struct tess_sink *s);

/* Reads once and forwards full lines that fit. At the end of `from` the rest is a line, too. */
void tess_output_mux_forward(struct tess_output_mux *mux);
/* Returns whether there is space for more input. */
bool tess_output_mux_can_read(const struct tess_output_mux *mux);
/* Returns whether `from` has ended and all lines have been forwarded. */
bool tess_output_mux_ended(const struct tess_output_mux *mux);
/* Limits reading to the current contents of the pipe, even if a process holds it open. */
void tess_output_mux_finish(struct tess_output_mux *mux);
void tess_output_mux_close(struct tess_output_mux *mux);

#endif

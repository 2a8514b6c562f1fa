/* source.h - where a program's parameters come from: a checkpoint, to nn, is these few calls. */
#ifndef TESS_NN_SOURCE_H
#define TESS_NN_SOURCE_H

#include <jansson.h>
#include <stdbool.h>
#include <tessera/device.h>

struct tess_source {
	void *self;
	const char *name; /* for messages: the directory */
	const json_t *config; /* config.json */
	/*
	 * The parameter as stored, rows, contiguous; its data may be unaligned, is NULL where only headers were read, and
	 * stays borrowed. TESS_ENOENT with a
	 * sentence (nearest name) when it is not there.
	 */
	tess_status (*find)(void *self, const char *name, struct tess_view *out);
	/* These bytes will not be read again soon: mapped pages may go. */
	void (*drop)(void *self, const void *data, uint64_t bytes);
	/* The names of all that is stored; i < count. */
	size_t count;
	const char *(*at)(void *self, size_t i);
	bool ignore_unexpected; /* stored parameters that no module asks for are a warning */
};

#endif

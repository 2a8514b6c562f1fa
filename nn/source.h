/* source.h - the interface through which nn reads a checkpoint. */
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
	 * The parameter as stored: contiguous rows. Its data are borrowed, may be unaligned, and
	 * are NULL where only headers were read. ndim -1: its file is absent; the shape is that of
	 * the model, the dtype that of config.json. TESS_ENOENT, with the nearest name, when there
	 * is none.
	 */
	tess_status (*find)(void *self, const char *name, struct tess_view *out);
	/* These bytes will not be read again soon: mapped pages may be dropped. */
	void (*drop)(void *self, const void *data, uint64_t bytes);
	/* The names of all stored parameters; i < count. */
	size_t count;
	const char *(*at)(void *self, size_t i);
	bool ignore_unexpected; /* warn of parameters that no module uses, instead of failing */
};

#endif

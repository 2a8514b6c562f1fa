/* source.h - the interface through which nn reads a checkpoint. */
#ifndef TESS_NN_SOURCE_H
#define TESS_NN_SOURCE_H

#include <jansson.h>
#include <stdbool.h>
#include <string.h>
#include <tessera/device.h>

enum {
	TESS_ADVISE_SOON, /* read() will read it soon: reading from the disk begins */
	TESS_ADVISE_DONE, /* it will not be read soon: its pages leave the page cache */
	TESS_ADVISE_ROWS /* a few rows will be accessed in the mapping */
};

struct tess_source {
	void *self;
	const char *name; /* for messages: the directory */
	const json_t *config; /* config.json */
	/*
	 * Finds a parameter as stored: contiguous rows. Its data are borrowed, may be unaligned,
	 * and are NULL if they are not in memory. ndim -1: its file is absent; the shape is that of
	 * the model, the dtype that of config.json. A parameter of TESS_MXFP4 is rows of blocks
	 * (tessera/device.h), for read().
	 * TESS_ENOENT: no such parameter; the message has the nearest name.
	 */
	tess_status (*find)(void *self, const char *name, struct tess_view *out);
	/* Copies bytes [at, at + bytes) of a parameter; NULL if all data are in memory. */
	tess_status (*read)(void *self, const char *name, uint64_t at, uint64_t bytes, void *out);
	/* Drops mapped pages of these bytes, which will not be read again soon. */
	void (*drop)(void *self, const void *data, uint64_t bytes);
	/*
	 * Advises how bytes [at, at + bytes) of a parameter will be used: TESS_ADVISE_... NULL: no
	 * advice is taken. Does not block for long.
	 */
	void (*advise)(void *self, const char *name, uint64_t at, uint64_t bytes, int32_t how);
	/*
	 * TESS_EIO: the file of a parameter has changed since it was opened; the message has its
	 * path. NULL: it cannot.
	 */
	tess_status (*check)(void *self, const char *name);
	/* Returns whether find() finds a name; NULL: every parameter has its own name in files. */
	bool (*has)(void *self, const char *name);
	/* The names of all stored parameters, in order; i < count. */
	size_t count;
	const char *(*at)(void *self, size_t i);
	bool unread; /* data are NULL since only headers were read; they would be mapped */
	bool ignore_unexpected; /* warn of parameters that no module uses, instead of failing */
};

/* Reads bytes of a parameter from find(), in memory or not. */
static inline tess_status tess_source_read(const struct tess_source *s, const char *name,
                                           const struct tess_view *v, uint64_t at, uint64_t bytes,
                                           void *out)
{
	if (!v->data)
		return s->read(s->self, name, at, bytes, out);
	memcpy(out, (const char *)v->data + at, bytes);
	return TESS_OK;
}

#endif

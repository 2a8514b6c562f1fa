/*
 * buffer.h - buffers of calls. A late write may follow the failure of a call, so buffers that are
 * freed after it are kept until the world is closed.
 */
#ifndef TESS_GROUP_BUFFER_H
#define TESS_GROUP_BUFFER_H

#include <stddef.h>

struct tess_world;

/* Returns `bytes` bytes, aligned to 64 and not initialized; NULL: no memory. */
void *tess_world_buffer_new(size_t bytes);
/* Frees a buffer; if the world has failed, tess_world_buffers_free does it. NULL is accepted. */
void tess_world_buffer_free(struct tess_world *w, void *buffer);
/* Frees kept buffers, after all groups are closed. */
void tess_world_buffers_free(struct tess_world *w);

#endif

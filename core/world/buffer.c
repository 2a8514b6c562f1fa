#include "core/world/buffer.h"

#include "core/world/world.h"

#include <stdlib.h>

struct tess_buffer { /* precedes the bytes of a buffer */
	_Alignas(64) struct tess_buffer *next;
};

void *tess_world_buffer_new(size_t bytes)
{
	struct tess_buffer *b = aligned_alloc(64, sizeof *b + (bytes + 63) / 64 * 64);

	return b ? b + 1 : NULL;
}

void tess_world_buffer_free(struct tess_world *w, void *buffer)
{
	struct tess_buffer *b = buffer ? (struct tess_buffer *)buffer - 1 : NULL;

	if (!b || !atomic_load(&w->failed)) {
		free(b);
		return;
	}
	b->next = w->buffers;
	w->buffers = b;
}

void tess_world_buffers_free(struct tess_world *w)
{
	for (struct tess_buffer *b = w->buffers, *next; b; b = next) {
		next = b->next;
		free(b);
	}
	w->buffers = NULL;
}

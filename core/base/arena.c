#include "core/base/arena.h"

#include "core/base/status.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a block. Small ones, as in script/sweep-allocations, let each allocation fail alone. */
#ifndef ARENA_BYTES
#define ARENA_BYTES (1 << 16)
#endif

struct tess_block {
	struct tess_block *next;
	size_t used, capacity;
	_Alignas(16) unsigned char data[];
};

/* Blocks that this thread keeps between tess_arena_keep_blocks and tess_arena_drop_blocks. */
static _Thread_local struct kept_blocks {
	struct tess_block *block[2]; /* of ARENA_BYTES; larger ones */
	int32_t times; /* nested calls */
} kept;

void tess_arena_keep_blocks(void)
{
	kept.times++;
}

void tess_arena_drop_blocks(void)
{
	if (--kept.times)
		return;
	for (int i = 0; i < 2; i++) {
		struct tess_arena all = { kept.block[i] };

		kept.block[i] = NULL;
		tess_arena_free(&all);
	}
}

/* Returns a zeroed block that was kept, of at least `capacity` bytes and not twice as many. */
static struct tess_block *take_block(size_t capacity)
{
	for (struct tess_block **at = &kept.block[capacity > ARENA_BYTES]; *at; at = &(*at)->next) {
		struct tess_block *b = *at;

		if (b->capacity < capacity || b->capacity / 2 >= capacity)
			continue;
		*at = b->next;
		memset(b->data, 0, b->used);
		b->used = 0;
		return b;
	}
	return NULL;
}

static struct tess_block *open_block(size_t capacity)
{
	struct tess_block *b = take_block(capacity);

	if (b)
		return b;
	b = calloc(1, sizeof *b + capacity);
	if (b)
		b->capacity = capacity;
	else
		tess_fail(TESS_ENOMEM, "out of memory: %zu bytes", capacity);
	return b;
}

void *tess_arena_alloc(struct tess_arena *a, size_t bytes)
{
	struct tess_block *b = a->top;

	if (bytes > SIZE_MAX / 4) {
		tess_fail(TESS_ENOMEM, "%zu bytes requested at once", bytes);
		return NULL;
	}
	bytes = (bytes + 15) & ~(size_t)15;
	if (!b || b->capacity - b->used < bytes) {
		b = open_block(bytes > ARENA_BYTES ? bytes : ARENA_BYTES);
		if (!b)
			return NULL;
		b->next = a->top;
		a->top = b;
	}
	b->used += bytes;
	return b->data + b->used - bytes;
}

void *tess_arena_grow(struct tess_arena *a, void *list, size_t n, size_t each)
{
	void *longer;

	if (n & (n - 1))
		return list;
	longer = tess_arena_alloc(a, each * (n ? 2 * n : 1));
	if (longer && n)
		memcpy(longer, list, each * n);
	return longer;
}

char *tess_arena_copy(struct tess_arena *a, const char *s, size_t len)
{
	size_t n = strnlen(s, len);
	char *p = tess_arena_alloc(a, n + 1);

	if (p)
		memcpy(p, s, n);
	return p;
}

char *tess_arena_vformat(struct tess_arena *a, const char *fmt, va_list ap)
{
	va_list again;
	char *p;
	int n;

	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	p = n < 0 ? NULL : tess_arena_alloc(a, (size_t)n + 1);
	if (p)
		vsnprintf(p, (size_t)n + 1, fmt, again);
	va_end(again);
	return p;
}

char *tess_arena_format(struct tess_arena *a, const char *fmt, ...)
{
	va_list ap;
	char *p;

	va_start(ap, fmt);
	p = tess_arena_vformat(a, fmt, ap);
	va_end(ap);
	return p;
}

void tess_arena_free(struct tess_arena *a)
{
	while (a->top) {
		struct tess_block *b = a->top;

		a->top = b->next;
		if (kept.times) {
			struct tess_block **list = &kept.block[b->capacity > ARENA_BYTES];

			b->next = *list;
			*list = b;
		} else {
			free(b);
		}
	}
}

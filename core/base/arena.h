/* arena.h - memory that is freed at once: what a program, a plan or a header is made of. */
#ifndef TESS_BASE_ARENA_H
#define TESS_BASE_ARENA_H

#include <stddef.h>
#include <tessera/plugin.h>

/* {0}: empty. */
struct tess_arena {
	struct tess_block *top;
};

/* `bytes` zeroed, 16-byte aligned, valid until tess_arena_free; NULL (and a sentence) without memory. */
void *tess_arena_alloc(struct tess_arena *a, size_t bytes);
/* A copy of at most `len` bytes of `s`, ended by 0. */
char *tess_arena_copy(struct tess_arena *a, const char *s, size_t len);
/*
 * Room for one more entry, of `each` bytes, of a list of n: the list as it is, or, where n is a power of
 * two, a copy twice as long. NULL (and a sentence) without memory. The list begins as NULL.
 */
void *tess_arena_grow(struct tess_arena *a, void *list, size_t n, size_t each);
char *tess_arena_format(struct tess_arena *a, const char *fmt, ...) TESS_PRINTF(2, 3);
/* Frees everything; the arena is empty and usable again. */
void tess_arena_free(struct tess_arena *a);

#define TESS_NEW(arena, type, n) ((type *)tess_arena_alloc((arena), sizeof(type) * (size_t)(n)))

#endif

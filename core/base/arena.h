/* arena.h - memory that is freed all at once: for programs, plans, headers. */
#ifndef TESS_BASE_ARENA_H
#define TESS_BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>
#include <tessera/plugin.h>

/* An arena; {0} is empty. */
struct tess_arena {
	struct tess_block *top;
};

/*
 * Returns `bytes` zeroed bytes, aligned to 16, valid until tess_arena_free. NULL, with a message:
 * no memory.
 */
void *tess_arena_alloc(struct tess_arena *a, size_t bytes);
/* Returns a copy of at most `len` bytes of `s`, ended by 0. */
char *tess_arena_copy(struct tess_arena *a, const char *s, size_t len);
/*
 * Grows a list of n entries of `each` bytes by one. Returns the list, or, if n is 0 or a power of
 * two, a copy of twice the capacity. An empty list is NULL. NULL, with a message: no memory.
 */
void *tess_arena_grow(struct tess_arena *a, void *list, size_t n, size_t each);
char *tess_arena_format(struct tess_arena *a, const char *fmt, ...) TESS_PRINTF(2, 3);
char *tess_arena_vformat(struct tess_arena *a, const char *fmt, va_list ap) TESS_PRINTF(2, 0);
/* Frees everything; the arena is empty and usable again. */
void tess_arena_free(struct tess_arena *a);
/*
 * Until tess_arena_drop_blocks, this thread keeps the memory of arenas that it frees for its next
 * arenas: to make many programs one after another. Calls nest.
 */
void tess_arena_keep_blocks(void);
void tess_arena_drop_blocks(void);

#define TESS_NEW(arena, type, n) ((type *)tess_arena_alloc((arena), sizeof(type) * (size_t)(n)))

#endif

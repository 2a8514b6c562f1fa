/*
 * shape.h - what is known of a call once it was looked at, so that the next one like it, of which only
 * the buffers and the place differ, is not looked at again. A program makes few calls, many times.
 */
#ifndef TESS_COMM_SHAPE_H
#define TESS_COMM_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <tessera/group.h>

enum { TESS_SHAPE_WORDS = 5 };

/* Kind, dtype, op, mem, peer: they lie side by side. */
static inline const char *tess_shape_words(const struct tess_coll *c)
{
	return (const char *)c + offsetof(struct tess_coll, kind);
}

struct tess_shape { /* zeroed: of no call */
	int32_t word[TESS_SHAPE_WORDS];
	bool in_place;
	uint64_t count;
	uint64_t src, dst; /* bytes that this rank reads and writes there */
	uint64_t astray; /* bits that the address of no element has */
	uint64_t what; /* for its print (note.h) */
	int32_t has; /* the backend makes such calls: -1: no, 1: yes, 0: it was not asked */
};
_Static_assert(offsetof(struct tess_coll, peer) - offsetof(struct tess_coll, kind) ==
                       (TESS_SHAPE_WORDS - 1) * sizeof(int32_t),
               "words of a call");

/*
 * A call without lists that rank `rank` of `nranks` may make, as its caller gave it, and with what was
 * left out: it was checked.
 */
void tess_shape_learn(struct tess_shape *s, const struct tess_coll *given,
                      const struct tess_coll *c, int32_t rank, int32_t nranks);

/* Whether the call, as its caller gave it, is like it, and its buffers are there, aligned, and apart or one. */
static inline bool tess_shape_fits(const struct tess_shape *s, const struct tess_coll *c)
{
	uintptr_t src = (uintptr_t)c->src, dst = (uintptr_t)c->dst;

	if (memcmp(s->word, tess_shape_words(c), sizeof s->word) || s->count != c->count ||
	    c->give || c->get || s->in_place != (src == dst))
		return false;
	if ((s->src && !src) || (s->dst && !dst) || (src | dst) & s->astray)
		return false;
	return src == dst || src >= dst + s->dst || dst >= src + s->src;
}

#endif

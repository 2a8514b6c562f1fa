/*
 * kv_cache.h - keys and values of texts, in pages of 64 positions that page tables find.
 *
 * A slot holds one text. A page holds 64 positions of one slot for all layers of one class, those
 * with the same window. Pages are allocated as texts grow, in slabs of a sixteenth of those that
 * there are (of one page where there are several classes), and are used again when a text ends or a
 * window has passed them. All memory is the device's, and is written by its copy().
 *
 * Every rank makes the same calls in the same order, and decides alike: what has a limit is counted
 * in the bytes of the rank that needs most. Calls that allocate agree on it and are collective.
 */
#ifndef TESS_NN_KV_CACHE_H
#define TESS_NN_KV_CACHE_H

#include "nn/lower/lower.h"
#include "nn/weights/device.h"

#include <tessera/tessera.h>

struct tess_kv_cache;

struct tess_kv_parts { /* borrowed for the life of the cache */
	struct tess_opened_device device;
	struct tess_group *group;
	const struct tess_page_class *page_class;
	int32_t nclasses;
	uint64_t limit; /* bytes of pages; 0: none */
	/* its ranks are stages of a pipeline, which go on while others compute: they allocate more
	 * pages at a time, and so meet less often */
	bool in_stages;
};
/* Collective. *out is yours: tess_kv_cache_free. */
tess_status tess_kv_cache_new(const struct tess_kv_parts *parts, struct tess_kv_cache **out);
void tess_kv_cache_free(struct tess_kv_cache *c);

/* The lowest slot that is not open. TESS_ENOMEM: nothing has changed. */
tess_status tess_kv_cache_open_slot(struct tess_kv_cache *c, int32_t *slot);
/* Its pages are free again. */
void tess_kv_cache_close_slot(struct tess_kv_cache *c, int32_t slot);
bool tess_kv_cache_is_open(const struct tess_kv_cache *c, int32_t slot);
/* Marks an open slot for step number `step`; false: it is marked already. */
bool tess_kv_cache_mark_slot(struct tess_kv_cache *c, int32_t slot, int64_t step);
/* Positions that the slot has: those of all tess_kv_cache_advance. */
int64_t tess_kv_cache_get_length(const struct tess_kv_cache *c, int32_t slot);

/*
 * Gives the slot pages for its next n positions. TESS_ENOMEM: the limit or the memory does not
 * suffice, on any rank; pages that it got already stay its own.
 */
tess_status tess_kv_cache_grow(struct tess_kv_cache *c, int32_t slot, int64_t n);
/*
 * Counts the next n positions, whose step is queued, and frees the pages that windows have passed.
 * A queued step may still read these pages; steps that write them again are queued after it.
 */
void tess_kv_cache_advance(struct tess_kv_cache *c, int32_t slot, int64_t n);
/*
 * Forgets the positions from `length` on; the slot keeps their pages. False: pages that the next
 * position sees were dropped, and nothing has changed.
 */
bool tess_kv_cache_rewind(struct tess_kv_cache *c, int32_t slot, int64_t length);

struct tess_kv_tables { /* in the device's memory: per class [slots][blocks] */
	int64_t *page;
	int64_t slots, blocks;
};
/*
 * Brings the tables in the device's memory up to date, by a queued copy; they may move. turn: 0 or
 * 1, not that of a call whose copy may be under way.
 */
tess_status tess_kv_cache_write_tables(struct tess_kv_cache *c, int32_t turn,
                                       struct tess_kv_tables *out);

struct tess_kv_usage {
	int64_t used_pages, free_pages; /* of all classes */
	uint64_t bytes; /* allocated on this rank */
	/* bytes of used pages on the rank that needs most; INT64_MAX: no limit */
	uint64_t used, limit;
};
struct tess_kv_usage tess_kv_cache_get_usage(const struct tess_kv_cache *c);
/* The most bytes that a text of so many positions uses, fed in chunks; of the rank as above. */
uint64_t tess_kv_cache_count_bytes(const struct tess_kv_cache *c, int64_t positions, int64_t chunk);

#endif

/*
 * kv_cache.h - keys and values of sequences, in pages of 64 positions with page tables.
 *
 * A slot contains one sequence. A page contains 64 positions of one slot for all layers of one
 * class, the layers with one window. Pages are allocated as sequences grow, in slabs of a sixteenth
 * of all pages, or of one page if there are several classes. They are reused when a sequence ends
 * or a window has passed them. All memory is the device's, and is written by its copy().
 *
 * Every rank makes the same calls in the same order, and decides alike: limits count the bytes of
 * the most loaded rank. Calls that allocate agree on the result, and are collective. Ranks that are
 * apart agree on limits only: if one of them lacks memory, the job fails.
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
	uint64_t limit; /* maximum bytes of pages; 0: no limit */
	bool apart; /* ranks do not wait for each other: see nn/program/agree.h */
};
/* Collective. *out is yours: tess_kv_cache_free. */
tess_status tess_kv_cache_new(const struct tess_kv_parts *parts, struct tess_kv_cache **out);
void tess_kv_cache_free(struct tess_kv_cache *c);

/* Opens the lowest slot that is not open. TESS_ENOMEM: nothing has changed. */
tess_status tess_kv_cache_open_slot(struct tess_kv_cache *c, int32_t *slot);
/* Closes a slot, and frees its pages. */
void tess_kv_cache_close_slot(struct tess_kv_cache *c, int32_t slot);
bool tess_kv_cache_is_open(const struct tess_kv_cache *c, int32_t slot);
/* Marks an open slot for step number `step`; false: it is already marked. */
bool tess_kv_cache_mark_slot(struct tess_kv_cache *c, int32_t slot, int64_t step);
/* Returns the number of positions of the slot, the sum of all tess_kv_cache_advance. */
int64_t tess_kv_cache_get_length(const struct tess_kv_cache *c, int32_t slot);

/*
 * Gives the slot pages for its next n positions. TESS_ENOMEM: a rank's limit or memory is too
 * small; the slot keeps the pages it has got.
 */
tess_status tess_kv_cache_grow(struct tess_kv_cache *c, int32_t slot, int64_t n);
/*
 * Counts the next n positions, whose step is queued, and frees the pages that windows have passed.
 * A queued step may still read these pages; steps that write them again are queued after it.
 */
void tess_kv_cache_advance(struct tess_kv_cache *c, int32_t slot, int64_t n);
/*
 * Drops the positions from `length` on; the slot keeps their pages. Returns false, without a
 * change, if pages that the next position attends to were dropped.
 */
bool tess_kv_cache_rewind(struct tess_kv_cache *c, int32_t slot, int64_t length);

struct tess_kv_tables { /* in device memory: [slots][blocks] of each class */
	int64_t *page;
	int64_t slots, blocks;
};
/*
 * Updates the tables in device memory by a queued copy; they may move. turn: 0 or 1, other than in
 * a call whose copy may be under way.
 */
tess_status tess_kv_cache_write_tables(struct tess_kv_cache *c, int32_t turn,
                                       struct tess_kv_tables *out);

struct tess_kv_usage {
	int64_t used_pages, free_pages; /* totals of all classes */
	uint64_t bytes; /* allocated on this rank */
	/* bytes of used pages on the most loaded rank; limit INT64_MAX: none */
	uint64_t used, limit;
};
struct tess_kv_usage tess_kv_cache_get_usage(const struct tess_kv_cache *c);
/*
 * Returns the maximum number of pages of a sequence of this length in a class with this window,
 * fed in chunks.
 */
int64_t tess_kv_count_pages(int64_t window, int64_t positions, int64_t chunk);
/*
 * Returns the maximum bytes of a sequence of this length, fed in chunks, on the most loaded rank.
 */
uint64_t tess_kv_cache_count_bytes(const struct tess_kv_cache *c, int64_t positions, int64_t chunk);

#endif

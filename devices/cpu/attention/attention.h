/*
 * attention.h - shared by attention.c (separate values), latent.c (values are the first elements of
 * keys), and attention_d.c (the backward).
 */
#ifndef TESS_DEVICES_CPU_ATTENTION_H
#define TESS_DEVICES_CPU_ATTENTION_H

#include <math.h>

#include "dropout.h"
#include "tile.h"

enum { KEY_LEVELS = 27 }; /* the tree of KEY_UNITS units */
enum { BLOCK_TILES = 11 }; /* tiles whose sums advance together */
enum { SCORES_MAX = 1 << 18 }; /* floats of their scores */

struct slot_rows { /* adjacent rows of one slot */
	int64_t row, rows;
	const int64_t *page; /* addresses of the slot's pages */
	int64_t lo, hi; /* units of their keys */
	bool by_heads;
	int64_t tile_rows; /* rows of a full tile */
	int64_t tiles; /* tiles of a head, or of the heads of one key-value head */
	int64_t all_tiles, together; /* tiles of one token if by_heads, else of all; of a task */
	int64_t first_task;
};

struct attention {
	struct cpu *cpu;
	const struct tess_op *op;
	int64_t d, heads, kv, window, lo, group;
	int64_t value, value_step; /* elements of a value; elements between positions */
	bool chunked; /* the window is the chunk of a row */
	float scale, softcap;
	struct dropout drop; /* dropout of weights */
	int64_t site; /* site of local head 0 */
	const struct tess_view *sinks; /* one for each local head, or NULL */
	int32_t dtype; /* dtype of the cache */
	int64_t width; /* bytes of its elements */
	int64_t keys, values; /* offsets in a page, bytes */
	int64_t blocks; /* pages made for sequences without a cache; 0: the op has pages */
	struct slot_rows *list;
	int64_t nlist;
	int64_t pitch; /* floats of a row of scores: the keys of a tile, and LANES more */
};

/* One tile of queries, with the keys of each row. */
struct tile {
	const struct slot_rows *of;
	int64_t rows, kv;
	/* row r: head `head` + (at + r) % share of token `token` + (at + r) / share */
	int64_t token, head, at, share;
	int64_t first[TILE_ROWS], end[TILE_ROWS]; /* positions */
	int64_t lo, hi; /* units of the keys of any row */
	float *score, *scratch; /* [rows][pitch]; memory for the sums */
};

static inline int64_t get_tile_token(const struct tile *t, int64_t r)
{
	return t->token + (t->at + r) / t->share;
}

static inline int64_t get_tile_head(const struct tile *t, int64_t r)
{
	return t->head + (t->at + r) % t->share;
}

/*
 * Returns the keys or the values (at `offset` of a page) of key-value head g in unit u of a slot,
 * `each` elements per position.
 */
static inline char *get_cached_block(const struct attention *a, const struct slot_rows *of,
                                     int64_t u, int64_t offset, int64_t g, int64_t each)
{
	return (char *)(uintptr_t)of->page[u] + offset + g * each * KEYS * a->width;
}

/* Stores a head's n elements `step` elements apart. */
#define attention_store_head CPU_NAME(attention_store_head)
void attention_store_head(const struct attention *a, char *to, int64_t step, const float *x,
                          int64_t n);

/* Returns the first local head that reads key-value head g. */
static inline int64_t find_first_head(const struct attention *a, int64_t g)
{
	int64_t head = (a->lo / a->group + g) * a->group - a->lo;

	return head > 0 ? head : 0;
}

static inline int64_t find_end_head(const struct attention *a, int64_t g)
{
	int64_t end = (a->lo / a->group + g + 1) * a->group - a->lo;

	return end < a->heads ? end : a->heads;
}

/* Returns the sink of a local head; -INFINITY: none. */
static inline float get_sink(const struct attention *a, int64_t head)
{
	return a->sinks ? load_weight_element(a->sinks->data, a->sinks->dtype,
	                                      head * a->sinks->stride[0])
	                : -INFINITY;
}

/* Returns the first position visible from `position`. */
static inline int64_t get_first_key(const struct attention *a, int64_t position)
{
	if (a->chunked)
		return position - position % a->window;
	return a->window && position >= a->window ? position - a->window + 1 : 0;
}

/* Returns the position after the last one that sees the key at `position`; there is a window. */
static inline int64_t get_end_query(const struct attention *a, int64_t position)
{
	return position + a->window - (a->chunked ? position % a->window : 0);
}

/* Returns the maximum number of units of keys of `rows` queries of a slot. */
static inline int64_t attention_count_units(const struct attention *a, const struct slot_rows *of,
                                            int64_t rows)
{
	int64_t all = of->hi - of->lo, seen = (a->window + rows - 2) / KEYS + 2;

	return a->window && seen < all ? seen : all;
}

/* Reads the numbers of an op; sets no slots. */
#define attention_read CPU_NAME(attention_read)
struct attention attention_read(struct cpu *cpu, const struct tess_op *op);

/* Counts the bytes of the list of slots and of the pages made after it, a multiple of 64. */
#define attention_count_list_bytes CPU_NAME(attention_count_list_bytes)
size_t attention_count_list_bytes(const struct attention *a);

/* Finds the rows and pages of each slot; makes pages if the op has none. */
#define attention_list_slots CPU_NAME(attention_list_slots)
tess_status attention_list_slots(struct attention *a, void *memory);

/* Sets the keys of the rows. */
#define attention_see_keys CPU_NAME(attention_see_keys)
void attention_see_keys(const struct attention *a, struct tile *t);

/* Turns scores into weights: softcap, softmax, dropout. */
#define attention_apply_softmax CPU_NAME(attention_apply_softmax)
void attention_apply_softmax(const struct attention *a, const struct tile *t);

/*
 * Computes elements [from, to) of the output of n <= BLOCK_TILES tiles, whose keys are in the same
 * units. The scratch of each has attention_count_scratch(to - from) floats.
 */
#define attention_sum_values CPU_NAME(attention_sum_values)
void attention_sum_values(const struct attention *a, const struct tile *t, int64_t n, int64_t from,
                          int64_t to);

static inline int64_t attention_count_scratch(int64_t columns)
{
	return TILE_ROWS * KEY_LEVELS * tess_up(columns, LANES) * LANES + KEYS * LANES;
}

#define attention_run_latent CPU_NAME(attention_run_latent)
tess_status attention_run_latent(struct attention *a);

#endif

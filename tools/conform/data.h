/*
 * data.h - what a collective must give: numbers, the blocks that each rank sends and receives, and a check of the
 * result, byte by byte. For tessera conform, and for the tests.
 */
#ifndef TESS_CONFORM_DATA_H
#define TESS_CONFORM_DATA_H

#include <stdbool.h>
#include <tessera/tessera.h>

enum { CONFORM_RANKS = 8 };

struct conform_case {
	int32_t kind, dtype, op, root;
	uint64_t count; /* of an even block */
	bool uneven, in_place;
	bool shifted; /* buffers begin one element after a multiple of 64 bytes */
	bool special; /* NaN, infinities and subnormals among the numbers */
	bool polled; /* asked with test() until it is done, not waited for */
};

/*
 * The buffers of one case on one rank, with guards around them, and what must be there in the end. The
 * numbers are such that every order of adding gives the same bits. send: to the next rank, and recv from
 * the one before.
 */
struct conform_data {
	struct conform_case c;
	int32_t rank, n;
	int32_t ncolls; /* 1; 2: send and recv; 0: a message of one rank to itself */
	struct tess_coll coll[2];
	uint64_t send_counts[CONFORM_RANKS], recv_counts[CONFORM_RANKS];
	char *src, *dst, *expected, *copy;
	uint64_t src_bytes, dst_bytes; /* bytes */
};

tess_status conform_data_make(const struct conform_case *c, int32_t rank, int32_t n,
                              struct conform_data **out);
/* TESS_EBUG and a sentence: what is wrong where, what was expected, the rule. */
tess_status conform_data_check(const struct conform_data *d);
void conform_data_free(struct conform_data *d); /* NULL: nothing */
/*
 * Where the buffers of this thread's cases are from now on, one case at a time, while they fit: `memory` is a
 * multiple of 64. NULL: anywhere.
 */
void conform_data_use_memory(void *memory, uint64_t bytes);

/*
 * `count` elements that rank `from` sends to rank `to` (-1: to all) in a group of n; from -1: all ranks' together,
 * for a kind that reduces.
 */
void conform_data_write(const struct conform_case *c, int32_t n, int32_t from, int32_t to,
                        uint64_t count, void *out);

/* Element i of what rank `from` gives to rank `to` (-1: to all), for a kind that reduces. */
union conform_number {
	double real;
	uint64_t bits;
};
union conform_number conform_make_number(const struct conform_case *c, int32_t from, int32_t to,
                                         uint64_t i, int32_t n);
/* All ranks' numbers together. */
union conform_number conform_reduce_numbers(const struct conform_case *c, int32_t to, uint64_t i,
                                            int32_t n);
void conform_store_number(int32_t dtype, void *base, uint64_t i, union conform_number v);
bool conform_is_float(int32_t dtype);
/* A well-mixed number that depends on all three. */
uint64_t conform_hash(uint64_t a, uint64_t b, uint64_t c);

#endif

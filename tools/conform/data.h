/*
 * data.h - the expected results of collectives: the numbers, the blocks that each rank sends and
 * receives, and a check byte by byte. For `tessera conform`, `tessera bench` and the tests.
 */
#ifndef TESS_TOOLS_CONFORM_DATA_H
#define TESS_TOOLS_CONFORM_DATA_H

#include <stdbool.h>
#include <tessera/device.h>
#include <tessera/tessera.h>

enum { CONFORM_RANKS = 8 };

struct conform_memory { /* of a device; {0}: host memory */
	const struct tess_device *device;
	void *self;
	void *stream, *copies; /* of calls, and of copies: those wait for no call */
	int32_t index;
};

struct conform_case {
	int32_t kind, dtype, op, root;
	uint64_t count; /* of an even block */
	bool uneven, in_place;
	bool shifted; /* buffers begin one element after a multiple of 64 bytes */
	bool special; /* NaN, infinities and subnormals among the numbers */
	bool polled; /* by test() until it is done, instead of wait() */
};

/*
 * The buffers of one case on one rank, with guards around them, and the expected result. The
 * numbers give the same bits in every order of adding. TESS_SEND: to the next rank, and a recv from
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
	const struct conform_memory *memory; /* of the calls, with copies of src and dst; or NULL */
	char *device_src, *device_dst;
};

tess_status conform_data_make(const struct conform_case *c, int32_t rank, int32_t n,
                              struct conform_data **out);
/* TESS_EBUG: the sentence has what is wrong and where, what was expected, and the rule. */
tess_status conform_data_check(const struct conform_data *d); /* reads the device's memory */
void conform_data_free(struct conform_data *d); /* NULL: nothing */
/*
 * Puts the buffers of this thread's cases into `memory`, a multiple of 64, one case at a time and
 * while they fit. NULL: anywhere.
 */
void conform_data_use_memory(void *memory, uint64_t bytes);
/* Lets the calls of this thread's cases use memory of a device; NULL: the host's. Borrowed. */
void conform_data_use_device(const struct conform_memory *m);
/* Between host memory and the device's, or in it. Waits. */
tess_status conform_memory_copy(const struct conform_memory *m, void *dst, const void *src,
                                uint64_t bytes);

/*
 * Writes `count` elements that rank `from` sends to rank `to` (-1: to all) in a group of n, at most
 * 1024; from -1: the result of all ranks, for a kind that reduces. The elements begin with number
 * `first`, a multiple of 8. Reads kind, dtype, op and special of the case.
 */
void conform_data_write(const struct conform_case *c, int32_t n, int32_t from, int32_t to,
                        uint64_t first, uint64_t count, void *out);
/* Whether src, or dst, of this kind has a block for each rank. */
bool conform_has_src_blocks(int32_t kind);
bool conform_has_dst_blocks(int32_t kind);

/* Element i that rank `from` sends to rank `to` (-1: to all), for a kind that reduces. */
union conform_number {
	double real;
	uint64_t bits;
};
union conform_number conform_make_number(const struct conform_case *c, int32_t from, int32_t to,
                                         uint64_t i, int32_t n);
/* The result over all ranks. */
union conform_number conform_reduce_numbers(const struct conform_case *c, int32_t to, uint64_t i,
                                            int32_t n);
void conform_store_number(int32_t dtype, void *base, uint64_t i, union conform_number v);
/* The integer of type `dtype` in the low bits. */
int64_t conform_extend_integer(int32_t dtype, uint64_t bits);
/* A hash of all three. */
uint64_t conform_hash(uint64_t a, uint64_t b, uint64_t c);

#endif

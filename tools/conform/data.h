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

struct conform_memory { /* memory of a device; {0}: host memory */
	const struct tess_device *device;
	void *self;
	void *stream, *copies; /* streams of calls and of copies, which wait for no call */
	int32_t index;
};

struct conform_case {
	int32_t kind, dtype, op, root;
	uint64_t count; /* elements of an even block */
	bool uneven, in_place;
	bool shifted; /* buffers begin one element after a multiple of 64 bytes */
	bool special; /* includes NaN, infinities and subnormals */
	bool polled; /* waits by test() instead of wait() */
};

/*
 * The buffers of one case on one rank, with guards around them, and the expected result. The
 * numbers give the same bits in every order of adding. TESS_SEND: a send to the next rank, and a
 * receive from the previous one.
 */
struct conform_data {
	struct conform_case c;
	int32_t rank, n;
	int32_t ncolls; /* 1; 2: send and recv; 0: a message of one rank to itself */
	struct tess_coll coll[2];
	uint64_t send_counts[CONFORM_RANKS], recv_counts[CONFORM_RANKS];
	char *src, *dst, *expected, *copy;
	uint64_t src_bytes, dst_bytes; /* bytes */
	const struct conform_memory *memory; /* for copies of src and dst; or NULL */
	char *device_src, *device_dst;
};

tess_status conform_data_make(const struct conform_case *c, int32_t rank, int32_t n,
                              struct conform_data **out);
/* Returns TESS_EBUG with a message: what is wrong, where, the expected value, and the rule. */
tess_status conform_data_check(const struct conform_data *d); /* reads the device's memory */
void conform_data_free(struct conform_data *d); /* NULL: nothing */
/*
 * Places the buffers of this thread's cases in `memory`, aligned to 64, one case at a time, if they
 * fit. NULL: anywhere.
 */
void conform_data_use_memory(void *memory, uint64_t bytes);
/* Selects the memory of this thread's cases, borrowed; NULL: host memory. */
void conform_data_use_device(const struct conform_memory *m);
/* Copies between or within host and device memory. Blocks. */
tess_status conform_memory_copy(const struct conform_memory *m, void *dst, const void *src,
                                uint64_t bytes);

/*
 * Writes `count` elements that rank `from` sends to rank `to` (-1: to all) in a group of n <= 1024;
 * from -1: the result of all ranks, for a reducing kind. The elements start at number `first`, a
 * multiple of 8. Reads kind, dtype, op and special of the case.
 */
void conform_data_write(const struct conform_case *c, int32_t n, int32_t from, int32_t to,
                        uint64_t first, uint64_t count, void *out);
/* Return whether src or dst of this kind has a block for each rank. */
bool conform_has_src_blocks(int32_t kind);
bool conform_has_dst_blocks(int32_t kind);

/* An element of a reducing kind: what rank `from` sends to rank `to` (-1: to all), or a result. */
union conform_number {
	double real;
	uint64_t bits;
};
union conform_number conform_make_number(const struct conform_case *c, int32_t from, int32_t to,
                                         uint64_t i, int32_t n);
/* Returns the result over all ranks. */
union conform_number conform_reduce_numbers(const struct conform_case *c, int32_t to, uint64_t i,
                                            int32_t n);
void conform_store_number(int32_t dtype, void *base, uint64_t i, union conform_number v);
/* Returns the integer of type `dtype` in the low bits. */
int64_t conform_extend_integer(int32_t dtype, uint64_t bits);
/* Returns a hash of all three arguments. */
uint64_t conform_hash(uint64_t a, uint64_t b, uint64_t c);

#endif

/*
 * layout.h - what the ranks of a group share: the segment.
 *
 * A collective is a number of rounds. In a round every rank fills a slot and sets a flag, waits for
 * the flags of all ranks, and reads what it needs of their slots. There are two flags of a
 * rank, used in turn by the parity of the round: a rank that has seen all flags of round n + 1
 * knows that every rank has finished reading round n, and may write what belongs to round n + 2. So
 * a small collective is one round, nothing is ever handed back, and all that happens between two
 * ranks is one store and one load. Slots are used in turn as well, but there are many: when one
 * comes again it has left the caches of its readers, from which lines are expensive to take back.
 *
 * Buffers in memory from alloc() are read and written where they are: one round to say where, the
 * work, and one round to say that it is done. Other buffers go through the slots, a chunk each
 * round.
 */
#ifndef SHM_LAYOUT_H
#define SHM_LAYOUT_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
	RANKS_MOST = 64,
	TABLE = RANKS_MOST * 16, /* bytes of a slot for the block extents of all_to_all */
	CHUNK = 32 << 10, /* bytes of a slot for data: few, so that they are read while in cache */
	CHUNK_LARGE = 128 << 10, /* where a round costs more: many ranks, or a shared CPU */
	FEW_RANKS = 4,
	SLOTS = 2 << 20, /* bytes of data in all slots of a rank */
	PIECE = 32 << 10, /* bytes of a message that are under way at once, twice */
	WHERE = 104
};

/* A place in memory that all ranks see; region 0: none. */
struct region_ref {
	uint32_t region, zero;
	uint64_t offset;
};

/* DIRECT: buffers may be used where they are; FILLED: chunk 0 is in the slot. */
enum { DIRECT = 1, FILLED = 2 };

struct flag { /* one cache line */
	_Atomic uint64_t round; /* written last: which round it is of, and that the rest is valid */
	uint64_t fingerprint;
	uint32_t modes;
	uint32_t nchunks; /* that the rank has to move */
	struct region_ref src, dst;
};

struct call_info { /* of a call, for messages of other ranks; it may be written after the flag */
	_Atomic uint64_t round; /* written last */
	int32_t kind, dtype, op, peer;
	uint64_t count;
	char where[WHERE];
};

struct rank_slot { /* written by its rank alone, but for `wakeups` */
	alignas(128) _Atomic uint32_t wakeups;
	_Atomic uint32_t asleep;
	_Atomic int32_t cpu; /* the last it ran on, plus 1, where there are more ranks than CPUs */
	alignas(128) struct flag flag[2];
	alignas(128) struct call_info call[2];
};

struct piece {
	uint64_t fingerprint, total, len;
};

struct pair { /* messages from one rank to another */
	alignas(64) _Atomic uint64_t sent; /* pieces; written by the sender */
	alignas(64) _Atomic uint64_t taken; /* pieces; written by the receiver */
	alignas(64) struct piece piece[2];
	struct call_info call[2]; /* with the first piece of a message */
	char data[2][PIECE];
};

struct segment_header { /* the segment begins with it */
	unsigned char token[16];
	int32_t cpus; /* that all ranks together may run on */
	alignas(128) _Atomic uint32_t sleepers;
	alignas(128) struct rank_slot rank[];
};

/* Where a block of all_to_all with lists lies in src, in elements. */
struct block_extent {
	uint64_t begin, count;
};

#endif

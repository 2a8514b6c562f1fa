/*
 * layout.h - the memory layout that the ranks of a group share: the segment.
 *
 * A collective consists of rounds. In a round every rank fills a slot and sets a flag, waits for
 * the flags of all ranks, and reads from their slots.
 *
 * Each rank has two flags, which alternate between rounds. A rank that has read all flags of round
 * n + 1 may write those of round n + 2, because every rank has finished reading round n. So a small
 * collective is one round, nothing is acknowledged, and two ranks exchange one store and one load.
 *
 * Slots alternate too, but there are many: a reused slot has left the caches of its readers, from
 * which lines are expensive to take back.
 *
 * Buffers in memory from alloc() are accessed in place: one round publishes them, and one round
 * follows the work. Other buffers go through the slots, one chunk per round.
 */
#ifndef SHM_LAYOUT_H
#define SHM_LAYOUT_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
	RANKS_MOST = 64,
	TABLE = RANKS_MOST * 16, /* bytes of a slot for the block extents of all_to_all */
	CHUNK = 32 << 10, /* bytes of a slot for data: few, to stay in cache until they are read */
	CHUNK_LARGE = 128 << 10, /* if a round costs more: with many ranks, or a shared CPU */
	FEW_RANKS = 4,
	SLOTS = 2 << 20, /* bytes of data in all slots of a rank */
	PIECE = 32 << 10, /* bytes of a message per piece, two of which are in flight */
	WHERE = 104
};

/* A location in memory that all ranks map; region 0: none. */
struct region_ref {
	uint32_t region, zero;
	uint64_t offset;
};

/* DIRECT: buffers may be used in place; FILLED: chunk 0 is in the slot. */
enum { DIRECT = 1, FILLED = 2 };

struct flag { /* one cache line */
	_Atomic uint64_t round; /* number of its round; written last, after the rest */
	uint64_t fingerprint;
	uint32_t modes;
	uint32_t nchunks; /* chunks that the rank has to move */
	struct region_ref src, dst;
};

struct call_info { /* a call, for messages of other ranks; may be written after the flag */
	_Atomic uint64_t round; /* written last */
	int32_t kind, dtype, op, peer;
	uint64_t count;
	char where[WHERE];
};

struct rank_slot { /* written by its own rank, except for `wakeups` */
	alignas(128) _Atomic uint32_t wakeups;
	_Atomic uint32_t asleep;
	_Atomic int32_t cpu; /* last CPU of the rank, plus 1, if there are more ranks than CPUs */
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
	struct call_info call[2]; /* calls of the message, with its first piece */
	char data[2][PIECE];
};

struct segment_header { /* at the start of the segment */
	unsigned char token[16];
	int32_t cpus; /* number of CPUs available to all ranks together */
	alignas(128) _Atomic uint32_t sleepers;
	alignas(128) struct rank_slot rank[];
};

/* A block of all_to_all with lists: its range in src, in elements. */
struct block_extent {
	uint64_t begin, count;
};

#endif

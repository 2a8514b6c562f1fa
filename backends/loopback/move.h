/* move.h - a call of a group; the last rank that joins starts the move. */
#ifndef LOOPBACK_MOVE_H
#define LOOPBACK_MOVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <tessera/coll.h>

enum { RANKS_MOST = 1024 };
enum { GATHERING, MOVING, DONE };

struct work {
	uint32_t n; /* calls of a batch (batch.c); 0: one pending call */
};

/* A pending call. Waiting ranks help with the move, a piece at a time. */
struct pending_call {
	struct work work;
	struct pending_call *next;
	uint64_t number; /* number of the call, or of the message from `from` to `to` */
	int32_t from, to; /* -1: a collective */
	int32_t expected, arrived, released;
	int32_t pieces, taken, moved;
	atomic_int state;
	pthread_cond_t changed;
	struct tess_coll *colls; /* [rank]; kind 0: the rank has not joined */
};

/* Moves piece `piece` of all blocks; the calls of all ranks match. */
void loopback_move_piece(const struct pending_call *m, int32_t nranks, int32_t piece);
/* Returns the total of moved bytes, which decides the number of pieces. */
uint64_t loopback_count_bytes(const struct pending_call *m, int32_t nranks);

/* Returns what differs between calls `a` of rank ra and `b` of rank rb ("kinds"); NULL: nothing. */
const char *loopback_find_difference(const struct tess_coll *a, int32_t ra,
                                     const struct tess_coll *b, int32_t rb, int32_t nranks);

#endif

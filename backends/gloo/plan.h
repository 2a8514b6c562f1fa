/*
 * plan.h - a collective as exchanges: the transfers between each pair of ranks, and the sums.
 *
 * One exchange moves the bytes of a ring in one step. Large reductions and broadcasts cut the data
 * into a slice per rank: each rank reduces its slice, then the slices are gathered. Slices are sent
 * in pieces, which stay in cache: stage k reduces piece k and gathers piece k - 1.
 *
 * 2^k ranks can move the same bytes in fewer, larger messages. In stage s < k each rank sends half
 * of its data to the neighbour at distance 2^s and adds the other half; k more stages gather the
 * halves, the last one first.
 */
#ifndef GLOO_PLAN_H
#define GLOO_PLAN_H

#include "group.h"

struct message {
	struct shim_io *io;
	int32_t peer, receives;
};

struct work {
	struct work *next;
	struct tess_coll c;
	char where[96];
	size_t width;
	uint64_t fingerprint; /* common to all messages of this call */
	int32_t pieces; /* pieces of each rank's slice; 0: not sliced */
	int32_t halvings; /* k; 0: not by halving */
	int32_t stage, last, done; /* stages 0 to `last` */
	/* messages of even and odd stages; by halving: received and sent ones */
	int32_t nmessages[2], arrived; /* arrived: completed ones of the awaited list */
	uint64_t step; /* elements of a piece; the last one of a slice may be shorter */
	uint64_t sum; /* elements that this rank reduces, from `parts` vectors */
	int32_t parts;
	const void **part;
	void *total; /* destination of the sum */
	void *scratch; /* vectors of other ranks; all_to_all in place: a copy of src */
	size_t scratch_bytes;
	struct message *message[2]; /* 4 per rank each */
	struct message all[]; /* then part, c.send_counts and c.recv_counts */
};

/* The data sent to one peer and received from it in an exchange, in elements. */
struct transfer {
	const void *src;
	void *dst;
	uint64_t send_count, recv_count;
	int32_t sends, receives;
};

/* Decides between a single exchange, slices in pieces, and halving. */
void plan_stages(const struct group *g, struct work *w);
/* Plans the sum of this stage and its destination; w->sum = 0: none. */
void plan_sum(const struct group *g, struct work *w);
/* Returns the bytes of scratch memory; call it after plan_sum of the first stage. */
size_t plan_scratch(const struct group *g, const struct work *w);
/* Plans the transfer of piece k with `peer`: of finished slices if `share`, else of addends. */
struct transfer plan_transfer(const struct group *g, const struct work *w, int32_t peer, int32_t k,
                              int shares);
/* Plans the transfer of a halving stage, and returns its peer. */
struct transfer plan_half_transfer(const struct group *g, const struct work *w, int32_t stage,
                                   int32_t *peer);
/* Copies the block that a rank sends to itself, unless the call is in place. */
void plan_copy_own(const struct group *g, const struct work *w);

#endif

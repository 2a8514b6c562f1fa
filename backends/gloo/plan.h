/*
 * plan.h - a collective as exchanges: what each rank sends to each peer, and what it adds up.
 *
 * One exchange moves what a ring does, in one step. Large reductions and broadcasts cut the data in
 * a slice per rank: each rank finishes its own, then the slices are shared. Slices go in pieces, so
 * that what is under way and what was just added stays in cache: stage k has piece k of what is to
 * be added, and shares k - 1.
 *
 * Of 2^k ranks the same bytes can go in fewer, larger messages: in stage s < k each sends half of
 * what it has to the neighbour at distance 2^s, and adds the other half; in k stages more the
 * halves are shared, the last first.
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
	uint64_t fingerprint; /* what messages of this call have in common */
	int32_t pieces; /* of each rank's slice; 0: the vector is not sliced */
	int32_t halvings; /* k; 0: it does not go by halves */
	int32_t stage, last, done; /* stages 0 to `last` */
	/* messages of even and odd stages; by halves: all that are received, all that are sent */
	int32_t nmessages[2], arrived; /* arrived: of those that are awaited */
	uint64_t step; /* elements of a piece, but for the last one of a slice */
	uint64_t sum; /* elements that this rank adds up, of `parts` vectors */
	int32_t parts;
	const void **part;
	void *total; /* where the sum goes */
	void *scratch; /* vectors of other ranks; all_to_all in place: what was in src */
	size_t scratch_bytes;
	struct message *message[2]; /* 4 per rank each */
	struct message all[]; /* then part, and what c.send_counts and c.recv_counts point to */
};

/* What this rank sends to one peer and receives from it in an exchange, in elements. */
struct transfer {
	const void *src;
	void *dst;
	uint64_t send_count, recv_count;
	int32_t sends, receives;
};

/* Whether it goes in slices, and in which pieces, or by halves. */
void plan_stages(const struct group *g, struct work *w);
/* What this rank adds in this stage, and where to; w->sum = 0: nothing. */
void plan_sum(const struct group *g, struct work *w);
/* Bytes of scratch memory; after plan_sum of the first stage. */
size_t plan_scratch(const struct group *g, const struct work *w);
/* Piece k of what this rank and `peer` share, or else have to add or to move. */
struct transfer plan_transfer(const struct group *g, const struct work *w, int32_t peer, int32_t k,
                              int shares);
/* The same by halves, and the one peer of this stage. */
struct transfer plan_half_transfer(const struct group *g, const struct work *w, int32_t stage,
                                   int32_t *peer);
/* Copies what a rank sends to itself. In place it is there already. */
void plan_copy_own(const struct group *g, const struct work *w);

#endif

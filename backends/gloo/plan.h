/*
 * plan.h - a collective as exchanges: what each rank gives each other one, and what it adds up.
 *
 * One exchange moves what a ring does, in one step. Large reductions and broadcasts cut the data in a slice
 * per rank: each rank finishes its own, then the slices are shared. Slices go in pieces, so that what is under
 * way and what was just added stays in cache: stage k has piece k of what is to be added, and shares k - 1.
 */
#ifndef GLOO_PLAN_H
#define GLOO_PLAN_H

#include "gloo.h"

struct message {
	struct shim_io *io;
	int32_t peer, receives;
};

struct work {
	struct work *next;
	struct tess_coll c;
	char where[96];
	size_t width;
	uint64_t print; /* what messages of this call have in common */
	int32_t pieces; /* of each rank's slice; 0: the vector is not sliced */
	int32_t stage, done; /* stages 0 to `pieces` are exchanges */
	int32_t nmessages[2], arrived; /* nmessages: of even and odd stages; arrived: of this one */
	uint64_t step; /* elements of a piece, but for the last one of a slice */
	uint64_t sum; /* elements that this rank adds up, one vector from every rank */
	void *mine, *total; /* its own vector; where the sum goes */
	const void **part; /* the vectors of all ranks */
	void *scratch; /* the others' vectors; all_to_all in place: what was in src */
	size_t room; /* bytes of it */
	struct message *message[2]; /* of even and odd stages, 4 per rank */
	struct message all[]; /* then part, and what c.give and c.get point to */
};

/* What this rank and one peer give each other in an exchange, in elements. */
struct leg {
	const void *src;
	void *dst;
	uint64_t give, get;
	int32_t gives, gets;
};

int plan_adds(int32_t kind);
/* Whether it goes in slices, and in which pieces. */
void plan_slices(const struct group *g, struct work *w);
/* How much this rank adds in this stage, and where; 0: nothing. */
void plan_sum(const struct group *g, struct work *w);
/* Bytes of scratch memory; after plan_sum of the first stage. */
size_t plan_scratch(const struct group *g, const struct work *w);
/* In scratch memory: what `peer` gave to be added, of this stage and the next one in turn. */
void *plan_given(const struct group *g, const struct work *w, int32_t peer, int32_t k);
/* Piece k of what this rank and `peer` share, or else have to add or to move. */
struct leg plan_leg(const struct group *g, const struct work *w, int32_t peer, int32_t k,
                    int shares);
/* Copies what a rank gives itself. In place it is there already. */
void plan_keep(const struct group *g, const struct work *w);

#endif

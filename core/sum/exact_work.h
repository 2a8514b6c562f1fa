/* exact_work.h - the state of a sum, shared by exact.c and the files that move nodes. */
#ifndef TESS_GROUP_EXACT_WORK_H
#define TESS_GROUP_EXACT_WORK_H

#include "core/sum/exact.h"

struct region_offset {
	int64_t region, at; /* id, or 0 for none; bytes from the start of the rank's part */
};
struct rank_regions {
	struct region_offset nodes, out;
};

struct tess_sum_work { /* of one group, which keeps it and its memory for later sums */
	struct tess_sum_work *next;
	struct tess_group *g;
	struct tess_sum s;
	const float *nodes;
	float *out, *scratch;
	size_t scratch_bytes;
	uint64_t at; /* first element of the current piece */
	int32_t way;
	bool started; /* its calls are not waited for at once */
	bool added;
	tess_status failed; /* the status of an earlier call or addition */
	struct tess_work *call; /* outstanding; NULL: none */
	float *received; /* nodes of all ranks, in the scratch */
	struct rank_regions mine;
	/* with an entry for each rank, in `lists`: a thread's stack may be small */
	void *lists;
	int64_t *held; /* nodes */
	uint64_t *slice; /* elements that each rank finishes */
	uint64_t *send_counts, *recv_counts, *shared[2];
	struct rank_regions *regions;
	const float **part;
	float **to;
};

/* Takes a work for the sum, and appends it to the group's outstanding ones. */
tess_status tess_sum_work_take(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                               float *out, struct tess_sum_work **work);
/* Ends a work; returns st. After a failure its memory stays with the group, for late writes. */
tess_status tess_sum_work_drop(struct tess_sum_work *w, tess_status st);
/* Grows the scratch to at least `floats`; its content is lost. */
tess_status tess_sum_work_reserve(struct tess_sum_work *w, uint64_t floats);
/* Makes a call of the sum, or starts it after waiting for the outstanding one. */
tess_status tess_sum_work_call(struct tess_sum_work *w, const struct tess_coll *c);
tess_status tess_sum_work_end_call(struct tess_sum_work *w);

/* Adds list[0] to list[n - 1]. */
uint64_t tess_sum_counts(const uint64_t *list, int32_t n);
/* Returns the elements that rank r finishes in a sum for all ranks: disjoint cache lines. */
uint64_t tess_sum_compute_slice(uint64_t count, int32_t nranks, int32_t r);

/* Gathers all nodes of a small sum to every rank. */
tess_status tess_sum_gather_nodes(struct tess_sum_work *w);
/* Sums `count` elements of every received node; rank r's follow those of lower ranks. */
void tess_sum_add_received(struct tess_sum_work *w, uint64_t count, float *out);
/* Sends every rank its slice of all nodes. */
tess_status tess_sum_exchange_nodes(struct tess_sum_work *w);
/* Adds the exchanged slices; if all ranks get the full sum, sends the result to them. */
tess_status tess_sum_add_exchanged(struct tess_sum_work *w);
/* Exchanges and adds a large sum in pieces. */
tess_status tess_sum_exchange_and_add(struct tess_sum_work *w);

/* Gathers the offsets of nodes and results in regions that all ranks address. */
tess_status tess_sum_gather_offsets(struct tess_sum_work *w);
/* Adds this rank's slice in place, or by messages if a rank's nodes are outside of regions. */
tess_status tess_sum_add_in_place(struct tess_sum_work *w);

#endif

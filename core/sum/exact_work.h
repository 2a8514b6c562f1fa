/* exact_work.h - a sum under way: what exact.c shares with the ways to move its nodes. */
#ifndef TESS_GROUP_EXACT_WORK_H
#define TESS_GROUP_EXACT_WORK_H

#include "core/sum/exact.h"

struct region_offset {
	int64_t region, at; /* id, 0: in no region; bytes from the start of the rank's part */
};
struct rank_regions {
	struct region_offset nodes, out;
};

struct tess_sum_work { /* of one group, which keeps it with its memory for later sums */
	struct tess_sum_work *next;
	struct tess_group *g;
	struct tess_sum s;
	const float *nodes;
	float *out, *scratch;
	size_t scratch_bytes;
	uint64_t at; /* first element of the current piece */
	int32_t way;
	bool started; /* its calls are waited for later */
	bool added;
	tess_status failed; /* of a call or an addition before the wait */
	struct tess_work *call; /* under way; NULL: none */
	float *received; /* nodes of all ranks, in the scratch */
	struct rank_regions mine;
	/* an entry for each rank, in `lists`: a thread's stack may be small */
	void *lists;
	int64_t *held; /* nodes */
	uint64_t *slice; /* elements that the rank finishes */
	uint64_t *send_counts, *recv_counts, *shared[2];
	struct rank_regions *regions;
	const float **part;
	float **to;
};

/* A work for the sum, the last of those under way in the group. */
tess_status tess_sum_work_take(struct tess_group *g, const struct tess_sum *s, const float *nodes,
                               float *out, struct tess_sum_work **work);
/* Returns st. Of a sum that failed too: its memory stays with the group, for late writes. */
tess_status tess_sum_work_drop(struct tess_sum_work *w, tess_status st);
/* Makes the scratch hold `floats` at least; what it held is lost. */
tess_status tess_sum_work_reserve(struct tess_sum_work *w, uint64_t floats);
/* Makes a call of the sum, or starts it; waits for the one that was started. */
tess_status tess_sum_work_call(struct tess_sum_work *w, const struct tess_coll *c);
tess_status tess_sum_work_end_call(struct tess_sum_work *w);

/* list[0] + ... + list[n - 1] */
uint64_t tess_sum_counts(const uint64_t *list, int32_t n);
/* Elements that rank r finishes of a sum for all ranks: whole cache lines, each of one rank. */
uint64_t tess_sum_compute_slice(uint64_t count, int32_t nranks, int32_t r);

/* By messages (exact_exchange.c): every rank gets all nodes of a small sum; */
tess_status tess_sum_gather_nodes(struct tess_sum_work *w);
/* sums `count` elements of every node, rank r's received after those of lower ranks; */
void tess_sum_add_received(struct tess_sum_work *w, uint64_t count, float *out);
/* every rank gets its slice of all nodes; */
tess_status tess_sum_exchange_nodes(struct tess_sum_work *w);
/* adds it, and sends it to all ranks where these get the whole sum; */
tess_status tess_sum_add_exchanged(struct tess_sum_work *w);
/* or both at once, a large sum in pieces. */
tess_status tess_sum_exchange_and_add(struct tess_sum_work *w);

/* In regions that all ranks address (exact_region.c): says where nodes and results lie; */
tess_status tess_sum_gather_offsets(struct tess_sum_work *w);
/* adds this rank's slice in place, or by messages where a rank's nodes lie elsewhere. */
tess_status tess_sum_add_in_place(struct tess_sum_work *w);

#endif

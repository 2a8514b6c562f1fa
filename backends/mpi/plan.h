/* plan.h - what each rank sends to each other rank, in one step or two. */
#ifndef MPI_PLAN_H
#define MPI_PLAN_H

#include "member.h"

/* What this rank sends to one peer and receives from it in a step. A NULL pointer: nothing. */
struct transfer {
	const char *src;
	char *dst;
	uint64_t send_bytes, recv_bytes;
};

struct work {
	struct work *next;
	struct tess_coll c;
	char where[96];
	size_t width;
	int32_t step, steps;
	bool done;
	int32_t nrequests, arrived;
	uint64_t sum; /* elements that this rank adds up, from every rank */
	void *total; /* where the sum goes */
	char *scratch;
	size_t scratch_bytes;
	/* by rank; in one piece with the work, and kept with it */
	struct transfer *transfer;
	const void **part;
	uint64_t *slice; /* elements */
	uint64_t *list; /* two: what c.send_counts and c.recv_counts point to */
	MPI_Request *request; /* four a rank */
	struct request_info {
		int32_t peer;
		int count; /* < 0: it sends */
		MPI_Datatype type;
	} * info;
};

static inline char *buffer_at(const struct work *w, const void *p, uint64_t elements)
{
	return p ? (char *)(uintptr_t)p + elements * w->width : NULL;
}

/*
 * The transfers of the first step, and of the second, which gathers slices. Of a sum also what is
 * added, and where to.
 */
void plan_first_step(const struct group *g, struct work *w);
void plan_second_step(const struct group *g, struct work *w);

#endif

/* plan.h - the transfers between ranks, in one step or two. */
#ifndef MPI_PLAN_H
#define MPI_PLAN_H

#include "member.h"

/* The data sent to one peer and received from it in a step. NULL: none. */
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
	uint64_t sum; /* elements that this rank reduces */
	void *total; /* destination of the sum */
	char *scratch;
	size_t scratch_bytes;
	/* by rank; allocated and kept with the work */
	struct transfer *transfer;
	const void **part;
	uint64_t *slice; /* elements */
	uint64_t *list; /* the memory of c.send_counts and c.recv_counts */
	MPI_Request *request; /* 4 per rank */
	struct request_info {
		int32_t peer;
		int count; /* < 0: a send */
		MPI_Datatype type;
	} * info;
};

static inline char *buffer_at(const struct work *w, const void *p, uint64_t elements)
{
	return p ? (char *)(uintptr_t)p + elements * w->width : NULL;
}

/*
 * Plan the transfers of the first step, and of the second, which gathers slices. For a sum also the
 * added elements and their destination.
 */
void plan_first_step(const struct group *g, struct work *w);
void plan_second_step(const struct group *g, struct work *w);

#endif

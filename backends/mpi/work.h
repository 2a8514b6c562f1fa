/* work.h - the inside of a call: plan.c says who gives what to whom, work.c moves it. */
#ifndef MPI_WORK_H
#define MPI_WORK_H

#include "member.h"

/* What this rank and one other give each other in a step, in bytes. A NULL pointer: nothing. */
struct leg {
	const char *src;
	char *dst;
	uint64_t give, get;
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
	size_t room;
	/* by rank; in one piece with the work, and kept with it */
	struct leg *leg;
	const void **part;
	uint64_t *slice; /* elements */
	uint64_t *list; /* two: what c.give and c.get point to */
	MPI_Request *request; /* four a rank */
	struct ask {
		int32_t peer;
		int count; /* < 0: it sends */
		MPI_Datatype type;
	} * ask;
};

static inline char *work_past(const struct work *w, const void *p, uint64_t elements)
{
	return p ? (char *)(uintptr_t)p + elements * w->width : NULL;
}

/* Where block `r` of a list of blocks begins. */
static inline uint64_t work_begin(const uint64_t *list, int32_t r)
{
	uint64_t at = 0;

	for (int32_t i = 0; i < r; i++)
		at += list[i];
	return at;
}

/* The legs of the first step, and of the second, which gathers slices. Of a sum also what is added, and where to. */
void plan_first(const struct group *g, struct work *w);
void plan_second(const struct group *g, struct work *w);

#endif

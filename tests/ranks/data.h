/*
 * data.h - every collective on data whose result is known exactly: small integers in any dtype, in
 * any order. One case is run by all ranks of a group, each of which checks what it got, to the
 * byte.
 */
#ifndef TESS_TESTS_DATA_H
#define TESS_TESTS_DATA_H

#include <stdbool.h>
#include <tessera/tessera.h>

struct data_case {
	int32_t kind, dtype, op, root;
	uint64_t count; /* of an even block */
	bool uneven, in_place;
};

/* Runs it in `g`. A wrong element, a byte beside the buffer, or a changed source is TESS_EBUG. */
tess_status data_run(struct tess_group *g, const struct data_case *c);

/* The same without waiting: data_finish waits, checks and frees. */
struct data_pending;
tess_status data_start(struct tess_group *g, const struct data_case *c, struct data_pending **out);
tess_status data_finish(struct data_pending *p);

/*
 * Where the buffers of this thread's cases are made from now on, as long as there is room for all of
 * data_run's; NULL: anywhere.
 */
void data_use_memory(void *memory, uint64_t bytes);

#endif

/*
 * emulate.h - what a backend lacks, made of what it has: collectives of send and recv, batches of calls.
 *
 * A collective is one step: all messages are started at once, and what is to be added is added here, in
 * order of ranks, when they have come. So it can be outstanding like any other, and needs no
 * thread. The price is bytes: an all_reduce sends the whole vector to every other rank.
 */
#ifndef TESS_COMM_EMULATE_H
#define TESS_COMM_EMULATE_H

#include "group.h"

struct tess_emulation;

/*
 * Starts the messages of `c`, which was checked; it stays the caller's and must outlive the
 * emulation.
 */
tess_status tess_emulation_start(struct tess_group *g, const struct tess_coll *c,
                                 struct tess_emulation **out);
/*
 * Starts `n` calls one by one, those that the backend lacks as above. The list is not kept.
 */
tess_status tess_emulation_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                                 struct tess_emulation **out);
tess_status tess_emulation_test(struct tess_emulation *e);
tess_status tess_emulation_wait(struct tess_emulation *e, int64_t deadline);
/*
 * Gives its works back to the backend; its memory stays, for late writes after a failure, until it
 * is freed.
 */
void tess_emulation_release(struct tess_emulation *e);
void tess_emulation_free(struct tess_emulation *e); /* NULL: nothing */

#endif

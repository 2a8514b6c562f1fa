/*
 * emulate.h - what a backend lacks: collectives made of send and recv, batches of single calls.
 *
 * A collective is one step: all messages are started at once, and when they are done this rank adds
 * in order of ranks. So it can be outstanding like any other call, and needs no thread. The price
 * is bytes: an all_reduce sends the whole vector to every other rank.
 */
#ifndef TESS_GROUP_EMULATE_H
#define TESS_GROUP_EMULATE_H

#include "core/world/group.h"

struct tess_emulation;

/* Starts the messages of `c`, which was checked. c must outlive the emulation. */
tess_status tess_emulation_start(struct tess_group *g, const struct tess_coll *c,
                                 struct tess_emulation **out);
/* Starts `n` calls one by one, those that the backend lacks as above. The list is not kept. */
tess_status tess_emulation_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                                 struct tess_emulation **out);
tess_status tess_emulation_test(struct tess_emulation *e);
tess_status tess_emulation_wait(struct tess_emulation *e, int64_t deadline);
/* Releases its works; its memory stays, for late writes after a failure, until it is freed. */
void tess_emulation_release(struct tess_emulation *e);
void tess_emulation_free(struct tess_emulation *e); /* NULL: nothing */

#endif

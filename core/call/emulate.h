/*
 * emulate.h - emulates what a backend lacks: collectives by send and recv, batches by single calls.
 *
 * A collective is one step: all messages start at once, and when they are done this rank adds in
 * order of ranks. So it can be outstanding like any other call, without a thread. The cost is
 * bytes: an all_reduce sends the full vector to every other rank.
 */
#ifndef TESS_GROUP_EMULATE_H
#define TESS_GROUP_EMULATE_H

#include "core/world/group.h"

struct tess_emulation;

/* Starts the messages of `c`, a checked call that must outlive the emulation. */
tess_status tess_emulation_start(struct tess_group *g, const struct tess_coll *c,
                                 struct tess_emulation **out);
/* Starts `n` calls one by one; emulates those that the backend lacks. The list is not kept. */
tess_status tess_emulation_batch(struct tess_group *g, const struct tess_coll *const *c, uint32_t n,
                                 struct tess_emulation **out);
tess_status tess_emulation_test(struct tess_emulation *e);
tess_status tess_emulation_wait(struct tess_emulation *e, int64_t deadline);
/* Releases its works; memory stays until it is freed, for late writes after a failure. */
void tess_emulation_release(struct tess_emulation *e);
void tess_emulation_free(struct tess_emulation *e); /* NULL: nothing */

#endif

/* work.h - a call of a group over NCCL, from its start to its end. */
#ifndef NCCL_WORK_H
#define NCCL_WORK_H

#include "group.h"

/*
 * Starts n calls as one work. NCCL runs calls on the caller's stream in their order, and a message
 * waits there until the other rank has issued its side. So messages are collected, and start
 * together when one of them is tested, waited for or joined, or when a collective starts.
 */
tess_status work_start(void *self, const struct tess_coll *const *c, uint32_t n, void **out);
tess_status work_test(void *self, void *work);
tess_status work_wait(void *self, void *work, int64_t deadline);
/* Returns when the work is on its stream, and makes `stream` wait for it. */
tess_status work_join(void *self, void *work, void *stream);
void work_release(void *self, void *work);
/*
 * Captures the call into the graph of c->stream. Without a work: NCCL has captured it on return.
 * The other ranks may have to capture it at the same time, since NCCL may exchange buffer
 * addresses.
 */
tess_status work_capture(void *self, const struct tess_coll *c);
/*
 * Makes a work that is done when the stream has run all queued work: a graph with calls of the
 * group.
 */
tess_status work_follow_graph(void *self, void *stream, int64_t deadline, void **out);
/* Returns TESS_PENDING if NCCL has not finished its last calls, or a split. Locked. */
tess_status work_finish_start(struct group *g);
/* Frees all works of a group whose communicator is gone. */
void work_free_all(struct group *g);

#endif

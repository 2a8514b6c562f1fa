/* work.h - a call of a group over NCCL, from its start to its end. */
#ifndef NCCL_WORK_H
#define NCCL_WORK_H

#include "group.h"

/*
 * NCCL runs what it is given on the caller's stream, in the order in which it was given, and a
 * message waits there until the other rank has its end. So messages are collected, and start
 * together when one of them is tested, waited for or joined, or when a collective starts.
 */
tess_status work_start(void *self, const struct tess_coll *const *c, uint32_t n, void **out);
tess_status work_test(void *self, void *work);
tess_status work_wait(void *self, void *work, int64_t deadline);
/* Returns when the work is on its stream, and `stream` waits for it. */
tess_status work_join(void *self, void *work, void *stream);
void work_release(void *self, void *work);
/*
 * Into the graph that c->stream captures. No work: NCCL has captured it when this returns. The
 * other ranks may have to capture it meanwhile, since NCCL may exchange addresses of buffers.
 */
tess_status work_capture(void *self, const struct tess_coll *c);
/* A work that is done when what was queued on the stream is, a graph with calls of the group. */
tess_status work_follow_graph(void *self, void *stream, int64_t deadline, void **out);
/* TESS_PENDING: NCCL has not finished what it was given last, or a split. Locked. */
tess_status work_finish_start(struct group *g);
/* Of a group whose communicator is gone. */
void work_free_all(struct group *g);

#endif

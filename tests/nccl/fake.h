/*
 * fake.h - a driver and an NCCL for tests without a GPU, in one library that is found under both
 * names. Memory and streams are those of the test device discrete_cuda; data really move between
 * ranks, threads or processes. Communicators are made in FAKE_NCCL_POLLS polls (2), and a thread
 * puts calls onto their stream 20 microseconds a poll later; 0: at once. FAKE_NCCL_VERSION: a
 * version instead of 22809. FAKE_NCCL_LOG: a file that gets a line for each call.
 * FAKE_NCCL_FAILS="RANK GROUP RESULT": from the GROUP-th group of calls on, ncclCommGetAsyncError
 * gives RESULT on that rank, and nothing is moved. FAKE_NCCL_NO_SPLIT: a rank that does not come to
 * splits. FAKE_NCCL_NO_REGISTER: one that cannot register memory.
 *
 * As with NCCL, a communicator ends, also by an abort, only when no graph has calls of it. Events
 * and copies that are not allowed, or have another meaning, while a graph is captured fail.
 *
 * The library tests the backend's use of NCCL's interface; it does not model NCCL's behaviour.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the device whose context is this thread's; -1: none. */
int fake_current_device(void);
/*
 * Returns the host's address of device memory, of the stream's device or of cuMemAlloc; NULL:
 * neither.
 */
void *fake_translate(void *stream, const void *p);
/* Queues fn(arg) on a stream; returns 0 if it is queued. */
int fake_queue(void *stream, void (*fn)(void *arg), void *arg);
/*
 * Returns whether the stream captures a graph; then fn(arg), if given, is called when the graph is
 * freed.
 */
bool fake_retain(void *stream, void (*fn)(void *arg), void *arg);
void *fake_allocate(size_t bytes);
void fake_release(void *p);

#endif

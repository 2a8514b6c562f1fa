/*
 * fake.h - a driver and an NCCL for tests without a GPU, in one library that is found under both
 * names. Memory and streams are those of the test device discrete_cuda; data really move between
 * ranks, threads or processes. Communicators are made in FAKE_NCCL_POLLS polls (2), and a thread
 * puts calls onto their stream 20 microseconds a poll later; 0: at once. FAKE_NCCL_VERSION: another
 * than 22809. FAKE_NCCL_LOG: a file that gets a line for each call. FAKE_NCCL_FAILS="RANK GROUP
 * RESULT": from the GROUP-th group of calls on, ncclCommGetAsyncError gives RESULT on that rank,
 * and nothing is moved. FAKE_NCCL_NO_SPLIT: a rank that does not come to splits.
 * FAKE_NCCL_NO_REGISTER: one that cannot register memory.
 *
 * As with NCCL, a communicator ends, also by an abort, when no graph has calls of it any more. What
 * would not be allowed or has another meaning while a graph is captured fails: events, copies.
 *
 * It shows how the backend uses NCCL's interface, not how NCCL behaves.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The device whose context is this thread's; -1: none is. */
int fake_current_device(void);
/* Where the host reads device memory: of the stream's device, or of cuMemAlloc; NULL: neither. */
void *fake_translate(void *stream, const void *p);
/* Queues fn(arg) on a stream; 0: done. */
int fake_queue(void *stream, void (*fn)(void *arg), void *arg);
/* Whether the stream captures a graph; then fn(arg) is called when the graph is freed, if given. */
bool fake_retain(void *stream, void (*fn)(void *arg), void *arg);
void *fake_allocate(size_t bytes);
void fake_release(void *p);

#endif

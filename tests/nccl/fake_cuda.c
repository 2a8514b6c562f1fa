/* fake_cuda.c - the driver: contexts, events and memory, on the streams of discrete_cuda. */
#include "fake.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEVICES = 8, DEPTH = 8, INVALID = 1, BAD_CONTEXT = 201, NOT_READY = 600, CAPTURED = 900 };

#define CALL __attribute__((visibility("default")))

/* ---- the device ------------------------------------------------------------------------------ */

static int (*queue)(void *stream, void (*fn)(void *arg), void *arg);
static void *(*translate)(void *stream, const void *p);
static bool (*retain)(void *stream, void (*fn)(void *arg), void *arg);
static void (*adopt)(void *p, size_t bytes);

static void find_device(void)
{
	void *file = dlopen(DISCRETE, RTLD_NOW | RTLD_NOLOAD);
	void *at[4] = { file ? dlsym(file, "discrete_queue") : NULL,
		        file ? dlsym(file, "discrete_translate") : NULL,
		        file ? dlsym(file, "discrete_retain") : NULL,
		        file ? dlsym(file, "discrete_adopt") : NULL };

	memcpy(&queue, &at[0], sizeof queue);
	memcpy(&translate, &at[1], sizeof translate);
	memcpy(&retain, &at[2], sizeof retain);
	memcpy(&adopt, &at[3], sizeof adopt);
}

static bool has_device(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find_device);
	return queue && translate && retain && adopt;
}

bool fake_retain(void *stream, void (*fn)(void *arg), void *arg)
{
	return has_device() && stream && retain(stream, fn, arg);
}

int fake_queue(void *stream, void (*fn)(void *arg), void *arg)
{
	return !has_device() || !stream || queue(stream, fn, arg) ? INVALID : 0;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static _Thread_local int stack[DEPTH], depth;

int fake_current_device(void)
{
	return depth ? stack[depth - 1] : -1;
}

CALL int cuInit(unsigned flags)
{
	return flags ? INVALID : 0;
}

CALL int cuGetErrorString(int result, const char **text)
{
	*text = result ? "a failure of the fake driver" : "no error";
	return 0;
}

CALL int cuDeviceGetCount(int *n)
{
	*n = DEVICES;
	return 0;
}

CALL int cuDeviceGet(int *device, int index)
{
	*device = index;
	return index < 0 || index >= DEVICES ? INVALID : 0;
}

CALL int cuDeviceGetPCIBusId(char *text, int len, int device)
{
	snprintf(text, (size_t)len, "0000:%02x:00.0", (unsigned)device);
	return 0;
}

CALL int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = (void *)(uintptr_t)(device + 1);
	return 0;
}

CALL int cuDevicePrimaryCtxRelease_v2(int device)
{
	return device < 0 ? INVALID : 0;
}

CALL int cuCtxPushCurrent_v2(void *context)
{
	if (!context || depth == DEPTH)
		return BAD_CONTEXT;
	stack[depth++] = (int)(uintptr_t)context - 1;
	return 0;
}

CALL int cuCtxPopCurrent_v2(void **context)
{
	if (!depth)
		return BAD_CONTEXT;
	*context = (void *)(uintptr_t)(stack[--depth] + 1);
	return 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct event {
	atomic_int users; /* the program, and queued records and waits */
	atomic_int recorded, done; /* queued records; those that have run */
};

struct event_wait { /* for the records before it */
	struct event *event;
	int records;
};

static void drop_event(struct event *e)
{
	if (atomic_fetch_sub(&e->users, 1) == 1)
		free(e);
}

CALL int cuEventCreate(void **event, unsigned flags)
{
	struct event *e = calloc(1, sizeof *e);

	(void)flags;
	if (!e || !depth) {
		free(e);
		return BAD_CONTEXT;
	}
	atomic_store(&e->users, 1);
	*event = e;
	return 0;
}

CALL int cuEventDestroy_v2(void *event)
{
	drop_event(event);
	return 0;
}

static void finish_event(void *arg)
{
	struct event *e = arg;

	atomic_fetch_add(&e->done, 1);
	drop_event(e);
}

CALL int cuEventRecord(void *event, void *stream)
{
	struct event *e = event;

	if (fake_retain(stream, NULL, NULL))
		return CAPTURED;
	atomic_fetch_add(&e->recorded, 1);
	atomic_fetch_add(&e->users, 1);
	return fake_queue(stream, finish_event, e);
}

CALL int cuEventQuery(void *event)
{
	struct event *e = event;

	return atomic_load(&e->done) < atomic_load(&e->recorded) ? NOT_READY : 0;
}

static void wait_for_event(void *arg)
{
	struct event_wait *w = arg;

	for (int i = 0; atomic_load(&w->event->done) < w->records; i++)
		if (i < 50)
			sched_yield();
		else
			usleep(20);
	drop_event(w->event);
	free(w);
}

CALL int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	struct event_wait *w = flags ? NULL : malloc(sizeof *w);
	struct event *e = event;

	if (!w)
		return INVALID;
	*w = (struct event_wait){ e, atomic_load(&e->recorded) };
	atomic_fetch_add(&e->users, 1);
	return fake_queue(stream, wait_for_event, w);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct block {
	struct block *next;
	char *at;
	size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;

void *fake_allocate(size_t bytes)
{
	struct block *b = malloc(sizeof *b);

	if (!b || !(b->at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {
		free(b);
		return NULL;
	}
	b->bytes = bytes;
	pthread_mutex_lock(&lock);
	b->next = blocks;
	blocks = b;
	pthread_mutex_unlock(&lock);
	if (has_device())
		adopt(b->at, bytes);
	return b->at;
}

void fake_release(void *p)
{
	struct block **at = &blocks, *b;

	pthread_mutex_lock(&lock);
	while (*at && (*at)->at != p)
		at = &(*at)->next;
	b = *at;
	if (b)
		*at = b->next;
	pthread_mutex_unlock(&lock);
	if (b && has_device())
		adopt(b->at, 0);
	if (b)
		free(b->at);
	free(b);
}

void *fake_translate(void *stream, const void *p)
{
	const char *at = p;
	void *found = has_device() && stream ? translate(stream, p) : NULL;

	pthread_mutex_lock(&lock);
	for (struct block *b = blocks; b && !found; b = b->next)
		if (at >= b->at && at < b->at + b->bytes)
			found = (void *)(uintptr_t)p;
	pthread_mutex_unlock(&lock);
	return found;
}

CALL int cuMemAlloc_v2(unsigned long long *p, size_t bytes)
{
	*p = depth ? (uintptr_t)fake_allocate(bytes) : 0;
	return *p ? 0 : BAD_CONTEXT;
}

CALL int cuMemFree_v2(unsigned long long p)
{
	fake_release((void *)(uintptr_t)p);
	return depth ? 0 : BAD_CONTEXT;
}

CALL int cuMemAllocAsync(unsigned long long *p, size_t bytes, void *stream)
{
	return stream ? cuMemAlloc_v2(p, bytes) : INVALID;
}

CALL int cuMemFreeAsync(unsigned long long p, void *stream)
{
	void *at = (void *)(uintptr_t)p;

	/* a graph's memory is kept until the graph ends */
	return fake_retain(stream, fake_release, at) ? 0 : fake_queue(stream, fake_release, at);
}

struct copy {
	void *dst;
	const void *src;
	size_t bytes;
	bool captured;
};

static void run_queued_copy(void *arg)
{
	struct copy *c = arg;

	memcpy(c->dst, c->src, c->bytes);
	if (!c->captured)
		free(c);
}

CALL int cuMemcpyDtoDAsync_v2(unsigned long long dst, unsigned long long src, size_t bytes,
                              void *stream)
{
	struct copy *c = malloc(sizeof *c);

	if (c)
		*c = (struct copy){ fake_translate(stream, (void *)(uintptr_t)dst),
			            fake_translate(stream, (void *)(uintptr_t)src), bytes, false };
	if (!c || !c->dst || !c->src) {
		free(c);
		return INVALID;
	}
	c->captured = fake_retain(stream, free, c);
	return fake_queue(stream, run_queued_copy, c);
}

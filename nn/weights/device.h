/* device.h - the device of a rank: which one it is, its memory through copies, its stream. */
#ifndef TESS_NN_DEVICE_H
#define TESS_NN_DEVICE_H

#include "core/world/mesh_shape.h"

#include <stdbool.h>
#include <tessera/device.h>
#include <tessera/tessera.h>

/* TESSERA_DEVICE. *index: -1 where it has none. TESS_EDEVICE: the machine has no such device. */
tess_status tess_device_find(const struct tess_device **device, int32_t *index);

struct tess_opened_device { /* {0}: not opened */
	const struct tess_device *table;
	void *self;
	void *stream; /* of this rank; NULL: the device has none */
	void *call_stream; /* of calls of groups that overlap with ops; NULL: all are on `stream` */
	struct tess_world *world; /* whose calls may be queued on the stream */
	int32_t index, nranks; /* nranks: of this host that use its memory, at most */
	int32_t nthreads; /* it was opened with */
};

/* TESS_ENOTSUP: the device has no such linear weights (0: any; TESS_Q8, TESS_BF12). */
tess_status tess_device_check_weights(const struct tess_device *device, int32_t weights);

/* Checks that an op is valid (nn/op/check.h), and that the device can run it. */
tess_status tess_device_check_op(const struct tess_device *device, const struct tess_op *op);

/*
 * Opens device `index` with so many threads, and a stream on it. Index -1: the ranks of a host take
 * its devices in turn.
 */
tess_status tess_device_open(const struct tess_device *device, int32_t index, int32_t threads,
                             struct tess_group *group, struct tess_opened_device *out);
/* Sets *threads to `given`, or if that is 0 to TESSERA_THREADS, which may be 0. */
tess_status tess_device_read_threads(int32_t given, int64_t *threads);
/* Opens a device with `nthreads`; 0: TESSERA_THREADS, or if that is 0 a share of the CPUs. */
tess_status tess_device_open_shared(const struct tess_device *device, int32_t index,
                                    int32_t nthreads, struct tess_group *group,
                                    struct tess_opened_device *out);
/* Opens `call_stream` where the device can order streams. */
tess_status tess_device_open_call_stream(struct tess_opened_device *d);
/* Waits for its streams. No memory of it is used any more. */
void tess_device_close(struct tess_opened_device *d);

/* Whether addresses of the device's memory are the host's as well. */
static inline bool tess_device_is_host(const struct tess_opened_device *d)
{
	return d->table->mem == TESS_HOST;
}

/*
 * Collective. Calls of the groups of a mesh, `along` its dimensions and that of `all` its ranks,
 * may then use memory of the device; nothing, if that is the host's. rank: in the mesh.
 */
tess_status tess_device_attach(const struct tess_opened_device *d,
                               const struct tess_mesh_shape *mesh, int32_t rank,
                               struct tess_group *all, struct tess_group *const *along);
void tess_device_detach(const struct tess_opened_device *d, const struct tess_mesh_shape *mesh,
                        struct tess_group *all, struct tess_group *const *along);

/* `where`: a module or what the memory is for, in the sentence of a failure. */
tess_status tess_device_alloc(const struct tess_opened_device *d, const char *where, uint64_t bytes,
                              void **out);
void tess_device_free(const struct tess_opened_device *d, void *p); /* NULL: nothing */
/* Queues a copy; host memory stays as it is until tess_device_sync. */
tess_status tess_device_copy(const struct tess_opened_device *d, const char *where, void *dst,
                             const void *src, uint64_t bytes);
/* Waits until all is done that was queued. */
tess_status tess_device_sync(const struct tess_opened_device *d, const char *where);
/* Queues as many bytes of 0. */
tess_status tess_device_clear(const struct tess_opened_device *d, const char *where, void *dst,
                              uint64_t bytes);
/* After a failure: nothing is queued on any stream any more. Keeps the sentence. */
void tess_device_drain(const struct tess_opened_device *d);
/* A copy that is done when it returns. */
tess_status tess_device_move(const struct tess_opened_device *d, const char *where, void *dst,
                             const void *src, uint64_t bytes);

extern const struct tess_option tess_device_options[];

#endif

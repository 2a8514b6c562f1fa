/* device.h - the device of a rank: which one it is, its memory, its streams. */
#ifndef TESS_NN_DEVICE_H
#define TESS_NN_DEVICE_H

#include "core/world/mesh_shape.h"

#include <stdbool.h>
#include <tessera/device.h>
#include <tessera/tessera.h>

/* Finds TESSERA_DEVICE. *index: -1 if it names none. TESS_EDEVICE: this machine has none. */
tess_status tess_device_find(const struct tess_device **device, int32_t *index);

/*
 * Finds TESSERA_DEVICE to record and lower programs for it. This machine may have none, if its
 * plugin is installed and `explains`.
 */
tess_status tess_device_inspect(const struct tess_device **device);

struct tess_opened_device { /* {0}: not opened */
	const struct tess_device *table;
	void *self;
	void *stream; /* this rank's stream; NULL: the device has no streams */
	void *call_stream; /* for collectives that overlap with ops; NULL: they use `stream` */
	struct tess_world *world; /* whose calls may be queued on the stream */
	int32_t index, nranks; /* nranks: maximum number of ranks that share its memory */
	int32_t nthreads; /* compute threads */
};

/* Returns TESS_ENOTSUP if the device cannot multiply by `weights` (0, or a dtype of panels). */
tess_status tess_device_check_weights(const struct tess_device *device, int32_t weights);

/* Checks that an op is valid (nn/op/check.h), and that the device can run it. */
tess_status tess_device_check_op(const struct tess_device *device, const struct tess_op *op);

/* Sets *threads to `given`, or if that is 0 to TESSERA_THREADS, which may be 0 too. */
tess_status tess_device_read_threads(int32_t given, int64_t *threads);
/*
 * Opens device `index`, and a stream on it. Index -1: the ranks of a host take turns. threads: 0:
 * TESSERA_THREADS, or if that is 0 a share of the CPUs.
 */
tess_status tess_device_open(const struct tess_device *device, int32_t index, int32_t threads,
                             struct tess_group *group, struct tess_opened_device *out);
/* Opens the device cpu with the threads of `d`, for ops on memory of the host. Close *out. */
tess_status tess_device_open_host(const struct tess_opened_device *d,
                                  struct tess_opened_device *out);
/* Opens `call_stream` if the device can order streams. */
tess_status tess_device_open_call_stream(struct tess_opened_device *d);
/* Waits for its streams, and closes it. Free its memory before. */
void tess_device_close(struct tess_opened_device *d);

/* Returns whether the host can address the device's memory. */
static inline bool tess_device_is_host(const struct tess_opened_device *d)
{
	return d->table->mem == TESS_HOST;
}

/*
 * Lets calls of the groups of a mesh, `along` each dimension and of `all` ranks, use memory of the
 * device. Does nothing if that is the host's. rank: in the mesh. Collective.
 */
tess_status tess_device_attach(const struct tess_opened_device *d,
                               const struct tess_mesh_shape *mesh, int32_t rank,
                               struct tess_group *all, struct tess_group *const *along);
void tess_device_detach(const struct tess_opened_device *d, const struct tess_mesh_shape *mesh,
                        struct tess_group *all, struct tess_group *const *along);

/* Allocates memory. `where` starts the message of a failure: a module, or a purpose. */
tess_status tess_device_alloc(const struct tess_opened_device *d, const char *where, uint64_t bytes,
                              void **out);
void tess_device_free(const struct tess_opened_device *d, void *p); /* p may be NULL */
/* Queues a copy. The caller leaves host memory unchanged until tess_device_sync. */
tess_status tess_device_copy(const struct tess_opened_device *d, const char *where, void *dst,
                             const void *src, uint64_t bytes);
/* Waits until everything that was queued is done. */
tess_status tess_device_sync(const struct tess_opened_device *d, const char *where);
/* Queues setting bytes to 0. */
tess_status tess_device_clear(const struct tess_opened_device *d, const char *where, void *dst,
                              uint64_t bytes);
/* Waits for all streams after a failure, whose message stays. */
void tess_device_drain(const struct tess_opened_device *d);
/* Copies, and waits for the copy. */
tess_status tess_device_move(const struct tess_opened_device *d, const char *where, void *dst,
                             const void *src, uint64_t bytes);

extern const struct tess_option tess_device_options[];

#endif

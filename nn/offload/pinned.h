/*
 * pinned.h - offloaded values of a rank whose device has memory of its own: they are in memory of
 * the host instead of files, and are copied to the device and back.
 *
 * A copy runs on one of a few streams, its lane, so that it overlaps with ops: it begins when the
 * work that was queued on the rank's stream is done, or the work before a point of it. Copies on
 * one lane run in order. One thread uses all of it.
 */
#ifndef TESS_NN_PINNED_H
#define TESS_NN_PINNED_H

#include <stdbool.h>
#include <tessera/device.h>

enum {
	TESS_PINNED_TAKEN = 4, /* lanes that tess_pinned_take_lane chooses */
	TESS_PINNED_LANES = 8, /* the others are the update's */
	TESS_PINNED_POINTS = 4
};

struct tess_pinned_device { /* borrowed */
	const struct tess_device *table;
	void *self, *stream; /* of the rank */
};

struct tess_pinned {
	struct tess_pinned_device device;
	void *lane[TESS_PINNED_LANES]; /* the rank's own stream if the device orders no streams */
	void *point[TESS_PINNED_POINTS]; /* streams without work of their own; NULL: not opened */
	char *memory[2]; /* by file of the layout (offload.h); NULL: it has no bytes */
	uint32_t ncopies; /* that took the next lane */
};

/* Returns whether copies can overlap with ops of the rank's stream. */
bool tess_pinned_overlaps(const struct tess_pinned_device *device);
/* Allocates memory and opens lanes. TESS_ENOMEM: the message has the bytes. Close *out. */
tess_status tess_pinned_open(const struct tess_pinned_device *device, int32_t rank,
                             const uint64_t bytes[2], struct tess_pinned **out);
/* Opens the points. Only where copies overlap with ops. */
tess_status tess_pinned_open_points(struct tess_pinned *p);
/* Waits for copies. NULL: does nothing. */
void tess_pinned_close(struct tess_pinned *p);

/* Allocates memory that copies use without waiting for the host, aligned to 64 bytes. */
tess_status tess_pinned_alloc(const struct tess_pinned_device *device, uint64_t bytes, void **out);
void tess_pinned_free(const struct tess_pinned_device *device, void *memory); /* may be NULL */

/* Chooses the lane of a copy in turn. */
int32_t tess_pinned_take_lane(struct tess_pinned *p);
/* Sets a point behind the work that is queued on the rank's stream now. */
tess_status tess_pinned_mark(const struct tess_pinned *p, int32_t point, const char *where);
/*
 * Lets later copies on a lane follow the work before a point. point -1: the work that is queued on
 * the rank's stream now.
 */
tess_status tess_pinned_order(const struct tess_pinned *p, int32_t lane, int32_t point,
                              const char *where);
/* Queues a copy between the device and memory of the host. */
tess_status tess_pinned_copy(const struct tess_pinned *p, int32_t lane, const char *where,
                             void *dst, const void *src, uint64_t bytes);
/* Lets work that is queued on the rank's stream from now on follow the copies of a lane. */
tess_status tess_pinned_follow(const struct tess_pinned *p, int32_t lane, const char *where);
/* Waits for the copies of a lane. */
tess_status tess_pinned_wait(const struct tess_pinned *p, int32_t lane, const char *where);

#endif

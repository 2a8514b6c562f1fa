/*
 * channels.h - messages between stages on a device whose streams order calls.
 *
 * A group's calls run there one after another, and a send ends when its receiver has taken it. In
 * one group a send would hold up the receives after it, for which the other rank may be waiting. So
 * each pair of ranks has a group for each direction, and sends run on a stream of their own.
 */
#ifndef TESS_NN_RUN_CHANNELS_H
#define TESS_NN_RUN_CHANNELS_H

#include "nn/lower/lower.h"
#include "nn/weights/device.h"

struct tess_channel { /* to or from another rank along pp */
	int32_t peer; /* its rank along pp */
	bool sends;
	struct tess_group *group; /* of the two ranks */
	void *stream; /* of sends; NULL: it receives */
};

struct tess_channels { /* {0}: none; messages use the group along pp */
	struct tess_channel *each;
	int32_t n;
	const struct tess_opened_device *device; /* borrowed */
};

/*
 * Opens the channels of this rank, if a backend moves the device's memory in the order of streams;
 * else *out is empty. along: the group along pp, to which the device is attached. On failure close
 * *out, too. Collective over `along`.
 */
tess_status tess_channels_open(const struct tess_program *p, struct tess_group *along,
                               const struct tess_opened_device *d, struct tess_channels *out);
/* Closes them before the device. */
void tess_channels_close(struct tess_channels *c);

/* Returns the channel of a message, and sets its peer and stream; NULL: there is none. */
struct tess_group *tess_channels_route(const struct tess_channels *c, struct tess_coll *message);

#endif

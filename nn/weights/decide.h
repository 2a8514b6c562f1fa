/*
 * decide.h - how a rank stores each weight of a program, decided before it loads any of them.
 *
 * A decision follows from the program, the headers of the checkpoint's files, the device and
 * TESSERA_LAYOUT; no weight is read. Loading and packing (weights.h) execute the list, and
 * `tessera explain --storage` prints it. Only the device can find, while it packs a weight, that it
 * cannot compress the values: that weight is decided again, and the list then has the new decision.
 */
#ifndef TESS_NN_DECIDE_H
#define TESS_NN_DECIDE_H

#include "nn/weights/parts.h"

#include <tessera/session.h>

enum {
	TESS_STORE_ELSEWHERE, /* another stage of the pipeline has the weight */
	TESS_STORE_TIED, /* the head reads the memory of its table */
	TESS_STORE_MAPPED, /* rows of the file's mapping, whose pages the ranks of a host share */
	TESS_STORE_WAITING, /* mapped rows until tess_rank_weights_pack makes panels of them */
	TESS_STORE_ROWS, /* a copy of the rank's part, dense as stored */
	TESS_STORE_PANELS,
	TESS_STORE_COMPRESSED, /* panels of 4, 8 or 12 bits */
	TESS_STORE_SHARE, /* of training: a share of the rows, cut along dp at rest */
	TESS_STORE_FILE /* in a file between uses: of nn/offload, or in inference the checkpoint */
};

struct tess_weight_decision {
	const struct tess_weight *weight;
	int32_t kind; /* TESS_STORE_... */
	int32_t dtype; /* in memory */
	bool panels; /* the layout is panels, and linear ops read the weight */
	uint64_t mapped; /* bytes that are read in the mapping; WAITING: until they are packed */
	uint64_t bytes; /* bytes that are allocated; WAITING: by packing; FILE: in the file */
	struct tess_view view; /* the view of these bytes, with data NULL */
	const char *reason; /* a static string: "stored [in, out]" */
};

/* TESS_EINVAL: TESSERA_LAYOUT is neither panels nor rows. */
tess_status tess_weights_read_layout(const struct tess_device *device, bool *panels);

/*
 * Decides for the rank of `parts` and a device that need not be open. Files of which only headers
 * were read are taken to be mapped and aligned. *out: an array by index of the weight, yours: free.
 */
tess_status tess_weights_decide(struct tess_parts *parts, const struct tess_device *device,
                                struct tess_weight_decision **out);
/* Decides again for a COMPRESSED weight, as if it were not to be compressed. */
tess_status tess_weight_decide_again(struct tess_parts *parts, const struct tess_device *device,
                                     struct tess_weight_decision *d);
/* Sets the kind, and the dtype, bytes and view that follow from it. */
void tess_weight_decision_set(const struct tess_parts *parts, struct tess_weight_decision *d,
                              int32_t kind, const char *reason);

/* Describes decisions for people: n of them into out[n]. */
void tess_weight_decisions_describe(const struct tess_weight_decision *list, int32_t n,
                                    struct tess_weight_storage *out);

extern const struct tess_option tess_weights_options[];

#endif

/*
 * kept.h - host access to a rank's part of a weight, gradient or optimizer state (parameters.h): in
 * place, or through a window if it is in memory that the host cannot address, or in a file.
 */
#ifndef TESS_NN_KEPT_H
#define TESS_NN_KEPT_H

#include "nn/weights/parameters.h"

struct tess_kept {
	const struct tess_opened_device *device; /* borrowed */
	const struct tess_offload *offload; /* it is in a file; NULL: in memory; borrowed */
	const struct tess_weight *weight; /* borrowed */
	char *data; /* in memory of the device; NULL: absent, in a file, or n is 0 */
	int32_t what, dtype;
	int64_t n; /* elements */
	bool writes; /* the window is written back */
	char *window; /* elements [first, first + mapped); NULL: none */
	int64_t first, mapped;
	/* in a file that is only read in order: the next window, on its way; n 0: none */
	struct tess_transfer ahead;
};

/* Opens the part that `what` (TESS_WEIGHT, ...) names. Close it. */
void tess_kept_open(const struct tess_parameters *s, const struct tess_weight *w, int32_t what,
                    bool writes, struct tess_kept *out);
/* Returns whether the part does not exist, although it has elements. */
static inline bool tess_kept_is_absent(const struct tess_kept *k)
{
	return k->n && !k->data && !k->offload;
}
/*
 * Sets *out to elements [first, first + *n), which are valid until the next call. Reduces *n if the
 * window ends earlier. Fast for increasing `first`. TESS_EIO: the disk failed.
 */
tess_status tess_kept_map(struct tess_kept *k, int64_t first, int64_t *n, void **out);
/* Writes the window back unless `st` is a failure. Returns `st`, or how that failed. */
tess_status tess_kept_close(struct tess_kept *k, tess_status st);

#endif

/*
 * kept.h - what a rank keeps of a weight (parameters.h), for reading and writing by the host:
 * where it lies, or, if the host cannot address that, through a window in host memory.
 */
#ifndef TESS_NN_KEPT_H
#define TESS_NN_KEPT_H

#include "nn/weights/parameters.h"

struct tess_kept {
	const struct tess_opened_device *device; /* borrowed */
	const char *where; /* the weight */
	char *data; /* of the device; NULL: the weight has no such thing, or n is 0 */
	int32_t dtype;
	int64_t n; /* elements */
	bool writes; /* what is mapped is written */
	char *window; /* elements [first, first + mapped); NULL: none */
	int64_t first, mapped;
};

/* What `what` (TESS_WEIGHT, ...) names of a weight; then close it. */
void tess_kept_open(const struct tess_parameters *s, const struct tess_weight *w, int32_t what,
                    bool writes, struct tess_kept *out);
/*
 * Where the host has elements [first, first + *n), until the next call; *n becomes less if the
 * window ends before. Increasing `first` is fast.
 */
tess_status tess_kept_map(struct tess_kept *k, int64_t first, int64_t *n, void **out);
/* Returns `st`, or how writing back failed. */
tess_status tess_kept_close(struct tess_kept *k, tess_status st);

#endif

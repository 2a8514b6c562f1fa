/* weights.h - what one rank holds of a program's parameters, cut by the same placements as the program. */
#ifndef TESS_NN_WEIGHTS_H
#define TESS_NN_WEIGHTS_H

#include "nn/program.h"
#include "nn/source.h"

struct tess_rank_weights { /* the weights of one rank */
	struct tess_view *
		view; /* per weight of the program: linear weights as [out, in], tables as stored */
	int32_t n;
	uint64_t bytes; /* of memory of its own; the rest lies in the checkpoint's mapping */
	const struct tess_device *device;
	void *self; /* the opened device */
	void **allocated; /* per weight: memory to free, or NULL */
};

/*
 * Reads this rank's part of every weight of `p`. Linear weights become panels (TESSERA_LAYOUT=rows: stay rows, as
 * they lie), straight from the mapping, which is dropped behind; what is looked up only stays in the mapping. The
 * source and the program must outlive *out; it is yours: tess_rank_weights_free.
 */
tess_status tess_rank_weights_load(const struct tess_program *p, const struct tess_source *source,
                                   int32_t nranks, int32_t rank, const struct tess_device *device,
                                   void *self, struct tess_rank_weights *out);
void tess_rank_weights_free(struct tess_rank_weights *h);

extern const struct tess_option tess_weights_options[];
/* TESSERA_LAYOUT: whether linear weights become panels. */
tess_status tess_weights_read_layout(bool *out);

#endif

/* weights.h - loads one rank's part of the parameters of a program. */
#ifndef TESS_NN_WEIGHTS_H
#define TESS_NN_WEIGHTS_H

#include "nn/program/program.h"
#include "nn/program/source.h"
#include "nn/weights/device.h"

struct tess_rank_weights {
	struct tess_view *view; /* per weight: linear weights as [out, in], tables as stored */
	int32_t n;
	uint64_t bytes, mapped; /* allocated; read in the checkpoint's mapping */
	struct tess_opened_device device; /* a copy */
	void **allocated; /* per weight: memory to free, or NULL */
	struct tess_weights_loader *loader; /* of rows that are to be packed; NULL: none */
};

/*
 * Reads the part of every weight of `p` that `rank` of its mesh holds. Linear weights are packed
 * into panels, if that is the layout of TESSERA_LAYOUT or else of the device, from the mapping,
 * whose pages are dropped once read; the rest stay in the mapping if the device's memory is the
 * host's, and are copied otherwise. With no TESSERA_LAYOUT, matrices
 * that the mapping has as rows of the rank's part stay there until tess_rank_weights_pack. Weights
 * of a program of training are all copied, writable, dense in the order of their axes as stored.
 * The source and the program must outlive *out, which is yours: tess_rank_weights_free.
 */
tess_status tess_rank_weights_load(const struct tess_program *p, const struct tess_source *source,
                                   int32_t rank, const struct tess_opened_device *device,
                                   struct tess_rank_weights *out);
/*
 * Packs weights that still are rows of the mapping, at least one, until `ns` have passed or none is
 * left, and sets their views. Where memory runs out, the rest stay rows, with a warning. *changed:
 * whether views are others than before.
 */
tess_status tess_rank_weights_pack(struct tess_rank_weights *h, int64_t ns, bool *changed);
void tess_rank_weights_free(struct tess_rank_weights *h);

extern const struct tess_option tess_weights_options[];
/* Whether linear weights become panels, at load or later. */
tess_status tess_weights_read_layout(const struct tess_device *device, bool *panels);

#endif

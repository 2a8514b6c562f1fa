/* weights.h - loads one rank's part of the parameters of a program. */
#ifndef TESS_NN_WEIGHTS_H
#define TESS_NN_WEIGHTS_H

#include "nn/offload/offload.h"
#include "nn/program/program.h"
#include "nn/program/source.h"
#include "nn/weights/decide.h"
#include "nn/weights/device.h"

struct tess_rank_weights {
	struct tess_weight_decision *decision; /* per weight; bytes: see below */
	struct tess_view *view; /* per weight: linear weights as [out, in], tables as stored */
	int32_t n;
	uint64_t bytes, mapped; /* allocated; read in the checkpoint's mapping */
	struct tess_opened_device device; /* a copy */
	void **allocated; /* per weight: memory to free, or NULL */
	struct tess_weights_loader *loader; /* NULL: no weight is WAITING */
};

/*
 * Loads the part of every weight of `p` that `rank` of its mesh holds, as tess_weights_decide
 * decides. Copies and panels are written slab by slab from the mapping, whose pages are dropped
 * once read. `bytes` and `mapped` are sums over the decisions, `bytes` without WAITING ones.
 * Weights of a training program are writable, and dense in the order of their axes as stored.
 * files: receives weights that are in a file, whose views have no data; NULL: there are none. The
 * source and the program must outlive *out, which is yours: tess_rank_weights_free.
 */
tess_status tess_rank_weights_load(const struct tess_program *p, const struct tess_source *source,
                                   int32_t rank, const struct tess_opened_device *device,
                                   const struct tess_offload *files, struct tess_rank_weights *out);
/*
 * Packs WAITING weights, at least one, until `ns` have passed or none is left, and sets their
 * decisions and views. If memory runs out, the rest become MAPPED, with a warning. *changed: a view
 * has changed.
 */
tess_status tess_rank_weights_pack(struct tess_rank_weights *h, int64_t ns, bool *changed);
void tess_rank_weights_free(struct tess_rank_weights *h);

#endif

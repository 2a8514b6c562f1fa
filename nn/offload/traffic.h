/*
 * traffic.h - the bytes that a rank moves between memory and its files in a step of training,
 * without those that blocks of the disk add at their ends. Next to a device with memory of its own:
 * between that and memory of the host, from which the device reads, and to which it writes.
 */
#ifndef TESS_NN_TRAFFIC_H
#define TESS_NN_TRAFFIC_H

#include "nn/offload/offload.h"

enum { TESS_TRAFFIC_WEIGHTS, TESS_TRAFFIC_GRADIENTS, TESS_TRAFFIC_STATE, TESS_TRAFFIC_KINDS };
struct tess_traffic { /* by TESS_TRAFFIC_... */
	uint64_t read[TESS_TRAFFIC_KINDS], written[TESS_TRAFFIC_KINDS];
};

/* Adds a transfer. */
void tess_traffic_add_transfer(const struct tess_transfer *t, struct tess_traffic *sum);
/* Adds `times` times what `a` contains. */
void tess_traffic_add_times(const struct tess_traffic *a, uint64_t times, struct tess_traffic *sum);
/* Subtracts what `a` contains. */
void tess_traffic_subtract(const struct tess_traffic *a, struct tess_traffic *sum);
/*
 * Adds the gradients that the first of several micro-batches does not read, since it adds to none.
 * Programs of micro-batches contain the transfers that read them.
 */
void tess_traffic_add_first(const struct tess_offload_layout *files, struct tess_traffic *sum);
/* Adds the update of the optimizer: it reads what it changes and gradients, and writes. */
void tess_traffic_add_update(const struct tess_offload_layout *files, struct tess_traffic *sum);
/* Adds the update of one weight. */
void tess_traffic_add_updated(const struct tess_offload_layout *files, const struct tess_weight *w,
                              struct tess_traffic *sum);
/*
 * Adds the transfers of a step that belong neither to micro-batches nor to the update: gradients of
 * tied heads and copies of their tables, the norm unless the update computes it, and weights that
 * are gathered from shares. In memory of the host: none.
 */
void tess_traffic_add_rest(const struct tess_offload_layout *files, bool reads_norm,
                           struct tess_traffic *sum);

#endif

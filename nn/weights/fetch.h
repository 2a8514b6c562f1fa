/*
 * fetch.h - reads weights from the files of the checkpoint before each use, in inference.
 *
 * A thread of the rank executes transfers in their order. It reads ahead: the order of a step's
 * transfers is that of the step before it, so the disk works while the rank computes, and from one
 * step to the next. Files are read through the page cache, which the ranks of a host share; if the
 * weights do not fit there, what was read leaves it soon after. Reading from a truncated or changed
 * file is an error of the transfer.
 */
#ifndef TESS_NN_FETCH_H
#define TESS_NN_FETCH_H

#include "nn/offload/offload.h"
#include "nn/weights/weights.h"

struct tess_fetcher;

/*
 * Opens a fetcher for the weights of a program of inference that are in files; *out is NULL if none
 * is. weights: this rank's, which has tables in the mapping. page_cache: bytes of it that this
 * rank's weights may fill. All must outlive *out, which is yours: tess_fetcher_close. TESS_ENOMEM.
 */
tess_status tess_fetcher_open(const struct tess_program *p, const struct tess_source *source,
                              int32_t rank, const struct tess_rank_weights *weights,
                              uint64_t page_cache, struct tess_fetcher **out);
/* Waits for transfers that are under way. f: NULL does nothing. */
void tess_fetcher_close(struct tess_fetcher *f);

/* Returns the bytes of a rank's weights that are in files. */
uint64_t tess_fetched_count_bytes(const struct tess_program *p, int32_t rank);

/*
 * Prepares a step: drops the pages of tables that the last one has mapped. TESS_EIO: the file of a
 * table has changed, and accessing it may be fatal. f: NULL does nothing.
 */
tess_status tess_fetcher_begin_step(struct tess_fetcher *f);
/* Starts a transfer, which is borrowed until the wait has returned. Does not block. */
void tess_fetcher_start(struct tess_fetcher *f, struct tess_transfer *t);
/* TESS_EIO: its file cannot be read, has ended, or has changed; the message has the path. */
tess_status tess_fetcher_wait(struct tess_fetcher *f, struct tess_transfer *t);
/* Waits for all transfers, after a failure. f: NULL does nothing. */
void tess_fetcher_settle(struct tess_fetcher *f);

#endif

/* row_exchange.h - the steps before and after an all_to_all of rows that request experts. */
#ifndef TESS_NN_RUN_ROW_EXCHANGE_H
#define TESS_NN_RUN_ROW_EXCHANGE_H

#include "nn/lower/row_exchange.h"

/*
 * Packs what this rank sends, and sets the counts of the all_to_all that follows. The memory is the
 * host's. Equal routing weights on both ends make equal counts.
 */
void tess_row_exchange_pack(const struct tess_row_exchange *x);
/* Places the rows that were received, or adds the results of experts for the rows of this rank. */
void tess_row_exchange_unpack(const struct tess_row_exchange *x);

#endif

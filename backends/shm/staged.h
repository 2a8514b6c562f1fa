/* staged.h - transfers through slots: writes and reads them for each kind of collective. */
#ifndef SHM_STAGED_H
#define SHM_STAGED_H

#include "state.h"

void staged_plan_call(const struct group *g, struct work *w);
/* Returns true if this rank writes into its slot. */
bool staged_sends_data(const struct group *g, const struct work *w);
/*
 * Fills chunk `k` before this round's flag is set, and drains it after all flags are. Sums follow
 * the last chunk.
 */
void staged_fill_chunk(struct group *g, const struct work *w, uint64_t k);
void staged_drain_chunk(struct group *g, const struct work *w, uint64_t k);
/* Copies the block that a rank sends to itself. */
void staged_copy_own(const struct group *g, const struct work *w);
/* Publishes the extents of the blocks that this rank sends, for all_to_all with lists. */
void staged_publish_extents(const struct group *g, const struct work *w);
/* Returns the extent of rank r's block for this rank. */
struct block_extent staged_block_extent(const struct group *g, const struct work *w, int32_t r);
/* Fails the group if a block has another length than expected. */
tess_status staged_compare_extents(struct group *g, const struct work *w);

#endif

/* staged.h - transfers through slots: what each kind of collective writes into them and reads. */
#ifndef SHM_STAGED_H
#define SHM_STAGED_H

#include "state.h"

void staged_plan_call(const struct group *g, struct work *w);
/* Whether this rank writes anything into its slot. */
bool staged_sends_data(const struct group *g, const struct work *w);
/* Chunk `k`: before this round's flag is set; after all flags are. Sums follow the last chunk. */
void staged_fill_chunk(struct group *g, const struct work *w, uint64_t k);
void staged_drain_chunk(struct group *g, const struct work *w, uint64_t k);
/* Copies what a rank sends to itself. */
void staged_copy_own(const struct group *g, const struct work *w);
/* all_to_all with lists: the extents of the blocks that each rank sends. */
void staged_publish_extents(const struct group *g, const struct work *w);
/* Rank r's block for this rank. */
struct block_extent staged_block_extent(const struct group *g, const struct work *w, int32_t r);
/* A block of another length than expected is a mismatch. */
tess_status staged_compare_extents(struct group *g, const struct work *w);

#endif

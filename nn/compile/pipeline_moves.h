/*
 * pipeline_moves.h - the stages of moves at the boundaries of a pipeline.
 *
 * If a move and its readers are in different stages, the moved value crosses a boundary; if the
 * move is in the stage of its readers, its operand does. A value that is cut along the dimension of
 * the move is smaller than one that is replicated or Partial. So a gather belongs to the stage that
 * receives, and a reduce-scatter or a slice to the stage that sends.
 */
#ifndef TESS_NN_PIPELINE_MOVES_H
#define TESS_NN_PIPELINE_MOVES_H

#include "nn/program/program.h"

/*
 * Changes the stages of moves among records [begin, end) so that fewer bytes cross boundaries. All
 * records before `end` have stages. home: by value, the stage that computes it, or
 * TESS_STAGES_ALL; it follows the moves. A move stays if both values are of one size. TESS_ENOMEM.
 */
tess_status tess_pipeline_place_moves(const struct tess_program *p, int32_t begin, int32_t end,
                                      int32_t *home);

#endif

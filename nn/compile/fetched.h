/* fetched.h - decides which weights of a program of inference are read before each use. */
#ifndef TESS_NN_FETCHED_H
#define TESS_NN_FETCHED_H

#include "nn/record/recorder.h"

/*
 * In inference with weights on disk: a tied head becomes a weight of its own, which is read from
 * the files of its table. Tables of embeddings do not stay on disk, since a step reads few of their
 * rows; all other weights do. Weights in MXFP4 are widened. Does nothing in other programs.
 */
void tess_program_place_fetched(struct tess_recorder *r);

#endif

/*
 * pipeline.h - cuts a recorded program into the stages of a pipeline, along mesh dimension pp.
 *
 * While a program is recorded, pp is a dimension along which everything is Replicate. The cut gives
 * each record, and each weight, the one stage that runs or has it, and adds records that send a
 * value to a stage that reads it and did not make it. What is computed, and in which order it is
 * added, stays as recorded: so bits do not depend on the number of stages, and the backward of what
 * is sent needs no rule of its own.
 */
#ifndef TESS_NN_PIPELINE_H
#define TESS_NN_PIPELINE_H

#include "nn/record/recorder.h"

/*
 * The first `nforward` records are the forward, in which stages are runs of records. Where no style
 * begins a stage, the numbered modules of the model ("model.layers.3") are shared out so that the
 * stage that multiplies by the most bytes of weights has as few as possible; what is before them is
 * in the first stage, what is after them in the last, and a tied head in that of its table. A
 * record of the backward is in the stage of its weight, else in that of the values of the forward
 * that it reads. The logits end in the first stage, the loss in all. Fails the recording where
 * there are fewer modules than stages, or the plan begins another number of stages.
 */
void tess_pipeline_cut(struct tess_recorder *r, int32_t nforward);

#endif

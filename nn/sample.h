/* sample.h - what tests need of a sampler beyond tessera/sampling.h. */
#ifndef TESS_NN_SAMPLE_H
#define TESS_NN_SAMPLE_H

#include <tessera/sampling.h>

/*
 * The probabilities of all ids after processing, f32 [vocab], 0 where an id was removed; borrowed
 * until the next call. logits [vocab]; seen: the ids of prompt and text so far, for the penalty.
 */
const float *tess_sampler_compute_probabilities(struct tess_sampler *s,
                                                const struct tess_sampling *sampling,
                                                const float *logits, const int32_t *seen,
                                                int64_t nseen);

#endif

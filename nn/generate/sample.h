/* sample.h - functions of a sampler beyond tessera/sampling.h. */
#ifndef TESS_NN_SAMPLE_H
#define TESS_NN_SAMPLE_H

#include <stdbool.h>
#include <tessera/sampling.h>

/*
 * Returns the probabilities of all ids after processing, f32 [vocab], 0 for removed ids; borrowed
 * until the next call. logits [vocab]; seen: the ids of the sequence so far, for the penalty.
 */
const float *tess_sampler_compute_probabilities(struct tess_sampler *s,
                                                const struct tess_sampling *sampling,
                                                const float *logits, const int32_t *seen,
                                                int64_t nseen);

/* Draws as tess_sampler_draw does in a step with the random number u, in [0, 1). */
int32_t tess_sampler_draw_number(struct tess_sampler *s, const struct tess_sampling *sampling,
                                 const float *logits, const int32_t *seen, int64_t nseen, double u);

/* The parameters with which a device draws the id of a step: SAMPLE in tessera/device.h. */
struct tess_draw { /* a value; greedy: zeroed except for the penalty */
	double temperature, top_p, min_p, top_k, number, penalty;
	double set; /* the device's set of seen ids; without a penalty: any */
};
bool tess_sampling_has_penalty(const struct tess_sampling *s);
/* Returns the draw of a step, with set 0. */
struct tess_draw tess_sampling_get_draw(const struct tess_sampling *s, uint64_t step);

/*
 * Sampling from a vocabulary cut between ranks. Each rank finds the candidates of its part; one
 * rank then draws the same id as tess_sampler_draw from the complete row.
 */
struct tess_candidate {
	double score;
	int64_t id;
};
/* Makes a sampler of ids [first, first + n). */
tess_status tess_sampler_new_part(int64_t first, int64_t n, struct tess_sampler **out);
/*
 * Finds the candidates of a part from its logits [n]. Greedy: the best id. With a top_k: its top_k
 * best, best first; the return value includes ids that tie with the last one. Otherwise none.
 */
int64_t tess_sampler_find_candidates(struct tess_sampler *s, const struct tess_sampling *sampling,
                                     const float *logits, const int32_t *seen, int64_t nseen,
                                     struct tess_candidate *out);
/* Draws from the candidates of all parts, in order, with a sampler of all ids. */
int32_t tess_sampler_draw_candidates(struct tess_sampler *s, const struct tess_sampling *sampling,
                                     const struct tess_candidate *list, int64_t n, uint64_t step);

#endif

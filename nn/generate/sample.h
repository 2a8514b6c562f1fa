/* sample.h - what is needed of a sampler beyond tessera/sampling.h. */
#ifndef TESS_NN_SAMPLE_H
#define TESS_NN_SAMPLE_H

#include <stdbool.h>
#include <tessera/sampling.h>

/*
 * The probabilities of all ids after processing, f32 [vocab], 0 where an id was removed; borrowed
 * until the next call. logits [vocab]; seen: the ids of prompt and text so far, for the penalty.
 */
const float *tess_sampler_compute_probabilities(struct tess_sampler *s,
                                                const struct tess_sampling *sampling,
                                                const float *logits, const int32_t *seen,
                                                int64_t nseen);

/* tess_sampler_draw of the step whose number is u, in [0, 1). */
int32_t tess_sampler_draw_number(struct tess_sampler *s, const struct tess_sampling *sampling,
                                 const float *logits, const int32_t *seen, int64_t nseen, double u);

/* What a device needs to draw the id of a step: SAMPLE in tessera/device.h. */
struct tess_draw { /* a value; greedy: zeroed but for the penalty */
	double temperature, top_p, min_p, top_k, number, penalty;
	double set; /* in which the device has the ids that were seen; without a penalty: any */
};
bool tess_sampling_has_penalty(const struct tess_sampling *s);
/* Its set is 0. */
struct tess_draw tess_sampling_get_draw(const struct tess_sampling *s, uint64_t step);

/*
 * A vocabulary in parts, as ranks have it: each finds the candidates of its part, of which one of
 * them draws the id that tess_sampler_draw would draw from the whole row.
 */
struct tess_candidate {
	double score;
	int64_t id;
};
/* A sampler of ids [first, first + n). */
tess_status tess_sampler_new_part(int64_t first, int64_t n, struct tess_sampler **out);
/*
 * logits [n], of the part. Greedy: the best id. With a top_k: its top_k best, best first; returns
 * how many there are with those that tie with the last one. Else there are no candidates.
 */
int64_t tess_sampler_find_candidates(struct tess_sampler *s, const struct tess_sampling *sampling,
                                     const float *logits, const int32_t *seen, int64_t nseen,
                                     struct tess_candidate *out);
/* On a sampler of all ids: from the candidates of all parts, in the order of the parts. */
int32_t tess_sampler_draw_candidates(struct tess_sampler *s, const struct tess_sampling *sampling,
                                     const struct tess_candidate *list, int64_t n, uint64_t step);

#endif

/*
 * tessera/sampling.h - chooses the next id from logits.
 *
 * The steps are those of Transformers, in this order: repetition penalty, temperature, top-k,
 * top-p, min-p, one draw. Results are bit-identical on every machine: exp is Tessera's own, random
 * numbers are keyed by (seed, step), and the lowest id wins a tie.
 *
 * Example:
 *     static int32_t draw_one(const float *logits, int64_t vocab)
 *     {
 *             const struct tess_sampling how = { .temperature = 0.8, .top_p = 0.95, .seed = 7 };
 *             struct tess_sampler *s;
 *             int32_t id = -1;
 *
 *             if (!tess_sampler_new(vocab, &s)) {
 *                     id = tess_sampler_draw(s, &how, logits, NULL, 0, 0);
 *                     tess_sampler_free(s);
 *             }
 *             return id;
 *     }
 */
#ifndef TESSERA_SAMPLING_H
#define TESSERA_SAMPLING_H

#include <tessera/plugin.h>

TESS_BEGIN

/* How to sample. A value, final; zeroed, it is greedy. */
struct tess_sampling {
	/* Divides the logits; 0: greedy, where only the penalty has an effect. */
	double temperature;
	/* Keeps the most probable ids whose sum reaches top_p; 1: off; 0: only the best id. */
	double top_p;
	/* Keeps ids with at least min_p times the highest probability; 0: off. */
	double min_p;
	/* Penalty of ids that were seen; 0 or 1: off. */
	double repetition_penalty;
	/* Keeps the top_k best ids; 0: off. */
	int64_t top_k;
	/* Key of the random numbers. */
	uint64_t seed;
};

/* Checks the ranges of all fields. TESS_EINVAL: the message names the field. */
tess_status tess_sampling_check(const struct tess_sampling *s);

/* Memory for one vocabulary. One thread at a time uses it. */
struct tess_sampler;

/* Allocates a sampler for `vocab` ids, 1 to INT32_MAX. The caller owns *out: tess_sampler_free. */
tess_status tess_sampler_new(int64_t vocab, struct tess_sampler **out);

/* Frees a sampler. NULL is accepted. */
void tess_sampler_free(struct tess_sampler *s);

/*
 * Draws the id of step `step`; the first generated id has step 0. logits: [vocab]. seen: the
 * `nseen` ids of the sequence so far, for the penalty; NULL if there are none. Allocates nothing.
 * Returns -1 and leaves a message if an argument is refused.
 */
int32_t tess_sampler_draw(struct tess_sampler *s, const struct tess_sampling *sampling,
                          const float *logits, const int32_t *seen, int64_t nseen, uint64_t step);

TESS_END
#endif

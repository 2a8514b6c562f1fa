/*
 * tessera/sampling.h - from logits to the next id: repetition penalty, temperature, top-k, top-p,
 * min-p, in this order and as transformers defines them; then one draw. The same on every machine:
 * an exp of its own, counter-based random numbers keyed by (seed, step), ties by lowest id.
 */
#ifndef TESSERA_SAMPLING_H
#define TESSERA_SAMPLING_H

#include <tessera/plugin.h>

TESS_BEGIN

struct tess_sampling { /* a value, final; zeroed: greedy */
	double temperature; /* 0: greedy; only the penalty still has an effect */
	double top_p, min_p; /* 1 and 0: off; top_p 0: only the best id */
	double repetition_penalty; /* 0 or 1: off */
	int64_t top_k; /* 0: off */
	uint64_t seed;
};

/* TESS_EINVAL and a sentence where a number is out of its range. */
tess_status tess_sampling_check(const struct tess_sampling *s);

/* Memory for one vocabulary, of 1 to INT32_MAX ids: no draw allocates. */
struct tess_sampler;
tess_status tess_sampler_new(int64_t vocab, struct tess_sampler **out);
void tess_sampler_free(struct tess_sampler *s);

/*
 * The id of step `step` (0: the first generated). logits [vocab]; seen: the ids of prompt and text
 * so far, for the penalty. -1: the sampling or another argument is refused.
 */
int32_t tess_sampler_draw(struct tess_sampler *s, const struct tess_sampling *sampling,
                          const float *logits, const int32_t *seen, int64_t nseen, uint64_t step);

TESS_END
#endif

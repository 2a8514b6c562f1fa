/* rope.h - rotary position embedding: the settings of config.json, and the table for ops. */
#ifndef TESS_NN_ROPE_H
#define TESS_NN_ROPE_H

#include <jansson.h>
#include <tessera/plugin.h>

enum {
	TESS_ROPE_DEFAULT = 1,
	TESS_ROPE_LLAMA3,
	TESS_ROPE_LINEAR,
	TESS_ROPE_YARN,
	TESS_ROPE_LONGROPE
};

/* Settings of RoPE; copied by value. */
struct tess_rope {
	int32_t type;
	int32_t fractions; /* yarn: the ends of the ramp are not rounded (truncate) */
	double theta, factor; /* factor: unused by default */
	double alpha; /* theta times its power d / (d - 2), for heads of d elements; 0: none */
	/*
	 * Between slow and fast angles: llama3: low_freq_factor, high_freq_factor; yarn: beta_slow,
	 * beta_fast.
	 */
	double low, high;
	double scale; /* factor of cosines and sines: an attention factor, else 1 */
	int64_t original; /* llama3, yarn, longrope: context length before scaling */
	int64_t limit; /* longer sequences have another table; 0: none */
	const json_t *factors; /* longrope: one per angle; borrowed from the config */
	/* factor of position p: 1 + growth * ln(1 + floor((p + start) / period)) */
	double growth, period, start;
	int32_t still; /* angles are 0 */
	double part; /* rotated part of a head (partial_rotary_factor) */
};

/*
 * Reads both spellings: transformers 5 (`rope_parameters`) and 4 (`rope_theta` with `rope_scaling`,
 * which precedes as it does there). Without either theta is 10000. Messages begin with the path of
 * config.json in `dir`. kind: the kind of layers whose settings are read, if those of config.json
 * differ ("sliding_attention"). NULL: such settings are TESS_ENOTSUP. theta: base of rope without
 * scaling, for a kind of layers without settings of its own; 0: those of config.json.
 */
tess_status tess_rope_read(const char *dir, const json_t *config, const char *kind, double theta,
                           struct tess_rope *out);

/*
 * Checks that one table serves all sequences of at most `positions` (0: unlimited), with `each`
 * rotated elements of a head.
 */
tess_status tess_rope_check(const char *dir, const struct tess_rope *r, int64_t each,
                            int64_t positions);

/*
 * Fills out[positions][each]: for each position the cosines, then the sines, of each / 2 angles;
 * `each` is the even number of rotated elements of a head. These are the rows of docs/ops.md. An
 * angle is, in double, position * f_i; f_i = theta^(-2i / each) is the float32 number that
 * transformers computes, up to the last place of its powf, llama3 scaling included.
 */
tess_status tess_rope_fill_table(const struct tess_rope *r, int64_t each, int64_t positions,
                                 float *out);

#endif

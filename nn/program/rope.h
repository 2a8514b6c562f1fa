/* rope.h - rotary position embedding: the settings of config.json, and the table that ops read. */
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

/* A value. */
struct tess_rope {
	int32_t type;
	int32_t fractions; /* yarn: the ramp's ends are not rounded to whole numbers (truncate) */
	double theta, factor; /* factor: not of default */
	/*
	 * Between slow and fast angles: llama3: low_freq_factor, high_freq_factor; yarn: beta_slow,
	 * beta_fast.
	 */
	double low, high;
	double scale; /* of the cosines and sines: an attention factor, else 1 */
	int64_t original; /* llama3, yarn, longrope: positions of the training before the scaling */
	int64_t limit; /* a text with more positions has another table; 0: none has */
	const json_t *factors; /* longrope: of each angle; borrowed from the config */
	double part; /* of a head that is rotated (partial_rotary_factor) */
};

/*
 * Reads both spellings: transformers 5 (`rope_parameters`) and 4 (`rope_theta` with `rope_scaling`,
 * which wins as it does there); neither: theta 10000. One setting per layer type is TESS_ENOTSUP
 * with a sentence, which begins with the path of config.json in `dir`.
 */
tess_status tess_rope_read(const char *dir, const json_t *config, struct tess_rope *out);

/*
 * Whether one table serves all texts of at most `positions` (0: any), of which `each` elements of a
 * head are rotated.
 */
tess_status tess_rope_check(const char *dir, const struct tess_rope *r, int64_t each,
                            int64_t positions);

/*
 * out[positions][each]: of each position the cosines, then the sines, of each / 2 angles, where
 * `each` elements of a head are rotated: the rows of docs/ops.md. An angle is, in double,
 * position * f_i; f_i = theta^(-2i / each) is the float32 number that transformers computes, up to
 * the last place of its powf, llama3 scaling included.
 * `each` is even.
 */
tess_status tess_rope_fill_table(const struct tess_rope *r, int64_t each, int64_t positions,
                                 float *out);

#endif

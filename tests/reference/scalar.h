/*
 * scalar.h - every op by its definition in tessera/device.h, one element at a time: for lockstep,
 * and as a second implementation for comparisons with devices. Shares only the split rule with
 * devices.
 */
#ifndef TESS_TESTS_REFERENCE_SCALAR_H
#define TESS_TESTS_REFERENCE_SCALAR_H

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <tessera/device.h>

/* Functions of libm; a test that expects the bits of a device uses the device's: -DSCALAR_MATH. */
#ifdef SCALAR_MATH
#include SCALAR_MATH
#else
#define mathf_exp(x) ((float)exp((double)(x)))
#define mathf_log(x) ((float)log((double)(x)))
#define mathf_tanh(x) ((float)tanh((double)(x)))
#define mathf_erf(x) ((float)erf((double)(x)))
#endif

/*
 * Compiles a function that calls fmaf() for each element twice: with the instruction, and without.
 */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WITH_FMA __attribute__((target_clones("default", "fma")))
#else
#define WITH_FMA
#endif

void scalar_run(const struct tess_op *op);

/* A device that supports only rows, for tess_rank_weights_load. */
extern const struct tess_device scalar_device;

/* Runs ROUTE, EXPERTS and COMBINE (scalar_experts.c). */
void scalar_run_experts(const struct tess_op *op);
/* Runs ATTENTION, ATTENTION_D and DROPOUT (scalar_attention.c). */
void scalar_run_dropout(const struct tess_op *op);
void scalar_run_attention(const struct tess_op *op);

/* Runs the ops of training (scalar_backward.c); false: another op. */
bool scalar_run_backward(const struct tess_op *op);

/* Runs the training ops of mixtures of experts (scalar_experts_backward.c); false: another op. */
bool scalar_run_experts_backward(const struct tess_op *op);

/* Returns act(v) of GLU, and u * act'(a) of GLU_D. */
float scalar_activate(int32_t act, float v);
float scalar_derive_activation(int32_t act, float a, float u);
/* Returns element `at` of data of any dtype, widened. */
float scalar_load(const struct tess_view *v, int64_t at);
/* Returns an element of a matrix. */
static inline float scalar_read(const struct tess_view *v, int64_t i, int64_t k)
{
	int64_t at = i * v->stride[0] + k * v->stride[1];
	float x;

	if (v->dtype != TESS_F32)
		return scalar_load(v, at);
	memcpy(&x, (const char *)v->data + 4 * at, sizeof x);
	return x;
}
/*
 * Writes the largest nodes of the units [lo, hi) of n to out, from leaf[0 to hi - lo - 1]; returns
 * their number.
 */
int64_t scalar_sum_nodes(int64_t n, int64_t lo, int64_t hi, const float *leaf, float *out);
/* Computes one sum of x[row] * w[col]: finished, or its nodes, `step` elements apart. */
void scalar_contract(const struct tess_op *op, const struct tess_view *x, int64_t row,
                     const struct tess_view *w, int64_t col, bool partial, float *out,
                     int64_t step);
/* Returns whether the products of an op are of bf16. */
bool scalar_has_bf16_products(const struct tess_op *op);
/* Adds x[1] * w[1], then x[0] * w[0], rounded to bf16, to c. */
float scalar_add_bf16_pair(const float x[2], const float w[2], float c);
/*
 * Sums u[row], or u[row] * v[row], over tokens: finished, or its nodes, `step` elements apart.
 * present: the rows that products of bf16 take.
 */
void scalar_sum_tokens(const struct tess_op *op, const float *u, const float *v,
                       const bool *present, bool partial, float *out, int64_t step);
/* Returns matrix e of a weight of experts. */
struct tess_view scalar_get_expert(const struct tess_view *w, int64_t e);

/* Returns the activation with a limit of gate a and up b, by the numbers of EXPERTS. */
float scalar_activate_limited(const struct tess_op *op, float a, float b);

#endif

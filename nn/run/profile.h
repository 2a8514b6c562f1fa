/*
 * profile.h - measures the time of steps on this rank, by the kinds of their ops, and collectives.
 * Their bytes and FLOPs are those of nn/cost/op_cost.h, their work that of nn/cost/step_work.h.
 */
#ifndef TESS_NN_PROFILE_H
#define TESS_NN_PROFILE_H

#include <tessera/device.h>
#include <tessera/tessera.h>
#include <tessera/util/clock.h>

enum { TESS_PROFILE_STEPS = 64, TESS_PROFILE_OPS = 8 };

struct tess_profile_op { /* sums over steps with ops of the same kinds */
	uint8_t kind[TESS_PROFILE_OPS]; /* TESS_OP_..., in order, then 0; all 0: calls of styles */
	int64_t calls, ns;
	uint64_t bytes, flops;
};

struct tess_profile { /* the profile of one rank; zeroed: nothing has run */
	struct tess_profile_op
		op[TESS_PROFILE_STEPS]; /* in order of first runs; calls 0: the end */
	uint64_t weight_bytes, kv_bytes; /* included in the bytes of ops */
	int64_t ns; /* of all steps, including collectives */
	struct tess_profile_call { /* a collective; times in ns */
		struct tess_group *group;
		int64_t entered, left;
	} * call;
	int64_t ncalls, capacity;
	struct tess_profile_sample { /* a step with ops */
		uint8_t kind[TESS_PROFILE_OPS];
		int32_t class; /* TESS_TERM_... */
		bool bf16; /* products of bf16 */
		double rows, work; /* of one of `parts`, as in machine files */
		double parts;
		int64_t ns;
	} * sample;
	int64_t nsamples, sample_capacity;
	bool keeps_samples; /* steps are also kept one by one, until the profile is freed */
	tess_status status; /* TESS_ENOMEM: calls or samples are missing */
	/* the inputs of a step in host memory, and the address that ops read; the device's memory
	 * is read only if it is the host's */
	const char *inputs, *at;
	int64_t input_bytes;
	bool on_host;
};

/* Resets all sums; keeps the samples, and the room for calls. */
void tess_profile_clear(struct tess_profile *p);
void tess_profile_free(struct tess_profile *p);

/* Returns the start time of a measurement; p NULL: 0. */
static inline int64_t tess_profile_begin(const struct tess_profile *p)
{
	return p ? tess_now() : 0;
}
/* Adds a step, `op` and the ops linked to it, that began at `began`; op NULL: a style's call. */
void tess_profile_add_op(struct tess_profile *p, const struct tess_op *op, int64_t began);
/* Adds a collective; g NULL: a message, which only two ranks exchange. p may be NULL. */
void tess_profile_add_call(struct tess_profile *p, struct tess_group *g, int64_t began);

/*
 * Splits the time of this rank's calls, in ns. *wait: until the last rank of the group entered, and
 * all of a message; *moving: the rest. For ranks on several hosts, whose clocks differ, *wait has
 * messages only. Collective over the groups of the calls.
 */
tess_status tess_profile_split_calls(const struct tess_profile *p, int64_t *moving, int64_t *wait);

#endif

/*
 * profile.h - where the time of steps goes on this rank: ops by kind, and calls of groups.
 *
 * An op's bytes are those of its operands and outs, each once, as if none were in a cache: of a
 * table only the rows that are looked up, of weights of experts those that a row asks for, of the
 * KV cache the positions that a text sees. FLOPs are those of products (2 for each multiplication
 * and addition): LINEAR, HEAD_LINEAR, EXPERTS and ATTENTION.
 */
#ifndef TESS_NN_PROFILE_H
#define TESS_NN_PROFILE_H

#include <tessera/device.h>
#include <tessera/tessera.h>
#include <tessera/util/clock.h>

enum { TESS_PROFILE_KINDS = 64 };

struct tess_profile_op { /* sums over the ops of one kind */
	int64_t calls, ns;
	uint64_t bytes, flops;
};

struct tess_profile { /* of one rank; zeroed: nothing has run */
	struct tess_profile_op op[TESS_PROFILE_KINDS]; /* by TESS_OP_...; 0: calls of styles */
	uint64_t weight_bytes, kv_bytes; /* parts of the bytes of ops */
	struct tess_profile_call { /* of a group; ns */
		struct tess_group *group;
		int64_t entered, left;
	} * call;
	int64_t ncalls, capacity;
	tess_status status; /* TESS_ENOMEM: calls were lost */
	/* the inputs of a step in host memory, and where ops find them; memory of the device is
	 * read only if it is the host's */
	const char *inputs, *at;
	int64_t input_bytes;
	bool on_host;
};

/* Forgets what has run; keeps the room for calls. */
void tess_profile_clear(struct tess_profile *p);
void tess_profile_free(struct tess_profile *p);

/* Begins what is measured; NULL: 0, and nothing is. */
static inline int64_t tess_profile_begin(const struct tess_profile *p)
{
	return p ? tess_now() : 0;
}
/* An op that began then has ended; NULL: a call of a style. */
void tess_profile_add_op(struct tess_profile *p, const struct tess_op *op, int64_t began);
/* A call of a group, which may be NULL as p may. */
void tess_profile_add_call(struct tess_profile *p, struct tess_group *g, int64_t began);

/*
 * Collective over the groups that made calls. *wait: ns of this rank's calls before the last rank
 * of the group had entered them, at most their length; *moving: the rest of them. Where ranks are
 * on several hosts, whose clocks differ, *wait is 0.
 */
tess_status tess_profile_split_calls(const struct tess_profile *p, int64_t *moving, int64_t *wait);

#endif

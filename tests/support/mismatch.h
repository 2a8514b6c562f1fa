/*
 * mismatch.h - ranks whose calls do not match, derived from a seed: the odd rank, the difference of
 * its call, and the earlier calls.
 */
#ifndef TESS_TESTS_SUPPORT_MISMATCH_H
#define TESS_TESTS_SUPPORT_MISMATCH_H

#include <tessera/tessera.h>

enum { MISMATCH_RANKS = 8, MISMATCH_EARLIER = 3 };

struct mismatch {
	int32_t nranks, odd_rank,
		other_rank; /* other_rank: a rank other than the odd one; of a pair, its peer */
	int32_t difference; /* see mismatch_describe() */
	int32_t kind, dtype, op, root; /* the call of all other ranks */
	int32_t odd_kind, odd_dtype, odd_op; /* the odd rank's call, where it differs */
	uint64_t count, odd_count;
	int32_t nearlier; /* earlier calls, which match */
};

void mismatch_make(uint64_t seed, int32_t n, struct mismatch *out);
/* Returns the kind of difference: "a count", "a call is missing". */
const char *mismatch_describe(const struct mismatch *m);

/*
 * Makes one rank's calls. Returns TESS_EMISMATCH and the message of the expected failure. Returns
 * TESS_EBUG if the message does not name both ranks, both calls and both modules, if nothing fails,
 * or if results of earlier calls have changed. *kept: the buffers, which belong to the group until
 * the world is closed; then call mismatch_free.
 */
struct mismatch_buffers;
tess_status mismatch_run(struct tess_world *w, const struct mismatch *m,
                         struct mismatch_buffers **kept);
void mismatch_free(struct mismatch_buffers *kept); /* NULL: nothing */

#endif

/*
 * mismatch.h - ranks whose calls do not match, derived from a seed: which rank is odd, how its
 * call differs, and the earlier calls.
 */
#ifndef TESS_TESTS_SUPPORT_MISMATCH_H
#define TESS_TESTS_SUPPORT_MISMATCH_H

#include <tessera/tessera.h>

enum { MISMATCH_RANKS = 8, MISMATCH_EARLIER = 3 };

struct mismatch {
	int32_t nranks, odd_rank,
		other_rank; /* other_rank: a rank that is not odd; of a pair, its peer */
	int32_t difference; /* see mismatch_describe() */
	int32_t kind, dtype, op, root; /* of the call, as all other ranks make it */
	int32_t odd_kind, odd_dtype, odd_op; /* those of the odd rank, where they differ */
	uint64_t count, odd_count;
	int32_t nearlier; /* earlier calls, which match */
};

void mismatch_make(uint64_t seed, int32_t n, struct mismatch *out);
/* "a count", "a call is missing" */
const char *mismatch_describe(const struct mismatch *m);

/*
 * Makes one rank's calls. Returns TESS_EMISMATCH and the sentence of the failure, where that is
 * right; TESS_EBUG if the sentence does not name both ranks, both calls and both modules, if
 * nothing fails, or if results of earlier calls have changed. *kept: the buffers, which belong to
 * the group until the world is closed; then call mismatch_free.
 */
struct mismatch_buffers;
tess_status mismatch_run(struct tess_world *w, const struct mismatch *m,
                         struct mismatch_buffers **kept);
void mismatch_free(struct mismatch_buffers *kept); /* NULL: nothing */

#endif

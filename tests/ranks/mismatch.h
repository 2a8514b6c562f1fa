/*
 * mismatch.h - ranks whose calls do not fit, made from a seed: which rank is odd, what it does
 * otherwise, and what all have done before.
 */
#ifndef TESTS_MISMATCH_H
#define TESTS_MISMATCH_H

#include <tessera/tessera.h>

enum { MISMATCH_RANKS = 8, MISMATCH_EARLIER = 3 };

struct mismatch {
	int32_t nranks, odd_rank,
		other_rank; /* other: a rank that is not odd; of a pair, its peer */
	int32_t difference; /* differs: mismatch_describe() */
	int32_t kind, dtype, op, root; /* of the call, as all others make it */
	int32_t odd_kind, odd_dtype, odd_op; /* where they differ */
	uint64_t count, odd_count;
	int32_t nearlier; /* calls that fit */
};

void mismatch_make(uint64_t seed, int32_t n, struct mismatch *out);
/* "a count", "a call is missing" */
const char *mismatch_describe(const struct mismatch *m);

/*
 * One rank's calls. Returns TESS_EMISMATCH and the sentence that it was told, where that is as it must
 * be; TESS_EBUG and what is wrong where the sentence does not name both ranks, both calls and both
 * modules, nothing fails, or what earlier calls have brought has changed. *kept: the
 * buffers, which are the group's until the world is closed; mismatch_free them then.
 */
struct mismatch_buffers;
tess_status mismatch_run(struct tess_world *w, const struct mismatch *m,
                         struct mismatch_buffers **kept);
void mismatch_free(struct mismatch_buffers *kept); /* NULL: nothing */

#endif

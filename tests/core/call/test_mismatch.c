/*
 * test_mismatch.c - 200 jobs in which one rank's calls do not match those of the other ranks. Each
 * ends on every rank in an error that names both ranks, both calls and both modules; results of
 * earlier calls do not change.
 */
#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/world/world.h"
#include "tests/support/mismatch.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

enum { CASES = 200 };

struct mismatch_result {
	struct mismatch m;
	tess_status st[MISMATCH_RANKS];
	struct mismatch_buffers *kept[MISMATCH_RANKS];
	char sentence[MISMATCH_RANKS][1600];
};

static tess_status run_mismatch_on_thread(struct tess_world *w, void *arg)
{
	struct mismatch_result *p = arg;
	int32_t me = tess_world_rank(w);

	p->st[me] = mismatch_run(w, &p->m, &p->kept[me]);
	snprintf(p->sentence[me], sizeof p->sentence[me], "%s",
	         p->st[me] ? tess_error() : "no error");
	return p->st[me];
}

START_TEST(calls_that_do_not_match)
{
	const char *seed = getenv("MISMATCH_SEED"), *cases = getenv("MISMATCH_CASES");
	int n = cases ? atoi(cases) : CASES;

	for (int i = 0; i < n; i++) {
		uint64_t s = (seed ? strtoull(seed, NULL, 10) : 1) + (uint64_t)i;
		struct mismatch_result p = { .st = { 0 } };

		mismatch_make(s, 2 + (int32_t)(s % 4), &p.m);
		ck_assert_int_lt(tess_world_spawn_threads(p.m.nranks, run_mismatch_on_thread, &p),
		                 0);
		for (int32_t r = 0; r < p.m.nranks; r++)
			mismatch_free(p.kept[r]);
		for (int32_t r = 0; r < p.m.nranks; r++)
			ck_assert_msg(p.st[r] == TESS_EMISMATCH,
			              "MISMATCH_SEED=%d, %s, rank %d of %d: %s", (int)s,
			              mismatch_describe(&p.m), r, p.m.nranks, p.sentence[r]);
	}
}
END_TEST

/*
 * Checks that counts of an all_to_all are compared by pairs: a descriptor has both lists or none.
 * _i: bit 0: send_counts; bit 1: recv_counts
 */
START_TEST(one_list_of_an_all_to_all)
{
	uint64_t memory[64], counts[4] = { 1, 2, 3, 4 };
	struct tess_call_desc *n = (void *)memory;
	struct tess_call_key key = { .number = 1 };
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_TO_ALL,
		               .dtype = TESS_F32,
		               .send_counts = _i & 1 ? counts : NULL,
		               .recv_counts = _i & 2 ? counts : NULL };

	tess_call_desc_write(n, &c, &key, 4);
	ck_assert(tess_call_desc_valid(n, n->bytes, 4) == (_i == 0 || _i == 3));
}
END_TEST

int main(void)
{
	SRunner *runner;
	TCase *tcase = suite_begin("mismatch", 120, &runner);

	tcase_add_test(tcase, calls_that_do_not_match);
	tcase_add_loop_test(tcase, one_list_of_an_all_to_all, 0, 4);
	return suite_end(runner);
}

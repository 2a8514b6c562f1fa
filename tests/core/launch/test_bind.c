/* test_bind.c - the CPU to which a rank is bound. */
#include "core/base/status.h"
#include "core/launch/bind.h"
#include "tests/support/suite.h"

#include <string.h>

/* Returns the CPU of a rank, one of 2, 3, 5 and 8; -1: not bound. */
static int get_bound_cpu(const char *how, bool gains, int32_t rank, int32_t nranks)
{
	cpu_set_t ours, out;

	CPU_ZERO(&ours);
	CPU_SET(2, &ours);
	CPU_SET(3, &ours);
	CPU_SET(5, &ours);
	CPU_SET(8, &ours);
	if (!tess_bind_choose(how, gains, &ours, rank, nranks, &out))
		return -1;
	ck_assert_int_eq(CPU_COUNT(&out), 1);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &out))
			return cpu;
	return -2;
}

START_TEST(neighbours_share_one)
{
	static const int eight[] = { 2, 2, 3, 3, 5, 5, 8, 8 }, six[] = { 2, 2, 3, 5, 5, 8 };

	for (int32_t r = 0; r < 8; r++) {
		ck_assert_int_eq(get_bound_cpu("cpu", false, r, 8), eight[r]);
		ck_assert_int_eq(get_bound_cpu("auto", true, r, 8), eight[r]);
		ck_assert_int_eq(get_bound_cpu("none", true, r, 8), -1);
	}
	for (int32_t r = 0; r < 6; r++)
		ck_assert_int_eq(get_bound_cpu("cpu", true, r, 6), six[r]);
	ck_assert_int_eq(get_bound_cpu("cpu", true, 1, 2), 5);
}
END_TEST

START_TEST(only_where_it_is_better)
{
	ck_assert_int_eq(get_bound_cpu("auto", false, 0, 8), -1);
	ck_assert_int_eq(get_bound_cpu("auto", true, 0, 4), -1); /* each rank may have its own */
	ck_assert_int_eq(get_bound_cpu("auto", true, 0, 6),
	                 -1); /* two ranks would have less than the others */
	ck_assert_int_eq(get_bound_cpu("auto", true, 11, 12), 8);
}
END_TEST

START_TEST(refuses_other_words)
{
	ck_assert(!tess_bind_check("auto") && !tess_bind_check("cpu") && !tess_bind_check("none"));
	ck_assert_int_eq(tess_bind_check("core"), TESS_EINVAL);
	expect_part(tess_error(), "cannot be bound as \"core\": --bind and TESSERA_BIND may be");
}
END_TEST

SUITE_MAIN("bind", neighbours_share_one, only_where_it_is_better, refuses_other_words)

/* Time from the CPU's counter: monotonic, and close to the system's clock. */
#include "core/base/clock.h"
#include "core/base/ticks.h"
#include "tests/support/suite.h"

#include <time.h>

enum { CLOSE = 20000 }; /* ns */

/*
 * The distance from the clock, which is read before and after; repeated if the thread was
 * interrupted.
 */
static int64_t measure_clock_offset(struct tess_ticks *t)
{
	int64_t min = INT64_MAX;

	for (int i = 0; i < 100 && min > CLOSE; i++) {
		int64_t before = tess_now(), now = tess_ticks_now(t), after = tess_now();
		int64_t off = now < before ? before - now : now > after ? now - after : 0;

		min = off < min ? off : min;
	}
	return min;
}

START_TEST(goes_with_the_clock)
{
	struct tess_ticks t = { 0 };
	int64_t begin = tess_now(), last = 0, worst = 0;

	for (uint64_t i = 0; tess_now() < begin + 100 * TESS_MS; i++) {
		int64_t now = tess_ticks_now(&t);

		ck_assert_int_ge(now, last);
		last = now;
		if (i % 1000 == 0 && measure_clock_offset(&t) > worst)
			worst = measure_clock_offset(&t);
	}
	ck_assert_int_lt(worst, CLOSE);
	if (t.has_counter > 0)
		ck_assert(t.rate && t.sync_after); /* measured, and used */
}
END_TEST

/*
 * If the counter jumps, or was measured wrong, the clock is used, and the counter measured again.
 */
START_TEST(leaves_a_counter_that_jumps)
{
	struct timespec ms = tess_timespec(2 * TESS_MS);
	struct tess_ticks t = { 0 };
	int64_t last;

	tess_ticks_now(&t);
	nanosleep(&ms, NULL);
	tess_ticks_now(&t);
	if (t.has_counter < 0)
		return;
	ck_assert(t.sync_after);
	t.sync_count += t.sync_after; /* as if the counter lagged on this CPU */
	last = tess_ticks_now(&t);
	ck_assert_int_lt(measure_clock_offset(&t), CLOSE);
	nanosleep(&ms, NULL);
	t.sync_count -= 2 * t.sync_after;
	t.rate_count -= 2 * t.sync_after; /* as if the counter ran fast */
	ck_assert_int_ge(tess_ticks_now(&t), last);
	ck_assert_uint_eq(t.sync_after, 0);
	ck_assert_int_lt(measure_clock_offset(&t), CLOSE);
	nanosleep(&ms, NULL);
	tess_ticks_now(&t);
	ck_assert(t.sync_after);
	ck_assert_int_lt(measure_clock_offset(&t), CLOSE);
}
END_TEST

SUITE_MAIN("ticks", goes_with_the_clock, leaves_a_counter_that_jumps)

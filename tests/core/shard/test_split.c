/* test_split.c - properties of split.h: parts, units, nodes. */
#include "tests/support/draw.h"
#include "tests/support/suite.h"

#include <stdbool.h>
#include <string.h>
#include <tessera/split.h>

enum { SMALL = 130, RANKS = 17 };
static const int64_t large[] = { 172,           1000,    32000,         151936,
	                         (1 << 25) - 1, 1 << 25, (1 << 30) - 1, 1 << 30 };
enum { NLARGE = sizeof large / sizeof *large };

/* Returns one of the sizes on which the properties are tested. */
static int64_t get_size(int i)
{
	return i <= SMALL ? i : large[i - SMALL - 1];
}

enum { NSIZES = SMALL + 1 + NLARGE };

START_TEST(rounds_up)
{
	ck_assert_int_eq(tess_up(0, 3), 0);
	ck_assert_int_eq(tess_up(1, 3), 1);
	ck_assert_int_eq(tess_up(3, 3), 1);
	ck_assert_int_eq(tess_up(4, 3), 2);
	ck_assert_int_eq(tess_edge(10, 4, 1), 3);
	ck_assert_int_eq(tess_edge(10, 4, 2), 5);
	ck_assert_int_eq(tess_edge(10, 4, 3), 8);
}
END_TEST

START_TEST(parts_cover_and_differ_by_one)
{
	for (int s = 0; s < NSIZES; s++)
		for (int64_t m = 1; m <= RANKS; m++) {
			int64_t n = get_size(s), min_size = n / m;

			MUST(tess_edge(n, m, 0) == 0);
			MUST(tess_edge(n, m, m) == n);
			for (int64_t i = 0; i < m; i++) {
				int64_t part = tess_edge(n, m, i + 1) - tess_edge(n, m, i);

				MUST(part == min_size || part == min_size + 1);
			}
		}
}
END_TEST

START_TEST(parts_nest)
{
	for (int s = 0; s < NSIZES; s++)
		for (int64_t m = 1; m <= RANKS; m++)
			for (int64_t i = 0; i <= m; i++)
				MUST(tess_edge(get_size(s), m, i) ==
				     tess_edge(get_size(s), 2 * m, 2 * i));
}
END_TEST

/*
 * Checks one range of units: nodes cover it once and in order, each is the part that it names, and
 * none could be larger.
 */
static int64_t check_run_of_units(int64_t n, int64_t lo, int64_t hi)
{
	int64_t at = lo, end = lo, count = 0;
	struct tess_node a;

	while (tess_node_next(n, lo, hi, &at, &a)) {
		int64_t m = (int64_t)1 << a.depth, up = a.at / 2;

		MUST(a.lo == end);
		MUST(a.lo < a.hi);
		MUST(at == a.hi);
		MUST(a.depth >= 0 && a.depth <= 32 && a.at >= 0 && a.at < m);
		MUST(a.lo == tess_edge(n, m, a.at));
		MUST(a.hi == tess_edge(n, m, a.at + 1));
		MUST(a.depth == 0 || tess_edge(n, m / 2, up) < lo ||
		     tess_edge(n, m / 2, up + 1) > hi);
		end = a.hi;
		count++;
	}
	MUST(end == hi);
	MUST(at == hi);
	MUST(count == tess_node_count(n, lo, hi));
	return count;
}

START_TEST(nodes_of_every_run)
{
	for (int64_t n = 0; n <= 70; n++)
		for (int64_t lo = 0; lo <= n; lo++)
			for (int64_t hi = lo; hi <= n; hi++)
				check_run_of_units(n, lo, hi);
}
END_TEST

START_TEST(nodes_of_ranks)
{
	for (int s = 0; s < NSIZES; s++)
		for (int64_t m = 1; m <= RANKS; m++)
			for (int64_t i = 0; i < m; i++) {
				int64_t n = get_size(s), lo = tess_edge(n, m, i),
					hi = tess_edge(n, m, i + 1);
				int64_t count = check_run_of_units(n, lo, hi);

				if (!(m & (m - 1)))
					MUST(count == (lo < hi));
			}
}
END_TEST

START_TEST(nodes_of_long_runs)
{
	const int64_t n = 1 << 25;
	uint64_t state = 1;

	/*
	 * keys so far: later units are empty, and a prefix has a node for each set bit of its
	 * length
	 */
	ck_assert_int_eq(check_run_of_units(n, 0, 5), 2);
	ck_assert_int_eq(check_run_of_units(n, 0, n - 1), 25);
	ck_assert_int_eq(check_run_of_units(n, n - 1, n), 1);
	ck_assert_int_eq(check_run_of_units(n, 1, n - 1), 48);
	for (int i = 0; i < 20000; i++) {
		int64_t size = large[i % NLARGE];
		int64_t a = (int64_t)draw_below(&state, (uint64_t)size + 1),
			b = (int64_t)draw_below(&state, (uint64_t)size + 1);

		check_run_of_units(size, a < b ? a : b, a < b ? b : a);
	}
}
END_TEST

/* Returns whether `unit` > a is in the part of 2^depth of n units that contains unit a. */
static bool is_in_part(int64_t n, int32_t depth, int64_t a, int64_t unit)
{
	int64_t m = (int64_t)1 << depth, i = 0;

	while (tess_edge(n, m, i + 1) <= a)
		i++;
	return unit < tess_edge(n, m, i + 1);
}

START_TEST(smallest_shared_nodes)
{
	for (int64_t n = 2; n <= 40; n++)
		for (int64_t a = 0; a < n; a++)
			for (int64_t b = a + 1; b < n; b++) {
				int32_t depth = tess_node_shared_depth(n, a, b);

				MUST(is_in_part(n, depth, a, b));
				MUST(!is_in_part(n, depth + 1, a, b));
			}
	ck_assert_int_eq(tess_node_shared_depth(1 << 30, 0, 1), 29);
	ck_assert_int_eq(tess_node_shared_depth(1 << 30, 0, (1 << 30) - 1), 0);
}
END_TEST

/*
 * Checks the cost of rank counts that are no powers of 2: the average number of nodes of a rank,
 * for P = 1..8.
 */
START_TEST(nodes_of_32_units)
{
	static const double average[] = { 1, 1, 3.0, 1, 2.6, 2.3, 2.3, 1 };
	int64_t max = 0;

	for (int64_t ranks = 1; ranks <= 8; ranks++) {
		int64_t sum = 0;

		for (int64_t r = 0; r < ranks; r++) {
			int64_t count = check_run_of_units(32, tess_edge(32, ranks, r),
			                                   tess_edge(32, ranks, r + 1));

			sum += count;
			max = count > max ? count : max;
		}
		ck_assert_double_eq_tol((double)sum / (double)ranks, average[ranks - 1], 0.05);
	}
	ck_assert_int_eq(max, 4);
}
END_TEST

SUITE_MAIN("split", rounds_up, parts_cover_and_differ_by_one, parts_nest, nodes_of_every_run,
           nodes_of_ranks, nodes_of_long_runs, smallest_shared_nodes, nodes_of_32_units)

#include "core/base/arena.h"
#include "core/base/status.h"
#include "tests/support/suite.h"

#include <stdbool.h>
#include <string.h>

START_TEST(gives_zeroed_aligned_memory)
{
	struct tess_arena a = { 0 };
	unsigned char *kept[2000];

	for (size_t i = 0; i < 2000; i++) {
		size_t bytes = i * 37 % 700;
		unsigned char *p = kept[i] = tess_arena_alloc(&a, bytes);

		MUST(p && (uintptr_t)p % 16 == 0);
		for (size_t j = 0; j < bytes; j++)
			MUST(p[j] == 0);
		memset(p, (int)(i % 251) + 1, bytes);
	}
	for (size_t i = 0; i < 2000; i++)
		for (size_t j = 0; j < i * 37 % 700; j++)
			MUST(kept[i][j] == i % 251 + 1);
	tess_arena_free(&a);
	ck_assert_ptr_null(a.top);
}
END_TEST

START_TEST(gives_large_blocks_and_goes_on)
{
	struct tess_arena a = { 0 };
	char *small = tess_arena_alloc(&a, 10), *large = tess_arena_alloc(&a, 10 << 20), *more;

	ck_assert_ptr_nonnull(small);
	ck_assert_ptr_nonnull(large);
	memset(large, 1, 10 << 20);
	more = tess_arena_alloc(&a, 100);
	ck_assert_ptr_nonnull(more);
	ck_assert(more[99] == 0 && small[9] == 0);
	tess_arena_free(&a);
	ck_assert_ptr_nonnull(tess_arena_alloc(&a, 1));
	tess_arena_free(&a);
	tess_arena_free(&a);
}
END_TEST

/* Fills a small and a large block of an arena, and frees them. */
static void fill_arena(size_t large, const void **first)
{
	struct tess_arena a = { 0 };
	char *one = tess_arena_alloc(&a, 1000), *two = tess_arena_alloc(&a, large);

	ck_assert(one && two);
	for (size_t i = 0; i < 1000; i++)
		MUST(!one[i]);
	for (size_t i = 0; i < large; i++)
		MUST(!two[i]);
	memset(one, 1, 1000);
	memset(two, 1, large);
	first[0] = one;
	first[1] = two;
	tess_arena_free(&a);
}

START_TEST(keeps_blocks_for_the_next_arena)
{
	const void *was[2], *is[2];

	tess_arena_keep_blocks();
	fill_arena(5 << 20, was);
	tess_arena_keep_blocks();
	fill_arena(4 << 20, is);
	ck_assert(is[0] == was[0] && is[1] == was[1]);
	tess_arena_drop_blocks();
	fill_arena(2 << 20, is);
	ck_assert(is[0] == was[0] && is[1] != was[1]);
	fill_arena(5 << 20, is);
	ck_assert(is[1] == was[1]);
	tess_arena_drop_blocks();
	fill_arena(1 << 20, is);
}
END_TEST

START_TEST(copies_and_formats)
{
	struct tess_arena a = { 0 };
	char wide[3000];

	ck_assert_str_eq(tess_arena_copy(&a, "layers.0", 6), "layers");
	ck_assert_str_eq(tess_arena_copy(&a, "ab\0cd", 5), "ab");
	ck_assert_str_eq(tess_arena_copy(&a, "", 0), "");
	ck_assert_str_eq(tess_arena_format(&a, "layers.%d.%s", 7, "mlp"), "layers.7.mlp");
	memset(wide, 'w', sizeof wide - 1);
	wide[sizeof wide - 1] = '\0';
	ck_assert_str_eq(tess_arena_format(&a, "%s", wide), wide);
	tess_arena_free(&a);
}
END_TEST

START_TEST(says_when_there_is_none)
{
	struct tess_arena a = { 0 };

	ck_assert_ptr_null(tess_arena_alloc(&a, SIZE_MAX));
	expect_part(tess_error(), "bytes");
	ck_assert_ptr_null(tess_arena_alloc(&a, SIZE_MAX / 2));
	tess_arena_free(&a);
}
END_TEST

/* Grows a list entry by entry; earlier entries do not change. */
START_TEST(grows)
{
	struct tess_arena a = { 0 };
	int *list = NULL;

	for (size_t n = 0; n < 100; n++) {
		list = tess_arena_grow(&a, list, n, sizeof *list);
		ck_assert_ptr_nonnull(list);
		list[n] = (int)n;
		for (size_t i = 0; i <= n; i++)
			MUST(list[i] == (int)i);
	}
	tess_arena_free(&a);
}
END_TEST

SUITE_MAIN("arena", gives_zeroed_aligned_memory, gives_large_blocks_and_goes_on,
           keeps_blocks_for_the_next_arena, copies_and_formats, grows, says_when_there_is_none)

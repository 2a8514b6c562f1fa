/*
 * test_memory_plan.c - offsets of buffers: live buffers never overlap, and need no more bytes than
 * first fit. Steps that keep the values of their forward for the backward need little more than
 * their live bytes.
 */
#include "nn/lower/memory_plan.h"
#include "tests/support/suite.h"

#include <stdbool.h>

enum { RANDOM_MAX = 300, LAYERS_MAX = 1200, LAYER = 12, BACKWARD = 20, MANY = 1500 };
enum { STEPS_MAX = LAYERS_MAX * (LAYER + BACKWARD) + 100 };

static uint64_t draw_size(uint64_t *state, uint64_t n)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (*state >> 33) % n;
}

static bool are_live_together(const struct tess_lifetime *a, const struct tess_lifetime *b)
{
	return a->bytes && b->bytes && a->first <= b->last && b->first <= a->last;
}

/* Returns the maximum number of live bytes in a step. */
static uint64_t count_peak(const struct tess_lifetime *list, int32_t n)
{
	static uint64_t live[STEPS_MAX];
	uint64_t peak = 0;

	memset(live, 0, sizeof live);
	for (int32_t i = 0; i < n; i++)
		for (int32_t k = list[i].first; k <= list[i].last && list[i].bytes; k++) {
			live[k] += list[i].bytes;
			peak = live[k] > peak ? live[k] : peak;
		}
	return peak;
}

/* Places each buffer, in order, at the lowest free offset; returns the bytes. */
static uint64_t fit_first(struct tess_lifetime *list, int32_t n)
{
	uint64_t end = 0;

	for (int32_t i = 0; i < n; i++) {
		list[i].offset = 0;
		for (int32_t k = 0; k < i; k++) {
			if (!are_live_together(&list[i], &list[k]) ||
			    list[i].offset + list[i].bytes <= list[k].offset ||
			    list[k].offset + list[k].bytes <= list[i].offset)
				continue;
			list[i].offset = list[k].offset + list[k].bytes;
			k = -1; /* restart from the first */
		}
		if (list[i].bytes && list[i].offset + list[i].bytes > end)
			end = list[i].offset + list[i].bytes;
	}
	return end;
}

static void expect_apart(const struct tess_lifetime *list, int32_t n, uint64_t bytes)
{
	uint64_t end = 0;

	for (int32_t i = 0; i < n; i++) {
		if (list[i].bytes && list[i].offset + list[i].bytes > end)
			end = list[i].offset + list[i].bytes;
		for (int32_t k = 0; k < i; k++)
			MUST(!are_live_together(&list[i], &list[k]) ||
			     list[i].offset + list[i].bytes <= list[k].offset ||
			     list[k].offset + list[k].bytes <= list[i].offset);
	}
	MUST(end == bytes);
}

/* Checks the offsets in `list`; steps begin in the order of the list. */
START_TEST(random_lifetimes)
{
	struct tess_lifetime list[RANDOM_MAX], simple[RANDOM_MAX];
	uint64_t state = (uint64_t)_i, bytes;
	int32_t n = 1 + (int32_t)draw_size(&state, RANDOM_MAX), now = 0;

	for (int32_t i = 0; i < n; i++) {
		now += (int32_t)draw_size(&state, 3);
		list[i] = (struct tess_lifetime){
			.bytes = 64 * draw_size(&state, draw_size(&state, 2) ? 4 : 300),
			.first = now,
			.last = now + (int32_t)draw_size(&state, _i % 3 ? 12 : 2 * RANDOM_MAX),
		};
	}
	memcpy(simple, list, sizeof list);
	ck_assert(!tess_memory_plan_place(list, n, &bytes));
	expect_apart(list, n, bytes);
	ck_assert_uint_ge(bytes, count_peak(list, n));
	ck_assert_uint_le(bytes, fit_first(simple, n));
}
END_TEST

/*
 * Many buffers, some of them aligned, of which the stack has those that live long, in no order of
 * nesting.
 */
START_TEST(long_lifetimes)
{
	static struct tess_lifetime list[MANY];
	uint64_t state = (uint64_t)_i, bytes;

	for (int32_t i = 0; i < MANY; i++) {
		int32_t first = (int32_t)draw_size(&state, 20 * MANY);

		list[i] = (struct tess_lifetime){
			.bytes = 64 * (1 + draw_size(&state, 9)),
			.align = i % 7 ? 0 : 4096,
			.first = first,
			.last = first + (int32_t)draw_size(&state, i % 2 ? 8 : 4 * MANY),
		};
	}
	ck_assert(!tess_memory_plan_place(list, MANY, &bytes));
	expect_apart(list, MANY, bytes);
	for (int32_t i = 0; i < MANY; i += 7)
		MUST(list[i].offset % 4096 == 0);
	ck_assert_uint_ge(bytes, count_peak(list, MANY));
}
END_TEST

static struct tess_lifetime make_lifetime(uint64_t bytes, int32_t first, int32_t last)
{
	return (struct tess_lifetime){ .bytes = bytes, .first = first, .last = last };
}

/*
 * Makes the buffers of training; returns their number. A layer has 4 values that its backward
 * reads, and some that live for a few steps. Between forward and backward is the loss, with the
 * largest values.
 */
static int32_t make_training(struct tess_lifetime *list, int32_t layers)
{
	int32_t n = 0, turn = layers * LAYER, end = turn + 20 + layers * BACKWARD;
	uint64_t state = 1;

	for (int32_t i = 0; i < layers; i++) {
		int32_t at = i * LAYER, back = end - (i + 1) * BACKWARD;

		for (int32_t k = 0; k < 4; k++)
			list[n++] = make_lifetime(64 << k, at + 2 * k, back + BACKWARD - 4 * k - 1);
		for (int32_t k = 0; k < 20; k++) {
			int32_t from = k < 8 ? at + k : back + (int32_t)draw_size(&state, 16);
			uint64_t bytes = 64 * (1 + draw_size(&state, 6));

			list[n++] =
				make_lifetime(bytes, from, from + (int32_t)draw_size(&state, 4));
		}
	}
	list[n++] = make_lifetime(6400, turn, turn + 8);
	list[n++] = make_lifetime(6400, turn + 4, turn + 16);
	list[n++] = make_lifetime(9600, turn + 12, turn + 14);
	return n;
}

START_TEST(training)
{
	static const int32_t layers[] = { 2, 12, 80, LAYERS_MAX };
	static struct tess_lifetime list[24 * LAYERS_MAX + 3];
	int32_t n = make_training(list, layers[_i]);
	uint64_t bytes, peak = count_peak(list, n);

	ck_assert(!tess_memory_plan_place(list, n, &bytes));
	if (n < 4000)
		expect_apart(list, n, bytes);
	ck_assert_uint_ge(bytes, peak);
	ck_assert_msg(bytes <= peak + peak / 50, "%d layers: %llu bytes, of which %llu are live",
	              (int)layers[_i], (unsigned long long)bytes, (unsigned long long)peak);
}
END_TEST

START_TEST(nothing)
{
	struct tess_lifetime none = { .offset = 7 };
	uint64_t bytes = 1;

	ck_assert(!tess_memory_plan_place(&none, 0, &bytes) && !bytes);
	bytes = 1;
	ck_assert(!tess_memory_plan_place(&none, 1, &bytes) && !bytes);
}
END_TEST

int main(void)
{
	SRunner *r;
	TCase *t = suite_begin("memory_plan", 30, &r);

	tcase_add_loop_test(t, random_lifetimes, 0, 60);
	tcase_add_loop_test(t, long_lifetimes, 0, 4);
	tcase_add_loop_test(t, training, 0, 4);
	tcase_add_test(t, nothing);
	return suite_end(r);
}

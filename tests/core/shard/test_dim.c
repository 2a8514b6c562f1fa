/*
 * test_dim.c - the elements of a dim that each rank holds and owns, against a loop over single
 * elements; placements; and the moves between them.
 */
#include "core/base/status.h"
#include "core/shard/dim.h"
#include "core/shard/move.h"
#include "core/shard/place.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = 13, ELEMENTS_MAX = 400, PIECES = 3 };

static struct tess_dim make_plain_dim(int64_t size, int64_t count)
{
	return (struct tess_dim){ .name = "plain", .size = size, .nunits = count, .group = 1 };
}

static struct tess_dim make_head_dim(int64_t n, int64_t each, int64_t group)
{
	return (struct tess_dim){
		.name = "heads", .size = n * each, .nunits = n, .unit_size = each, .group = group
	};
}

/* Finds the first and the last unit of the base that read element e of a piece. */
static void find_reading_units(const struct tess_dim *p, int64_t e, int64_t *first, int64_t *last)
{
	int64_t u = 0;

	if (p->unit_size)
		u = e / p->unit_size;
	else /* unit u begins at u * size / count, rounded up */
		while ((u + 1) * p->size <= e * p->nunits)
			u++;
	*first = u * p->group;
	*last = *first + p->group - 1;
}

static bool is_in_runs(const struct tess_run *runs, int64_t n, int64_t e)
{
	for (int64_t i = 0; i < n; i++)
		if (e >= runs[i].start && e < runs[i].start + runs[i].len)
			return true;
	return false;
}

/* Checks one rank of n, element by element. */
static void check_rank_of_dim(const struct tess_dim *d, int32_t n, int32_t r,
                              int32_t owners[ELEMENTS_MAX])
{
	struct tess_run hold[PIECES], own[PIECES];
	int64_t pieces = tess_dim_count_pieces(d), held = 0, owned = 0, at, first, last;

	tess_dim_get_local_runs(d, n, r, hold);
	tess_dim_get_owned_runs(d, n, r, own);
	for (int64_t i = 0; i < pieces; i++) {
		const struct tess_dim *p = tess_dim_get_piece(d, i, &at);
		int64_t units = p->base->nunits;

		for (int64_t e = 0; e < p->size; e++) {
			bool holds = false, owns = false;

			find_reading_units(p, e, &first, &last);
			for (int64_t u = first; u <= last; u++) /* unit u belongs to rank r */
				if ((units * r + n - 1) / n <= u &&
				    u < (units * (r + 1) + n - 1) / n) {
					holds = true;
					owns = owns || u == first;
				}
			if (is_in_runs(hold, pieces, at + e) != holds ||
			    is_in_runs(own, pieces, at + e) != owns)
				ck_abort_msg("%s, %d ranks: rank %d, element %lld", d->name, (int)n,
				             (int)r, (long long)(at + e));
			if (holds)
				MUST(tess_runs_get_local_index(hold, pieces, at + e) == held);
			MUST(tess_dim_get_unit_start(p, first) <= e &&
			     e < tess_dim_get_unit_start(p, first + 1));
			held += holds;
			owned += owns;
			owners[at + e] += owns;
		}
	}
	MUST(tess_dim_get_local_size(d, n, r) == held && tess_dim_get_owned_size(d, n, r) == owned);
}

static void check_dim_on_all_ranks(const struct tess_dim *d)
{
	int32_t owners[ELEMENTS_MAX];

	for (int32_t n = 1; n <= RANKS; n++) {
		memset(owners, 0, sizeof owners);
		for (int32_t r = 0; r < n; r++)
			check_rank_of_dim(d, n, r, owners);
		for (int64_t e = 0; e < d->size; e++)
			MUST(owners[e] == 1);
	}
}

START_TEST(every_element_is_held_by_its_readers)
{
	static const int64_t groups[][3] = { { 9, 6, 3 }, { 8, 4, 2 }, { 12, 1, 4 }, { 7, 3, 7 } };
	struct tess_dim d[] = { make_plain_dim(70, 32), make_plain_dim(32, 32),
		                make_plain_dim(11, 11), make_plain_dim(44, 8),
		                make_plain_dim(1, 1),   make_head_dim(9, 6, 1),
		                make_head_dim(5, 1, 1) };

	for (size_t i = 0; i < sizeof d / sizeof *d; i++) {
		d[i].base = &d[i];
		check_dim_on_all_ranks(&d[i]);
	}
	for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
		int64_t of = groups[i][0], each = groups[i][1], group = groups[i][2];
		struct tess_dim base = make_head_dim(of, each, 1),
				grouped = make_head_dim(of / group, each, group);

		base.base = grouped.base = &base;
		check_dim_on_all_ranks(&grouped);
	}
}
END_TEST

START_TEST(pieces_are_cut_each_on_its_own)
{
	struct tess_dim q = make_head_dim(8, 3, 1), kv = make_head_dim(2, 3, 4),
			ffn = make_plain_dim(45, 32), *base = &q;
	const struct tess_dim *qkv[] = { &q, &kv, &kv }, *mixed[] = { &ffn, &kv, &ffn }, *piece;
	struct tess_dim d = { .name = "qkv", .size = 36, .nparts = 3, .parts = qkv };

	q.base = kv.base = base;
	ffn.base = &ffn;
	check_dim_on_all_ranks(&d);
	ck_assert_int_eq(tess_dim_get_max_ranks(&d, &piece), 8);
	ck_assert_ptr_eq(piece, &q);
	d = (struct tess_dim){ .name = "mixed", .size = 96, .nparts = 3, .parts = mixed };
	check_dim_on_all_ranks(&d);
	ck_assert_int_eq(tess_dim_get_max_ranks(&d, &piece), 8); /* limited by the second dim */
	ck_assert_ptr_eq(piece, &kv);
	ck_assert_int_eq(tess_dim_count_pieces(&d), 3);
	ck_assert_int_eq(tess_dim_count_pieces(&q), 1);
}
END_TEST

START_TEST(tokens_limit_no_rank_count)
{
	struct tess_dim tokens = make_plain_dim(3, 3);
	const struct tess_dim *piece;

	tokens.may_be_empty = true;
	tokens.base = &tokens;
	check_dim_on_all_ranks(&tokens);
	ck_assert_int_eq(tess_dim_get_max_ranks(&tokens, &piece), INT32_MAX);
}
END_TEST

START_TEST(placements_are_compared_as_the_core_writes_them)
{
	struct tess_place sum = { .kind = TESS_PARTIAL },
			  max = { .kind = TESS_PARTIAL, .op = TESS_MAX };
	struct tess_place dim = { .kind = TESS_REPLICATE, .dim = 1 };
	char text[TESS_PLACE_SIZE];

	MUST(tess_place_equal(tess_place_normalize(tess_place_shard(-1), 2), tess_place_shard(1)));
	MUST(tess_place_equal(tess_place_normalize(tess_place_shard(-2), 2), tess_place_shard(0)));
	MUST(tess_place_equal(tess_place_normalize(sum, 2), tess_place_partial()));
	MUST(tess_place_equal(tess_place_normalize(dim, 2), tess_place_replicate()));
	MUST(!tess_place_equal(tess_place_shard(0), tess_place_shard(1)));
	MUST(!tess_place_equal(tess_place_replicate(), tess_place_shard(0)));
	MUST(!tess_place_equal(tess_place_partial(), max));
	MUST(!tess_place_check(tess_place_shard(1), 2, "a") &&
	     !tess_place_check(tess_place_shard(-2), 2, "a"));
	MUST(tess_place_check(tess_place_shard(2), 2, "a") == TESS_EINVAL &&
	     !strcmp(tess_error(), "a: Shard(2) of a tensor with 2 axes; use -2 to 1"));
	MUST(tess_place_check(tess_place_shard(-3), 2, "a") == TESS_EINVAL);
	MUST(tess_place_check((struct tess_place){ .kind = TESS_PARTIAL + 1 }, 2, "a") ==
	     TESS_EINVAL);
	MUST(tess_place_check((struct tess_place){ .kind = TESS_ASIS - 1 }, 2, "a") == TESS_EINVAL);
	MUST(tess_place_check(max, 2, "a") == TESS_ENOTSUP && !tess_place_check(sum, 2, "a"));
	ck_assert_str_eq(tess_place_format(tess_place_shard(1), text), "Shard(1)");
	ck_assert_str_eq(tess_place_format(tess_place_partial(), text), "Partial");
	ck_assert_str_eq(tess_place_format(tess_place_replicate(), text), "Replicate");
}
END_TEST

/* ---- moves ----------------------------------------------------------------------------------- */

enum { DIMS = 3, PLACES = 6 };

static void make_places(int32_t number, struct tess_place *out)
{
	const struct tess_place all[PLACES] = {
		tess_place_replicate(), tess_place_partial(),
		tess_place_shard(0),    tess_place_shard(1),
		tess_place_shard(2),    { .kind = TESS_PARTIAL, .op = TESS_MAX },
	};

	for (int32_t i = 0; i < DIMS; i++, number /= PLACES)
		out[i] = all[number % PLACES];
}

/* Returns whether a mesh dimension after that of a move cuts the dim that `p` cuts. */
static bool has_cut_inside(const struct tess_place *at, int32_t along, struct tess_place p)
{
	for (int32_t i = along + 1; i < DIMS; i++)
		if (p.kind == TESS_SHARD && tess_place_equal(at[i], p))
			return true;
	return false;
}

/* Makes all moves; each is along one mesh dimension, inside of which nothing cuts the same dim. */
static void walk_moves(struct tess_place *at, const struct tess_place *to, int32_t spare)
{
	int32_t count[DIMS] = { 0 };
	struct tess_move move;

	while (tess_move_find_next(at, to, DIMS, spare, &move)) {
		MUST(!tess_place_equal(at[move.along], move.to));
		MUST(!has_cut_inside(at, move.along, at[move.along]));
		MUST(!has_cut_inside(at, move.along, move.to));
		at[move.along] = move.to;
		MUST(++count[move.along] <= 2);
	}
	MUST(tess_places_equal(at, to, DIMS));
}

START_TEST(moves_reach_every_placement)
{
	struct tess_place at[DIMS], to[DIMS];

	for (int32_t i = 0; i < PLACES * PLACES * PLACES; i++)
		for (int32_t k = 0; k < PLACES * PLACES * PLACES; k++)
			for (int32_t spare = -1; spare <= 3; spare += 4) {
				make_places(i, at);
				make_places(k, to);
				walk_moves(at, to, spare);
			}
}
END_TEST

SUITE_MAIN("dim", every_element_is_held_by_its_readers, pieces_are_cut_each_on_its_own,
           tokens_limit_no_rank_count, placements_are_compared_as_the_core_writes_them,
           moves_reach_every_placement)

/*
 * test_calls.c - calls before they start: checks, extents, fingerprints, members of the group; and
 * keys of the store.
 */
#include "core/base/status.h"
#include "core/call/check.h"
#include "core/rendezvous/call_desc.h"
#include "core/rendezvous/call_matcher.h"
#include "core/rendezvous/kv_store.h"
#include "core/rendezvous/members.h"
#include "tests/support/suite.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { RANK = 1, RANKS = 3, COUNT = 4 };
static _Alignas(64) char memory[512]; /* src at 0, dst from 256 on */
static uint64_t lists[2][RANKS] = { { 5, COUNT, 6 }, { 5, COUNT, 6 } };

static struct tess_coll make_valid_call(int32_t kind)
{
	return (struct tess_coll){ .size = sizeof(struct tess_coll),
		                   .kind = kind,
		                   .dtype = TESS_F32,
		                   .op = TESS_SUM,
		                   .mem = TESS_HOST,
		                   .src = memory,
		                   .dst = memory + 256,
		                   .count = COUNT,
		                   .where = "here" };
}

/* Checks that a call of one kind, changed by `...`, is refused with these words; NULL: accepted. */
#define CHECK(words, of, ...) \
	do { \
		struct tess_coll c = make_valid_call(of); \
		const char *says = words; \
		tess_status st; \
\
		__VA_ARGS__; \
		st = tess_coll_check(&c, RANK, RANKS, 1 << TESS_HOST); \
		if (says ? !st || !strstr(tess_error(), says) || \
		                    strncmp(tess_error(), "here: ", 6) \
		         : st != TESS_OK) \
			ck_abort_msg("line %d: %d: %s", __LINE__, st, st ? tess_error() : ""); \
	} while (0)

START_TEST(words)
{
	CHECK("kind 0", 0, );
	CHECK("kind 12", TESS_RECV + 1, );
	CHECK(NULL, TESS_BARRIER, c.dtype = 0; c.src = c.dst = NULL);
	CHECK("memory of kind", TESS_BARRIER, c.mem = TESS_CUDA);
	CHECK("dtype 0", TESS_ALL_GATHER, c.dtype = 0);
	for (int32_t op = TESS_SUM; op <= TESS_BXOR; op++) {
		bool bits = op >= TESS_BAND;

		CHECK(NULL, TESS_ALL_REDUCE, c.op = op; c.dtype = TESS_I32);
		CHECK(NULL, TESS_ALL_GATHER, c.op = op);
		CHECK(bits ? "on bits" : NULL, TESS_ALL_REDUCE, c.op = op; c.dtype = TESS_F32);
		CHECK(bits ? "on bits" : NULL, TESS_REDUCE, c.op = op; c.dtype = TESS_F16);
	}
	CHECK("op 0", TESS_REDUCE_SCATTER, c.op = 0);
	CHECK("op 8", TESS_REDUCE, c.op = TESS_BXOR + 1);
	for (int32_t kind = TESS_BROADCAST; kind <= TESS_RECV; kind++) {
		bool peers = kind >= TESS_SEND || tess_kind_rooted(kind);

		CHECK(kind >= TESS_SEND ? "peer 3" : peers ? "root 3" : NULL, kind, c.peer = RANKS);
		CHECK(kind >= TESS_SEND ? "peer -1" : peers ? "root -1" : NULL, kind, c.peer = -1);
		CHECK(NULL, kind, c.peer = RANKS - 1);
		CHECK(kind >= TESS_SEND ? "itself" : NULL, kind, c.peer = RANK);
	}
}
END_TEST

START_TEST(counts)
{
	for (int32_t kind = TESS_BROADCAST; kind <= TESS_RECV; kind++) {
		bool gives = kind == TESS_SCATTER || kind == TESS_REDUCE_SCATTER;
		bool gets = kind == TESS_GATHER || kind == TESS_ALL_GATHER;
		bool both = kind == TESS_ALL_TO_ALL;

		CHECK(gives  ? NULL
		      : both ? "one list"
		             : "does not take",
		      kind, c.send_counts = lists[0]);
		CHECK(gets   ? NULL
		      : both ? "one list"
		             : "does not take",
		      kind, c.recv_counts = lists[0]);
		CHECK(both ? NULL : "does not take", kind, c.send_counts = lists[0];
		      c.recv_counts = lists[1]; c.count = both ? 77 : COUNT);
		if (gives || gets)
			CHECK("count 3, but the list has 4 for rank 1", kind, c.count = 3;
			      *(gives ? &c.send_counts : &c.recv_counts) = lists[0]);
		CHECK("larger than 2^48", kind, c.count = UINT64_C(1) << 48 | 1);
	}
	CHECK("more than 2^48", TESS_ALL_GATHER, c.count = UINT64_C(1) << 47); /* of all ranks */
	CHECK("count of rank 2 is larger than 2^48", TESS_ALL_GATHER,
	      c.recv_counts = (uint64_t[]){ 0, COUNT, UINT64_MAX - 2 });
}
END_TEST

START_TEST(extents)
{
	enum { ALL = COUNT * RANKS, LISTED = 5 + COUNT + 6 };
	static const struct {
		uint64_t src, dst; /* of a rank other than the root */
		uint64_t root_src, root_dst;
	} want[] = {
		[TESS_BARRIER] = { 0, 0, 0, 0 },
		[TESS_BROADCAST] = { 0, COUNT, COUNT, COUNT },
		[TESS_REDUCE] = { COUNT, 0, COUNT, COUNT },
		[TESS_ALL_REDUCE] = { COUNT, COUNT, COUNT, COUNT },
		[TESS_GATHER] = { COUNT, 0, COUNT, ALL },
		[TESS_ALL_GATHER] = { COUNT, ALL, COUNT, ALL },
		[TESS_SCATTER] = { 0, COUNT, ALL, COUNT },
		[TESS_REDUCE_SCATTER] = { ALL, COUNT, ALL, COUNT },
		[TESS_ALL_TO_ALL] = { ALL, ALL, ALL, ALL },
		[TESS_SEND] = { COUNT, 0, COUNT, 0 },
		[TESS_RECV] = { 0, COUNT, 0, COUNT },
	};
	uint64_t src, dst;

	for (int32_t kind = TESS_BARRIER; kind <= TESS_RECV; kind++)
		for (int listed = 0; listed < 2; listed++)
			for (int32_t root = 0; root < 2; root++) {
				struct tess_coll c = make_valid_call(kind);
				uint64_t s = root ? want[kind].root_src : want[kind].src;
				uint64_t d = root ? want[kind].root_dst : want[kind].dst;

				c.peer = root ? RANK : 0;
				c.send_counts = c.recv_counts = listed ? lists[0] : NULL;
				tess_coll_extents(&c, RANK, RANKS, &src, &dst);
				if (src != (listed && s == ALL ? (uint64_t)LISTED : s) ||
				    dst != (listed && d == ALL ? (uint64_t)LISTED : d))
					ck_abort_msg("kind %d, root %d: %d and %d", (int)kind,
					             (int)root, (int)src, (int)dst);
			}
}
END_TEST

START_TEST(buffers)
{
	static const int32_t types[] = { TESS_F64,  TESS_I64, TESS_F32, TESS_I32,
		                         TESS_BF16, TESS_F16, TESS_I8,  TESS_U8 };

	CHECK("src is NULL", TESS_ALL_REDUCE, c.src = NULL);
	CHECK("dst is NULL", TESS_ALL_REDUCE, c.dst = NULL);
	CHECK(NULL, TESS_ALL_REDUCE, c.src = c.dst = NULL; c.count = 0);
	CHECK(NULL, TESS_BROADCAST, c.src = NULL); /* on another root */
	CHECK("src is NULL", TESS_BROADCAST, c.src = NULL; c.peer = RANK);
	CHECK(NULL, TESS_REDUCE, c.dst = NULL);
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		for (size_t off = 1; off < 16; off++) {
			const char *no = off % tess_width(types[i]) ? "is not aligned" : NULL;

			CHECK(no, TESS_ALL_REDUCE, c.dtype = types[i]; c.src = memory + off);
			CHECK(no, TESS_ALL_REDUCE, c.dtype = types[i]; c.dst = memory + 256 + off);
		}
	for (int off = -32; off <= 32; off += 4) {
		const char *no = off && off > -16 && off < 16 ? "overlap" : NULL;

		CHECK(no, TESS_ALL_REDUCE, c.src = memory + 256 + off);
	}
	CHECK("overlap", TESS_ALL_GATHER, c.src = memory + 256 + 4 * (COUNT * RANKS - 1));
	CHECK(NULL, TESS_ALL_GATHER, c.src = memory + 256 + 4 * COUNT * RANKS);
	CHECK(NULL, TESS_ALL_TO_ALL, c.src = c.dst; c.send_counts = lists[0];
	      c.recv_counts = lists[1]);
	CHECK("in place, but rank 2", TESS_ALL_TO_ALL, c.src = c.dst; c.send_counts = lists[0];
	      c.recv_counts = (uint64_t[]){ 5, COUNT, 7 });
}
END_TEST

/*
 * Checks that the fingerprint has everything that ranks must agree on, and nothing that differs by
 * rank.
 */
START_TEST(numbers_of_calls)
{
	for (int32_t kind = TESS_BROADCAST; kind <= TESS_ALL_TO_ALL; kind++) {
		struct tess_coll first = make_valid_call(kind), c;
		uint64_t what = tess_call_desc_hash(&first, RANKS), listed,
			 own[RANKS] = { 5, COUNT, 7 };
		bool gets = kind == TESS_GATHER || kind == TESS_ALL_GATHER;
		const uint64_t **list = gets ? &c.recv_counts : &c.send_counts;

#define WHAT(...) (c = first, (void)(__VA_ARGS__), tess_call_desc_hash(&c, RANKS))
		MUST(WHAT(c.dtype = TESS_I32) != what);
		MUST((WHAT(c.op = TESS_MAX) != what) == tess_kind_reduces(kind));
		MUST((WHAT(c.peer = 2) != what) == tess_kind_rooted(kind));
		MUST(WHAT(c.count = COUNT + 1) != what);
		MUST(WHAT(c.src = NULL, c.dst = memory, c.where = "there", c.deadline = 1) == what);
		for (int32_t other = TESS_BARRIER; other < kind; other++)
			MUST(WHAT(c.kind = other) != what);
		if (kind == TESS_ALL_TO_ALL)
			break; /* lists are compared by pairs of ranks */
		listed = WHAT(*list = lists[0]);
		MUST(listed != what);
		MUST(WHAT(*list = lists[1]) == listed);
		MUST(WHAT(*list = own) != listed);
		MUST(WHAT(*list = lists[0], c.count = COUNT + 1) ==
		     listed); /* each rank's own length */
	}
}
END_TEST

/* Sends from rank 0 of three to rank 2 as much as rank 2 receives, and vice versa. */
START_TEST(lists_of_a_pair)
{
	uint64_t send_counts[2][RANKS] = { { 1, 2, 3 }, { 6, 5, 4 } },
		 recv_counts[2][RANKS] = { { 9, 9, 6 }, { 3, 9, 9 } };
	struct tess_call_desc *n[2] = { malloc(tess_call_desc_size(RANKS)),
		                        malloc(tess_call_desc_size(RANKS)) };
	struct tess_call_key key = { 0 };
	struct tess_coll c = make_valid_call(TESS_ALL_TO_ALL);

	MUST(n[0] && n[1]);
	for (int wrong = 0; wrong < 3; wrong++) {
		recv_counts[0][2] = wrong == 1 ? 7 : 6;
		recv_counts[1][0] = wrong == 2 ? 4 : 3;
		for (int i = 0; i < 2; i++) {
			c.send_counts = send_counts[i];
			c.recv_counts = recv_counts[i];
			tess_call_desc_write(n[i], &c, &key, RANKS);
		}
		MUST(tess_call_desc_match(n[0], 0, n[1], 2) == !wrong);
		MUST(tess_call_desc_match(n[1], 2, n[0], 0) == !wrong);
	}
	n[0]->fingerprint++;
	MUST(!tess_call_desc_match(n[0], 0, n[1], 2));
	free(n[0]);
	free(n[1]);
}
END_TEST

static struct tess_members *make_members(int32_t a, int32_t b, int32_t c)
{
	struct tess_members *r = tess_members_new(9, "dp/1", 3);

	ck_assert(r != NULL);
	memcpy(r->member, (int32_t[]){ a, b, c }, 3 * sizeof a);
	return r;
}

static bool check_and_free_members(struct tess_members *r, size_t more, int32_t nranks)
{
	bool is = tess_members_valid(r, r->bytes + more, nranks);

	free(r);
	return is;
}

START_TEST(members)
{
	struct tess_members *r = make_members(4, 0, 2);
	char text[100];

	ck_assert_int_eq(tess_members_find(r, 4), 0);
	ck_assert_int_eq(tess_members_find(r, 2), 2);
	ck_assert_int_eq(tess_members_find(r, 1), -1);
	tess_members_format(r, text, sizeof text);
	ck_assert_str_eq(text, "group dp/1 of ranks 4, 0, 2");
	tess_members_key(r, text);
	ck_assert_str_eq(text, "dp/1#9");
	ck_assert(check_and_free_members(r, 0, 5));
	ck_assert(!check_and_free_members(make_members(4, 0, 2), 8, 5));
	ck_assert(!check_and_free_members(make_members(4, 0, 2), 0, 4)); /* rank 4 of 4 */
	ck_assert(!check_and_free_members(make_members(4, 0, -1), 0, 5));
	ck_assert(!check_and_free_members(make_members(4, 0, 4), 0, 5)); /* twice */
	r = make_members(4, 0, 2);
	r->id = 0;
	ck_assert(!check_and_free_members(r, 0, 5));
	r = make_members(4, 0, 2);
	memset(r->name, 'x', sizeof r->name); /* not terminated */
	ck_assert(!check_and_free_members(r, 0, 5));
}
END_TEST

/*
 * Checks that a call that waits for a rank which has closed the group keeps the group open, though
 * all ranks close it.
 */
START_TEST(closed_group_of_a_call)
{
	struct tess_members *all = tess_members_new(0, "world", 3), *some = make_members(0, 1, 2);
	struct tess_job_state s = { .nranks = 3, .rank = calloc(3, sizeof *s.rank) };
	struct tess_call_desc *d = malloc(tess_call_desc_size(3));
	struct tess_coll c = make_valid_call(TESS_BARRIER);
	struct tess_conflict out;
	struct group_state *world, *g;

	MUST(all && s.rank && d);
	world = tess_matcher_add_group(&s, all);
	g = tess_matcher_add_group(&s, some);
	MUST(world && g);
	tess_call_desc_write(d, &c, &(struct tess_call_key){ .number = 1, .group = 9 }, 3);
	ck_assert(!tess_matcher_add_call(&s, g, 0, d, &out));
	for (int32_t r = 1; r < 4; r++) {
		ck_assert(tess_matcher_leave_group(&s, g, r % 3, &out));
		ck_assert_int_eq(out.absent, 1);
	}
	tess_call_desc_write(d, &c, &(struct tess_call_key){ .number = 1 }, 3);
	ck_assert(!tess_matcher_add_call(&s, world, 0, d,
	                                 &out)); /* the last call, instead of the message */
	s.rank[2].left = true;
	s.left = 1;
	ck_assert(tess_matcher_check_left(&s, &out));
	tess_matcher_free(&s);
	free(s.rank);
	free(all);
	free(some);
	free(d);
}
END_TEST

START_TEST(keys)
{
	static const char *const names[] = { "dp", "dp/a", "dp/a/b", "dp2", "dp2/a", "d" };
	static const bool left[] = { true, false, false, true, true, true };
	struct tess_kv_store all = { 0 };
	const struct tess_kv_entry *p;

	for (size_t i = 0; i < 6; i++)
		ck_assert(!tess_kv_store_set(&all, names[i], &i, sizeof i));
	ck_assert_int_eq(tess_kv_store_set(&all, "dp/a", "", 0), TESS_EINVAL);
	expect_part(tess_error(), "the key dp/a is set already");
	p = tess_kv_store_find(&all, "dp2");
	ck_assert(p && p->len == sizeof(size_t) && *(size_t *)(void *)p->val == 3);
	ck_assert(!tess_kv_store_find(&all, "dp/"));
	tess_kv_store_drop(&all, "dp");
	for (size_t i = 0; i < 6; i++)
		ck_assert_msg(!!tess_kv_store_find(&all, names[i]) == left[i], "%s", names[i]);
	tess_kv_store_free(&all);
	ck_assert(!tess_kv_store_find(&all, "d"));
}
END_TEST

/* Checks rounding to nearest, ties to even; a NaN stays a NaN. */
START_TEST(sixteen_bits)
{
	static const struct {
		float x;
		uint16_t bf16, f16;
	} rows[] = {
		{ 0.0f, 0x0000, 0x0000 },       { -0.0f, 0x8000, 0x8000 },
		{ 1.0f, 0x3f80, 0x3c00 },       { -2.0f, 0xc000, 0xc000 },
		{ 257.0f, 0x4380, 0x5c04 },     { 259.0f, 0x4382, 0x5c0c },
		{ 0x1.018p0f, 0x3f81, 0x3c06 }, { 0x1.002p0f, 0x3f80, 0x3c00 },
		{ 0x1.006p0f, 0x3f80, 0x3c02 }, { 0x1.003p0f, 0x3f80, 0x3c01 },
		{ 65519.0f, 0x4780, 0x7bff },   { 65520.0f, 0x4780, 0x7c00 },
		{ 0x1p-25f, 0x3300, 0x0000 },   { 0x1.8p-24f, 0x33c0, 0x0002 },
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		ck_assert_uint_eq(tess_bf16_round(rows[i].x), rows[i].bf16);
		ck_assert_uint_eq(tess_f16_round(rows[i].x), rows[i].f16);
	}
	ck_assert_uint_eq(tess_bf16_round(0x1.fffffep127f), 0x7f80);
	ck_assert(tess_bf16_load(tess_bf16_round(tess_float(0x7f800001))) !=
	          tess_bf16_load(tess_bf16_round(tess_float(0x7f800001))));
}
END_TEST

SUITE_MAIN("calls", words, counts, extents, buffers, numbers_of_calls, lists_of_a_pair, members,
           closed_group_of_a_call, keys, sixteen_bits)

/*
 * cases.c - selects the cases: a pairwise cover. A fault rarely needs more than two values (a dtype
 * and a count, in place and a root), so every pair of values of two factors is in one case. kind x
 * dtype x op is one factor, so that all three meet every value of the others.
 */
#include "conform.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

static const uint64_t counts[] = {
	0,  1,  2,   3,    7,    8,    15,   16,   17,    31,     63,
	64, 65, 127, 1000, 1023, 1024, 1025, 4097, 65536, 123567, 1048577
};

/* ---- factors --------------------------------------------------------------------------------- */

enum { OPERATION, COUNT, ROOT, UNEVEN, IN_PLACE, SHIFTED, SPECIAL, POLLED, FACTORS };
enum { OPERATIONS_MAX = 256, PAIRS = OPERATIONS_MAX * 32 };

struct cover {
	int32_t n, levels[FACTORS];
	struct conform_case operation[OPERATIONS_MAX]; /* kind, dtype and op of a case */
	/* [a][b][level of a * levels[b] + level of b], a < b: the pair is in a case */
	unsigned char *met[FACTORS][FACTORS];
	uint64_t random;
};

bool conform_is_operation(int32_t kind, int32_t dtype, int32_t op)
{
	return tess_kind_reduces(kind) ? tess_op_is_valid(op, dtype) : op == TESS_SUM;
}

static void list_operations(struct cover *v)
{
	for (int32_t kind = TESS_BROADCAST; kind <= TESS_SEND; kind++)
		for (int32_t dtype = TESS_F32; dtype <= TESS_U8; dtype++)
			for (int32_t op = TESS_SUM; op <= TESS_BXOR; op++)
				if (conform_is_operation(kind, dtype, op))
					v->operation[v->levels[OPERATION]++] =
						(struct conform_case){ .kind = kind,
						                       .dtype = dtype,
						                       .op = op };
}

static bool has_blocks(int32_t kind)
{
	return conform_has_src_blocks(kind) || conform_has_dst_blocks(kind);
}

static bool is_possible(const struct cover *v, const int32_t *level)
{
	const struct conform_case *c = &v->operation[level[OPERATION]];

	if (level[ROOT] && !tess_kind_rooted(c->kind))
		return false;
	if (level[UNEVEN] && !has_blocks(c->kind))
		return false;
	if (level[IN_PLACE] && c->kind == TESS_SEND)
		return false;
	return !level[SPECIAL] ||
	       (tess_kind_reduces(c->kind) && tess_dtype_is_float(c->dtype) && c->op != TESS_PROD);
}

static int32_t pick_level(struct cover *v, int32_t levels)
{
	v->random = conform_hash(v->random, 1, 2);
	return (int32_t)(v->random % (uint64_t)levels);
}

static unsigned char *get_pair(const struct cover *v, const int32_t *level, int a, int b)
{
	return &v->met[a][b][level[a] * v->levels[b] + level[b]];
}

static int32_t count_new_pairs(const struct cover *v, const int32_t *level)
{
	int32_t sum = 0;

	for (int a = 0; a < FACTORS; a++)
		for (int b = a + 1; b < FACTORS; b++)
			sum += !*get_pair(v, level, a, b);
	return sum;
}

/* Adds a case with levels x of a and y of b, and as many new pairs as a few tries find. */
static bool complete_case(struct cover *v, int a, int32_t x, int b, int32_t y, int32_t *best)
{
	int32_t level[FACTORS], max_gain = 0;

	for (int i = 0, found = 0; i < 400 && found < 12; i++) {
		for (int f = 0; f < FACTORS; f++)
			level[f] = f == a ? x : f == b ? y : pick_level(v, v->levels[f]);
		/* prefers levels that are often possible, or most tries would fail */
		if (a != ROOT && b != ROOT && i % 2)
			level[ROOT] = 0;
		if (a != SPECIAL && b != SPECIAL && i % 4)
			level[SPECIAL] = 0;
		if (a != UNEVEN && b != UNEVEN && i % 3)
			level[UNEVEN] = 0;
		if (!is_possible(v, level))
			continue;
		found++;
		if (count_new_pairs(v, level) > max_gain) {
			max_gain = count_new_pairs(v, level);
			memcpy(best, level, sizeof level);
		}
	}
	return max_gain > 0;
}

static struct conform_case make_case(const struct cover *v, const int32_t *level)
{
	struct conform_case c = v->operation[level[OPERATION]];

	c.root = level[ROOT];
	c.count = counts[level[COUNT]];
	c.uneven = level[UNEVEN];
	c.in_place = level[IN_PLACE];
	c.shifted = level[SHIFTED];
	c.special = level[SPECIAL];
	c.polled = level[POLLED];
	if (has_blocks(c.kind) && c.count > 65536)
		c.count /= (uint64_t)v->n; /* the total is that of the other kinds */
	return c;
}

/* ---- the list -------------------------------------------------------------------------------- */

static bool begin_cover(struct cover *v, int32_t n, bool quick)
{
	int32_t all = (int32_t)(sizeof counts / sizeof *counts);

	*v = (struct cover){ .n = n, .random = (uint64_t)n };
	list_operations(v);
	v->levels[COUNT] = quick ? all - 1 : all;
	v->levels[ROOT] = n;
	for (int f = UNEVEN; f < FACTORS; f++)
		v->levels[f] = 2;
	for (int a = 0; a < FACTORS; a++)
		for (int b = a + 1; b < FACTORS; b++)
			if (!(v->met[a][b] =
			              calloc((size_t)v->levels[a] * (size_t)v->levels[b], 1)))
				return false;
	return true;
}

static void end_cover(struct cover *v)
{
	for (int a = 0; a < FACTORS; a++)
		for (int b = a + 1; b < FACTORS; b++)
			free(v->met[a][b]);
}

/*
 * Returns whether to omit pair i: four of five operations with the largest counts, or with any
 * count if `quick`.
 */
static bool is_skipped(const struct cover *v, int32_t i, bool quick)
{
	return (quick || counts[i % v->levels[COUNT]] > 65536) && (i + i / v->levels[COUNT]) % 5;
}

static uint32_t cover_pairs(struct cover *v, bool quick, struct conform_case *list,
                            uint32_t capacity)
{
	uint32_t at = 0;

	for (int a = 0; a < FACTORS; a++)
		for (int b = a + 1; b < FACTORS; b++)
			for (int32_t i = 0; i < v->levels[a] * v->levels[b] && at < capacity; i++) {
				int32_t level[FACTORS];

				if (v->met[a][b][i] ||
				    (a == OPERATION && b == COUNT && is_skipped(v, i, quick)))
					continue;
				if (!complete_case(v, a, i / v->levels[b], b, i % v->levels[b],
				                   level))
					continue;
				for (int k = 0; k < FACTORS; k++)
					for (int l = k + 1; l < FACTORS; l++)
						*get_pair(v, level, k, l) = 1;
				list[at++] = make_case(v, level);
			}
	return at;
}

tess_status conform_list_cases(int32_t n, bool quick, struct conform_case **out, uint32_t *ncases)
{
	struct conform_case *list = malloc(PAIRS * sizeof *list);
	struct cover v;

	if (!list || !begin_cover(&v, n, quick)) {
		free(list);
		return tess_fail(TESS_ENOMEM, "no memory for the list of cases");
	}
	*ncases = cover_pairs(&v, quick, list, PAIRS);
	*out = list;
	end_cover(&v);
	return TESS_OK;
}

struct conform_case conform_pick_case(int32_t n, uint32_t i)
{
	static const int32_t dtypes[] = { TESS_F32, TESS_BF16, TESS_I32, TESS_U8 };
	static const uint64_t sizes[] = { 5, 1000, 40000, 0, 257 };
	uint64_t h = conform_hash(i, 77, (uint64_t)n);
	struct conform_case c = {
		.kind = TESS_BROADCAST + (int32_t)(h % (TESS_SEND - TESS_BROADCAST + 1)),
		.dtype = dtypes[h >> 8 & 3],
		.op = h >> 12 & 1 ? TESS_SUM : TESS_MAX,
		.count = sizes[(h >> 16) % 5],
		.in_place = h >> 24 & 1,
		.polled = h >> 26 & 1,
	};

	c.uneven = has_blocks(c.kind) && (h >> 25 & 1);
	c.in_place = c.in_place && c.kind != TESS_SEND;
	c.root = tess_kind_rooted(c.kind) ? (int32_t)((h >> 32) % (uint64_t)n) : 0;
	if (!tess_kind_reduces(c.kind))
		c.op = TESS_SUM;
	return c;
}

void conform_set_activity_case(struct conform_rank *me, const struct conform_case *c,
                               const char *among)
{
	char op[24] = "", root[24] = "";

	if (tess_kind_reduces(c->kind))
		snprintf(op, sizeof op, " (%s)", tess_reduce_op_name(c->op));
	if (tess_kind_rooted(c->kind))
		snprintf(root, sizeof root, ", root %d", (int)c->root);
	conform_set_activity(me, "%s of %" PRIu64 " %s%s%s%s%s%s%s%s%s",
	                     c->kind == TESS_SEND ? "send and recv" : tess_kind_name(c->kind),
	                     c->count, tess_dtype_name(c->dtype), op, root,
	                     c->uneven ? ", uneven" : "", c->in_place ? ", in place" : "",
	                     c->shifted ? ", aligned to elements only" : "",
	                     c->special ? ", with NaN, infinities and subnormals" : "",
	                     among ? ", " : "", among ? among : "");
}

#include "moves.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/reduce.h>

enum { GUARD = 64, MOST = 8 };

static const char *const kind_name[] = {
	"", "barrier", "broadcast", "reduce", "all_reduce", "gather", "all_gather", "scatter",
	"reduce_scatter", "all_to_all", "send", "recv",
};

struct trial {
	int32_t kind, dtype, op, root, rank, n;
	int uneven, inplace;
	uint64_t count;
};

/* ---- elements as doubles: small integers, exact in every dtype ------------------------------------- */

static void store(int32_t dtype, void *at, double x)
{
	switch (dtype) {
	case TESS_F64: *(double *)at = x; break;
	case TESS_F32: *(float *)at = (float)x; break;
	case TESS_BF16: *(uint16_t *)at = tess_bf16_round((float)x); break;
	case TESS_F16: *(uint16_t *)at = tess_f16_round((float)x); break;
	case TESS_I64: *(int64_t *)at = (int64_t)x; break;
	case TESS_I32: *(int32_t *)at = (int32_t)x; break;
	case TESS_I8: *(int8_t *)at = (int8_t)x; break;
	default: *(uint8_t *)at = (uint8_t)x; break;
	}
}

static double load(int32_t dtype, const void *at)
{
	switch (dtype) {
	case TESS_F64: return *(const double *)at;
	case TESS_F32: return *(const float *)at;
	case TESS_BF16: return tess_bf16_load(*(const uint16_t *)at);
	case TESS_F16: return tess_f16_load(*(const uint16_t *)at);
	case TESS_I64: return (double)*(const int64_t *)at;
	case TESS_I32: return *(const int32_t *)at;
	case TESS_I8: return *(const int8_t *)at;
	default: return *(const uint8_t *)at;
	}
}

static int reduces(int32_t kind)
{
	return kind == TESS_REDUCE || kind == TESS_ALL_REDUCE || kind == TESS_REDUCE_SCATTER;
}

/* Element i of what rank r gives. A product of 8 of the small ones, and a sum, fit in 8 bits. */
static double value(const struct trial *t, int32_t r, uint64_t i)
{
	uint64_t x = (uint64_t)r * 37 + i * 11 + i / 7;

	if (!reduces(t->kind))
		return (double)(x % 101);
	return t->op == TESS_PROD ? (double)(x % 4 == 1 ? 3 - (int)(r > 3) * 2 : 1) : (double)(x % 13);
}

static double fold(const struct trial *t, uint64_t i)
{
	double a = value(t, 0, i);

	for (int32_t r = 1; r < t->n; r++) {
		double b = value(t, r, i);

		switch (t->op) {
		case TESS_SUM: a += b; break;
		case TESS_PROD: a *= b; break;
		case TESS_MIN: a = a < b ? a : b; break;
		case TESS_MAX: a = a > b ? a : b; break;
		case TESS_BAND: a = (int)a & (int)b; break;
		case TESS_BOR: a = (int)a | (int)b; break;
		default: a = (int)a ^ (int)b; break;
		}
	}
	return a;
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

/* Elements of block r, or for all_to_all those that `from` gives to r. */
static uint64_t length(const struct trial *t, int32_t from, int32_t r)
{
	if (!t->uneven)
		return t->count;
	return (t->count * (uint64_t)(r + 1) + (t->kind == TESS_ALL_TO_ALL ? (uint64_t)from * 3 : 0)) % (t->count + 3);
}

static uint64_t start(const struct trial *t, int32_t from, int32_t r)
{
	uint64_t at = 0;

	for (int32_t i = 0; i < r; i++)
		at += length(t, from, i);
	return at;
}

/* Where the block that `from` gave starts in what `to` gets. */
static uint64_t landing(const struct trial *t, int32_t from, int32_t to)
{
	uint64_t at = 0;

	for (int32_t i = 0; i < from; i++)
		at += length(t, i, to);
	return at;
}

static uint64_t reads(const struct trial *t)
{
	int i_am_root = t->rank == t->root;

	switch (t->kind) {
	case TESS_BROADCAST: return i_am_root ? t->count : 0;
	case TESS_REDUCE: case TESS_ALL_REDUCE: return t->count;
	case TESS_GATHER: case TESS_ALL_GATHER: return length(t, 0, t->rank);
	case TESS_SCATTER: return i_am_root ? start(t, 0, t->n) : 0;
	case TESS_REDUCE_SCATTER: return start(t, 0, t->n);
	case TESS_ALL_TO_ALL: return start(t, t->rank, t->n);
	default: return 0;
	}
}

static uint64_t writes(const struct trial *t)
{
	int i_am_root = t->rank == t->root;

	switch (t->kind) {
	case TESS_BROADCAST: case TESS_ALL_REDUCE: return t->count;
	case TESS_REDUCE: return i_am_root ? t->count : 0;
	case TESS_GATHER: return i_am_root ? start(t, 0, t->n) : 0;
	case TESS_ALL_GATHER: return start(t, 0, t->n);
	case TESS_SCATTER: case TESS_REDUCE_SCATTER: return length(t, 0, t->rank);
	case TESS_ALL_TO_ALL: return landing(t, t->n, t->rank);
	default: return 0;
	}
}

/* Element i of the result. */
static double expected(const struct trial *t, uint64_t i)
{
	int32_t from = 0;

	switch (t->kind) {
	case TESS_BROADCAST:
		return value(t, t->root, i);
	case TESS_GATHER: case TESS_ALL_GATHER:
		while (i >= start(t, 0, from + 1))
			from++;
		return value(t, from, i - start(t, 0, from));
	case TESS_SCATTER:
		return value(t, t->root, start(t, 0, t->rank) + i);
	case TESS_REDUCE_SCATTER:
		return fold(t, start(t, 0, t->rank) + i);
	case TESS_ALL_TO_ALL:
		while (i >= landing(t, from + 1, t->rank))
			from++;
		return value(t, from, start(t, from, t->rank) + i - landing(t, from, t->rank));
	default:
		return fold(t, i);
	}
}

/* ---- one trial ------------------------------------------------------------------------------------- */

static int wrong(const struct trial *t, const char *what, uint64_t i, double got, double want)
{
	fprintf(stderr, "rank %d of %d: %s dtype %d op %d root %d count %llu%s%s: %s: element %llu is %g, not %g\n",
	        (int)t->rank, (int)t->n, kind_name[t->kind], (int)t->dtype, (int)t->op, (int)t->root,
	        (unsigned long long)t->count, t->uneven ? " uneven" : "", t->inplace ? " in place" : "", what,
	        (unsigned long long)i, got, want);
	return -1;
}

static int guarded(const struct trial *t, const unsigned char *p, size_t bytes)
{
	for (size_t i = 0; i < GUARD; i++)
		if (p[i] != 0xa5 || p[GUARD + bytes + i] != 0xa5)
			return wrong(t, "guard", i, p[i], 0xa5);
	return 0;
}

/* `bytes` between two guards. Everything is 0xa5. */
static unsigned char *memory(size_t bytes)
{
	unsigned char *p = malloc(bytes + 2 * GUARD);

	if (p)
		memset(p, 0xa5, bytes + 2 * GUARD);
	return p;
}

static int try(moves_run *run, void *arg, const struct trial *t)
{
	size_t width = tess_width(t->dtype);
	uint64_t in = reads(t), out = writes(t), give[MOST], get[MOST], base = 0, put = 0;
	uint64_t room = in > out ? in : out;
	int inplace = t->inplace && in && out, answer = -1;
	unsigned char *src = NULL, *dst = NULL;
	struct tess_coll c = {
		.size = sizeof c, .kind = t->kind, .dtype = t->dtype, .op = t->op, .mem = TESS_HOST,
		.peer = t->root, .count = t->count, .where = "moves",
	};

	if (inplace && (t->kind == TESS_GATHER || t->kind == TESS_ALL_GATHER))
		base = start(t, 0, t->rank);
	if (inplace && (t->kind == TESS_SCATTER || t->kind == TESS_REDUCE_SCATTER))
		put = start(t, 0, t->rank);
	for (int32_t r = 0; r < t->n; r++) {
		give[r] = length(t, t->rank, r);
		get[r] = t->kind == TESS_ALL_TO_ALL ? length(t, r, t->rank) : length(t, 0, r);
	}
	if (t->uneven) {
		c.count = give[t->rank];
		if (t->kind == TESS_SCATTER || t->kind == TESS_REDUCE_SCATTER || t->kind == TESS_ALL_TO_ALL)
			c.give = give;
		if (t->kind == TESS_GATHER || t->kind == TESS_ALL_GATHER || t->kind == TESS_ALL_TO_ALL)
			c.get = get;
	}
	src = memory((inplace ? room : in) * width);
	dst = inplace ? src : memory(out * width);
	if (!src || !dst)
		goto out;
	for (uint64_t i = 0; i < in; i++)
		store(t->dtype, src + GUARD + (base + i) * width, value(t, t->rank, i));
	if (t->kind != TESS_BARRIER) {
		c.src = in || inplace ? src + GUARD : NULL;
		c.dst = out || inplace ? dst + GUARD : NULL;
	}
	if (run(arg, &c) < 0) {
		wrong(t, "failed", 0, 0, 0);
		goto out;
	}
	for (uint64_t i = 0; i < out; i++) {
		double got = load(t->dtype, dst + GUARD + (put + i) * width), want = expected(t, i);

		if (got != want) {
			wrong(t, "result", i, got, want);
			goto out;
		}
	}
	for (uint64_t i = 0; !inplace && i < in; i++) {
		double got = load(t->dtype, src + GUARD + i * width), want = value(t, t->rank, i);

		if (got != want) {
			wrong(t, "source", i, got, want);
			goto out;
		}
	}
	if (guarded(t, src, (inplace ? room : in) * width) || guarded(t, dst, (inplace ? room : out) * width))
		goto out;
	answer = 0;
out:
	if (dst != src)
		free(dst);
	free(src);
	return answer;
}

/* Each rank sends to the next one and receives from the one before; rank 0 sends first. */
static int around(moves_run *run, void *arg, int32_t rank, int32_t n)
{
	enum { COUNT = 1000 };
	int32_t mine[COUNT], theirs[COUNT], before = (rank + n - 1) % n;
	struct tess_coll c = {
		.size = sizeof c, .dtype = TESS_I32, .mem = TESS_HOST, .count = COUNT, .where = "around",
	};

	for (int32_t i = 0; i < COUNT; i++)
		mine[i] = rank * COUNT + i;
	for (int32_t turn = 0; turn < 2; turn++) {
		if ((turn == 0) == (rank == 0)) {
			c.kind = TESS_SEND;
			c.peer = (rank + 1) % n;
			c.src = mine;
			c.dst = NULL;
		} else {
			c.kind = TESS_RECV;
			c.peer = before;
			c.src = NULL;
			c.dst = theirs;
		}
		if (run(arg, &c) < 0)
			return -1;
	}
	for (int32_t i = 0; i < COUNT; i++) {
		if (theirs[i] != before * COUNT + i) {
			fprintf(stderr, "rank %d: around: element %d is %d\n", (int)rank, (int)i, (int)theirs[i]);
			return -1;
		}
	}
	return 0;
}

/* The trials of one kind and dtype. */
static long some(moves_run *run, void *arg, struct trial t)
{
	static const uint64_t counts[] = { 0, 1, 5, 1000, 70001 };
	int bits = t.dtype == TESS_I64 || t.dtype == TESS_I32 || t.dtype == TESS_I8 || t.dtype == TESS_U8;
	int lists = t.kind >= TESS_GATHER && t.kind <= TESS_ALL_TO_ALL;
	int rooted = t.kind == TESS_BROADCAST || t.kind == TESS_REDUCE || t.kind == TESS_GATHER || t.kind == TESS_SCATTER;
	int32_t last_op = !reduces(t.kind) ? TESS_SUM : bits ? TESS_BXOR : TESS_MAX;
	long count = 0;

	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
		for (int shape = 0; shape < 4; shape++)
			for (t.op = TESS_SUM; t.op <= last_op; t.op++) {
				t.count = counts[i];
				t.uneven = shape & 1;
				t.inplace = shape >> 1;
				t.root = rooted ? (int32_t)(count % t.n) : 0;
				if ((t.uneven && !lists) || (t.count > 1000 && t.op > TESS_SUM && t.dtype != TESS_I8))
					continue;
				if (try(run, arg, &t))
					return -1;
				count++;
			}
	return count;
}

long moves_check(moves_run *run, void *arg, int32_t rank, int32_t n)
{
	struct trial t = { .kind = TESS_BARRIER, .dtype = TESS_U8, .rank = rank, .n = n };
	long total = 1, one;

	if (try(run, arg, &t))
		return -1;
	for (t.kind = TESS_BROADCAST; t.kind <= TESS_ALL_TO_ALL; t.kind++) {
		for (t.dtype = TESS_F32; t.dtype <= TESS_U8; t.dtype++) {
			one = some(run, arg, t);
			if (one < 0)
				return -1;
			total += one;
		}
	}
	if (n > 1 && around(run, arg, rank, n))
		return -1;
	return total;
}

/*
 * groups.c - further groups: interleaved calls, other orders and subsets of ranks, a thousand
 * openings and closings; and the optional calls of a backend.
 */
#include "conform.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"
#include "core/world/group.h"

#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- calls in a second group ----------------------------------------------------------------- */

struct direct_case {
	struct conform_data *data;
	void *work[2];
};

static tess_status start_direct_case(struct conform_rank *me, const struct conform_direct *g,
                                     const struct conform_case *c, struct direct_case *out)
{
	tess_status st = conform_data_make(c, g->rank, g->n, &out->data);

	if (!st && !conform_direct_supports(me, out->data)) { /* every backend can send */
		struct conform_case message = {
			.kind = TESS_SEND, .dtype = c->dtype, .op = TESS_SUM, .count = c->count
		};

		conform_data_free(out->data);
		st = conform_data_make(&message, g->rank, g->n, &out->data);
	}
	return st ? st : conform_direct_start(me, g, out->data, me->world->timeout, out->work);
}

static tess_status finish_direct_case(struct conform_rank *me, const struct conform_direct *g,
                                      struct direct_case *b)
{
	struct conform_data *d = b->data;
	tess_status st = TESS_OK;

	for (int32_t k = d->ncolls - 1; k >= 0 && !st; k--)
		st = conform_direct_wait(me, g, b->work[k], d->coll[k].deadline);
	if (st == TESS_ETIMEOUT)
		tess_fail(
			st,
			"it was not done within %g s. The rule: a call that all ranks have started "
			"and wait for completes",
			me->job->timeout);
	if (st)
		return st;
	conform_set_call(me, CONFORM_RELEASE);
	for (int32_t k = 0; k < d->ncolls; k++)
		me->backend->release(g->self, b->work[k]);
	conform_set_call(me, CONFORM_NO_CALL);
	conform_finish_data(me, d);
	me->state->ncases++;
	return TESS_OK;
}

/*
 * Runs a call in each group concurrently; even ranks start them in one order, odd ranks in the
 * other. On a stream, calls run in the order of their start, so all ranks start in one order. All
 * ranks wait in one order: a backend need not progress a group while the rank waits in another.
 */
static tess_status interleave_groups(struct conform_rank *me, struct conform_direct *two,
                                     const char *where)
{
	int rounds = me->job->quick ? 20 : 200;
	tess_status st = TESS_OK;

	for (int i = 0; i < rounds && !st; i++) {
		int swaps = me->memory.device ? 0 : me->rank % 2;
		struct conform_direct *g[2] = { swaps ? two : &me->all, swaps ? &me->all : two };
		struct conform_case c[2];
		struct direct_case b[2];

		for (int k = 0; k < 2 && !st; k++) {
			c[k] = conform_pick_case(g[k]->n, (uint32_t)(2 * i + (g[k] == two)));
			conform_set_activity_case(me, &c[k], where);
			st = start_direct_case(me, g[k], &c[k], &b[k]);
		}
		for (int k = 0; k < 2 && !st; k++) {
			int j = (i + swaps) % 2 ? 1 - k : k;

			conform_set_activity_case(me, &c[j], where);
			st = finish_direct_case(me, g[j], &b[j]);
		}
	}
	return st;
}

static tess_status run_with_group(struct conform_rank *me, const char *name, const int32_t *member,
                                  int32_t m, void *parent, const char *where)
{
	struct conform_direct g;
	tess_status st;

	conform_set_activity(me, "opening %s", where);
	st = conform_direct_open(me, name, member, m, parent, NULL, &g);
	if (st)
		return st;
	st = interleave_groups(me, &g, where);
	if (!st)
		conform_direct_close(me, &g);
	return st;
}

tess_status conform_run_groups(struct conform_rank *me)
{
	const int32_t *same = me->group->members->member;
	int32_t reversed[CONFORM_RANKS], half[CONFORM_RANKS], m = 0;
	const char *name = me->rank % 2 ? "conform.odd" : "conform.even";
	tess_status st;

	for (int32_t r = 0; r < me->n; r++) {
		reversed[r] = me->n - 1 - r;
		if (r % 2 == me->rank % 2)
			half[m++] = r;
	}
	st = run_with_group(me, "conform.second", same, me->n, NULL, "in one of two groups");
	if (!st)
		st = run_with_group(me, "conform.reversed", reversed, me->n, NULL,
		                    "in one of two groups, the second with its ranks reversed");
	if (!st)
		st = run_with_group(me, name, half, m, NULL,
		                    "in one of two groups, the second of every other rank");
	if (!st)
		st = run_with_group(
			me, "conform.child", same, me->n, me->all.self,
			"in one of two groups, the second opened with the first as parent");
	return st;
}

/* ---- optional calls -------------------------------------------------------------------------- */

static tess_status try_batch(struct conform_rank *me, const struct conform_direct *g)
{
	struct conform_case c = {
		.kind = TESS_SEND, .dtype = TESS_I32, .op = TESS_SUM, .count = 5000
	};
	const struct tess_coll *list[2];
	struct conform_data *d;
	void *work;
	tess_status st = conform_data_make(&c, g->rank, g->n, &d);

	conform_set_activity(me, "batch of a send and a recv");
	if (st)
		return st;
	if (!d->ncolls) { /* one rank has no peer */
		conform_data_free(d);
		return TESS_OK;
	}
	for (int k = 0; k < 2; k++) {
		d->coll[k].deadline = tess_now() + me->world->timeout;
		list[k] = &d->coll[k];
	}
	conform_set_call(me, CONFORM_START);
	tess_error_clear();
	st = conform_check_returned(me, "batch", me->backend->batch(g->self, list, 2, &work));
	if (!st)
		st = conform_direct_wait(me, g, work, d->coll[0].deadline);
	if (st)
		return st;
	me->backend->release(g->self, work);
	conform_finish_data(me, d);
	return TESS_OK;
}

static tess_status run_direct_barrier(struct conform_rank *me, const struct conform_direct *g)
{
	struct tess_coll c = {
		.size = sizeof c, .kind = TESS_BARRIER, .mem = TESS_HOST, .where = "conform"
	};

	conform_place_call(me, &c);
	return conform_direct_run(me, g, &c);
}

/* Fills the memory of each rank with its number, and reads all addressable memory. */
static tess_status try_alloc(struct conform_rank *me, const struct conform_direct *g,
                             uint64_t bytes)
{
	void *peers[CONFORM_RANKS] = { NULL }, *mine = NULL;
	unsigned char *found;
	tess_status st;

	conform_set_activity(me, "alloc of %d bytes", (int)bytes);
	conform_set_call(me, CONFORM_OPEN);
	tess_error_clear();
	st = conform_check_returned(me, "alloc", me->backend->alloc(g->self, bytes, &mine, peers));
	conform_set_call(me, CONFORM_NO_CALL);
	if (st)
		return st;
	if (!mine || (uintptr_t)mine % 64)
		conform_add_fault(me, "mine is %p. The rule: the memory is aligned to 64 bytes",
		                  mine);
	if (peers[g->rank] != mine)
		conform_add_fault(me, "peers[%d], this rank's own entry, is %p, expected mine, %p",
		                  (int)g->rank, peers[g->rank], mine);
	found = malloc(bytes);
	if (!found)
		return tess_fail(TESS_ENOMEM, "no memory for %d bytes", (int)bytes);
	memset(found, 16 + (int)g->rank, bytes);
	st = conform_copy(me, mine, found, bytes);
	if (!st)
		st = run_direct_barrier(me, g);
	for (int32_t r = 0; r < g->n && !st; r++) {
		if (peers[r])
			st = conform_copy(me, found, peers[r], bytes);
		for (uint64_t i = 0; peers[r] && i < bytes && !st; i++)
			if (found[i] != 16 + r) {
				conform_add_fault(
					me,
					"byte %d of rank %d's memory is %d, expected %d. The "
					"rule: peers[r] is the memory that rank r got as mine",
					(int)i, (int)r, found[i], 16 + (int)r);
				break;
			}
	}
	free(found);
	if (!st)
		st = run_direct_barrier(me, g);
	if (!st && me->backend->free)
		me->backend->free(g->self, mine);
	return st;
}

/* Returns numbers of different magnitudes: the bits of a sum show the order of adding. */
static float make_rough_float(int32_t rank, uint64_t k)
{
	uint64_t h = conform_hash((uint64_t)rank + 1, k + 1, 7);

	return k % 13 == 5 ? -0.0f : ldexpf((float)(int32_t)h, (int)(h >> 40) % 20);
}

/* Adds neighbours first; never -0. */
static float sum_rough_floats(int32_t n, uint64_t k)
{
	float sum[CONFORM_RANKS] = { 0 };

	for (int32_t r = 0; r < n; r++)
		sum[r] = make_rough_float(r, k);
	for (; n > 1; n /= 2)
		for (int32_t r = 0; r < n / 2; r++)
			sum[r] = sum[2 * r] + sum[2 * r + 1];
	return sum[0] + 0.0f;
}

static tess_status try_exact(struct conform_rank *me, const struct conform_direct *g, int32_t kind,
                             uint64_t count, bool in_place)
{
	uint64_t blocks = kind == TESS_REDUCE_SCATTER ? (uint64_t)g->n : 1;
	uint64_t at = blocks > 1 ? count * (uint64_t)g->rank : 0;
	float *src = malloc(blocks * count * sizeof *src),
	      *dst = in_place ? src : malloc(count * 4);
	struct tess_coll c = { .size = sizeof c,
		               .kind = kind,
		               .dtype = TESS_F32,
		               .op = TESS_SUM,
		               .mem = TESS_HOST,
		               .src = src,
		               .dst = dst,
		               .count = count,
		               .where = "conform" };
	tess_status st = src && dst ? TESS_OK : tess_fail(TESS_ENOMEM, "no memory for a sum");

	conform_set_activity(me, "exact %s of %d f32%s", tess_kind_name(kind), (int)count,
	                     in_place ? ", in place" : "");
	if (st || me->backend->supports(&c, g->n))
		goto out;
	for (uint64_t k = 0; k < blocks * count; k++)
		src[k] = make_rough_float(g->rank, k);
	st = conform_direct_run(me, g, &c);
	if (st)
		return st; /* the buffers stay, for writes that come late */
	for (uint64_t k = 0; k < count; k++) {
		const float *got = dst + (in_place ? at : 0);
		float want = sum_rough_floats(g->n, at + k);

		if (!memcmp(&got[k], &want, sizeof want))
			continue;
		conform_add_fault(
			me,
			"element %d is %a, expected %a. The rule: a backend with `exact` set "
			"adds the f32 of 2^k ranks as neighbours, and no sum is -0",
			(int)k, (double)got[k], (double)want);
		break;
	}
out:
	free(in_place ? NULL : dst);
	free(src);
	return st;
}

static tess_status try_sums(struct conform_rank *me, const struct conform_direct *g)
{
	static const uint64_t counts[] = { 1, 24, 1000, 16385, 70000, 300001 };
	tess_status st = TESS_OK;

	for (int i = 0; i < 24 && !st; i++, me->state->ncases++)
		st = try_exact(me, g, i % 2 ? TESS_REDUCE_SCATTER : TESS_ALL_REDUCE, counts[i / 4],
		               i / 2 % 2);
	return st;
}

/* Adds in place. Sets *has to false and does nothing if the backend lacks the call. */
static tess_status reduce_on_all(struct conform_rank *me, const struct conform_direct *g, void *x,
                                 uint64_t count, int32_t dtype, int32_t op, bool *has)
{
	struct tess_coll c = { .size = sizeof c,
		               .kind = TESS_ALL_REDUCE,
		               .dtype = dtype,
		               .op = op,
		               .mem = TESS_HOST,
		               .src = x,
		               .dst = x,
		               .count = count,
		               .where = "conform" };

	*has = *has && !me->backend->supports(&c, g->n);
	return *has ? conform_direct_run(me, g, &c) : TESS_OK;
}

/* Checks that the largest and the smallest bits of an element on all ranks are those here. */
static tess_status try_same_bits(struct conform_rank *me, const struct conform_direct *g,
                                 uint64_t count)
{
	int32_t *bits = malloc(3 * count * sizeof *bits), *most = bits + count;
	int32_t *least = most + count;
	bool has = true;
	tess_status st;

	if (!bits)
		return tess_fail(TESS_ENOMEM, "no memory for a sum");
	conform_set_activity(me, "all_reduce of %d f32, the same on all ranks", (int)count);
	for (uint64_t k = 0; k < count; k++) {
		float x = make_rough_float(g->rank, k);

		memcpy(&bits[k], &x, sizeof x);
	}
	st = reduce_on_all(me, g, bits, count, TESS_F32, TESS_SUM, &has);
	memcpy(most, bits, count * sizeof *bits);
	memcpy(least, bits, count * sizeof *bits);
	if (!st)
		st = reduce_on_all(me, g, most, count, TESS_I32, TESS_MAX, &has);
	if (!st)
		st = reduce_on_all(me, g, least, count, TESS_I32, TESS_MIN, &has);
	if (st)
		return st; /* the buffers stay, for writes that come late */
	for (uint64_t k = 0; k < count && has; k++) {
		if (most[k] == least[k])
			continue;
		conform_add_fault(
			me,
			"the bits of element %d are %08x on one rank and %08x on another. "
			"The rule: an all_reduce gives all ranks the same bits, whatever "
			"its order",
			(int)k, (unsigned)most[k], (unsigned)least[k]);
		break;
	}
	free(bits);
	return st;
}

tess_status conform_run_extras(struct conform_rank *me)
{
	static const uint64_t counts[] = { 1, 1000, 70000 };
	tess_status st = TESS_OK;

	for (int i = 0; i < 20 && !st && me->backend->batch; i++, me->state->ncases++)
		st = try_batch(me, &me->all);
	for (int i = 0; i < 20 && !st && me->backend->alloc; i++, me->state->ncases++)
		st = try_alloc(me, &me->all, i % 2 ? 1 << 20 : 24);
	if (!st && me->backend->exact && me->n > 1 && !(me->n & (me->n - 1)))
		st = try_sums(me, &me->all);
	for (int i = 0; i < 3 && !st && !*me->job->device; i++, me->state->ncases++)
		st = try_same_bits(me, &me->all, counts[i]);
	return st;
}

/* ---- open and close -------------------------------------------------------------------------- */

struct resources {
	long fds, threads, heap, mapped;
};

static long count_entries(const char *path)
{
	DIR *dir = opendir(path);
	long n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/*
 * Returns accessible bytes, without reserved ones: glibc reserves 64 MiB when a thread first
 * allocates, which may be in any round.
 */
static long count_mapped_bytes(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long from, to;
	char access[5];
	long bytes = 0;

	while (f && fscanf(f, "%lx-%lx %4s%*[^\n]", &from, &to, access) == 3)
		if (strncmp(access, "---", 3) != 0)
			bytes += (long)(to - from);
	if (f)
		fclose(f);
	return bytes;
}

static void count_resources(struct resources *b)
{
	struct mallinfo2 m = mallinfo2();

	*b = (struct resources){ .fds = count_entries("/proc/self/fd"),
		                 .threads = count_entries("/proc/self/task"),
		                 .heap = (long)(m.uordblks + m.hblkhd),
		                 .mapped = count_mapped_bytes() };
}

/*
 * Counts on one rank after the other: counting uses memory and descriptors, which other ranks of
 * the same process would include.
 */
static tess_status count_resources_in_turn(struct conform_rank *me, struct resources *b)
{
	tess_status st = tess_barrier(me->group, "conform");

	for (int32_t r = 0; r < me->n && !st; r++) {
		if (r == me->rank)
			count_resources(b);
		st = tess_barrier(me->group, "conform");
	}
	return st;
}

struct counting_store { /* counts the bytes stored by the rendezvous */
	const struct tess_store *real;
	atomic_long *bytes;
};

static tess_status set_counted_key(void *self, const char *key, const void *val, uint64_t len)
{
	const struct counting_store *c = self;

	atomic_fetch_add(c->bytes, (long)(strlen(key) + len + 256));
	return c->real->set(c->real->self, key, val, len);
}

static tess_status get_counted_key(void *self, const char *key, int64_t deadline, void *val,
                                   uint64_t *len)
{
	const struct counting_store *c = self;

	return c->real->get(c->real->self, key, deadline, val, len);
}

static void check_growth(struct conform_rank *me, const char *what, long before, long after,
                         long max, int rounds)
{
	if (after - before > max)
		conform_add_fault(
			me,
			"%s: %ld became %ld in %d times. The rule: close releases all that open "
			"allocated",
			what, before, after, rounds);
}

static atomic_long stored_bytes; /* by all ranks of this process */

static tess_status open_and_close_group(struct conform_rank *me, int round, bool parent)
{
	struct counting_store counting = { .real = &me->world->store, .bytes = &stored_bytes };
	struct tess_store store = { .size = sizeof store,
		                    .self = &counting,
		                    .set = set_counted_key,
		                    .get = get_counted_key };
	struct conform_direct g;
	char name[32];
	tess_status st;

	snprintf(name, sizeof name, "conform.life.%d", round);
	st = conform_direct_open(me, name, me->group->members->member, me->n,
	                         parent ? me->all.self : NULL, &store, &g);
	if (!st)
		st = run_direct_barrier(me, &g);
	if (!st)
		conform_direct_close(me, &g);
	return st;
}

tess_status conform_run_life(struct conform_rank *me)
{
	int rounds = me->job->quick ? 100 : 1000, warm = rounds / 10;
	struct resources before = { 0 }, after;
	tess_status st = TESS_OK;
	long kept = 0;

	for (int i = 0; i < rounds && !st; i++) {
		conform_set_activity(me, "open and close, time %d of %d", i + 1, rounds);
		if (i == warm) {
			st = count_resources_in_turn(me, &before);
			kept = atomic_load(&stored_bytes);
			if (!st)
				st = tess_barrier(me->group, "conform");
		}
		if (!st)
			st = open_and_close_group(me, i, i % 2);
		me->state->ncases++;
	}
	if (!st)
		st = count_resources_in_turn(me, &after);
	if (st)
		return st;
	/* else the rendezvous is in the launcher */
	kept = me->job->threads ? atomic_load(&stored_bytes) - kept : 0;
	rounds -= warm;
	conform_set_activity(me, "open and close");
	check_growth(me, "open descriptors", before.fds, after.fds, 2, rounds);
	check_growth(me, "threads", before.threads, after.threads, 2, rounds);
	/* the free blocks that glibc caches per thread count as used, and vary */
	check_growth(me, "bytes of heap", before.heap, after.heap, kept + rounds * 16 + (16 << 10),
	             rounds);
	check_growth(me, "mapped bytes", before.mapped, after.mapped, kept + (8 << 20), rounds);
	return tess_barrier(me->group, "conform");
}

/* data.c - fills, guards and checks the buffers of one case on one rank, to the byte. */
#include "data.h"

#include "core/base/status.h"
#include "core/rendezvous/call_desc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/coll.h>

enum { GUARD = 64, CACHELINE = 64 };
/*
 * Element i equals element i % PERIOD, to save the time for numbers. A multiple of 8 and a prime:
 * no chunk or block of a collective has this length.
 */
enum { PERIOD = 8 * 521 };
static const unsigned char guard = 0xa5, unset = 0x5a;

/* ---- memory ---------------------------------------------------------------------------------- */

static _Thread_local struct {
	char *begin, *next, *end;
} pool; /* memory for buffers */

void conform_data_use_memory(void *memory, uint64_t bytes)
{
	pool.begin = pool.next = memory;
	pool.end = pool.begin + bytes;
}

static char *allocate_block(uint64_t bytes)
{
	char *at = pool.next;

	if (!at || (uint64_t)(pool.end - at) < bytes)
		return aligned_alloc(CACHELINE, bytes);
	pool.next += bytes;
	return at;
}

static uint64_t get_block_bytes(uint64_t bytes)
{
	return (2 * GUARD + bytes + 2 * CACHELINE - 1) / CACHELINE * CACHELINE;
}

/* Allocates `bytes` at `shift` past a cache line, between guards up to the ends of the block. */
static char *alloc_guarded(uint64_t bytes, size_t shift)
{
	uint64_t all = get_block_bytes(bytes);
	char *block = allocate_block(all);

	if (!block)
		return NULL;
	memset(block, guard, all);
	memset(block + GUARD + shift, unset, bytes);
	return block + GUARD + shift;
}

static void free_guarded(char *at, size_t shift)
{
	uintptr_t block = (uintptr_t)at - GUARD - shift;

	if (at && (block < (uintptr_t)pool.begin || block >= (uintptr_t)pool.end))
		free(at - GUARD - shift);
}

static size_t get_shift(const struct conform_case *c)
{
	return c->shifted ? tess_width(c->dtype) : 0;
}

/* Returns how far behind a buffer bytes were written; negative: before it; 0: nowhere. */
static int find_overrun(const char *at, uint64_t bytes)
{
	for (int i = 1; i <= GUARD; i++)
		if ((unsigned char)at[-i] != guard)
			return -i;
	for (int i = GUARD; i >= 1; i--)
		if ((unsigned char)at[bytes + (uint64_t)i - 1] != guard)
			return i;
	return 0;
}

/* ---- memory of a device ---------------------------------------------------------------------- */

static _Thread_local const struct conform_memory *device_memory;

void conform_data_use_device(const struct conform_memory *m)
{
	device_memory = m;
}

tess_status conform_memory_copy(const struct conform_memory *m, void *dst, const void *src,
                                uint64_t bytes)
{
	tess_status st = m->device->copy(m->self, dst, src, bytes, m->copies);

	return st ? st : m->device->sync(m->self, m->copies);
}

/* Copies a buffer and its guards to device memory. */
static tess_status mirror_guarded(const struct conform_memory *m, const char *at, uint64_t bytes,
                                  size_t shift, char **out)
{
	uint64_t all = get_block_bytes(bytes);
	void *block;
	tess_status st = m->device->alloc(m->self, all, &block);

	if (st)
		return st;
	*out = (char *)((uintptr_t)block + GUARD + shift);
	return conform_memory_copy(m, block, at - GUARD - shift, all);
}

static void *get_mirror_block(const char *mirror, size_t shift)
{
	return (void *)((uintptr_t)mirror - GUARD - shift);
}

static tess_status fetch_guarded(const struct conform_memory *m, const char *mirror, char *at,
                                 uint64_t bytes, size_t shift)
{
	return conform_memory_copy(m, at - GUARD - shift, get_mirror_block(mirror, shift),
	                           get_block_bytes(bytes));
}

/* Makes the calls use copies of the buffers in device memory. */
static tess_status move_to_device(struct conform_data *d, const struct conform_memory *m)
{
	size_t shift = get_shift(&d->c);
	tess_status st = mirror_guarded(m, d->dst, d->dst_bytes, shift, &d->device_dst);

	d->memory = m;
	if (!st && d->src == d->dst)
		d->device_src = d->device_dst;
	else if (!st)
		st = mirror_guarded(m, d->src, d->src_bytes, shift, &d->device_src);
	for (int32_t i = 0; i < d->ncolls && !st; i++) {
		struct tess_coll *c = &d->coll[i];

		c->mem = m->device->mem;
		c->stream = m->stream;
		c->src = c->src ? d->device_src : NULL;
		c->dst = c->dst ? d->device_dst : NULL;
	}
	return st;
}

static tess_status fetch_from_device(const struct conform_data *d)
{
	size_t shift = get_shift(&d->c);
	tess_status st = fetch_guarded(d->memory, d->device_dst, d->dst, d->dst_bytes, shift);

	if (!st && d->src != d->dst)
		st = fetch_guarded(d->memory, d->device_src, d->src, d->src_bytes, shift);
	return st;
}

static void free_mirrors(struct conform_data *d)
{
	const struct conform_memory *m = d->memory;
	size_t shift = get_shift(&d->c);

	if (m && d->device_src && d->device_src != d->device_dst)
		m->device->free(m->self, get_mirror_block(d->device_src, shift));
	if (m && d->device_dst)
		m->device->free(m->self, get_mirror_block(d->device_dst, shift));
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Returns the elements that rank a sends to rank b, or of block b if equal for all a. */
static uint64_t get_block_length(const struct conform_case *c, int32_t a, int32_t b)
{
	if (!c->uneven)
		return c->count;
	/* a rank without elements; in an all_to_all out of place, one that sends none, and one that
	 * receives none */
	if (c->count &&
	    (c->kind == TESS_ALL_TO_ALL ? a == 1 || b == (c->in_place ? 1 : 2) : b == 1))
		return 0;
	if (c->kind == TESS_ALL_TO_ALL)
		return c->count + (uint64_t)(c->in_place ? a + b : a * 2 + b * 3) % 4;
	return c->count + (uint64_t)(b * 3 + 1) % 4;
}

bool conform_has_src_blocks(int32_t kind)
{
	return kind == TESS_SCATTER || kind == TESS_REDUCE_SCATTER || kind == TESS_ALL_TO_ALL;
}

bool conform_has_dst_blocks(int32_t kind)
{
	return kind == TESS_GATHER || kind == TESS_ALL_GATHER || kind == TESS_ALL_TO_ALL;
}

static bool reads_src(const struct conform_data *d)
{
	return (d->c.kind != TESS_BROADCAST && d->c.kind != TESS_SCATTER) || d->rank == d->c.root;
}

static bool writes_dst(const struct conform_data *d)
{
	return (d->c.kind != TESS_REDUCE && d->c.kind != TESS_GATHER) || d->rank == d->c.root;
}

/* Writes bit patterns for kinds that only move: NaNs with payload, subnormals, both zeros. */
static void write_bits(const struct conform_case *c, int32_t from, int32_t to, uint64_t first,
                       uint64_t bytes, char *out)
{
	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t h = conform_hash((uint64_t)c->kind,
		                          (uint64_t)from << 32 | (uint64_t)(to + 1), first + i + 1);

		memcpy(out + i, &h, bytes - i < 8 ? bytes - i : 8);
	}
}

static void write_each_element(const struct conform_case *c, int32_t n, int32_t from, int32_t to,
                               uint64_t first, uint64_t count, char *out)
{
	size_t width = tess_width(c->dtype);

	if (!tess_kind_reduces(c->kind)) {
		write_bits(c, from, to, first * width, count * width, out);
		return;
	}
	for (uint64_t i = 0; i < count; i++)
		conform_store_number(c->dtype, out, i,
		                     from < 0 ? conform_reduce_numbers(c, to, first + i, n)
		                              : conform_make_number(c, from, to, first + i, n));
}

void conform_data_write(const struct conform_case *c, int32_t n, int32_t from, int32_t to,
                        uint64_t first, uint64_t count, void *out)
{
	uint64_t width = tess_width(c->dtype), n_now;

	for (uint64_t at = 0; at < count; at += n_now) {
		uint64_t i = (first + at) % PERIOD;
		char *to_now = (char *)out + at * width;

		n_now = count - at < PERIOD - i ? count - at : PERIOD - i;
		if (at < PERIOD)
			write_each_element(c, n, from, to, i, n_now, to_now);
		else
			memcpy(to_now, to_now - PERIOD * width, n_now * width);
	}
}

/* Writes elements at element `at` of a buffer. */
static void write_block(const struct conform_data *d, char *base, uint64_t at, int32_t from,
                        int32_t to, uint64_t n)
{
	conform_data_write(&d->c, d->n, from, to, 0, n, base + at * tess_width(d->c.dtype));
}

/* ---- one message to the next rank ------------------------------------------------------------ */

static void plan_message(struct conform_data *d)
{
	int32_t next = (d->rank + 1) % d->n, before = (d->rank + d->n - 1) % d->n;
	struct tess_coll c = {
		.size = sizeof c,
		.dtype = d->c.dtype,
		.mem = TESS_HOST,
		.count = d->c.count,
		.where = "conform",
	};

	write_block(d, d->src, 0, d->rank, next, d->c.count);
	if (d->n == 1)
		return;
	write_block(d, d->expected, 0, before, d->rank, d->c.count);
	d->coll[0] = d->coll[1] = c;
	d->coll[0].kind = TESS_SEND;
	d->coll[0].peer = next;
	d->coll[0].src = d->src;
	d->coll[1].kind = TESS_RECV;
	d->coll[1].peer = before;
	d->coll[1].dst = d->dst;
	d->ncolls = 2;
}

/* ---- one collective -------------------------------------------------------------------------- */

static void plan_block_counts(struct conform_data *d)
{
	for (int32_t r = 0; r < d->n; r++) {
		d->send_counts[r] = get_block_length(&d->c, d->rank, r);
		d->recv_counts[r] = d->c.kind == TESS_ALL_TO_ALL
		                            ? get_block_length(&d->c, r, d->rank)
		                            : get_block_length(&d->c, r, r);
	}
}

static uint64_t get_own_block(const struct conform_data *d)
{
	bool blocks = conform_has_src_blocks(d->c.kind) || conform_has_dst_blocks(d->c.kind);

	return blocks ? get_block_length(&d->c, d->rank, d->rank) : d->c.count;
}

static bool uses_one_buffer(const struct conform_data *d)
{
	return d->c.in_place && reads_src(d) && writes_dst(d);
}

static void plan_collective(struct conform_data *d)
{
	const struct conform_case *c = &d->c;
	bool in = conform_has_src_blocks(c->kind), out = conform_has_dst_blocks(c->kind),
	     both = uses_one_buffer(d);
	uint64_t mine = get_own_block(d);
	/* in place, a single block is at its own position among all */
	uint64_t from = both && out && !in ? tess_block_begin(d->recv_counts, 0, d->rank) : 0;
	uint64_t to = both && in && !out ? tess_block_begin(d->send_counts, 0, d->rank) : 0;

	if (reads_src(d) && in)
		for (int32_t r = 0; r < d->n; r++)
			write_block(d, d->src, tess_block_begin(d->send_counts, 0, r), d->rank, r,
			            d->send_counts[r]);
	else if (reads_src(d))
		write_block(d, d->src, from, d->rank, -1, mine);
	if (both)
		memcpy(d->expected, d->dst, d->dst_bytes);
	if (writes_dst(d) && out)
		for (int32_t r = 0; r < d->n; r++)
			write_block(d, d->expected, tess_block_begin(d->recv_counts, 0, r), r,
			            in ? d->rank : -1, d->recv_counts[r]);
	else if (writes_dst(d))
		write_block(d, d->expected, to, tess_kind_reduces(c->kind) ? -1 : c->root,
		            in ? d->rank : -1, mine);
	/* a buffer that is neither read nor written may be NULL */
	d->coll[0] = (struct tess_coll){
		.size = sizeof d->coll[0],
		.kind = c->kind,
		.dtype = c->dtype,
		.op = c->op,
		.mem = TESS_HOST,
		.root = c->root,
		.src = reads_src(d) || c->shifted ? d->src : NULL,
		.dst = writes_dst(d) || c->shifted ? d->dst : NULL,
		.count = mine,
		.send_counts = c->uneven && in ? d->send_counts : NULL,
		.recv_counts = c->uneven && out ? d->recv_counts : NULL,
		.where = "conform",
	};
	d->ncolls = 1;
}

tess_status conform_data_make(const struct conform_case *c, int32_t rank, int32_t n,
                              struct conform_data **out)
{
	struct conform_data *d = calloc(1, sizeof *d);
	size_t width = tess_width(c->dtype), shift = get_shift(c);
	uint64_t max_bytes;
	tess_status st = TESS_OK;

	if (!d)
		return tess_fail(TESS_ENOMEM, "no memory for a case");
	*d = (struct conform_data){ .c = *c, .rank = rank, .n = n };
	pool.next = pool.begin;
	plan_block_counts(d);
	d->src_bytes = (conform_has_src_blocks(c->kind) ? tess_block_begin(d->send_counts, 0, n)
	                                                : get_own_block(d)) *
	               width;
	d->dst_bytes = (conform_has_dst_blocks(c->kind) ? tess_block_begin(d->recv_counts, 0, n)
	                                                : get_own_block(d)) *
	               width;
	max_bytes = d->src_bytes > d->dst_bytes ? d->src_bytes : d->dst_bytes;
	if (uses_one_buffer(d))
		d->src_bytes = d->dst_bytes = max_bytes;
	d->dst = alloc_guarded(d->dst_bytes, shift);
	d->expected = alloc_guarded(d->dst_bytes, shift);
	d->src = uses_one_buffer(d) ? d->dst : alloc_guarded(d->src_bytes, shift);
	d->copy = alloc_guarded(d->src_bytes, shift);
	if (!d->dst || !d->expected || !d->src || !d->copy) {
		conform_data_free(d);
		return tess_fail(TESS_ENOMEM, "no memory for a case of %" PRIu64 " bytes",
		                 max_bytes);
	}
	if (c->kind == TESS_SEND)
		plan_message(d);
	else
		plan_collective(d);
	memcpy(d->copy, d->src, d->src_bytes);
	if (device_memory)
		st = move_to_device(d, device_memory);
	if (st)
		conform_data_free(d);
	else
		*out = d;
	return st;
}

void conform_data_free(struct conform_data *d)
{
	size_t shift;

	if (!d)
		return;
	free_mirrors(d);
	shift = get_shift(&d->c);
	if (d->src != d->dst)
		free_guarded(d->src, shift);
	free_guarded(d->dst, shift);
	free_guarded(d->expected, shift);
	free_guarded(d->copy, shift);
	free(d);
}

/* ---- the check ------------------------------------------------------------------------------- */

static double load_real(int32_t dtype, const void *base, uint64_t i)
{
	switch (dtype) {
	case TESS_F32:
		return ((const float *)base)[i];
	case TESS_F64:
		return ((const double *)base)[i];
	case TESS_BF16:
		return tess_bf16_load(((const uint16_t *)base)[i]);
	default:
		return tess_f16_load(((const uint16_t *)base)[i]);
	}
}

/* Formats "258 (0x4381)". */
static void format_element(int32_t dtype, const char *base, uint64_t i, char text[static 64])
{
	size_t width = tess_width(dtype);
	uint64_t bits = 0;
	int at;

	memcpy(&bits, base + i * width, width);
	if (tess_dtype_is_float(dtype))
		at = snprintf(text, 64, "%.9g", load_real(dtype, base, i));
	else
		at = snprintf(text, 64, "%" PRId64, conform_extend_integer(dtype, bits));
	snprintf(text + at, 64 - (size_t)at, " (0x%0*" PRIx64 ")", 2 * (int)width, bits);
}

static bool is_same_element(const struct conform_data *d, uint64_t i)
{
	size_t width = tess_width(d->c.dtype);

	if (!memcmp(d->dst + i * width, d->expected + i * width, width))
		return true;
	return tess_kind_reduces(d->c.kind) && tess_dtype_is_float(d->c.dtype) &&
	       isnan(load_real(d->c.dtype, d->dst, i)) &&
	       isnan(load_real(d->c.dtype, d->expected, i));
}

static bool is_still_unset(const struct conform_data *d, uint64_t i)
{
	size_t width = tess_width(d->c.dtype);

	for (size_t k = 0; k < width; k++)
		if ((unsigned char)d->dst[i * width + k] != unset)
			return false;
	return true;
}

static const char *get_rule(const struct conform_case *c)
{
	if (c->in_place)
		return "in place (src == dst) each block is at its own position in the one "
		       "buffer, and is read before it is overwritten";
	if (c->kind == TESS_SEND)
		return "a message arrives bit by bit as it was sent, and messages from one rank "
		       "in the order of its sends";
	if (!tess_kind_reduces(c->kind))
		return "block r is the run that belongs to rank r, and moves bit by bit as it is";
	if (c->special)
		return "a NaN gives NaN, infinities and subnormals count as they are";
	if (tess_width(c->dtype) == 2)
		return "16-bit floats are reduced in f32 and rounded once, in the end";
	if (!tess_dtype_is_float(c->dtype))
		return "integers are reduced in their own type, modulo 2^n";
	return "floats are reduced in their own type: here every order gives the same bits";
}

static tess_status check_elements(const struct conform_data *d)
{
	uint64_t n = d->dst_bytes / tess_width(d->c.dtype), wrong = 0, first = 0;
	char got[64], want[64];

	if (!memcmp(d->dst, d->expected, d->dst_bytes))
		return TESS_OK;
	for (uint64_t i = 0; i < n; i++) {
		if (is_same_element(d, i))
			continue;
		if (!wrong++)
			first = i;
	}
	if (!wrong)
		return TESS_OK;
	format_element(d->c.dtype, d->dst, first, got);
	format_element(d->c.dtype, d->expected, first, want);
	return tess_fail(TESS_EBUG,
	                 "dst[%" PRIu64 "] is %s%s, expected %s; %" PRIu64 " of %" PRIu64
	                 " elements are wrong. "
	                 "The rule: %s",
	                 first, got, is_still_unset(d, first) ? ", which was not written" : "",
	                 want, wrong, n, get_rule(&d->c));
}

static tess_status check_guards(const char *name, const char *at, uint64_t bytes)
{
	int off = find_overrun(at, bytes);

	if (!off)
		return TESS_OK;
	return tess_fail(TESS_EBUG,
	                 "%d byte%s %s the %" PRIu64
	                 " bytes of %s %s written. The rule: nothing outside the "
	                 "blocks is touched",
	                 off < 0 ? -off : off, off * off == 1 ? "" : "s",
	                 off < 0 ? "before" : "past", bytes, name, off * off == 1 ? "was" : "were");
}

tess_status conform_data_check(const struct conform_data *d)
{
	tess_status st = d->memory ? fetch_from_device(d) : TESS_OK;

	if (!st && (d->ncolls || d->c.kind != TESS_SEND))
		st = check_elements(d);
	if (!st)
		st = check_guards("dst", d->dst, d->dst_bytes);
	if (!st)
		st = check_guards("src", d->src, d->src_bytes);
	if (st || d->src == d->dst || !memcmp(d->src, d->copy, d->src_bytes))
		return st;
	for (uint64_t i = 0; !st; i++)
		if (d->src[i] != d->copy[i])
			st = tess_fail(TESS_EBUG,
			               "src was changed at byte %" PRIu64
			               ". The rule: src is read only unless it is "
			               "dst",
			               i);
	return st;
}

#include "nn/generate/kv_cache.h"

#include "core/base/status.h"
#include "nn/program/agree.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 64, SLAB_SHARE = 16 };

struct page {
	struct slab *slab;
	struct page *next; /* the next free page of its class */
	int64_t address;
};

struct slab {
	struct slab *next;
	int32_t page_class; /* its index */
	int64_t npages, nused;
	void *memory;
	struct page page[];
};

struct page_class {
	int64_t window;
	uint64_t bytes, max_bytes; /* size of a page on this rank; maximum of all ranks */
	int64_t npages, nfree;
	struct page *free;
};

struct cache_slot {
	bool open;
	int64_t length;
	int64_t step; /* the last step that marked it */
};

struct tess_kv_cache {
	struct tess_kv_parts parts;
	struct page_class *page_class;
	struct slab *slabs;
	struct cache_slot *slot;
	uint64_t limit; /* the minimum of all ranks */
	uint64_t charged; /* max_bytes of all pages */
	int64_t nslots, nblocks; /* sizes of the tables */
	int64_t *table; /* [class][slot][block]: addresses, as the device gets them */
	struct page **page; /* indexed like pages */
	int64_t dirty_lo, dirty_hi; /* range of entries that are not yet on the device */
	int64_t *device_table;
	int64_t *sent[2]; /* sources of the last two copies to device_table */
	int64_t device_entries; /* capacity of each of these three */
};

/* Agrees on the status of an allocation. */
static tess_status agree_on_memory(const struct tess_kv_cache *c, tess_status st)
{
	return tess_group_agree_unless_apart(c->parts.group, c->parts.apart, st, "KV cache");
}

/* ---- slabs ----------------------------------------------------------------------------------- */

static void free_slab(struct tess_kv_cache *c, struct slab *s)
{
	tess_device_free(&c->parts.device, s->memory);
	free(s);
}

/* Frees slabs without used pages; returns the number of their pages. */
static int64_t release_free_slabs(struct tess_kv_cache *c)
{
	struct slab **at = &c->slabs, *s;
	int64_t n = 0;

	while ((s = *at)) {
		struct page_class *pages = &c->page_class[s->page_class];
		struct page **p = &pages->free;

		if (s->nused) {
			at = &s->next;
			continue;
		}
		while (*p)
			if ((*p)->slab == s)
				*p = (*p)->next;
			else
				p = &(*p)->next;
		pages->npages -= s->npages;
		pages->nfree -= s->npages;
		c->charged -= (uint64_t)s->npages * pages->max_bytes;
		*at = s->next;
		free_slab(c, s);
		n++;
	}
	return n;
}

/* Allocates a slab on every rank, or on none. */
static tess_status allocate_slab(struct tess_kv_cache *c, int32_t index, int64_t npages)
{
	struct page_class *pages = &c->page_class[index];
	struct slab *s = calloc(1, sizeof *s + (size_t)npages * sizeof *s->page);
	tess_status st = s ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = tess_device_alloc(&c->parts.device, "KV cache",
		                       (uint64_t)npages * pages->bytes, &s->memory);
	st = agree_on_memory(c, st);
	if (st) {
		if (s)
			free_slab(c, s);
		return st;
	}
	s->page_class = index;
	s->npages = npages;
	s->next = c->slabs;
	c->slabs = s;
	for (int64_t i = npages - 1; i >= 0; i--) {
		s->page[i] =
			(struct page){ s, pages->free,
			               (int64_t)(uintptr_t)s->memory + i * (int64_t)pages->bytes };
		pages->free = &s->page[i];
	}
	pages->npages += npages;
	pages->nfree += npages;
	c->charged += (uint64_t)npages * pages->max_bytes;
	return TESS_OK;
}

static int64_t count_used_pages(const struct tess_kv_cache *c)
{
	int64_t n = 0;

	for (int32_t i = 0; i < c->parts.nclasses; i++)
		n += c->page_class[i].npages - c->page_class[i].nfree;
	return n;
}

/*
 * Adds a slab: of the usual size, else of one page, else after unused slabs have been released.
 * With several classes a slab is one page. The free pages of a partly used slab would be lost to
 * the other classes, while the limit is promised to sequences in pages.
 */
static tess_status add_free_pages(struct tess_kv_cache *c, int32_t index)
{
	struct page_class *pages = &c->page_class[index];
	int64_t n = c->parts.nclasses > 1 ? 1 : pages->npages / SLAB_SHARE;
	tess_status st;

	do {
		uint64_t fit = (c->limit - c->charged) / pages->max_bytes;

		n = n < 1 ? 1 : n;
		if ((uint64_t)n > fit)
			n = (int64_t)fit;
		st = n ? allocate_slab(c, index, n)
		       : tess_fail(TESS_ENOMEM,
		                   "the KV cache is full: %lld pages of 64 positions are used, of "
		                   "%llu bytes; wait for a sequence to end, use shorter ones, or "
		                   "allow more (--kv-memory)",
		                   (long long)count_used_pages(c), (unsigned long long)c->limit);
		if (n && c->parts.apart) /* other ranks have the slab */
			break;
		if (st == TESS_ENOMEM && n > 1)
			n = 1;
		else if (st != TESS_ENOMEM || !release_free_slabs(c))
			break;
	} while (st);
	return st;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int64_t get_table_entry(const struct tess_kv_cache *c, int32_t index, int64_t slot,
                               int64_t block)
{
	return (index * c->nslots + slot) * c->nblocks + block;
}

static void set_page(struct tess_kv_cache *c, int64_t entry, struct page *p)
{
	struct page *old = c->page[entry];
	struct page_class *pages = old ? &c->page_class[old->slab->page_class] : NULL;

	if (old) {
		old->next = pages->free;
		pages->free = old;
		pages->nfree++;
		old->slab->nused--;
	}
	c->page[entry] = p;
	c->table[entry] = p ? p->address : 0;
	if (entry < c->dirty_lo)
		c->dirty_lo = entry;
	if (entry >= c->dirty_hi)
		c->dirty_hi = entry + 1;
}

/* Doubles the number of slots or of blocks until both suffice. */
static tess_status resize_tables(struct tess_kv_cache *c, int64_t slots, int64_t blocks)
{
	struct tess_kv_cache was = *c;
	tess_status st = TESS_OK;
	size_t n;

	if (slots <= c->nslots && blocks <= c->nblocks)
		return TESS_OK;
	while (c->nslots < slots)
		c->nslots = c->nslots ? 2 * c->nslots : 1;
	while (c->nblocks < blocks)
		c->nblocks = c->nblocks ? 2 * c->nblocks : 8;
	n = (size_t)(c->parts.nclasses * c->nslots * c->nblocks) + 1;
	c->table = calloc(n, sizeof *c->table);
	c->page = calloc(n, sizeof *c->page);
	c->slot = calloc((size_t)c->nslots + 1, sizeof *c->slot);
	if (!c->table || !c->page || !c->slot)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	st = agree_on_memory(c, st);
	if (st) {
		free(c->table);
		free(c->page);
		free(c->slot);
		*c = was;
		return st;
	}
	for (int32_t i = 0; i < c->parts.nclasses; i++)
		for (int64_t s = 0; s < was.nslots; s++)
			for (int64_t b = 0; b < was.nblocks; b++)
				set_page(c, get_table_entry(c, i, s, b),
				         was.page[get_table_entry(&was, i, s, b)]);
	if (was.nslots)
		memcpy(c->slot, was.slot, (size_t)was.nslots * sizeof *c->slot);
	free(was.table);
	free(was.page);
	free(was.slot);
	c->dirty_lo = 0;
	c->dirty_hi = (int64_t)n - 1;
	return TESS_OK;
}

/* Resizes the device's table after steps that read the old one. */
static tess_status resize_device_table(struct tess_kv_cache *c, int64_t n)
{
	int64_t *sent = calloc((size_t)(2 * n), sizeof *sent);
	void *more = NULL;
	tess_status st = sent ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	if (!st)
		st = tess_device_alloc(&c->parts.device, "KV cache", (uint64_t)n * sizeof *sent,
		                       &more);
	st = agree_on_memory(c, st);
	if (st) {
		tess_device_free(&c->parts.device, more);
		free(sent);
		return st;
	}
	tess_device_drain(&c->parts.device);
	tess_device_free(&c->parts.device, c->device_table);
	free(c->sent[0]);
	c->device_table = more;
	c->sent[0] = sent;
	c->sent[1] = sent + n;
	c->device_entries = n;
	return TESS_OK;
}

tess_status tess_kv_cache_write_tables(struct tess_kv_cache *c, int32_t turn,
                                       struct tess_kv_tables *out)
{
	int64_t n = c->parts.nclasses * c->nslots * c->nblocks, lo = c->dirty_lo;
	tess_status st = n > c->device_entries ? resize_device_table(c, n) : TESS_OK;

	if (!st && lo < c->dirty_hi) {
		size_t bytes = (size_t)(c->dirty_hi - lo) * sizeof *c->table;

		memcpy(c->sent[turn] + lo, c->table + lo, bytes);
		st = tess_device_copy(&c->parts.device, "KV cache", c->device_table + lo,
		                      c->sent[turn] + lo, bytes);
	}
	if (st)
		return st;
	c->dirty_lo = INT64_MAX;
	c->dirty_hi = 0;
	*out = (struct tess_kv_tables){ c->device_table, c->nslots, c->nblocks };
	return TESS_OK;
}

/* ---- slots ----------------------------------------------------------------------------------- */

tess_status tess_kv_cache_open_slot(struct tess_kv_cache *c, int32_t *slot)
{
	int32_t i = 0;
	tess_status st = TESS_OK;

	while (i < c->nslots && c->slot[i].open)
		i++;
	st = resize_tables(c, i + 1, 0);
	if (st)
		return st;
	c->slot[i] = (struct cache_slot){ .open = true };
	*slot = i;
	return TESS_OK;
}

static void drop_pages(struct tess_kv_cache *c, int32_t index, int32_t slot, int64_t lo, int64_t hi)
{
	for (int64_t b = lo; b < hi; b++)
		if (c->page[get_table_entry(c, index, slot, b)])
			set_page(c, get_table_entry(c, index, slot, b), NULL);
}

void tess_kv_cache_close_slot(struct tess_kv_cache *c, int32_t slot)
{
	for (int32_t i = 0; i < c->parts.nclasses; i++)
		drop_pages(c, i, slot, 0, c->nblocks);
	c->slot[slot].open = false;
}

bool tess_kv_cache_is_open(const struct tess_kv_cache *c, int32_t slot)
{
	return slot >= 0 && slot < c->nslots && c->slot[slot].open;
}

bool tess_kv_cache_mark_slot(struct tess_kv_cache *c, int32_t slot, int64_t step)
{
	bool fresh = c->slot[slot].step != step;

	c->slot[slot].step = step;
	return fresh;
}

int64_t tess_kv_cache_get_length(const struct tess_kv_cache *c, int32_t slot)
{
	return c->slot[slot].length;
}

tess_status tess_kv_cache_grow(struct tess_kv_cache *c, int32_t slot, int64_t n)
{
	int64_t lo = c->slot[slot].length / PAGE, hi = tess_up(c->slot[slot].length + n, PAGE);
	tess_status st = resize_tables(c, 0, hi);

	for (int32_t i = 0; i < c->parts.nclasses; i++) {
		struct page_class *pages = &c->page_class[i];

		for (int64_t b = lo; b < hi && !st; b++) {
			int64_t entry = get_table_entry(c, i, slot, b);
			struct page *p;

			if (c->page[entry])
				continue;
			if (!pages->free)
				st = add_free_pages(c, i);
			if (st)
				return st;
			p = pages->free;
			pages->free = p->next;
			pages->nfree--;
			p->slab->nused++;
			set_page(c, entry, p);
		}
	}
	return st;
}

/* Returns the first block that a position attends to. */
static int64_t find_first_block(const struct page_class *pages, int64_t position)
{
	return pages->window && position >= pages->window ? (position - pages->window + 1) / PAGE
	                                                  : 0;
}

void tess_kv_cache_advance(struct tess_kv_cache *c, int32_t slot, int64_t n)
{
	int64_t was = c->slot[slot].length;

	for (int32_t i = 0; i < c->parts.nclasses; i++)
		drop_pages(c, i, slot, find_first_block(&c->page_class[i], was),
		           find_first_block(&c->page_class[i], was + n));
	c->slot[slot].length += n;
}

bool tess_kv_cache_rewind(struct tess_kv_cache *c, int32_t slot, int64_t length)
{
	int64_t was = c->slot[slot].length;

	for (int32_t i = 0; i < c->parts.nclasses; i++)
		if (find_first_block(&c->page_class[i], length) <
		    find_first_block(&c->page_class[i], was))
			return false;
	c->slot[slot].length = length;
	return true;
}

/* ---- the cache ------------------------------------------------------------------------------- */

struct tess_kv_usage tess_kv_cache_get_usage(const struct tess_kv_cache *c)
{
	struct tess_kv_usage u = { .limit = c->limit };

	for (int32_t i = 0; i < c->parts.nclasses; i++) {
		const struct page_class *pages = &c->page_class[i];

		u.used_pages += pages->npages - pages->nfree;
		u.free_pages += pages->nfree;
		u.bytes += (uint64_t)pages->npages * pages->bytes;
		u.used += (uint64_t)(pages->npages - pages->nfree) * pages->max_bytes;
	}
	return u;
}

int64_t tess_kv_count_pages(int64_t window, int64_t positions, int64_t chunk)
{
	int64_t pages = tess_up(positions, PAGE);

	if (window && (window + chunk - 2) / PAGE + 2 < pages)
		pages = (window + chunk - 2) / PAGE + 2;
	return pages;
}

uint64_t tess_kv_cache_count_bytes(const struct tess_kv_cache *c, int64_t positions, int64_t chunk)
{
	uint64_t bytes = 0;

	for (int32_t i = 0; i < c->parts.nclasses; i++) {
		const struct page_class *class = &c->page_class[i];

		bytes += class->max_bytes *
		         (uint64_t)tess_kv_count_pages(class->window, positions, chunk);
	}
	return bytes;
}

/* Agrees on the page size of the largest rank, and the smallest limit. */
static tess_status agree_on_sizes(struct tess_kv_cache *c)
{
	int32_t n = c->parts.nclasses;
	int64_t *max = calloc((size_t)n + 1, sizeof *max);
	tess_status st = max ? TESS_OK : tess_fail(TESS_ENOMEM, "out of memory");

	c->page_class = calloc((size_t)n + 1, sizeof *c->page_class);
	if (!c->page_class)
		st = tess_fail(TESS_ENOMEM, "out of memory");
	st = tess_group_agree_status(c->parts.group, st, "KV cache");
	for (int32_t i = 0; i < n && !st; i++)
		max[i] = (int64_t)c->parts.page_class[i].bytes;
	if (!st) { /* the maximum of negated limits is the negated minimum */
		max[n] = c->parts.limit && c->parts.limit < INT64_MAX ? -(int64_t)c->parts.limit
		                                                      : -INT64_MAX;
		st = tess_all_reduce(c->parts.group, max, max, (uint64_t)n + 1, TESS_I64, TESS_MAX,
		                     "KV cache");
	}
	for (int32_t i = 0; i < n && !st; i++)
		c->page_class[i] = (struct page_class){ .window = c->parts.page_class[i].window,
			                                .bytes = c->parts.page_class[i].bytes,
			                                .max_bytes = (uint64_t)max[i] };
	if (!st)
		c->limit = (uint64_t)-max[n];
	free(max);
	return st;
}

tess_status tess_kv_cache_new(const struct tess_kv_parts *parts, struct tess_kv_cache **out)
{
	struct tess_kv_cache *c = calloc(1, sizeof *c);
	tess_status st;

	if (!c)
		return tess_fail(TESS_ENOMEM, "out of memory");
	c->parts = *parts;
	c->dirty_lo = INT64_MAX;
	st = agree_on_sizes(c);
	if (st)
		tess_kv_cache_free(c);
	else
		*out = c;
	return st;
}

void tess_kv_cache_free(struct tess_kv_cache *c)
{
	if (!c)
		return;
	while (c->slabs) {
		struct slab *s = c->slabs;

		c->slabs = s->next;
		free_slab(c, s);
	}
	tess_device_free(&c->parts.device, c->device_table);
	free(c->sent[0]);
	free(c->table);
	free(c->page);
	free(c->slot);
	free(c->page_class);
	free(c);
}

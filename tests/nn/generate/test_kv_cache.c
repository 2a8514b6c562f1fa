/*
 * test_kv_cache.c - the KV cache on a device that only allocates: the blocks of a table with pages,
 * single users of pages, the amount of memory, and failures without memory.
 */
#include "nn/generate/kv_cache.h"
#include "tests/support/draw.h"
#include "tests/support/spawn.h"
#include "tests/support/suite.h"

enum { SLOTS = 6, PAGE = 64, CLASSES = 2 };

static const struct tess_page_class classes[CLASSES] = { { 0, 4096 }, { 100, 1024 } };

/* ---- a device -------------------------------------------------------------------------------- */

struct heap { /* the memory of one rank */
	int64_t nallocs, refused; /* refused: the allocation that fails, from 1; 0: none */
	bool late; /* copies are kept until run_late_copies */
	struct {
		void *dst;
		const void *src;
		uint64_t bytes;
	} copy[4];
	int ncopies;
};

static tess_status heap_alloc(void *self, uint64_t bytes, void **out)
{
	struct heap *h = self;

	if (++h->nallocs == h->refused)
		return tess_fail(TESS_ENOMEM, "the heap is full");
	*out = malloc(bytes);
	return *out ? TESS_OK : TESS_ENOMEM;
}

static void heap_free(void *self, void *p)
{
	(void)self;
	free(p);
}

static tess_status heap_copy(void *self, void *dst, const void *src, uint64_t bytes, void *stream)
{
	struct heap *h = self;

	(void)stream;
	if (h->late) {
		h->copy[h->ncopies].dst = dst;
		h->copy[h->ncopies].src = src;
		h->copy[h->ncopies++].bytes = bytes;
	} else {
		memcpy(dst, src, bytes);
	}
	return TESS_OK;
}

/* Runs the first `n` late copies. */
static void run_late_copies(struct heap *h, int n)
{
	for (int i = 0; i < n; i++)
		memcpy(h->copy[i].dst, h->copy[i].src, h->copy[i].bytes);
}

static tess_status heap_sync(void *self, void *stream)
{
	struct heap *h = self;

	(void)stream;
	run_late_copies(h, h->ncopies);
	h->ncopies = 0;
	return TESS_OK;
}

static const struct tess_device heap_device = { .size = sizeof heap_device,
	                                        .mem = TESS_HOST,
	                                        .name = "heap",
	                                        .alloc = heap_alloc,
	                                        .free = heap_free,
	                                        .copy = heap_copy,
	                                        .sync = heap_sync };

static tess_status open_cache(struct tess_world *w, struct heap *h, uint64_t limit,
                              struct tess_kv_cache **out)
{
	struct tess_kv_parts parts = { .device = { .table = &heap_device, .self = h, .stream = h },
		                       .group = tess_world_group(w),
		                       .page_class = classes,
		                       .nclasses = CLASSES,
		                       .limit = limit };

	return tess_kv_cache_new(&parts, out);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int64_t get_first_block(int32_t class, int64_t length)
{
	int64_t window = classes[class].window;

	return window && length >= window ? (length - window + 1) / PAGE : 0;
}

static int compare_addresses(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/*
 * Checks that the pages of a class in the device's table belong to the sequences and never overlap.
 */
static tess_status check_table(struct tess_kv_cache *c, int32_t class, int64_t *pages)
{
	struct tess_kv_tables t;
	int64_t list[SLOTS * 64], n = 0;

	HOLDS(!tess_kv_cache_write_tables(c, 0, &t) && t.blocks <= 64);
	for (int32_t s = 0; s < t.slots; s++) {
		bool open = tess_kv_cache_is_open(c, s);
		int64_t length = open ? tess_kv_cache_get_length(c, s) : 0;

		for (int64_t b = 0; b < t.blocks; b++) {
			int64_t address = t.page[(class * t.slots + s) * t.blocks + b];
			bool held = open && b >= get_first_block(class, length) &&
			            b < tess_up(length, PAGE);

			HOLDS(!address == !held);
			if (address)
				list[n++] = address;
		}
	}
	qsort(list, (size_t)n, sizeof *list, compare_addresses);
	for (int64_t i = 1; i < n; i++)
		HOLDS(list[i] - list[i - 1] >= (int64_t)classes[class].bytes);
	*pages += n;
	return TESS_OK;
}

static tess_status check_tables(struct tess_kv_cache *c)
{
	struct tess_kv_usage u = tess_kv_cache_get_usage(c);
	int64_t pages = 0;

	for (int32_t i = 0; i < CLASSES; i++)
		if (check_table(c, i, &pages))
			return TESS_EBUG;
	HOLDS(pages == u.used_pages);
	return TESS_OK;
}

static tess_status change_texts_at_random(struct tess_world *w, void *arg)
{
	struct heap h = { 0 };
	struct tess_kv_cache *c;
	uint64_t seed = 5, max_used = 0;

	(void)arg;
	HOLDS(!open_cache(w, &h, 0, &c));
	for (int i = 0; i < 2000; i++) {
		int32_t slot = (int32_t)draw_below(&seed, SLOTS), opened;
		int64_t n = 1 + (int64_t)draw_below(&seed, draw_below(&seed, 2) ? 3 : 300);
		struct tess_kv_usage u;

		if (!tess_kv_cache_is_open(c, slot)) {
			HOLDS(!tess_kv_cache_open_slot(c, &opened) && opened <= slot);
			slot = opened;
			HOLDS(tess_kv_cache_get_length(c, slot) == 0);
		}
		if (tess_kv_cache_get_length(c, slot) + n > 1500 || !draw_below(&seed, 30)) {
			tess_kv_cache_close_slot(c, slot);
			HOLDS(!tess_kv_cache_is_open(c, slot));
		} else {
			HOLDS(!tess_kv_cache_grow(c, slot, n));
			u = tess_kv_cache_get_usage(c);
			max_used = u.used > max_used ? u.used : max_used;
			tess_kv_cache_advance(c, slot, n);
		}
		if (check_tables(c))
			return TESS_EBUG;
	}
	HOLDS(tess_kv_cache_get_usage(c).bytes < max_used + max_used / 8 + 16 * 1024);
	for (int32_t s = 0; s < SLOTS; s++)
		if (tess_kv_cache_is_open(c, s))
			tess_kv_cache_close_slot(c, s);
	HOLDS(!tess_kv_cache_get_usage(c).used_pages && !tess_kv_cache_get_usage(c).used);
	tess_kv_cache_free(c);
	return TESS_OK;
}

START_TEST(each_text_has_the_pages_that_it_sees)
{
	spawn_ranks(1, change_texts_at_random, NULL);
}
END_TEST

/* Rewinds a sequence; with a window of 100, position 163 is the first that does not see block 0. */
static tess_status rewind_text(struct tess_world *w, void *arg)
{
	struct heap h = { 0 };
	struct tess_kv_cache *c;
	struct tess_kv_usage u;
	int32_t slot;

	(void)arg;
	HOLDS(!open_cache(w, &h, 0, &c) && !tess_kv_cache_open_slot(c, &slot));
	HOLDS(!tess_kv_cache_grow(c, slot, 220));
	tess_kv_cache_advance(c, slot, 162);
	HOLDS(tess_kv_cache_get_usage(c).used_pages == CLASSES * 4);
	tess_kv_cache_advance(c, slot, 58);
	u = tess_kv_cache_get_usage(c);
	HOLDS(tess_kv_cache_rewind(c, slot, 163) && tess_kv_cache_get_length(c, slot) == 163);
	HOLDS(!tess_kv_cache_rewind(c, slot, 162) && tess_kv_cache_get_length(c, slot) == 163);
	HOLDS(!tess_kv_cache_grow(c, slot, 57)); /* its pages are still allocated */
	HOLDS(tess_kv_cache_get_usage(c).used_pages == u.used_pages);
	tess_kv_cache_advance(c, slot, 57);
	if (check_tables(c))
		return TESS_EBUG;
	tess_kv_cache_free(c);
	return TESS_OK;
}

START_TEST(a_text_is_rewound_as_far_as_it_sees)
{
	spawn_ranks(1, rewind_text, NULL);
}
END_TEST

/* Checks that a queued step reads the table of its time, whatever happens to the sequences. */
static tess_status change_tables_of_a_step(struct tess_world *w, void *arg)
{
	struct heap h = { 0 };
	struct tess_kv_cache *c;
	struct tess_kv_tables t;
	int64_t before[CLASSES * 2 * 8], after[CLASSES * 2 * 8];
	int32_t slot[2];

	(void)arg;
	HOLDS(!open_cache(w, &h, 0, &c));
	for (int i = 0; i < 2; i++)
		HOLDS(!tess_kv_cache_open_slot(c, &slot[i]) &&
		      !tess_kv_cache_grow(c, slot[i], PAGE));
	HOLDS(!tess_kv_cache_write_tables(c, 0, &t) && t.slots * t.blocks == 2 * 8);
	h.late = true;
	for (int i = 0; i < 2; i++)
		HOLDS(!tess_kv_cache_grow(c, slot[i], 2 * PAGE));
	HOLDS(!tess_kv_cache_write_tables(c, 1, &t));
	run_late_copies(&h, 1);
	memcpy(before, t.page, sizeof before);
	HOLDS(before[1] && before[t.blocks + 1]);
	tess_kv_cache_close_slot(c, slot[0]);
	HOLDS(!tess_kv_cache_grow(c, slot[1], 3 * PAGE));
	HOLDS(!tess_kv_cache_write_tables(c, 0, &t));
	run_late_copies(&h, 1);
	HOLDS(!memcmp(before, t.page, sizeof before));
	run_late_copies(&h, 2);
	memcpy(after, t.page, sizeof after);
	HOLDS(!after[0] && !after[1] && after[t.blocks + 1] == before[t.blocks + 1]);
	HOLDS(after[t.blocks + 2]);
	/* a larger table is at another place: the old one is freed after it was read */
	HOLDS(!tess_kv_cache_grow(c, slot[1], 9 * PAGE));
	HOLDS(!tess_kv_cache_write_tables(c, 1, &t) && t.blocks == 16 && h.ncopies == 1);
	tess_kv_cache_free(c);
	return TESS_OK;
}

START_TEST(a_step_reads_the_tables_that_it_was_queued_with)
{
	spawn_ranks(1, change_tables_of_a_step, NULL);
}
END_TEST

/* ---- too little memory ----------------------------------------------------------------------- */

/* Moves memory from the class with a window to the other one, and back. */
static tess_status move_memory_between_classes(struct tess_world *w, void *arg)
{
	struct heap h = { 0 };
	struct tess_kv_cache *c;
	struct tess_kv_usage u;
	int32_t slot;

	(void)arg;
	HOLDS(!open_cache(w, &h, 10 * (4096 + 1024), &c) && !tess_kv_cache_open_slot(c, &slot));
	HOLDS(!tess_kv_cache_grow(c, slot, 10 * PAGE)); /* all of the memory */
	HOLDS(tess_kv_cache_grow(c, slot, 10 * PAGE + 1) == TESS_ENOMEM);
	tess_kv_cache_advance(c, slot, 10 * PAGE); /* frees 8 pages of the window */
	HOLDS(!tess_kv_cache_grow(c, slot, PAGE));
	u = tess_kv_cache_get_usage(c);
	HOLDS(u.bytes <= u.limit && u.limit == 10 * (4096 + 1024));
	tess_kv_cache_close_slot(c, slot);
	HOLDS(!tess_kv_cache_open_slot(c, &slot) && !tess_kv_cache_grow(c, slot, 10 * PAGE));
	tess_kv_cache_free(c);
	return TESS_OK;
}

START_TEST(classes_share_a_limit)
{
	spawn_ranks(1, move_memory_between_classes, NULL);
}
END_TEST

/* Uses pages up to a limit: free ones of one class do not count against the other. */
static tess_status use_all_that_is_allowed(struct tess_world *w, void *arg)
{
	struct heap h = { 0 };
	struct tess_kv_cache *c;
	uint64_t seed = 3, limit = 60 * (4096 + 1024);
	int nfull = 0;

	(void)arg;
	HOLDS(!open_cache(w, &h, limit, &c));
	for (int i = 0; i < 3000; i++) {
		int32_t slot = (int32_t)draw_below(&seed, SLOTS);
		int64_t n = 1 + (int64_t)draw_below(&seed, 300), length, blocks;

		if (!tess_kv_cache_is_open(c, slot))
			HOLDS(!tess_kv_cache_open_slot(c, &slot));
		length = tess_kv_cache_get_length(c, slot);
		blocks = tess_up(length + n, PAGE) - tess_up(length, PAGE);
		if (tess_kv_cache_get_usage(c).used + (uint64_t)blocks * (4096 + 1024) > limit) {
			nfull++;
			tess_kv_cache_close_slot(c, slot);
			continue;
		}
		HOLDS(!tess_kv_cache_grow(c, slot, n));
		HOLDS(tess_kv_cache_get_usage(c).bytes <= limit);
		tess_kv_cache_advance(c, slot, n);
	}
	HOLDS(nfull > 100);
	tess_kv_cache_free(c);
	return TESS_OK;
}

START_TEST(a_limit_bounds_pages_that_are_used)
{
	spawn_ranks(1, use_all_that_is_allowed, NULL);
}
END_TEST

/* Refuses memory on rank 1 once: no rank gets a page, and then all do. */
static tess_status refuse_memory_on_one_rank(struct tess_world *w, void *arg)
{
	struct heap h = { .refused = tess_world_rank(w) == 1 ? *(int64_t *)arg : 0 };
	struct tess_kv_cache *c;
	int32_t slot;
	int64_t failed = 0, pages = 0;

	HOLDS(!open_cache(w, &h, tess_world_rank(w) ? 1 << 30 : 1 << 20, &c));
	HOLDS(tess_kv_cache_get_usage(c).limit == 1 << 20);
	HOLDS(!tess_kv_cache_open_slot(c, &slot));
	for (int i = 0; i < 100; i++) {
		struct tess_kv_tables t;
		tess_status st = tess_kv_cache_grow(c, slot, PAGE / 2);

		if (!st)
			st = tess_kv_cache_write_tables(c, 0, &t);
		HOLDS(!st || (st == TESS_ENOMEM && strstr(tess_error(), "rank 1: the heap")));
		failed += st != TESS_OK;
		if (!st)
			tess_kv_cache_advance(c, slot, PAGE / 2);
	}
	pages = tess_kv_cache_get_usage(c).used_pages;
	HOLDS(!tess_broadcast(tess_world_group(w), &pages, 1, TESS_I64, 0, "pages"));
	HOLDS(pages == tess_kv_cache_get_usage(c).used_pages);
	HOLDS(failed <= 1 && tess_kv_cache_get_length(c, slot) == (100 - failed) * PAGE / 2);
	tess_kv_cache_free(c);
	return TESS_OK;
}

START_TEST(one_rank_without_memory_stops_all)
{
	for (int64_t refused = 1; refused < 40; refused++)
		spawn_ranks(3, refuse_memory_on_one_rank, &refused);
}
END_TEST

SUITE_MAIN("kv_cache", each_text_has_the_pages_that_it_sees, a_text_is_rewound_as_far_as_it_sees,
           a_step_reads_the_tables_that_it_was_queued_with, classes_share_a_limit,
           a_limit_bounds_pages_that_are_used, one_rank_without_memory_stops_all)

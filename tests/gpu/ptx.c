#include "ptx.h"
#include "traffic.h"

#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 4096, PAGES = 1 << 18, GRANULE = 2, WARP = 32, COUNTS = 4096 };
enum { OF_WARP = 1 << 16, OF_BLOCK = 1 << 17 };
static const uint32_t of_grid = UINT32_MAX;
static uint32_t scope; /* scope of the access: its launch or, in shared memory, its cluster */
static bool in_shared; /* the access is one to shared memory */

enum access { PLAIN, RELAXED, ATOMIC, COPY /* pending */, COPIED /* by copies only */ };

struct mark { /* the last access */
	uint32_t scope, block; /* of_grid: several blocks */
	uint32_t thread; /* OF_WARP + n: several threads of that warp; OF_BLOCK: several warps */
	uint32_t bars, warp_bars, cluster_bars;
	enum access access;
	uint64_t blocks; /* of_grid: bit n % 64 for block n */
};

struct marks { /* marks of GRANULE bytes of memory */
	struct mark write, read;
};

static struct page {
	uintptr_t number; /* 0: none */
	struct marks *marks;
} pages[PAGES];

/* ---- where an access is ---------------------------------------------------------------------- */

_Noreturn static void refuse_access(const struct ptx_thread *t, const char *p, const char *what)
{
	fprintf(stderr, "ptx: %s: block %u,%u,%u, thread %u %s: %p (%s)\n", t->kernel, blockIdx.x,
	        blockIdx.y, blockIdx.z, threadIdx.x, what, (const void *)p,
	        in_shared ? "shared" : "global");
	abort();
}

char *ptx_shared(uint64_t at)
{
	return (char *)emulated_shared + (int32_t)at;
}

uint32_t ptx_map_peer(uint32_t at, uint32_t rank)
{
	return at + (rank - emulator_get_rank()) * EMULATED_SHARED_MAX;
}

/* Checks an address. Returns false for host memory, where words are only set. */
static bool check_address(const struct ptx_thread *t, const char *p, unsigned bytes,
                          enum access access)
{
	const char *shared = (const char *)emulated_cluster;
	enum emulated_memory where;

	in_shared = p >= shared && p < shared + sizeof emulated_cluster;
	if ((uintptr_t)p % bytes != 0)
		refuse_access(t, p, "is misaligned");
	if (in_shared) {
		if (!emulator_find_peer((unsigned)((p - shared) / EMULATED_SHARED_MAX)))
			refuse_access(t, p, "is to a block that has ended");
		if ((p - shared) % EMULATED_SHARED_MAX + bytes > emulated_shared_bytes)
			refuse_access(t, p, "is beyond the shared memory of the block");
		scope = emulated_block;
		return true;
	}
	if (!t->waited && access != COPIED)
		refuse_access(t, p, "does not wait for the previous kernel");
	where = emulated_judge_memory(p, bytes);
	if (where == EMULATED_NO_MEMORY)
		refuse_access(t, p, "is beyond an allocation");
	scope = emulated_launch;
	return where == EMULATED_DEVICE;
}

static struct marks *find_marks(const char *p)
{
	static struct page *last;
	uintptr_t number = (uintptr_t)p / PAGE;
	size_t i = number * UINT64_C(0x9e3779b97f4a7c15) >> 46;

	if (!last || last->number != number) {
		while (pages[i].number && pages[i].number != number)
			i = (i + 1) % PAGES;
		if (!pages[i].number) {
			pages[i].number = number;
			pages[i].marks = calloc(PAGE / GRANULE, sizeof *pages[i].marks);
			if (!pages[i].marks)
				abort();
		}
		last = &pages[i];
	}
	return &last->marks[(uintptr_t)p % PAGE / GRANULE];
}

/* ---- accesses that race ---------------------------------------------------------------------- */

/* The calls of count_ended() in this launch; each after `bars` barriers of its block. */
static struct count {
	const char *word;
	uint32_t block, bars;
} counts[COUNTS];
static uint32_t ncounts, counted_launch;

static uint32_t get_block_number(void)
{
	return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

static uint64_t get_block_bit(uint32_t block)
{
	return UINT64_C(1) << block % 64;
}

/*
 * Returns whether the marking blocks synchronized and counted before this one, which has
 * synchronized since.
 */
static bool is_counted(const struct mark *m, const struct ptx_thread *t)
{
	const struct count *own = NULL;
	uint64_t counted = m->bars < t->bars ? get_block_bit(get_block_number()) : 0;

	if (scope != emulated_launch || counted_launch != emulated_launch)
		return false;
	for (uint32_t i = ncounts; i-- > 0;) {
		const struct count *c = &counts[i];

		if (!own && c->block == get_block_number() && c->bars < t->bars)
			own = c;
		else if (own && c->word == own->word && m->bars < c->bars) {
			if (c->block == m->block)
				return true;
			counted |= get_block_bit(c->block);
		}
	}
	return own && m->block == of_grid && !(m->blocks & ~counted);
}

static bool is_of_warp(const struct mark *m)
{
	return m->thread == (OF_WARP | threadIdx.x / WARP) ||
	       (m->thread < OF_WARP && m->thread / WARP == threadIdx.x / WARP);
}

/* Returns whether the marked access happens before the thread's next access. */
static bool is_ordered(const struct mark *m, const struct ptx_thread *t)
{
	if (m->scope != scope)
		return true;
	if (m->block != get_block_number())
		return in_shared ? m->cluster_bars < t->cluster_bars : is_counted(m, t);
	return m->thread == threadIdx.x || m->bars < t->bars ||
	       (is_of_warp(m) && m->warp_bars < t->warp_bars);
}

static void set_mark(struct mark *m, const struct ptx_thread *t, enum access access)
{
	*m = (struct mark){ scope,        get_block_number(),
		            threadIdx.x,  t->bars,
		            t->warp_bars, t->cluster_bars,
		            access,       get_block_bit(get_block_number()) };
}

static void add_reader(struct mark *m, const struct ptx_thread *t, enum access access)
{
	if (is_ordered(m, t)) {
		set_mark(m, t, access);
		return;
	}
	m->access = m->access == access ? access : PLAIN;
	if (m->block != get_block_number()) {
		m->block = of_grid;
		m->blocks |= get_block_bit(get_block_number());
		m->bars = t->bars > m->bars ? t->bars : m->bars;
		m->cluster_bars = t->cluster_bars;
	} else {
		m->thread = is_of_warp(m) ? OF_WARP | threadIdx.x / WARP : OF_BLOCK;
	}
}

static bool awaits_copy(const struct mark *m)
{
	return m->access == COPY && m->scope == scope;
}

static void read_checked(const struct ptx_thread *t, const char *p, unsigned bytes,
                         enum access access, const void *site)
{
	struct marks *m = find_marks(p);

	if (!check_address(t, p, bytes, access))
		return;
	if (traffic_counted)
		traffic_add(t->kernel, site, p, bytes);
	for (unsigned i = 0; i + GRANULE <= bytes; i += GRANULE, m++) {
		if (awaits_copy(&m->write))
			refuse_access(t, p + i, "reads what a copy has not written");
		if (access == COPIED && m->write.scope > emulated_settled)
			refuse_access(t, p + i, "reads early what a kernel has written");
		if (!is_ordered(&m->write, t) && !(access == RELAXED && m->write.access == RELAXED))
			refuse_access(t, p + i, "reads what another thread writes");
		add_reader(&m->read, t, access);
	}
}

void ptx_read(const struct ptx_thread *t, const char *p, unsigned bytes)
{
	read_checked(t, p, bytes, PLAIN, __builtin_return_address(0));
}

void ptx_read_copied(const struct ptx_thread *t, const char *p, unsigned bytes)
{
	read_checked(t, p, bytes, COPIED, __builtin_return_address(0));
}

void ptx_read_relaxed(const struct ptx_thread *t, const char *p, unsigned bytes)
{
	read_checked(t, p, bytes, RELAXED, __builtin_return_address(0));
}

static void write_memory(const struct ptx_thread *t, const char *p, unsigned bytes,
                         enum access access, const void *site)
{
	struct marks *m = find_marks(p);

	if (!check_address(t, p, bytes, access))
		return;
	if (traffic_counted)
		traffic_add(t->kernel, site, p, bytes);
	for (unsigned i = 0; i + GRANULE <= bytes; i += GRANULE, m++) {
		if (awaits_copy(&m->write))
			refuse_access(t, p + i, "writes what a copy has not written");
		if (!is_ordered(&m->write, t) && !(access == ATOMIC && m->write.access == ATOMIC))
			refuse_access(t, p + i, "writes what another thread writes");
		if (!is_ordered(&m->read, t) && !(access == RELAXED && m->read.access == RELAXED))
			refuse_access(t, p + i, "writes what another thread reads");
		set_mark(&m->write, t, access);
	}
}

void ptx_write(const struct ptx_thread *t, const char *p, unsigned bytes)
{
	write_memory(t, p, bytes, PLAIN, __builtin_return_address(0));
}

void ptx_write_relaxed(const struct ptx_thread *t, const char *p, unsigned bytes)
{
	write_memory(t, p, bytes, RELAXED, __builtin_return_address(0));
}

static uint32_t start_atomic(const struct ptx_thread *t, const char *p)
{
	uint32_t was;

	write_memory(t, p, sizeof was, ATOMIC, p);
	memcpy(&was, p, sizeof was);
	return was;
}

#define ATOMIC_OF(name, result) \
	uint32_t ptx_##name##_atomic(const struct ptx_thread *t, char *p, uint32_t v) \
	{ \
		uint32_t was = start_atomic(t, p), is = result; \
\
		memcpy(p, &is, sizeof is); \
		return was; \
	}
ATOMIC_OF(add, was + v)
ATOMIC_OF(min, v < was ? v : was)
ATOMIC_OF(max, v > was ? v : was)

uint32_t ptx_count_ended(const struct ptx_thread *t, char *p, uint32_t v)
{
	if (counted_launch != emulated_launch)
		ncounts = 0;
	counted_launch = emulated_launch;
	if (ncounts == COUNTS)
		abort();
	counts[ncounts++] = (struct count){ p, get_block_number(), t->bars };
	return ptx_add_atomic(t, p, v);
}

/* Checks that the line begins in an allocation, which may be written at the same time. */
void ptx_prefetch(const struct ptx_thread *t, const char *p)
{
	if (emulated_judge_memory(p, 1) != EMULATED_DEVICE)
		refuse_access(t, p, "prefetches beyond an allocation");
}

/* ---- exchanges between threads --------------------------------------------------------------- */

static uint32_t unpublished_block; /* where a thread passed a barrier with unpublished copies */

void ptx_sync_block(struct ptx_thread *t)
{
	if (t->unpublished)
		unpublished_block = emulated_block;
	emulator_sync_block();
	t->bars++;
}

void ptx_sync_cluster(struct ptx_thread *t)
{
	emulator_sync_cluster();
	t->bars++;
	t->cluster_bars++;
}

static void check_lanes(uint32_t lanes)
{
	if (lanes != UINT32_MAX)
		abort();
}

void ptx_sync_warp(struct ptx_thread *t, uint32_t lanes)
{
	check_lanes(lanes);
	emulator_sync_warp();
	t->warp_bars++;
}

uint32_t ptx_shuffle(uint32_t value, uint32_t mask, uint32_t clamp, uint32_t lanes)
{
	check_lanes(lanes);
	check_lanes(clamp == WARP - 1 ? UINT32_MAX : 0);
	return tess_bits(emulator_shuffle_xor(tess_float(value), (int)mask));
}

void ptx_load_matrices(const struct ptx_thread *t, const char *row, int turned, uint32_t *out)
{
	ptx_read(t, row, 16);
	if (turned)
		emulator_load_matrices(row, out);
	else
		emulator_load_straight_matrices(row, out);
}

void ptx_copy_async(struct ptx_thread *t, char *to, const char *from, uint32_t bytes,
                    uint32_t filled)
{
	if (bytes != 16 || (filled != 0 && filled != 16) || t->ncopies == PTX_COPIES)
		abort();
	if (filled)
		ptx_read(t, from, bytes);
	write_memory(t, to, bytes, COPY, __builtin_return_address(0));
	t->to[t->ncopies] = to;
	t->group[t->ncopies++] = t->groups;
	emulator_copy_async(to, from, (int)filled);
}

void ptx_commit_copies(struct ptx_thread *t)
{
	t->groups++;
	emulator_commit_copies();
}

/* Marks the target of a finished copy as written. */
static void end_copy(const struct ptx_thread *t, const char *to)
{
	struct marks *m = find_marks(to);

	scope = emulated_block;
	for (unsigned i = 0; i < 16 / GRANULE; i++)
		set_mark(&m[i].write, t, PLAIN);
}

void ptx_wait_copies(struct ptx_thread *t, int n)
{
	int kept = 0;

	for (int i = 0; i < t->ncopies; i++) {
		if (t->group[i] < t->groups - n) {
			end_copy(t, t->to[i]);
			t->unpublished = true;
		} else {
			t->to[kept] = t->to[i];
			t->group[kept++] = t->group[i];
		}
	}
	t->ncopies = kept;
	emulator_wait_copies(n);
}

/* ---- products of a warpgroup ----------------------------------------------------------------- */

/* Reads this thread's 16 bytes of the right side, which the warpgroup reads. */
static const char *read_right_side(const struct ptx_thread *t, uint64_t b)
{
	const char *p = emulator_find_chunk(b, threadIdx.x / 8 % 16, threadIdx.x % 8);

	ptx_read(t, p, 16);
	return p;
}

/* Returns the sums in registers c, which are NaN until they are complete. */
static float *start_sum(struct ptx_thread *t, float *const c[32])
{
	int i = 0;

	while (i < t->nsums && t->sum[i].to[0] != c[0])
		i++;
	if (i == PTX_SUMS)
		abort();
	if (i < t->nsums)
		return t->sum[i].value;
	t->nsums++;
	for (int j = 0; j < 32; j++) {
		t->sum[i].to[j] = c[j];
		t->sum[i].value[j] = *c[j];
		*c[j] = NAN;
	}
	return t->sum[i].value;
}

void ptx_begin_products(struct ptx_thread *t)
{
	t->begun = true;
}

void ptx_multiply_group(struct ptx_thread *t, float *const c[32], const uint32_t *a, uint64_t b,
                        int add)
{
	const char *p = read_right_side(t, b);

	if (!t->begun)
		refuse_access(t, p, "is multiplied without a fence");
	if (unpublished_block == emulated_block)
		refuse_access(t, p, "is multiplied, and copies are not published");
	if (t->nproducts == PTX_PRODUCTS)
		abort();
	t->right[t->nproducts++] = b;
	emulator_multiply_group(start_sum(t, c), a, b, add);
}

void ptx_commit_products(struct ptx_thread *t)
{
	t->begun = false;
}

void ptx_wait_products(struct ptx_thread *t, int n)
{
	if (n || t->begun)
		abort();
	for (int i = 0; i < t->nproducts; i++)
		read_right_side(t, t->right[i]);
	for (int i = 0; i < t->nsums; i++)
		for (int j = 0; j < 32; j++)
			*t->sum[i].to[j] = t->sum[i].value[j];
	t->nproducts = t->nsums = 0;
}

void ptx_publish_copies(struct ptx_thread *t)
{
	t->unpublished = false;
}

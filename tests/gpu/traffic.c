#include "traffic.h"
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>

enum { WARP = 32, SECTOR = 32, BANKS = 32, KERNELS = 128, COUNTS = 1 << 20 };

struct request { /* request of a lane */
	const void *site;
	uint32_t warp, turn, lane, bytes; /* turn: number of earlier accesses of the thread here */
	uintptr_t at;
};

bool traffic_counted;

static struct request *requests; /* requests of the running block */
static size_t nrequests, capacity;
static struct count { /* accesses of a thread at a site, in a block */
	const void *site;
	uint32_t thread, block, turns;
} counts[COUNTS];
static struct traffic kernels[KERNELS + 1], *running;
static uint32_t block;

static int compare_requests(const void *a, const void *b)
{
	const struct request *x = a, *y = b;

	if (x->site != y->site)
		return x->site < y->site ? -1 : 1;
	if (x->warp != y->warp)
		return x->warp < y->warp ? -1 : 1;
	if (x->turn != y->turn)
		return x->turn < y->turn ? -1 : 1;
	return x->lane < y->lane ? -1 : x->lane > y->lane;
}

static int compare_places(const void *a, const void *b)
{
	uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;

	return x < y ? -1 : x > y;
}

/* Sorts them and drops duplicates; returns the remaining number. */
static unsigned keep_different(uintptr_t *at, unsigned n)
{
	unsigned kept = 0;

	qsort(at, n, sizeof *at, compare_places);
	for (unsigned i = 0; i < n; i++)
		if (!i || at[i] != at[i - 1])
			at[kept++] = at[i];
	return kept;
}

/* Counts steps. Lanes with 8 bytes take turns in halves of a warp, those with 16 in quarters. */
static void count_steps(const struct request *r, size_t n)
{
	uint32_t words = r->bytes < 4 ? 1 : r->bytes / 4, together = WARP / words;

	for (size_t i = 0; i < n;) {
		uintptr_t word[WARP];
		unsigned nwords = 0, of_bank[BANKS] = { 0 }, most = 0;
		uint32_t part = r[i].lane / together;

		for (; i < n && r[i].lane / together == part; i++)
			for (uint32_t k = 0; k < words; k++)
				word[nwords++] = r[i].at / 4 + k;
		nwords = keep_different(word, nwords);
		for (unsigned k = 0; k < nwords; k++)
			of_bank[word[k] % BANKS]++;
		for (unsigned k = 0; k < BANKS; k++)
			most = of_bank[k] > most ? of_bank[k] : most;
		running->least++;
		running->steps += most;
	}
}

static void count_sectors(const struct request *r, size_t n)
{
	uintptr_t at[WARP], sector[WARP];

	for (size_t i = 0; i < n; i++) {
		at[i] = r[i].at;
		sector[i] = r[i].at / SECTOR;
	}
	running->used += (uint64_t)keep_different(at, (unsigned)n) * r->bytes;
	running->moved += (uint64_t)keep_different(sector, (unsigned)n) * SECTOR;
}

/* Counts the finished block: simultaneous accesses of a warp's lanes at a site are one request. */
static void count_block(void)
{
	uintptr_t shared = (uintptr_t)emulated_cluster;

	qsort(requests, nrequests, sizeof *requests, compare_requests);
	for (size_t i = 0, end; i < nrequests; i = end) {
		const struct request *r = &requests[i];

		for (end = i; end < nrequests && requests[end].site == r->site &&
		              requests[end].warp == r->warp && requests[end].turn == r->turn;)
			end++;
		if (r->at >= shared && r->at < shared + sizeof emulated_cluster)
			count_steps(r, end - i);
		else
			count_sectors(r, end - i);
	}
	nrequests = 0;
}

static struct traffic *find_kernel(const char *name)
{
	struct traffic *k = kernels;

	while (k->kernel && strcmp(k->kernel, name))
		k++;
	if (k == kernels + KERNELS)
		abort();
	k->kernel = name;
	return k;
}

static uint32_t count_turn(const void *site)
{
	size_t i = ((uintptr_t)site * UINT64_C(0x9e3779b97f4a7c15) + threadIdx.x * 0x85ebca6bu) %
	           COUNTS;

	while (counts[i].block == block &&
	       (counts[i].site != site || counts[i].thread != threadIdx.x))
		i = (i + 1) % COUNTS;
	if (counts[i].block != block)
		counts[i] = (struct count){ site, threadIdx.x, block, 0 };
	return counts[i].turns++;
}

void traffic_add(const char *kernel, const void *site, const char *p, unsigned bytes)
{
	if (block != emulated_block) {
		count_block();
		block = emulated_block;
		running = find_kernel(kernel);
	}
	if (nrequests == capacity) {
		capacity = capacity ? 2 * capacity : 1 << 16;
		requests = realloc(requests, capacity * sizeof *requests);
		if (!requests)
			abort();
	}
	requests[nrequests++] =
		(struct request){ site,  threadIdx.x / WARP, count_turn(site), threadIdx.x % WARP,
		                  bytes, (uintptr_t)p };
}

const struct traffic *traffic_get(void)
{
	count_block();
	return kernels;
}

__attribute__((constructor)) static void read_traffic_option(void)
{
	traffic_counted = getenv("PTX_TRAFFIC") != NULL;
}

__attribute__((destructor)) static void write_traffic(void)
{
	const char *path = getenv("PTX_TRAFFIC");
	FILE *f = path && kernels[0].kernel ? fopen(path, "a") : NULL;

	for (const struct traffic *k = traffic_get(); f && k->kernel; k++)
		fprintf(f,
		        "%-22s global %12llu bytes used, %5.2f times moved; shared %10llu steps, "
		        "%5.2f times the least\n",
		        k->kernel, (unsigned long long)k->used,
		        k->used ? (double)k->moved / (double)k->used : 0,
		        (unsigned long long)k->steps,
		        k->least ? (double)k->steps / (double)k->least : 0);
	if (f)
		fclose(f);
}

#undef _FORTIFY_SOURCE /* its longjmp reports an error on another stack */
#include "emulator.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#if defined(__SANITIZE_ADDRESS__)
#include <dlfcn.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __sanitizer_start_switch_fiber(save, bottom, size) (void)(bottom)
#define __sanitizer_finish_switch_fiber(saved, bottom, size) ((void)(saved), (void)scheduler_size)
#endif

enum { THREADS = 2048, COPIES = 256, WARP = 32, STACK = 64 << 10 };

struct barrier {
	int alive, arrived;
	unsigned generation;
};

struct late_copy {
	void *to;
	const void *from; /* NULL: zeros */
	int group;
};

struct thread { /* a coroutine; it runs one thread after another */
	jmp_buf at;
	void *stack, *fake;
	bool started, done;
	unsigned turn; /* number of exchanges with other lanes */
	int ncopies, groups; /* pending copies; committed groups */
	struct late_copy copy[COPIES];
};

struct emulated_index threadIdx, blockIdx, blockDim, gridDim;
_Alignas(1024) float emulated_cluster[EMULATED_CLUSTER_MAX][EMULATED_SHARED_MAX / sizeof(float)];
float *emulated_shared = emulated_cluster[0];
unsigned emulated_shared_bytes, emulated_launch, emulated_settled, emulated_block;
enum emulated_memory (*emulated_judge_memory)(const char *p, size_t bytes);

static struct thread threads[THREADS]; /* of all blocks of the cluster */
static struct barrier cluster_barrier, block_barrier[EMULATED_CLUSTER_MAX],
	warp_barrier[THREADS / WARP];
static unsigned block_threads, running_rank; /* threads of a block; the rank of the running one */
static unsigned cluster_start; /* blockIdx.y of its first block */
/*
 * Values exchanged by lanes, in two alternating halves: a late lane reads one half while the others
 * write the next.
 */
static float lanes[2][THREADS];
static const uint16_t *rows[2][THREADS];
static uint32_t sides[2][THREADS][6];
static jmp_buf scheduler;
static void *scheduler_fake;
static const void *scheduler_stack;
static size_t scheduler_size;
static emulated_kernel *running;
static const void *arguments;
static bool progress; /* since the scheduler last checked */
static bool backward; /* order of the threads: either one hides some missing barriers */

/* Returns the index of the running thread in its cluster. */
static unsigned get_thread(void)
{
	return running_rank * block_threads + threadIdx.x;
}

/* ---- coroutines ------------------------------------------------------------------------------ */

/*
 * Jumps to another stack. ASan's longjmp() assumes one stack: each time it finds its limits with a
 * system call, and clears the shadow memory of all of it. Here ASan is notified of stack switches,
 * and libc's longjmp() is called.
 */
static void jump_to(jmp_buf at)
{
#if defined(__SANITIZE_ADDRESS__)
	static void (*jump)(jmp_buf at, int value);

	if (!jump)
		*(void **)&jump = dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "_longjmp");
	if (!jump)
		jump = _longjmp;
	jump(at, 1);
#else
	_longjmp(at, 1);
#endif
}

static void leave_thread(struct thread *t)
{
	if (!_setjmp(t->at)) {
		__sanitizer_start_switch_fiber(&t->fake, scheduler_stack, scheduler_size);
		jump_to(scheduler);
	}
	__sanitizer_finish_switch_fiber(t->fake, &scheduler_stack, &scheduler_size);
}

static void release_barrier(struct barrier *b)
{
	if (b->arrived < b->alive)
		return;
	b->arrived = 0;
	b->generation++;
}

static void run_coroutine(void)
{
	struct thread *t = &threads[get_thread()];

	__sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_size);
	for (;;) {
		unsigned x = get_thread(), rank = running_rank;

		running(arguments);
		t->done = progress = true;
		cluster_barrier.alive--;
		block_barrier[rank].alive--;
		warp_barrier[x / WARP].alive--;
		release_barrier(&cluster_barrier);
		release_barrier(&block_barrier[rank]);
		release_barrier(&warp_barrier[x / WARP]);
		leave_thread(t);
	}
}

static void enter_thread(unsigned x)
{
	struct thread *t = &threads[x];
	ucontext_t context;

	running_rank = x / block_threads;
	threadIdx.x = x % block_threads;
	blockIdx.y = cluster_start + running_rank;
	emulated_shared = emulated_cluster[running_rank];
	if (!t->stack) {
		t->stack = malloc(STACK);
		if (!t->stack)
			abort();
	}
	if (!_setjmp(scheduler)) {
		__sanitizer_start_switch_fiber(&scheduler_fake, t->stack, STACK);
		if (t->started)
			jump_to(t->at);
		t->started = true;
		getcontext(&context);
		context.uc_stack.ss_sp = t->stack;
		context.uc_stack.ss_size = STACK;
		context.uc_link = NULL;
		makecontext(&context, run_coroutine, 0);
		setcontext(&context);
	}
	__sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
}

static void wait_at_barrier(struct barrier *b)
{
	struct thread *t = &threads[get_thread()];
	unsigned generation = b->generation;

	b->arrived++;
	progress = true;
	release_barrier(b);
	while (b->generation == generation)
		leave_thread(t);
}

void emulator_sync_block(void)
{
	wait_at_barrier(&block_barrier[running_rank]);
}

void emulator_sync_cluster(void)
{
	wait_at_barrier(&cluster_barrier);
}

float *emulator_find_peer(unsigned rank)
{
	return rank < EMULATED_CLUSTER_MAX && block_barrier[rank].alive ? emulated_cluster[rank]
	                                                                : NULL;
}

unsigned emulator_get_rank(void)
{
	return running_rank;
}

void emulator_sync_warp(void)
{
	wait_at_barrier(&warp_barrier[get_thread() / WARP]);
}

/* Returns the half for the next exchange. */
static unsigned take_turn(void)
{
	return ++threads[get_thread()].turn % 2;
}

float emulator_shuffle_xor(float x, int mask)
{
	float *shown = lanes[take_turn()];

	shown[get_thread()] = x;
	emulator_sync_warp();
	return shown[get_thread() ^ (unsigned)mask];
}

/* Exchanges rows in the warp; `row` is this lane's. */
static const uint16_t *const *show_row(const void *row)
{
	const uint16_t **shown = rows[take_turn()];

	shown[get_thread()] = row;
	emulator_sync_warp();
	return shown + get_thread() / WARP * WARP;
}

void emulator_load_matrices(const void *row, uint32_t *out)
{
	const uint16_t *const *shown = show_row(row);
	unsigned lane = threadIdx.x % WARP;

	for (unsigned m = 0; m < 4; m++) {
		const uint16_t *const *at = &shown[m * 8 + lane % 4 * 2];

		out[m] = at[0][lane / 4] | (uint32_t)at[1][lane / 4] << 16;
	}
}

void emulator_load_straight_matrices(const void *row, uint32_t *out)
{
	const uint16_t *const *shown = show_row(row);
	unsigned lane = threadIdx.x % WARP;

	for (unsigned m = 0; m < 4; m++)
		memcpy(&out[m], shown[m * 8 + lane / 4] + lane % 4 * 2, sizeof *out);
}

/* Returns half `i` of two bf16. */
static float get_half(uint32_t pair, unsigned i)
{
	return tess_bf16_load((uint16_t)(pair >> 16 * i));
}

void emulator_multiply_matrices(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	unsigned lane = threadIdx.x % WARP;
	uint32_t(*shown)[6] = sides[take_turn()];

	memcpy(shown[get_thread()], (uint32_t[]){ a[0], a[1], a[2], a[3], b0, b1 }, sizeof *shown);
	emulator_sync_warp();
	shown += get_thread() / WARP * WARP;
	for (unsigned i = 0; i < 4; i++) {
		unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;

		for (unsigned k = 0; k < 16; k++) {
			unsigned owner = k % 8 / 2, high = k / 8;

			c[i] += get_half(shown[row * 4 + owner][i / 2 + 2 * high], k % 2) *
			        get_half(shown[column * 4 + owner][4 + high], k % 2);
		}
	}
}

/*
 * Only one layout is known: of bf16, N-major, with swizzles of 128 bytes, in groups of 8 rows that
 * are adjacent. The GPU swizzles addresses.
 */
const char *emulator_find_chunk(uint64_t b, unsigned row, unsigned chunk)
{
	uint64_t at = (b & 0x3fff) << 4, group = (b >> 32 & 0x3fff) << 4;

	if (b >> 62 != 1 || (b >> 46 & 0xffff) != 0 || group != 1024 || at % group != 0)
		abort();
	at += row / 8 * group + row % 8 * 128 + chunk * 16;
	return (const char *)emulated_shared + (at ^ (at >> 7 & 7) << 4);
}

void emulator_multiply_group(float *c, const uint32_t *a, uint64_t b, int add)
{
	unsigned lane = threadIdx.x % WARP;
	uint32_t(*shown)[6] = sides[take_turn()];

	memcpy(shown[threadIdx.x], a, 4 * sizeof *a);
	emulator_sync_warp();
	shown += threadIdx.x / WARP * WARP;
	for (unsigned i = 0; i < 32 && !add; i++)
		c[i] = 0.0f;
	for (unsigned k = 0; k < 16; k++) {
		const uint32_t *owner = shown[lane / 4 * 4 + k % 8 / 2];

		for (unsigned i = 0; i < 32; i++) {
			const char *at =
				emulator_find_chunk(b, k, i / 4) + lane % 4 * 4 + i % 2 * 2;

			c[i] += get_half(owner[i % 4 / 2 + k / 8 * 2], k % 2) *
			        tess_bf16_load(*(const uint16_t *)(const void *)at);
		}
	}
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

/* Starts a copy. Copies of every second thread are done when they are waited for, not before. */
void emulator_copy_async(void *to, const void *from, int bytes)
{
	struct thread *t = &threads[get_thread()];

	if (t->ncopies == COPIES)
		abort();
	t->copy[t->ncopies++] = (struct late_copy){ to, bytes ? from : NULL, t->groups };
	if (threadIdx.x % 2)
		emulator_wait_copies(-1);
}

void emulator_commit_copies(void)
{
	threads[get_thread()].groups++;
}

/* Waits for all but the newest n groups; -1: also for copies without a group. */
void emulator_wait_copies(int n)
{
	struct thread *t = &threads[get_thread()];
	int kept = 0;

	for (int i = 0; i < t->ncopies; i++) {
		struct late_copy c = t->copy[i];

		if (c.group >= t->groups - n)
			t->copy[kept++] = c;
		else if (c.from)
			memcpy(__builtin_assume_aligned(c.to, 16),
			       __builtin_assume_aligned(c.from, 16), 16);
		else
			memset(__builtin_assume_aligned(c.to, 16), 0, 16);
	}
	t->ncopies = kept;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Runs a warp of n threads until it waits for others; adds the number of finished threads. */
static bool run_warp(unsigned warp, unsigned n, unsigned *done)
{
	unsigned first = warp * WARP, end = first + WARP < n ? first + WARP : n;
	bool any = false;

	do {
		progress = false;
		for (unsigned i = 0; i < end - first; i++) {
			unsigned x = backward ? end - 1 - i : first + i;

			if (!threads[x].done)
				enter_thread(x);
		}
		any |= progress;
	} while (progress);
	for (unsigned x = first; x < end; x++)
		*done += threads[x].done;
	return any;
}

/* Resets the barriers and the memory of `blocks` blocks of n threads in all. */
static void start_cluster(unsigned blocks, unsigned n)
{
	emulated_block++;
	cluster_barrier = (struct barrier){ .alive = (int)n };
	for (unsigned b = 0; b < EMULATED_CLUSTER_MAX; b++)
		block_barrier[b] = (struct barrier){ .alive = b < blocks ? (int)(n / blocks) : 0 };
	for (unsigned w = 0; w * WARP < n; w++)
		warp_barrier[w] =
			(struct barrier){ .alive = n - w * WARP < WARP ? (int)(n - w * WARP)
			                                               : WARP };
	for (unsigned b = 0; b < blocks; b++)
		memset(emulated_cluster[b], 0xff, emulated_shared_bytes); /* NaN */
	for (unsigned x = 0; x < n; x++) {
		threads[x].done = false;
		threads[x].ncopies = 0;
		threads[x].turn = 0;
	}
}

static void run_cluster(unsigned blocks)
{
	unsigned n = blocks * block_threads, done = 0, warps = (n + WARP - 1) / WARP;

	start_cluster(blocks, n);
	while (done < n) {
		bool any = false;

		done = 0;
		backward = !backward;
		for (unsigned i = 0; i < warps; i++)
			any |= run_warp(backward ? warps - 1 - i : i, n, &done);
		if (!any && done < n) {
			fprintf(stderr,
			        "emulator: threads of a block wait at different barriers\n");
			abort();
		}
	}
}

void emulator_run(emulated_kernel *kernel, const void *args, struct emulated_index grid,
                  struct emulated_index block, unsigned cluster, unsigned shared)
{
	if (cluster > EMULATED_CLUSTER_MAX || cluster * block.x > THREADS || grid.y % cluster ||
	    (cluster > 1 && block.x % WARP))
		abort();
	running = kernel;
	arguments = args;
	emulated_shared_bytes = shared;
	emulated_launch++;
	gridDim = grid;
	blockDim = block;
	block_threads = block.x;
	for (unsigned z = 0; z < grid.z; z++) {
		for (unsigned y = 0; y < grid.y; y += cluster) {
			for (unsigned x = 0; x < grid.x; x++) {
				blockIdx = (struct emulated_index){ x, y, z };
				cluster_start = y;
				run_cluster(cluster);
			}
		}
	}
}

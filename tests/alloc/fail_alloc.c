/*
 * fail_alloc.c - preloaded into `tessera`, lets one allocation of the process fail.
 *
 * ALLOC_FAIL=N      the Nth allocation fails, counted from 1 over all threads; 0: none
 * ALLOC_RANK=R      in the process with RANK=R (mpirun: OMPI_COMM_WORLD_RANK=R) in its environment;
 *                   unset: in the one without
 * ALLOC_REPORT=FILE appends: with ALLOC_FAIL=0 a line of each allocation, a hash of its call stack;
 *                   else the call stack of the failed one
 */
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FRAMES = 40 };

/* glibc's functions for these names. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static _Atomic long count;
static long fail_at;
static int report = -1;
static bool active; /* active in this process */
static _Thread_local bool busy; /* in report_stack(), or before main */

static void report_stack(bool failed)
{
	void *frame[FRAMES];
	char line[20];
	uint64_t hash = 14695981039346656037u;
	int n;

	busy = true;
	n = backtrace(frame, FRAMES);
	if (failed)
		backtrace_symbols_fd(frame + 2, n - 2, report);
	for (int i = 2; i < n; i++)
		hash = (hash ^ (uintptr_t)frame[i]) * 1099511628211u;
	n = snprintf(line, sizeof line, "%016llx\n", (unsigned long long)hash);
	if (!failed && write(report, line, (size_t)n) != n)
		_exit(99);
	busy = false;
}

/* Counts an allocation; returns whether it fails. */
static bool fail_this_time(void)
{
	bool fails;

	if (!active || busy)
		return false;
	fails = atomic_fetch_add(&count, 1) + 1 == fail_at;
	if (report >= 0 && (fails || !fail_at))
		report_stack(fails);
	if (fails)
		errno = ENOMEM;
	return fails;
}

__attribute__((constructor)) static void begin_counting(void)
{
	const char *at = getenv("ALLOC_FAIL"), *path = getenv("ALLOC_REPORT");
	const char *wanted = getenv("ALLOC_RANK"), *rank = getenv("RANK");
	void *frame[1];

	if (!rank)
		rank = getenv("OMPI_COMM_WORLD_RANK");
	if (!at || strcmp(program_invocation_short_name, "tessera") != 0 ||
	    strcmp(wanted ? wanted : "", rank ? rank : "") != 0)
		return;
	backtrace(frame, 1); /* loads its dependencies */
	fail_at = atol(at);
	report = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
	active = true;
}

void *malloc(size_t size)
{
	return fail_this_time() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return fail_this_time() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return fail_this_time() ? NULL : __libc_realloc(p, size);
}

int posix_memalign(void **p, size_t alignment, size_t size)
{
	void *got = fail_this_time() ? NULL : __libc_memalign(alignment, size);

	if (got)
		*p = got;
	return got ? 0 : ENOMEM;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return fail_this_time() ? NULL : __libc_memalign(alignment, size);
}

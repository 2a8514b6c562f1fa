/* spawn.c - runs a function on ranks: threads over loopback, else processes that it forks. */
#include "core/base/option.h"
#include "core/base/status.h"
#include "core/launch/launch.h"
#include "core/registry/registry.h"
#include "core/world/world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tessera/tessera.h>

enum { RESULT_ALIGN = 64 };

/* A job, in memory that its processes share. */
struct spawn {
	int32_t n;
	tess_status (*fn)(struct tess_world *world, void *arg);
	tess_status (*fn_result)(struct tess_world *world, void *arg, void *result);
	void *arg;
	struct tess_rank_end *ends; /* [n], with their flight recorders */
	char *results; /* [n], `stride` apart */
	uint64_t bytes_each, stride;
	size_t size; /* bytes of the mapping */
};

static tess_status call_rank_function(struct tess_world *w, void *arg)
{
	const struct spawn *s = arg;
	int32_t rank = tess_world_rank(w);

	return s->fn ? s->fn(w, s->arg)
	             : s->fn_result(w, s->arg, s->results + (uint64_t)rank * s->stride);
}

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + RESULT_ALIGN - 1) / RESULT_ALIGN * RESULT_ALIGN;
}

/* Maps the memory of a job: the struct, the ends, the flight recorders, the results. */
static tess_status map_spawn(int32_t n, uint64_t bytes_each, struct spawn **out)
{
	uint64_t ranks = (uint64_t)n, flight = round_up(tess_flight_size()), results, size,
		 head = round_up(sizeof(struct spawn) + ranks * sizeof(struct tess_rank_end));
	struct spawn *s = MAP_FAILED;

	if (bytes_each <= UINT64_MAX - RESULT_ALIGN &&
	    !__builtin_mul_overflow(round_up(bytes_each), ranks, &results) &&
	    !__builtin_add_overflow(results, head + ranks * flight, &size))
		s = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		return tess_fail(TESS_ENOMEM,
		                 "no memory for the results of %d ranks, %llu bytes each", n,
		                 (unsigned long long)bytes_each);
	s->n = n;
	s->ends = (struct tess_rank_end *)(s + 1);
	for (uint64_t r = 0; r < ranks; r++)
		s->ends[r].flight = (void *)((char *)s + head + r * flight);
	s->results = (char *)s + head + ranks * flight;
	s->bytes_each = bytes_each;
	s->stride = round_up(bytes_each);
	s->size = size;
	*out = s;
	return TESS_OK;
}

/* Opens the world of a rank that is a process, and runs the function. Returns its exit status. */
static int run_process(void *arg, int32_t rank)
{
	struct spawn *s = arg;
	struct tess_rank_end *end = &s->ends[rank];
	struct tess_world *w;
	tess_status st = tess_crash_reports_enable();

	if (!st)
		st = tess_world_open_recorded(end->flight, &w);
	if (!st)
		st = tess_world_run(w, call_rank_function, s);
	if (st)
		snprintf(end->sentence, sizeof end->sentence, "%s", tess_error());
	end->st = st;
	return st ? EXIT_FAILURE : EXIT_SUCCESS;
}

static tess_status run_processes(struct spawn *s)
{
	const char *bind = tess_option_get("bind"), *backend = tess_option_get("backend");
	const struct tess_launch how = { .nranks = s->n,
		                         .run = run_process,
		                         .arg = s,
		                         .ends = s->ends,
		                         .bind = bind,
		                         .flight = "off" };
	int exit_status;

	if (tess_world_count_open())
		return tess_fail(
			TESS_EINVAL,
			"the ranks over %s are forked, and this process has a world, whose threads "
			"a fork does not copy; close it before, or use TESSERA_BACKEND=loopback",
			backend);
	fflush(stdout); /* else each rank would write what is buffered */
	return tess_launch(&how, &exit_status);
}

/* Returns whether the ranks of the option "backend" are processes. */
static tess_status choose_processes(int32_t n, bool *processes)
{
	const char *name = tess_option_get("backend");
	const struct tess_backend *b, *inner;

	*processes = false;
	if (!strcmp(name, "auto") || tess_plugin_find_backend(name, &b) ||
	    b->reach == TESS_REACH_PROCESS)
		return TESS_OK; /* ranks report a backend that cannot be opened */
	if (b->bootstrap ||
	    (!tess_plugin_find_backend(tess_backend_wrapped(name), &inner) && inner->bootstrap))
		return tess_fail(TESS_EINVAL,
		                 "the ranks of backend %s are started by its own launcher: call "
		                 "tess_world_open, and start the program with mpirun -n %d",
		                 name, n);
	*processes = true;
	return TESS_OK;
}

static tess_status run_spawn(struct spawn *s, void *results)
{
	bool processes, abandoned = false;
	tess_status st = choose_processes(s->n, &processes);

	if (!st && processes)
		st = run_processes(s);
	else if (!st)
		st = tess_world_run_threads(s->n, call_rank_function, s, &abandoned);
	for (int32_t r = 0; r < s->n && results && !st; r++)
		memcpy((char *)results + (uint64_t)r * s->bytes_each,
		       s->results + (uint64_t)r * s->stride, s->bytes_each);
	if (!abandoned)
		munmap(s, s->size);
	return st;
}

/* Checks the arguments and maps the memory of a job. */
static tess_status make_spawn(int32_t n, bool has_function, uint64_t bytes_each, struct spawn **out)
{
	tess_status st = tess_option_add("world", tess_world_options);

	if (!st && (n < 1 || n > TESS_RANKS_MAX))
		st = tess_fail(TESS_EINVAL, "%d ranks: a job has 1 to %d", n, TESS_RANKS_MAX);
	if (!st && !has_function)
		st = tess_fail(TESS_EINVAL, "ranks without a function that they run");
	return st ? st : map_spawn(n, bytes_each, out);
}

tess_status tess_world_spawn(int32_t n, tess_status (*fn)(struct tess_world *world, void *arg),
                             void *arg)
{
	struct spawn *s = NULL;
	tess_status st = make_spawn(n, fn != NULL, 0, &s);

	if (st)
		return st;
	s->fn = fn;
	s->arg = arg;
	return run_spawn(s, NULL);
}

tess_status tess_world_spawn_results(int32_t n,
                                     tess_status (*fn)(struct tess_world *world, void *arg,
                                                       void *result),
                                     void *arg, void *results, uint64_t bytes_each)
{
	struct spawn *s = NULL;
	tess_status st = make_spawn(n, fn != NULL, bytes_each, &s);

	if (!st && (!results || !bytes_each)) {
		munmap(s, s->size);
		st = tess_fail(
			TESS_EINVAL,
			"tess_world_spawn_results: results is NULL, or has 0 bytes for a rank");
	}
	if (st)
		return st;
	s->fn_result = fn;
	s->arg = arg;
	return run_spawn(s, results);
}

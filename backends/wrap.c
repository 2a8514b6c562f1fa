#include "wrap.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const struct tess_host *wrap_host;
struct tess_backend wrapped;

tess_status wrap_init_plugin(const struct tess_host *host)
{
	wrap_host = host;
	return TESS_OK;
}

/* Makes the wrapper's table, without the functions that the wrapped backend lacks. */
static struct tess_backend make_wrapper_table(const struct tess_backend *wrapper)
{
	struct tess_backend table = *wrapper;

	table.threads = wrapped.threads;
	table.compares = wrapped.compares;
	table.exact = wrapped.exact;
	table.reach = wrapped.reach;
	table.mem_kinds = wrapped.mem_kinds;
	table.bind = wrapped.bind;
	table.estimate = wrapped.estimate;
	table.join = wrapped.join ? wrapper->join : NULL;
	table.alloc = wrapped.alloc ? wrapper->alloc : NULL;
	table.free = wrapped.free ? wrapper->free : NULL;
	table.abort = wrapped.abort ? wrapper->abort : NULL;
	if (table.computed == wrap_note_computed && !wrapped.computed)
		table.computed = NULL;
	return table;
}

/* Wraps a backend; a process wraps only one, since `wrapped` is global. */
tess_status wrap_backend(const struct tess_backend *wrapper, tess_status (*prepare)(void),
                         const char *name, const struct tess_backend **out)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct tess_backend table;
	static char taken[128];
	const struct tess_backend *b;
	tess_status st = TESS_OK;

	pthread_mutex_lock(&lock);
	if (*taken && strcmp(taken, name))
		st = wrap_host->fail(TESS_EINVAL, "%s wraps %s in this process already",
		                     wrapper->name, taken);
	else if (!*taken && prepare)
		st = prepare();
	if (!st && !*taken)
		st = wrap_host->backend(name, &b);
	if (!st && !*taken) {
		memcpy(&wrapped, b, b->size < sizeof wrapped ? b->size : sizeof wrapped);
		table = make_wrapper_table(wrapper);
		snprintf(taken, sizeof taken, "%s", name);
	}
	pthread_mutex_unlock(&lock);
	if (!st)
		*out = &table;
	return st;
}

tess_status wrap_open_group(const struct tess_group_entry *how, struct wrap_group *g)
{
	const struct wrap_group *parent = how->parent;
	struct tess_group_entry lower = { .size = sizeof lower };

	memcpy(&lower, how, how->size < sizeof lower ? how->size : sizeof lower);
	lower.parent = parent ? parent->self : NULL;
	return wrapped.open(&lower, &g->self);
}

tess_status wrap_supports_call(const struct tess_coll *c, int32_t nranks)
{
	return wrapped.supports(c, nranks);
}

tess_status wrap_join_stream(void *self, void *work, void *stream)
{
	const struct wrap_group *g = self;
	const struct wrap_work *w = work;

	return w->work ? wrapped.join(g->self, w->work, stream) : TESS_OK;
}

tess_status wrap_alloc_memory(void *self, uint64_t bytes, void **mine, void **peers)
{
	return wrapped.alloc(((struct wrap_group *)self)->self, bytes, mine, peers);
}

void wrap_free_memory(void *self, void *mine)
{
	wrapped.free(((struct wrap_group *)self)->self, mine);
}

void wrap_mark_internal(void *self, int32_t on)
{
	if (wrapped.internal)
		wrapped.internal(((struct wrap_group *)self)->self, on);
}

void wrap_note_computed(void *self, const char *module, const char *ops, int64_t begin, int64_t end)
{
	wrapped.computed(((struct wrap_group *)self)->self, module, ops, begin, end);
}

void wrap_abort_group(void *self)
{
	struct wrap_group *g = self;

	atomic_store(&g->aborted, true);
	wrapped.abort(g->self);
}

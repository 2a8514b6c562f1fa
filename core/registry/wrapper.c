/* wrapper.c - backends and devices that wrap another one: "trace:gloo", "mine:cpu". */
#include "core/registry/file.h"

#include "core/base/status.h"
#include "core/registry/plugin_call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wrapper_name { /* "trace:faulty:shm" */
	const char *full;
	const char *below; /* "faulty:shm"; NULL: no colon */
	char first[128]; /* "trace" */
};

static void split_wrapper_name(const char *full, struct wrapper_name *out)
{
	const char *colon = strchr(full, ':');

	*out = (struct wrapper_name){ .full = full, .below = colon ? colon + 1 : NULL };
	snprintf(out->first, sizeof out->first, "%.*s",
	         colon ? (int)(colon - full) : (int)strlen(full), full);
}

/* Returns whether the first name is among those below. */
static bool wraps_itself(const struct wrapper_name *n)
{
	size_t len = strlen(n->first);

	for (const char *at = n->below; at; at = strchr(at, ':')) {
		at += *at == ':';
		if (!strncmp(at, n->first, len) && (!at[len] || at[len] == ':'))
			return true;
	}
	return false;
}

/* Checks a name; `wraps`: the plugin of its first part is a wrapper. */
static tess_status check_wrapper_name(int32_t kind, const struct wrapper_name *n, bool wraps)
{
	const char *word = tess_plugin_kind_names[kind], *first = n->first;

	if (!n->below && !wraps)
		return TESS_OK;
	if (!wraps && kind == TESS_DEVICES)
		return tess_fail(TESS_EINVAL,
		                 "device %s: %s does not wrap another device; use %s, or %s:INDEX",
		                 n->full, first, first, first);
	if (!wraps)
		return tess_fail(TESS_EINVAL, "%s %s: %s does not wrap another %s; use %s alone",
		                 word, n->full, first, word, first);
	if (!n->below || !*n->below)
		return tess_fail(TESS_EINVAL, "%s %s wraps another one; append its name: %s:NAME",
		                 word, first, first);
	if (wraps_itself(n))
		return tess_fail(TESS_EINVAL, "%s %s: %s cannot wrap itself", word, n->full, first);
	return TESS_OK;
}

/* Finds a wrapper that was opened before, with the registry locked; NULL: none. */
static const struct tess_wrapper *find_opened(const struct tess_registry *r, int32_t kind,
                                              const char *name)
{
	const struct tess_wrapper *w = r->wrappers;

	while (w && (w->kind != kind || strcmp(w->name, name) != 0))
		w = w->next;
	return w;
}

static const struct tess_wrapper *find_wrapper(int32_t kind, const char *name)
{
	const struct tess_wrapper *w = find_opened(tess_registry_lock(), kind, name);

	tess_registry_unlock();
	return w;
}

/* Adds a wrapper without its table, with the registry locked; NULL: no memory. */
static struct tess_wrapper *add_wrapper(struct tess_registry *r, int32_t kind, const char *name,
                                        const void *outer)
{
	struct tess_wrapper *w = TESS_NEW(&r->arena, struct tess_wrapper, 1);

	if (w)
		w->name = tess_arena_copy(&r->arena, name, strlen(name));
	if (!w || !w->name)
		return NULL;
	w->kind = kind;
	w->outer = outer;
	w->next = r->wrappers;
	r->wrappers = w;
	return w;
}

static tess_status fail_without_memory(int32_t kind, const char *name)
{
	return tess_fail(TESS_ENOMEM, "%s %s: out of memory", tess_plugin_kind_names[kind], name);
}

/* Copies the table of a wrap(), up to the smaller size. */
static void copy_backend(struct tess_wrapper *w, const struct tess_backend *table)
{
	struct tess_backend *b = &w->table.backend;

	memcpy(b, table, table->size < sizeof *b ? table->size : sizeof *b);
	b->size = sizeof *b;
	b->name = w->name;
}

/* Wraps a backend. Calls wrap() without the lock, since it looks up the backend below. */
static tess_status open_wrapped_backend(const struct tess_backend *outer,
                                        const struct wrapper_name *n,
                                        const struct tess_wrapper **out)
{
	const struct tess_backend *table = NULL;
	struct tess_registry *r;
	struct tess_wrapper *w;
	tess_status st = TESS_PLUGIN_VALUE(outer, NULL, wrap, n->below, &table);

	if (st)
		return tess_fail_in(st, "backend %s", n->full);
	if (!table || table->size < TESS_UPTO(tess_backend, close))
		return tess_fail(TESS_EABI,
		                 "backend %s: wrap() of %s returned no valid table: a bug in "
		                 "the plugin",
		                 n->full, outer->name);
	r = tess_registry_lock();
	*out = find_opened(r, TESS_BACKENDS, n->full);
	if (!*out) {
		w = add_wrapper(r, TESS_BACKENDS, n->full, outer);
		if (w)
			copy_backend(w, table);
		*out = w;
	}
	tess_registry_unlock();
	return *out ? TESS_OK : fail_without_memory(TESS_BACKENDS, n->full);
}

tess_status tess_plugin_find_backend(const char *name, const struct tess_backend **out)
{
	const struct tess_wrapper *w = NULL;
	const struct tess_backend *outer;
	struct wrapper_name n;
	tess_status st;

	split_wrapper_name(name, &n);
	st = tess_registry_find_table(TESS_BACKENDS, n.first, &outer);
	if (!st)
		st = check_wrapper_name(TESS_BACKENDS, &n, outer->wrap);
	if (!st && n.below)
		w = find_wrapper(TESS_BACKENDS, name);
	if (!st && n.below && !w)
		st = open_wrapped_backend(outer, &n, &w);
	if (!st)
		*out = w ? &w->table.backend : outer;
	return st;
}

/* Adds a wrapped device with its completed table. */
static tess_status add_device(const struct tess_device *outer, const struct tess_device *own,
                              const struct tess_device *inner, const char *name,
                              const struct tess_wrapper **out)
{
	struct tess_registry *r = tess_registry_lock();
	struct tess_wrapper *w = NULL;
	struct tess_device table;
	tess_status st = tess_wrapped_device_complete(outer, own, inner, name, &table);

	if (!st) {
		w = add_wrapper(r, TESS_DEVICES, name, outer);
		st = w ? TESS_OK : fail_without_memory(TESS_DEVICES, name);
	}
	if (!st) {
		w->table.device = table;
		w->table.device.name = w->name;
		*out = w;
	}
	tess_registry_unlock();
	return st;
}

/* Wraps a device. Calls wrap() without the registry's lock, since it may look up `inner`. */
static tess_status wrap_named_device(const struct tess_device *outer, const struct wrapper_name *n,
                                     const struct tess_wrapper **out)
{
	const struct tess_device *own = NULL, *inner;
	tess_status st = tess_plugin_find_device(n->below, &inner);

	if (st)
		return tess_fail_in(st, "device %s", n->full);
	tess_error_clear();
	st = tess_plugin_check_returned(outer, n->full, "wrap", NULL,
	                                TESS_PLUGIN_VALUE(outer, NULL, wrap, n->below, &own));
	if (st)
		return st;
	st = tess_wrapped_device_check(own, inner);
	return st ? tess_fail_in(st, "device %s", n->full)
	          : add_device(outer, own, inner, n->full, out);
}

/* Opens a wrapped device, one at a time; an inner device may be a wrapped one. */
static tess_status open_wrapped_device(const struct tess_device *outer,
                                       const struct wrapper_name *n,
                                       const struct tess_wrapper **out)
{
	static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	tess_status st = TESS_OK;

	pthread_mutex_lock(&lock);
	*out = find_wrapper(TESS_DEVICES, n->full);
	if (!*out)
		st = wrap_named_device(outer, n, out);
	pthread_mutex_unlock(&lock);
	return st;
}

tess_status tess_plugin_find_device(const char *name, const struct tess_device **out)
{
	const struct tess_wrapper *w = NULL;
	const struct tess_device *outer;
	struct wrapper_name n;
	tess_status st;

	split_wrapper_name(name, &n);
	st = tess_registry_find_table(TESS_DEVICES, n.first, &outer);
	if (!st)
		st = check_wrapper_name(TESS_DEVICES, &n, outer->wrap);
	if (!st && n.below)
		st = open_wrapped_device(outer, &n, &w);
	if (!st)
		*out = w ? &w->table.device : outer;
	return st;
}

static bool is_index(const char *text)
{
	size_t n = strspn(text, "0123456789");

	return n && (!text[n] || text[n] == ':');
}

tess_status tess_device_name_parse(const char *text, char name[static TESS_DEVICE_NAME],
                                   int32_t *index)
{
	const char *colon = strrchr(text, ':');
	bool numbered = colon && is_index(colon + 1);
	bool wrong = strlen(text) >= TESS_DEVICE_NAME ||
	             (colon && !numbered && !tess_name_valid(colon + 1, ""));
	long n = numbered ? strtol(colon + 1, NULL, 10) : -1;

	for (const char *at = strchr(text, ':'); at != colon; at = strchr(at + 1, ':'))
		wrong |= is_index(at + 1);
	if (wrong || n > INT32_MAX)
		return tess_fail(TESS_EINVAL,
		                 "device %.80s: use NAME, NAME:INDEX or WRAPPER:NAME[:INDEX]; "
		                 "indices are from 0",
		                 text);
	snprintf(name, TESS_DEVICE_NAME, "%.*s", numbered ? (int)(colon - text) : INT32_MAX, text);
	*index = (int32_t)n;
	return TESS_OK;
}

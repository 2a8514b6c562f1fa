/* wrap.h - forwarding functions for backends that wrap another one. */
#ifndef BACKENDS_WRAP_H
#define BACKENDS_WRAP_H

#include <stdatomic.h>
#include <tessera/group.h>

extern const struct tess_host *wrap_host;
extern struct tess_backend wrapped;

/* The first member of a wrapper's group. */
struct wrap_group {
	void *self; /* the group of the wrapped backend */
	atomic_bool aborted;
};

/* The first member of a wrapper's work. */
struct wrap_work {
	void *work; /* the work of the wrapped backend; NULL: not started */
};

tess_status wrap_init_plugin(const struct tess_host *host);
/*
 * Implements tess_backend.wrap for `wrapper`. Offers its optional functions if the wrapped backend
 * has them. Calls `prepare`, unless it is NULL, before the first backend is wrapped.
 */
tess_status wrap_backend(const struct tess_backend *wrapper, tess_status (*prepare)(void),
                         const char *name, const struct tess_backend **out);
/* Opens the group of the wrapped backend for `g`; how->parent is a group of the wrapper. */
tess_status wrap_open_group(const struct tess_group_entry *how, struct wrap_group *g);

/* Functions of struct tess_backend that forward the call. */
tess_status wrap_supports_call(const struct tess_coll *c, int32_t nranks);
tess_status wrap_join_stream(void *self, void *work, void *stream);
tess_status wrap_alloc_memory(void *self, uint64_t bytes, void **mine, void **peers);
void wrap_free_memory(void *self, void *mine);
void wrap_mark_internal(void *self, int32_t on);
void wrap_note_computed(void *self, const char *module, const char *ops, int64_t begin,
                        int64_t end);
/* Marks the group as aborted, and aborts the wrapped one. */
void wrap_abort_group(void *self);

#endif

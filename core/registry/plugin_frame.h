/*
 * plugin_frame.h - the calls of plugins in which the threads of this process are: for the report of
 * a crash (crash.c), and of a call that does not return (plugin_watch.h).
 *
 * A thread stores a frame on its stack before a call and removes it afterwards: a few ns, without a
 * lock, a clock or a copy. Other threads, and the handler of a signal, copy frames while the thread
 * continues; tess_plugin_frame_describe() discards a copy that has changed meanwhile.
 */
#ifndef TESS_REGISTRY_PLUGIN_FRAME_H
#define TESS_REGISTRY_PLUGIN_FRAME_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tess_plugin_frame {
	struct tess_plugin_frame *outer;
	struct tess_plugin_thread *thread;
	const void *table; /* struct tess_style, ...; NULL: `where` is the path of a file */
	const char *function; /* "layout" */
	const char *where; /* a module; may be NULL */
	const char *what; /* the kind of the op or call; NULL: none */
	int64_t deadline; /* of a function that waits until then (tess_now()); 0: none */
};

struct tess_plugin_thread { /* never freed, but reused by a later thread */
	struct tess_plugin_thread *next; /* in the list of all */
	atomic_bool used;
	_Atomic(struct tess_plugin_frame *) top; /* the innermost call; NULL: none */
	atomic_uint_least64_t calls; /* number of calls begun so far */
	_Atomic(const void *) job; /* the coordinator of ranks that are threads; else NULL */
	atomic_int rank, size; /* in the job; size 0: not a rank */
	void *signal_stack; /* NULL: none of ours */
	/* of plugin_watch.c, under its lock */
	uint64_t seen_calls;
	const void *seen_top;
	int64_t seen_at, stayed, overdue;
};

/* The record of this thread; NULL: it has not called a plugin yet. */
extern _Thread_local struct tess_plugin_thread *tess_plugin_thread_own;

/* Makes the record of this thread. Without memory, returns one that is in no list. */
struct tess_plugin_thread *tess_plugin_thread_make(void);

static inline struct tess_plugin_thread *tess_plugin_thread_get(void)
{
	struct tess_plugin_thread *t = tess_plugin_thread_own;

	return t ? t : tess_plugin_thread_make();
}

/* Records that this thread calls a function of a plugin. Strings are borrowed during the call. */
static inline void tess_plugin_enter(struct tess_plugin_frame *f, const void *table,
                                     const char *function, const char *where, const char *what,
                                     int64_t deadline)
{
	struct tess_plugin_thread *t = tess_plugin_thread_get();

	/* the count first: a copy of an earlier frame at this address is then discarded */
	atomic_store_explicit(&t->calls, atomic_load_explicit(&t->calls, memory_order_relaxed) + 1,
	                      memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	f->outer = atomic_load_explicit(&t->top, memory_order_relaxed);
	f->thread = t;
	f->table = table;
	f->function = function;
	f->where = where;
	f->what = what;
	f->deadline = deadline;
	atomic_store_explicit(&t->top, f, memory_order_release);
}

static inline void tess_plugin_leave(const struct tess_plugin_frame *f)
{
	atomic_store_explicit(&f->thread->top, f->outer, memory_order_release);
}

/* Returns the kind of op or call of the innermost call of this thread; NULL: none. */
static inline const char *tess_plugin_get_what(void)
{
	const struct tess_plugin_frame *f =
		atomic_load_explicit(&tess_plugin_thread_get()->top, memory_order_relaxed);

	return f ? f->what : NULL;
}

/* Sets the rank of this thread. job: the coordinator if ranks are threads, else NULL. */
void tess_plugin_set_rank(const void *job, int32_t rank, int32_t size);

/* Returns the first thread (NULL) or the one after `t` that is in use; NULL: no more. */
struct tess_plugin_thread *tess_plugin_next_thread(const struct tess_plugin_thread *t);

/*
 * Gives each thread that calls a plugin from now on a stack for signals, unless it has one, and
 * this thread at once.
 */
void tess_plugin_use_signal_stacks(void);

/* ---- descriptions: safe in the handler of a signal ------------------------------------------- */

enum { TESS_PLUGIN_TEXT = 1024 };

struct tess_safe_text { /* a text with its 0; cut at the end */
	size_t len, size;
	char *at;
};

void tess_safe_text_add(struct tess_safe_text *t, const char *s);
/* Adds a number in base 10 or 16. */
void tess_safe_text_add_number(struct tess_safe_text *t, uint64_t n, unsigned base);

/* The call that a description of a frame is about. */
struct tess_plugin_place {
	uint64_t calls; /* number of calls when the copy was made */
	const void *top;
	int64_t deadline; /* of the frame */
};

/*
 * Adds "layout() of style mine (/dir/tess-style-mine.so) at model.layers.1.mlp.up_proj", or "run()
 * of device mine (FILE), linear at M". False: the thread is in no call, or has left it meanwhile.
 */
bool tess_plugin_frame_describe(struct tess_plugin_thread *t, struct tess_safe_text *text,
                                struct tess_plugin_place *place);

#endif

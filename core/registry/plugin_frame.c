#include "core/registry/plugin_frame.h"

#include "core/registry/registry.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIGNAL_STACK_BYTES = 1 << 16, FRAME_STRING = 400 };

_Thread_local struct tess_plugin_thread *tess_plugin_thread_own;

static struct tess_plugin_thread unlisted_thread; /* of threads without memory for a record */
static _Atomic(struct tess_plugin_thread *) all_threads; /* all records; the newest first */
static atomic_bool use_signal_stacks;
static pthread_once_t frames_once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key; /* its destructor runs at the end of a thread */

/* ---- the records of threads ------------------------------------------------------------------ */

static void free_signal_stack(struct tess_plugin_thread *t)
{
	stack_t now, none = { .ss_flags = SS_DISABLE };

	if (!t->signal_stack)
		return;
	if (!sigaltstack(NULL, &now) && now.ss_sp == t->signal_stack)
		sigaltstack(&none, NULL);
	munmap(t->signal_stack, SIGNAL_STACK_BYTES);
	t->signal_stack = NULL;
}

/* Makes a record available to a later thread. */
static void release_record(struct tess_plugin_thread *t)
{
	atomic_store(&t->size, 0);
	atomic_store(&t->top, NULL);
	atomic_store(&t->used, false);
}

static void end_thread(void *arg)
{
	free_signal_stack(arg);
	tess_plugin_thread_own = NULL;
	release_record(arg);
}

/* In a forked child: its only thread keeps its record. */
static void drop_other_threads(void)
{
	for (struct tess_plugin_thread *t = atomic_load(&all_threads); t; t = t->next)
		if (t != tess_plugin_thread_own)
			release_record(t);
}

static void set_up_threads(void)
{
	pthread_key_create(&thread_key, end_thread);
	pthread_atfork(NULL, NULL, drop_other_threads);
}

/* Takes the record of a thread that has ended, or makes one. */
static struct tess_plugin_thread *take_record(void)
{
	struct tess_plugin_thread *t = atomic_load(&all_threads);
	bool used = false;

	for (; t; t = t->next, used = false)
		if (atomic_compare_exchange_strong(&t->used, &used, true))
			return t;
	t = calloc(1, sizeof *t);
	if (!t)
		return NULL;
	atomic_store(&t->used, true);
	t->next = atomic_load(&all_threads);
	while (!atomic_compare_exchange_weak(&all_threads, &t->next, t))
		;
	return t;
}

/* A thread without one of its own gets a stack for signals: its own stack may have overflowed. */
static void make_signal_stack(struct tess_plugin_thread *t)
{
	stack_t now, stack = { .ss_size = SIGNAL_STACK_BYTES };

	if (t->signal_stack || sigaltstack(NULL, &now) || !(now.ss_flags & SS_DISABLE))
		return;
	stack.ss_sp = mmap(NULL, SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE,
	                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack.ss_sp == MAP_FAILED)
		return;
	t->signal_stack = stack.ss_sp;
	sigaltstack(&stack, NULL);
}

struct tess_plugin_thread *tess_plugin_thread_make(void)
{
	struct tess_plugin_thread *t;

	pthread_once(&frames_once, set_up_threads);
	t = take_record();
	if (t && pthread_setspecific(thread_key, t)) {
		atomic_store(&t->used, false);
		t = NULL;
	}
	if (!t)
		return &unlisted_thread;
	tess_plugin_thread_own = t;
	if (atomic_load(&use_signal_stacks))
		make_signal_stack(t);
	return t;
}

void tess_plugin_set_rank(const void *job, int32_t rank, int32_t size)
{
	struct tess_plugin_thread *t = tess_plugin_thread_get();

	atomic_store(&t->job, job);
	atomic_store(&t->rank, rank);
	atomic_store(&t->size, size);
}

struct tess_plugin_thread *tess_plugin_next_thread(const struct tess_plugin_thread *t)
{
	struct tess_plugin_thread *next = t ? t->next : atomic_load(&all_threads);

	while (next && !atomic_load(&next->used))
		next = next->next;
	return next;
}

void tess_plugin_use_signal_stacks(void)
{
	struct tess_plugin_thread *t = tess_plugin_thread_get();

	atomic_store(&use_signal_stacks, true);
	if (t != &unlisted_thread)
		make_signal_stack(t);
}

/* ---- descriptions ---------------------------------------------------------------------------- */

void tess_safe_text_add(struct tess_safe_text *t, const char *s)
{
	while (*s && t->len + 1 < t->size)
		t->at[t->len++] = *s++;
	if (t->size)
		t->at[t->len] = '\0';
}

void tess_safe_text_add_number(struct tess_safe_text *t, uint64_t n, unsigned base)
{
	char digits[24];
	size_t at = sizeof digits - 1;

	digits[at] = '\0';
	do
		digits[--at] = "0123456789abcdef"[n % base];
	while (n /= base);
	tess_safe_text_add(t, digits + at);
}

/*
 * Copies memory that may be unmapped: the kernel reads it, for a pipe. Sanitizers do not see a
 * system call, and the caller discards a copy of memory that has changed.
 */
static bool copy_memory(const int fd[2], const void *from, void *to, size_t bytes)
{
	return syscall(SYS_write, fd[1], from, bytes) == (long)bytes &&
	       syscall(SYS_read, fd[0], to, bytes) == (long)bytes;
}

/* Copies a string, up to the end of readable memory. False: none of it is readable. */
static bool copy_string(const int fd[2], const char *from, char to[static FRAME_STRING])
{
	size_t n = 0;

	while (n < FRAME_STRING - 1) {
		/* no copy crosses a page */
		size_t part = 64 - ((uintptr_t)(from + n) & 63);

		if (part > FRAME_STRING - 1 - n)
			part = FRAME_STRING - 1 - n;
		if (!copy_memory(fd, from + n, to + n, part))
			break;
		if (memchr(to + n, '\0', part))
			return true;
		n += part;
	}
	to[n] = '\0';
	return n > 0;
}

struct frame_copy {
	struct tess_plugin_frame frame;
	char function[FRAME_STRING], where[FRAME_STRING], what[FRAME_STRING];
};

/* Copies the innermost frame. False: none, or it has changed. */
static bool copy_frame(struct tess_plugin_thread *t, const int fd[2], struct frame_copy *c,
                       struct tess_plugin_place *place)
{
	struct tess_plugin_frame *f = &c->frame;

	place->calls = atomic_load_explicit(&t->calls, memory_order_acquire);
	place->top = atomic_load_explicit(&t->top, memory_order_acquire);
	if (!place->top || !copy_memory(fd, place->top, f, sizeof *f))
		return false;
	place->deadline = f->deadline;
	if (!f->function || !copy_string(fd, f->function, c->function))
		*c->function = '\0';
	if (!f->where || !copy_string(fd, f->where, c->where))
		*c->where = '\0';
	if (!f->what || !copy_string(fd, f->what, c->what))
		*c->what = '\0';
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&t->calls, memory_order_relaxed) == place->calls &&
	       atomic_load_explicit(&t->top, memory_order_relaxed) == place->top;
}

static void add_function(const struct frame_copy *c, struct tess_safe_text *text)
{
	struct tess_plugin_origin o;

	tess_safe_text_add(text, *c->function ? c->function : "a constructor");
	tess_safe_text_add(text, *c->function ? "() of " : " of ");
	if (!c->frame.table) {
		tess_safe_text_add(text, *c->where ? c->where : "a plugin");
		return;
	}
	tess_registry_find_origin(c->frame.table, &o);
	tess_safe_text_add(text, o.kind);
	tess_safe_text_add(text, " ");
	tess_safe_text_add(text, o.name);
	if (*o.path) {
		tess_safe_text_add(text, " (");
		tess_safe_text_add(text, o.path);
		tess_safe_text_add(text, ")");
	}
	if (*c->what) {
		tess_safe_text_add(text, ", ");
		tess_safe_text_add(text, c->what);
	}
	if (*c->where) {
		tess_safe_text_add(text, " at ");
		tess_safe_text_add(text, c->where);
	}
}

bool tess_plugin_frame_describe(struct tess_plugin_thread *t, struct tess_safe_text *text,
                                struct tess_plugin_place *place)
{
	struct frame_copy c;
	bool found;
	int fd[2];

	if (!atomic_load_explicit(&t->top, memory_order_acquire) || pipe2(fd, O_CLOEXEC))
		return false;
	found = copy_frame(t, fd, &c, place);
	close(fd[0]);
	close(fd[1]);
	if (found)
		add_function(&c, text);
	return found;
}

/*
 * crash.c - reports a fault of a plugin: the handler of SIGSEGV, SIGBUS, SIGILL, SIGFPE and
 * SIGABRT. It makes system calls only, and uses the memory of its own stack.
 */
#include "core/base/status.h"
#include "core/registry/plugin_frame.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static const struct fault_signal {
	int number;
	const char *name;
} faults[] = {
	{ SIGSEGV, "Segmentation fault" },
	{ SIGBUS, "Bus error" },
	{ SIGILL, "Illegal instruction" },
	{ SIGFPE, "Floating point exception" },
	{ SIGABRT, "Aborted" },
};
enum { FAULTS = sizeof faults / sizeof *faults, FAULT_LINE_BYTES = 3072, OTHER_CALLS_MAX = 4 };
enum { STACK_NEAR = 1 << 16, REPORT_WAIT_MS = 1000 };

static struct sigaction handlers_before[FAULTS]; /* restored after the report */
static atomic_int reporting_fault; /* the first thread with a fault: its id; 0: none */
static atomic_bool fault_reported;
static atomic_int report_fd = STDERR_FILENO;

static size_t find_fault(int number)
{
	size_t i = 0;

	while (i < FAULTS - 1 && faults[i].number != number)
		i++;
	return i;
}

/* ---- where the fault is ---------------------------------------------------------------------- */

#if defined(__x86_64__)
#define FAULT_REGISTER(context, x86, arm) ((uintptr_t)(context)->uc_mcontext.gregs[x86])
#elif defined(__aarch64__)
#define FAULT_REGISTER(context, x86, arm) ((uintptr_t)(context)->uc_mcontext.arm)
#else
#define FAULT_REGISTER(context, x86, arm) ((uintptr_t)0)
#endif

/* A mapping of a file, from a line of /proc/self/maps. */
struct file_mapping {
	uintptr_t from, to, offset;
	const char *path;
};

static const char *read_hex(const char *s, uintptr_t *out)
{
	uintptr_t x = 0;

	for (; (*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'f'); s++)
		x = x * 16 + (uintptr_t)(*s <= '9' ? *s - '0' : *s - 'a' + 10);
	*out = x;
	return s;
}

/* Reads "7f12-7f13 r-xp 00001000 08:01 123   /dir/file.so". */
static bool read_mapping(const char *line, struct file_mapping *m)
{
	line = read_hex(line, &m->from);
	if (*line++ != '-')
		return false;
	line = read_hex(line, &m->to);
	for (int i = 0; i < 2 && *line; i++)
		line += strcspn(line, " ") + 1;
	read_hex(line, &m->offset);
	m->path = strchr(line, '/');
	return m->path != NULL;
}

/* Calls use() for each line of /proc/self/maps, until it returns true. */
static bool find_line(bool (*use)(const char *line, void *arg), void *arg)
{
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	char line[1024], part[4096];
	size_t len = 0;
	bool found = false;
	ssize_t n;

	while (fd >= 0 && !found && (n = read(fd, part, sizeof part)) > 0)
		for (ssize_t i = 0; i < n && !found; i++) {
			if (part[i] != '\n') {
				if (len + 1 < sizeof line)
					line[len++] = part[i];
				continue;
			}
			line[len] = '\0';
			len = 0;
			found = use(line, arg);
		}
	if (fd >= 0)
		close(fd);
	return found;
}

struct code_search {
	uintptr_t address, offset; /* offset: in the file */
	char base_path[512]; /* the file that is looked at; its first mapping has its base */
	uintptr_t base;
};

static bool find_code(const char *line, void *arg)
{
	struct code_search *s = arg;
	struct file_mapping m;

	if (!read_mapping(line, &m))
		return false;
	if (strncmp(s->base_path, m.path, sizeof s->base_path - 1) != 0) {
		struct tess_safe_text path = { .size = sizeof s->base_path, .at = s->base_path };

		tess_safe_text_add(&path, m.path);
		s->base = m.from - m.offset;
	}
	s->offset = s->address - s->base;
	return s->address >= m.from && s->address < m.to;
}

/* Adds "address 0x8, in /dir/tess-style-mine.so+0x1139", or that the stack has overflowed. */
static void add_place(struct tess_safe_text *text, const struct fault_signal *f,
                      const siginfo_t *info, const ucontext_t *context)
{
	struct code_search code = { .address = FAULT_REGISTER(context, REG_RIP, pc) };
	uintptr_t address = (uintptr_t)info->si_addr, stack = FAULT_REGISTER(context, REG_RSP, sp);

	if (info->si_code > 0 && f->number != SIGABRT) {
		tess_safe_text_add(text, ", address 0x");
		tess_safe_text_add_number(text, address, 16);
	}
	if (find_line(find_code, &code)) {
		tess_safe_text_add(text, ", in ");
		tess_safe_text_add(text, code.base_path);
		tess_safe_text_add(text, "+0x");
		tess_safe_text_add_number(text, code.offset, 16);
	}
	if (f->number == SIGSEGV && info->si_code > 0 && address + STACK_NEAR > stack &&
	    address < stack + STACK_NEAR)
		tess_safe_text_add(text,
		                   "; the stack has overflowed, as in a recursion without end");
}

/* ---- the report ------------------------------------------------------------------------------ */

static void add_rank(struct tess_safe_text *text, const struct tess_plugin_thread *t)
{
	if (atomic_load(&t->size) < 2)
		return;
	tess_safe_text_add(text, "[");
	tess_safe_text_add_number(text, (uint64_t)atomic_load(&t->rank), 10);
	tess_safe_text_add(text, "/");
	tess_safe_text_add_number(text, (uint64_t)atomic_load(&t->size), 10);
	tess_safe_text_add(text, "] ");
}

/* Adds the calls of other threads: a thread that a plugin has started has no call of its own. */
static void add_other_calls(struct tess_safe_text *text)
{
	struct tess_plugin_place place;
	int n = 0;

	for (struct tess_plugin_thread *t = tess_plugin_next_thread(NULL); t && n < OTHER_CALLS_MAX;
	     t = tess_plugin_next_thread(t)) {
		size_t at = text->len;

		tess_safe_text_add(text, n ? ", " : "; meanwhile in ");
		add_rank(text, t);
		if (t != tess_plugin_thread_own && tess_plugin_frame_describe(t, text, &place)) {
			n++;
		} else {
			text->len = at;
			text->at[at] = '\0';
		}
	}
}

static void print_fault(const struct fault_signal *f, const siginfo_t *info,
                        const ucontext_t *context)
{
	struct tess_plugin_thread *own = tess_plugin_thread_own;
	char line[FAULT_LINE_BYTES];
	struct tess_safe_text text = { .size = sizeof line - 1, .at = line };
	struct tess_plugin_place place;
	bool inside;

	if (own)
		add_rank(&text, own);
	tess_safe_text_add(&text, "plugin: error: ");
	inside = own && tess_plugin_frame_describe(own, &text, &place);
	tess_safe_text_add(&text,
	                   inside ? ": signal " : "outside of the calls of plugins: signal ");
	tess_safe_text_add_number(&text, (uint64_t)f->number, 10);
	tess_safe_text_add(&text, " (");
	tess_safe_text_add(&text, f->name);
	tess_safe_text_add(&text, ")");
	add_place(&text, f, info, context);
	if (!inside)
		add_other_calls(&text);
	line[text.len++] = '\n';
	if (write(atomic_load(&report_fd), line, text.len) < 0)
		return; /* there is no other place to report it */
}

static void handle_fault(int number, siginfo_t *info, void *context);

/* Returns whether the handler of this file handles the signal. */
static bool has_own_handler(int number)
{
	struct sigaction now;

	return !sigaction(number, NULL, &now) && now.sa_flags & SA_SIGINFO &&
	       now.sa_sigaction == handle_fault;
}

static void restore_handlers(void)
{
	for (size_t i = 0; i < FAULTS; i++)
		if (has_own_handler(faults[i].number))
			sigaction(faults[i].number, &handlers_before[i], NULL);
}

/*
 * Reports the first fault, restores the handlers from before, and returns: a faulting instruction
 * faults again, other signals are raised again. Other faults wait for the report. Then, if this
 * handler is still the one of their signal, the default action ends the process: a handler may have
 * restored this one, or the report has faulted or blocks.
 */
static void handle_fault(int number, siginfo_t *info, void *context)
{
	const struct fault_signal *f = &faults[find_fault(number)];
	const struct timespec pause = { .tv_nsec = 1000000 };
	int saved = errno, none = 0;

	if (atomic_compare_exchange_strong(&reporting_fault, &none, 1)) {
		print_fault(f, info, context);
		restore_handlers();
		atomic_store(&fault_reported, true);
	} else {
		for (int ms = 0; ms < REPORT_WAIT_MS && !atomic_load(&fault_reported); ms++)
			nanosleep(&pause, NULL);
		if (has_own_handler(number))
			signal(number, SIG_DFL);
	}
	errno = saved;
	if (info->si_code <= 0 || number == SIGABRT)
		raise(number);
}

static bool is_ignored(const struct sigaction *act)
{
	return !(act->sa_flags & SA_SIGINFO) && act->sa_handler == SIG_IGN;
}

tess_status tess_crash_reports_enable(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct sigaction act = { .sa_sigaction = handle_fault,
		                 .sa_flags = SA_SIGINFO | SA_ONSTACK },
			 now;
	int err = 0;

	sigemptyset(&act.sa_mask);
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < FAULTS && !err && !atomic_load(&reporting_fault); i++)
		if (!has_own_handler(faults[i].number)) {
			err = sigaction(faults[i].number, NULL, &now) ? errno : 0;
			handlers_before[i] = now;
			if (!err && !is_ignored(&now) && sigaction(faults[i].number, &act, NULL))
				err = errno;
		}
	pthread_mutex_unlock(&lock);
	if (err)
		return tess_fail(TESS_EIO, "the handlers of faults cannot be installed: %s",
		                 strerror(err));
	tess_plugin_use_signal_stacks();
	return TESS_OK;
}

tess_status tess_crash_reports_redirect(int32_t fd)
{
	if (fcntl(fd, F_GETFD) < 0)
		return tess_fail(TESS_EINVAL, "reports of faults: descriptor %d is not open",
		                 (int)fd);
	atomic_store(&report_fd, fd);
	return TESS_OK;
}

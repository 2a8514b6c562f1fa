#include "core/base/thread_state.h"

#include <pthread.h>
#include <string.h>

/*
 * The locale of the process before the first of the running foreign calls. Ranks may be threads, so
 * a rank must not save what another rank's plugin has set.
 */
static struct {
	pthread_mutex_t lock;
	int32_t ncalls;
	char name[512];
} process_locale = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void save_process_locale(void)
{
	const char *name;

	pthread_mutex_lock(&process_locale.lock);
	if (!process_locale.ncalls++) {
		name = setlocale(LC_ALL, NULL);
		*process_locale.name = '\0'; /* too long: not restored */
		if (name && strlen(name) < sizeof process_locale.name)
			strcpy(process_locale.name, name);
	}
	pthread_mutex_unlock(&process_locale.lock);
}

static void restore_process_locale(void)
{
	const char *name;

	pthread_mutex_lock(&process_locale.lock);
	process_locale.ncalls--;
	name = setlocale(LC_ALL, NULL);
	if (*process_locale.name && name && strcmp(name, process_locale.name) != 0)
		setlocale(LC_ALL, process_locale.name);
	pthread_mutex_unlock(&process_locale.lock);
}

void tess_float_control_set(uint64_t control)
{
#if defined(__x86_64__)
	static const int rounding[] = { FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO };

	fesetround(rounding[control >> 13 & 3]); /* also of the x87 */
	__builtin_ia32_ldmxcsr((uint32_t)control);
#elif defined(__aarch64__)
	__asm__ volatile("msr fpcr, %0" : : "r"(control));
#else
	fesetround((int)control);
#endif
}

void tess_thread_state_save_all(struct tess_thread_state *s)
{
	fegetenv(&s->environment);
	pthread_sigmask(SIG_SETMASK, NULL, &s->signals);
	save_process_locale();
}

void tess_thread_state_restore_all(const struct tess_thread_state *s)
{
	restore_process_locale();
	pthread_sigmask(SIG_SETMASK, &s->signals, NULL);
	fesetenv(&s->environment);
}

void tess_thread_state_begin(struct tess_thread_state *s)
{
	tess_thread_state_save(s, TESS_STATE_ALL);
	fesetenv(FE_DFL_ENV);
}

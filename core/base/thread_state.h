/*
 * thread_state.h - saves the state of a thread around foreign code: rounding, denormals, locale,
 * signal mask.
 */
#ifndef TESS_BASE_THREAD_STATE_H
#define TESS_BASE_THREAD_STATE_H

#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * TESS_STATE_FLOAT: rounding, denormals and the thread's locale, in a few ns, for frequent calls.
 * TESS_STATE_ALL: also the signal mask, the process's locale and the complete floating-point
 * environment.
 */
enum tess_state_extent { TESS_STATE_FLOAT, TESS_STATE_ALL };

struct tess_thread_state {
	enum tess_state_extent extent;
	uint64_t float_control;
	locale_t locale;
	fenv_t environment;
	sigset_t signals;
};

/* Returns the control bits of floating point: rounding, denormals, traps. */
static inline uint64_t tess_float_control(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_stmxcsr() & ~(uint64_t)0x3f; /* without the flags */
#elif defined(__aarch64__)
	uint64_t control;

	__asm__ volatile("mrs %0, fpcr" : "=r"(control));
	return control;
#else
	return (uint64_t)fegetround();
#endif
}

/* Restores what tess_float_control returned. */
void tess_float_control_set(uint64_t control);

/* Save and restore the additional state of TESS_STATE_ALL, for the functions below. */
void tess_thread_state_save_all(struct tess_thread_state *s);
void tess_thread_state_restore_all(const struct tess_thread_state *s);

static inline void tess_thread_state_save(struct tess_thread_state *s,
                                          enum tess_state_extent extent)
{
	s->extent = extent;
	s->float_control = tess_float_control();
	s->locale = uselocale((locale_t)0);
	if (extent == TESS_STATE_ALL)
		tess_thread_state_save_all(s);
}

/* Saves all of the state and sets the default floating-point environment. */
void tess_thread_state_begin(struct tess_thread_state *s);

static inline void tess_thread_state_restore(const struct tess_thread_state *s)
{
	if (s->extent == TESS_STATE_ALL)
		tess_thread_state_restore_all(s);
	else if (tess_float_control() != s->float_control)
		tess_float_control_set(s->float_control);
	if (uselocale((locale_t)0) != s->locale)
		uselocale(s->locale);
}

#endif

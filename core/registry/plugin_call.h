/*
 * plugin_call.h - calls functions of plugins. Every call uses a macro below, which checks the
 * result and restores the state of the thread.
 */
#ifndef TESS_REGISTRY_PLUGIN_CALL_H
#define TESS_REGISTRY_PLUGIN_CALL_H

#include "core/base/status.h"
#include "core/base/thread_state.h"

/*
 * Returns `st`, which is not TESS_OK. An unknown status becomes TESS_EABI. An unknown status, and a
 * failure without a message, get one with `where` (a module; may be NULL), the plugin, the file
 * that offers `table`, and the function. A message of a style or device that lacks its name or
 * module gets them.
 */
tess_status tess_plugin_check_status(const void *table, const char *name, const char *function,
                                     const char *where, tess_status st);

static inline tess_status tess_plugin_check_returned(const void *table, const char *name,
                                                     const char *function, const char *where,
                                                     tess_status st)
{
	return st == TESS_OK ? st : tess_plugin_check_status(table, name, function, where, st);
}

/*
 * Evaluates `call`, an expression that calls a plugin, to its value; the thread's state (rounding,
 * locale, signal mask) is then as before.
 */
#define TESS_PLUGIN_VALUE_OF(extent, call) \
	__extension__({ \
		struct tess_thread_state thread_state_; \
		tess_thread_state_save(&thread_state_, (extent)); \
		__typeof__(call) value_ = (call); \
		tess_thread_state_restore(&thread_state_); \
		value_; \
	})
#define TESS_PLUGIN_VALUE(call) TESS_PLUGIN_VALUE_OF(TESS_STATE_ALL, call)
/* Evaluates a frequent call, of a step or collective, without system calls. */
#define TESS_PLUGIN_VALUE_QUICK(call) TESS_PLUGIN_VALUE_OF(TESS_STATE_FLOAT, call)

/* Evaluates a call without a value. */
#define TESS_PLUGIN_DO(call) ((void)TESS_PLUGIN_VALUE(((call), 0)))
#define TESS_PLUGIN_DO_QUICK(call) ((void)TESS_PLUGIN_VALUE_QUICK(((call), 0)))

/*
 * Calls (table)->function(...) and checks its status: TESS_PLUGIN_CALL(style, module, layout,
 * &site, &io).
 */
#define TESS_PLUGIN_CALL(table, where, function, ...) \
	(tess_error_clear(), \
	 tess_plugin_check_returned((table), (table)->name, #function, (where), \
	                            TESS_PLUGIN_VALUE((table)->function(__VA_ARGS__))))
#define TESS_PLUGIN_CALL_QUICK(table, where, function, ...) \
	(tess_error_clear(), \
	 tess_plugin_check_returned((table), (table)->name, #function, (where), \
	                            TESS_PLUGIN_VALUE_QUICK((table)->function(__VA_ARGS__))))

#endif

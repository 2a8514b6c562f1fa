/*
 * plugin_call.h - calls functions of plugins. Every call uses a macro below, which checks the
 * result and restores the state of the thread.
 */
#ifndef TESS_REGISTRY_PLUGIN_CALL_H
#define TESS_REGISTRY_PLUGIN_CALL_H

#include "core/base/status.h"
#include "core/base/thread_state.h"
#include "core/registry/plugin_frame.h"

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
 * Evaluates `call`, an expression that calls `function` of the plugin that offers `table`, to its
 * value. The thread's state (rounding, locale, signal mask) is then as before. The call is known to
 * reports of crashes and of calls that do not return (plugin_frame.h).
 */
#define TESS_PLUGIN_NOTED(extent, table, function, where, what, deadline, call) \
	__extension__({ \
		struct tess_plugin_frame frame_; \
		tess_plugin_enter(&frame_, (table), (function), (where), (what), (deadline)); \
		__typeof__(call) noted_ = TESS_CALLBACK_VALUE_OF((extent), call); \
		tess_plugin_leave(&frame_); \
		noted_; \
	})

/* Evaluates a frequent call of the program's own callbacks, which may block as it likes. */
#define TESS_CALLBACK_VALUE_OF(extent, call) \
	__extension__({ \
		struct tess_thread_state thread_state_; \
		tess_thread_state_save(&thread_state_, (extent)); \
		__typeof__(call) value_ = (call); \
		tess_thread_state_restore(&thread_state_); \
		value_; \
	})
#define TESS_CALLBACK_VALUE_QUICK(call) TESS_CALLBACK_VALUE_OF(TESS_STATE_FLOAT, call)

/* (table)->function(...), without a check of its value: TESS_PLUGIN_VALUE(style, module, ...). */
#define TESS_PLUGIN_VALUE(table, where, function, ...) \
	TESS_PLUGIN_NOTED(TESS_STATE_ALL, (table), #function, (where), NULL, 0, \
	                  (table)->function(__VA_ARGS__))
/* Evaluates a frequent call, of a step or collective, without system calls. */
#define TESS_PLUGIN_VALUE_QUICK(table, where, function, ...) \
	TESS_PLUGIN_NOTED(TESS_STATE_FLOAT, (table), #function, (where), NULL, 0, \
	                  (table)->function(__VA_ARGS__))
/* The number of devices of a table; a macro cannot call a function without arguments. */
#define TESS_PLUGIN_COUNT(device) \
	TESS_PLUGIN_NOTED(TESS_STATE_ALL, (device), "count", NULL, NULL, 0, (device)->count())

/* (table)->function(...) without a value. */
#define TESS_PLUGIN_DO(table, where, function, ...) \
	((void)TESS_PLUGIN_NOTED(TESS_STATE_ALL, (table), #function, (where), NULL, 0, \
	                         ((table)->function(__VA_ARGS__), 0)))
#define TESS_PLUGIN_DO_QUICK(table, where, function, ...) \
	((void)TESS_PLUGIN_NOTED(TESS_STATE_FLOAT, (table), #function, (where), NULL, 0, \
	                         ((table)->function(__VA_ARGS__), 0)))

/*
 * Calls (table)->function(...) and checks its status: TESS_PLUGIN_CALL(style, module, layout,
 * &site, &io).
 */
#define TESS_PLUGIN_CALL(table, where, function, ...) \
	TESS_PLUGIN_CALL_UNTIL(TESS_STATE_ALL, 0, table, where, function, __VA_ARGS__)
#define TESS_PLUGIN_CALL_QUICK(table, where, function, ...) \
	TESS_PLUGIN_CALL_FOR(table, where, NULL, function, __VA_ARGS__)
/* A frequent call for `what`, the name of a kind of op or call. */
#define TESS_PLUGIN_CALL_FOR(table, where, what, function, ...) \
	(tess_error_clear(), \
	 tess_plugin_check_returned((table), (table)->name, #function, (where), \
	                            TESS_PLUGIN_NOTED(TESS_STATE_FLOAT, (table), #function, \
	                                              (where), (what), 0, \
	                                              (table)->function(__VA_ARGS__))))
/* A call that may wait until `until`; extent: of the state that is restored. */
#define TESS_PLUGIN_CALL_UNTIL(extent, until, table, where, function, ...) \
	(tess_error_clear(), \
	 tess_plugin_check_returned((table), (table)->name, #function, (where), \
	                            TESS_PLUGIN_NOTED((extent), (table), #function, (where), NULL, \
	                                              (until), (table)->function(__VA_ARGS__))))

#endif

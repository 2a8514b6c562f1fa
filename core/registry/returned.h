/* returned.h - what a plugin's function has returned, judged before the core goes by it. */
#ifndef TESS_REGISTRY_RETURNED_H
#define TESS_REGISTRY_RETURNED_H

#include "core/base/status.h"

/*
 * `st` where it is a failure whose sentence stands. What is no failure (a positive number, an unknown one)
 * becomes TESS_EABI, and a failure without a sentence gets one: `where` (a module; may be NULL), the plugin
 * by name and by the file that offers `table`, the function.
 */
tess_status tess_plugin_check_status(const void *table, const char *name, const char *function,
                                     const char *where, tess_status st);

static inline tess_status tess_plugin_check_returned(const void *table, const char *name,
                                                     const char *function, const char *where,
                                                     tess_status st)
{
	return st == TESS_OK ? st : tess_plugin_check_status(table, name, function, where, st);
}

/* Calls (table)->function(...) and judges it: TESS_PLUGIN_CALL(style, module, layout, &site, &io). */
#define TESS_PLUGIN_CALL(table, where, function, ...) \
	(tess_error_clear(), tess_plugin_check_returned((table), (table)->name, #function, \
	                                                (where), (table)->function(__VA_ARGS__)))

#endif

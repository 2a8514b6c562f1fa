/* returned.h - checks what a function of a plugin has returned. */
#ifndef TESS_REGISTRY_RETURNED_H
#define TESS_REGISTRY_RETURNED_H

#include "core/base/status.h"

/*
 * Returns `st`, which is not TESS_OK. An unknown status becomes TESS_EABI; that, and a failure
 * without a sentence, get one: `where` (a module; may be NULL), the plugin and the file that offers
 * `table`, the function.
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
 * Calls (table)->function(...) and checks its status: TESS_PLUGIN_CALL(style, module, layout,
 * &site, &io).
 */
#define TESS_PLUGIN_CALL(table, where, function, ...) \
	(tess_error_clear(), tess_plugin_check_returned((table), (table)->name, #function, \
	                                                (where), (table)->function(__VA_ARGS__)))

#endif

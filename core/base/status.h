/* status.h - reports failures: a status (tessera/plugin.h) and a message, kept per thread. */
#ifndef TESS_BASE_STATUS_H
#define TESS_BASE_STATUS_H

#include <stdarg.h>
#include <tessera/tessera.h> /* tess_error, tess_fail */

/* Prepends "context: " to this thread's message, and returns `why`. */
tess_status tess_fail_in(tess_status why, const char *fmt, ...) TESS_PRINTF(2, 3);

/* Clears this thread's message, to detect a call that fails without one. */
void tess_error_clear(void);

/* Returns the name of a status, as "TESS_EINVAL"; never NULL. */
const char *tess_status_name(tess_status st);

#endif

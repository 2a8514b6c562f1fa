/* status.h - how things fail, and the sentence that says why. The codes are in tessera/plugin.h. */
#ifndef TESS_BASE_STATUS_H
#define TESS_BASE_STATUS_H

#include <stdarg.h>
#include <tessera/plugin.h>

/* Sets this thread's sentence and returns `why`: `return tess_fail(TESS_EINVAL, "...", ...)`. */
tess_status tess_fail(tess_status why, const char *fmt, ...) TESS_PRINTF(2, 3);

/* Prepends "context: " to this thread's sentence on the way up, and returns `why`. */
tess_status tess_fail_in(tess_status why, const char *fmt, ...) TESS_PRINTF(2, 3);

/* This thread's last sentence; only to be read after a failure. Borrowed, until the next failure. */
const char *tess_error(void);

/* Forgets it, so that a call that fails without one can be told. */
void tess_error_clear(void);

/* "TESS_EINVAL"; never NULL. */
const char *tess_status_name(tess_status st);

#endif

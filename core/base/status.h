/* status.h - reports failures: a status (tessera/plugin.h) and a sentence, kept per thread. */
#ifndef TESS_BASE_STATUS_H
#define TESS_BASE_STATUS_H

#include <stdarg.h>
#include <tessera/plugin.h>

/* Sets this thread's sentence and returns `why`: `return tess_fail(TESS_EINVAL, "...", ...)`. */
tess_status tess_fail(tess_status why, const char *fmt, ...) TESS_PRINTF(2, 3);

/* Prepends "context: " to this thread's sentence on the way up, and returns `why`. */
tess_status tess_fail_in(tess_status why, const char *fmt, ...) TESS_PRINTF(2, 3);

/* This thread's last sentence; valid only after a failure. Borrowed until the next one. */
const char *tess_error(void);

/* Clears it, to detect a call that fails without a sentence. */
void tess_error_clear(void);

/* "TESS_EINVAL"; never NULL. */
const char *tess_status_name(tess_status st);

#endif

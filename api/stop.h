/*
 * stop.h - finds texts that end a sequence, in a text that arrives in parts.
 *
 * The first stop text that is complete ends the text, which is cut before it; of those that are
 * complete at one byte, the longest. The end of the text is held back while it could begin a stop
 * text. So the result does not depend on how the text is cut into parts.
 */
#ifndef TESS_API_STOP_H
#define TESS_API_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <tessera/plugin.h>

struct tess_stop_scan;

/*
 * Opens a scan for n texts, each of 1 byte or more and ended by a 0, one after another in `texts`,
 * which are borrowed. The caller owns *out.
 */
tess_status tess_stop_scan_open(const char *texts, int64_t n, struct tess_stop_scan **out);

/*
 * Adds `len` bytes of complete characters. Gives the *n bytes that precede any stop text, complete
 * characters, borrowed until the next call. *found: a stop text was complete; push no more.
 */
tess_status tess_stop_scan_push(struct tess_stop_scan *s, const char *text, size_t len,
                                const char **out, size_t *n, bool *found);

/*
 * Ends the text with its last `len` bytes, and gives all that was held back; nothing if a stop text
 * was found before. *found: whether one was found, in these bytes or before.
 */
tess_status tess_stop_scan_finish(struct tess_stop_scan *s, const char *text, size_t len,
                                  const char **out, size_t *n, bool *found);

/* Closes a scan. NULL is accepted. */
void tess_stop_scan_close(struct tess_stop_scan *s);

#endif

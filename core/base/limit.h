/* limit.h - names the resource limits behind a failure. */
#ifndef TESS_BASE_LIMIT_H
#define TESS_BASE_LIMIT_H

#include <stddef.h>

/*
 * Appends to a message of at most size - 1 bytes each limit of this process that its cause may be:
 * its name, its value, and how to raise it. It finds the cause by the text of an errno
 * (EMFILE, ENOMEM; EAGAIN of a thread or process) or by "no memory", so messages of plugins and of
 * other libraries are covered. A limit that the message names already is not added again.
 */
void tess_limit_append(char *message, size_t size);

#endif

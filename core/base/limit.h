/* limit.h - names the resource limits behind a failure. */
#ifndef TESS_BASE_LIMIT_H
#define TESS_BASE_LIMIT_H

#include <stddef.h>

/*
 * Appends each resource limit that may be the cause of a message: its name, its value, and how to
 * raise it. The message has at most size - 1 bytes. The cause is found by the text of an errno
 * (EMFILE, ENOMEM; EAGAIN of a thread or process) or by "no memory", so messages of plugins and of
 * other libraries are covered. A limit that the message contains is not appended again.
 */
void tess_limit_append(char *message, size_t size);

#endif

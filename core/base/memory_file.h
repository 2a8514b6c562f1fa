/* memory_file.h - a stream into memory that reports failed allocations. */
#ifndef TESS_BASE_MEMORY_FILE_H
#define TESS_BASE_MEMORY_FILE_H

#include <stdio.h>

/*
 * Opens a stream whose text, ended by 0, is in *text after each write. Free *text after fclose().
 * Unlike open_memstream(), it sets ferror() when memory was short; *text is then incomplete. NULL,
 * with a message: no memory for the stream.
 */
FILE *tess_memory_file_open(char **text, size_t *len);

#endif

/* memory_file.h - a stream into memory that reports a lack of it. */
#ifndef TESS_BASE_MEMORY_FILE_H
#define TESS_BASE_MEMORY_FILE_H

#include <stdio.h>

/*
 * Opens a stream whose text, ended by 0, is in *text after each write; the caller frees it after
 * fclose(). Unlike that of open_memstream(), it has ferror() set, and *text is incomplete, once
 * memory was short. NULL, with a sentence: no memory for the stream.
 */
FILE *tess_memory_file_open(char **text, size_t *len);

#endif

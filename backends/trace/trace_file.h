/*
 * trace_file.h - one file of events that all ranks write to, and that is valid JSON between any two
 * writes.
 *
 * A write puts events in the place of the file's end, and the end behind them, under a lock. Where
 * a rank was killed in the middle of that, the next one to write cuts off what is not whole.
 */
#ifndef TRACE_TRACE_FILE_H
#define TRACE_TRACE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes the file anew, with one event, which is an object. A descriptor; -1 and errno. */
int trace_file_create(const char *path, const char *event);
/* Opens one that another rank has made. */
int trace_file_open(const char *path);
/*
 * Appends `len` bytes of events, each with ",\n" before it. Waits for other ranks up to `patience`
 * ns; false: it could not be written, and the file is as it was.
 */
bool trace_file_append(int fd, const char *text, size_t len, int64_t patience);

/* Writes `s` as the inside of a JSON string; at most capacity - 1 bytes and a 0. */
void trace_file_escape(const char *s, char *out, size_t capacity);

#endif

/*
 * trace_file.h - one file of events, written by all ranks, that is valid JSON between any two
 * writes.
 *
 * A write replaces the closing bytes by events and closing bytes, under a lock. If a rank was
 * killed in between, the next writer cuts off the incomplete event.
 */
#ifndef TRACE_TRACE_FILE_H
#define TRACE_TRACE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Creates or replaces the file, with one event, an object. Returns a descriptor; -1 and errno. */
int trace_file_create(const char *path, const char *event);
/* Opens the file, which another rank has created. */
int trace_file_open(const char *path);
/*
 * Appends `len` bytes of events, each preceded by ",\n". Waits for other ranks up to `patience` ns.
 * False: nothing could be written, and the file is unchanged.
 */
bool trace_file_append(int fd, const char *text, size_t len, int64_t patience);

/* Writes `s` as the contents of a JSON string; at most capacity - 1 bytes and a 0. */
void trace_file_escape(const char *s, char *out, size_t capacity);

#endif

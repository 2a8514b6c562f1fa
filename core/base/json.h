/* json.h - untrusted JSON, through Jansson: refuses duplicate keys, deep nesting and bad UTF-8. */
#ifndef TESS_BASE_JSON_H
#define TESS_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <tessera/plugin.h>

/*
 * Notes each failed allocation of Jansson from now on, so that the functions below fail: its lexer
 * drops characters silently when its buffer cannot grow. They call it themselves. The allocator of
 * the program stays in use.
 */
void tess_json_watch_memory(void);
/* Returns whether any thread lacked memory for a JSON value since tess_json_watch_memory(). */
bool tess_json_lacked_memory(void);

/*
 * Parses `len` bytes, at most 64 levels deep and 512 MiB in memory. A message begins with `name` (a
 * file) and has line, column and reason. Free *out by json_decref.
 */
tess_status tess_json_parse(const char *name, const char *text, size_t len, json_t **out);

/*
 * Parses a line of a .jsonl file as tess_json_parse does, and accepts the character \u0000 in its
 * strings, whose length is json_string_length. `name` NULL: the message is the reason alone.
 */
tess_status tess_json_parse_line(const char *name, const char *text, size_t len, json_t **out);

/*
 * Parses an object and passes its members to `member` one at a time, until a call fails. Only one
 * member is in memory, of at most 128 MiB. `value` is borrowed. Duplicate keys are not detected.
 */
tess_status tess_json_read_members(const char *name, const char *text, size_t len,
                                   tess_status (*member)(void *self, const char *key,
                                                         json_t *value),
                                   void *self);

/* Parses a file of at most `max_bytes`; TESS_ENOENT: no such file. */
tess_status tess_json_load(const char *path, size_t max_bytes, json_t **out);

/* Parses a file as tess_json_load, with all numbers as reals: for integers above 64 bits. */
tess_status tess_json_load_as_real(const char *path, size_t max_bytes, json_t **out);

/*
 * Append `value`, whose ownership they take. Without memory *list or *object is freed and becomes
 * NULL, and stays NULL: the user checks once, at the end.
 */
void tess_json_append(json_t **list, json_t *value);
void tess_json_set(json_t **object, const char *key, json_t *value);

/*
 * Read the value at `key` of an object; *out is unchanged if the key is missing or null.
 * TESS_EINVAL, "where: key: ...": another type, or a number outside [lo, hi].
 */
tess_status tess_json_get_int(const char *where, const json_t *o, const char *key, int64_t lo,
                              int64_t hi, int64_t *out);
tess_status tess_json_get_number(const char *where, const json_t *o, const char *key, double lo,
                                 double hi, double *out);
tess_status tess_json_get_bool(const char *where, const json_t *o, const char *key, bool *out);
/* Fails unless the object has a value of this type at `key`: JSON_OBJECT, JSON_STRING, ... */
tess_status tess_json_require(const char *where, const json_t *o, const char *key, json_type type);

#endif

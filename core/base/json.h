/* json.h - JSON from untrusted files, through Jansson: duplicate keys, deep nesting and bad UTF-8 refused. */
#ifndef TESS_BASE_JSON_H
#define TESS_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <tessera/plugin.h>

/*
 * Parses `len` bytes; `name` (a file) starts the sentence, which has line, column or offset and reason.
 * At most 64 levels deep, and of at most 512 MiB in memory. *out is yours: json_decref.
 */
tess_status tess_json_parse(const char *name, const char *text, size_t len, json_t **out);

/*
 * Parses the object that `text` is one member at a time and hands each to `member`, until one fails: of a file
 * with many, one is in memory. `value` is borrowed. Keys that are there twice are for `member` to see.
 */
tess_status tess_json_read_members(const char *name, const char *text, size_t len,
                                   tess_status (*member)(void *self, const char *key,
                                                         json_t *value),
                                   void *self);

/* The whole file, of at most `most` bytes; TESS_ENOENT when it is not there. */
tess_status tess_json_load(const char *path, size_t max_bytes, json_t **out);

/* The same with all numbers as reals: for files that hold whole numbers of more than 64 bits. */
tess_status tess_json_load_as_real(const char *path, size_t max_bytes, json_t **out);

/*
 * The value at `key` of an object; *out stays as it is where the key is missing or null. Another type, or a
 * number outside [lo, hi], is TESS_EINVAL with "where: key: ..." as its sentence.
 */
tess_status tess_json_get_int(const char *where, const json_t *o, const char *key, int64_t lo,
                              int64_t hi, int64_t *out);
tess_status tess_json_get_number(const char *where, const json_t *o, const char *key, double lo,
                                 double hi, double *out);
tess_status tess_json_get_bool(const char *where, const json_t *o, const char *key, bool *out);

#endif

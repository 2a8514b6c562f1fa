/* json.h - JSON from untrusted files, through Jansson: duplicate keys, deep nesting and bad UTF-8 refused. */
#ifndef TESS_BASE_JSON_H
#define TESS_BASE_JSON_H

#include <jansson.h>
#include <tessera/plugin.h>

/*
 * Parses `len` bytes; `name` (a file) starts the sentence, which has line, column or offset and reason.
 * At most 64 levels deep. *out is yours: json_decref.
 */
tess_status tess_json_parse(const char *name, const char *text, size_t len, json_t **out);

/* The whole file, of at most `most` bytes; TESS_ENOENT when it is not there. */
tess_status tess_json_load(const char *path, size_t most, json_t **out);

#endif

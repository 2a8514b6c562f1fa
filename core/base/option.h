/*
 * option.h - options: one table per file, {key, default, help}. An argument (tess_option_set)
 * overrides the environment's TESSERA_<KEY>, which overrides the default. There are no
 * configuration files.
 */
#ifndef TESS_BASE_OPTION_H
#define TESS_BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tessera/plugin.h>

/*
 * Declares a table that ends with key NULL, borrowed with its strings for the life of the process.
 * `owner` is its file or plugin. Declaring a table again does nothing. TESS_EINVAL: the key has
 * been declared with another default. Safe from any thread.
 */
tess_status tess_option_add(const char *owner, const struct tess_option *table);

/*
 * Declares the tables of all files of the library, for keys that are used before their readers run.
 * Defined in api/options.c, which may include those files.
 */
tess_status tess_options_declare(void);

/* Returns the value of a declared key, borrowed, never NULL; "" for an undeclared key, a bug. */
const char *tess_option_get(const char *key);

/*
 * Read the value as an integer in [lo, hi], or as seconds ("300", "0.5") in nanoseconds.
 * TESS_EINVAL: the message has the variable and the rule.
 */
tess_status tess_option_get_int(const char *key, int64_t lo, int64_t hi, int64_t *out);
tess_status tess_option_get_seconds(const char *key, int64_t *ns);

/* Sets a value from a command-line argument; copies it. TESS_EINVAL: the key is not declared. */
tess_status tess_option_set(const char *key, const char *value);

/* A declared option, for `tessera info --options`. */
struct tess_option_info {
	const char *key, *preset, *help, *owner, *value;
	const char *origin; /* "default", "environment" or "argument" */
};
int tess_option_at(size_t i, struct tess_option_info *out);

/*
 * Warns about each TESSERA_* variable that is not declared, with the nearest name. `later`, which
 * may be NULL, returns whether a key may still be declared (tess_registry_may_declare).
 */
void tess_option_check_environment(bool (*later)(const char *key));

/* Returns the edit distance of two words, ignoring case, by their first 127 bytes. */
size_t tess_edit_distance(const char *a, const char *b);

/*
 * Returns, for "did you mean", whether `word` may be a typo of `name` and is nearer than *best,
 * which is updated. Start with TESS_NEAREST_INIT.
 */
#define TESS_NEAREST_INIT SIZE_MAX
bool tess_nearest_update(const char *word, const char *name, size_t *best);

#endif

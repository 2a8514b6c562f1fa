/*
 * option.h - options: one table per file, {key, preset, help}; the environment's TESSERA_<KEY> wins
 * over the preset, and an argument (tess_option_set) over both. No configuration files.
 */
#ifndef TESS_BASE_OPTION_H
#define TESS_BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tessera/plugin.h>

/*
 * Declares a table that ends with key NULL; it and its strings stay borrowed for the life of the
 * process. `owner` is the file or plugin it belongs to. The same table again: nothing happens.
 * A key that another owner declared with another preset: TESS_EINVAL. Safe from any thread.
 */
tess_status tess_option_add(const char *owner, const struct tess_option *table);

/* The value of a declared key. Never NULL: an undeclared key is "" (and a defect). Borrowed. */
const char *tess_option(const char *key);

/*
 * The value as an integer in [lo, hi], or as seconds ("300", "0.5") in nanoseconds. Else TESS_EINVAL and a
 * sentence that names the variable and the rule.
 */
tess_status tess_option_get_int(const char *key, int64_t lo, int64_t hi, int64_t *out);
tess_status tess_option_get_seconds(const char *key, int64_t *ns);

/* Sets a value from an argument of the command. `value` is copied. TESS_EINVAL: nobody declared the key. */
tess_status tess_option_set(const char *key, const char *value);

/* The i-th declared option, for `tessera info --options`: false past the end. */
struct tess_option_info {
	const char *key, *preset, *help, *owner, *value;
	const char *origin; /* "default", "environment" or "argument" */
};
int tess_option_at(size_t i, struct tess_option_info *out);

/*
 * Warns about each TESSERA_* variable that nobody declared, with the nearest name. Tables come first;
 * `later` says which keys may be declared yet (tess_registry_may_declare). It may be NULL.
 */
void tess_option_check_environment(bool (*later)(const char *key));

/* The number of edits between two words, in capitals or not, of which the first 127 bytes count. */
size_t tess_edit_distance(const char *a, const char *b);

/*
 * For "did you mean": whether `name` is a plausible miss of `word` and nearer than *best, which it then
 * becomes. Start with TESS_NEAREST_INIT.
 */
#define TESS_NEAREST_INIT SIZE_MAX
bool tess_nearest_update(const char *word, const char *name, size_t *best);

#endif

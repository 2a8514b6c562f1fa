#include "core/base/option.h"

#include "core/base/log.h"
#include "core/base/status.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_SIZE = 64, WORD_SIZE = 128 };

struct option_value {
	struct option_value *old; /* kept, since it may still be borrowed */
	char text[];
};

/* Entries are appended under the lock and never removed: readers need none. */
struct entry {
	const struct tess_option *option;
	const char *owner;
	_Atomic(struct option_value *) argument;
	_Atomic(struct entry *) next;
};

static struct entry first_entry = { .option = &tess_log_option, .owner = "core/base/log.c" };
static pthread_mutex_t add_lock = PTHREAD_MUTEX_INITIALIZER;

static struct entry *find_entry(const char *key)
{
	struct entry *e = &first_entry;

	while (e && strcmp(e->option->key, key) != 0)
		e = atomic_load(&e->next);
	return e;
}

/* Makes "TESSERA_KEY"; false: the key is not [a-z0-9_]+, or too long. */
static bool make_variable_name(const char *key, char name[static KEY_SIZE])
{
	size_t n = (size_t)snprintf(name, KEY_SIZE, "TESSERA_%s", key);

	if (!*key || n >= KEY_SIZE ||
	    strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(key))
		return false;
	for (char *p = name; *p; p++)
		*p = (char)toupper((unsigned char)*p);
	return true;
}

static const char *get_value(struct entry *e, const char **origin)
{
	struct option_value *argument = atomic_load(&e->argument);
	char name[KEY_SIZE];
	const char *env;

	*origin = "argument";
	if (argument)
		return argument->text;
	*origin = "environment";
	env = make_variable_name(e->option->key, name) ? secure_getenv(name) : NULL;
	if (env)
		return env;
	*origin = "default";
	return e->option->preset;
}

/* Adds an option; the lock is held. */
static tess_status add_option(const char *owner, const struct tess_option *o)
{
	char name[KEY_SIZE];
	struct entry *e = &first_entry, *next;

	if (!make_variable_name(o->key, name) || !o->preset || !o->help)
		return tess_fail(
			TESS_EINVAL,
			"%s: option \"%s\": a key of a-z, 0-9 and _ (at most %zu), a preset and "
			"a help text are needed",
			owner, o->key, KEY_SIZE - sizeof "TESSERA_");
	for (; strcmp(e->option->key, o->key) != 0; e = next) {
		next = atomic_load(&e->next);
		if (next)
			continue;
		next = calloc(1, sizeof *next);
		if (!next)
			return tess_fail(TESS_ENOMEM, "%s: out of memory for option %s", owner,
			                 o->key);
		next->option = o;
		next->owner = owner;
		atomic_store(&e->next, next);
		return TESS_OK;
	}
	if (e->option != o && strcmp(e->option->preset, o->preset) != 0)
		return tess_fail(
			TESS_EINVAL,
			"%s: option %s with the preset \"%s\" is declared by %s with \"%s\"; "
			"choose another key",
			owner, o->key, o->preset, e->owner, e->option->preset);
	return TESS_OK;
}

tess_status tess_option_add(const char *owner, const struct tess_option *table)
{
	tess_status st = TESS_OK;

	pthread_mutex_lock(&add_lock);
	for (; table->key && !st; table++)
		st = add_option(owner, table);
	pthread_mutex_unlock(&add_lock);
	return st;
}

/* Finds an option, which may be set before its reader has run. */
static struct entry *find_known_entry(const char *key)
{
	struct entry *e = key ? find_entry(key) : NULL;

	if (!e && key && !tess_options_declare())
		e = find_entry(key);
	return e;
}

const char *tess_option_get(const char *key)
{
	struct entry *e = find_known_entry(key);
	const char *origin;

	return e ? get_value(e, &origin) : "";
}

static tess_status fail_value(const char *key, const char *value, const char *rule)
{
	char name[KEY_SIZE];

	if (!make_variable_name(key, name))
		return tess_fail(TESS_EBUG, "\"%s\" is not the key of an option", key);
	return tess_fail(TESS_EINVAL, "%s=%s: %s is needed", name, value, rule);
}

tess_status tess_option_get_int(const char *key, int64_t lo, int64_t hi, int64_t *out)
{
	const char *text = tess_option_get(key), *p = text + (*text == '-');
	bool fits = isdigit((unsigned char)*p);
	int64_t value = 0;
	char rule[96];

	for (; fits && isdigit((unsigned char)*p); p++)
		fits = !__builtin_mul_overflow(value, 10, &value) &&
		       !__builtin_add_overflow(value, *text == '-' ? '0' - *p : *p - '0', &value);
	if (!fits || *p || value < lo || value > hi) {
		snprintf(rule, sizeof rule, "a whole number from %lld to %lld", (long long)lo,
		         (long long)hi);
		return fail_value(key, text, rule);
	}
	*out = value;
	return TESS_OK;
}

tess_status tess_option_get_seconds(const char *key, int64_t *ns)
{
	const int64_t max_seconds = 1000000000, second = 1000000000;
	const char *text = tess_option_get(key), *p = text;
	int64_t whole = 0, part = 0, unit = second;

	for (; isdigit((unsigned char)*p) && whole <= max_seconds; p++)
		whole = whole * 10 + (*p - '0');
	if (p > text && *p == '.')
		for (p++; isdigit((unsigned char)*p); p++) {
			unit /= 10;
			part += unit * (*p - '0');
		}
	if (p == text || *p || whole > max_seconds)
		return fail_value(key, text,
		                  "a number of seconds like 300 or 0.5, at most 1000000000,");
	*ns = whole * second + part;
	return TESS_OK;
}

/* Returns the declared key nearest to `word`, or NULL. */
static const char *find_nearest_key(const char *word)
{
	size_t best = TESS_NEAREST_INIT;
	const char *key = NULL;

	for (struct entry *e = &first_entry; e; e = atomic_load(&e->next))
		if (tess_nearest_update(word, e->option->key, &best))
			key = e->option->key;
	return key;
}

tess_status tess_option_set(const char *key, const char *value)
{
	struct entry *e = find_known_entry(key);
	const char *near = e || !key ? NULL : find_nearest_key(key);
	struct option_value *v;
	size_t len;

	if (!key || !value)
		return tess_fail(TESS_EINVAL, "tess_option_set: the %s is NULL",
		                 key ? "value" : "key");
	if (!e)
		return tess_fail(TESS_EINVAL,
		                 "no option %s%s%s%s; `tessera info --options` lists them", key,
		                 near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
	len = strlen(value) + 1;
	v = malloc(sizeof *v + len);
	if (!v)
		return tess_fail(TESS_ENOMEM, "out of memory for option %s", key);
	memcpy(v->text, value, len);
	v->old = atomic_load(&e->argument);
	while (!atomic_compare_exchange_weak(&e->argument, &v->old, v))
		;
	return TESS_OK;
}

int tess_option_at(size_t i, struct tess_option_info *out)
{
	struct entry *e = &first_entry;

	while (e && i--)
		e = atomic_load(&e->next);
	if (!e)
		return 0;
	out->key = e->option->key;
	out->preset = e->option->preset;
	out->help = e->option->help;
	out->owner = e->owner;
	out->value = get_value(e, &out->origin);
	return 1;
}

void tess_option_check_environment(bool (*later)(const char *key))
{
	const size_t prefix = strlen("TESSERA_");

	for (char **var = environ; var && *var; var++) {
		char key[KEY_SIZE] = "", near_name[KEY_SIZE];
		const char *near;
		size_t len = strcspn(*var, "=");

		if (strncmp(*var, "TESSERA_", prefix) != 0)
			continue;
		if (len < sizeof key)
			for (size_t i = prefix; i < len; i++)
				key[i - prefix] = (char)tolower((unsigned char)(*var)[i]);
		if (find_entry(key) || (later && later(key)))
			continue;
		near = find_nearest_key(key);
		if (near && make_variable_name(near, near_name))
			tess_log(TESS_WARN, "options", "nothing reads %.*s; did you mean %s?",
			         (int)len, *var, near_name);
		else
			tess_log(TESS_WARN, "options",
			         "nothing reads %.*s; `tessera info --options` lists what is read",
			         (int)len, *var);
	}
}

static char lowercase_char(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

size_t tess_edit_distance(const char *a, const char *b)
{
	size_t la = strnlen(a, WORD_SIZE - 1), lb = strnlen(b, WORD_SIZE - 1);
	size_t row[WORD_SIZE];

	for (size_t j = 0; j <= lb; j++)
		row[j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t corner = row[0]; /* in the row above */

		row[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			size_t change = corner +
			                (lowercase_char(a[i - 1]) != lowercase_char(b[j - 1])),
			       drop = row[j] + 1, insert = row[j - 1] + 1;

			corner = row[j];
			row[j] = change < drop ? change : drop;
			row[j] = insert < row[j] ? insert : row[j];
		}
	}
	return row[lb];
}

bool tess_nearest_update(const char *word, const char *name, size_t *best)
{
	size_t d = tess_edit_distance(word, name), limit = 1 + strlen(word) / 4;

	if (d > limit || d >= *best)
		return false;
	*best = d;
	return true;
}

#include "option.h"

#include "log.h"
#include "status.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_ROOM = 64, WORD_ROOM = 128 };

struct value {
	struct value *old; /* borrowed by somebody, so it stays */
	char text[];
};

/* Entries are appended under the lock and never removed: readers need none. */
struct entry {
	const struct tess_option *option;
	const char *owner;
	_Atomic(struct value *) argument;
	_Atomic(struct entry *) next;
};

static struct entry first = { .option = &tess_log_option, .owner = "core/base/log.c" };
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

static struct entry *entry_of(const char *key)
{
	struct entry *e = &first;

	while (e && strcmp(e->option->key, key) != 0)
		e = atomic_load(&e->next);
	return e;
}

/* "TESSERA_KEY"; false where the key is not [a-z0-9_]+ of a reasonable length. */
static bool variable_of(const char *key, char name[static KEY_ROOM])
{
	size_t n = (size_t)snprintf(name, KEY_ROOM, "TESSERA_%s", key);

	if (!*key || n >= KEY_ROOM ||
	    strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(key))
		return false;
	for (char *p = name; *p; p++)
		*p = (char)toupper((unsigned char)*p);
	return true;
}

static const char *value_of(struct entry *e, const char **origin)
{
	struct value *argument = atomic_load(&e->argument);
	char name[KEY_ROOM];
	const char *env;

	*origin = "argument";
	if (argument)
		return argument->text;
	*origin = "environment";
	env = variable_of(e->option->key, name) ? secure_getenv(name) : NULL;
	if (env)
		return env;
	*origin = "default";
	return e->option->preset;
}

/* With the lock held. */
static tess_status add_one(const char *owner, const struct tess_option *o)
{
	char name[KEY_ROOM];
	struct entry *e = &first, *next;

	if (!variable_of(o->key, name) || !o->preset || !o->help)
		return tess_fail(
			TESS_EINVAL,
			"%s: option \"%s\": a key of a-z, 0-9 and _ (at most %zu), a preset and "
			"a help text are needed",
			owner, o->key, KEY_ROOM - sizeof "TESSERA_");
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
			"%s: option %s with the preset \"%s\" is declared by %s with \"%s\"; choose "
			"another key",
			owner, o->key, o->preset, e->owner, e->option->preset);
	return TESS_OK;
}

tess_status tess_option_add(const char *owner, const struct tess_option *table)
{
	tess_status st = TESS_OK;

	pthread_mutex_lock(&adding);
	for (; table->key && !st; table++)
		st = add_one(owner, table);
	pthread_mutex_unlock(&adding);
	return st;
}

const char *tess_option(const char *key)
{
	struct entry *e = entry_of(key);
	const char *origin;

	return e ? value_of(e, &origin) : "";
}

static tess_status unfit(const char *key, const char *value, const char *rule)
{
	char name[KEY_ROOM];

	if (!variable_of(key, name))
		return tess_fail(TESS_EBUG, "\"%s\" is no key of an option", key);
	return tess_fail(TESS_EINVAL, "%s=%s: %s is needed", name, value, rule);
}

tess_status tess_option_int(const char *key, int64_t lo, int64_t hi, int64_t *out)
{
	const char *text = tess_option(key), *p = text + (*text == '-');
	bool fits = isdigit((unsigned char)*p);
	int64_t value = 0;
	char rule[96];

	for (; fits && isdigit((unsigned char)*p); p++)
		fits = !__builtin_mul_overflow(value, 10, &value) &&
		       !__builtin_add_overflow(value, *text == '-' ? '0' - *p : *p - '0', &value);
	if (!fits || *p || value < lo || value > hi) {
		snprintf(rule, sizeof rule, "a whole number from %lld to %lld", (long long)lo,
		         (long long)hi);
		return unfit(key, text, rule);
	}
	*out = value;
	return TESS_OK;
}

tess_status tess_option_seconds(const char *key, int64_t *ns)
{
	const int64_t most = 1000000000, second = 1000000000;
	const char *text = tess_option(key), *p = text;
	int64_t whole = 0, part = 0, unit = second;

	for (; isdigit((unsigned char)*p) && whole <= most; p++)
		whole = whole * 10 + (*p - '0');
	if (p > text && *p == '.')
		for (p++; isdigit((unsigned char)*p); p++) {
			unit /= 10;
			part += unit * (*p - '0');
		}
	if (p == text || *p || whole > most)
		return unfit(key, text, "a number of seconds like 300 or 0.5, at most 1000000000,");
	*ns = whole * second + part;
	return TESS_OK;
}

/* The declared key that `word` may have meant, or NULL. */
static const char *nearest_key(const char *word)
{
	size_t best = TESS_FAR;
	const char *key = NULL;

	for (struct entry *e = &first; e; e = atomic_load(&e->next))
		if (tess_nearer(word, e->option->key, &best))
			key = e->option->key;
	return key;
}

tess_status tess_option_set(const char *key, const char *value)
{
	struct entry *e = entry_of(key);
	const char *near = e ? NULL : nearest_key(key);
	size_t len = strlen(value) + 1;
	struct value *v;

	if (!e)
		return tess_fail(TESS_EINVAL,
		                 "no option %s%s%s%s; `tessera info --options` lists them", key,
		                 near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
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
	struct entry *e = &first;

	while (e && i--)
		e = atomic_load(&e->next);
	if (!e)
		return 0;
	out->key = e->option->key;
	out->preset = e->option->preset;
	out->help = e->option->help;
	out->owner = e->owner;
	out->value = value_of(e, &out->origin);
	return 1;
}

void tess_option_check_environment(bool (*later)(const char *key))
{
	const size_t prefix = strlen("TESSERA_");

	for (char **var = environ; var && *var; var++) {
		char key[KEY_ROOM] = "", near_name[KEY_ROOM];
		const char *near;
		size_t len = strcspn(*var, "=");

		if (strncmp(*var, "TESSERA_", prefix) != 0)
			continue;
		if (len < sizeof key)
			for (size_t i = prefix; i < len; i++)
				key[i - prefix] = (char)tolower((unsigned char)(*var)[i]);
		if (entry_of(key) || (later && later(key)))
			continue;
		near = nearest_key(key);
		if (near && variable_of(near, near_name))
			tess_log(TESS_WARN, "options", "nothing reads %.*s; did you mean %s?",
			         (int)len, *var, near_name);
		else
			tess_log(TESS_WARN, "options",
			         "nothing reads %.*s; `tessera info --options` lists what is read",
			         (int)len, *var);
	}
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

size_t tess_distance(const char *a, const char *b)
{
	size_t la = strnlen(a, WORD_ROOM - 1), lb = strnlen(b, WORD_ROOM - 1);
	size_t row[WORD_ROOM];

	for (size_t j = 0; j <= lb; j++)
		row[j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t corner = row[0]; /* of the row above */

		row[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			size_t change = corner + (lower(a[i - 1]) != lower(b[j - 1])),
			       drop = row[j] + 1, insert = row[j - 1] + 1;

			corner = row[j];
			row[j] = change < drop ? change : drop;
			row[j] = insert < row[j] ? insert : row[j];
		}
	}
	return row[lb];
}

bool tess_nearer(const char *word, const char *name, size_t *best)
{
	size_t d = tess_distance(word, name), limit = 1 + strlen(word) / 4;

	if (d > limit || d >= *best)
		return false;
	*best = d;
	return true;
}

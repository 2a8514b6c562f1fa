#include "core/registry/registry.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/sized.h"
#include "core/base/status.h"
#include "core/registry/file.h"
#include "core/registry/plugin_call.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

static struct tess_registry registry = {
	.host = {
		.size = sizeof(struct tess_host), .abi = TESS_ABI,
		.fail = tess_fail, .log = tess_log, .option = tess_option_get,
		.backend = tess_plugin_find_backend, .device = tess_plugin_find_device,
	},
};
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

struct tess_registry *tess_registry_lock(void)
{
	pthread_mutex_lock(&registry_lock);
	return &registry;
}

void tess_registry_unlock(void)
{
	pthread_mutex_unlock(&registry_lock);
}

const struct tess_host *tess_registry_host(void)
{
	return &registry.host;
}

static bool offers_name(const struct tess_file *f, const struct tess_offer *o, const char *name)
{
	const char *const *more = o->aliases;

	if (f->kind != TESS_MODELS && !strcmp(o->name, name))
		return true;
	for (; more && *more; more++)
		if (!strcmp(*more, name))
			return true;
	return false;
}

/* Returns whether two names differ only in digits, as the families gemma2 and gemma3. */
static bool differs_in_version(const char *a, const char *b)
{
	static const char digits[] = "0123456789";

	do {
		a += strspn(a, digits);
		b += strspn(b, digits);
		if (*a != *b)
			return false;
	} while (*a++ && *b++);
	return true;
}

/* Returns the nearest name among the files of this kind and their offers. */
static const char *find_nearest_name(int32_t kind, const char *name)
{
	const char *near = NULL;
	size_t best = TESS_NEAREST_INIT;

	for (const struct tess_file *f = registry.files; f; f = f->next) {
		if (f->kind != kind)
			continue;
		if (f->dir && kind <= TESS_DEVICES && tess_nearest_update(name, f->stem, &best))
			near = f->stem;
		for (size_t i = 0; i < f->noffers; i++) {
			const struct tess_offer *o = &f->offers[i];

			if (kind != TESS_MODELS && tess_nearest_update(name, o->name, &best))
				near = o->name;
			for (const char *const *more = o->aliases; more && *more; more++)
				if (!(kind == TESS_MODELS && differs_in_version(name, *more)) &&
				    tess_nearest_update(name, *more, &best))
					near = *more;
		}
	}
	return near;
}

/* Formats the known model types and a way out: "; the types are gpt2, llama; ...", or "". */
static const char *list_types(size_t size, char *out)
{
	size_t at = 0;

	*out = 0;
	for (const struct tess_file *f = registry.files; f; f = f->next)
		for (size_t i = 0; f->kind == TESS_MODELS && i < f->noffers; i++)
			for (const char *const *t = f->offers[i].aliases; t && *t && at < size; t++)
				at += (size_t)snprintf(out + at, size - at, "%s%.80s",
				                       at ? ", " : "; the types are ", *t);
	if (at && at < size)
		snprintf(out + at, size - at, "; a plugin adds others (docs/model-tutorial.md)");
	return out;
}

static tess_status fail_not_found(int32_t kind, const char *name)
{
	const char *near = find_nearest_name(kind, name), *word = tess_plugin_kind_names[kind];
	char what[160], refused[80] = "", types[512] = "";
	size_t n = 0;

	if (!*name && kind <= TESS_DEVICES)
		return tess_fail(TESS_ENOENT, "the name of the %s is empty; name one, or unset %s",
		                 word, kind == TESS_DEVICES ? "TESSERA_DEVICE" : "TESSERA_BACKEND");
	for (const struct tess_file *f = registry.files; f; f = f->next)
		n += f->kind == kind && f->checked && f->status && !f->shadowed;
	if (n)
		snprintf(refused, sizeof refused,
		         "; %zu %s file%s refused; `tessera info` has the reasons", n, word,
		         n == 1 ? " was" : "s were");
	if (kind <= TESS_DEVICES)
		snprintf(what, sizeof what, "no tess-%s-%.80s.so", word, name);
	else
		snprintf(what, sizeof what,
		         kind == TESS_MODELS ? "no file has a model of type \"%.80s\""
		                             : "no file has a style %.80s",
		         name);
	if (kind == TESS_MODELS)
		list_types(sizeof types, types);
	if (kind == TESS_STYLES && !near)
		snprintf(types, sizeof types, "; `tessera info` lists the styles");
	return tess_fail(TESS_ENOENT, "%s %.80s: not found: %s in %s%s%s%s%s%s", word, name, what,
	                 registry.searched_paths, near ? "; did you mean " : "", near ? near : "",
	                 near ? "?" : "", types, refused);
}

static tess_status fail_conflict(int32_t kind, const char *name, const struct tess_file *a,
                                 const struct tess_file *b)
{
	return tess_fail(TESS_EINVAL, "%s %s: refused: two files offer it, %s and %s; remove one",
	                 tess_plugin_kind_names[kind], name, a->path, b->path);
}

/* Returns whether a file is that of a backend or device `name`, which has the name of its file. */
static bool is_file_of(const struct tess_file *f, const char *name)
{
	if (f->dir)
		return !strcmp(f->stem, name);
	for (size_t i = 0; i < f->noffers; i++)
		if (offers_name(f, &f->offers[i], name))
			return true;
	return false;
}

/* Opens all files of a kind and finds the only offer of `name`. */
static tess_status find_offer(int32_t kind, const char *name, const void **out)
{
	const struct tess_file *in = NULL, *refused = NULL;
	const void *table = NULL;

	for (struct tess_file *f = registry.files; f; f = f->next) {
		if (f->kind != kind)
			continue;
		if (!f->checked)
			tess_file_open(f, &registry);
		if (f->status && !refused && !strcmp(f->stem, name))
			refused = f;
		for (size_t i = 0; i < f->noffers && !f->status; i++) {
			if (!offers_name(f, &f->offers[i], name))
				continue;
			if (in && in->descriptor != f->descriptor)
				return fail_conflict(kind, name, in, f);
			in = f;
			table = f->offers[i].table;
		}
	}
	if (!table)
		return refused ? tess_fail(refused->status, "%s", refused->why)
		               : fail_not_found(kind, name);
	*out = table;
	return TESS_OK;
}

/* Opens the file of that name, which may be unusable, and returns its offer; NULL: unknown. */
static tess_status open_file_named(int32_t kind, const char *name, const void **out)
{
	struct tess_file *f = registry.files;

	while (f && (f->kind != kind || !is_file_of(f, name)))
		f = f->next;
	if (!f)
		return fail_not_found(kind, name);
	if (!f->checked)
		tess_file_open(f, &registry);
	for (size_t i = 0; i < f->noffers && f->descriptor; i++)
		if (offers_name(f, &f->offers[i], name))
			*out = f->offers[i].table;
	return f->status ? tess_fail(f->status, "%s", f->why) : TESS_OK;
}

tess_status tess_registry_find_table(int32_t kind, const char *name, void *out)
{
	const void *table = NULL;
	tess_status st;

	pthread_mutex_lock(&registry_lock);
	st = tess_registry_search(&registry);
	if (!st)
		st = kind <= TESS_DEVICES ? open_file_named(kind, name, &table)
		                          : find_offer(kind, name, &table);
	pthread_mutex_unlock(&registry_lock);
	if (!st)
		memcpy(out, &table, sizeof table);
	return st;
}

tess_status tess_plugin_inspect_device(const char *name, const struct tess_device **out)
{
	const void *table = NULL;
	tess_status st;

	if (strchr(name, ':'))
		return tess_plugin_find_device(name, out);
	pthread_mutex_lock(&registry_lock);
	st = tess_registry_search(&registry);
	if (!st)
		st = open_file_named(TESS_DEVICES, name, &table);
	pthread_mutex_unlock(&registry_lock);
	if (st == TESS_ENOTSUP && table && ((const struct tess_device *)table)->explains == 1)
		st = TESS_OK;
	if (!st)
		*out = table;
	return st;
}

tess_status tess_plugin_find_style(const char *name, const struct tess_style **out)
{
	return tess_registry_find_table(TESS_STYLES, name, out);
}

tess_status tess_plugin_find_model(const char *type, const struct tess_model **out)
{
	return tess_registry_find_table(TESS_MODELS, type, out);
}

/* Returns a name that both files offer, or NULL. */
static const char *find_common_name(const struct tess_file *a, const struct tess_file *b)
{
	for (size_t i = 0; i < a->noffers; i++)
		for (size_t j = 0; j < b->noffers; j++) {
			const struct tess_offer *o = &b->offers[j];

			if (b->kind != TESS_MODELS && offers_name(a, &a->offers[i], o->name))
				return o->name;
			for (const char *const *more = o->aliases; more && *more; more++)
				if (offers_name(a, &a->offers[i], *more))
					return *more;
		}
	return NULL;
}

/* Reports names offered by two files, in both of them; their other names are usable. */
static tess_status report_conflicts(void)
{
	for (struct tess_file *a = registry.files; a; a = a->next)
		for (struct tess_file *b = a->next; b && !a->status; b = b->next) {
			const char *name;

			if (a->kind != b->kind || b->status || a->descriptor == b->descriptor)
				continue;
			name = find_common_name(a, b);
			if (!name)
				continue;
			fail_conflict(a->kind, name, a, b);
			a->why = b->why = tess_arena_copy(&registry.arena, tess_error(),
			                                  strlen(tess_error()));
			if (!a->why)
				return TESS_ENOMEM;
		}
	return TESS_OK;
}

/* ---- plugins of the program ------------------------------------------------------------------ */

/* Returns a name of `mine` that `f` has: offered, or of its file if that decides; or NULL. */
static const char *find_taken_name(struct tess_file *f, const struct tess_file *mine)
{
	if (!f->dir || f->kind > TESS_DEVICES)
		return find_common_name(f, mine);
	for (size_t i = 0; i < mine->noffers; i++)
		if (!strcmp(f->stem, mine->offers[i].name))
			return mine->offers[i].name;
	return NULL;
}

/* Fails if a plugin has a name of `mine`. Opens files of styles and models, which name them. */
static tess_status check_names_free(const struct tess_file *mine)
{
	for (struct tess_file *f = registry.files; f; f = f->next) {
		const char *name, *word = tess_plugin_kind_names[mine->kind];

		if (f->kind != mine->kind)
			continue;
		if (!f->checked && f->kind > TESS_DEVICES)
			tess_file_open(f, &registry);
		name = f->shadowed ? NULL : find_taken_name(f, mine);
		if (name)
			return tess_fail(TESS_EINVAL,
			                 "%s %s is offered by %s%s, which is used; choose another "
			                 "name",
			                 word, name, tess_file_get_label(f),
			                 f->dir ? "" : ", registered before");
	}
	return TESS_OK;
}

/* Appends files to the list. */
static void append_files(struct tess_file *files)
{
	struct tess_file **end = &registry.files;

	while (*end)
		end = &(*end)->next;
	*end = files;
}

/* Returns whether a descriptor was registered, with the lock held. */
static bool is_registered(const struct tess_plugin *p)
{
	const struct tess_file *f = registry.files;

	while (f && (f->dir || f->descriptor != p))
		f = f->next;
	return f;
}

/* Checks, initialises and lists the plugin, with the lock held. */
static tess_status add_plugin(const struct tess_plugin *p)
{
	struct tess_file *opened = registry.opened, *files = NULL;
	tess_status st = tess_program_make_files(&registry, p, &files);

	for (struct tess_file *f = files; f && !st; f = f->next)
		st = check_names_free(f);
	for (struct tess_file *f = files; f && !st; f = f->next)
		st = tess_file_initialise(f, &registry);
	if (st)
		registry.opened = opened; /* may be registered again, after a way out */
	else
		append_files(files);
	return st;
}

/* Returns the name of a plugin for messages, which may be invalid or missing. */
static const char *get_plugin_name(const struct tess_plugin *p)
{
	return p->abi == TESS_ABI && p->size >= TESS_UPTO(tess_plugin, name) && p->name ? p->name
	                                                                                : "?";
}

tess_status tess_registry_add(const struct tess_plugin *p)
{
	tess_status st = TESS_REQUIRE(p);

	if (st)
		return st;
	pthread_mutex_lock(&registry_lock);
	st = tess_registry_search(&registry);
	if (!st && !is_registered(p)) {
		st = add_plugin(p);
		if (st == TESS_ENOMEM)
			tess_fail(st, "out of memory");
		if (st)
			tess_fail_in(st, "plugin %.80s, registered by the program: %s",
			             get_plugin_name(p),
			             st == TESS_ENOTSUP ? "not usable here" : "refused");
	}
	pthread_mutex_unlock(&registry_lock);
	return st;
}

tess_status tess_registry_open_all(void)
{
	tess_status st;

	pthread_mutex_lock(&registry_lock);
	st = tess_registry_search(&registry);
	if (!st) {
		for (struct tess_file *f = registry.files; f; f = f->next)
			if (!f->checked)
				tess_file_open(f, &registry);
		for (struct tess_file *f = registry.files; f && !st; f = f->next)
			if (f->status == TESS_ENOMEM)
				st = tess_fail(TESS_ENOMEM, "%s", f->why);
		if (!st)
			st = report_conflicts();
	}
	pthread_mutex_unlock(&registry_lock);
	return st;
}

bool tess_registry_at(size_t i, struct tess_plugin_info *out)
{
	const struct tess_file *f;

	pthread_mutex_lock(&registry_lock);
	for (f = registry.files; f && i; i--)
		f = f->next;
	if (f)
		*out = (struct tess_plugin_info){
			.path = f->path,
			.origin = f->dir ? f->dir->origin : "program",
			.kind = f->kind < 0 ? "" : tess_plugin_kind_names[f->kind],
			.status = f->status,
			.why = f->why,
			.abi = f->abi,
			.name = f->plugin.name ? f->plugin.name : "",
			.version = f->plugin.version ? f->plugin.version : "",
			.license = f->plugin.license ? f->plugin.license : "",
			.summary = f->plugin.summary ? f->plugin.summary : "",
			.offers = f->offers,
			.noffers = f->noffers,
		};
	pthread_mutex_unlock(&registry_lock);
	return f != NULL;
}

bool tess_registry_may_declare(const char *key)
{
	bool may = false;

	pthread_mutex_lock(&registry_lock);
	for (const struct tess_file *f = registry.files; f && !may; f = f->next) {
		size_t len = strlen(f->stem);

		may = !f->checked && !strncmp(key, f->stem, len) && (!key[len] || key[len] == '_');
	}
	pthread_mutex_unlock(&registry_lock);
	return may;
}

bool tess_registry_dir_at(size_t i, const char **path, const char **origin)
{
	const struct tess_dir *d;

	pthread_mutex_lock(&registry_lock);
	for (d = registry.dirs; d && i; i--)
		d = d->next;
	if (d) {
		*path = d->path;
		*origin = d->origin;
	}
	pthread_mutex_unlock(&registry_lock);
	return d != NULL;
}

void tess_registry_skip_quit(void)
{
	pthread_mutex_lock(&registry_lock);
	for (struct tess_file *f = registry.opened; f; f = f->opened)
		f->initialised = false;
	pthread_mutex_unlock(&registry_lock);
}

void tess_registry_quit(void)
{
	pthread_mutex_lock(&registry_lock);
	for (struct tess_file *f = registry.opened; f; f = f->opened) {
		if (f->initialised && f->plugin.quit)
			(void)TESS_PLUGIN_NOTED(TESS_STATE_ALL, NULL, "quit",
			                        tess_file_get_label(f), NULL, 0,
			                        (f->plugin.quit(), 0));
		f->initialised = false;
	}
	pthread_mutex_unlock(&registry_lock);
}

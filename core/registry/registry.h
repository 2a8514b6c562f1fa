/*
 * registry.h - plugins by name: found, judged and opened once, and kept for the life of the process.
 *
 * Files are tess-<kind>-<name>.so. A backend or device opens the file of its name and no other; a style
 * or a model is looked up in all files of its kind. Safe from any thread. Three kinds of failure: not
 * found (TESS_ENOENT: directories tried, nearest names), refused (TESS_EABI, TESS_EPERM, TESS_EINVAL: file
 * and rule), not usable here (TESS_ENOTSUP: the loader's or the plugin's own words).
 */
#ifndef TESS_REGISTRY_H
#define TESS_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/group.h>
#include <tessera/model.h>
#include <tessera/style.h>

/* TESSERA_PLUGIN_PATH; declared by the first look-up. */
extern const struct tess_option tess_registry_options[];

/*
 * Puts a directory, an absolute path that is copied, before all others that are searched. TESS_EINVAL
 * once something has been looked up.
 */
tess_status tess_registry_add_dir(const char *path);

/*
 * The table of a name or, for styles, an alias; models go by model_type of config.json. Borrowed. It is
 * the core's own copy: what the plugin's header did not know yet is NULL, required operations are not.
 * A backend's name may say what it wraps: "trace:gloo". TESS_EINVAL: it wraps none, or must.
 */
tess_status tess_plugin_find_backend(const char *name, const struct tess_backend **out);
tess_status tess_plugin_find_device(const char *name, const struct tess_device **out);
tess_status tess_plugin_find_style(const char *name, const struct tess_style **out);
tess_status tess_plugin_find_model(const char *type, const struct tess_model **out);

/* The backend at the bottom of a name: "gloo" of "trace:gloo". */
static inline const char *tess_backend_wrapped(const char *name)
{
	const char *last = strrchr(name, ':');

	return last ? last + 1 : name;
}

/* What init() of a plugin gets: without the recording calls, which a site has (nn/record.c). Borrowed. */
const struct tess_host *tess_registry_host(void);

/*
 * Whether the key of an option starts with the name of a plugin that is there but has not been opened: it
 * may be declared yet.
 */
bool tess_registry_may_declare(const char *key);

/* A thread that cannot be ended may be in a plugin: quit() is called of none of them. */
void tess_registry_skip_quit(void);

/* Calls quit() of all opened plugins, last opened first, each once. No plugin is used afterwards. */
void tess_registry_quit(void);

/* One backend, device, style or model. `aliases`: of a style; of a model its types; NULL or ends with NULL. */
struct tess_offer {
	const char *name, *summary;
	const char *const *aliases;
	const void *table; /* struct tess_backend, ... */
};

/* One file; all borrowed. Strings that are not known are "". */
struct tess_plugin_info {
	const char *path;
	const char *kind; /* "": its name tells none */
	const char *origin; /* of its directory */
	tess_status status; /* TESS_OK: taken */
	const char *why; /* why not, or what is to be said of it nevertheless */
	uint32_t abi; /* 0: it was not read */
	const char *name, *version, *license, *summary;
	const struct tess_offer *offers;
	size_t noffers;
};

/* Opens all files that are there: dear, for `tessera info`. Fails only where memory or a search path does. */
tess_status tess_registry_open_all(void);
/* The i-th file found, by file name; false past the end. Without tess_registry_open_all: as known by now. */
bool tess_registry_at(size_t i, struct tess_plugin_info *out);
/* The i-th directory of the search path, with its origin; false past the end. */
bool tess_registry_dir_at(size_t i, const char **path, const char **origin);

#endif

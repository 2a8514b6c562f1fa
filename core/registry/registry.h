/*
 * registry.h - finds, checks and opens plugins by name, once, and keeps them for the life of the
 * process.
 *
 * Files are tess-<kind>-<name>.so. A backend or device is in the file of its name; a style or a
 * model is looked up in all files of its kind. Safe from any thread. There are three kinds of
 * failure: not found (TESS_ENOENT: searched directories, nearest name), refused (TESS_EABI,
 * TESS_EPERM, TESS_EINVAL: file and rule), unusable here (TESS_ENOTSUP: message of the loader or
 * the plugin).
 */
#ifndef TESS_REGISTRY_REGISTRY_H
#define TESS_REGISTRY_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <tessera/device.h>
#include <tessera/group.h>
#include <tessera/model.h>
#include <tessera/style.h>

/* The option TESSERA_PLUGIN_PATH, which the first lookup declares. */
extern const struct tess_option tess_registry_options[];

/*
 * Return the table of a name, borrowed. A style has aliases; the name of a model is the model_type
 * of config.json. The table is a copy: fields newer than the plugin's header are NULL, required
 * operations are not. The name of a backend or device may include the one that it wraps:
 * "trace:gloo", "mine:cpu". TESS_EINVAL: it cannot wrap one, or must.
 */
tess_status tess_plugin_find_backend(const char *name, const struct tess_backend **out);
tess_status tess_plugin_find_device(const char *name, const struct tess_device **out);
/* Finds a device that may be unusable on this machine, if its table `explains`. */
tess_status tess_plugin_inspect_device(const char *name, const struct tess_device **out);
tess_status tess_plugin_find_style(const char *name, const struct tess_style **out);
tess_status tess_plugin_find_model(const char *type, const struct tess_model **out);

enum { TESS_DEVICE_NAME = 256 };
/*
 * Splits the value of TESSERA_DEVICE, NAME[:INDEX], into a name for tess_plugin_find_device and an
 * index, or -1. After a colon, digits are an index, and a name is that of the inner device.
 */
tess_status tess_device_name_parse(const char *text, char name[static TESS_DEVICE_NAME],
                                   int32_t *index);

/* Returns the innermost backend of a name: "gloo" of "trace:gloo". */
static inline const char *tess_backend_wrapped(const char *name)
{
	const char *last = strrchr(name, ':');

	return last ? last + 1 : name;
}

/* Returns the host for init() of a plugin, borrowed; only a site's has recording calls. */
const struct tess_host *tess_registry_host(void);

/* Returns whether a key begins with the name of an unopened plugin, which may declare it. */
bool tess_registry_may_declare(const char *key);

/* Prevents quit() calls of tess_registry_quit(), if a thread may still be in a plugin. */
void tess_registry_skip_quit(void);

/* Calls quit() of all opened plugins once, in reverse order. No plugin is used afterwards. */
void tess_registry_quit(void);

/*
 * A backend, device, style or model. `aliases`: aliases of a style, types of a model; NULL, or ends
 * with NULL.
 */
struct tess_offer {
	const char *name, *summary;
	const char *const *aliases;
	const void *table; /* struct tess_backend, ... */
};

/* A plugin file; strings are borrowed, unknown ones are "". */
struct tess_plugin_info {
	const char *path;
	const char *kind; /* "": unknown from its name */
	const char *origin; /* origin of its directory */
	tess_status status; /* TESS_OK: usable */
	const char *why; /* the reason if unusable; a conflict of a usable file; or "" */
	uint32_t abi; /* 0: not read */
	const char *name, *version, *license, *summary;
	const struct tess_offer *offers;
	size_t noffers;
};

/*
 * Opens all files that are found, for `tessera info`; expensive. Fails only without memory or with
 * a wrong search path.
 */
tess_status tess_registry_open_all(void);
/*
 * Returns the i-th file found, by file name; false past the end. Before tess_registry_open_all the
 * information is incomplete.
 */
bool tess_registry_at(size_t i, struct tess_plugin_info *out);
/* The plugin that offers a table; strings are borrowed, for the life of the process. */
struct tess_plugin_origin {
	const char *kind; /* "style" */
	const char *name;
	const char *path; /* "": unknown */
};
/*
 * Finds the plugin of a table; for that of "mine:cpu" the file of "mine". False: "plugin", and no
 * name. Takes no lock: for the handler of a signal, and while another thread opens a plugin.
 */
bool tess_registry_find_origin(const void *table, struct tess_plugin_origin *out);

/* Returns the i-th directory of the search path, with its origin; false past the end. */
bool tess_registry_dir_at(size_t i, const char **path, const char **origin);

#endif

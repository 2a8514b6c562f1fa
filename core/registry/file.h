/*
 * file.h - a plugin file, from its path to its tables; for core/registry only. The descriptor of a
 * program (tess_registry_add) is a "file" for each kind that it offers, without a directory.
 */
#ifndef TESS_REGISTRY_FILE_H
#define TESS_REGISTRY_FILE_H

#include "core/base/arena.h"
#include "core/registry/registry.h"

#include <limits.h>

enum { TESS_BACKENDS, TESS_DEVICES, TESS_STYLES, TESS_MODELS, TESS_PLUGIN_KINDS };
extern const char *const tess_plugin_kind_names[TESS_PLUGIN_KINDS];

struct tess_dir { /* a directory of the search path */
	struct tess_dir *next;
	const char *path, *origin;
	bool user_named; /* named by the user, who may trust other owners */
};

struct tess_file {
	struct tess_file *next; /* by file name, then by order of directories */
	struct tess_file *opened; /* the file opened before it */
	const struct tess_dir *dir; /* NULL: of the program */
	const char *path, *name; /* "/dir/tess-style-rowsplit.so", "tess-style-rowsplit.so" */
	const char *stem; /* "rowsplit"; of the program: the name of the plugin */
	int32_t kind; /* -1: unknown from its name */
	bool checked, initialised;
	bool shadowed; /* an earlier directory has a file of this name */
	tess_status status;
	const char *why; /* "" or a message that begins with the path */
	uint32_t abi; /* from the descriptor; 0: not read */
	const struct tess_plugin *descriptor; /* in the mapped file, once checked */
	struct tess_plugin plugin; /* a copy; if refused, only the strings are valid */
	struct tess_offer *offers;
	size_t noffers;
};

/* Returns a name for messages: the path, or "plugin NAME" for one of the program. */
static inline const char *tess_file_get_label(const struct tess_file *f)
{
	return f->dir ? f->path : f->name;
}

struct tess_wrapper { /* a backend or device that wraps another one */
	struct tess_wrapper *next;
	int32_t kind; /* TESS_BACKENDS or TESS_DEVICES */
	const char *name; /* "trace:gloo", "mine:cpu" */
	const void *outer; /* the table that the file of "trace" or "mine" offers */
	union {
		struct tess_backend backend;
		struct tess_device device;
	} table;
};

struct tess_registry {
	struct tess_arena arena;
	struct tess_host host;
	struct tess_dir *dirs;
	const char *searched_paths; /* all directories, for messages */
	struct tess_file *files;
	_Atomic(struct tess_file *) opened; /* mapped until exit, last first; read without a lock */
	_Atomic(struct tess_wrapper *) wrappers; /* the newest first; read without a lock */
	bool searched;
};

/* Returns the canonical path of this code's file, libtessera or a program; false: unknown. */
bool tess_registry_find_own_file(char real[static PATH_MAX], bool *program);

/* Completes the list of directories and lists their files with names of plugins. Call once. */
tess_status tess_registry_search(struct tess_registry *r);

/*
 * Checks, before mapping, that the file at `path` exists, is trusted, and is a shared object for
 * this machine. real: its canonical path, which is then mapped.
 */
tess_status tess_file_check_trust(const char *path, const struct tess_dir *dir,
                                  char real[static PATH_MAX]);
tess_status tess_file_check_elf(const char *real);

/*
 * Checks the descriptor, a symbol of `size` bytes, and fills abi and plugin of `f`. Runs no code of
 * the plugin.
 */
tess_status tess_file_check_descriptor(struct tess_file *f, struct tess_registry *r,
                                       const struct tess_plugin *descriptor, uint64_t size);
/* Checks the tables of the kind of `f`, and fills its offers. Runs no code of the plugin. */
tess_status tess_file_check_offers(struct tess_file *f, struct tess_registry *r);
/* Returns whether a descriptor has tables of a kind. */
bool tess_plugin_offers(const struct tess_plugin *p, int32_t kind);

/*
 * Makes the files of a program's descriptor, checked and linked by `next`, without initialising the
 * plugin.
 */
tess_status tess_program_make_files(struct tess_registry *r, const struct tess_plugin *p,
                                    struct tess_file **out);

/* Declares the options of a checked file and calls init, once for all files of its descriptor. */
tess_status tess_file_initialise(struct tess_file *f, struct tess_registry *r);

/* Sets where tess_registry_find_origin looks: the opened files and the wrappers of `r`. */
void tess_registry_set_origins(const struct tess_registry *r);

/* Opens a file once: checks, maps, pins, declares options, calls init. Sets status and why. */
void tess_file_open(struct tess_file *f, struct tess_registry *r);

/* Returns the registry, locked until tess_registry_unlock. */
struct tess_registry *tess_registry_lock(void);
void tess_registry_unlock(void);

/* Finds the table that a file offers by a name; *out points to the struct of that kind. */
tess_status tess_registry_find_table(int32_t kind, const char *name, void *out);

/* Checks the table that a device's wrap() returned; `inner`: the device that it wraps. */
tess_status tess_wrapped_device_check(const struct tess_device *own,
                                      const struct tess_device *inner);
/*
 * Completes a checked table: *out runs ops in `own` or `inner`, and is called `name`. outer: the
 * table of the wrapper's file, for messages. Call it with the registry locked.
 */
tess_status tess_wrapped_device_complete(const struct tess_device *outer,
                                         const struct tess_device *own,
                                         const struct tess_device *inner, const char *name,
                                         struct tess_device *out);

/* Returns whether a name consists of a-z, 0-9, _ and `more`, and has at most 64 bytes. */
bool tess_name_valid(const char *name, const char *more);

#endif

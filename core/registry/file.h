/* file.h - one plugin file, from its path to its tables; shared by the files of core/registry only. */
#ifndef TESS_REGISTRY_FILE_H
#define TESS_REGISTRY_FILE_H

#include "core/base/arena.h"
#include "registry.h"

#include <limits.h>

enum { TESS_BACKENDS, TESS_DEVICES, TESS_STYLES, TESS_MODELS, TESS_PLUGIN_KINDS };
extern const char *const tess_plugin_kind_names[TESS_PLUGIN_KINDS];

struct tess_dir { /* where files are looked for */
	struct tess_dir *next;
	const char *path, *origin;
	bool user_named; /* by the user, who may trust other owners */
};

struct tess_file {
	struct tess_file *next; /* by file name, then by order of directories */
	struct tess_file *opened; /* the one opened before it */
	const struct tess_dir *dir;
	const char *path, *name; /* "/dir/tess-style-rowsplit.so", "tess-style-rowsplit.so" */
	const char *stem; /* "rowsplit" */
	int32_t kind; /* -1: the name tells none */
	bool checked, initialised;
	bool shadowed; /* by a file of this name in an earlier directory: no fault of its own */
	tess_status status;
	const char *why; /* "" or a sentence that starts with the path */
	uint32_t abi; /* as it says, once that is known */
	const struct tess_plugin *descriptor; /* the plugin's own, once judged */
	struct tess_plugin plugin; /* our copy; of a refused one only the strings are alive */
	struct tess_offer *offers;
	size_t noffers;
};

struct tess_wrapper { /* a backend over another */
	struct tess_wrapper *next;
	const char *name; /* "trace:gloo" */
	struct tess_backend table;
};

struct tess_registry {
	struct tess_arena arena;
	struct tess_host host;
	struct tess_dir *dirs;
	const char *searched_paths; /* all of them, for messages */
	struct tess_file *files;
	struct tess_file *opened; /* mapped for ever, last first */
	struct tess_wrapper *wrappers;
	bool searched;
};

/* Appends a directory, unless it is there. Its path is copied. */
tess_status tess_registry_append_dir(struct tess_registry *r, const char *path, size_t len,
                                     const char *origin, bool named);

/* Completes the list of directories, and lists all files in them that are named as plugins are. Once. */
tess_status tess_registry_search(struct tess_registry *r);

/*
 * Before anything is mapped: the file at `path` is there, is trusted, and is a shared object of this
 * machine. real: its canonical path, which is what may be mapped.
 */
tess_status tess_file_check_trust(const char *path, const struct tess_dir *dir,
                                  char real[static PATH_MAX]);
tess_status tess_file_check_elf(const char *real);

/* The descriptor, `room` bytes at `own`: fills plugin and offers of `f`. Runs none of the plugin's code. */
tess_status tess_file_check_tables(struct tess_file *f, struct tess_registry *r,
                                   const struct tess_plugin *descriptor, uint64_t size);

/* All of it, once: check, map, judge, pin, declare options, init. f->status and f->why keep the result. */
void tess_file_open(struct tess_file *f, struct tess_registry *r);

/* Whether a name that is written in plans and messages is [a-z0-9_]+ or of `more`, and not absurdly long. */
bool tess_name_valid(const char *name, const char *more);

#endif

/*
 * search.c - searches for plugins in TESSERA_PLUGIN_PATH, in tessera-<ABI> next to libtessera, and
 * in the compiled-in directory. In a program that contains this code, next to the program and in
 * its directory of libraries. Never in the current directory, $HOME, or a path from a checkpoint.
 */
#include "core/registry/file.h"

#include "core/base/log.h"
#include "core/base/option.h"
#include "core/base/status.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const struct tess_option tess_registry_options[] = {
	{ "plugin_path", "", "absolute directories with plugins, separated by colons" },
	{ "library", "", "path of libtessera.so, for the Python module only" },
	{ NULL, NULL, NULL },
};

/* Appends a directory, unless it is listed already. Copies the path. */
static tess_status append_dir(struct tess_registry *r, const char *path, size_t len,
                              const char *origin, bool user_named)
{
	struct tess_dir *dir = TESS_NEW(&r->arena, struct tess_dir, 1), **end = &r->dirs;
	char *copy = tess_arena_copy(&r->arena, path, len);

	if (!dir || !copy)
		return TESS_ENOMEM;
	for (; *end; end = &(*end)->next)
		if (!strcmp((*end)->path, copy))
			return TESS_OK;
	*dir = (struct tess_dir){ .path = copy, .origin = origin, .user_named = user_named };
	*end = dir;
	return TESS_OK;
}

static tess_status add_search_path(struct tess_registry *r, const char *list)
{
	tess_status st = TESS_OK;

	while (*list && !st) {
		size_t len = strcspn(list, ":");

		if (*list == '/')
			st = append_dir(r, list, len, "TESSERA_PLUGIN_PATH", true);
		else if (len)
			tess_log(TESS_WARN, "registry",
			         "TESSERA_PLUGIN_PATH: \"%.*s\" is ignored: only absolute "
			         "paths are searched",
			         (int)len, list);
		list += len + (list[len] == ':');
	}
	return st;
}

bool tess_registry_find_own_file(char real[static PATH_MAX], bool *program)
{
	struct link_map *own = NULL;
	Dl_info info;

	if (!dladdr1((void *)(uintptr_t)tess_registry_find_own_file, &info, (void **)&own,
	             RTLD_DL_LINKMAP) ||
	    !own)
		return false;
	*program = !*own->l_name;
	/* for a program the loader has argv[0], which the caller chooses */
	return realpath(*program ? "/proc/self/exe" : info.dli_fname, real) != NULL;
}

/* Appends `path`, relative to the folder of this code, if it exists. */
static tess_status add_relative_dir(struct tess_registry *r, const char *folder, const char *path,
                                    const char *origin)
{
	const char *whole = tess_arena_format(&r->arena, "%s/%s", folder, path);
	char real[PATH_MAX];

	if (!whole)
		return TESS_ENOMEM;
	return realpath(whole, real) ? append_dir(r, real, strlen(real), origin, false) : TESS_OK;
}

static tess_status add_own_dirs(struct tess_registry *r)
{
	char real[PATH_MAX];
	tess_status st;
	bool program;

	if (!tess_registry_find_own_file(real, &program))
		return TESS_OK;
	*strrchr(real, '/') = '\0';
	st = add_relative_dir(r, real, strrchr(TESS_PLUGIN_DIR, '/') + 1,
	                      program ? "beside the program" : "beside libtessera");
	return st || !program
	               ? st
	               : add_relative_dir(r, real, TESS_PLUGIN_FROM_BIN, "beside libtessera");
}

/* Parses "tess-style-rowsplit.so" as the style rowsplit; kind -1: a name of another form. */
static tess_status parse_file_name(struct tess_file *f, struct tess_arena *a)
{
	bool prefixed = !strncmp(f->name, "tess-", 5);
	const char *word = f->name + (prefixed ? 5 : 0);

	f->kind = -1;
	f->stem = f->why = "";
	for (int32_t kind = 0; prefixed && kind < TESS_PLUGIN_KINDS; kind++) {
		size_t len = strlen(tess_plugin_kind_names[kind]);

		if (strncmp(word, tess_plugin_kind_names[kind], len) != 0 || word[len] != '-')
			continue;
		f->stem =
			tess_arena_copy(a, word + len + 1, strlen(word + len + 1) - strlen(".so"));
		if (!f->stem)
			return TESS_ENOMEM;
		if (tess_name_valid(f->stem, ""))
			f->kind = kind;
	}
	if (f->kind >= 0)
		return TESS_OK;
	f->checked = true;
	f->status = TESS_EINVAL;
	f->why =
		tess_arena_format(a,
	                          "%s: refused: a plugin is named tess-KIND-NAME.so, where KIND is "
	                          "backend, device, style or model, and NAME is [a-z0-9_]+",
	                          f->path);
	return f->why ? TESS_OK : TESS_ENOMEM;
}

static tess_status add_plugin_file(struct tess_registry *r, const struct tess_dir *dir,
                                   const char *name)
{
	struct tess_file *f = TESS_NEW(&r->arena, struct tess_file, 1), **at = &r->files;
	const struct tess_file *before = NULL;

	if (!f)
		return TESS_ENOMEM;
	f->dir = dir;
	f->path = tess_arena_format(&r->arena, "%s/%s", dir->path, name);
	if (!f->path)
		return TESS_ENOMEM;
	f->name = f->path + strlen(dir->path) + 1;
	if (parse_file_name(f, &r->arena))
		return TESS_ENOMEM;
	for (; *at && strcmp((*at)->name, f->name) <= 0; at = &(*at)->next)
		if (!before && !strcmp((*at)->name, f->name))
			before = *at;
	f->next = *at;
	*at = f;
	if (!before)
		return TESS_OK;
	f->checked = f->shadowed = true;
	f->status = TESS_EINVAL;
	f->why = tess_arena_format(&r->arena, "%s: shadowed by %s", f->path, before->path);
	return f->why ? TESS_OK : TESS_ENOMEM;
}

/* Returns whether a file of another name contains the symbol that each plugin exports. */
static bool is_misnamed_plugin(const struct tess_dir *dir, const char *name)
{
	static const char symbol[] = "tess_plugin_v2";
	char path[PATH_MAX];
	struct stat info;
	bool found = false;
	void *map;
	int fd = snprintf(path, sizeof path, "%s/%s", dir->path, name) < (int)sizeof path
	                 ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
	                 : -1;

	if (fd >= 0 && !fstat(fd, &info) && S_ISREG(info.st_mode) && info.st_size > 0) {
		map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (map != MAP_FAILED) {
			found = memmem(map, (size_t)info.st_size, symbol, sizeof symbol);
			munmap(map, (size_t)info.st_size);
		}
	}
	if (fd >= 0)
		close(fd);
	return found;
}

/* Returns whether a file is a plugin, or, in a directory named by the user, may be one. */
static bool is_plugin_candidate(const struct tess_dir *dir, const char *name)
{
	size_t len = strlen(name);

	if (len <= strlen(".so") || strcmp(name + len - 3, ".so") != 0)
		return false;
	return !strncmp(name, "tess-", 5) ? len > strlen("tess-.so")
	                                  : dir->user_named && is_misnamed_plugin(dir, name);
}

static tess_status list_plugin_dir(struct tess_registry *r, const struct tess_dir *dir)
{
	tess_status st = TESS_OK;
	struct dirent *entry;
	DIR *files = opendir(dir->path);

	if (!files && errno == ENOMEM)
		return tess_fail(TESS_ENOMEM, "%s: out of memory", dir->path);
	if (!files) {
		if (errno != ENOENT || dir->user_named)
			tess_log(TESS_WARN, "registry", "%s (%s): %s", dir->path, dir->origin,
			         strerror(errno));
		return TESS_OK;
	}
	while (!st && (entry = readdir(files)) != NULL)
		if (is_plugin_candidate(dir, entry->d_name))
			st = add_plugin_file(r, dir, entry->d_name);
	closedir(files);
	return st;
}

tess_status tess_registry_search(struct tess_registry *r)
{
	tess_status st;

	if (r->searched)
		return TESS_OK;
	st = tess_option_add("core/registry/search.c", tess_registry_options);
	if (!st)
		st = add_search_path(r, tess_option_get("plugin_path"));
	if (!st)
		st = add_own_dirs(r);
	if (!st)
		st = append_dir(r, TESS_PLUGIN_DIR, strlen(TESS_PLUGIN_DIR), "compiled in", false);
	r->searched_paths = "";
	for (const struct tess_dir *dir = r->dirs; dir && !st; dir = dir->next) {
		r->searched_paths = tess_arena_format(&r->arena, "%s%s%s", r->searched_paths,
		                                      *r->searched_paths ? ", " : "", dir->path);
		st = r->searched_paths ? list_plugin_dir(r, dir) : TESS_ENOMEM;
	}
	r->searched = !st;
	return st;
}
